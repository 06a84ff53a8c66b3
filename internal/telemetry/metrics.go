// Package telemetry reports the work of the other packages: as metrics for Prometheus,
// and as Kubernetes Events.
package telemetry

import (
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const namespace = "node_termination_handler_"

// endings are the outcomes of drains, as values of a label.
var endings = map[intent.Outcome]string{
	intent.Drained:     "in-time",
	intent.Missed:      "missed",
	intent.Gone:        "gone",
	intent.Unconfirmed: "unconfirmed",
	intent.CalledOff:   "called-off",
}

// sqsMonitor is the place of errors in the metrics of AWS Node Termination Handler.
const sqsMonitor = "SQS_MONITOR"

// Metrics has the metrics of the packages queue, asg and controller. Its methods may
// be called concurrently. No label value comes from a message or from the
// cluster, so the number of series is bounded.
type Metrics struct {
	catalogue catalogue
	term      atomic.Pointer[Term]
	bound     func() int // of requests in flight
	requests  requests

	// cutShort are pods among those of pods.
	drains, pods, cutShort, replacements *prometheus.CounterVec
	slack, delay, cordoned, emptied      *prometheus.HistogramVec
	refused                              *prometheus.CounterVec
	volumes, targets                     prometheus.Counter
	unscheduled                          prometheus.Gauge

	decisions, byRule, byKarpenter *prometheus.CounterVec
	policyValid                    *prometheus.GaugeVec

	received, receiveErrors, extended, extendRefused prometheus.Counter
	settled, metadataPolls, denied                   *prometheus.CounterVec

	lifecycleCalls, sweeps, polls *prometheus.CounterVec
	hookSlack                     prometheus.Observer
	ranOut, unannounced           prometheus.Counter
	retained, impaired            prometheus.Gauge

	eventWrites, webhooks *prometheus.CounterVec
	// The names of AWS Node Termination Handler, and one beside them.
	actions, eventErrors                         *prometheus.CounterVec
	unmanagedNodes, taggedNodes, taggedInstances *prometheus.GaugeVec
}

// New returns a Metrics with a registry of its own.
func New() *Metrics {
	m := &Metrics{catalogue: catalogue{registry: prometheus.NewRegistry()}, bound: func() int { return 0 }}
	c := &m.catalogue
	// A launch notice drains nothing.
	drained := label{name: "kind", values: kinds(notice.ASGLaunch)}
	deadlined := label{name: "kind", values: kinds(notice.ASGLaunch, notice.RebalanceRecommendation)}

	c.answers("Did every interruption end in time?")
	m.drains = c.counters(namespace+"drains_total",
		"Drains that ended, by the kind of the notice with the nearest deadline. `in-time`: all pods left before "+
			"the deadline, or there was none. `missed`: pods were still there at the deadline. `gone`: the instance or "+
			"its Node was gone before the pods. `unconfirmed`: no kubelet confirms that pods have ended. `called-off`: "+
			"the drain was cancelled.",
		drained, label{name: "outcome", values: slices.Sorted(maps.Values(endings))})
	m.slack = c.histograms(namespace+"deadline_slack_seconds",
		"Time between the end of the last pod and the deadline. Zero or negative: pods were still there at the deadline, or "+
			"when the instance was gone.",
		[]float64{-60, -10, 0, 5, 10, 20, 30, 60, 90, 110, 300, 1800}, deadlined)
	m.pods = c.counters(namespace+"pods_total",
		"Pods that had to leave their node, each counted once. `evicted`: by the eviction API. `forced`: deleted "+
			"because time ran out or the instance was stopping already. `ended`: stopping already, or deleted by "+
			"somebody else. `missed`: still there at the deadline. `lost`: still there when the instance was gone. "+
			"`unconfirmed`: no kubelet confirms that they have ended.",
		drained, label{name: "how", values: []string{"evicted", "forced", "ended", "missed", "lost", "unconfirmed"}})
	m.cutShort = c.counters(namespace+"pods_cut_short_total",
		"Pods among those of `pods_total` that were killed before their grace period was over, because the "+
			"machine went away.", drained)
	m.replacements = c.counters(namespace+"replacements_total",
		"Nodes that were drained without a replacement, against a rule with `first: replacement`.",
		label{name: "result", values: replacementResults})
	m.volumes = c.counter(namespace+"volumes_missed_total",
		"Volumes of pods that were still attached at the end of their drain.")
	m.targets = c.counter(namespace+"load_balancer_targets_missed_total",
		"Target groups that may still have sent connections to a node when its drain ended.")
	m.unscheduled = c.gauges(namespace+"pods_unscheduled",
		"Pods for which the scheduler finds no room, and whose predecessors have left drained nodes.").WithLabelValues()
	c.countOf(namespace+"drains_in_progress", "Drains in progress.", func() int { return m.load().Drains })
	c.countOf(namespace+"drains_held_back",
		"Drains that wait for the time of a rule, for a replacement, or for a limit.",
		func() int { return m.load().HeldBack })
	c.countOf(namespace+"drains_held_back_by_limit",
		"Drains that wait for `max-unready-nodes` or the limit of a rule.", func() int { return m.load().HeldByLimit })
	c.gaugeOf(namespace+"oldest_drain_age_seconds",
		"Age of the oldest drain in progress, since the cordon; 0 if there is none.",
		func() float64 { return age(m.load().Oldest) })
	c.gaugeOf(namespace+"drain_deadline_left_seconds",
		"Time until the nearest deadline of a node that still has pods to leave; +Inf if there is none.",
		func() float64 { return left(m.load().Deadline) })

	c.answers("How long does it take?")
	m.delay = c.histograms(namespace+"notice_delay_seconds",
		"Time from the event to the first decision about its notice.",
		[]float64{1, 5, 15, 30, 60, 120, 600}, label{name: "kind", values: kinds()})
	m.cordoned = c.histograms(namespace+"notice_to_cordon_seconds", "Time from the event to the cordon of its node.",
		[]float64{1, 2, 5, 10, 20, 30, 60, 120}, drained)
	m.emptied = c.histograms(namespace+"notice_to_empty_seconds",
		"Time from the event until no pod of its node was waited for.",
		[]float64{5, 10, 20, 30, 60, 90, 120, 300, 900, 3600}, drained)
	m.refused = c.counters(namespace+"evictions_refused_total",
		"Refused evictions, which are retried. `budget`: a PodDisruptionBudget allows no disruption now. "+
			"`two-budgets`: two PodDisruptionBudgets cover the pod, so that it is always refused. `namespace`: its "+
			"namespace is being deleted. `busy`: the API server is overloaded.",
		label{name: "why", values: texts(evacuation.Refusals)})

	c.answers("What is decided, and why?")
	m.decisions = c.counters(namespace+"decisions_total",
		"Decisions about notices, one for each instance. Redelivered messages count again.",
		label{name: "kind", words: "`Ignored`, or a kind as above"},
		label{name: "action", words: "`leave`, `drop`, `hold`, `cordon`, `drain`, `undo`, `finish`, `complete`, " +
			"`launch`, `reject`"},
		label{name: "why", words: "the reason, as in the log line `decided`"})
	m.byRule = c.counters(namespace+"rule_decisions_total",
		"Decisions of rules about notices for nodes. Redelivered messages count again.",
		label{name: "rule", words: "a name of the policy file, `cordon-only`, `cordon-rebalance` or `drain`"},
		label{name: "action", words: "`drop`, `cordon`, `drain`, `complete`"})
	m.byKarpenter = c.counters(namespace+"karpenter_drains_total",
		"Drains of Karpenter's nodes with `drain-by-karpenter`. A drain that the handler takes over counts under "+
			"both.",
		label{name: "by", values: []string{string(intent.ByKarpenter), string(intent.ByHandler)}},
		label{name: "why", words: "`drained-by-karpenter`; of the handler `no-nodeclaim`, `nodeclaim-not-deleted`, " +
			"`karpenter-does-not-act`, `handler-by-rule`"})

	m.policyValid = c.gauges(namespace+"policy_valid",
		"1 if the policy file is right, 0 if it is wrong or cannot be read, so that earlier rules are in force. "+
			"Only with `policy-file`.")

	c.answers("What happens to the messages?")
	m.unmanagedNodes = c.gauges(namespace+"unmanaged_nodes",
		"Ready nodes whose instance lacks the managed tag, so that their notices are ignored. Only with the tag "+
			"check.")
	m.received = c.counter(namespace+"messages_received_total",
		"Messages received from the queue, including redeliveries.")
	m.settled = c.counters(namespace+"messages_settled_total",
		"Messages by outcome and reason. `left` ones come back and count again.",
		label{name: "outcome", words: "`deleted`, `given-back`, `left`, `rejected`, `unsettled`"},
		label{name: "why", words: "`done`, `instance-not-in-cluster`, `other-account-or-region`, " +
			"`instance-not-managed`, `instance-unknown`, `no-instance-id`, `dry-run`, `undecodable`, `stopping`, `error`"})
	for outcome, whys := range map[queue.Outcome][]string{
		queue.Deleted:   {"done"},
		queue.GivenBack: {"error", "stopping"},
		queue.Left: {
			"dry-run", "instance-not-in-cluster", "other-account-or-region", "instance-not-managed", "instance-unknown",
			"no-instance-id",
		},
		queue.Rejected:  {"undecodable"},
		queue.Unsettled: {"error"},
	} {
		for _, why := range whys {
			m.settled.WithLabelValues(outcome.String(), why)
		}
	}
	c.countOf(namespace+"messages_held", "Messages that the leader holds.", func() int {
		n, _ := m.held()
		return n
	})
	c.gaugeOf(namespace+"oldest_message_age_seconds",
		"Time since the oldest message that the leader holds was received; 0 if there is none.",
		func() float64 {
			_, oldest := m.held()
			return age(oldest)
		})
	c.gaugeOf(namespace+"last_receive_timestamp_seconds",
		"Unix time of the last answer of the queue, or of the instance metadata in IMDS mode. Before the first: "+
			"when the replica began to lead.", m.lastReceive)
	m.receiveErrors = c.counter(namespace+"receive_errors_total", "Receives from the queue that failed.")
	m.metadataPolls = c.counters(namespace+"metadata_polls_total",
		"Polls of the instance metadata, every two seconds, in IMDS mode.",
		label{name: "result", values: statuses})
	m.extended = c.counter(namespace+"messages_extended_total", "Visibility extensions of messages in flight.")
	m.extendRefused = c.counter(namespace+"messages_extension_refused_total",
		"Messages in flight whose visibility SQS refused to extend: retention or twelve hours are over, or "+
			"somebody deleted them. Their drains continue.")

	c.answers("Do lifecycle hooks end in time?")
	m.lifecycleCalls = c.counters(namespace+"lifecycle_calls_total",
		"Calls to Auto Scaling about lifecycle hooks. `gone`: the action had ended, or its hook or group no longer exists.",
		label{name: "call", values: []string{"complete", "describe", "heartbeat"}},
		label{name: "result", values: []string{"ok", "gone", "error", "denied"}})
	m.hookSlack = c.histograms(namespace+"lifecycle_hook_slack_seconds",
		"Time between the completion of the hook and 5 s before its timeout, as far as that is known.",
		[]float64{-60, -10, 0, 10, 30, 60, 120, 300, 900, 3600}).WithLabelValues()
	m.ranOut = c.counter(namespace+"lifecycle_hooks_ran_out_total",
		"Lifecycle hooks that had timed out when they were to be completed, or that Auto Scaling refuses to complete.")
	c.countOf(namespace+"lifecycle_hooks_open", "Lifecycle hooks that wait for this controller now.",
		func() int { return m.load().Hooks })
	c.gaugeOf(namespace+"lifecycle_hook_left_seconds",
		"Time until the nearest timeout of an open hook; +Inf if none is open.",
		func() float64 { return left(m.load().HookDeadline) })

	m.unannounced = c.counter(namespace+"lifecycle_hooks_unannounced_total",
		"Lifecycle hooks without a notice that the sweep has found. More than a few: a rule of EventBridge is "+
			"missing or wrong.")
	m.sweeps = c.counters(namespace+"sweeps_total", "Sweeps for lifecycle hooks that wait without a notice.",
		label{name: "result", values: results})
	m.retained = c.gauges(namespace+"instances_retained",
		"Instances that their Auto Scaling group keeps, because the termination was abandoned. A person has to "+
			"end them.").WithLabelValues()

	c.answers("What does EC2 say of the machines?")
	m.polls = c.counters(namespace+"status_polls_total",
		"Polls for scheduled events of instances, and for instances whose status checks fail.",
		label{name: "result", values: results})
	m.impaired = c.gauges(namespace+"instances_impaired",
		"Instances of nodes whose instance status or system status is impaired for two minutes or longer.").WithLabelValues()

	c.answers("How do AWS and the API server answer?")
	m.requests = newRequests(c)
	c.countOf(namespace+"kubernetes_requests_limit",
		"How many requests about nodes and pods may be in flight. It follows the answers of the API server.",
		func() int { return m.bound() })
	m.denied = c.counters(namespace+"permission_denied_total", "Calls that failed because the role lacks the IAM action.",
		label{
			name: "action", words: "as IAM names it",
			values: slices.Concat(asg.Permissions, []string{loadbalancer.Permission}, texts(queue.Actions)),
		})

	c.answers("Does a replica lead, and are Events and webhook messages sent?")
	c.gaugeOf(namespace+"leading", "1 on the leader, 0 on other replicas.", func() float64 {
		t := m.term.Load()
		return oneIf(t != nil && !t.Reports)
	})
	m.eventWrites = c.counters(namespace+"kubernetes_event_writes_total", "Requests that write Kubernetes Events.",
		label{name: "status", values: statuses})
	m.webhooks = c.counters(namespace+"webhook_messages_total",
		"Messages of the webhook. `dropped`: too many were waiting.",
		label{name: "result", values: texts([]report.Delivery{report.Sent, report.Failed, report.Dropped})})

	c.answers("Names of AWS Node Termination Handler")
	m.actions = c.counters("actions_total",
		"Actions on nodes. `pre-drain`: the patch that cordons and marks the node. `post-drain`: the "+
			"completion of its lifecycle hook.",
		label{name: "node_action", values: []string{
			"call-off", "cordon", "cordon-again", "cordon-and-drain", "hold-back",
			"ignore", "impair", "keep-delegated", "left-uncordoned", "post-drain", "pre-drain",
			"replace", "retain", "uncordon", "undo", "unscheduled",
		}}, label{name: "node_status", values: statuses})
	m.eventErrors = c.counters("events_error_total", "Receives that failed, and messages that cannot be read.",
		label{name: "event_error_where", values: []string{sqsMonitor}})
	m.taggedNodes = c.gauges("nth_tagged_nodes",
		"Nodes whose running instance has the managed tag. Only with the tag check.")
	m.taggedInstances = c.gauges("nth_tagged_instances",
		"Running instances that have the managed tag, with a node or without. Only with the tag check.")

	c.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// kinds returns the names of all kinds of notice except those in but.
func kinds(but ...notice.Kind) (all []string) {
	for _, k := range notice.Kinds {
		if !slices.Contains(but, k) {
			all = append(all, k.String())
		}
	}
	return all
}

// texts returns the members of an enum as values of a label.
func texts[T ~string](members []T) (all []string) {
	for _, m := range members {
		all = append(all, string(m))
	}
	return all
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.catalogue.registry, promhttp.HandlerOpts{})
}

// Expect creates the series of all possible decisions, at zero.
func (m *Metrics) Expect(all []decision.Labels) {
	for _, l := range all {
		m.decisions.WithLabelValues(l.Kind.String(), l.Action.String(), string(l.Why))
	}
}

// reason is the reason for the outcome of a message: that of its decision, if it has one.
func reason(o queue.Outcome, why error) string {
	var decided interface{ Reason() string }
	switch {
	case o == queue.Deleted:
		return "done"
	case o == queue.Rejected:
		return "undecodable"
	case errors.As(why, &decided):
		return decided.Reason()
	case errors.Is(why, queue.ErrStopping):
		return "stopping"
	}
	return "error"
}

// PolicyValid is told whether the policy file is right.
func (m *Metrics) PolicyValid(valid bool) { m.policyValid.WithLabelValues().Set(oneIf(valid)) }

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// PolledMetadata implements imds.Metrics.
func (m *Metrics) PolledMetadata(err error) { m.metadataPolls.WithLabelValues(status(err)).Inc() }

func status(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// statuses are the values of status.
var statuses = []string{"success", "error"}

// A Term is the time in which a replica leads. Its functions return the current state.
type Term struct {
	Load        func() report.Load
	Held        func() (messages int, oldest time.Time) // nil: none are
	LastReceive func() time.Time                        // zero: never; nil: nothing is received
	Reports     bool                                    // another pod leads, and this one tells it what it receives

	since time.Time
}

// Lead marks this replica as the leader until end is called.
func (m *Metrics) Lead(t Term) (end func()) {
	t.since = time.Now()
	m.term.Store(&t)
	return func() {
		m.term.Store(nil)
		m.retained.Set(0)
		m.impaired.Set(0)
		m.unmanagedNodes.Reset()
		m.taggedNodes.Reset()
		m.taggedInstances.Reset()
	}
}

// Bound has the metrics tell how many requests to the API server may be in flight. It is to be called before they are
// served.
func (m *Metrics) Bound(requests func() int) { m.bound = requests }

func (m *Metrics) load() report.Load {
	if t := m.term.Load(); t != nil {
		return t.Load()
	}
	return report.Load{}
}

func (m *Metrics) held() (int, time.Time) {
	if t := m.term.Load(); t != nil && t.Held != nil {
		return t.Held()
	}
	return 0, time.Time{}
}

func (m *Metrics) lastReceive() float64 {
	t := m.term.Load()
	if t == nil || t.LastReceive == nil {
		return 0
	}
	at := t.LastReceive()
	if at.Before(t.since) {
		at = t.since
	}
	return float64(at.UnixMilli()) / 1000
}

// age is the number of seconds since a time; 0 for no time.
func age(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return time.Since(at).Seconds()
}

// left is the number of seconds until a time; +Inf for no time.
func left(until time.Time) float64 {
	if until.IsZero() {
		return math.Inf(1)
	}
	return time.Until(until).Seconds()
}
