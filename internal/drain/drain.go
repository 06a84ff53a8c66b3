// Package drain gets the pods off a node before its deadline: filter.go says which
// pods have to leave, plan.go when and how, drain.go does it.
package drain

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

const (
	// secondLook is how long after the cordon a pod can still turn up that a
	// scheduler had bound before it saw the node cordoned.
	secondLook = 5 * time.Second
	// A refused eviction is tried again after firstRetry, then after half as long
	// again each time, to lastRetry. A budget mostly frees up when a replacement
	// turns ready, which takes seconds; and a hundred blocked pods that ask every
	// few seconds are no load for an API server.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
	// hopelessRetry is for what will not clear by itself: two budgets on one pod.
	hopelessRetry = 30 * time.Second
	// requestTimeout bounds one request, so that a hanging API server costs a try.
	requestTimeout = 10 * time.Second
	// requestEnds is what a request has to end by itself when the context ends. Of
	// one that is cut off nobody knows what it did, and a budget may count a pod as
	// disrupted that nobody deletes, for minutes.
	requestEnds = time.Second
	// parallel bounds the requests of one drain that are under way at once.
	parallel = 16
)

// Client speaks to the API server: a clientset, or as much of one as this package uses.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
	PolicyV1() typedpolicyv1.PolicyV1Interface
	StorageV1() typedstoragev1.StorageV1Interface
}

// Drainer drains nodes. Its fields are set before the first Drain, which may
// then be called concurrently for different nodes.
type Drainer struct {
	Client Client
	Filter Filter
	// Grace replaces the pods' own termination grace period; negative: their own.
	Grace time.Duration
	// Self is the pod that this program runs in. It is never evicted by Drain.
	Self types.NamespacedName
	// Gate is what evictions and deletions pass; nil: they do not wait.
	Gate *pace.Gate
	// Volumes are waited for after the pods. nil: not waited for.
	Volumes *Volumes
	// Observe is called for each answer to a request for a pod; nil: for none.
	Observe func(Step)
}

// A Step is one answered request for one pod.
type Step struct {
	Pod    *corev1.Pod
	Forced bool          // deleted, not evicted
	Grace  time.Duration // what was asked for; zero: the pod's own
	Err    error         // nil: the pod is on its way out, or was gone already
	// Refusal says why an eviction was refused; empty for what was not.
	Refusal Refusal
}

// A Refusal is why an eviction was refused.
type Refusal string

// The refusals. All but TwoBudgets clear by themselves.
const (
	Budget     Refusal = "budget"      // a PodDisruptionBudget allows none now
	TwoBudgets Refusal = "two-budgets" // more than one covers the pod, which the eviction API does not support
	Busy       Refusal = "busy"        // the API server has too much to do
	Failed     Refusal = "error"       // anything else
)

// Refusals are all of them, for metrics that start at zero.
var Refusals = []Refusal{Budget, TwoBudgets, Busy, Failed}

// An Order is one drain.
type Order struct {
	Node string
	// CordonedAt is when the node was cordoned.
	CordonedAt time.Time
	Terms      Terms
	// Changed delivers new terms; nil: they never change.
	Changed <-chan Terms
	Log     logr.Logger
}

// A Result says how a drain ended.
type Result struct {
	Evicted int      // pods that left by eviction
	Forced  int      // pods that were deleted because time ran out, or budgets were ignored
	Missed  []string // pods that were still there at the deadline
	Left    int      // pods that were still there when the context ended
	Stayed  []string // pods that an option keeps on the node
	Self    bool     // the pod of this program is the last one
	Volumes int      // volumes still attached at the deadline
}

// Drain returns when the pods that have to leave are gone (their UIDs, not the
// promise to delete them) and their volumes are detached, when the deadline has
// come, or when only our own pod is left. The error is the cause of ctx, never
// anything else: whatever fails is tried again until then.
func (d *Drainer) Drain(ctx context.Context, o Order) (Result, error) {
	calls, cut := pace.Linger(ctx, requestEnds)
	defer cut()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := run{
		Drainer: d,
		order:   o,
		begun:   time.Now(),
		store:   newPodStore(),
		pods:    map[types.UID]*state{},
		answers: make(chan answer, parallel), // nobody waits to tell
	}
	defer r.leave()
	if err := r.look(ctx); err != nil {
		return r.result, err
	}
	defer r.endSpans(ctx)
	for {
		now := time.Now()
		synced := r.store.synced()
		if end := r.end(); !end.IsZero() && !now.Before(end) {
			if r.result.Missed = r.present(); !synced {
				r.result.Missed = []string{"all, which could not be listed"}
			}
			return r.result, nil
		}
		wake, done := r.end(), false
		if synced {
			wake, done = r.act(ctx, calls, now)
			r.leave()
		}
		if done {
			break
		}
		if err := r.sleep(ctx, wake); err != nil {
			r.hearOut()
			r.result.Left = len(r.pods)
			return r.result, err
		}
	}
	if d.Volumes != nil && !r.result.Self {
		ctx, span := trace.Begin(ctx, "await volumes")
		left, err := d.Volumes.wait(ctx, &r)
		span.End(err, "left", left)
		r.result.Volumes = left
		return r.result, err
	}
	return r.result, nil
}

// run is one drain under way. It belongs to the goroutine of Drain.
type run struct {
	*Drainer
	order   Order
	begun   time.Time
	store   *podStore
	pods    map[types.UID]*state     // those that have to leave
	spans   map[types.UID]trace.Span // of pods that were asked to; nil where there are none
	stays   map[types.UID]bool       // those that do not
	busy    int                      // requests under way
	answers chan answer
	entered func(busy time.Duration) // gives back the turn that look has kept; nil: none
	result  Result
}

type answer struct {
	uid  types.UID
	pod  *corev1.Pod
	move move
	err  error
	none bool // the drain ended before there was one
}

// look begins to watch the pods of the node when it is its turn, which the first
// request for one of them takes over: were it given back in between, the next node
// would be begun before this one is brought forward. look returns when the pods
// have been seen once, or early at the deadline, or with the cause of ctx when that
// ends.
func (r *run) look(ctx context.Context) error {
	leave, err := r.turn(ctx)
	if err != nil || leave == nil {
		return err
	}
	r.entered = leave
	go r.store.watch(ctx, r.Client, r.order.Node)
	for patience := time.Now().Add(requestTimeout); !r.store.synced(); {
		until := earlier(patience, r.end())
		if !time.Now().Before(until) {
			r.leave()
			return nil
		}
		if err := r.sleep(ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// end is when the drain is over, come what may: at the deadline; where that has
// passed already, as for a hibernation, as soon as each pod has had its second.
func (r *run) end() time.Time {
	end := r.order.Terms.Deadline
	if least := r.begun.Add(margin); !end.IsZero() && end.Before(least) {
		return least
	}
	return end
}

// leave gives the turn back that look has kept, if nobody has taken it over.
func (r *run) leave() {
	if r.entered != nil {
		r.entered(0)
		r.entered = nil
	}
}

// turn waits at the gate, in the place that the terms of the moment give. At the
// deadline it returns nil and no error.
func (r *run) turn(ctx context.Context) (leave func(time.Duration), err error) {
	for {
		end := r.end()
		if !end.IsZero() && !time.Now().Before(end) {
			return nil, nil
		}
		waiting, stop := context.WithCancel(ctx)
		if !end.IsZero() {
			stop()
			waiting, stop = context.WithDeadline(ctx, end)
		}
		turn := pace.Priority{Deadline: r.order.Terms.Deadline, Rank: pace.Begin}
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			select {
			case r.order.Terms = <-r.order.Changed: // they may be the same
				stop()
			case <-waiting.Done():
			}
		}()
		leave, err := r.Gate.Enter(waiting, turn)
		stop()
		<-changed
		switch {
		case err == nil:
			return leave, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
}

// act starts the requests that are due. It returns when to look again (zero:
// when something happens), and whether all is done.
func (r *run) act(ctx, calls context.Context, now time.Time) (wake time.Time, done bool) {
	front := r.refresh()
	if front >= self { // nobody is left, or our own pod alone
		if r.busy > 0 {
			return r.end(), false
		}
		r.result.Self = front == self
		if look := r.order.CordonedAt.Add(secondLook); now.Before(look) {
			return look, false
		}
		return time.Time{}, true
	}
	wake = r.end()
	for _, obj := range r.sorted() {
		p := r.pods[obj.UID]
		if p.tier == self && !r.order.Terms.Deadline.IsZero() {
			// Whoever leads next needs the time that is left more than we do.
			if give := r.order.Terms.Deadline.Add(-p.grace - 2*margin); now.Before(give) {
				wake = earlier(wake, give)
			} else if r.busy == 0 {
				r.result.Self = true
				return time.Time{}, true
			}
		}
		m := next(*p, front, r.order.Terms, now)
		switch {
		case m.verb == wait:
			wake = earlier(wake, m.until)
		case r.busy >= parallel: // its turn comes with an answer
		default:
			p.asked, p.cut = true, !p.deletion.IsZero()
			r.busy++
			r.beginSpan(ctx, obj)
			if p.unsure && p.deletion.IsZero() && p.stale == "" {
				m.version = obj.ResourceVersion
			}
			go r.ask(ctx, calls, obj, m, r.priority(*p, m), r.entered)
			r.entered = nil
		}
	}
	return wake, false
}

// refresh brings pods up to date with the store and returns the lowest tier that
// still has pods; above self when none has.
func (r *run) refresh() tier {
	seen := map[types.UID]bool{}
	front := self + 1
	for _, pod := range r.store.list() {
		seen[pod.UID] = true
		p := r.pods[pod.UID]
		if p == nil {
			if r.stays[pod.UID] {
				continue
			}
			if p = r.meet(pod); p == nil {
				continue
			}
		}
		if pod.DeletionTimestamp != nil {
			p.deletion = pod.DeletionTimestamp.Time
		}
		if p.stale != pod.ResourceVersion {
			p.stale = ""
		}
		front = min(front, p.tier)
	}
	for uid := range r.pods {
		if !seen[uid] {
			r.endSpan(uid, nil)
			delete(r.pods, uid)
		}
	}
	return front
}

// beginSpan begins the span of a pod that is asked to leave, at the first time.
func (r *run) beginSpan(ctx context.Context, pod *corev1.Pod) {
	if _, begun := r.spans[pod.UID]; begun {
		return
	}
	if _, span := trace.Begin(ctx, "evict", "pod", pod.Namespace+"/"+pod.Name); span != (trace.Span{}) {
		if r.spans == nil {
			r.spans = map[types.UID]trace.Span{}
		}
		r.spans[pod.UID] = span
	}
}

// endSpan ends the span of a pod that has left, or of one that has not: err says why.
func (r *run) endSpan(uid types.UID, err error) {
	if span, begun := r.spans[uid]; begun {
		p := r.pods[uid]
		span.End(err, "refused", p.refused, "forced", p.forced)
		delete(r.spans, uid)
	}
}

var errStillThere = errors.New("the pod is still there")

// endSpans ends those of the pods that are still there when the drain ends.
func (r *run) endSpans(ctx context.Context) {
	for uid := range r.spans {
		r.endSpan(uid, cmp.Or(context.Cause(ctx), errStillThere))
	}
}

// meet decides about a pod that is seen for the first time; nil: it stays.
func (r *run) meet(pod *corev1.Pod) *state {
	name := pod.Namespace + "/" + pod.Name
	p := stateOf(pod, r.Grace, r.Self)
	if p.tier == self {
		r.pods[pod.UID] = p
		return p
	}
	if leaves, why := r.Filter.leaves(pod); !leaves {
		if r.stays == nil {
			r.stays = map[types.UID]bool{}
		}
		r.stays[pod.UID] = true
		if why != "" {
			r.result.Stayed = append(r.result.Stayed, name)
			r.order.Log.Info("a pod stays on the node", "pod", name, "why", why)
		}
		return nil
	}
	r.pods[pod.UID] = p
	return p
}

// sorted are the pods that have to leave: lower tiers first, then by name.
func (r *run) sorted() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range r.store.list() {
		if r.pods[pod.UID] != nil {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if byTier := int(r.pods[a.UID].tier) - int(r.pods[b.UID].tier); byTier != 0 {
			return byTier
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods
}

func (r *run) present() []string {
	var names []string
	for _, pod := range r.sorted() {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return names
}

// sleep waits until wake (zero: for ever) or until something happens, and takes
// it in. It returns the cause of ctx when that ends.
func (r *run) sleep(ctx context.Context, wake time.Time) error {
	var alarm <-chan time.Time
	if !wake.IsZero() {
		timer := time.NewTimer(time.Until(wake))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-alarm:
	case <-r.store.changed:
	case t := <-r.order.Changed:
		r.order.Terms = t
	case a := <-r.answers:
		r.busy--
		r.learn(a, time.Now())
	}
	return nil
}

// priority is the turn of a request at the gate. What was refused once may be so
// for ever: it goes behind what has not been tried.
func (r *run) priority(p state, m move) pace.Priority {
	turn := pace.Priority{Deadline: r.order.Terms.Deadline, Rank: pace.Advance}
	switch {
	case m.verb == remove:
		turn.Class = pace.Urgent
	case p.refused > 0:
		turn.Rank = pace.Retry
	}
	return turn
}

// ask makes one request when it is its turn, and reports its answer. It is its
// turn already if leave is not nil. Where ctx ends before, there is none. The
// request itself lives as long as calls.
func (r *run) ask(ctx, calls context.Context, pod *corev1.Pod, m move, p pace.Priority, leave func(time.Duration)) {
	a := answer{uid: pod.UID, pod: pod, move: m}
	defer func() { r.answers <- a }()
	if leave == nil {
		var err error
		if leave, err = r.Gate.Enter(ctx, p); err != nil {
			a.none = true
			return
		}
	}
	request, cancel := context.WithTimeout(calls, requestTimeout)
	defer cancel()
	if m.verb == evict {
		a.err = r.evict(request, pod, m)
	} else {
		a.err = r.remove(request, pod, m)
	}
	if m.version != "" && apierrors.IsConflict(a.err) {
		r.lookAgain(request, pod)
	}
	leave(busy(a.err))
	a.none = a.err != nil && calls.Err() != nil
}

// hearOut takes in the answers to the requests that are under way when the context
// ends.
func (r *run) hearOut() {
	for ; r.busy > 0; r.busy-- {
		r.learn(<-r.answers, time.Now())
	}
}

// lookAgain lets the store know what the API server knows of a pod that is not as the
// watch has told. Where that fails the watch will tell, which may be away.
func (r *run) lookAgain(ctx context.Context, pod *corev1.Pod) {
	found, err := r.Client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(), // to get it would need one more right
	})
	if err != nil {
		return
	}
	for k := range found.Items {
		if found.Items[k].UID == pod.UID {
			_ = r.store.Update(&found.Items[k]) // fails for what is no pod
			return
		}
	}
	_ = r.store.Delete(pod)
}

// evict asks the eviction API. The UID keeps it from a pod that has taken the
// name elsewhere, as those of a StatefulSet do; the version, where it matters, from
// one that was asked before without an answer. Refusals are not tried again by
// the client, however much the server asks for that: the deadline may not wait.
func (r *run) evict(ctx context.Context, pod *corev1.Pod, m move) error {
	return r.Client.PolicyV1().RESTClient().Post().
		AbsPath("/api/v1").Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).
		Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			DeleteOptions: deleteOptions(pod, m),
		}).Do(ctx).Error()
}

func (r *run) remove(ctx context.Context, pod *corev1.Pod, m move) error {
	return r.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *deleteOptions(pod, m))
}

func deleteOptions(pod *corev1.Pod, m move) *metav1.DeleteOptions {
	opts := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	if m.version != "" {
		opts.Preconditions.ResourceVersion = &m.version
	}
	if m.grace > 0 {
		opts.GracePeriodSeconds = new(int64(m.grace / time.Second))
	}
	return opts
}

// learn takes in the answer to a request.
func (r *run) learn(a answer, now time.Time) {
	if a.none {
		return
	}
	log := r.order.Log.WithValues("pod", a.pod.Namespace+"/"+a.pod.Name)
	// The API server knows more of the pod than the watch, which will tell.
	if p := r.pods[a.uid]; p != nil && a.move.version != "" && apierrors.IsConflict(a.err) {
		p.asked, p.stale = false, a.move.version
		return
	}
	// A pod that is gone, or whose name is another pod's, needs nothing more.
	if apierrors.IsNotFound(a.err) || apierrors.IsConflict(a.err) {
		a.err = nil
	}
	if r.Observe != nil {
		step := Step{Pod: a.pod, Forced: a.move.verb == remove, Grace: a.move.grace, Err: a.err}
		if a.err != nil && a.move.verb == evict {
			step.Refusal = refusalOf(a.err)
		}
		r.Observe(step)
	}
	p := r.pods[a.uid]
	if p == nil {
		p = &state{} // gone while the request was under way: the counts still hold
	}
	switch {
	case a.err == nil && a.move.verb == remove:
		p.forced = true
		r.result.Forced++
		log.Info("deleted a pod", "grace", a.move.grace.String(), "why", forcedWhy(r.order.Terms))
	case a.err == nil:
		r.result.Evicted++
		log.V(1).Info("evicted a pod")
	case a.move.verb == remove:
		p.asked, p.cut = false, false
		p.unsure = p.unsure || refusalOf(a.err) == Failed
		p.failed++
		p.retry = now.Add(backoff(p.failed))
		log.Error(a.err, "delete a pod")
	default:
		p.asked = false
		p.unsure = p.unsure || refusalOf(a.err) == Failed
		p.refused++
		p.retry = now.Add(max(backoff(p.refused), retryAfter(a.err)))
		hopeless := refusalOf(a.err) == TwoBudgets
		if hopeless {
			p.retry = now.Add(hopelessRetry)
		}
		if p.refused == 1 || hopeless {
			log.Info("an eviction was refused", "why", refusal(a.err))
		}
	}
}

func forcedWhy(t Terms) string {
	if t.IgnoreBudgets {
		return "the machine is going already: budgets are not waited for"
	}
	return "the deadline is near"
}

// refusal puts the common refusals in words.
func refusal(err error) string {
	switch refusalOf(err) {
	case TwoBudgets:
		return "two PodDisruptionBudgets cover the pod, which the eviction API does not support: it stays until the deadline"
	case Budget:
		return "a PodDisruptionBudget allows no disruption now: " + err.Error()
	case Busy, Failed:
	}
	return err.Error()
}

func refusalOf(err error) Refusal {
	switch {
	case twoBudgets(err):
		return TwoBudgets
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return Budget
	case apierrors.IsTooManyRequests(err):
		return Busy
	}
	return Failed
}

// twoBudgets recognises the one refusal that never clears by itself. The API
// server gives it no reason of its own, so the text has to do.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func twoBudgets(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError &&
		strings.Contains(status.Status().Message, "more than one PodDisruptionBudget")
}

// busy is how long an API server that has too much to do wants to be left alone;
// zero if it has not. A budget answers with the same status.
func busy(err error) time.Duration {
	if refusalOf(err) != Busy {
		return 0
	}
	return max(time.Second, retryAfter(err))
}

// retryAfter is how long the API server wants to be left alone; zero if it does not say.
func retryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// backoff is the pause after the n-th failure, with a fifth of jitter.
func backoff(n int) time.Duration {
	pause := pauseAfter(n)
	return pause + rand.N(pause/5)
}

// earlier is the earlier of two times, of which a zero one means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
