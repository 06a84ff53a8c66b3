package drain

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

func TestNextStep(t *testing.T) {
	s := time.Second
	for name, tt := range map[string]struct {
		pod   podState
		front tier
		terms evacuation.Terms
		want  step
	}{
		"with time to spare a pod gets its own grace": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict},
		},
		"in reserve it is not asked before its last moment": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), Reserve: true},
			want: step{until: at(85)},
		},
		"and is evicted then": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(35), Reserve: true},
			want: step{kind: stepEvict},
		},
		"or deleted, if it was refused before": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 1}, terms: evacuation.Terms{Deadline: at(35), Reserve: true},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"in reserve without a deadline it is never asked": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Reserve: true},
		},
		"in reserve under patient terms it is asked at its last moment": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), Patient: true, Reserve: true},
			want: step{until: at(85)},
		},
		"in reserve a machine that stops already counts more": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), IgnoreBudgets: true, Reserve: true},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"or the one of the option": {
			pod: podState{grace: 10 * s}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict, grace: 10 * s},
		},
		"an option of zero is a second": {
			pod: podState{}, want: step{kind: stepEvict, grace: s},
		},
		"without a deadline nothing is forced": {
			pod: podState{grace: time.Hour, ownGrace: true, refused: 9}, want: step{kind: stepEvict},
		},
		"a refused pod is tried again later": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 1, retryAt: at(3)}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(3)},
		},
		"but no later than it is forced": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 1, retryAt: at(100)}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"at deadline - grace - margin a refused pod is deleted with its full grace": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5, retryAt: at(3)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"a second before it is not": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5, retryAt: at(3)}, terms: evacuation.Terms{Deadline: at(36)},
			want: step{until: at(1)},
		},
		"later it gets what is left": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5}, terms: evacuation.Terms{Deadline: at(12)},
			want: step{kind: stepDelete, grace: 10 * s},
		},
		"and never zero": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5}, terms: evacuation.Terms{Deadline: at(-1)},
			want: step{kind: stepDelete, grace: s},
		},
		"a grace longer than the notice is cut in the first eviction": {
			pod: podState{grace: 600 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(117)},
			want: step{kind: stepEvict, grace: 115 * s},
		},
		"a late eviction names the grace only if it differs": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(32)},
			want: step{kind: stepEvict},
		},
		"a pod whose evictions nobody has heard is evicted once it must be forced": {
			pod: podState{grace: 30 * s, ownGrace: true, unheard: 9, retryAt: at(3)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepEvict},
		},
		"again, but not at once": {
			pod: podState{grace: 30 * s, ownGrace: true, lateUnheard: 2, retryAt: at(1)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{until: at(1)},
		},
		"and deleted after three times": {
			pod: podState{grace: 30 * s, ownGrace: true, lateUnheard: 3}, terms: evacuation.Terms{Deadline: at(34)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"which is at once": {
			pod: podState{grace: 30 * s, ownGrace: true, lateUnheard: 3, retryAt: at(1)}, terms: evacuation.Terms{Deadline: at(34)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"a deletion that failed is tried again, not at once": {
			pod: podState{grace: 30 * s, refused: 1, failed: 1, retryAt: at(1)}, terms: evacuation.Terms{Deadline: at(20)},
			want: step{until: at(1)},
		},
		"where budgets are ignored the first request deletes": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), IgnoreBudgets: true},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"without a deadline budgets are not ignored": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 9}, terms: evacuation.Terms{IgnoreBudgets: true}, want: step{kind: stepEvict},
		},
		"a deletion under way is waited for": {
			pod: podState{grace: 30 * s, deletingSince: at(-9)}, terms: evacuation.Terms{Deadline: at(30)},
			want: step{until: at(1)},
		},
		"for ten seconds, then the pod is deleted once more": {
			pod: podState{grace: 30 * s, deletingSince: at(-10)}, terms: evacuation.Terms{Deadline: at(30)},
			want: step{kind: stepDelete, grace: 28 * s},
		},
		"but not where nothing is forced any more": {
			pod: podState{grace: 30 * s, deletingSince: at(-10)}, terms: evacuation.Terms{}, want: step{},
		},
		"an eviction under way is waited for": {
			pod: podState{grace: 30 * s, evictingSince: at(-20)}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"for ever, if there is no deadline": {
			pod: podState{grace: 30 * s, evictingSince: at(-20)}, want: step{},
		},
		"a pod that must be forced is deleted beside an eviction that is not answered": {
			pod: podState{grace: 30 * s, ownGrace: true, evictingSince: at(-20)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"which gets two seconds": {
			pod: podState{grace: 30 * s, ownGrace: true, evictingSince: at(-1)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{until: at(1)},
		},
		"also where budgets are ignored of a sudden": {
			pod: podState{grace: 30 * s, ownGrace: true, evictingSince: at(-1)}, terms: evacuation.Terms{Deadline: at(120), IgnoreBudgets: true},
			want: step{until: at(1)},
		},
		"what was accepted has to show in the watch": {
			pod: podState{grace: 30 * s, acceptedAt: at(-29)}, terms: evacuation.Terms{Deadline: at(10)},
			want: step{until: at(1)},
		},
		"if it does not, the pod is asked again": {
			pod: podState{grace: 30 * s, ownGrace: true, acceptedAt: at(-30)}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict},
		},
		"and deleted if it must be forced": {
			pod: podState{grace: 30 * s, ownGrace: true, acceptedAt: at(-30)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"a pod that is stopping in time is left alone": {
			pod: podState{grace: 30 * s, deletion: at(28)}, terms: evacuation.Terms{Deadline: at(30)},
			want: step{until: at(33)},
		},
		"one that is killed at the deadline itself is not": {
			pod: podState{grace: 30 * s, deletion: at(30)}, terms: evacuation.Terms{Deadline: at(30)},
			want: step{until: at(25)},
		},
		"and needs no second look without a deadline": {
			pod: podState{grace: 30 * s, deletion: at(30)}, want: step{},
		},
		"one whose end has passed, by a clock behind ours, is left alone for now too": {
			pod: podState{grace: 600 * s, deletion: at(-5)}, terms: evacuation.Terms{Deadline: at(100)},
			want: step{until: at(95)},
		},
		"and also killed just before the deadline": {
			pod: podState{grace: 600 * s, deletion: at(-5)}, terms: evacuation.Terms{Deadline: at(5)},
			want: step{kind: stepDelete, grace: s},
		},
		"one that would stop too late is left alone for now": {
			pod: podState{grace: 600 * s, deletion: at(500)}, terms: evacuation.Terms{Deadline: at(100)},
			want: step{until: at(95)},
		},
		"and killed just before the deadline": {
			pod: podState{grace: 600 * s, deletion: at(500)}, terms: evacuation.Terms{Deadline: at(5)},
			want: step{kind: stepDelete, grace: s},
		},
		"once": {
			pod: podState{grace: 600 * s, deletion: at(500), shortened: true}, terms: evacuation.Terms{Deadline: at(5)},
			want: step{},
		},
		"and again if that failed, not at once": {
			pod: podState{grace: 600 * s, deletion: at(500), failed: 1, retryAt: at(1)}, terms: evacuation.Terms{Deadline: at(5)},
			want: step{until: at(1)},
		},
		"critical pods wait for workloads": {
			pod: podState{tier: critical, grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"for ever, without a deadline": {
			pod: podState{tier: critical, grace: 30 * s, ownGrace: true}, want: step{},
		},
		"until the deadline is near": {
			pod: podState{tier: critical, grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepEvict},
		},
		"or the workloads are gone": {
			pod: podState{tier: critical, grace: 30 * s, ownGrace: true}, front: critical, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict},
		},
		"and so do those that a rule puts after the others": {
			pod: podState{tier: 7, grace: 30 * s, ownGrace: true}, front: 6, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"in their order": {
			pod: podState{tier: 7, grace: 30 * s, ownGrace: true}, front: 7, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict},
		},
		"workloads wait for those that leave first": {
			pod: podState{grace: 30 * s, ownGrace: true}, front: first, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"these wait for nobody": {
			pod: podState{tier: first, grace: 30 * s, ownGrace: true}, front: first, terms: evacuation.Terms{Deadline: at(120)},
			want: step{kind: stepEvict},
		},
		"what leaves last is not asked while there is time, though nobody else is there": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, front: last, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"its budget is asked at the last moment": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepEvict},
		},
		"and a pod that it keeps is deleted": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true, refused: 1, retryAt: at(1)}, terms: evacuation.Terms{Deadline: at(35)},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"without a deadline it is never asked": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, front: last, want: step{},
		},
		"where budgets are ignored it is deleted with the others": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), IgnoreBudgets: true},
			want: step{kind: stepDelete, grace: 30 * s},
		},
		"what leaves at the end waits for what leaves last": {
			pod: podState{tier: veryLast, grace: 30 * s, ownGrace: true}, front: last, terms: evacuation.Terms{Deadline: at(120)},
			want: step{until: at(85)},
		},
		"patient terms evict": {
			pod: podState{grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(120), Patient: true},
			want: step{kind: stepEvict},
		},
		"with all of the grace, though it is longer than the notice": {
			pod: podState{grace: 600 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(117), Patient: true},
			want: step{kind: stepEvict},
		},
		"and again, at the last moment as before": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5, retryAt: at(3)}, terms: evacuation.Terms{Deadline: at(35), Patient: true},
			want: step{until: at(3)},
		},
		"and after it": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5}, terms: evacuation.Terms{Deadline: at(1), Patient: true},
			want: step{kind: stepEvict},
		},
		"also where budgets are to be ignored": {
			pod: podState{grace: 30 * s, ownGrace: true, refused: 5}, terms: evacuation.Terms{Deadline: at(1), Patient: true, IgnoreBudgets: true},
			want: step{kind: stepEvict},
		},
		"nothing is deleted beside an eviction that hangs": {
			pod: podState{grace: 30 * s, evictingSince: at(-20)}, terms: evacuation.Terms{Deadline: at(1), Patient: true},
			want: step{},
		},
		"nor is a slow pod killed": {
			pod: podState{grace: 600 * s, deletion: at(500)}, terms: evacuation.Terms{Deadline: at(5), Patient: true},
			want: step{},
		},
		"they ask what leaves last at its last moment, and no more": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, terms: evacuation.Terms{Deadline: at(36), Patient: true},
			want: step{until: at(1)},
		},
		"whatever is still there": {
			pod: podState{tier: last, grace: 30 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(35), Patient: true},
			want: step{kind: stepEvict},
		},
		"as they ask the others": {
			pod: podState{tier: critical, grace: 30 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(35), Patient: true},
			want: step{kind: stepEvict},
		},
		"our own pod waits for the others": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(31)},
			want: step{until: at(1)},
		},
		"also where budgets are ignored": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(31), IgnoreBudgets: true},
			want: step{until: at(1)},
		},
		"but goes while the next leader has time to force them": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(30)},
			want: step{kind: stepEvict},
		},
		"and keeps to its budget until it has to give the lease away": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true, refused: 1, retryAt: at(30)}, front: workload, terms: evacuation.Terms{Deadline: at(30)},
			want: step{until: at(20)},
		},
		"with all of its grace": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true, refused: 1}, front: workload, terms: evacuation.Terms{Deadline: at(10)},
			want: step{kind: stepDelete, grace: 20 * s},
		},
		"also where its notice is over": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true}, front: workload, terms: evacuation.Terms{Deadline: at(-60), IgnoreBudgets: true},
			want: step{kind: stepEvict},
		},
		"and of which nobody takes anything": {
			pod: podState{tier: own, grace: 20 * s, ownGrace: true, deletion: at(20)}, terms: evacuation.Terms{Deadline: at(1)},
			want: step{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := nextStep(tt.pod, tt.front, tt.terms, now)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(step{})); diff != "" {
				t.Errorf("move (-want +got):\n%s", diff)
			}
		})
	}
}

// What must hold for every pod at every moment.
func TestNextStepNeverBreaksItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(name string, low, high int) time.Duration {
			return time.Duration(rapid.IntRange(low, high).Draw(t, name)) * time.Second
		}
		p := podState{
			tier:     tier(rapid.IntRange(int(first), int(own)).Draw(t, "tier")),
			grace:    seconds("grace", 0, 700),
			ownGrace: rapid.Bool().Draw(t, "own"),
			refused:  rapid.IntRange(0, 3).Draw(t, "refused"),
			failed:   rapid.IntRange(0, 3).Draw(t, "failed"),
			retryAt:  now.Add(seconds("retry", -10, 60)),
		}
		if rapid.Bool().Draw(t, "evicting") {
			p.evictingSince = now.Add(-seconds("evicting for", 2, 40))
		}
		if rapid.Bool().Draw(t, "stopping") {
			p.deletion = now.Add(seconds("deletion", -10, 700))
		}
		terms := evacuation.Terms{IgnoreBudgets: rapid.Bool().Draw(t, "ignore budgets"), Patient: rapid.Bool().Draw(t, "patient")}
		if rapid.Bool().Draw(t, "hard") {
			terms.Deadline = now.Add(seconds("deadline", -10, 700))
		}
		front := tier(rapid.IntRange(int(first), int(own)).Draw(t, "front"))
		m := nextStep(p, front, terms, now)
		left := terms.Deadline.Sub(now)
		switch {
		case m.kind == stepEvict && !p.evictingSince.IsZero():
			t.Fatalf("a second eviction beside the first: %+v", m)
		case m.kind == stepDelete && m.grace < time.Second:
			t.Fatalf("a deletion with grace %s", m.grace)
		case m.kind == stepDelete && (terms.Deadline.IsZero() || terms.Patient):
			t.Fatalf("forced without a deadline: %+v", m)
		case m.kind == stepEvict && terms.Patient && m.grace < p.grace && (!p.ownGrace || m.grace != 0):
			t.Fatalf("grace %s of %s, in patience", m.grace, p.grace)
		case m.kind == stepEvict && p.tier == last && (terms.Deadline.IsZero() || now.Before(terms.Deadline.Add(-p.grace-margin))):
			t.Fatalf("asked before its last moment: %+v", m)
		case p.tier == own && m.kind != stepWait && m.grace != p.graceNow(terms, now) && (!p.ownGrace || m.grace != 0):
			t.Fatalf("our own pod: %+v", m)
		case m.kind != stepWait && !terms.Deadline.IsZero() && !terms.Patient && p.tier != own && m.grace > max(left, time.Second) && now.After(terms.Deadline.Add(-p.grace-margin)):
			t.Fatalf("grace %s with %s left", m.grace, left)
		case m.kind == stepWait && !m.until.IsZero() && !m.until.After(now):
			t.Fatalf("waits until %s, which has passed", m.until)
		case m.kind == stepWait && terms.Patient && p.evictingSince.IsZero() && !now.Before(p.retryAt) && !terms.Deadline.IsZero() && p.deletion.IsZero() &&
			!now.Before(terms.Deadline.Add(-p.grace-margin)):
			t.Fatalf("waits although it is the last moment to ask")
		case m.kind == stepWait && !terms.Deadline.IsZero() && !terms.Patient && p.deletion.IsZero() && p.failed == 0 &&
			!now.Before(terms.Deadline.Add(-p.grace-margin)) && (p.tier != own || !now.Before(terms.Deadline.Add(-2*margin))):
			t.Fatalf("waits although it has to be forced")
		}
	})
}

func TestBackoffGrowsToItsBound(t *testing.T) {
	for n := 1; n < 100; n++ {
		if pause := backoff(n); pause < firstRetry || pause > lastRetry+lastRetry/5 {
			t.Fatalf("the pause after failure %d is %s", n, pause)
		}
	}
}

func BenchmarkPlanOf100Pods(b *testing.B) {
	pods := make([]podState, 100)
	for k := range pods {
		pods[k] = podState{grace: 30 * time.Second, ownGrace: true, refused: k % 3}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range pods {
			nextStep(p, workload, evacuation.Terms{Deadline: at(120)}, now)
		}
	}
}

// A pod that is asked a second before its end is killed then, whatever the clocks say of parts of a second.
func TestAPodThatHadASecondIsCutShort(t *testing.T) {
	asked := time.Unix(1000, 0)
	for _, tt := range []struct {
		had, left time.Duration
		want      bool
	}{
		{time.Second, 900 * time.Millisecond, true},
		{time.Second, 400 * time.Millisecond, false}, // it has stopped by itself
		{10 * time.Second, 9500 * time.Millisecond, true},
		{10 * time.Second, 8 * time.Second, false},
		{30 * time.Second, 30 * time.Second, false},
	} {
		p := podState{firstAcceptedAt: asked, killedAt: asked.Add(tt.had), grace: 30 * time.Second}
		if got := p.wasCutShort(asked.Add(tt.left)); got != tt.want {
			t.Errorf("had %s, left after %s: cut short is %t", tt.had, tt.left, got)
		}
	}
}

// Somebody else had it stop; the grace period that they gave counts, where that is the shorter one.
func TestAPodThatSomebodyElseStopsIsCutShortToo(t *testing.T) {
	begun := time.Unix(1000, 0)
	for given, want := range map[time.Duration]bool{5 * time.Minute: true, time.Hour: true, 70 * time.Second: false} {
		p := podState{grace: 5 * time.Minute, deletion: begun.Add(given), given: given}
		p.noteOthers()
		c := call{state: &p, step: step{kind: stepDelete, grace: time.Second}, shortens: true}
		c.accepted(evacuation.Terms{}, logr.Discard(), begun.Add(69*time.Second))
		if got := p.wasCutShort(begun.Add(70 * time.Second)); got != want {
			t.Errorf("given %s: cut short is %t", given, got)
		}
	}
}

func TestWhyAPodWasDeleted(t *testing.T) {
	noticed := time.Unix(1000, 0)
	terms := evacuation.Terms{NoticedAt: noticed, Deadline: noticed.Add(2 * time.Minute)}
	for want, tt := range map[string]struct {
		grace, after time.Duration
	}{
		"the deadline is near":    {30 * time.Second, 90 * time.Second},
		"the deadline has passed": {30 * time.Second, 121 * time.Second},
		"its grace period is longer than the notice, of which what refuses its eviction has had its share": {10 * time.Minute, time.Minute},
	} {
		if got := (podState{grace: tt.grace}).forcedWhy(terms, false, noticed.Add(tt.after)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
