package telemetry

import (
	"math"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Term is the time in which a replica leads. Its functions return the current state.
type Term struct {
	Load        func() report.Load
	Held        func() (messages int, oldest time.Time)
	LastReceive func() time.Time // zero: never; nil: nothing is received
	Reports     bool             // another pod leads, and this one tells it what it receives

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
	if t := m.term.Load(); t != nil {
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
