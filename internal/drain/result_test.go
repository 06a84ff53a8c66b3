package drain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// there are the pods that the API server has and that have not ended.
func (s *stage) there() []string {
	s.Helper()
	list, err := s.kube.CoreV1().Pods("ns").List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, p := range list.Items {
		if evacuation.Ended(&p) {
			continue
		}
		names = append(names, "ns/"+p.Name)
	}
	slices.Sort(names)
	return names
}

// goneAfter is a context that ends when the machine goes.
func (s *stage) goneAfter(d time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(s.Context())
	time.AfterFunc(d, func() { cancel(evacuation.ErrMachineGone) })
	return ctx
}

// Whatever becomes of the pods: each is counted once, and those that are named are
// those that are there.
func TestEachPodThatHadToLeaveIsInExactlyOneBucket(t *testing.T) {
	all := evacuation.Result{}
	for seed := range uint64(race.Rounds(300)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			play(t, func(s *stage) {
				random := rand.New(rand.NewPCG(seed, 0))
				chance := func(p float64) bool { return random.Float64() < p }
				pods := 1 + random.IntN(8)
				refused := map[string]bool{}
				s.refuse = func(pod string) *metav1.Status {
					if refused[pod] {
						return budget(pod)
					}
					return nil
				}
				s.dead = chance(0.2)
				s.node.Ready = !s.dead || chance(0.5)
				for k := range pods {
					name := fmt.Sprint("p", k)
					refused[name] = chance(0.3)
					s.stops[name] = time.Duration(random.IntN(100)) * time.Second
					s.pod(name, func(p *corev1.Pod) {
						if chance(0.2) {
							runsOn(p)
						}
						if chance(0.2) {
							p.Finalizers = []string{"somebody/else"}
						}
						p.Spec.TerminationGracePeriodSeconds = new(int64(random.IntN(120)))
					})
					if chance(0.1) { // somebody else deletes it
						time.AfterFunc(time.Duration(1+random.IntN(60))*time.Second, func() {
							_ = s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", name)
						})
					}
				}
				ctx := s.Context()
				gone := chance(0.5)
				if gone {
					ctx = s.goneAfter(time.Duration(random.IntN(100))*time.Second + 300*time.Millisecond)
				}
				result, err := s.drainIn(ctx, evacuation.Terms{Deadline: s.begin.Add(90*time.Second + 700*time.Millisecond)}, nil)
				if err != nil {
					t.Fatal(err)
				}
				still := slices.Concat(result.Missed, result.Lost, result.Unconfirmed)
				slices.Sort(still)
				if n := result.Evicted + result.Forced + result.Ended + len(still); n != pods {
					t.Errorf("%d pods had to leave, and %d are counted: %+v", pods, n, result)
				}
				if diff := cmp.Diff(s.there(), still); diff != "" {
					t.Errorf("pods that are there (-API server +result):\n%s", diff)
				}
				if !gone && len(result.Lost) > 0 || len(result.Lost) > 0 && len(result.Missed) > 0 {
					t.Errorf("%+v; machine gone: %t", result, gone)
				}
				all.Evicted += result.Evicted
				all.Forced += result.Forced
				all.Ended += result.Ended
				all.Missed, all.Lost, all.Unconfirmed = append(all.Missed, result.Missed...), append(all.Lost, result.Lost...), append(all.Unconfirmed, result.Unconfirmed...)
			})
		})
	}
	if min(all.Evicted, all.Forced, all.Ended, len(all.Missed), len(all.Lost)) == 0 {
		t.Errorf("a bucket is empty: %+v", all)
	}
}

func TestAMachineThatGoesLosesThePodsThatWereOnIt(t *testing.T) {
	slow := func(s *stage) {
		s.pod("quick")
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.stops["slow"] = 10 * time.Minute
	}
	for name, test := range map[string]struct {
		set   func(s *stage)
		after time.Duration
		want  evacuation.Result
	}{
		"in the middle of the drain": {slow, 20 * time.Second, evacuation.Result{Evicted: 1, Lost: []string{"ns/slow"}}},
		"before the drain has begun": {
			func(s *stage) {
				slow(s)
				s.pod("daemon", daemon)
			}, 0, evacuation.Result{Lost: []string{"ns/quick", "ns/slow"}},
		},
		"and nobody can say which": {
			func(s *stage) {
				slow(s)
				s.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewInternalError(errors.New("away"))
				})
			}, 0, evacuation.Result{
				Lost:     []string{"all, which could not be listed"},
				Unlisted: &overview.Wait{Cause: overview.FailingList, Why: "the pods of the node cannot be listed: Internal error occurred: away"},
			},
		},
		"when all have left": {func(s *stage) { s.pod("quick") }, 3 * time.Second, evacuation.Result{Evicted: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				test.set(s)
				ctx := s.goneAfter(test.after)
				if test.after == 0 {
					gone, cancel := context.WithCancelCause(ctx)
					cancel(evacuation.ErrMachineGone)
					ctx = gone
				}
				result, err := s.drainIn(ctx, evacuation.Terms{Deadline: s.begin.Add(time.Hour)}, nil)
				s.wantEnd(result, err, test.want, test.after)
			})
		})
	}
}

func daemon(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: types.UID("d"), Controller: new(true)}}
}

func TestPodsThatWouldHaveToLeaveAreListed(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("b")
		s.pod("a")
		s.pod("daemon", daemon)
		s.pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "another" })
		got, err := s.drainer.Remaining(s.Context(), "node", s.rules)
		if diff := cmp.Diff([]string{"ns/a", "ns/b"}, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

func TestFewPodsAreNamedAndTheRestIsCounted(t *testing.T) {
	var names []string
	for k := range 12 {
		names = append(names, fmt.Sprint(k))
	}
	if got := evacuation.Names(names, 10); len(got) != 11 || got[9] != "9" || got[10] != "and 2 more" || names[10] != "10" {
		t.Errorf("%q of %q", got, names)
	}
	if got := evacuation.Names(names[:10], 10); len(got) != 10 {
		t.Errorf("%q", got)
	}
}
