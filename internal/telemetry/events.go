package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The reasons of Events are those of AWS Node Termination Handler, where it has
// one: people filter by them.
var noticeReasons = map[notice.Kind]string{
	notice.SpotInterruption:        "SpotInterruption",
	notice.RebalanceRecommendation: "RebalanceRecommendation",
	notice.StateChange:             "StateChange",
	notice.ScheduledChange:         "ScheduledEvent",
	notice.ASGTerminate:            "ASGLifecycle",
	notice.ASGLaunch:               "ASGLifecycle",
}

// steps are what Events say about the controller's steps on a node. A step that
// failed has the same reason with Error after it.
var steps = map[string]struct{ reason, done, undone string }{
	"cordon":    {"Cordon", "The node is cordoned", "The node could not be cordoned"},
	"uncordon":  {"Uncordon", "The node is uncordoned", "The node could not be uncordoned"},
	"hold-back": {"DrainHeldBack", "The drain waits until more nodes are in use", "The drain could not be held back"},
}

const (
	reasonDrained = "CordonAndDrain"
	reasonEvicted = "PodEviction"
	reasonError   = "Error" // after another
)

// EventOptions are what Events need to know.
type EventOptions struct {
	// Client writes the Events. It has a rate limit of its own, or they take the
	// requests of drains, and a time limit for requests: the recorder sets none.
	Client typedcorev1.EventsGetter
	// Node returns the node of that name as it was last seen, nil if there is none;
	// it makes no request. The node has its labels and its intent.
	Node func(name string) *corev1.Node
	// Component is who reports, and Host the node it runs on; can be empty.
	Component, Host string
	// Account and Region are those of all instances; empty: not known.
	Account, Region string
	// Annotations are added to every Event.
	Annotations map[string]string
	Metrics     *Metrics
	Log         logr.Logger
}

// Events records as Kubernetes Events what happens to nodes and their pods. Its
// methods may be called concurrently and do not block: Events wait in a buffer
// that is bounded, and those that find it full are lost.
type Events struct {
	options EventOptions
	// Pods are many, and what is said of nodes must not be lost for them: each has
	// a buffer of its own.
	nodes, pods record.EventRecorder
}

// NewEvents returns Events that are written until ctx ends.
func NewEvents(ctx context.Context, o EventOptions) *Events {
	sink := &eventSink{EventSink: &typedcorev1.EventSinkImpl{Interface: o.Client.Events("")}, metrics: o.Metrics, log: o.Log}
	// The recorder logs every Event that fails, whole, at every try; the sink says
	// once what is wrong.
	quiet := klog.NewContext(ctx, logr.Discard())
	// tools/record rather than tools/events: annotations are on both, but this one
	// counts repetitions in the fields that kubectl and dashboards show, and has a
	// bounded buffer, where the other starts a goroutine for each Event.
	recorder := func() record.EventRecorder {
		b := record.NewBroadcaster(record.WithContext(quiet), record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: correlated}))
		b.StartRecordingToSink(sink)
		return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: o.Component, Host: o.Host}).WithLogger(logr.Discard())
	}
	return &Events{options: o, nodes: recorder(), pods: recorder()}
}

// correlated is how many Events are remembered to count their repetitions, which
// come from redelivered messages, within a minute or two.
const correlated = 1024

// Decided implements controller.Observer. What does not touch a node is no Event.
func (e *Events) Decided(d Decision) {
	if d.DryRun || d.Repeated || d.Node.Name == "" {
		return
	}
	switch d.Action {
	case "cordon", "drain", "undo":
		m := machineOf(e.options.Node(d.Node.Name)).about(d)
		e.onNode(d.Node, m, corev1.EventTypeNormal, noticeReasons[d.Notice.Kind], describe(d))
	}
}

// Node implements controller.Observer.
func (e *Events) Node(ref cluster.Ref, step, why string, err error) {
	s, ok := steps[step]
	if !ok || errors.Is(err, cluster.ErrNodeGone) || errors.Is(err, context.Canceled) { // nothing went wrong with the node
		return
	}
	m := machineOf(e.options.Node(ref.Name))
	if err != nil {
		e.onNode(ref, m, corev1.EventTypeWarning, s.reason+reasonError, s.undone+": "+err.Error())
		return
	}
	e.onNode(ref, m, corev1.EventTypeNormal, s.reason, s.done+": "+why)
}

// Drained implements controller.Observer.
func (e *Events) Drained(ref cluster.Ref, r drain.Result, took time.Duration, deadline time.Time) {
	m := machineOf(e.options.Node(ref.Name))
	if len(r.Missed) > 0 {
		e.onNode(ref, m, corev1.EventTypeWarning, reasonDrained+reasonError, howDrained(r, took, deadline))
		return
	}
	e.onNode(ref, m, corev1.EventTypeNormal, reasonDrained, howDrained(r, took, deadline))
}

// Pod tells about an answered request for a pod, as drain.Drainer.Observe. What
// was refused is no Event: it is tried again.
func (e *Events) Pod(s drain.Step) {
	if s.Err != nil {
		return
	}
	node := e.options.Node(s.Pod.Spec.NodeName)
	kind, what := corev1.EventTypeNormal, "Evicted from node "+s.Pod.Spec.NodeName
	if s.Forced {
		kind, what = corev1.EventTypeWarning, fmt.Sprintf("Deleted from node %s with a grace period of %s", s.Pod.Spec.NodeName, s.Grace)
	}
	pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.Pod.UID}
	e.record(e.pods, pod, machineOf(node), kind, reasonEvicted, what+intended(node))
}

// intended says why a node is drained, and until when; empty if it does not say so.
func intended(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	i, ok, err := cluster.ReadIntent(node)
	if !ok || err != nil {
		return ""
	}
	var kinds []string
	for _, entry := range i.Entries {
		if name := entry.Kind.String(); len(kinds) == 0 || kinds[len(kinds)-1] != name {
			kinds = append(kinds, name)
		}
	}
	return ": " + strings.Join(kinds, ", ") + at("; the instance goes away at ", i.Deadline())
}

func (e *Events) onNode(ref cluster.Ref, m machine, kind, reason, message string) {
	if m.instance == "" {
		m.instance = ref.Instance
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: ref.Name, UID: ref.UID}
	e.record(e.nodes, node, m, kind, reason, message)
}

func (e *Events) record(to record.EventRecorder, about *corev1.ObjectReference, m machine, kind, reason, message string) {
	const longest = 1024 // the API server's limit for newer Events; a sentence is shorter
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "")
	}
	to.AnnotatedEventf(about, e.annotations(m), kind, reason, "%s", message)
}

// annotations are those of AWS Node Termination Handler, as far as they are
// known, and the extra ones.
func (e *Events) annotations(m machine) map[string]string {
	all := map[string]string{
		"account-id":          cmp.Or(m.account, e.options.Account),
		"availability-zone":   m.zone,
		"instance-id":         m.instance,
		"instance-life-cycle": m.lifecycle,
		"instance-type":       m.instanceType,
		"local-hostname":      m.addresses[corev1.NodeInternalDNS],
		"local-ipv4":          m.addresses[corev1.NodeInternalIP],
		"public-hostname":     m.addresses[corev1.NodeExternalDNS],
		"public-ipv4":         m.addresses[corev1.NodeExternalIP],
		"region":              cmp.Or(m.region, e.options.Region),
	}
	maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
	maps.Copy(all, e.options.Annotations)
	return all
}

// eventSink counts what is written, and says when that begins to fail.
type eventSink struct {
	record.EventSink
	metrics *Metrics
	log     logr.Logger
	failing atomic.Bool
}

// Create implements record.EventSink.
func (s *eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	created, err := s.EventSink.Create(event)
	s.note(err)
	return created, err
}

// Patch implements record.EventSink.
func (s *eventSink) Patch(old *corev1.Event, data []byte) (*corev1.Event, error) {
	patched, err := s.EventSink.Patch(old, data)
	if !apierrors.IsNotFound(err) { // it has expired, and is created again
		s.note(err)
	}
	return patched, err
}

func (s *eventSink) note(err error) {
	s.metrics.eventWrites.WithLabelValues(status(err)).Inc()
	switch {
	case err == nil:
		s.failing.Store(false)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // as its pods
	case !s.failing.Swap(true):
		hint := ""
		if apierrors.IsForbidden(err) {
			hint = "the ClusterRole has to allow create and patch of events; emit-kubernetes-events turns them off"
		}
		s.log.Error(err, "Kubernetes Events are not written; this is said once", "hint", hint)
	}
}
