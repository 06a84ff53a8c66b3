package drain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const argo = "workflows.argoproj.io/status"

func kept(p *corev1.Pod)      { p.Finalizers = []string{argo} }
func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

// beingDeleted gives a pod a deletionTimestamp, with what is left of its grace period.
func beingDeleted(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(now.Add(time.Minute))), &grace
	}
}

// containers gives a pod the states of its containers: running, terminated or waiting. One that begins with i is an init
// container, one with e an ephemeral one.
func containers(states ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, state := range states {
			kind, state, _ := strings.Cut(state, ":")
			var c corev1.ContainerStatus
			switch state {
			case "running":
				c.State.Running = &corev1.ContainerStateRunning{}
			case "terminated":
				c.State.Terminated = &corev1.ContainerStateTerminated{}
			default:
				c.State.Waiting = &corev1.ContainerStateWaiting{}
			}
			of := map[string]*[]corev1.ContainerStatus{
				"c": &p.Status.ContainerStatuses, "i": &p.Status.InitContainerStatuses, "e": &p.Status.EphemeralContainerStatuses,
			}[kind]
			*of = append(*of, c)
		}
	}
}

func TestAPodHasEndedWhenNothingOfItRuns(t *testing.T) {
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		ended bool
	}{
		{"it runs", actor("a", 30, containers("c:running")), false},
		{"it is pending", actor("a", 30), false},
		{"it has succeeded", actor("a", 30, succeeded), true},
		{"it has failed, and finalizers keep it", actor("a", 30, failed, kept), true},
		{"its containers have ended, and may start again", actor("a", 30, kept, containers("c:terminated")), false},
		{"its kubelet cleans up after it", actor("a", 30, succeeded, beingDeleted(30)), false},
		{"its containers have ended, and its kubelet cleans up", actor("a", 30, beingDeleted(30), containers("c:terminated")), false},
		{"it has succeeded and is deleted, and finalizers keep it", actor("a", 30, succeeded, kept, beingDeleted(30)), true},
		{"the kubelet has confirmed its end", actor("a", 30, kept, beingDeleted(0)), true},
		{"the same, with the states of its containers", actor("a", 30, kept, beingDeleted(0), containers("i:terminated", "c:waiting")), true},
		{"it was deleted by force, and runs", actor("a", 30, kept, beingDeleted(0), containers("c:running")), false},
		{"its containers have ended", actor("a", 30, kept, beingDeleted(30), containers("i:terminated", "c:terminated", "c:terminated")), true},
		{"one of them still runs", actor("a", 30, kept, beingDeleted(30), containers("c:terminated", "c:running")), false},
		{"one of them is to start", actor("a", 30, kept, beingDeleted(30), containers("c:terminated", "c:waiting")), false},
		{"a sidecar still runs", actor("a", 30, kept, beingDeleted(30), containers("i:running", "c:terminated")), false},
		{"a debugger still runs", actor("a", 30, kept, beingDeleted(30), containers("c:terminated", "e:running")), false},
		{"nothing is known of its containers", actor("a", 30, kept, beingDeleted(30)), false},
	} {
		if got := evacuation.Ended(tt.pod); got != tt.ended {
			t.Errorf("%s: ended %t", tt.name, got)
		}
		if got := evacuation.Ended(new(PodTrimmer).Trim(tt.pod, &decision.Rules{})); got != tt.ended {
			t.Errorf("%s: ended %t, trimmed", tt.name, got)
		}
	}
}

// What has ended is waited for a moment, with a deadline or without.
func TestWhatHasEndedIsNotWaitedForThoughFinalizersKeepIt(t *testing.T) {
	for name, tt := range map[string]struct {
		edit   []func(*corev1.Pod)
		terms  time.Duration // to the deadline; 0: none
		asked  []string
		result evacuation.Result
		took   time.Duration
	}{
		"it had ended before": {
			[]func(*corev1.Pod){kept, succeeded}, 85 * time.Second, nil, evacuation.Result{Ended: 1}, endedTime,
		},
		"it had ended before, and there is no deadline": {
			[]func(*corev1.Pod){kept, succeeded}, 0, nil, evacuation.Result{Ended: 1}, endedTime,
		},
		"it had ended before, and the deadline is nearer": {
			[]func(*corev1.Pod){kept, succeeded}, 3 * time.Second, nil, evacuation.Result{Ended: 1}, margin,
		},
		"somebody has deleted it, and its kubelet has confirmed that": {
			[]func(*corev1.Pod){kept, beingDeleted(0)}, 85 * time.Second, nil, evacuation.Result{Ended: 1}, endedTime,
		},
		"it ends when it is evicted": {
			[]func(*corev1.Pod){kept}, 85 * time.Second, []string{"0s evicted a with 30s"}, evacuation.Result{Evicted: 1}, 20*time.Second + endedTime,
		},
		"it ends when it is evicted, and there is no deadline": {
			[]func(*corev1.Pod){kept}, 0, []string{"0s evicted a with 30s"}, evacuation.Result{Evicted: 1}, 20*time.Second + endedTime,
		},
		"it ends just before the deadline": {
			[]func(*corev1.Pod){kept}, 22 * time.Second, []string{"0s evicted a with 20s"}, evacuation.Result{Evicted: 1}, 22 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.stops["a"] = 20 * time.Second
				s.pod("a", tt.edit...)
				told := s.told()
				var terms evacuation.Terms
				if tt.terms > 0 {
					terms.Deadline = s.begin.Add(tt.terms)
				}
				result, err := s.drain(terms, nil)
				s.wantEnd(result, err, tt.result, tt.took)
				s.want(0, tt.asked...)
				if len(*told)+len(result.Record.Kept) > 0 {
					t.Errorf("told %q, kept by %+v", *told, result.Record.Kept)
				}
			})
		})
	}
}

func TestAFinalizerThatIsTakenOffInSecondsIsNoNews(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("counted", func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} })
		s.stops["counted"] = 20 * time.Second
		time.AfterFunc(22*time.Second, func() {
			if err := s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "counted"); err != nil {
				s.Error(err)
			}
		})
		told := s.told()
		log := s.drainLogged(evacuation.Terms{})
		if took := time.Since(s.begin).Round(time.Second); took != 22*time.Second {
			t.Errorf("took %s", took)
		}
		if lines := log.Said("pods are not waited for any more: they have ended, and their objects are still there"); len(lines)+len(*told) > 0 {
			t.Errorf("%q, %q", lines, *told)
		}
	})
}

func TestPodsThatHaveEndedAreNamedOnceWithTheirFinalizers(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", kept, succeeded)
		s.pod("b", succeeded, func(p *corev1.Pod) { p.Finalizers = []string{argo, "example.com/audit"} })
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(90)) })
		s.stops["slow"] = 80 * time.Second
		log := s.drainLogged(evacuation.Terms{})
		lines := log.Said("pods are not waited for any more: they have ended, and their objects are still there")
		for _, want := range []string{"ns/a: " + argo, "ns/b: " + argo + ", example.com/audit"} {
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "pods=2 ") || !strings.Contains(lines[0], want) {
				t.Errorf("it says %q, want %q", lines, want)
			}
		}
		if waits := log.Said("waiting for pods to leave"); len(waits) != 1 || !strings.HasPrefix(waits[0], `pods=1 why="ns/slow: `) {
			t.Errorf("it waits for %q", waits)
		}
	})
}

func TestWhatHasEndedDoesNotDelayOtherPods(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", kept)
		s.pod("dns", systemCritical)
		s.stops["a"], s.stops["dns"] = 20*time.Second, 10*time.Second
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 30*time.Second)
		s.want(0, "0s evicted a with 30s", "20s evicted dns with 30s")
	})
}

// kubectl's drain deletes them, too.
func TestWhatHasEndedAndNothingKeepsIsEvicted(t *testing.T) {
	t.Run("at once, though it is critical to the system", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("critical", succeeded, systemCritical)
			s.pod("slow")
			s.stops["slow"] = 30 * time.Second
			result, err := s.drain(evacuation.Terms{}, nil)
			s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 30*time.Second)
			slices.Sort(s.events)
			s.want(0, "0s evicted critical with 30s", "0s evicted slow with 30s")
		})
	})
	t.Run("and not waited for if that is refused", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a", succeeded)
			s.refuse = func(string) *metav1.Status { return deniedBy("pods.example.com") }
			result, err := s.drain(evacuation.Terms{}, nil)
			s.wantEnd(result, err, evacuation.Result{Ended: 1}, endedTime)
		})
	})
}

// A restarted container is one that the kubelet started before it had heard of the deletion.
func TestAPodOfWhichAContainerRunsAgainIsWaitedFor(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", kept, beingDeleted(90), containers("c:terminated"))
		time.AfterFunc(3*time.Second, func() { s.edit("a", containers("c:running")) })
		time.AfterFunc(60*time.Second, func() { s.edit("a", succeeded) })
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Ended: 1}, 60*time.Second+endedTime)
	})
}

func TestWhatHasEndedIsNotLostWithItsMachine(t *testing.T) {
	for name, after := range map[string]time.Duration{"before the drain has begun": 0, "while it is waited for": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a", kept, succeeded)
				s.pod("b", runsOn)
				ctx := s.goneAfter(after)
				if after == 0 {
					<-ctx.Done()
				}
				result, err := s.drainIn(ctx, evacuation.Terms{}, nil)
				if err != nil || !slices.Equal(result.Lost, []string{"ns/b"}) {
					t.Errorf("%+v, %v", result, err)
				}
				if left, err := s.drainer.Remaining(s.Context(), "node", s.rules); err != nil || !slices.Equal(left, []string{"ns/b"}) {
					t.Errorf("remaining: %q, %v", left, err)
				}
			})
		})
	}
}

func TestTheProgressOfADrainSaysWhatKeepsAPodThatHasEnded(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", kept, succeeded)
		s.pod("slow")
		s.stops["slow"] = 20 * time.Second
		asked := make(chan chan<- evacuation.Progress)
		told := make(chan evacuation.Progress, 2)
		go func() {
			for range 2 {
				s.passes(4 * time.Second)
				answer := make(chan evacuation.Progress, 1)
				asked <- answer
				told <- <-answer
			}
		}()
		_, err := s.drainer.Drain(s.Context(), &evacuation.Request{
			Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, NodeState: s.look, Asked: asked, Log: s.log(),
		})
		if err != nil {
			t.Fatal(err)
		}
		first, second := <-told, <-told
		want := overview.Wait{
			Cause: overview.Finalizer, Name: argo, Why: "it has ended, and is kept by its finalizers: " + argo, Pods: 1, Pod: "ns/a",
		}
		at := slices.IndexFunc(first.Waits, func(w overview.Wait) bool { return w.Cause == overview.Finalizer })
		if at < 0 {
			t.Fatalf("%+v", first)
		}
		got := first.Waits[at]
		if until := got.Until.Sub(s.begin).Round(time.Second); until != endedTime {
			t.Errorf("until %s", until)
		}
		got.Until = time.Time{}
		if diff := cmp.Diff(want, got); diff != "" || first.Pods.Left != 2 {
			t.Errorf("%+v (-want +got):\n%s", first.Pods, diff)
		}
		if p := second.Pods; p != (overview.Pods{Left: 1, Gone: 1}) {
			t.Errorf("then %+v", p)
		}
	})
}
