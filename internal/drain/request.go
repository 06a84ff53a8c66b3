package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// The gate bounds the requests of all drains that are in flight. Each of them has a slot there. A function that is
// called release gives a slot back. It is called once, with how long the API server asks to wait, or with zero.

// acquireSlot waits at the gate, with the priority of the present terms. At the deadline it
// returns nil and no error.
func (r *run) acquireSlot(ctx context.Context) (release func(time.Duration), err error) {
	for release == nil && err == nil && !r.pastEnd(time.Now()) {
		deadline := r.request.Terms.Deadline
		priority := pace.Priority{Deadline: deadline, Rank: pace.Begin, Lends: true}
		withdraw := r.drainer.Gate.EnterAsync(priority, func(slot func(time.Duration)) {
			go r.post(func() { release = slot })
		})
		for release == nil && err == nil && !r.pastEnd(time.Now()) && r.request.Terms.Deadline.Equal(deadline) {
			err = r.sleep(ctx, r.end(), nil)
		}
		if release == nil && !withdraw() { // the slot comes: before the watch begins, nothing else is posted
			(<-r.posted)()
		}
	}
	if err != nil && release != nil {
		release(0)
		release = nil
	}
	return release, err
}

// slots are what one drain has at the gate, and waits for. They belong to the goroutine of Drain.
type slots struct {
	pending map[lane]int             // requests that wait for a slot or are in flight
	start   func(busy time.Duration) // releases the slot of startWatch; nil: it was released or passed on
}

// releaseStart releases the slot of startWatch, unless a request has taken it over.
func (s *slots) releaseStart() {
	if s.start != nil {
		s.start(0)
		s.start = nil
	}
}

// take returns the release of a slot that a pod's next request takes over: the one that it
// has waited for, or that of startWatch. nil: there is none.
func (s *slots) take(p *podState) (release func(time.Duration)) {
	if p.ticket == nil {
		release, s.start = s.start, nil
		return release
	}
	if release = p.ticket.release; release != nil {
		p.ticket = nil
	}
	return release
}

// A lane has the pending requests of one sort, which are bounded together.
type lane uint8

const (
	calm lane = iota
	hurried
	forcing // deletions, which are not bounded: each is the last resort of its pod
)

// laneOf returns the lane of a step with a priority.
func laneOf(s step, p pace.Priority) lane {
	switch {
	case s.kind == stepDelete:
		return forcing
	case p.Class == pace.Urgent:
		return hurried
	}
	return calm
}

// A ticket is the place of a pod's next request at the gate. Which request that is, is decided
// when it has a slot.
type ticket struct {
	priority  pace.Priority
	withdraw  func()              // ends the wait; does nothing once that has ended
	withdrawn bool                // a slot that comes nevertheless is given back
	release   func(time.Duration) // of its slot; nil: it still waits
}

// enter has a pod wait at the gate.
func (r *run) enter(p *podState, in lane, priority pace.Priority) {
	t := &ticket{priority: priority}
	p.ticket = t
	r.slots.pending[in]++
	// The wait has ended, with a slot or without. This runs on a goroutine of its own.
	ended := func(release func(time.Duration)) {
		posted := r.post(func() {
			r.slots.pending[in]--
			switch t.release = release; {
			case release == nil:
				p.ticket = nil
			case t.withdrawn:
				p.dequeue()
			}
		})
		if !posted && release != nil {
			release(0)
		}
	}
	withdraw := r.drainer.Gate.EnterAsync(priority, func(release func(time.Duration)) { go ended(release) })
	t.withdraw = func() {
		if withdraw() {
			go ended(nil)
		}
	}
}

// dequeue takes a pod out of the gate: it needs no request now, or another priority. While it
// waits for a slot its ticket is kept until the wait has ended.
func (p *podState) dequeue() {
	t := p.ticket
	if t == nil {
		return
	}
	if t.withdrawn = true; t.release == nil {
		t.withdraw()
		return
	}
	t.release(0)
	p.ticket = nil
}

func (n *nodePods) dequeueAll() {
	for _, p := range n.leaving {
		p.dequeue()
	}
}

// priorityOf returns the priority of a pod's request at the gate. What was refused once may be
// refused forever, so it goes behind what has not been tried.
func priorityOf(p podState, s step, terms evacuation.Terms, now time.Time) pace.Priority {
	priority := pace.Priority{Deadline: terms.Deadline, Rank: pace.Advance, Lends: true}
	switch {
	case s.kind == stepDelete:
		priority.Class, priority.Rank = pace.Urgent, pace.Force
	case p.mustForce(terms, now), p.hurries(terms, now):
		priority.Class = pace.Urgent
	case p.refused > 0:
		priority.Rank = pace.Retry
	}
	return priority
}

// hasRoom reports whether another request may join the pending ones of its lane. What was refused once leaves half of
// the places to what has not been tried: at a busy gate it waits until other nodes are drained.
func (s *slots) hasRoom(in lane, p pace.Priority) bool {
	most := maxPending
	switch {
	case in == forcing:
		return true
	case p.Rank == pace.Retry:
		most /= 2
	}
	return s.pending[in] < most
}

// idle reports whether no request is pending.
func (s *slots) idle() bool { return s.pending[calm]+s.pending[hurried]+s.pending[forcing] == 0 }

const (
	// A refused eviction is tried again after firstRetry, then after half as long again each time,
	// up to lastRetry. A budget mostly frees up when a replacement is ready, which takes seconds;
	// and a hundred blocked pods that ask every few seconds are no load for an API server.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
	// longestRetry is the pause where waiting does not help: two budgets cover the pod. An answer can
	// ask for no longer one: an API server that is busy asks for 32 s at most, a webhook for any time.
	longestRetry = 30 * time.Second
	// requestTimeout bounds one request, so that an API server that hangs costs one try. A deletion that
	// takes longer may be lost: one more is made beside it, which does no harm.
	requestTimeout = 10 * time.Second
	// answerTime is how long the answer to an eviction or a deletion is waited for. Most take
	// milliseconds. After that the request does not count as pending any more, and a pod that must be
	// forced is deleted beside its eviction: a webhook that hangs gets no more of the time of others,
	// nor of the margin. The gate has a rule of its own.
	answerTime = 2 * time.Second
	// removalTimeout bounds an eviction or a deletion. An admission webhook may take 30 s for it, and
	// one that does is not to be cut off each time.
	// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts
	removalTimeout = 35 * time.Second
	// requestLinger is how long a request in flight may take when the drain's context ends. Nobody
	// knows what a request did that was cut off, and a budget may count a pod as disrupted that
	// nobody deletes, for minutes.
	requestLinger = time.Second
)

// A call is a request in flight.
type call struct {
	pod      *corev1.Pod
	state    *podState
	step     step
	shortens bool // the pod is stopping already
	lane     lane
	began    time.Time
	counted  bool // as pending: it has no answer, and answerTime has not passed

	err      error   // nil: it was accepted, or the pod needs nothing more
	noAnswer bool    // the drain ended before there was an answer
	gone     bool    // the pod had gone before
	current  current // the pod after a conflict
}

// current is what the API server knows of a pod.
type current struct {
	known    bool // the API server has answered
	exists   bool
	stopping bool
	version  string
}

// startRequest starts one request for a pod. It takes over a slot at the gate, which release
// releases.
func (r *run) startRequest(ctx context.Context, c *call, release func(time.Duration)) {
	p := c.state
	// One request is to be accepted. An earlier one may have been, and an eviction whose connection
	// breaks may be carried out after the one that is made in its place.
	repeats := p.unanswered || !p.acceptedAt.IsZero() || !p.evictingSince.IsZero()
	if !p.stopping() && p.staleVersion == "" && repeats {
		c.step.version = c.pod.ResourceVersion
	}
	c.shortens = p.stopping()
	p.acceptedAt, c.began = time.Time{}, time.Now()
	p.inFlight++
	if c.step.kind == stepEvict {
		p.evictingSince = c.began
	} else {
		p.deletingSince, p.shortened = c.began, c.shortens
	}
	if !p.requested {
		p.requested = true
		p.surge.stop()
		r.pods.newcomers.noteRequest(c.pod, p.replaces)
	}
	record, now := &r.result.Record, time.Now()
	record.FirstAsked, record.LastAsked = cmp.Or(record.FirstAsked, now), now
	c.counted = true
	r.slots.pending[c.lane]++
	r.inFlight++
	go func() {
		r.requests.make(ctx, c, release, func() { r.post(func() { r.uncount(c) }) })
		r.post(func() { r.apply(c, time.Now()) })
	}()
}

// requests makes the requests of a drain for its pods. It may be used concurrently.
type requests struct {
	drainer *Drainer
	store   *podStore // gets what is read
	log     logr.Logger
	stopped <-chan struct{} // closed when no request may begin any more
}

// make makes a request, and sets its answer in c. It releases the slot at the gate, and calls slow
// when answerTime has passed.
func (r *requests) make(ctx context.Context, c *call, release func(busy time.Duration), slow func()) {
	requestCtx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	late := time.AfterFunc(answerTime, slow)
	defer late.Stop()
	ask := r.delete
	if c.step.kind == stepEvict {
		ask = r.evict
	}
	c.err = logging.Recover(r.log, func() error { return ask(requestCtx, c.pod, c.step) })
	if apierrors.IsConflict(c.err) {
		c.current = r.readPod(requestCtx, c.pod)
	}
	release(busyFor(c.err))
	c.noAnswer = c.err != nil && ctx.Err() != nil
}

// uncount stops counting a request as pending: it has its answer, or answerTime has passed.
func (r *run) uncount(c *call) {
	if c.counted {
		c.counted = false
		r.slots.pending[c.lane]--
	}
}

// readPod reads a pod that is not as the watch has said, and updates the store. If that fails the
// watch brings the news.
func (r *requests) readPod(ctx context.Context, pod *corev1.Pod) current {
	var list *corev1.PodList
	if err := logging.Recover(r.log, func() (err error) {
		// A list, as a get would need one more right.
		list, err = r.drainer.Client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(),
		})
		return err
	}); err != nil {
		return current{}
	}
	for k := range list.Items {
		if now := &list.Items[k]; now.UID == pod.UID {
			r.store.updateKnown(now)
			return current{known: true, exists: true, stopping: now.DeletionTimestamp != nil, version: now.ResourceVersion}
		}
	}
	r.store.remove(pod)
	return current{known: true}
}

// errOver is returned for a request that would begin after the end of the drain.
var errOver = errors.New("the drain has ended")

func (r *requests) delete(ctx context.Context, pod *corev1.Pod, s step) (err error) {
	if needsDisruption(pod) {
		if s.version, err = r.setDisruption(ctx, pod, s.version); err != nil {
			return err
		}
		select {
		case <-r.stopped: // meanwhile: another leader may act soon
			return errOver
		default:
		}
	}
	return r.remove(ctx, pod, s)
}

// apply applies the answer to a request.
func (r *run) apply(c *call, now time.Time) {
	r.uncount(c)
	r.inFlight--
	p := c.state
	p.inFlight--
	switch {
	case c.step.kind == stepEvict:
		p.evictingSince = time.Time{}
	case p.deletingSince.Equal(c.began): // the latest one
		p.deletingSince = time.Time{}
	}
	if c.noAnswer {
		return
	}
	if c.isBehind() {
		p.staleVersion = c.step.version
		return
	}
	// A pod that is gone, or whose name is another pod's by now, needs nothing more. Nor does one that stops already.
	c.gone = apierrors.IsNotFound(c.err) && !denied(c.err) || c.current.known && !c.current.exists
	if c.gone || apierrors.IsConflict(c.err) && c.current.stopping && !c.shortens {
		c.err = nil
	}
	r.drainer.observe(c)
	terms, log := r.request.Terms, r.request.Log.WithValues("pod", nameOf(c.pod))
	if c.err == nil {
		c.accepted(terms, log, now)
		return
	}
	p.unanswered = p.unanswered || !refuses(c.err)
	switch {
	case c.step.kind == stepDelete:
		p.shortened = false
		p.failed++
		p.retryAt = now.Add(backoff(p.failed))
	case !p.forced:
		c.evictionFailed(terms, now)
	default: // once it was deleted, the eviction beside it no longer matters
		return
	}
	r.pods.obstacles.noteRefusal(c, log, now)
}

// isBehind reports whether a request has failed because the watch is behind the API server, and will catch up. Where
// the pod could not be read, the conflict of an eviction may be about something else: the pod is asked again.
func (c *call) isBehind() bool {
	pod := c.current
	if !apierrors.IsConflict(c.err) || c.step.version == "" || c.step.kind == stepEvict && !pod.known {
		return false
	}
	return !pod.exists || pod.stopping || pod.version != c.step.version
}

// wentByItself reports whether the pod had gone before any request of ours could have taken it away.
func (c *call) wentByItself() bool { return c.gone && !c.state.unanswered && c.state.inFlight == 0 }

// observe tells the observer of the answer to a request. What went by itself is not one of ours.
func (d *Drainer) observe(c *call) {
	if d.Observe == nil || c.wentByItself() {
		return
	}
	a := evacuation.Answer{
		Pod: c.pod, Forced: c.step.kind == stepDelete, Grace: c.step.grace, Err: c.err,
		First: !c.state.evicted && !c.state.forced,
	}
	if c.err != nil && c.step.kind == stepEvict {
		a.Refusal = refusalOf(c.err)
	}
	d.Observe(a)
}

// accepted notes that a pod is on its way out. It is logged once for an eviction and once for a
// deletion, however often the pod was asked.
func (c *call) accepted(terms evacuation.Terms, log logr.Logger, now time.Time) {
	p := c.state
	p.acceptedAt, p.blocks, p.failed = now, nil, 0
	if c.wentByItself() {
		return
	}
	if p.firstAcceptedAt.IsZero() {
		p.firstAcceptedAt = now
		if c.shortens {
			p.firstAcceptedAt = p.others.began
		}
	}
	if !p.firstAcceptedAt.IsZero() && !c.gone {
		p.killedAt = now.Add(cmp.Or(c.step.grace, p.grace))
	}
	switch {
	case c.step.kind == stepDelete && !p.forced:
		p.forced = true
		log.Info("deleted a pod", "grace", c.step.grace.String(), "why", p.forcedWhy(terms, c.shortens, now))
	case c.step.kind == stepEvict && !p.evicted && !p.forced:
		p.evicted = true
		if p.tier == own {
			log.Info("evicted this program's own pod")
		} else {
			log.V(1).Info("evicted a pod")
		}
	}
}

// evictionFailed notes that an eviction was refused or not heard, and when to try again.
func (c *call) evictionFailed(terms evacuation.Terms, now time.Time) {
	p, err := c.state, c.err
	// Of a conflict nobody knows what it is about if the pod could not be read.
	heardNothing := unheard(err) || apierrors.IsConflict(err) && !denied(err) && !c.current.known
	switch {
	case heardNothing && p.mustForce(terms, now):
		p.lateUnheard++
		p.retryAt = now.Add(backoff(p.lateUnheard))
		return
	case heardNothing:
		p.unheard++
		p.retryAt = now.Add(max(backoff(p.unheard), min(retryAfter(err), longestRetry)))
	default:
		refusal := refusalOf(err)
		p.refused++
		p.unheard = 0
		p.hopeless = refusal == evacuation.TwoBudgets || refusal == evacuation.Namespace
		p.retryAt = now.Add(max(backoff(p.refused), min(retryAfter(err), longestRetry)))
		if refusal == evacuation.TwoBudgets {
			p.retryAt = now.Add(longestRetry)
		}
	}
	p.failed, p.lateUnheard = 0, 0 // a long Retry-After must not delay what is forced later
}

// forcedWhy says why a pod was deleted, for the log.
func (p podState) forcedWhy(t evacuation.Terms, shortens bool, now time.Time) string {
	switch {
	case modeOf(t) == immediate && p.tier != own:
		return "the machine is going away already: PodDisruptionBudgets are ignored"
	case !now.Before(t.Deadline):
		return "the deadline has passed"
	case shortens, p.hopeless, p.fits(t), p.tier == own:
		return "the deadline is near"
	}
	return "its grace period is longer than the notice, of which what refuses its eviction has had its share"
}

// backoff returns the pause after the n-th failure, with a fifth of jitter.
func backoff(n int) time.Duration { return retry.Jitter(pauseAfter(n), 0.2) }

const (
	// byEviction is the reason of that condition where the API server has set it, for an eviction.
	// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
	byEviction = "EvictionByEvictionAPI"
	// DisruptionReason is the reason of the condition DisruptionTarget of a pod that was deleted.
	DisruptionReason = "TerminationByNodeTerminationHandler"

	// disruptionTimeout bounds the request for the condition. The deletion comes after it, and has
	// to come in time.
	disruptionTimeout = 2 * time.Second
)

// needsDisruption reports whether a pod gets the condition DisruptionTarget before it is deleted: one of a
// Job that has not got it yet. The podFailurePolicy of a Job can ignore the failure of such a pod, so that
// it does not count against the backoffLimit. An eviction sets the condition, a deletion does not.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
func needsDisruption(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String() &&
		pod.DeletionTimestamp == nil && !slices.ContainsFunc(pod.Status.Conditions, isDisruption)
}

func isDisruption(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
}

// setDisruption gives a pod the condition DisruptionTarget. It returns the version that the pod has then, if
// the deletion is to name one. A conflict is the answer to the deletion too: the pod is another one, or has
// another version. No other failure keeps the pod from being deleted.
func (r *requests) setDisruption(ctx context.Context, pod *corev1.Pod, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, disruptionTimeout)
	defer cancel()
	patched, err := r.drainer.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
		disruptionPatch(pod, version, time.Now()), metav1.PatchOptions{}, "status")
	switch {
	case err == nil && version != "":
		return patched.ResourceVersion, nil
	case err == nil:
		return "", nil
	case apierrors.IsConflict(err):
		return "", err
	case apierrors.IsForbidden(err):
		r.drainer.conditionDenied.Do(func() {
			logging.Warn(r.log,
				"pods of Jobs cannot get the condition DisruptionTarget before they are deleted (logged once)",
				"error", err, "hint", "allow patch of pods/status in the ClusterRole, or such a pod counts against the "+
					"backoffLimit of its Job")
		})
	default:
		logging.Warn(r.log, "a pod did not get the condition DisruptionTarget before it is deleted",
			"pod", nameOf(pod), "error", err)
	}
	return version, nil
}

// disruptionPatch is a strategic merge patch of a pod's status. It names the pod's UID, and its version if
// there is one to name.
func disruptionPatch(pod *corev1.Pod, version string, now time.Time) []byte {
	identity := map[string]any{"uid": pod.UID}
	if version != "" {
		identity["resourceVersion"] = version
	}
	patch, _ := json.Marshal(map[string]any{ // it fails only for what is no JSON
		"metadata": identity,
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: DisruptionReason,
			Message:            "node-termination-handler deletes the pod, because its node goes away",
			LastTransitionTime: metav1.NewTime(now),
		}}},
	})
	return patch
}
