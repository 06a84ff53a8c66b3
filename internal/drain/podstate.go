package drain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// podState is what is known of a pod that has to leave, and what was tried with it.
type podState struct {
	name     string // with its namespace
	tier     tier
	grace    time.Duration // what the pod gets if there is time; see setGrace
	ownGrace bool          // grace is the pod's own, so that requests need not name it

	option      time.Duration // the grace period of the option; negative: the pod's own
	turn        decision.Turn
	created     time.Time
	idle        bool        // its containers had ended for good when the drain first saw it
	seen        time.Time   // when the drain first saw it
	considered  *corev1.Pod // what turn was found by
	hadDeadline bool        // and with which terms

	// What the watch says.
	deletion time.Time     // its deletionTimestamp: when it will be killed; zero: it is not stopping
	localEnd time.Time     // when its grace has passed by our clock; zero: it was stopping when first seen
	given    time.Duration // the grace period of its deletion

	end podEnd

	// Requests.
	requested     bool      // it was asked to leave
	evictingSince time.Time // since when an eviction is in flight; zero: none is
	deleting      bool      // a deletion is in flight
	acceptedAt    time.Time // when the last request was accepted; zero: it was not
	askedAt       time.Time // when the first request was accepted; zero: none was
	killedAt      time.Time // when its kubelet kills it by the last one
	refused       int       // evictions refused
	hopeless      bool      // the last one, by what never allows it
	unheard       int       // evictions since the last refusal that have not reached the budget; see the func unheard
	lateUnheard   int       // the same, since the pod must be forced
	failed        int       // deletions failed since the last refusal
	retryAt       time.Time // no eviction before this time; if failed or lateUnheard is positive, no deletion either
	unanswered    bool      // a request failed in a way that does not rule out that it was accepted
	staleVersion  string    // resourceVersion that the API server has rejected as outdated; empty: none
	evicted       bool      // an eviction was accepted
	forced        bool      // a deletion was accepted
	shortened     bool      // it was asked to stop sooner, while it was stopping
	ticket        *ticket   // at the gate; nil: none
	surge         surge     // a replacement that comes first

	stillThere  time.Time // when the API server was last asked for it, and had it; see askForOverdue
	unconfirmed bool      // it should have ended, and its kubelet has not confirmed it
	replaces    bool      // it replaces a pod that was asked to leave
	blocks      blocks    // what keeps it or has kept it on the node
}

// newPodState returns the state of a pod that was not asked to leave yet. grace is the option's,
// negative for the pod's own; ours is the pod that this program runs in. reconsider finds its turn.
func newPodState(pod *corev1.Pod, grace time.Duration, ours types.NamespacedName, now time.Time) *podState {
	p := &podState{name: nameOf(pod), option: grace, created: pod.CreationTimestamp.Time, seen: now}
	p.setGrace(pod, evacuation.Terms{})
	p.idle = pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if ours.Name != "" && pod.Name == ours.Name && pod.Namespace == ours.Namespace {
		p.tier = self
	}
	if pod.DeletionTimestamp != nil {
		p.deletion = pod.DeletionTimestamp.Time
	}
	p.noteGiven(pod)
	return p
}

// noteGiven notes the grace period of a deletion, which a later one can shorten.
func (p *podState) noteGiven(pod *corev1.Pod) {
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		p.given = secondsOf(*grace)
	}
}

// noteEarlier notes what an earlier leader has asked of the pod since the node was cordoned, as far as the pod shows
// it. The times are those of the API server's clock.
func (p *podState) noteEarlier(pod *corev1.Pod, cordoned time.Time) {
	asked := p.deletion.Add(-p.given)
	if !p.stopping() || cordoned.IsZero() || asked.Before(cordoned.Truncate(time.Second)) {
		return
	}
	p.askedAt, p.killedAt = asked, p.deletion
	p.evicted = slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return isDisruption(c) && c.Reason == byEviction
	})
}

// update brings p up to date with what the watch says of its pod.
func (p *podState) update(pod *corev1.Pod, now time.Time) {
	if pod.DeletionTimestamp != nil {
		// We see the deletion begin, so all of its grace has passed that long from now at the
		// latest, whatever the API server's clock says.
		if grace := pod.DeletionGracePeriodSeconds; p.deletion.IsZero() && grace != nil {
			p.localEnd = now.Add(secondsOf(*grace))
		}
		p.deletion = pod.DeletionTimestamp.Time
		p.noteGiven(pod)
	}
	if p.staleVersion != pod.ResourceVersion {
		p.staleVersion = ""
	}
}

// stopping reports whether the deletion of a pod has begun.
func (p podState) stopping() bool { return !p.deletion.IsZero() }

// stopsAt returns when a stopping pod should have ended; zero: it is not stopping.
func (p podState) stopsAt() time.Time { return later(p.deletion, p.localEnd) }
