package drain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// actor is a pod of a simulation.
func actor(name string, grace int64, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, e := range edit {
		e(p)
	}
	return p
}

// under puts a pod under budgets.
func under(budgets ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels["budgets"] = strings.Join(budgets, " ") }
}

func systemCritical(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) }

func withEmptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func simulationOf(terms evacuation.Terms, end time.Time, pods ...*corev1.Pod) Simulation {
	return Simulation{
		Pods: pods, Grace: -1, Terms: terms, Start: now, End: end, Self: types.NamespacedName{Namespace: "default", Name: "handler"},
		Budgets: func(p *corev1.Pod) []string { return strings.Fields(p.Labels["budgets"]) },
		Allowed: map[string]int{"one": 1},
	}
}

// outcomes has a line for each outcome.
func outcomes(all []PodOutcome) []string {
	var lines []string
	for _, f := range all {
		line := f.Pod.Name
		switch {
		case f.Stays:
			line += " stays: " + f.Why
		case f.Asked.IsZero():
			line += " is never asked"
		case f.Forced:
			line += fmt.Sprintf(" deleted at %s with %s", f.Asked.Sub(now), f.Grace)
		default:
			line += fmt.Sprintf(" evicted at %s with %s", f.Asked.Sub(now), f.Grace)
		}
		if f.Cut() {
			line += ", cut"
		}
		if len(f.Blocked) > 0 {
			line += ", blocked by " + strings.Join(f.Blocked, " ")
		}
		if !f.Gone.IsZero() {
			line += fmt.Sprintf(", gone at %s", f.Gone.Sub(now))
		}
		lines = append(lines, line)
	}
	return lines
}

func TestASimulationTellsWhatTheDrainWouldDo(t *testing.T) {
	two := evacuation.Terms{Deadline: at(120)}
	for name, tt := range map[string]struct {
		r    Simulation
		want []string
	}{
		"pods leave with their grace": {
			simulationOf(two, at(120), actor("b", 30), actor("a", 10)),
			[]string{"a evicted at 0s with 10s, gone at 10s", "b evicted at 0s with 30s, gone at 30s"},
		},
		"a budget lets one go, the next is forced in time": {
			simulationOf(two, at(120), actor("a", 30, under("one")), actor("b", 30, under("one"))),
			[]string{"a evicted at 0s with 30s, gone at 30s", "b deleted at 1m25s with 30s, blocked by one, gone at 1m55s"},
		},
		"two budgets on one pod block it": {
			simulationOf(two, at(120), actor("a", 30, under("one", "other"))),
			[]string{"a deleted at 1m25s with 30s, blocked by one other, gone at 1m55s"},
		},
		"a pod that does not run asks no budget": {
			simulationOf(two, at(120), actor("a", 30, under("none"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })),
			[]string{"a evicted at 0s with 0s, gone at 0s"},
		},
		"a grace longer than the notice is cut": {
			simulationOf(two, at(120), actor("a", 600)),
			[]string{"a evicted at 0s with 1m58s, cut, gone at 1m58s"},
		},
		"a pod that stops already is told to hurry": {
			simulationOf(two, at(120), actor("a", 600, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(500)} })),
			[]string{"a evicted at 0s with 1m56s, cut, gone at 1m56s"},
		},
		"a pod that stops already gets what is left to it, as it is": {
			simulationOf(two, at(120), actor("a", 30, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(20)} })),
			[]string{"a evicted at 0s with 20s, gone at 20s"},
		},
		"a pod that should have stopped long ago is not gone": {
			simulationOf(two, at(120), actor("b", 10), actor("a", 30, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(-3600)} })),
			[]string{"a evicted at 0s with 0s", "b evicted at 0s with 10s, gone at 10s"},
		},
		"critical pods wait for workloads": {
			simulationOf(two, at(120), actor("dns", 30, systemCritical), actor("web", 20)),
			[]string{"web evicted at 0s with 20s, gone at 20s", "dns evicted at 20s with 30s, gone at 50s"},
		},
		"where budgets are ignored everything is deleted": {
			simulationOf(evacuation.Terms{Deadline: at(60), IgnoreBudgets: true}, at(60), actor("a", 30, under("none"))),
			[]string{"a deleted at 0s with 30s, gone at 30s"},
		},
		"without a deadline nothing is forced": {
			simulationOf(evacuation.Terms{}, at(120), actor("a", 30, under("none")), actor("b", 600)),
			[]string{"b evicted at 0s with 10m0s", "a is never asked, blocked by none"},
		},
		"some stay, and our own is last": {
			simulationOf(two, at(120), actor("handler", 20), actor("cache", 30, withEmptyDir), actor("a", 10)),
			[]string{"a evicted at 0s with 10s, gone at 10s", "handler evicted at 10s with 20s, gone at 30s", "cache stays: it has an emptyDir volume: delete-local-data is false"},
		},
		"an empty node": {simulationOf(two, at(120)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, outcomes(tt.r.Run())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestASimulationLeavesTheBudgetsAsTheyWere(t *testing.T) {
	r := simulationOf(evacuation.Terms{Deadline: at(120)}, at(120), actor("a", 30, under("one")))
	r.Run()
	if r.Allowed["one"] != 1 {
		t.Errorf("the budget allows %d disruptions after a simulation", r.Allowed["one"])
	}
}
