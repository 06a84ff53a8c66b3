package drain

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	others   struct {      // the deletion that somebody else has begun; zero: nobody has
		began time.Time
		grace time.Duration
	}

	end podEnd

	// Requests.
	requested       bool      // it was asked to leave
	evictingSince   time.Time // since when an eviction is in flight; zero: none is
	deletingSince   time.Time // when the latest deletion in flight began; zero: none is
	inFlight        int       // requests
	acceptedAt      time.Time // when the last request was accepted; zero: it was not
	firstAcceptedAt time.Time // when the first request was accepted; zero: none was
	killedAt        time.Time // when its kubelet kills it by the last one
	refused         int       // evictions refused
	hopeless        bool      // the last one, by what never allows it
	unheard         int       // evictions since the last refusal that have not reached the budget; see the func unheard
	lateUnheard     int       // the same, since the pod must be forced
	failed          int       // deletions failed since the last refusal
	retryAt         time.Time // no eviction before this time; if failed or lateUnheard is positive, no deletion either
	unanswered      bool      // a request failed in a way that does not rule out that it was accepted
	staleVersion    string    // resourceVersion that the API server has rejected as outdated; empty: none
	evicted         bool      // an eviction was accepted
	forced          bool      // a deletion was accepted
	shortened       bool      // it was asked to stop sooner, while it was stopping
	ticket          *ticket   // at the gate; nil: none
	surge           surge     // a replacement that comes first

	stillThere  time.Time // when the API server was last asked for it, and had it; see askForOverdue
	unconfirmed bool      // it should have ended, and its kubelet has not confirmed it
	replaces    bool      // it replaces a pod that was asked to leave
	blocks      blocks    // what keeps it or has kept it on the node
}

// newPodState returns the state of a pod that was not asked to leave yet. grace is the option's,
// negative for the pod's own; ours is the pod that this program runs in. reconsider finds its turn.
func newPodState(pod *corev1.Pod, grace time.Duration, ours types.NamespacedName, now time.Time) *podState {
	p := &podState{name: nameOf(pod), option: grace, created: pod.CreationTimestamp.Time, seen: now}
	p.idle = pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if ours.Name != "" && pod.Name == ours.Name && pod.Namespace == ours.Namespace {
		p.tier, p.option = own, -1
	}
	if pod.DeletionTimestamp != nil {
		p.deletion = pod.DeletionTimestamp.Time
	}
	p.noteGiven(pod)
	p.noteOthers()
	return p
}

// noteOthers notes that somebody else has the pod stop.
func (p *podState) noteOthers() {
	if p.stopping() && p.given > 0 {
		p.others.began, p.others.grace = p.deletion.Add(-p.given), p.given
	}
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
	p.firstAcceptedAt, p.killedAt = asked, p.deletion
	p.others.began, p.others.grace = time.Time{}, 0
	p.evicted = slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return isDisruption(c) && c.Reason == byEviction
	})
}

// update brings p up to date with what the watch says of its pod.
func (p *podState) update(pod *corev1.Pod, now time.Time) {
	if pod.DeletionTimestamp != nil {
		// We see the deletion begin, or somebody shorten it, so all of its grace has passed that long
		// from now at the latest, whatever the API server's clock says.
		begins, given := p.deletion.IsZero(), p.given
		p.deletion = pod.DeletionTimestamp.Time
		p.noteGiven(pod)
		if begins && p.firstAcceptedAt.IsZero() && !p.unanswered && p.inFlight == 0 { // else it may be ours
			p.noteOthers()
		}
		if begins && pod.DeletionGracePeriodSeconds != nil || !begins && p.given < given && !p.localEnd.IsZero() {
			p.localEnd = now.Add(p.given)
		}
	}
	if p.staleVersion != pod.ResourceVersion {
		p.staleVersion = ""
	}
}

// stopping reports whether the deletion of a pod has begun.
func (p podState) stopping() bool { return !p.deletion.IsZero() }

// stopsAt returns when a stopping pod should have ended; zero: it is not stopping.
func (p podState) stopsAt() time.Time { return later(p.deletion, p.localEnd) }

// A tier of pods is evicted when the tiers before it are gone, or earlier if the deadline asks
// for it.
type tier int

// The tiers, in their order. From 1 to lastOrder are those of the pods that leave after the others.
const (
	first     tier = -1 // has a head start; see countsAs
	workload  tier = 0
	lastOrder tier = 100
)

// The tiers after those.
const (
	critical tier = lastOrder + 1 + iota // system-cluster-critical and above: the others may need them to stop well
	last                                 // not asked before the last moment that its grace period allows
	veryLast                             // after all others, as the pods of a log shipper want it
	own                                  // the pod that this program runs in
)

// headStart is how long the others wait for the pods that leave first. Most pods stop within the
// default grace period. One that does not, or that a budget keeps, must not cost the others the time
// to be evicted rather than deleted; so neither must its owner, who may be another than theirs.
const headStart = corev1.DefaultTerminationGracePeriodSeconds * time.Second

// tierOf returns the tier of a pod that is not our own. What is critical to the system is so
// whether it is to leave now, first or after the others.
func tierOf(pod *corev1.Pod, turn decision.Turn) tier {
	switch turn.Leave {
	case decision.LeaveEnd:
		return veryLast
	case decision.LeaveLast, decision.LeaveSurged:
		return last
	case decision.LeaveNow, decision.LeaveFirst, decision.LeaveAfter, decision.LeaveNever:
	}
	// The lower one of the two built-in critical classes.
	// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
	const systemCritical = 2_000_000_000
	switch {
	case evacuation.Ended(pod): // the others need nothing of it
		return workload
	case pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical:
		return critical
	case turn.Leave == decision.LeaveFirst:
		return first
	case turn.Leave == decision.LeaveAfter:
		return min(max(1, tier(turn.Order)), lastOrder)
	}
	return workload
}

// turnOf returns when a pod leaves. One whose containers have ended for good leaves now, unless it never does: it was
// last, or it has nothing left to do for the others. The pod that a DaemonSet makes in the place of one that was
// asked to leave stays: it was made after the cordon, and the next one would be, too. A leader that
// begins in the middle of the drain sees that by its age.
func turnOf(pod *corev1.Pod, rules decision.Rules, terms evacuation.Terms, now time.Time) decision.Turn {
	subject := decision.Pod{
		Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations, DaemonSet: ofDaemonSet(pod),
	}
	if pod.Status.StartTime != nil {
		subject.Started = pod.Status.StartTime.Time
	}
	turn := rules.TurnOf(subject, !terms.Deadline.IsZero(), now)
	if evacuation.Ended(pod) && turn.Leave != decision.LeaveNever {
		return decision.Turn{}
	}
	cordoned := terms.CordonedAt.Truncate(time.Second) // as the API server cuts times
	if subject.DaemonSet && !cordoned.IsZero() && !pod.CreationTimestamp.Time.Before(cordoned) {
		return decision.Turn{Stays: true, Why: turn.Why}
	}
	return turn
}

// ofDaemonSet reports whether a DaemonSet makes the pod, as kubectl understands it.
func ofDaemonSet(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	return controller != nil && controller.Kind == "DaemonSet" && strings.HasPrefix(controller.APIVersion, "apps/")
}

// reconsider applies to a pod what may change while it waits: its annotations and labels, the terms, and
// the time. Its turn stands once it was asked to leave, and its grace period once it is stopping.
func (p *podState) reconsider(pod *corev1.Pod, rules decision.Rules, terms evacuation.Terms, now time.Time) {
	if p.stopping() && p.considered != nil {
		return
	}
	p.setGrace(pod, terms)
	hasDeadline := !terms.Deadline.IsZero()
	over := !p.turn.Until.IsZero() && !now.Before(p.turn.Until)
	if p.tier == own || p.requested || p.considered == pod && p.hadDeadline == hasDeadline && !over {
		return
	}
	p.considered, p.hadDeadline = pod, hasDeadline
	p.turn = turnOf(pod, rules, terms, now)
	p.tier = tierOf(pod, p.turn)
}

// setGrace sets the grace period of a pod: that of the terms, or the option's, or its own, but no longer than the terms
// allow. The pod that this program runs in gives the lease away in its own.
func (p *podState) setGrace(pod *corev1.Pod, terms evacuation.Terms) {
	if p.tier == own {
		terms.Grace, terms.MostGrace = 0, 0
	}
	p.grace, p.ownGrace = p.option, false
	switch {
	case terms.Grace > 0:
		p.grace = terms.Grace
	case p.option < 0:
		p.grace, p.ownGrace = 0, true
		if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
			p.grace = secondsOf(*s)
		}
	}
	if most := terms.MostGrace; most > 0 && p.grace > most {
		p.grace, p.ownGrace = most, false
	}
}

// secondsOf is a number of seconds that others have written: the API server does not bound a grace period.
func secondsOf(n int64) time.Duration { return time.Duration(min(n, math.MaxInt32)) * time.Second }

// countsAs returns the tier that a pod counts as for those that wait for it. One that leaves first
// counts as most others once its eviction was refused, or its head start is over.
func (p podState) countsAs(now time.Time) tier {
	if p.tier == first && (p.refused > 0 || !now.Before(p.seen.Add(headStart))) {
		return workload
	}
	return p.tier
}

// changesAt returns when the turn of a pod that was not asked, or what it counts as, changes by
// itself; zero: it does not.
func (p podState) changesAt(now time.Time) (at time.Time) {
	if !p.requested && !p.stopping() {
		at = p.turn.Until
	}
	if p.tier == first && p.countsAs(now) == first {
		at = earlier(at, p.seen.Add(headStart))
	}
	return at
}

// turnWords say in the log when a pod leaves, and who wants it so. They are empty for most pods.
func (p podState) turnWords() string {
	switch {
	case p.tier == own:
		return "this program's own pod goes last"
	case p.tier == critical:
		return "it is critical to the system, and goes after the others"
	case p.tier <= workload:
		return ""
	case p.tier == last && p.surge.why != "":
		return "it " + p.turn.String() + ", without a replacement first: " + p.surge.why
	}
	return "it " + p.turn.String()
}

// endedTime is how long a pod is waited for that has ended, and whose object is still there. A finalizer mostly comes
// off within a second or two: the Job controller gathers the ends of pods for one second. If it takes longer,
// nothing is lost: the object outlives the machine, too.
const endedTime = 5 * time.Second

// A podEnd says whether a pod has ended. The zero value: it has not.
type podEnd struct {
	at     time.Time // when that was first seen
	keptBy string    // the finalizers that keep its object then
}

// note notes whether a pod has ended, and what keeps its object.
func (e *podEnd) note(pod *corev1.Pod, now time.Time) {
	if !evacuation.Ended(pod) {
		*e = podEnd{}
		return
	}
	e.at = cmp.Or(e.at, now)
	e.keptBy = strings.Join(evacuation.Names(pod.Finalizers, maxNames), ", ")
}

// hasCome reports whether nothing of the pod runs any more.
func (e podEnd) hasCome() bool { return !e.at.IsZero() }

// countsAsGoneAt returns when a pod that has ended is not waited for any more; zero: it has not ended.
func (e podEnd) countsAsGoneAt() time.Time {
	if !e.hasCome() {
		return time.Time{}
	}
	return e.at.Add(endedTime)
}

// confirmTime is how long a pod that should have ended is waited for until its kubelet confirms it. A kubelet that is
// restarted is back within seconds, a machine mostly within two minutes; then it has as long once more.
const confirmTime = 2 * time.Minute

// kubelet is what is known of the node's: whether it can confirm the end of a pod.
type kubelet struct {
	ready   bool      // the node is
	changed time.Time // when it was seen to become ready, or not ready, or nothing could be seen; zero: never

	asking   bool      // the API server is being asked for pods that are overdue
	silences int       // how often in a row it has not answered
	askAt    time.Time // when it is asked again then
}

// note notes whether the node is ready.
func (k *kubelet) note(ready bool, now time.Time) {
	if ready != k.ready {
		k.ready, k.changed = ready, now
	}
}

// unconfirmedAt returns from when on a stopping pod is not waited for any more. Zero: the pod is not stopping.
func (k *kubelet) unconfirmedAt(p *podState) time.Time {
	if !p.stopping() {
		return time.Time{}
	}
	heard := later(p.seen, k.changed)
	if k.ready { // its containers may run: its kubelet gives it the whole grace from when it hears of the deletion
		heard = heard.Add(p.given)
	}
	return later(p.stopsAt(), heard).Add(confirmTime)
}

// isOverdue reports whether a pod should have ended so long ago that it is not waited for any more, unless a ready node
// may have confirmed its end where the watch has not brought it.
func (k *kubelet) isOverdue(p *podState, now time.Time) bool {
	at := k.unconfirmedAt(p)
	return !at.IsZero() && !now.Before(at)
}

// isUnconfirmed reports whether a pod is not waited for any more.
func (k *kubelet) isUnconfirmed(p *podState, now time.Time) bool {
	return k.isOverdue(p, now) && (!k.ready || !p.stillThere.Before(k.unconfirmedAt(p)))
}

// mostSilences is how many requests in a row may fail while kubelets still hear from the API server.
const mostSilences = 1

// askForOverdue asks the API server for the pods of a ready node that are overdue. While it does not answer, kubelets
// do not hear of deletions, and we do not hear of ends: when it answers after a long silence, the pods have all of
// their time once more. A silence before they are overdue goes unnoticed. It returns when to look again; zero: when
// something changes.
func (r *run) askForOverdue(calls context.Context, now time.Time) time.Time {
	k := &r.pods.kubelet
	if k.asking || !k.ready {
		return time.Time{}
	}
	if now.Before(k.askAt) {
		return k.askAt
	}
	var overdue []*corev1.Pod
	for _, pod := range r.pods.sorted() {
		if p := r.pods.leaving[pod.UID]; k.isOverdue(p, now) && !k.isUnconfirmed(p, now) && p.end.keptBy == "" {
			overdue = append(overdue, pod)
		}
	}
	if len(overdue) == 0 {
		k.silences = 0
		return time.Time{}
	}
	k.asking = true
	go func() {
		asked := time.Now()
		var there []*corev1.Pod
		silent := false
		for _, pod := range overdue {
			ctx, cancel := context.WithTimeout(calls, requestTimeout)
			answer := r.requests.readPod(ctx, pod)
			cancel()
			if silent = !answer.known; silent {
				break
			}
			if answer.exists {
				there = append(there, pod)
			}
		}
		r.post(func() {
			k.asking = false
			switch {
			case silent:
				k.silences++
				k.askAt = time.Now().Add(recheckInterval)
				return
			case k.silences > mostSilences:
				k.silences, k.changed = 0, time.Now()
				return
			}
			k.silences = 0
			for _, pod := range there {
				if p := r.pods.leaving[pod.UID]; p != nil {
					p.stillThere = asked
				}
			}
		})
	}()
	return time.Time{}
}
