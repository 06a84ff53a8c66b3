package drain

import (
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// The drain of a machine whose pods are listed too late for the deadline has not got one off it.
func TestAListThatComesAtTheDeadlineIsNoDrain(t *testing.T) {
	failed := 0
	for range 20 {
		play(t, func(s *stage) {
			s.pod("a")
			s.pod("b")
			s.kube.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				time.Sleep(6 * time.Second)
				return false, nil, nil
			})
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(6 * time.Second)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Missed) == 0 && result.Evicted+result.Forced == 0 {
				failed++
			}
		})
	}
	if failed > 0 {
		t.Errorf("%d of 20 drains that touched no pod say that none was missed", failed)
	}
}

// The watch is behind a list of the pod, by which the store knows that the pod is gone: what
// was counted comes back with an older event, and is counted again.
func TestAPodThatTheWatchBringsBackIsCountedOnce(t *testing.T) {
	play(t, func(s *stage) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: "uid-a"}, Spec: corev1.PodSpec{NodeName: "node", TerminationGracePeriodSeconds: new(int64(30))}}
		r := newRun(s.drainer, &evacuation.Request{Node: "node", Log: logr.Discard(), NodeState: s.look, Terms: evacuation.Terms{CordonedAt: time.Now()}}, nil)
		_ = r.store.Replace([]any{pod}, "1")
		r.pods.refresh(time.Now())
		_ = r.store.Delete(pod) // as readPod does
		r.pods.refresh(time.Now())
		stopping := pod.DeepCopy()
		stopping.DeletionTimestamp = new(metav1.Now())
		_ = r.store.Update(stopping) // the watch is behind
		r.pods.refresh(time.Now())
		_ = r.store.Delete(stopping)
		r.pods.refresh(time.Now())
		r.pods.countPods(nil)
		if n := r.result.Evicted + r.result.Forced + r.result.Ended; n != 1 {
			t.Errorf("one pod is counted %d times: %+v", n, r.result)
		}
	})
}

// What an earlier leader has asked of a pod that is still there counts, as far as the pod shows it.
func TestWhatAnEarlierLeaderAskedIsCounted(t *testing.T) {
	for _, resumed := range []bool{true, false} {
		play(t, func(s *stage) {
			end := func(name string, asked, grace, gone time.Duration, evicted bool) {
				s.pod(name, func(p *corev1.Pod) {
					p.Spec.TerminationGracePeriodSeconds = new(int64(600))
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(s.begin.Add(asked+grace))), new(int64(grace/time.Second))
					if evicted {
						p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
					}
				})
				go func() {
					if s.passes(gone) {
						if err := s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", name); err != nil {
							s.Error(err)
						}
					}
				}()
			}
			end("killed", 5*time.Second, 60*time.Second, 65*time.Second, true)
			end("quick", 5*time.Second, 60*time.Second, 20*time.Second, true)
			end("deleted", 5*time.Second, 60*time.Second, 20*time.Second, false)
			end("before", -5*time.Second, 60*time.Second, 55*time.Second, true)
			time.Sleep(10 * time.Second)
			result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
				Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, NodeState: s.look, Log: s.log(), Resumed: resumed,
			})
			evicted, ended, cut := 2, 2, []string{"ns/killed after 1m of 10m"}
			if !resumed {
				evicted, ended, cut = 0, 4, nil
			}
			if err != nil || result.Evicted != evicted || result.Ended != ended || !slices.Equal(result.Record.CutShort, cut) {
				t.Errorf("resumed is %t: %+v, %v", resumed, result, err)
			}
		})
	}
}
