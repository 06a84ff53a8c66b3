package proxy

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Call names one call. It can be compared; String names it without its Number.
type Call struct {
	Number  int64  // 1 is the first that the proxy got
	Service string // sqs, ec2, autoscaling, sts or kubernetes
	// Action is that of AWS, such as ReceiveMessage, or the verb of Kubernetes: get,
	// list, watch, create, update, patch, delete, deletecollection.
	Action string
	// What a call to Kubernetes is about. Resource is the path where it is no resource's.
	Resource, Subresource, Namespace, Name string
}

// Kubernetes is the Service of the API server.
const Kubernetes = "kubernetes"

// String is such as "sqs ReceiveMessage", "patch nodes a" or "create pods/eviction b".
func (c Call) String() string {
	if c.Service != Kubernetes {
		return c.Service + " " + c.Action
	}
	text := c.Action + " " + c.Resource
	if c.Subresource != "" {
		text += "/" + c.Subresource
	}
	if c.Name != "" {
		text += " " + c.Name
	}
	return text
}

// streams reports whether the answer has no end of its own.
func (c Call) streams() bool { return c.Service == Kubernetes && c.Action == "watch" }

// credential is the start of an Authorization header of signature version 4:
// access key id, date, region, service.
var credential = regexp.MustCompile(`Credential=[^/,\s]+/[0-9]+/[^/,\s]+/([^/,\s]+)/`)

// readAWS names a call of AWS: who signs it names the service; SQS names the
// action in a header, the others in a form.
func readAWS(r *http.Request, body []byte) Call {
	var c Call
	if match := credential.FindStringSubmatch(r.Header.Get("Authorization")); match != nil {
		c.Service = match[1]
	}
	if _, action, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		c.Action = action
	} else if form, err := url.ParseQuery(string(body)); err == nil {
		c.Action = form.Get("Action")
	}
	return c
}

// readKubernetes names a call of the API server by its path:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris.
func readKubernetes(r *http.Request, _ []byte) Call {
	c := Call{Service: Kubernetes, Action: strings.ToLower(r.Method), Resource: r.URL.Path}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(path) > 2 && path[0] == "api": // api, version
		path = path[2:]
	case len(path) > 3 && path[0] == "apis": // apis, group, version
		path = path[3:]
	default:
		return c
	}
	if len(path) > 2 && path[0] == "namespaces" && path[2] != "status" && path[2] != "finalize" {
		c.Namespace, path = path[1], path[2:]
	}
	for k, field := range []*string{&c.Resource, &c.Name, &c.Subresource} {
		if k < len(path) {
			*field = path[k]
		}
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "" && r.URL.Query().Get("watch") != "false":
		c.Action = "watch"
	case r.Method == http.MethodGet && c.Name == "":
		c.Action = "list"
	case r.Method == http.MethodPost:
		c.Action = "create"
	case r.Method == http.MethodPut:
		c.Action = "update"
	case r.Method == http.MethodDelete && c.Name == "":
		c.Action = "deletecollection"
	}
	return c
}
