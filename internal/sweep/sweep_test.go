package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/smithy-go"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/search"
)

const (
	interval = 30 * time.Second
	ours     = "i-0123456789abcdef0" // an instance of a Node
	theirs   = "i-0fedcba9876543210" // one of none
)

var oneHook = map[string][]asg.TerminationHook{"workers": {{Name: "drain"}}}

// world is Auto Scaling and the cluster.
type world struct {
	mu       sync.Mutex
	waiting  []asg.Waiting
	hooks    map[string][]asg.TerminationHook // by group
	err      error                            // of each call
	hooksErr map[string]error                 // of the hooks of a group
	nodes    []string                         // instances
	told     bool                             // by a notice
	event    time.Time                        // of the notice that has told of the termination; zero: none has
	over     bool                             // the hook was completed already
	idle     bool                             // the notice asks for nothing
	foreign  bool                             // the instance is not this cluster's
	waits    int                              // how often it was asked whether a hook waits
	names    []string                         // of the hooks to complete
	noQueue  bool
	fails    int  // how many of the next notices fail
	hangs    bool // notices take as long as the term
	handled  []notice.Notice
	retained []string
	swept    []error
	kept     int
	lost     int
	asked    []time.Duration // when, since the start
	start    time.Time
	log      logtest.Log
	sweep    *Sweep
}

func (w *world) Waiting(_ context.Context, visit func(asg.Waiting)) error {
	w.mu.Lock()
	waiting, err := slices.Clone(w.waiting), w.err
	w.asked = append(w.asked, time.Since(w.start))
	w.mu.Unlock()
	for _, i := range waiting {
		visit(i)
	}
	return err
}

func (w *world) TerminationHooks(_ context.Context, group string) ([]asg.TerminationHook, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hooks[group], cmp.Or(w.hooksErr[group], w.err)
}

func (w *world) Waits(context.Context, intent.Hook) (waits, ended bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits++
	return !w.over, w.over, nil
}

func (w *world) Acts(context.Context, notice.Notice) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.foreign, nil
}

func (w *world) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if !idle {
		acts()
	}
	w.mu.Lock()
	w.handled = append(w.handled, n)
	fails := w.fails > 0
	if fails {
		w.fails--
	}
	hangs := w.hangs
	w.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	if fails {
		return errors.New("not now")
	}
	return context.Cause(ctx)
}

func (w *world) HasNode(id string) bool { return slices.Contains(w.nodes, id) }

func (w *world) Terminates(_ string, since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.event.IsZero() && !w.event.Before(since)
}

func (w *world) Told(intent.Hook) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

func (w *world) Retained(id, _ string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retained = append(w.retained, id)
}

func (w *world) Swept(retained int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept, w.swept = retained, append(w.swept, err)
}

func (w *world) Unannounced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost++
}

// has reports whether there were so many sweeps. What the story has read and written before
// is in order with what the sweep does after.
func (w *world) has(sweeps int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked) >= sweeps
}

// play runs a sweep until the end of the test's story, in virtual time.
func play(t *testing.T, w *world, story func(after func(sweeps int))) {
	synctest.Test(t, func(t *testing.T) {
		w.start = time.Now()
		s := &Sweep{
			Groups: w, Handler: w, HookNames: w.names, NoQueue: w.noQueue,
			Interval: interval, Log: w.log.Logger(), Metrics: w,
		}
		w.sweep = s
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		story(func(sweeps int) {
			for want := len(w.asked) + sweeps; !w.has(want); {
				time.Sleep(time.Second)
				synctest.Wait()
			}
		})
		stop()
		<-ended
	})
}

// Alerts count hooks whose notices were lost.
func TestWithoutAQueueNoNoticeOfAHookIsLost(t *testing.T) {
	w := &world{nodes: []string{ours}, hooks: oneHook, waiting: []asg.Waiting{{Instance: ours, Group: "workers"}}, noQueue: true}
	w.event = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) // an earlier leader's sweep has told of the termination, not of all its hooks
	play(t, w, func(after func(int)) {
		after(3)
		if log := w.log.String(); len(w.handled) != 1 || w.lost > 0 || strings.Contains(log, "WARN") || !strings.Contains(log, "a lifecycle hook waits") {
			t.Errorf("handled %+v, counted %d, and the log says %s", w.handled, w.lost, log)
		}
	})
}

func TestAHookThatWaitsAtTwoSweepsIsHandledOnce(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: map[string][]asg.TerminationHook{"workers": {{Name: "drain"}, {Name: "others", Target: "arn:aws:sns:::others"}}},
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}, {Instance: theirs, Group: "workers"}},
	}
	play(t, w, func(after func(int)) {
		if after(1); len(w.handled) > 0 {
			t.Fatalf("its notice had no time to come: %+v", w.handled)
		}
		if after(3); len(w.handled) != 1 || w.lost != 1 {
			t.Fatalf("handled %+v, counted %d", w.handled, w.lost)
		}
		first, second := w.start.Add(w.asked[0]).UTC(), w.start.Add(w.asked[1]).UTC()
		want := notice.Notice{
			Kind: notice.ASGTerminate, ID: "sweep-drain-" + first.Format(time.RFC3339), Time: second,
			Instances: []string{ours}, Hook: notice.Hook{Group: "workers", Name: "drain"},
		}
		if diff := gocmp.Diff(want, w.handled[0]); diff != "" || w.asked[1] > 2*interval*11/10 {
			t.Errorf("%s after the start, notice (-want +got):\n%s", w.asked[1], diff)
		}

		// It leaves, comes back and is terminated again.
		w.waiting = nil
		after(1)
		w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
		if after(2); len(w.handled) != 2 || w.handled[0].ID == w.handled[1].ID {
			t.Errorf("the next action: handled %+v", w.handled)
		}
	})
	for k := 1; k < len(w.asked); k++ {
		if pause := w.asked[k] - w.asked[k-1]; pause < interval || pause > interval*11/10+time.Second {
			t.Errorf("%s between two sweeps", pause)
		}
	}
}

// Its root volume is replaced, and it is terminated right after that: no sweep comes in between.
func TestAnInstanceThatWaitsForSomethingElseWaitsForAnotherAction(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers", ReplacesRoot: true}},
	}
	play(t, w, func(after func(int)) {
		after(2)
		w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
		if after(1); len(w.handled) != 1 {
			t.Fatalf("the next notice had no time to come: handled %+v", w.handled)
		}
		after(2)
	})
	if len(w.handled) != 2 || w.handled[0].ID == w.handled[1].ID ||
		w.handled[0].Hook.Action != notice.ReplaceRootVolume || w.handled[1].Hook.Action != "" {
		t.Errorf("handled %+v", w.handled)
	}
}

// Without names, a notice about one hook leaves the others of the action to their owners, and no hook of
// an action that comes later.
func TestANoticeCountsForItsOwnActionAlone(t *testing.T) {
	w := &world{nodes: []string{ours}, hooks: oneHook}
	play(t, w, func(after func(int)) {
		after(2)
		w.event = time.Now().Add(-5 * time.Second) // AWS's clock is behind
		w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
		if after(4); len(w.handled) > 0 {
			t.Fatalf("a notice has told of the action: handled %+v", w.handled)
		}
		w.waiting = nil
		after(2)
		w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
		if after(2); len(w.handled) != 1 {
			t.Errorf("the next action: handled %+v", w.handled)
		}
	})
}

// Its Node is deleted meanwhile, and another one comes.
func TestANoticeCountsForTheActionWhateverNodesTheInstanceHas(t *testing.T) {
	w := &world{nodes: []string{ours}, hooks: oneHook}
	play(t, w, func(after func(int)) {
		after(2)
		w.event = time.Now()
		w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
		after(2)
		w.nodes = nil
		after(3)
		w.nodes = []string{ours}
		after(3)
	})
	if len(w.handled) > 0 {
		t.Errorf("handled %+v", w.handled)
	}
}

// Nobody knows whether the instance was waiting before the first sweep.
func TestANoticeOfAnyAgeCountsForAnActionThatIsAsOldAsTheTerm(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook, event: time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC),
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) { after(4) })
	if len(w.handled) > 0 {
		t.Errorf("handled %+v", w.handled)
	}
}

func TestWhatIsNotLostIsLeftAlone(t *testing.T) {
	for name, w := range map[string]*world{
		"a notice has told of the termination":       {told: true},
		"Auto Scaling does not wait for the hook":    {over: true},
		"the hook is another program's, by its name": {names: []string{"ours"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.nodes, w.hooks = []string{ours}, oneHook
			w.waiting = []asg.Waiting{{Instance: ours, Group: "workers"}}
			play(t, w, func(after func(int)) { after(4) })
			if len(w.handled) > 0 || w.lost > 0 {
				t.Errorf("handled %+v, counted %d", w.handled, w.lost)
			}
		})
	}
}

func TestANoticeThatAsksForNothingIsNotCountedAsLost(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook, idle: true,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) { after(4) })
	if len(w.handled) != 1 || w.lost > 0 {
		t.Errorf("handled %+v, counted %d", w.handled, w.lost)
	}
}

// To ask whether a hook waits begins its timeout anew.
func TestNoHookIsHeldOfAnInstanceOfAnotherCluster(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook, foreign: true,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) { after(30) })
	if w.waits > 0 || len(w.handled) > 0 || w.lost > 0 {
		t.Errorf("asked %d times, handled %+v, counted %d", w.waits, w.handled, w.lost)
	}
}

// EKS drains the nodes of its groups, and completes their hooks.
func TestHooksOfEKSAreLeftToItUnlessTheyAreNamed(t *testing.T) {
	for want, names := range map[int][]string{0: nil, 1: {"drain"}} {
		w := &world{
			nodes: []string{ours}, hooks: oneHook, names: names,
			waiting: []asg.Waiting{{Instance: ours, Group: "workers", EKS: true}},
		}
		play(t, w, func(after func(int)) { after(4) })
		if len(w.handled) != want {
			t.Errorf("with the names %v: handled %+v", names, w.handled)
		}
	}
}

func TestANoticeThatFailsIsHandledAgain(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook, fails: 2,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) { after(6) })
	if len(w.handled) != 3 || w.handled[0].ID != w.handled[2].ID {
		t.Errorf("handled %+v, want the same three times", w.handled)
	}
}

func TestWhatASweepHasBegunEndsWithIt(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook, hangs: true,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) { after(5) }) // play returns when Run has returned
	if len(w.handled) != 1 {
		t.Errorf("handled %+v", w.handled)
	}
}

func TestAnInstanceThatIsRetainedIsToldOnce(t *testing.T) {
	w := &world{nodes: []string{ours}, waiting: []asg.Waiting{{Instance: ours, Group: "workers", Retained: true}, {Instance: theirs, Group: "workers", Retained: true}}}
	play(t, w, func(after func(int)) {
		if after(3); w.kept != 1 {
			t.Errorf("%d are retained, want 1", w.kept)
		}
		w.waiting = nil
		after(1)
	})
	if diff := gocmp.Diff([]string{ours}, w.retained); diff != "" || len(w.handled) > 0 || w.kept != 0 {
		t.Errorf("handled %+v, %d are retained at the end; told (-want +got):\n%s", w.handled, w.kept, diff)
	}
}

// There may be no way to Auto Scaling, and no need for one.
func TestSweepsThatFailPauseForLongerAndSayItOnce(t *testing.T) {
	for name, fails := range map[string]struct {
		err  error
		hint string
	}{
		"a permission is missing": {
			&asg.PermissionError{Action: "autoscaling:DescribeAutoScalingGroups", Err: errors.New("no")}, "add the permission to the role",
		},
		"the server lacks the call": {
			&asg.PermissionError{Action: "autoscaling:DescribeAutoScalingGroups", Err: &smithy.GenericAPIError{Code: "InvalidAction"}}, "hint=\"check whether",
		},
		"no answer": {errors.New("dial tcp 10.0.0.1:443: i/o timeout"), "an endpoint for Auto Scaling"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{
				nodes: []string{ours}, hooks: oneHook, err: fails.err,
				waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
			}
			play(t, w, func(after func(int)) {
				after(8)
				for k, least := range []time.Duration{2 * interval, 4 * interval, 8 * interval} {
					if pause := w.asked[k+1] - w.asked[k]; float64(pause) < float64(min(least, search.LongestPause)) {
						t.Errorf("the pause after %d failures is %s", k+1, pause)
					}
				}
				if pause := w.asked[7] - w.asked[6]; float64(pause) > (1+search.Jitter)*float64(search.LongestPause) || !errors.Is(w.swept[0], fails.err) {
					t.Errorf("asked again after %s; told %v", pause, w.swept)
				}
				log := w.log.String()
				if n := strings.Count(log, "cannot be found"); n != 1 || !strings.Contains(log, fails.hint) || !strings.Contains(log, "lifecycle hooks") {
					t.Errorf("told %d times that hooks cannot be found:\n%s", n, log)
				}
				if unseen := w.sweep.Unseen(); !strings.Contains(unseen, fails.err.Error()) || !strings.Contains(unseen, "lifecycle hooks") {
					t.Errorf("what is not seen is %q", unseen)
				}
				w.err = nil
				after(3)
				if pause := w.asked[10] - w.asked[9]; pause > 2*interval || len(w.handled) != 1 {
					t.Errorf("asked again after %s, handled %+v", pause, w.handled)
				}
				if unseen := w.sweep.Unseen(); unseen != "" || !strings.Contains(w.log.String(), "can be found again") {
					t.Errorf("what is not seen is %q:\n%s", unseen, w.log.String())
				}
			})
		})
	}
}

func TestAFailedSweepForgetsNothing(t *testing.T) {
	w := &world{
		nodes: []string{ours}, hooks: oneHook,
		waiting: []asg.Waiting{{Instance: ours, Group: "workers"}},
	}
	play(t, w, func(after func(int)) {
		after(1)
		w.err = errors.New("lost")
		after(2)
		if len(w.handled) > 0 {
			t.Errorf("handled %+v without an answer", w.handled)
		}
		w.err = nil
		if after(1); len(w.handled) != 1 {
			t.Errorf("handled %+v", w.handled)
		}
	})
}

func TestGroupsWhoseHooksAreNotReadAreNamedInOrder(t *testing.T) {
	w := &world{nodes: []string{"i-00000000000000000", "i-00000000000000001", "i-00000000000000002", "i-00000000000000003"}, hooksErr: map[string]error{}}
	for k, id := range w.nodes {
		group := fmt.Sprint("group-", k)
		w.waiting = append(w.waiting, asg.Waiting{Instance: id, Group: group})
		w.hooksErr[group] = errors.New(group)
	}
	play(t, w, func(after func(int)) {
		after(3)
		want := "group-0\ngroup-1\ngroup-2\ngroup-3"
		if got := w.swept[1]; got == nil || got.Error() != want {
			t.Errorf("the second sweep says %v, want %s", got, want)
		}
	})
}
