package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodIsNotWaitedForWhoseKubeletIsNotThereToConfirmItsEnd(t *testing.T) {
	for name, test := range map[string]struct {
		clock time.Duration // of the API server, ahead of ours
		node  func(s *stage)
		want  time.Duration // at the earliest; it is looked at each recheckInterval whether it is there
	}{
		"two minutes after its end": {
			node: func(s *stage) { s.node.Ready = false }, want: 150 * time.Second,
		},
		"two minutes after the kubelet was last there": {
			node: func(s *stage) { s.after(65*time.Second, func(n *NodeState) { n.Ready = false }) }, want: 185 * time.Second,
		},
		"which counts anew when it is back in between": {
			node: func(s *stage) {
				s.node.Ready = false
				s.after(85*time.Second, func(n *NodeState) { n.Ready = true })
				s.after(105*time.Second, func(n *NodeState) { n.Ready = false })
			},
			want: 225 * time.Second,
		},
		"whatever the API server's clock says": {
			clock: -400 * time.Second, node: func(s *stage) { s.node.Ready = false }, want: 150 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.dead, s.clock = true, test.clock
				s.pod("a")
				test.node(s)
				result, err := s.drain(Terms{Deadline: s.begin.Add(48 * time.Hour)}, nil)
				took := time.Since(s.begin).Round(time.Second)
				s.wantEnd(result, err, Result{Unconfirmed: []string{"ns/a"}}, took)
				if took < test.want || took > test.want+2*recheckInterval {
					t.Errorf("took %s, want %s", took, test.want)
				}
				s.want(0, "0s evicted a with 30s")
			})
		})
	}
}

func TestCriticalPodsDoNotWaitForPodsThatNobodyConfirms(t *testing.T) {
	play(t, func(s *stage) {
		s.dead, s.node.Ready = true, false
		s.pod("a")
		s.pod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		result, err := s.drain(Terms{}, nil)
		s.wantEnd(result, err, Result{Unconfirmed: []string{"ns/a", "ns/critical"}}, 300*time.Second)
		s.want(0, "0s evicted a with 30s", "2m30s evicted critical with 30s")
	})
}

func TestAPodIsWaitedForAgainWhenItsKubeletIsBack(t *testing.T) {
	play(t, func(s *stage) {
		s.node.Ready = false
		s.pod("a", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(s.begin.Add(-time.Hour))) })
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.stops["slow"] = 300 * time.Second
		s.after(200*time.Second, func(n *NodeState) { n.Ready = true })
		result, err := s.drain(Terms{Deadline: s.begin.Add(400 * time.Second)}, nil)
		s.wantEnd(result, err, Result{Evicted: 1, Forced: 1}, 395*time.Second) // its kubelet stops it when it is told once more
	})
}

func TestVolumesOfPodsThatStayOrThatNobodyConfirmsAreNotWaitedFor(t *testing.T) {
	claims := func(claim string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}
		}
	}
	play(t, func(s *stage) {
		s.pod("dead", claims("dead"), func(p *corev1.Pod) { p.Finalizers = []string{"stands in for a kubelet that is not there"} })
		s.pod("gone", claims("gone"))
		s.node.Ready = false
		for _, name := range []string{"dead", "gone", "late"} {
			for _, object := range []any{
				&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}},
				&storagev1.VolumeAttachment{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec:       storagev1.VolumeAttachmentSpec{NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-" + name)}},
				},
			} {
				var err error
				switch o := object.(type) {
				case *corev1.PersistentVolumeClaim:
					_, err = s.kube.CoreV1().PersistentVolumeClaims("ns").Create(s.Context(), o, metav1.CreateOptions{})
				case *storagev1.VolumeAttachment:
					_, err = s.kube.StorageV1().VolumeAttachments().Create(s.Context(), o, metav1.CreateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		s.watchVolumes()
		go func() {
			s.passes(200 * time.Second) // the volumes are waited for by now
			if err := s.kube.StorageV1().VolumeAttachments().Delete(s.Context(), "gone", metav1.DeleteOptions{}); err != nil {
				s.Error(err)
			}
			s.passes(50 * time.Second)
			s.pod("late", claims("late"), tolerant)
		}()
		result, err := s.drain(Terms{}, nil)
		s.wantEnd(result, err, Result{Evicted: 1, Unconfirmed: []string{"ns/dead"}}, 250*time.Second)
	})
}
