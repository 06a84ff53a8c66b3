package drain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// ask asks a drain for its progress at a moment.
func (s *stage) ask(asked chan<- chan<- evacuation.Progress, at time.Duration) (p evacuation.Progress) {
	s.Helper()
	if !s.passes(at - time.Since(s.begin)) {
		return p
	}
	reply := make(chan evacuation.Progress, 1)
	select {
	case asked <- reply:
		return <-reply
	case <-time.After(time.Second):
		s.Errorf("no answer at %s", at)
	}
	return p
}

// asking drains while progress is asked for at the moments.
func (s *stage) asking(terms evacuation.Terms, at ...time.Duration) (answers []evacuation.Progress, result *evacuation.Result) {
	s.Helper()
	asked := make(chan chan<- evacuation.Progress)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, moment := range at {
			answers = append(answers, s.ask(asked, moment))
		}
	}()
	terms.CordonedAt = s.begin
	result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
		Node: "node", Terms: terms, NodeState: s.look, Log: logr.Discard(), Asked: asked,
	})
	if err != nil {
		s.Error(err)
	}
	<-done
	return answers, result
}

func TestADrainTellsWhatItWaitsForAndRemembersIt(t *testing.T) {
	play(t, func(s *stage) {
		for _, name := range []string{"db-0", "db-1", "slow", "critical"} {
			s.pod(name, func(p *corev1.Pod) {
				switch name {
				case "slow":
					p.Spec.TerminationGracePeriodSeconds = new(int64(300))
				case "critical":
					p.Spec.Priority = new(int32(2_000_000_000))
				}
			})
		}
		s.stops["slow"] = 100 * time.Second
		s.refuse = func(pod string) *metav1.Status {
			if pod == "db-0" || pod == "db-1" {
				return refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")
			}
			return nil
		}
		deadline := s.begin.Add(2 * time.Minute)
		answers, result := s.asking(evacuation.Terms{Deadline: deadline}, 20*time.Second, 95*time.Second)
		const budget = "PodDisruptionBudget ns/db needs 2 healthy pods and has 2"
		want := []overview.Wait{
			{Cause: overview.Budget, Name: "ns/db", Why: budget, Pods: 2, Pod: "ns/db-0", Until: deadline.Add(-35 * time.Second)},
			{Cause: overview.Grace, Why: "grace until 00:01:58Z; it may need until 00:05:00Z; the machine ends 00:02:00Z", Pods: 1, Pod: "ns/slow", Until: deadline.Add(10*time.Millisecond - killTime)},
			{Cause: overview.Turn, Why: "it is critical to the system, and goes after the others", Pods: 1, Pod: "ns/critical"},
		}
		if diff := cmp.Diff(want, answers[0].Waits); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(overview.Pods{Left: 4}, answers[0].Pods); diff != "" {
			t.Errorf("pods (-want +got):\n%s", diff)
		}
		if got := answers[1].Pods; got.Forced != 2 || got.Gone < 2 || got.Left+got.Gone != 4 {
			t.Errorf("later %+v", got)
		}
		record := result.Record
		if diff := cmp.Diff([]overview.Refusal{{Cause: overview.Budget, Name: "ns/db", Why: budget, Pods: 2}}, record.Kept); diff != "" {
			t.Errorf("kept by (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"ns/db-0", "ns/db-1"}, record.ForcedPods); diff != "" {
			t.Errorf("forced (-want +got):\n%s", diff)
		}
		if !record.FirstAsked.Equal(s.begin) || record.LastAsked.Before(deadline.Add(-40*time.Second)) || record.PodsGone.After(deadline) {
			t.Errorf("%+v", record)
		}
	})
}

// Somebody else has deleted it, and nothing is forced.
func TestADrainTellsThatItsMachineEndsBeforeAPod(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("slow", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(s.begin.Add(10*time.Minute))), new(int64(600))
		})
		answers, _ := s.asking(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute), Patient: true}, 20*time.Second)
		const want = "grace until 00:10:00Z; the machine ends 00:02:00Z"
		if w := answers[0].Waits; len(w) != 1 || w[0].Why != want {
			t.Errorf("%+v, want %q", w, want)
		}
	})
}

// Five pods wait for the one that a budget keeps.
func TestWhatRefusesComesBeforeWhatWaitsForIt(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db-0")
		for k := range 5 {
			s.pod(fmt.Sprint("critical-", k), func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		}
		s.refuse = func(string) *metav1.Status {
			return refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")
		}
		answers, _ := s.asking(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute)}, 20*time.Second)
		if w := answers[0].Waits; len(w) != 2 || w[0].Cause != overview.Budget || w[1].Pods != 5 {
			t.Errorf("it waits for %+v, want the budget first", w)
		}
	})
}

// Nothing of the drain is done, so somebody has to look; not at one failure, which passes.
func TestADrainWhosePodsCannotBeListedSaysWhy(t *testing.T) {
	play(t, func(s *stage) {
		s.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(`User "handler" cannot list resource "pods"`))
		})
		answers, result := s.asking(evacuation.Terms{Deadline: s.begin.Add(time.Minute)}, 5*time.Second, 20*time.Second)
		const why = `the pods of the node cannot be listed: forbidden: User "handler" cannot list resource "pods"`
		for k, cause := range []overview.Cause{overview.List, overview.FailingList} {
			if diff := cmp.Diff([]overview.Wait{{Cause: cause, Why: why}}, answers[k].Waits); diff != "" {
				t.Errorf("answer %d (-want +got):\n%s", k, diff)
			}
		}
		if diff := cmp.Diff([]overview.Refusal{{Cause: overview.FailingList, Why: why}}, result.Record.Kept); diff != "" || result.Unlisted == nil || result.Unlisted.Why != why {
			t.Errorf("kept by (-want +got):\n%s\n%+v", diff, result.Unlisted)
		}
	})
}

// The gate has one place, and another drain holds it.
func TestADrainThatWaitsAtTheGateSaysSo(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web")
		gate := pace.NewGate(1, 1)
		s.drainer.Gate = gate
		release, err := gate.Enter(s.Context(), pace.Priority{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if s.passes(20 * time.Second) {
				release(0)
			}
		}()
		answers, result := s.asking(evacuation.Terms{}, 10*time.Second)
		if len(answers[0].Waits) != 1 || answers[0].Waits[0].Cause != overview.Gate || answers[0].Listed || result.Evicted != 1 {
			t.Errorf("%+v, then %+v", answers[0], result)
		}
	})
}

// A drain that is called off leaves its pods where they are: there is no slack to tell of.
func TestPodsAreNotGoneWhenTheirDrainIsCalledOff(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web")
		s.refuse = func(string) *metav1.Status {
			return refusedBy("The disruption budget web needs 1 healthy pods and has 1 currently")
		}
		ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
		defer cancel()
		result, err := s.drainIn(ctx, evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(time.Hour)}, nil)
		if err == nil || !result.Record.PodsGone.IsZero() || result.Record.FirstAsked.IsZero() {
			t.Errorf("%v: %+v", err, result.Record)
		}
	})
}
