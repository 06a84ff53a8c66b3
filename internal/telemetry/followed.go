package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// followedWithin are the times within which a spot interruption warning follows a rebalance recommendation, as values
// of a label.
var followedWithin = []struct {
	within string
	most   time.Duration
}{{"10m", 10 * time.Minute}, {"30m", 30 * time.Minute}, {"2h", followedAtMost}}

const (
	neverFollowed  = "never"
	followedAtMost = 2 * time.Hour
	// mostFollowed bounds the instances that are remembered. A recommendation beyond is not counted.
	mostFollowed = 5_000
)

// followed counts rebalance recommendations by when a spot interruption warning for the same instance follows.
// AWS may send both at once, and messages overtake each other, so either may come first.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
type followed struct {
	counter *prometheus.CounterVec

	mu        sync.Mutex
	instances map[string]sighting
}

// A sighting is when AWS has sent the first notice of each kind; zero: it has not.
type sighting struct {
	recommended, warned time.Time
	counted             bool // here, or by an earlier leader
}

// first is the earlier of the times.
func (s sighting) first() time.Time { return intent.Earlier(s.recommended, s.warned) }

// decided takes in a decision. The same notice may come again.
func (f *followed) decided(d report.Decision, now time.Time) {
	switch d.Action {
	case decision.Leave, decision.Hold, decision.Reject: // it is of another cluster, or that is not known
		return
	case decision.Drop, decision.Cordon, decision.Drain, decision.Undo, decision.Finish, decision.Complete,
		decision.Launch:
	}
	sent := d.Notice.Time
	if d.Instance == "" || sent.IsZero() || now.Sub(sent).Abs() > followedAtMost { // one of the future would stay
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, known := f.instances[d.Instance]
	if !known && (d.Node.Name == "" || len(f.instances) >= mostFollowed) {
		return
	}
	switch d.Notice.Kind { //nolint:exhaustive // the others say nothing of it
	case notice.RebalanceRecommendation:
		s.recommended = intent.Earlier(s.recommended, sent)
	case notice.SpotInterruption:
		s.warned = intent.Earlier(s.warned, sent)
	default:
		return
	}
	if !s.counted && !s.recommended.IsZero() && !s.warned.IsZero() {
		s.counted = true
		f.count(s.warned.Sub(s.recommended))
	}
	f.instances[d.Instance] = s
}

// carried takes in what a node carries when a term begins. The leader before has counted what it has heard of.
func (f *followed) carried(instance string, i intent.Intent, now time.Time) {
	var s sighting
	for _, e := range i.Entries {
		switch e.Kind { //nolint:exhaustive // the others say nothing of it
		case notice.RebalanceRecommendation:
			s.recommended = e.Time
		case notice.SpotInterruption:
			s.warned = e.Time
		}
	}
	for _, p := range i.Past {
		s.counted = s.counted || p.Kind == notice.RebalanceRecommendation
	}
	s.counted = !s.warned.IsZero() && (s.counted || !s.recommended.IsZero())
	f.mu.Lock()
	defer f.mu.Unlock()
	within := now.Sub(s.first()).Abs() <= followedAtMost // one of the future would stay
	if instance == "" || s.first().IsZero() || !within || len(f.instances) >= mostFollowed {
		return
	}
	f.instances[instance] = s
}

// count counts a recommendation with the time until the warning.
func (f *followed) count(after time.Duration) {
	for _, w := range followedWithin {
		if after <= w.most {
			f.counter.WithLabelValues(w.within).Inc()
			return
		}
	}
	f.counter.WithLabelValues(neverFollowed).Inc()
}

// expire forgets instances after two hours, and counts the recommendations that no warning has followed.
func (f *followed) expire(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for instance, s := range f.instances {
		if now.Sub(s.first()) <= followedAtMost {
			continue
		}
		delete(f.instances, instance)
		if !s.counted && !s.recommended.IsZero() {
			f.counter.WithLabelValues(neverFollowed).Inc()
		}
	}
}

// forget forgets all instances: another replica leads.
func (f *followed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instances = map[string]sighting{}
}
