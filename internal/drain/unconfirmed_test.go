package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

func TestAPodIsNotWaitedForWhoseEndNobodyConfirms(t *testing.T) {
	for name, test := range map[string]struct {
		clock time.Duration // of the API server, ahead of ours
		pod   func(p *corev1.Pod)
		node  func(s *stage)
		want  time.Duration // at the earliest; it is looked at each recheckInterval whether it is there
	}{
		"two minutes after its end": {
			node: func(s *stage) { s.node.Ready = false }, want: 150 * time.Second,
		},
		"two minutes after the kubelet was last there": {
			node: func(s *stage) { s.after(65*time.Second, func(n *evacuation.NodeState) { n.Ready = false }) }, want: 185 * time.Second,
		},
		"which counts anew when it is back in between": {
			node: func(s *stage) {
				s.node.Ready = false
				s.after(85*time.Second, func(n *evacuation.NodeState) { n.Ready = true })
				s.after(105*time.Second, func(n *evacuation.NodeState) { n.Ready = false })
			},
			want: 225 * time.Second,
		},
		"whatever the API server's clock says": {
			clock: -400 * time.Second, node: func(s *stage) { s.node.Ready = false }, want: 150 * time.Second,
		},
		"nor on a node that is ready: its containers do not stop": {node: func(*stage) {}, want: 150 * time.Second},
		"nor one that was stopping long before": {
			pod:  func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(-time.Hour))) },
			node: func(*stage) {}, want: 120 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.dead, s.clock = true, test.clock
				asked := []string{"0s evicted a with 30s"}
				if test.pod != nil {
					asked = nil // it stops already
					s.pod("a", test.pod)
				} else {
					s.pod("a")
				}
				test.node(s)
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(48 * time.Hour)}, nil)
				took := time.Since(s.begin).Round(time.Second)
				s.wantEnd(result, err, evacuation.Result{Unconfirmed: []string{"ns/a"}}, took)
				if took < test.want || took > test.want+2*recheckInterval {
					t.Errorf("took %s, want %s", took, test.want)
				}
				s.want(0, asked...)
			})
		})
	}
}

// By the API server's clock its grace is over, by ours it may have begun at any time before we saw it.
func TestAPodThatWasStoppingBeforeHasItsWholeGraceOnAReadyNode(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(s.begin.Add(300*time.Second))), new(int64(600))
		})
		s.ends("a", 590*time.Second)
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Ended: 1}, 590*time.Second)
	})
}

// Kubelets do not hear of deletions while the API server is away, and their nodes seem to be ready.
func TestTheEndOfAPodFollowsADeletionThatIsShortened(t *testing.T) {
	pod := func(grace int64, end time.Time) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(end)), DeletionGracePeriodSeconds: new(grace)}}
	}
	p := newPodState(&corev1.Pod{}, -1, types.NamespacedName{}, at(0))
	for _, update := range []struct {
		pod       *corev1.Pod
		now, want time.Time
	}{
		{pod(600, at(0)), at(0), at(600)}, // the API server's clock is behind
		{pod(600, at(0)), at(5), at(600)},
		{pod(1, at(1)), at(10), at(11)},
	} {
		p.update(update.pod, update.now)
		if end := p.stopsAt(); !end.Equal(update.want) {
			t.Errorf("at %s: it ends at %s, want %s", update.now, end, update.want)
		}
	}
}

func TestAPodOfAReadyNodeIsWaitedForWhileTheAPIServerIsAway(t *testing.T) {
	for _, tt := range []struct {
		grace                  int64
		away, back, ends, want time.Duration
	}{
		{30, time.Second, 300 * time.Second, 330 * time.Second, 450 * time.Second}, // the other is not waited for then
		{300, time.Second, 500 * time.Second, 780 * time.Second, 920 * time.Second},
		{300, 415 * time.Second, 425 * time.Second, 100 * time.Second, 430 * time.Second}, // a call fails
		{300, 410 * time.Second, 436 * time.Second, 700 * time.Second, 850 * time.Second}, // more of them do
	} {
		play(t, func(s *stage) {
			s.dead = true
			s.pod("a", graced(tt.grace))
			s.pod("b", graced(tt.grace))
			s.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				since := time.Since(s.begin)
				return since > tt.away && since < tt.back, nil, errors.New("connection refused")
			})
			s.ends("a", tt.ends)
			result, err := s.drain(evacuation.Terms{}, nil)
			took := time.Since(s.begin).Round(time.Second)
			s.wantEnd(result, err, evacuation.Result{Evicted: 1, Unconfirmed: []string{"ns/b"}}, took)
			if took < tt.want || took > tt.want+2*recheckInterval {
				t.Errorf("grace %d s: it took %s, want %s", tt.grace, took, tt.want)
			}
		})
	}
}

// Each answer is slow, and all come.
func TestManyOverduePodsAreAskedForOneAfterTheOther(t *testing.T) {
	play(t, func(s *stage) {
		s.dead = true
		var want evacuation.Result
		for k := range 20 {
			name := fmt.Sprintf("p%02d", k)
			s.pod(name)
			want.Unconfirmed = append(want.Unconfirmed, "ns/"+name)
		}
		s.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if time.Since(s.begin) > time.Second {
				s.passes(time.Second)
			}
			return false, nil, nil
		})
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(48 * time.Hour)}, nil)
		took := time.Since(s.begin).Round(time.Second)
		s.wantEnd(result, err, want, took)
		if took > 200*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestCriticalPodsDoNotWaitForPodsThatNobodyConfirms(t *testing.T) {
	play(t, func(s *stage) {
		s.dead, s.node.Ready = true, false
		s.pod("a")
		s.pod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Unconfirmed: []string{"ns/a", "ns/critical"}}, 300*time.Second)
		s.want(0, "0s evicted a with 30s", "2m30s evicted critical with 30s")
	})
}

func TestAPodIsWaitedForAgainWhenItsKubeletIsBack(t *testing.T) {
	play(t, func(s *stage) {
		s.node.Ready = false
		s.pod("a", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(s.begin.Add(-time.Hour))) })
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.stops["slow"] = 300 * time.Second
		s.after(200*time.Second, func(n *evacuation.NodeState) { n.Ready = true })
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(310 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1, Forced: 1}, 305*time.Second) // its kubelet stops it when it is told once more
	})
}
