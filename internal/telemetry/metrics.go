// Package telemetry tells what the other packages do: in metrics for Prometheus,
// in Kubernetes Events, and by a webhook.
package telemetry

import (
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

const namespace = "node_termination_handler_"

// A Decision is what the controller decided about a notice for one instance, or
// about a message that names none. Action and Why are of closed sets.
type Decision struct {
	Notice   notice.Notice
	Instance string
	Node     cluster.Ref // zero: none
	Action   string
	Why      string
	Deadline time.Time // zero: none
	DryRun   bool      // nothing of it will be done
	Repeated bool      // the node carries it already: its message came again
	Waited   bool      // it had no Node at first, and is decided about once more
}

// How a drain ended, as a label.
const (
	endInTime = "in-time"
	endMissed = "missed"
	endGone   = "gone"
)

// How pods left their node, as a label.
const (
	leftEvicted = "evicted"
	leftForced  = "forced"
	leftMissed  = "missed"
	leftLost    = "lost"
)

// Why a message had its end, as a label, where no decision says it.
const (
	whyDone        = "done"
	whyUndecodable = "undecodable"
	whyStopping    = "stopping"
	whyError       = "error"
)

// sqsMonitor is where AWS Node Termination Handler says its errors happen.
const sqsMonitor = "SQS_MONITOR"

// Metrics counts. It is what queue, asg and controller report to; its methods may
// be called concurrently. No label value comes from a message or from the
// cluster: the number of series is fixed.
type Metrics struct {
	catalogue catalogue
	term      atomic.Pointer[Term]
	requests  requests

	// Did every interruption end in time?
	drains *prometheus.CounterVec
	slack  *prometheus.HistogramVec
	pods   *prometheus.CounterVec
	// How long did it take?
	delay    *prometheus.HistogramVec
	cordoned *prometheus.HistogramVec
	emptied  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	volumes  prometheus.Counter
	// What was decided, and why?
	decisions *prometheus.CounterVec
	// What becomes of the messages?
	received       prometheus.Counter
	receiveErrors  prometheus.Counter
	settled        *prometheus.CounterVec
	extended       prometheus.Counter
	extendRefused  prometheus.Counter
	denied         *prometheus.CounterVec
	lifecycleCalls *prometheus.CounterVec
	hookSlack      prometheus.Observer
	// Is anybody told?
	eventWrites *prometheus.CounterVec
	webhooks    *prometheus.CounterVec
	// The names of AWS Node Termination Handler.
	actions         *prometheus.CounterVec
	eventErrors     *prometheus.CounterVec
	taggedNodes     *prometheus.GaugeVec
	taggedInstances *prometheus.GaugeVec
}

// New returns a Metrics with a registry of its own.
func New() *Metrics {
	m := &Metrics{catalogue: catalogue{registry: prometheus.NewRegistry()}}
	c := &m.catalogue
	// Launches drain nothing.
	drained := label{name: "kind", values: kinds(notice.ASGLaunch)}
	deadlined := label{name: "kind", values: kinds(notice.ASGLaunch, notice.RebalanceRecommendation)}

	c.answers("Did every interruption end in time?")
	m.drains = c.counters(namespace+"drains_total", "Drains that ended, by the kind of the notice whose deadline was the nearest. "+
		"`in-time`: the pods left before the deadline, or there was none. `missed`: pods were left at the deadline. `gone`: the machine went before its pods had left.",
		drained, label{name: "outcome", values: []string{endInTime, endMissed, endGone}})
	m.slack = c.histograms(namespace+"deadline_slack_seconds", "Time left to the deadline when the pods had left; zero or less: missed.",
		[]float64{-60, -10, 0, 5, 10, 20, 30, 60, 90, 110, 300, 1800}, deadlined)
	m.pods = c.counters(namespace+"pods_total", "Pods by how they left their node: `evicted`; `forced`, deleted because time ran out or because the machine was going already; "+
		"`missed`, still there at the deadline; `lost`, still there when the machine was gone.",
		drained, label{name: "how", values: []string{leftEvicted, leftForced, leftMissed, leftLost}})
	m.volumes = c.counter(namespace+"volumes_missed_total", "Volumes that were still attached at the deadline of their node.")
	c.gaugeOf(namespace+"drains_under_way", "Nodes that are worked on now.", func() float64 { return float64(m.load().Drains) })
	c.gaugeOf(namespace+"drains_held_back", "Drains that wait because more nodes are not ready or cordoned than `max-unready-nodes` allows.",
		func() float64 { return float64(m.load().HeldBack) })
	c.gaugeOf(namespace+"oldest_drain_age_seconds", "How long the node has been worked on that has been so the longest; 0: none is. A new leader counts anew.",
		func() float64 { return age(m.load().Oldest) })
	c.gaugeOf(namespace+"drain_deadline_left_seconds", "Time left to the nearest deadline of a node that still has pods to leave; +Inf: none has.",
		func() float64 { return left(m.load().Deadline) })

	c.answers("How long does it take?")
	m.delay = c.histograms(namespace+"notice_delay_seconds", "From the event to the first decision about it here: how late the notice was.",
		[]float64{1, 5, 15, 30, 60, 120, 600}, label{name: "kind", values: kinds()})
	m.cordoned = c.histograms(namespace+"notice_to_cordon_seconds", "From the event to its node's cordon.",
		[]float64{1, 2, 5, 10, 20, 30, 60, 120}, drained)
	m.emptied = c.histograms(namespace+"notice_to_empty_seconds", "From the event to the end of its node's drain, in whatever way.",
		[]float64{5, 10, 20, 30, 60, 90, 120, 300, 900, 3600}, drained)
	m.refused = c.counters(namespace+"evictions_refused_total", "Evictions that were refused and are tried again. `budget`: a PodDisruptionBudget allows none now. "+
		"`two-budgets`: two cover the pod, which never clears. `busy`: the API server has too much to do.",
		label{name: "why", values: refusals()})

	c.answers("What is decided, and why?")
	m.decisions = c.counters(namespace+"decisions_total", "Decisions about notices, for each instance, redeliveries included.",
		label{name: "kind", words: "`Ignored`, or a kind as above"},
		label{name: "action", words: "`leave`, `drop`, `hold`, `cordon`, `drain`, `undo`, `finish`, `complete`, `launch`, `reject`"},
		label{name: "why", words: "the reason, as in the log"})

	c.answers("What becomes of the messages?")
	m.received = c.counter(namespace+"messages_received_total", "Messages received from the queue, redeliveries included.")
	m.settled = c.counters(namespace+"messages_settled_total", "Messages by what became of them and why. `left` ones come back when their visibility has run out, and are counted again.",
		label{name: "outcome", words: "`deleted`, `given-back`, `left`, `rejected`, `unsettled`"},
		label{name: "why", words: "`done`, `instance-not-in-cluster`, `instance-not-managed`, `dry-run`, `undecodable`, `stopping`, `error`"})
	for _, end := range [][2]string{
		{queue.Deleted.String(), whyDone},
		{queue.GivenBack.String(), whyError},
		{queue.GivenBack.String(), whyStopping},
		{queue.Left.String(), "dry-run"},
		{queue.Left.String(), "instance-not-in-cluster"},
		{queue.Left.String(), "instance-not-managed"},
		{queue.Rejected.String(), whyUndecodable},
		{queue.Unsettled.String(), whyError},
	} {
		m.settled.WithLabelValues(end[0], end[1])
	}
	c.gaugeOf(namespace+"messages_held", "Messages held now.", func() float64 {
		n, _ := m.held()
		return float64(n)
	})
	c.gaugeOf(namespace+"oldest_message_age_seconds", "How long the message has been held that is held the longest; 0: none is.", func() float64 {
		_, oldest := m.held()
		return age(oldest)
	})
	c.gaugeOf(namespace+"last_receive_timestamp_seconds", "When the queue last answered the leader, or since when it leads; 0 on a replica that stands by.", m.lastReceive)
	m.receiveErrors = c.counter(namespace+"receive_errors_total", "Receives from the queue that failed.")
	m.extended = c.counter(namespace+"messages_extended_total", "Extensions of the visibility of held messages.")
	m.extendRefused = c.counter(namespace+"messages_extension_refused_total", "Held messages that SQS took away: retention, twelve hours, or deleted by others. Their work goes on.")

	c.answers("Do lifecycle hooks end in time?")
	m.lifecycleCalls = c.counters(namespace+"lifecycle_calls_total", "Calls about lifecycle hooks. One that finds the hook gone is `ok`.",
		label{name: "call", values: []string{"complete", "describe", "heartbeat"}}, label{name: "result", values: []string{"ok", "error", "denied"}})
	m.hookSlack = c.histograms(namespace+"lifecycle_hook_slack_seconds", "Time left to the hook's own end when it was completed; zero or less: too late.",
		[]float64{-60, -10, 0, 10, 30, 60, 120, 300, 900, 3600}).WithLabelValues()
	c.gaugeOf(namespace+"lifecycle_hooks_open", "Lifecycle hooks that wait for this controller now.", func() float64 { return float64(m.load().Hooks) })
	c.gaugeOf(namespace+"lifecycle_hook_left_seconds", "Time left to the nearest end of an open hook; +Inf: none is open.", func() float64 { return left(m.load().HookDeadline) })

	c.answers("How do AWS and the API server answer?")
	m.requests = newRequests(c)
	m.denied = c.counters(namespace+"permission_denied_total", "Calls that failed because the role lacks the IAM action.", label{name: "action", values: iamActions(), words: "as IAM names it"})

	c.answers("Is anybody in charge, and is anybody told?")
	c.gaugeOf(namespace+"leading", "1 on the replica that acts.", func() float64 {
		if m.term.Load() == nil {
			return 0
		}
		return 1
	})
	m.eventWrites = c.counters(namespace+"kubernetes_event_writes_total", "Requests that write Kubernetes Events.", label{name: "status", values: []string{status(nil), status(errMissed)}})
	m.webhooks = c.counters(namespace+"webhook_messages_total", "Messages of the webhook: sent, failed for good, or dropped because too many waited.",
		label{name: "result", values: []string{webhookSent, webhookFailed, webhookDropped}})

	c.answers("Names of AWS Node Termination Handler")
	m.actions = c.counters("actions_total", "Actions on nodes. `pre-drain` is the marking of the node, which is one request with its cordon; `post-drain` the completion of its hook.",
		label{name: "node_action", values: []string{"cordon", "cordon-and-drain", "hold-back", "post-drain", "pre-drain", "uncordon"}}, label{name: "node_status", values: []string{status(nil), status(errMissed)}})
	m.eventErrors = c.counters("events_error_total", "Receives that failed and messages that cannot be read.", label{name: "event_error_where", values: []string{sqsMonitor}})
	m.taggedNodes = c.gauges("nth_tagged_nodes", "Nodes whose running instance has the managed tag. Only with the tag check, and on the leader.")
	m.taggedInstances = c.gauges("nth_tagged_instances", "Running instances that have the managed tag, nodes or not. Only with the tag check, and on the leader.")

	c.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// kinds are the names of all kinds of notice but some.
func kinds(but ...notice.Kind) []string {
	var all []string
	for _, k := range notice.Kinds {
		if !slices.Contains(but, k) {
			all = append(all, k.String())
		}
	}
	return all
}

func refusals() []string {
	var all []string
	for _, r := range drain.Refusals {
		all = append(all, string(r))
	}
	return all
}

func iamActions() []string {
	all := slices.Clone(asg.Permissions)
	for _, a := range queue.Actions {
		all = append(all, string(a))
	}
	return all
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.catalogue.registry, promhttp.HandlerOpts{})
}

// WriteDoc writes what each metric means, in Markdown.
func (m *Metrics) WriteDoc(w io.Writer) { m.catalogue.write(w) }

// A Term is the time in which a replica leads: who can be asked what is so now.
type Term struct {
	Load        func() Load
	Held        func() (messages int, oldest time.Time)
	LastReceive func() time.Time // zero: never

	since time.Time
}

// Load is what a controller has under way.
type Load struct {
	Drains       int
	HeldBack     int       // drains that wait, because too many nodes are out of use
	Oldest       time.Time // when the first of them began here; zero: there is none
	Deadline     time.Time // the nearest of those that still have pods to leave; zero: none
	Hooks        int       // open lifecycle hooks
	HookDeadline time.Time // the nearest of their ends; zero: none, or not known
}

// Lead says that this replica acts, until end is called.
func (m *Metrics) Lead(t Term) (end func()) {
	t.since = time.Now()
	m.term.Store(&t)
	return func() {
		m.term.Store(nil)
		m.taggedNodes.Reset()
		m.taggedInstances.Reset()
	}
}

func (m *Metrics) load() Load {
	if t := m.term.Load(); t != nil {
		return t.Load()
	}
	return Load{}
}

func (m *Metrics) held() (int, time.Time) {
	if t := m.term.Load(); t != nil {
		return t.Held()
	}
	return 0, time.Time{}
}

func (m *Metrics) lastReceive() float64 {
	t := m.term.Load()
	if t == nil {
		return 0
	}
	at := t.LastReceive()
	if at.Before(t.since) {
		at = t.since
	}
	return float64(at.UnixMilli()) / 1000
}

// age is how long ago a moment was; 0 for none.
func age(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return time.Since(at).Seconds()
}

// left is the time to a moment; +Inf for none.
func left(until time.Time) float64 {
	if until.IsZero() {
		return math.Inf(1)
	}
	return time.Until(until).Seconds()
}

// Received implements queue.Metrics.
func (m *Metrics) Received(n int) { m.received.Add(float64(n)) }

// ReceiveFailed implements queue.Metrics.
func (m *Metrics) ReceiveFailed() {
	m.receiveErrors.Inc()
	m.eventErrors.WithLabelValues(sqsMonitor).Inc()
}

// Settled implements queue.Metrics.
func (m *Metrics) Settled(o queue.Outcome, why error) {
	m.settled.WithLabelValues(o.String(), reason(o, why)).Inc()
	if o == queue.Rejected {
		m.eventErrors.WithLabelValues(sqsMonitor).Inc()
	}
}

// reason is why a message had its end: what its decision says if that led to it.
func reason(o queue.Outcome, why error) string {
	var decided interface{ Reason() string }
	switch {
	case o == queue.Deleted:
		return whyDone
	case o == queue.Rejected:
		return whyUndecodable
	case errors.As(why, &decided):
		return decided.Reason()
	case errors.Is(why, queue.ErrStopping):
		return whyStopping
	}
	return whyError
}

// Extended implements queue.Metrics.
func (m *Metrics) Extended(n int) { m.extended.Add(float64(n)) }

// ExtendRefused implements queue.Metrics.
func (m *Metrics) ExtendRefused(n int) { m.extendRefused.Add(float64(n)) }

// Denied implements queue.Metrics.
func (m *Metrics) Denied(a queue.Action) { m.denied.WithLabelValues(string(a)).Inc() }

// Completed implements asg.Metrics.
func (m *Metrics) Completed(deadline time.Time, err error) {
	m.lifecycle("complete", err)
	m.actions.WithLabelValues("post-drain", status(err)).Inc()
	if err == nil && !deadline.IsZero() {
		m.hookSlack.Observe(time.Until(deadline).Seconds())
	}
}

// Heartbeat implements asg.Metrics.
func (m *Metrics) Heartbeat(err error) { m.lifecycle("heartbeat", err) }

// Described implements asg.Metrics.
func (m *Metrics) Described(err error) { m.lifecycle("describe", err) }

func (m *Metrics) lifecycle(call string, err error) {
	result := "ok"
	if denied, ok := errors.AsType[*asg.PermissionError](err); ok {
		result = "denied"
		m.denied.WithLabelValues(denied.Action).Inc()
	} else if err != nil {
		result = "error"
	}
	m.lifecycleCalls.WithLabelValues(call, result).Inc()
}

// Expect makes the series of decisions that can be made, at zero.
func (m *Metrics) Expect(all []Decision) {
	for _, d := range all {
		m.decisions.WithLabelValues(d.Notice.Kind.String(), d.Action, d.Why)
	}
}

// Decided implements controller.Observer.
func (m *Metrics) Decided(d Decision) {
	m.decisions.WithLabelValues(d.Notice.Kind.String(), d.Action, d.Why).Inc()
	if d.Node != (cluster.Ref{}) && !d.Repeated && !d.Waited && !d.Notice.Time.IsZero() {
		m.delay.WithLabelValues(d.Notice.Kind.String()).Observe(time.Since(d.Notice.Time).Seconds())
	}
}

// Node implements controller.Observer.
func (m *Metrics) Node(_ cluster.Ref, step, _ string, err error) {
	m.actions.WithLabelValues(step, status(err)).Inc()
	if step == "cordon" {
		m.actions.WithLabelValues("pre-drain", status(err)).Inc()
	}
}

// Drained implements controller.Observer.
func (m *Metrics) Drained(_ cluster.Ref, r drain.Result, _ time.Duration, _ time.Time) {
	var err error
	if len(r.Missed) > 0 {
		err = errMissed
	}
	m.actions.WithLabelValues("cordon-and-drain", status(err)).Inc()
}

// Cordoned implements controller.Metrics.
func (m *Metrics) Cordoned(e cluster.Entry) {
	m.cordoned.WithLabelValues(e.Kind.String()).Observe(time.Since(e.Time).Seconds())
}

// Ended implements controller.Metrics.
func (m *Metrics) Ended(i cluster.Intent, r drain.Result, gone bool) {
	cause := i.Cause()
	kind := cause.Kind.String()
	for how, n := range map[string]int{leftEvicted: r.Evicted, leftForced: r.Forced, leftMissed: len(r.Missed), leftLost: r.Left} {
		m.pods.WithLabelValues(kind, how).Add(float64(n))
	}
	if !gone {
		m.volumes.Add(float64(r.Volumes))
	}
	m.emptied.WithLabelValues(kind).Observe(time.Since(cause.Time).Seconds())
	outcome := endInTime
	switch {
	case gone && r.Left > 0:
		outcome = endGone
	case len(r.Missed) > 0:
		outcome = endMissed
	}
	m.drains.WithLabelValues(kind, outcome).Inc()
	if !cause.Deadline.IsZero() && outcome != endGone {
		m.slack.WithLabelValues(kind).Observe(time.Until(cause.Deadline).Seconds())
	}
}

// Pod counts what was refused, as drain.Drainer.Observe.
func (m *Metrics) Pod(s drain.Step) {
	if s.Refusal != "" {
		m.refused.WithLabelValues(string(s.Refusal)).Inc()
	}
}

var errMissed = errors.New("pods were left at the deadline")

func status(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// Tagged says how many instances have the managed tag, and how many of them are
// nodes. It counts for nothing outside of a term.
func (m *Metrics) Tagged(nodes, instances int) {
	if m.term.Load() == nil {
		return
	}
	m.taggedNodes.WithLabelValues().Set(float64(nodes))
	m.taggedInstances.WithLabelValues().Set(float64(instances))
}
