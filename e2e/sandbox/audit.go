package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// AuditEvent is one request to the API server, by anyone, as the audit log has
// it: a watch when it was answered, any other request when it was complete.
type AuditEvent struct {
	User        string // such as system:serviceaccount:NAMESPACE:NAME, or Admin
	UserAgent   string
	Verb        string // get, list, watch, create, update, patch, delete, deletecollection
	URI         string // path and query: list and watch have their selectors here
	Group       string // "" is the core group
	Resource    string // plural, lower case; "" when the path is no resource's
	Subresource string
	Namespace   string
	Name        string
	Code        int // HTTP status
	// Request is the body of a write to Nodes, Pods or their subresources, unless a component of the
	// control plane wrote.
	Request  json.RawMessage
	Received time.Time // when the API server had read the request's header
	Answered time.Time
}

// Admin is the user of Cluster.Config and Cluster.Kubeconfig.
const Admin = "admin"

// Each component has a name of its own in the audit log. All have all rights.
const (
	userControllerManager = "system:kube-controller-manager"
	userScheduler         = "system:kube-scheduler"
	userKWOK              = "kwok"
)

const (
	auditFile       = "audit.log"
	auditPolicyFile = "audit-policy.yaml"
)

// auditPolicy has one line for each request. A watch is logged when it begins,
// because its end says nothing.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, verbs: [watch], omitStages: [ResponseComplete]}
- {level: Metadata, users: ["` + userControllerManager + `", "` + userScheduler + `", "` + userKWOK + `"]}
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
  resources: [{group: "", resources: [nodes, "nodes/*", pods, "pods/*"]}]
- {level: Metadata}
`

// auditLog reads the audit log as it grows. The zero value is not ready: path
// must be set.
type auditLog struct {
	path string

	mu     sync.Mutex
	offset int64 // of the first line that was not read
	events []AuditEvent
}

// Audit returns the requests so far that keep wants, nil for all, in the order
// in which they were answered. A request is logged just after its answer was
// sent: one that has returned may be missing for some milliseconds.
func (c *Cluster) Audit(keep func(AuditEvent) bool) ([]AuditEvent, error) {
	events, err := c.audit.read()
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var kept []AuditEvent
	for _, event := range events {
		if keep == nil || keep(event) {
			kept = append(kept, event)
		}
	}
	return kept, nil
}

// read returns all events so far. The slice is never written to again.
func (l *auditLog) read() ([]AuditEvent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, l.offset, 1<<62))
	if err != nil {
		return nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the rest is being written
	for line := range bytes.Lines(text) {
		event, err := parseAudit(line)
		if err != nil {
			return nil, fmt.Errorf("%s at %d: %w", filepath.Base(l.path), l.offset, err)
		}
		l.events = append(l.events, event)
		l.offset += int64(len(line))
	}
	return l.events, nil
}

// parseAudit reads one line of the log, an Event of audit.k8s.io/v1:
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/.
func parseAudit(line []byte) (AuditEvent, error) {
	var event struct {
		Verb       string
		RequestURI string
		User       struct{ Username string }
		UserAgent  string
		ObjectRef  struct{ APIGroup, Resource, Subresource, Namespace, Name string }

		ResponseStatus           struct{ Code int }
		RequestObject            json.RawMessage
		RequestReceivedTimestamp time.Time
		StageTimestamp           time.Time
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return AuditEvent{}, err
	}
	return AuditEvent{
		User:        event.User.Username,
		UserAgent:   event.UserAgent,
		Verb:        event.Verb,
		URI:         event.RequestURI,
		Group:       event.ObjectRef.APIGroup,
		Resource:    event.ObjectRef.Resource,
		Subresource: event.ObjectRef.Subresource,
		Namespace:   event.ObjectRef.Namespace,
		Name:        event.ObjectRef.Name,
		Code:        event.ResponseStatus.Code,
		Request:     event.RequestObject,
		Received:    event.RequestReceivedTimestamp,
		Answered:    event.StageTimestamp,
	}, nil
}
