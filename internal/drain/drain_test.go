package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// A stage is one node in virtual time: an API server that knows pods, deletions
// and evictions, and a kubelet that stops what is deleted.
type stage struct {
	*testing.T
	kube    *fake.Clientset
	drainer *Drainer
	rules   decision.Rules
	begin   time.Time
	// refuse answers an eviction instead of accepting it; nil: all are accepted.
	refuse func(pod string) *metav1.Status
	// stops is how long a pod takes to stop, if its grace lets it. Default: at once.
	stops map[string]time.Duration
	// clock is by how much that of the API server is ahead of ours.
	clock time.Duration

	// answers is how long the answer to an eviction takes, which is done by then.
	answers time.Duration
	// lost is the answer to a request that got through, once.
	lost error
	// behind is how long the watch does not show that a pod is being deleted. A list of
	// that pod does.
	behind time.Duration

	// hangs is how long a webhook takes before an eviction is done; nil: no time.
	hangs func(pod string) time.Duration
	// away says of an eviction that it does not reach the API server; nil: of none.
	away func() bool
	// swallows says of an eviction that it is accepted without being done; nil: of none.
	swallows func(pod string) bool
	// confirms is how long a kubelet takes to confirm that a pod has stopped.
	confirms time.Duration
	// dead is true where no kubelet stops what is deleted.
	dead bool
	// stopped is called when a pod has gone; nil: nothing is.
	stopped func(pod *corev1.Pod)

	stopping map[string]bool // whatever the watch shows
	over     chan struct{}   // closed at the end

	mu     sync.Mutex
	events []string
	node   evacuation.NodeState
}

// log returns a logger that writes to the test's output.
func (s *stage) log() logr.Logger { return logtest.To(s.Output()) }

// look is what the drain knows of the node.
func (s *stage) look() evacuation.NodeState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// after changes the node, after a time.
func (s *stage) after(d time.Duration, change func(*evacuation.NodeState)) {
	go func() {
		if s.passes(d - time.Since(s.begin)) {
			s.mu.Lock()
			defer s.mu.Unlock()
			change(&s.node)
		}
	}()
}

// loses returns, once, the error that comes in the place of the answer to a request.
func (s *stage) loses() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err, s.lost = s.lost, nil
	return err
}

func play(t *testing.T, run func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, kube: fake.NewClientset(), begin: time.Now(), stops: map[string]time.Duration{}, stopping: map[string]bool{}, over: make(chan struct{}), node: evacuation.NodeState{Ready: true, Cordoned: true}}
		defer close(s.over)
		s.kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			d := action.(clienttesting.DeleteActionImpl)
			err := s.stop("deleted", d.GetName(), &d.DeleteOptions)
			if err == nil {
				err = s.loses()
			}
			return true, nil, err
		})
		s.selectFields()
		s.drainer = &Drainer{
			Client: kubetest.Evictable{Interface: s.kube, Evict: s.evict},
			Grace:  -1,
		}
		run(s)
	})
}

// watchVolumes makes the drainer wait for volumes, until the end of the play.
func (s *stage) watchVolumes() {
	s.Helper()
	volumes, err := NewVolumes(s.drainer.Client)
	if err != nil {
		s.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.Context())
	s.Cleanup(func() {
		stop()
		synctest.Wait()
	})
	go volumes.Run(ctx)
	s.drainer.Volumes = volumes
}

// selectFields makes the fake heed field selectors: it ignores them by itself.
func (s *stage) selectFields() {
	matches := func(selector fields.Selector, obj runtime.Object) bool {
		pod, ok := obj.(*corev1.Pod)
		return !ok || selector.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "metadata.name": pod.Name})
	}
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	s.kube.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj, err := s.kube.Tracker().List(gvr, corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		list := obj.(*corev1.PodList)
		selector := action.(clienttesting.ListAction).GetListRestrictions().Fields
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !matches(selector, &p) })
		if _, one := selector.RequiresExactMatch("metadata.name"); one {
			s.mu.Lock()
			defer s.mu.Unlock()
			for k := range list.Items {
				if p := &list.Items[k]; s.stopping[p.Name] && p.DeletionTimestamp == nil {
					p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(30 * time.Second)))
				}
			}
		}
		return true, list, nil
	})
	s.kube.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		all, err := s.kube.Tracker().Watch(gvr, action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		selector := action.(clienttesting.WatchAction).GetWatchRestrictions().Fields
		events := make(chan watch.Event)
		selected := watch.NewProxyWatcher(events)
		go func() { // watch.Filter would stay behind with an event that nobody takes
			defer all.Stop()
			for {
				var e watch.Event
				select {
				case e = <-all.ResultChan():
				case <-selected.StopChan():
					return
				}
				if !matches(selector, e.Object) {
					continue
				}
				select {
				case events <- e:
				case <-selected.StopChan():
					return
				}
			}
		}()
		return true, selected, nil
	})
}

// pod adds a pod with a grace of 30 s.
func (s *stage) pod(name string, edit ...func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "node", TerminationGracePeriodSeconds: new(int64(30))},
	}
	for _, e := range edit {
		e(p)
	}
	if err := s.kube.Tracker().Add(p); err != nil {
		s.Fatal(err)
	}
}

// happened notes an event with the seconds since the beginning.
func (s *stage) happened(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%s %s", time.Since(s.begin).Round(time.Second), fmt.Sprintf(format, args...)))
}

// stop is what API server and kubelet do about a deletion.
func (s *stage) stop(how, name string, opts *metav1.DeleteOptions) error {
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	obj, err := s.kube.Tracker().Get(gvr, "ns", name)
	if err != nil {
		return err
	}
	pod := obj.(*corev1.Pod).DeepCopy()
	s.mu.Lock()
	stopping := s.stopping[name]
	s.mu.Unlock()
	if opts.Preconditions == nil || *opts.Preconditions.UID != pod.UID {
		s.Errorf("%s %s without its UID", how, name)
	} else if version := opts.Preconditions.ResourceVersion; version != nil && (*version != pod.ResourceVersion || stopping) {
		return apierrors.NewConflict(gvr.GroupResource(), name, errors.New("the ResourceVersion in the precondition does not match"))
	}
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	if opts.GracePeriodSeconds != nil {
		grace = time.Duration(*opts.GracePeriodSeconds) * time.Second
	}
	s.happened("%s %s with %s", how, name, grace)
	s.mu.Lock()
	s.stopping[name] = true
	s.mu.Unlock()
	end := metav1.NewTime(time.Now().Add(s.clock + grace))
	go func() {
		// Never at once: unlike an API server, the fake does not tell a watch what
		// happened between the list and its beginning.
		late := max(10*time.Millisecond, min(s.behind, grace, s.stops[name]))
		if s.passes(late) {
			pod.DeletionTimestamp = &end
			pod.DeletionGracePeriodSeconds = new(int64(grace / time.Second))
			if err := s.kube.Tracker().Update(gvr, pod, "ns"); err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
		}
		if s.dead || len(pod.Status.ContainerStatuses) > 0 || !s.passes(min(grace, s.stops[name])-late+s.confirms) {
			return
		}
		if len(pod.Finalizers) > 0 { // the API server keeps the object, and says that the kubelet has confirmed its end
			pod = pod.DeepCopy()
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(0))
			if err := s.kube.Tracker().Update(gvr, pod, "ns"); err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
			return
		}
		if err := s.kube.Tracker().Delete(gvr, "ns", name); err == nil && s.stopped != nil { // it may have stopped sooner
			s.stopped(pod)
		}
	}()
	return nil
}

// runsOn has a pod run on, whatever its kubelet does.
func runsOn(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

// passes waits for d, and reports false if the end comes first.
func (s *stage) passes(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.over:
		return false
	}
}

func TestWhoIsInReserveTakesOverAtOnceWhenItIsTold(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web")
		terms := make(chan evacuation.Terms)
		go func() {
			if s.passes(20 * time.Second) {
				terms <- evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute)}
			}
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute), Reserve: true}, terms)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 20*time.Second)
		if diff := cmp.Diff([]string{"20s evicted web with 30s"}, s.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestWhatSomebodyElseDrainsIsOnlyWatched(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web")
		go func() {
			if s.passes(30 * time.Second) {
				_ = s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "web")
			}
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute), Reserve: true}, nil)
		s.wantEnd(result, err, evacuation.Result{Ended: 1}, 30*time.Second)
		if len(s.events) != 0 {
			t.Errorf("events %v, want none", s.events)
		}
	})
}

// What tenants write is read on the way.
func TestARequestThatPanicsIsMadeAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web")
		s.pod("api", surging)
		var once sync.Once
		s.refuse = func(string) *metav1.Status {
			once.Do(func() { panic("a test of panics") })
			return nil
		}
		s.drainer.Surge = func(context.Context, *corev1.Pod) error { panic("a test of panics") }
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute), CordonedAt: s.begin}, nil)
		if err != nil || result.Evicted != 2 {
			t.Errorf("result %+v, %v", result, err)
		}
	})
}

// evict is the API server's answer to an eviction.
func (s *stage) evict(ctx context.Context, eviction *policyv1.Eviction) (*metav1.Status, error) {
	if s.away != nil && s.away() {
		return nil, errors.New("connection refused")
	}
	status := &metav1.Status{Code: http.StatusCreated, Status: metav1.StatusSuccess}
	if s.refuse != nil {
		if refusal := s.refuse(eviction.Name); refusal != nil {
			status = refusal
		}
	}
	if s.hangs != nil {
		select {
		case <-time.After(s.hangs(eviction.Name)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case s.swallows != nil && s.swallows(eviction.Name):
		s.happened("swallowed %s", eviction.Name)
	case status.Code == http.StatusCreated:
		var refused *apierrors.StatusError
		if err := s.stop("evicted", eviction.Name, eviction.DeleteOptions); errors.As(err, &refused) {
			status = &refused.ErrStatus
		} else if err := s.loses(); err != nil {
			return nil, err
		}
	default:
		s.happened("refused %s", eviction.Name)
	}
	select {
	case <-time.After(s.answers):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return status, nil
}

// The clock of the leader that has cordoned the node is minutes ahead of that of the one that goes on.
func TestADrainDoesNotWaitForTheClockOfAnEarlierLeader(t *testing.T) {
	for _, ahead := range []time.Duration{0, 3 * time.Second, 5 * time.Minute} {
		play(t, func(s *stage) {
			s.pod("a")
			result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
				Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin.Add(ahead)}, NodeState: s.look, Log: s.log(), Resumed: true,
			})
			if err != nil || result.Evicted != 1 {
				t.Errorf("%+v, %v", result, err)
			}
			if took := time.Since(s.begin); took > 45*time.Second {
				t.Errorf("it took %s, and the clock was %s ahead", took, ahead)
			}
		})
	}
}

func (s *stage) drain(terms evacuation.Terms, changed <-chan evacuation.Terms) (*evacuation.Result, error) {
	return s.drainIn(s.Context(), terms, changed)
}

// drainIn is drain in a context that may end.
func (s *stage) drainIn(ctx context.Context, terms evacuation.Terms, changed <-chan evacuation.Terms) (*evacuation.Result, error) {
	terms.CordonedAt = s.begin
	return s.drainer.Drain(ctx, &evacuation.Request{Node: "node", Terms: terms, Rules: s.rules, Changed: changed, NodeState: s.look, Log: s.log()})
}

// want checks what happened; refusals are counted, not listed.
func (s *stage) want(refused int, events ...string) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	n := 0
	for _, e := range s.events {
		if strings.Contains(e, "refused") {
			n++
			continue
		}
		got = append(got, e)
	}
	if diff := cmp.Diff(events, got); diff != "" {
		s.Errorf("events (-want +got):\n%s", diff)
	}
	if n != refused {
		s.Errorf("%d refused evictions, want %d", n, refused)
	}
}

func (s *stage) wantEnd(result *evacuation.Result, err error, want evacuation.Result, after time.Duration) {
	s.Helper()
	if diff := cmp.Diff(want, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" || err != nil {
		s.Errorf("result (-want +got):\n%s%v", diff, err)
	}
	if r := result.Record; len(r.EvictedPods) != want.Evicted || len(r.ForcedPods) != want.Forced {
		s.Errorf("the record names %q as evicted and %q as forced", r.EvictedPods, r.ForcedPods)
	}
	if took := time.Since(s.begin).Round(time.Second); took != after {
		s.Errorf("took %s, want %s", took, after)
	}
}

func budget(string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}},
	}
}

func TestADrainEndsWithTheSecondLook(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.pod("daemon", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "owner", Controller: new(true)}}
		})
		go func() {
			time.Sleep(3 * time.Second)
			s.pod("late")
		}()
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2, Stayed: []string{"ns/daemon"}}, lateBindTime)
		s.want(0, "0s evicted a with 30s", "3s evicted late with 30s")
	})
}

func TestABudgetIsAskedUntilThePodMustBeForced(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.stops["a"] = 20 * time.Second
		s.refuse = budget
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 105*time.Second)
		s.mu.Lock()
		refused := len(s.events) - 1
		s.mu.Unlock()
		if refused < 8 || refused > 25 {
			t.Errorf("%d evictions in 85 s", refused)
		}
		s.want(refused, "1m25s deleted a with 30s")
	})
}

// twice refuses as two budgets on one pod do.
func twice(string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	}
}

func TestTwoBudgetsAreNotHammered(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = twice
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 85*time.Second)
		s.want(3, "1m25s deleted a with 30s")
	})
}

func TestARefusalIsObservedWithItsReason(t *testing.T) {
	busy := func(string) *metav1.Status {
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests}
	}
	broken := func(string) *metav1.Status {
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "etcd"}
	}
	for want, refuse := range map[evacuation.Refusal]func(string) *metav1.Status{evacuation.Budget: budget, evacuation.TwoBudgets: twice, evacuation.Namespace: terminating, evacuation.Busy: busy, evacuation.Failed: broken} {
		play(t, func(s *stage) {
			s.pod("a")
			s.refuse = refuse
			seen := map[evacuation.Refusal]int{}
			s.drainer.Observe = func(step evacuation.Answer) { seen[step.Refusal]++ }
			_, _ = s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
			if seen[want] == 0 || seen[""] != 1 || len(seen) != 2 {
				t.Errorf("%v, want only %q, and the deletion", seen, want)
			}
		})
	}
}

// An API server that is overloaded, shutting down, failing or away when a pod must be forced has not asked the pod's budget.
func TestABudgetIsAskedBeforeAPodIsForced(t *testing.T) {
	for name, answer := range map[string]*metav1.Status{
		"overloaded":    {Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests},
		"shutting down": {Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable},
		"failed":        {Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "etcdserver: request timed out"},
		"a bad gateway": {Status: metav1.StatusFailure, Code: http.StatusBadGateway},
		"away":          nil,
	} {
		for allowed, want := range map[bool]evacuation.Result{true: {Evicted: 1}, false: {Forced: 1}} {
			t.Run(fmt.Sprintf("%s, allowed: %t", name, allowed), func(t *testing.T) {
				play(t, func(s *stage) {
					s.pod("a")
					s.drainer.Gate = pace.NewGate(1, 1)
					unheard := func() bool { return time.Since(s.begin) < 86*time.Second } // from 85 s on it must be forced
					s.away = func() bool { return answer == nil && unheard() }
					s.refuse = func(string) *metav1.Status {
						switch {
						case unheard():
							return answer
						case !allowed:
							return budget("")
						}
						return nil
					}
					result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
					if diff := cmp.Diff(want, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" || err != nil {
						t.Errorf("result (-want +got):\n%s%v", diff, err)
					}
					if took := time.Since(s.begin); took > 89*time.Second {
						t.Errorf("drained after %s", took)
					}
				})
			})
		}
	}
}

func TestAServerThatWantsToBeLeftAloneIsLeftAlone(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = func(string) *metav1.Status {
			if time.Since(s.begin) > 50*time.Second {
				return nil
			}
			busy := budget("")
			busy.Details = &metav1.StatusDetails{RetryAfterSeconds: 20}
			return busy
		}
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 60*time.Second)
		s.want(3, "1m0s evicted a with 30s")
	})
}

func TestCriticalPodsGoLast(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		s.pod("b")
		s.stops["b"] = 10 * time.Second
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 10*time.Second)
		s.want(0, "0s evicted b with 30s", "10s evicted a with 30s")
	})
}

func TestATighterDeadlineForces(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = budget
		changed := make(chan evacuation.Terms)
		go func() {
			time.Sleep(10 * time.Second)
			changed <- evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}
		}()
		result, err := s.drain(evacuation.Terms{}, changed)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 25*time.Second)
	})
}

func TestAMachineThatIsGoingAlreadyAsksNoBudget(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = budget
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), IgnoreBudgets: true}, nil)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, lateBindTime)
		s.want(0, "0s deleted a with 30s")
	})
}

func TestWhatIsLeftAtTheDeadlineIsNamed(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("stuck", func(p *corev1.Pod) {
			p.DeletionTimestamp = new(metav1.NewTime(s.begin.Add(-time.Hour)))
			runsOn(p)
		})
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Missed: []string{"ns/stuck"}}, 60*time.Second)
		s.want(0, "55s deleted stuck with 1s") // it may be the API server's clock that is an hour behind
	})
}

// Hibernation begins with its warning, and a warning can be late: as long as the
// machine is there, its pods get what little there is.
func TestADeadlineThatHasPassedLeavesEachPodASecond(t *testing.T) {
	t.Run("asked", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a")
			s.stops["a"] = time.Minute
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(-time.Minute)}, nil)
			s.wantEnd(result, err, evacuation.Result{Evicted: 1}, margin)
			if left := result.Record.LastLeft; left.Before(s.begin) {
				t.Errorf("the last pod left at %s, want it after the deadline", left)
			}
			s.want(0, "0s evicted a with 1s")
		})
	})
	t.Run("or told, against its budget", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a")
			s.stops["a"] = time.Minute
			s.refuse = budget
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(-time.Minute)}, nil)
			s.wantEnd(result, err, evacuation.Result{Forced: 1}, margin)
			if left := result.Record.LastLeft; left.Before(s.begin) {
				t.Errorf("the last pod left at %s, want it after the deadline", left)
			}
			s.want(1, "0s deleted a with 1s")
		})
	})
	t.Run("or told in the middle of a drain without one", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a")
			s.stops["a"] = time.Minute
			s.refuse = budget
			changed := make(chan evacuation.Terms)
			go func() {
				time.Sleep(20 * time.Second)
				changed <- evacuation.Terms{Deadline: s.begin.Add(19 * time.Second)}
			}()
			result, err := s.drain(evacuation.Terms{}, changed)
			s.wantEnd(result, err, evacuation.Result{Forced: 1}, 21*time.Second)
			if last := s.events[len(s.events)-1]; last != "20s deleted a with 1s" {
				t.Errorf("the last event is %q", last)
			}
		})
	})
}

func TestAPodThatStopsTooSlowlyIsCutShortAtTheDeadline(t *testing.T) {
	for name, clock := range map[string]time.Duration{"": 0, "by an API server's clock behind ours": -400 * time.Second, "or ahead of it": 400 * time.Second} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.clock = clock
				s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(500)) })
				s.stops["slow"] = 490 * time.Second
				changed := make(chan evacuation.Terms)
				go func() {
					time.Sleep(10 * time.Second)
					changed <- evacuation.Terms{Deadline: s.begin.Add(130 * time.Second)}
				}()
				result, err := s.drain(evacuation.Terms{}, changed)
				s.wantEnd(result, err, evacuation.Result{Forced: 1}, 126*time.Second)
				s.want(0, "0s evicted slow with 8m20s", "2m5s deleted slow with 1s")
			})
		})
	}
}

func TestOurOwnPodLeavesLast(t *testing.T) {
	self := types.NamespacedName{Namespace: "ns", Name: "self"}
	t.Run("when all others are gone, as its budget allows", func(t *testing.T) {
		play(t, func(s *stage) {
			s.drainer.Self = self
			s.refuse = func(pod string) *metav1.Status {
				if pod == "self" && time.Since(s.begin) < 50*time.Second {
					return budget(pod)
				}
				return nil
			}
			s.pod("a", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
			s.pod("self")
			s.stops["a"] = 20 * time.Second
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
			if result.Evicted != 2 || err != nil {
				t.Errorf("Drain = %+v, %v", result, err)
			}
			if requests := s.requests(); requests[0] != "a" || slices.Contains(requests[1:], "a") {
				t.Errorf("requests for %v, want those for our own pod after the other", requests)
			}
		})
	})
	t.Run("but in time for the next leader to force what is left", func(t *testing.T) {
		play(t, func(s *stage) {
			s.drainer.Self = self
			s.pod("self")
			s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
			s.stops["slow"] = 500 * time.Second
			_, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
			if err != nil {
				t.Error(err)
			}
			s.want(0, "0s evicted slow with 1m58s", "1m20s evicted self with 30s")
		})
	})
	t.Run("and is forced in time to give the lease away, whatever hangs", func(t *testing.T) {
		play(t, func(s *stage) {
			s.drainer.Self = self
			s.pod("self")
			s.pod("hangs", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(0)) })
			s.refuse = func(pod string) *metav1.Status {
				if pod == "self" {
					return budget(pod)
				}
				return nil
			}
			s.hangs = func(pod string) time.Duration {
				if pod == "hangs" {
					return time.Hour
				}
				return 0
			}
			if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil); err != nil {
				t.Error(err)
			}
			if !slices.Contains(s.events, "50s deleted self with 30s") {
				t.Errorf("events %q", s.events)
			}
		})
	})
}

// In real time: client-go paces its reports of errors by a clock that all of the
// program shares, which no bubble takes.
func TestPodsThatCannotBeListedDoNotHoldTheDeadlineUp(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	d := &Drainer{Client: kube, Grace: -1}
	deadline := time.Now().Add(200 * time.Millisecond)
	result, err := d.Drain(t.Context(), &evacuation.Request{Node: "node", Terms: evacuation.Terms{CordonedAt: time.Now(), Deadline: deadline}, Log: logtest.To(t.Output())})
	if diff := cmp.Diff(evacuation.Result{
		Missed: []string{"all, which could not be listed"}, Unlisted: &overview.Wait{Cause: overview.List, Why: "the pods of the node cannot be listed: away"},
	}, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" || err != nil {
		t.Errorf("result (-want +got):\n%s%v", diff, err)
	}
	if time.Now().Before(deadline) {
		t.Error("gave up before the deadline")
	}
}

func TestADrainEndsAtOnceWithItsContext(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = budget
		cause := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(s.Context())
		go func() {
			time.Sleep(7 * time.Second)
			cancel(cause)
		}()
		result, err := s.drainer.Drain(ctx, &evacuation.Request{Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, Log: s.log()})
		if took := time.Since(s.begin); !errors.Is(err, cause) || took != 7*time.Second {
			t.Errorf("Drain = %v after %s", err, took)
		}
		if diff := cmp.Diff(evacuation.Result{}, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
	})
}

// Nobody knows what a request did that is cut off in the middle.
func TestARequestInFlightIsAwaitedForASecond(t *testing.T) {
	for name, test := range map[string]struct {
		answers, want time.Duration
		result        evacuation.Result
	}{
		"it is answered":     {500 * time.Millisecond, 500 * time.Millisecond, evacuation.Result{Evicted: 1}}, // it is on its way out
		"it is not answered": {time.Hour, 1200 * time.Millisecond, evacuation.Result{}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a")
				s.stops["a"] = 10 * time.Second
				s.answers = test.answers
				cause := errors.New("the process stops")
				ctx, cancel := context.WithCancelCause(s.Context())
				time.AfterFunc(200*time.Millisecond, func() { cancel(cause) })
				result, err := s.drainer.Drain(ctx, &evacuation.Request{Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, Log: s.log()})
				if took := time.Since(s.begin); !errors.Is(err, cause) || took != test.want {
					t.Errorf("Drain = %v after %s, want %v after %s", err, took, cause, test.want)
				}
				if diff := cmp.Diff(test.result, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The API server spends a budget before it looks at the version: a watch that is behind must not cost the budget of a
// pod that nobody has asked yet.
func TestAnEvictionNamesAVersionOnlyWhereOneWasMadeBefore(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
		var versions []string
		s.drainer.Client = kubetest.Evictable{Interface: s.kube, Evict: func(ctx context.Context, e *policyv1.Eviction) (*metav1.Status, error) {
			versions = append(versions, ptr.Deref(e.DeleteOptions.Preconditions.ResourceVersion, "any"))
			if len(versions) == 1 {
				return nil, syscall.ECONNRESET
			}
			return s.evict(ctx, e)
		}}
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, lateBindTime)
		if diff := cmp.Diff([]string{"any", "7"}, versions); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
	})
}

// A watch that is behind shows a pod that somebody else has deleted.
func TestAPodThatWentByItselfIsNotCountedAsAsked(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.drainer.Observe = func(a evacuation.Answer) { s.Errorf("observed %+v", a) }
		s.refuse = func(string) *metav1.Status {
			gvr := corev1.SchemeGroupVersion.WithResource("pods")
			time.AfterFunc(10*time.Second, func() { _ = s.kube.Tracker().Delete(gvr, "ns", "a") })
			return &apierrors.NewNotFound(gvr.GroupResource(), "a").ErrStatus
		}
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Ended: 1}, 10*time.Second)
		s.want(1)
	})
}

// The connection may end between an eviction and its answer, and with it the watch
// that would have told.
func TestAnEvictionWithoutAnAnswerIsNotMadeTwice(t *testing.T) {
	versioned := func(p *corev1.Pod) { p.ResourceVersion = "7" }
	for name, behind := range map[string]time.Duration{
		"the watch tells": 0, "the watch tells later": 4 * time.Second, "the pod is gone before": time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a", versioned)
				s.stops["a"] = 10 * time.Second
				s.lost, s.behind = syscall.ECONNRESET, behind
				result, err := s.drain(evacuation.Terms{}, nil)
				s.want(0, "0s evicted a with 30s")
				s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 10*time.Second)
			})
		})
	}
}

// Nor is a deletion, if the watch does not tell: a look does.
func TestADeletionWithoutAnAnswerIsNotMadeTwice(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
		s.stops["a"] = 10 * time.Second
		s.lost, s.behind = syscall.ECONNRESET, time.Hour
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), IgnoreBudgets: true}, nil)
		s.want(0, "0s deleted a with 30s")
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 10*time.Second)
	})
}

// An eviction that did not get through is made again, whatever has happened to
// the pod meanwhile.
func TestAnEvictionThatDidNotGetThroughIsMadeAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
		fails := 2
		s.refuse = func(string) *metav1.Status {
			if fails--; fails < 0 {
				return nil
			}
			gvr := corev1.SchemeGroupVersion.WithResource("pods")
			pod, err := s.kube.Tracker().Get(gvr, "ns", "a")
			if err != nil {
				s.Error(err)
				return nil
			}
			changed := pod.(*corev1.Pod).DeepCopy()
			changed.ResourceVersion += "1"
			time.AfterFunc(3*time.Second, func() { _ = s.kube.Tracker().Update(gvr, changed, "ns") })
			return &metav1.Status{Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: "etcdserver: request timed out"}
		}
		result, err := s.drain(evacuation.Terms{}, nil)
		if result.Evicted != 1 || err != nil {
			s.Errorf("Drain = %+v, %v", result, err)
		}
	})
}

func TestRequestsInFlightAreBounded(t *testing.T) {
	play(t, func(s *stage) {
		for k := range 100 {
			s.pod(fmt.Sprintf("p%02d", k))
		}
		var mu sync.Mutex
		now, most := 0, 0
		s.refuse = func(string) *metav1.Status {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 100}, lateBindTime)
		if most != maxPending {
			t.Errorf("%d at once, want %d", most, maxPending)
		}
	})
}

// gated gives the drainer a gate that lets in one request at a time, each for a
// second, and is taken until open is called.
func (s *stage) gated() (gate *pace.Gate, open func()) {
	gate = pace.NewGate(1, 1)
	s.drainer.Gate = gate
	s.refuse = func(string) *metav1.Status {
		time.Sleep(time.Second)
		return nil
	}
	leave, err := gate.Enter(s.Context(), pace.Priority{Class: pace.Foremost})
	if err != nil {
		s.Fatal(err)
	}
	return gate, func() { leave(0) }
}

func TestOfNodesWithOneDeadlineOneIsEmptiedAfterTheOther(t *testing.T) {
	play(t, func(s *stage) {
		_, open := s.gated()
		deadline := s.begin.Add(120 * time.Second)
		var drains sync.WaitGroup
		for _, node := range []string{"one", "two", "three"} {
			for k := range 2 {
				s.pod(fmt.Sprintf("%s-%d", node, k), func(p *corev1.Pod) { p.Spec.NodeName = node })
			}
			drains.Go(func() {
				result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: node, Terms: evacuation.Terms{CordonedAt: s.begin, Deadline: deadline}, Log: s.log()})
				if err != nil || result.Evicted != 2 {
					t.Errorf("%s: %+v, %v", node, result, err)
				}
			})
			synctest.Wait() // they come to the gate in this order
		}
		open()
		drains.Wait()
		var order []string
		for _, event := range s.events {
			node, _, _ := strings.Cut(strings.Fields(event)[2], "-") // of two pods of a node either may be first
			order = append(order, node)
		}
		if diff := cmp.Diff([]string{"one", "one", "two", "two", "three", "three"}, order); diff != "" {
			t.Errorf("nodes (-want +got):\n%s", diff)
		}
	})
}

func TestWhatWasRefusedGoesBehindWhatWasNotTried(t *testing.T) {
	play(t, func(s *stage) {
		gate, open := s.gated()
		pods := []string{"blocked", "free"}
		for _, name := range pods {
			s.pod(name, func(p *corev1.Pod) { p.Spec.NodeName = name })
		}
		blocked := true
		s.refuse = func(name string) *metav1.Status {
			time.Sleep(time.Second)
			if name == "blocked" && blocked {
				blocked = false
				return budget(name)
			}
			return nil
		}
		deadline := s.begin.Add(120 * time.Second)
		var drains sync.WaitGroup
		begin := func(node string) {
			drains.Go(func() {
				if _, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: node, Terms: evacuation.Terms{CordonedAt: s.begin, Deadline: deadline}, Log: s.log()}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		begin("blocked")
		open()
		time.Sleep(1100 * time.Millisecond) // refused, and its next try waits
		leave, err := gate.Enter(s.Context(), pace.Priority{Class: pace.Foremost})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // it waits at the gate
		begin("free")
		var looked time.Duration
		s.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			looked = time.Since(s.begin)
			return false, nil, nil
		})
		leave(0)
		drains.Wait()
		if looked > 7*time.Second { // the refused eviction would take the second before
			t.Errorf("the pods of the second node were looked at after %s", looked)
		}
	})
}

func TestANodeWhoseTurnDoesNotComeIsMissedAtItsDeadline(t *testing.T) {
	play(t, func(s *stage) {
		s.gated()
		s.pod("a")
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(30 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{
			Missed: []string{"all, which could not be listed"}, Unlisted: &overview.Wait{Cause: overview.Gate, Why: "other requests to the API server go first"},
		}, 30*time.Second)
	})
}

func TestADeadlineThatTightensMovesANodeForwardAtTheGate(t *testing.T) {
	play(t, func(s *stage) {
		_, open := s.gated()
		s.pod("calm", func(p *corev1.Pod) { p.Spec.NodeName = "calm" })
		s.pod("hurried", func(p *corev1.Pod) { p.Spec.NodeName = "hurried" })
		changed := make(chan evacuation.Terms)
		var drains sync.WaitGroup
		for _, o := range []evacuation.Request{
			{Node: "calm", Terms: evacuation.Terms{Deadline: s.begin.Add(100 * time.Second)}},
			{Node: "hurried", Changed: changed},
		} {
			o.Terms.CordonedAt, o.Log = s.begin, s.log()
			drains.Go(func() {
				if _, err := s.drainer.Drain(s.Context(), &o); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		changed <- evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}
		synctest.Wait()
		open()
		drains.Wait()
		s.want(0, "1s evicted hurried with 30s", "2s evicted calm with 30s")
	})
}

// A second notice joins with the same deadline while the node waits for its turn.
func TestTermsThatStayAsTheyAreDoNotCostANodeItsTurn(t *testing.T) {
	play(t, func(s *stage) {
		_, open := s.gated()
		s.pod("a")
		terms, changed := evacuation.Terms{Deadline: s.begin.Add(100 * time.Second)}, make(chan evacuation.Terms)
		var drains sync.WaitGroup
		drains.Go(func() {
			result, err := s.drain(terms, changed)
			s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 11*time.Second)
		})
		synctest.Wait()
		changed <- terms
		time.Sleep(10 * time.Second)
		open()
		drains.Wait()
		s.want(0, "11s evicted a with 30s")
	})
}
