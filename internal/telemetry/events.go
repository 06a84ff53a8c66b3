package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/report/describe"
)

// The component and the reasons of Events are those of AWS Node Termination Handler if it has
// one, because people filter by them.
const component = "aws-node-termination-handler"

var noticeReasons = map[notice.Kind]string{
	notice.SpotInterruption:        "SpotInterruption",
	notice.RebalanceRecommendation: "RebalanceRecommendation",
	notice.StateChange:             "StateChange",
	notice.ScheduledChange:         "ScheduledEvent",
	notice.ASGTerminate:            "ASGLifecycle",
	notice.ASGLaunch:               "ASGLifecycle",

	notice.CapacityReservationInterruption: "CapacityReservationInterruption",
	notice.CapacityBlockExpiration:         "CapacityBlockExpiration",
	notice.InstanceImpaired:                "InstanceImpaired",
}

// steps are the texts of the Events about the controller's steps on a node. undone is for steps that can fail: the
// reason has the suffix Error then.
var steps = map[report.StepKind]struct{ kind, reason, done, undone string }{
	report.Cordon:   {normal, "Cordon", "The node is cordoned", "The node could not be cordoned"},
	report.Uncordon: {normal, "Uncordon", "The node is uncordoned", "The node could not be uncordoned"},
	report.Replace:  {normal, "ReplacementFirst", "The node's replacement", "The node is drained without a replacement"},

	report.HoldBack: {kind: normal, reason: "DrainHeldBack", done: "The drain is held back"},
	report.CordonAgain: {
		kind: warning, reason: "CordonAgain",
		done: "Somebody uncordoned the node during its drain, but its machine goes away: the node is cordoned again, once",
	},
	report.LeftUncordoned: {
		kind: warning, reason: "LeftUncordoned",
		done: "Somebody uncordoned the node again, but its machine goes away: the node stays uncordoned, and new pods on " +
			"it will be lost",
	},
	report.Ignore: {
		kind: warning, reason: "NoticeIgnored",
		done: "A notice about this node's instance is ignored: the node is not drained before the instance goes away",
	},
	report.Retain: {
		kind: warning, reason: "InstanceRetained",
		done: "The node's Auto Scaling group keeps its instance, because the termination was abandoned: a person has to " +
			"end it",
	},
	report.Impair: {kind: warning, reason: "InstanceImpaired", done: "The status checks of the node's instance fail"},
	report.Unscheduled: {
		kind: warning, reason: "PodsUnscheduled",
		done: "The scheduler finds no node for pods that have left this one",
	},
	report.Delegate: {
		kind: normal, reason: "DrainByKarpenter",
		done: "Karpenter is asked to replace the node, and gets its pods off it",
	},
	report.TakeOver: {
		kind: warning, reason: "DrainByHandler",
		done: "The handler gets the pods off the node instead of Karpenter",
	},
	report.KeepDelegated: {
		kind: warning, reason: "DrainGoesOn",
		done: "What asked for the drain is over, but Karpenter replaces the node already: it stays cordoned",
	},
	report.Undo: {
		kind: normal, reason: "DrainCalledOff",
		done: "What asked for the drain is over, and the handler had not cordoned the node",
	},
	report.CallOff: {
		kind: warning, reason: "DrainCalledOff",
		done: "Somebody uncordoned the node during its drain, and the drain can wait: it is called off",
	},
}

// drainReasons are the reasons of Events about the end of a drain. AWS Node Termination
// Handler uses CordonAndDrainError for a drain that missed its deadline.
var drainReasons = map[intent.Outcome]string{
	intent.Drained:     "CordonAndDrain",
	intent.Missed:      "CordonAndDrain" + reasonError,
	intent.Gone:        "InstanceGone",
	intent.Unconfirmed: "DrainUnconfirmed",
}

const (
	normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning

	reasonBlocked = "EvictionBlocked"
	reasonError   = "Error" // a suffix
)

// EventOptions configure Events.
type EventOptions struct {
	// Client writes the Events. It must have a rate limit of its own, so that Events do
	// not use up the requests of drains, and a time limit, because the recorder sets none.
	Client typedcorev1.EventsGetter
	// Node returns the node of that name from the watch, nil if there is none. It makes
	// no request. The node has its labels and its intent.
	Node func(name string) *corev1.Node
	// Host is the node that the reporter runs on; it can be empty.
	Host string
	// Where returns the account and the region of instances whose notice does not say; empty: unknown.
	Where func() (account, region string)
	// Annotations are added to every Event.
	Annotations map[string]string
	Metrics     *Metrics
	Log         logr.Logger
}

// Events writes Kubernetes Events about nodes and their pods. Its methods may be called
// concurrently and do not block: Events wait in a bounded buffer, and are dropped
// if it is full.
type Events struct {
	options EventOptions
	// Nodes have a buffer of their own, because many Events about pods must not displace
	// those about nodes.
	nodes, pods record.EventRecorder
	blocked     flowcontrol.PassiveRateLimiter // for Events about blocked pods
}

// NewEvents returns an Events that writes until ctx ends.
func NewEvents(ctx context.Context, o EventOptions) *Events {
	writer := &typedcorev1.EventSinkImpl{Interface: o.Client.Events("")}
	sink := &eventSink{EventSink: writer, metrics: o.Metrics, log: o.Log}
	// The recorder logs every failed Event in full at every try; the sink logs the first
	// failure only.
	quiet := klog.NewContext(ctx, logr.Discard())
	// tools/record rather than tools/events: both allow annotations, but this one counts
	// repetitions in the fields that kubectl and dashboards show, and has a
	// bounded buffer, while the other starts a goroutine for each Event.
	recorder := func() record.EventRecorder {
		b := record.NewBroadcaster(record.WithContext(quiet),
			record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: correlated, SpamKeyFunc: spamKey}))
		b.StartRecordingToSink(sink)
		return b.NewRecorder(scheme.Scheme,
			corev1.EventSource{Component: component, Host: o.Host}).WithLogger(logr.Discard())
	}
	return &Events{
		options: o, nodes: recorder(), pods: recorder(),
		blocked: flowcontrol.NewTokenBucketPassiveRateLimiter(blockedPerSecond, blockedBurst),
	}
}

// spamKey has the recorder limit the Events about an object by their reason: many pods that are blocked must not
// displace how the drain has ended.
func spamKey(e *corev1.Event) string {
	about := e.InvolvedObject
	return strings.Join([]string{about.Kind, about.Name, string(about.UID), e.Reason}, "/")
}

// correlated is the number of Events that are remembered to count their repetitions.
// Redelivered messages repeat Events within a minute or two.
const correlated = 1024

// In a storm a budget can block thousands of pods. The Events of their nodes say the same,
// and nobody looks at more than a hundred pods.
const blockedPerSecond, blockedBurst = 1, 100

// Decided implements report.Observer. Only decisions that change a node have an Event.
func (e *Events) Decided(d report.Decision) {
	if d.DryRun || d.Repeated || d.Node.Name == "" {
		return
	}
	switch d.Action {
	case decision.Drop, decision.Complete:
		if d.Why != decision.WhyNotifiedByRule {
			return
		}
		fallthrough
	case decision.Cordon, decision.Drain, decision.Undo:
		m := describe.MachineOf(e.options.Node(d.Node.Name)).About(d)
		e.onNode(d.Node, m, said{normal, noticeReasons[d.Notice.Kind], describe.Decision(d)})
	case decision.Leave, decision.Hold, decision.Finish, decision.Launch, decision.Reject:
	}
}

// Stepped implements report.Observer.
func (e *Events) Stepped(s report.Step) {
	words, ok := steps[s.Kind]
	// Neither of these errors is a failure of the step.
	if !ok || errors.Is(s.Err, cluster.ErrNodeGone) || errors.Is(s.Err, context.Canceled) {
		return
	}
	about := said{words.kind, words.reason, words.done + ": " + s.Reason()}
	if s.Err != nil {
		about = said{warning, words.reason + reasonError, words.undone + ": " + s.Err.Error()}
	}
	e.onNode(s.Node, describe.MachineOf(e.options.Node(s.Node.Name)), about)
}

// Recorded implements report.Observer. It does nothing: Decided has written the Event.
func (e *Events) Recorded(intent.Entry) {}

// Drained implements report.Observer.
func (e *Events) Drained(d report.Drain) {
	if d.Outcome == intent.CalledOff { // Stepped has written the Event
		return
	}
	about := said{warning, drainReasons[d.Outcome], describe.Drain(d)}
	if d.Outcome == intent.Drained && len(d.Result.Record.CutShort) == 0 {
		about.kind = normal
	}
	e.onNode(d.Node, describe.MachineOf(e.options.Node(d.Node.Name)), about)
}

// Pod writes an Event about an accepted request for a pod. It is a drain.Drainer.Observe.
// Refused requests have no Event, because they are tried again.
func (e *Events) Pod(s evacuation.Answer) {
	if s.Err != nil {
		return
	}
	node := e.options.Node(s.Pod.Spec.NodeName)
	kind, what := normal, "Evicted from node "+s.Pod.Spec.NodeName
	if s.Forced {
		kind, what = warning, "Deleted from node "+s.Pod.Spec.NodeName+" with a grace period of "+overview.Length(s.Grace)
	}
	e.onPod(s.Pod, describe.MachineOf(node), said{kind, "PodEviction", what + intended(node)})
}

// Blocked writes Events about what keeps a pod or volumes on a node. It is a
// drain.Drainer.Blocked. The node gets an Event for each cause, each pod one too, up to
// blockedPerSecond, unless its namespace is being deleted.
func (e *Events) Blocked(b evacuation.Blocked) {
	node := e.options.Node(b.Node)
	m := describe.MachineOf(node)
	what := ": " + b.Why
	if b.Pod != nil {
		if b.Cause != overview.Namespace && e.blocked.TryAccept() { // no Event is taken in a namespace that is being deleted
			e.onPod(b.Pod, m, said{
				warning, reasonBlocked,
				"Node " + b.Node + " is being drained" + intended(node) + ". The drain waits for this pod: " + b.Why,
			})
		}
		what = " for pod " + b.Pod.Namespace + "/" + b.Pod.Name + ": " + b.Why
	}
	if node != nil && b.First {
		e.onNode(cluster.Ref{Name: node.Name, UID: node.UID}, m, said{warning, reasonBlocked, "The drain waits" + what})
	}
}

// intended says why a node is drained, and until when; empty if its intent cannot be read.
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
		if name := entry.Kind.Dashed(); len(kinds) == 0 || kinds[len(kinds)-1] != name {
			kinds = append(kinds, name)
		}
	}
	return ": " + strings.Join(kinds, ", ") + describe.At("; the instance goes away at ", i.Deadline())
}

func (e *Events) onNode(ref cluster.Ref, m describe.Machine, s said) {
	m.Instance = cmp.Or(m.Instance, ref.Instance)
	e.record(e.nodes, &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: ref.Name, UID: ref.UID}, m, s)
}

func (e *Events) onPod(pod *corev1.Pod, m describe.Machine, s said) {
	e.record(e.pods, &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
	}, m, s)
}

// said is what an Event says, and of which type it is.
type said struct{ kind, reason, message string }

func (e *Events) record(to record.EventRecorder, about *corev1.ObjectReference, m describe.Machine, s said) {
	const longest = 1024 // the API server's limit for newer Events
	if len(s.message) > longest {
		s.message = strings.ToValidUTF8(s.message[:longest], "")
	}
	to.AnnotatedEventf(about, e.annotations(m), s.kind, s.reason, "%s", s.message)
}

// annotations returns the annotations of AWS Node Termination Handler whose values are
// known, and the extra ones.
func (e *Events) annotations(m describe.Machine) map[string]string {
	account, region := e.options.Where()
	all := map[string]string{
		"account-id":          cmp.Or(m.Account, account),
		"availability-zone":   m.Zone,
		"instance-id":         m.Instance,
		"instance-life-cycle": m.Lifecycle,
		"instance-type":       m.Type,
		"local-hostname":      m.Addresses[corev1.NodeInternalDNS],
		"local-ipv4":          m.Addresses[corev1.NodeInternalIP],
		"public-hostname":     m.Addresses[corev1.NodeExternalDNS],
		"public-ipv4":         m.Addresses[corev1.NodeExternalIP],
		"region":              cmp.Or(m.Region, region),
	}
	maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
	maps.Copy(all, e.options.Annotations)
	return all
}

// eventSink counts writes, and logs the first of a row of failures.
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
	return created, again(err)
}

// Patch implements record.EventSink.
func (s *eventSink) Patch(old *corev1.Event, data []byte) (*corev1.Event, error) {
	patched, err := s.EventSink.Patch(old, data)
	if !apierrors.IsNotFound(err) { // the Event has expired, and the recorder creates it again
		s.note(err)
	}
	return patched, again(err)
}

// again returns an error after which the recorder tries again. It takes an answer for the last word, and so drops an
// Event at which EventRateLimit answers 429.
func again(err error) error {
	if apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("%w, for now", err)
	}
	return err
}

func (s *eventSink) note(err error) {
	if apierrors.IsAlreadyExists(err) { // the answer to the write was lost
		err = nil
	}
	s.metrics.eventWrites.WithLabelValues(status(err)).Inc()
	switch {
	case err == nil:
		s.failing.Store(false)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // expected, as for the namespace's pods
	case s.failing.Swap(true):
	case apierrors.IsForbidden(err):
		logging.Warn(s.log, "Kubernetes Events cannot be written (logged once)", "error", err,
			"hint", "allow create and patch of events in the ClusterRole, or turn Events off by emit-kubernetes-events")
	default:
		logging.Warn(s.log, "Kubernetes Events cannot be written (logged once)", "error", err)
	}
}
