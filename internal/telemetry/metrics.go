// Package telemetry counts what the other packages do, for Prometheus.
package telemetry

import (
	"errors"
	"net/http"
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

const namespace = "node_termination_handler"

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
}

// Metrics counts. It is what queue, asg, drain and controller report to; its
// methods may be called concurrently. No label value comes from a message or
// from the cluster: the number of series is fixed.
type Metrics struct {
	registry *prometheus.Registry

	received       prometheus.Counter
	receiveErrors  prometheus.Counter
	settled        *prometheus.CounterVec
	extended       prometheus.Counter
	extendRefused  prometheus.Counter
	denied         *prometheus.CounterVec
	decisions      *prometheus.CounterVec
	lifecycleCalls *prometheus.CounterVec
	pods           *prometheus.CounterVec
	drainSeconds   prometheus.Histogram
	slackSeconds   prometheus.Histogram
	leading        prometheus.Gauge
	eventWrites    *prometheus.CounterVec
	webhooks       *prometheus.CounterVec

	// The names of AWS Node Termination Handler.
	actions     *prometheus.CounterVec
	eventErrors *prometheus.CounterVec
}

// New returns a Metrics with a registry of its own.
func New() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry:       prometheus.NewRegistry(),
		received:       counter("messages_received_total", "Messages received from the queue, redeliveries included."),
		receiveErrors:  counter("receive_errors_total", "Receives from the queue that failed."),
		settled:        counters("messages_settled_total", "Messages by what became of them.", "outcome"),
		extended:       counter("messages_extended_total", "Extensions of the visibility of held messages."),
		extendRefused:  counter("messages_extension_refused_total", "Held messages that SQS took away: retention, twelve hours, or deleted by others."),
		denied:         counters("permission_denied_total", "Calls that failed because the role lacks the IAM action.", "action"),
		decisions:      counters("decisions_total", "Decisions about notices, for each instance, with the reason.", "kind", "action", "why"),
		lifecycleCalls: counters("lifecycle_calls_total", "Calls to Auto Scaling about lifecycle hooks.", "call", "result"),
		pods:           counters("pods_total", "Pods by how they left their node: evicted, forced, or missed, which were still there at the deadline.", "how"),
		drainSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "drain_seconds", Help: "Time from the beginning of a drain to its end.",
			Buckets: []float64{1, 5, 10, 20, 40, 60, 90, 120, 300, 900, 3600},
		}),
		slackSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "deadline_slack_seconds", Help: "Time left to the deadline when a drain ended; zero or less: missed.",
			Buckets: []float64{0, 5, 10, 20, 30, 60, 90, 110, 300, 900, 3600},
		}),
		eventWrites: counters("kubernetes_event_writes_total", "Requests that write Kubernetes Events.", "status"),
		webhooks:    counters("webhook_messages_total", "Messages of the webhook by what became of them: sent, failed for good, or dropped because too many waited.", "result"),
		leading:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "leading", Help: "1 on the replica that acts."}),
		actions:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "actions_total", Help: "Actions on nodes, as AWS Node Termination Handler counts them."}, []string{"node_action", "node_status"}),
		eventErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "events_error_total", Help: "Errors with messages, as AWS Node Termination Handler counts them."}, []string{"event_error_where"}),
	}
	for _, o := range queue.Outcomes {
		m.settled.WithLabelValues(o.String())
	}
	for _, a := range queue.Actions {
		m.denied.WithLabelValues(string(a))
	}
	for _, how := range []string{"evicted", "forced", "missed"} {
		m.pods.WithLabelValues(how)
	}
	for _, action := range []string{"cordon", "cordon-and-drain", "uncordon", "hold-back"} {
		for _, status := range []string{"success", "error"} {
			m.actions.WithLabelValues(action, status)
		}
	}
	for _, s := range []string{status(nil), status(errMissed)} {
		m.eventWrites.WithLabelValues(s)
	}
	for _, result := range []string{webhookSent, webhookFailed, webhookDropped} {
		m.webhooks.WithLabelValues(result)
	}
	m.eventErrors.WithLabelValues(sqsMonitor)
	m.registry.MustRegister(m.received, m.receiveErrors, m.settled, m.extended, m.extendRefused, m.denied, m.decisions,
		m.lifecycleCalls, m.pods, m.drainSeconds, m.slackSeconds, m.leading, m.eventWrites, m.webhooks, m.actions, m.eventErrors,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// sqsMonitor is where AWS Node Termination Handler says its errors happen.
const sqsMonitor = "SQS_MONITOR"

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Held adds gauges of what is held now: how many messages, and since when the
// oldest (zero: none). lastReceive is the time of the last successful receive.
func (m *Metrics) Held(held func() (int, time.Time), lastReceive func() time.Time) {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value)
	}
	m.registry.MustRegister(
		gauge("messages_held", "Messages held now.", func() float64 {
			n, _ := held()
			return float64(n)
		}),
		gauge("oldest_message_held_seconds", "Age of the message that is held longest; 0: none is held.", func() float64 {
			_, oldest := held()
			if oldest.IsZero() {
				return 0
			}
			return time.Since(oldest).Seconds()
		}),
		gauge("last_receive_timestamp_seconds", "When the queue last answered a receive; 0: never.", func() float64 {
			at := lastReceive()
			if at.IsZero() {
				return 0
			}
			return float64(at.UnixMilli()) / 1000
		}),
	)
}

// HeldBack adds a gauge of the drains that are held back now.
func (m *Metrics) HeldBack(drains func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "drains_held_back", Help: "Drains that wait because more nodes are not ready or cordoned than max-unready-nodes allows.",
	}, func() float64 { return float64(drains()) }))
}

// Leading says whether this replica acts.
func (m *Metrics) Leading(yes bool) {
	m.leading.Set(map[bool]float64{true: 1}[yes])
}

// Received implements queue.Metrics.
func (m *Metrics) Received(n int) { m.received.Add(float64(n)) }

// ReceiveFailed implements queue.Metrics.
func (m *Metrics) ReceiveFailed() {
	m.receiveErrors.Inc()
	m.eventErrors.WithLabelValues(sqsMonitor).Inc()
}

// Settled implements queue.Metrics.
func (m *Metrics) Settled(o queue.Outcome) {
	m.settled.WithLabelValues(o.String()).Inc()
	if o == queue.Rejected {
		m.eventErrors.WithLabelValues(sqsMonitor).Inc()
	}
}

// Extended implements queue.Metrics.
func (m *Metrics) Extended(n int) { m.extended.Add(float64(n)) }

// ExtendRefused implements queue.Metrics.
func (m *Metrics) ExtendRefused(n int) { m.extendRefused.Add(float64(n)) }

// Denied implements queue.Metrics.
func (m *Metrics) Denied(a queue.Action) { m.denied.WithLabelValues(string(a)).Inc() }

// Completed implements asg.Metrics.
func (m *Metrics) Completed(err error) { m.lifecycle("complete", err) }

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

// Decided implements controller.Observer.
func (m *Metrics) Decided(d Decision) {
	m.decisions.WithLabelValues(d.Notice.Kind.String(), d.Action, d.Why).Inc()
}

// Node implements controller.Observer.
func (m *Metrics) Node(_ cluster.Ref, step, _ string, err error) {
	m.actions.WithLabelValues(step, status(err)).Inc()
}

// Drained implements controller.Observer.
func (m *Metrics) Drained(_ cluster.Ref, r drain.Result, took time.Duration, deadline time.Time) {
	m.pods.WithLabelValues("evicted").Add(float64(r.Evicted))
	m.pods.WithLabelValues("forced").Add(float64(r.Forced))
	m.pods.WithLabelValues("missed").Add(float64(len(r.Missed)))
	m.drainSeconds.Observe(took.Seconds())
	if !deadline.IsZero() {
		m.slackSeconds.Observe(time.Until(deadline).Seconds())
	}
	var err error
	if len(r.Missed) > 0 {
		err = errMissed
	}
	m.actions.WithLabelValues("cordon-and-drain", status(err)).Inc()
}

var errMissed = errors.New("pods were left at the deadline")

func status(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}
