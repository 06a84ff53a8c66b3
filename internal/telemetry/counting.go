package telemetry

import (
	"errors"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

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

// Extended implements queue.Metrics.
func (m *Metrics) Extended(n int) { m.extended.Add(float64(n)) }

// ExtendRefused implements queue.Metrics.
func (m *Metrics) ExtendRefused(n int) { m.extendRefused.Add(float64(n)) }

// Denied implements queue.Metrics.
func (m *Metrics) Denied(a queue.Action) { m.denied.WithLabelValues(string(a)).Inc() }

// Completed implements asg.Metrics.
func (m *Metrics) Completed(deadline time.Time, err error) {
	m.lifecycle("complete", err)
	if errors.Is(err, asg.ErrGone) {
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			m.ranOut.Inc()
		}
		return
	}
	if errors.Is(err, asg.ErrRefused) { // it will
		m.ranOut.Inc()
	}
	m.actions.WithLabelValues("post-drain", status(err)).Inc()
	if err == nil && !deadline.IsZero() {
		m.hookSlack.Observe(time.Until(deadline).Seconds())
	}
}

// Heartbeat implements asg.Metrics.
func (m *Metrics) Heartbeat(err error) { m.lifecycle("heartbeat", err) }

// Described implements asg.Metrics.
func (m *Metrics) Described(err error) { m.lifecycle("describe", err) }

// Swept implements sweep.Metrics.
func (m *Metrics) Swept(retained int, err error) {
	m.retained.Set(float64(retained))
	m.sweeps.WithLabelValues(resultOf(err)).Inc()
}

// Unannounced implements sweep.Metrics.
func (m *Metrics) Unannounced() { m.unannounced.Inc() }

// Unscheduled implements unscheduled.Metrics.
func (m *Metrics) Unscheduled(pods int) { m.unscheduled.Set(float64(pods)) }

// Polled implements status.Metrics.
func (m *Metrics) Polled(impaired int, err error, denied bool) {
	m.impaired.Set(float64(impaired))
	result := resultOf(err)
	if denied {
		result = "denied"
	}
	m.polls.WithLabelValues(result).Inc()
}

// results are the values of resultOf.
var results = []string{"ok", "error", "denied"}

// resultOf is the result of a call to Auto Scaling as the value of a label.
func resultOf(err error) string {
	if _, denied := errors.AsType[*asg.PermissionError](err); denied && !awserr.Unsupported(err) {
		return "denied"
	} else if err != nil {
		return "error"
	}
	return "ok"
}

func (m *Metrics) lifecycle(call string, err error) {
	if denied, ok := errors.AsType[*asg.PermissionError](err); ok && !awserr.Unsupported(err) {
		m.denied.WithLabelValues(denied.Action).Inc()
	}
	result := resultOf(err)
	if errors.Is(err, asg.ErrGone) {
		result = "gone"
	}
	m.lifecycleCalls.WithLabelValues(call, result).Inc()
}

// TargetsDenied implements loadbalancer.Metrics.
func (m *Metrics) TargetsDenied() { m.denied.WithLabelValues(loadbalancer.Permission).Inc() }

// Decided implements report.Observer.
func (m *Metrics) Decided(d report.Decision) {
	m.decisions.WithLabelValues(d.Notice.Kind.String(), d.Action.String(), string(d.Why)).Inc()
	if d.Rule != "" {
		m.byRule.WithLabelValues(d.Rule, d.Action.String()).Inc()
	}
	if d.Node != (cluster.Ref{}) && !d.Repeated && !d.Waited && !d.Notice.Time.IsZero() {
		m.delay.WithLabelValues(d.Notice.Kind.String()).Observe(time.Since(d.Notice.Time).Seconds())
	}
}

// Stepped implements report.Observer.
func (m *Metrics) Stepped(s report.Step) {
	by := map[report.StepKind]intent.By{report.Delegate: intent.ByKarpenter, report.TakeOver: intent.ByHandler}
	if who, is := by[s.Kind]; is {
		m.byKarpenter.WithLabelValues(string(who), string(s.Why)).Inc()
		return
	}
	m.actions.WithLabelValues(string(s.Kind), status(s.Err)).Inc()
	if s.Kind == report.Replace {
		m.replacements.WithLabelValues(strings.TrimPrefix(string(s.Why), replacementPrefix)).Inc()
	}
	if s.Kind == report.Cordon {
		m.actions.WithLabelValues("pre-drain", status(s.Err)).Inc()
	}
}

// Recorded implements report.Observer.
func (m *Metrics) Recorded(e intent.Entry) {
	m.cordoned.WithLabelValues(e.Kind.String()).Observe(time.Since(e.Time).Seconds())
}

// Drained implements report.Observer.
func (m *Metrics) Drained(d report.Drain) {
	cause, r := d.Intent.Cause(), d.Result
	kind := cause.Kind.String()
	missed, lost, unconfirmed := d.Left()
	for how, n := range map[string]int{
		"evicted": r.Evicted, "forced": r.Forced, "ended": r.Ended, "missed": missed, "lost": lost,
		"unconfirmed": unconfirmed,
	} {
		m.pods.WithLabelValues(kind, how).Add(float64(n))
	}
	m.cutShort.WithLabelValues(kind).Add(float64(len(r.Record.CutShort)))
	m.volumes.Add(float64(r.Volumes))
	m.targets.Add(float64(len(d.Targets.Left)))
	m.drains.WithLabelValues(kind, endings[d.Outcome]).Inc()
	if d.Outcome == intent.CalledOff {
		return
	}
	result := "error"
	if d.Outcome == intent.Drained {
		result = "success"
	}
	m.actions.WithLabelValues("cordon-and-drain", result).Inc()
	if gone := r.Record.PodsGone; !gone.IsZero() && len(r.Unconfirmed) == 0 {
		m.emptied.WithLabelValues(kind).Observe(gone.Sub(cause.Time).Seconds())
	}
	if slack, known := d.Slack(); known {
		m.slack.WithLabelValues(kind).Observe(slack.Seconds())
	}
}

// Delivered counts messages of the webhook by their delivery.
func (m *Metrics) Delivered(d report.Delivery) { m.webhooks.WithLabelValues(string(d)).Inc() }

// Pod counts refused requests. It is a drain.Drainer.Observe.
func (m *Metrics) Pod(s evacuation.Answer) {
	if s.Refusal != "" {
		m.refused.WithLabelValues(string(s.Refusal)).Inc()
	}
}

// Tagged sets how many instances have the managed tag, how many of them are nodes,
// and how many ready nodes have an instance without it. Outside of a term it does nothing.
func (m *Metrics) Tagged(nodes, instances, unmanaged int) {
	if m.term.Load() == nil {
		return
	}
	m.unmanagedNodes.WithLabelValues().Set(float64(unmanaged))
	m.taggedNodes.WithLabelValues().Set(float64(nodes))
	m.taggedInstances.WithLabelValues().Set(float64(instances))
}

// replacementPrefix is that of the reasons of steps about replacements.
const replacementPrefix = "replacement-"

// replacementResults are these reasons, without the prefix.
var replacementResults = func() (results []string) {
	for _, why := range []decision.Why{
		decision.WhyReplacementLate, decision.WhyNoReplacement, decision.WhyReplacementRight, decision.WhyReplacementFails,
	} {
		results = append(results, strings.TrimPrefix(string(why), replacementPrefix))
	}
	return results
}()
