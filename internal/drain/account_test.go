package drain

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// Claims are read for words alone. The hook is to be completed 5 s before it times out,
// whatever the API server does with these requests.
func TestWordsAboutVolumesDoNotOutlastTheDeadline(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db-0", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"},
			}}}
		})
		_, err := s.kube.StorageV1().VolumeAttachments().Create(s.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi"},
			Spec:       storagev1.VolumeAttachmentSpec{NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pvc-1")}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.kube.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(requestTimeout) // an API server that hangs
			return true, nil, context.DeadlineExceeded
		})
		s.watchVolumes()
		deadline := s.begin.Add(16 * time.Second)
		result, err := s.drain(Terms{Deadline: deadline}, nil)
		if late := time.Since(deadline); late > time.Second {
			t.Errorf("the drain ends %s after its deadline: %+v, %v", late, result, err)
		}
		time.Sleep(requestTimeout) // the request that hangs takes no context here
	})
}

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
			result, err := s.drain(Terms{Deadline: s.begin.Add(6 * time.Second)}, nil)
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
		r := newRun(s.drainer, &Request{Node: "node", Log: slog.New(slog.DiscardHandler), NodeState: s.look, Terms: Terms{CordonedAt: time.Now()}})
		_ = r.store.Replace([]any{pod}, "1")
		r.refresh(time.Now())
		_ = r.store.Delete(pod) // as readPod does
		r.refresh(time.Now())
		stopping := pod.DeepCopy()
		stopping.DeletionTimestamp = new(metav1.Now())
		_ = r.store.Update(stopping) // the watch is behind
		r.refresh(time.Now())
		_ = r.store.Delete(stopping)
		r.refresh(time.Now())
		r.countPods(nil)
		if n := r.result.Evicted + r.result.Forced + r.result.Ended; n != 1 {
			t.Errorf("one pod is counted %d times: %+v", n, r.result)
		}
	})
}
