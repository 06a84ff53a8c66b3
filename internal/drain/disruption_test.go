package drain

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// ownedBy gives a pod a Job of an API as its owner.
func ownedBy(version string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: "Job", Name: "owner", Controller: new(true)}}
	}
}

// patchStatus notes the patches of the status of pods, and answers them.
func (s *stage) patchStatus(answer func(pod string) error) {
	s.kube.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		p := action.(clienttesting.PatchAction)
		if p.GetSubresource() != "status" {
			s.Errorf("patch of %q", p.GetSubresource())
		}
		s.happened("patched %s", p.GetName())
		if err := answer(p.GetName()); err != nil {
			return true, nil, err
		}
		return false, nil, nil
	})
}

// conditionsOf are the types of the conditions of a pod.
func (s *stage) conditionsOf(name string) (all []string) {
	s.Helper()
	obj, err := s.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "ns", name)
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range obj.(*corev1.Pod).Status.Conditions {
		all = append(all, string(c.Type)+" "+c.Reason)
	}
	return all
}

func TestAPodOfAJobIsDisruptedBeforeItIsDeleted(t *testing.T) {
	play(t, func(s *stage) {
		s.patchStatus(func(string) error { return nil })
		s.refuse = budget
		s.stops["job"], s.stops["other"], s.stops["known"] = time.Hour, time.Hour, time.Hour
		s.pod("job", ownedBy("batch/v1"))
		s.pod("other", ownedBy("example.com/v1"))
		s.pod("known", ownedBy("batch/v1"), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"}}
		})
		go func() {
			if s.passes(95 * time.Second) {
				if got := strings.Join(s.conditionsOf("job"), ", "); got != "DisruptionTarget "+DisruptionReason {
					s.Errorf("the pod of the Job has the conditions %s", got)
				}
			}
		}()
		if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil); err != nil {
			s.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		var patched []string
		for k, event := range s.events {
			if strings.Contains(event, "patched") {
				patched = append(patched, event)
				if !strings.HasSuffix(event, " job") || k+1 == len(s.events) {
					s.Errorf("events %q", s.events)
				}
			}
		}
		if len(patched) != 1 || !strings.HasPrefix(patched[0], "1m25s") {
			s.Errorf("patches %q, want one of the pod of the Job, when it must be deleted; events %q", patched, s.events)
		}
	})
}

// Whatever becomes of the condition, the pod is deleted in time.
// A request in flight may end after the loss of the lease, and the deletion of a Job's pod is two requests.
func TestNoRequestBeginsAfterTheLossOfTheLease(t *testing.T) {
	play(t, func(s *stage) {
		s.refuse = budget // so that the pod is deleted late: the watch of the pods cannot begin while the fake answers
		s.pod("job", ownedBy("batch/v1"))
		ctx, cancel := context.WithCancelCause(s.Context())
		marked, deleted := false, false
		s.patchStatus(func(string) error {
			marked = true
			cancel(errors.New("the lease is lost"))
			time.Sleep(900 * time.Millisecond)
			return nil
		})
		s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			deleted = true
			return false, nil, nil
		})
		_, _ = s.drainIn(ctx, evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
		if !marked || deleted {
			t.Errorf("it is marked: %t, and its deletion begins: %t", marked, deleted)
		}
	})
}

func TestAPodOfAJobIsDeletedWithoutTheCondition(t *testing.T) {
	gr := corev1.Resource("pods")
	for name, tt := range map[string]struct {
		answer error
		warns  int
	}{
		"no right":    {answer: apierrors.NewForbidden(gr, "job", errors.New("no right")), warns: 1},
		"a webhook":   {answer: apierrors.NewInternalError(errors.New("failed calling webhook")), warns: 2},
		"it is gone":  {answer: apierrors.NewNotFound(gr, "job"), warns: 2},
		"it is older": {answer: nil},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				var log logtest.Log
				s.patchStatus(func(string) error { return tt.answer })
				for _, pod := range []string{"job", "job2"} {
					s.pod(pod, ownedBy("batch/v1"))
				}
				terms := evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), IgnoreBudgets: true}
				result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
					Node: "node", Terms: terms, Log: log.Logger(),
				})
				if err != nil || result.Forced != 2 {
					t.Errorf("Drain = %+v, %v, want two pods forced", result, err)
				}
				if got := len(log.Entries("", "level", "warn")); got != tt.warns {
					t.Errorf("%d warnings, want %d:\n%s", got, tt.warns, &log)
				}
			})
		})
	}
}

// The name is another pod's by now: the deletion does not even begin.
func TestTheConditionIsOnlyForThePodThatIsMeant(t *testing.T) {
	play(t, func(s *stage) {
		conflicts := 0
		s.patchStatus(func(pod string) error {
			if conflicts++; conflicts > 2 {
				return nil
			}
			return apierrors.NewConflict(corev1.Resource("pods"), pod, errors.New("Precondition failed: UID in precondition"))
		})
		s.pod("job", ownedBy("batch/v1"))
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), IgnoreBudgets: true}, nil)
		if err != nil || result.Forced != 1 || conflicts != 3 {
			t.Errorf("Drain = %+v, %v after %d conflicts", result, err, conflicts)
		}
	})
}
