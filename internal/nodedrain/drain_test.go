package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const theID = "i-0123456789abcdef0"

// theRef is the Node of theID.
var theRef = cluster.Ref{Name: "node-a", UID: "uid", Instance: theID}

// withNode calls do in virtual time, with a registry whose cluster has the node.
func withNode(t *testing.T, edit func(*corev1.Node), do func(t *testing.T, r *Registry)) {
	t.Helper()
	withClient(t, edit, func(t *testing.T, r *Registry, _ *fake.Clientset) { do(t, r) })
}

func withClient(t *testing.T, edit func(*corev1.Node), do func(t *testing.T, r *Registry, client *fake.Clientset)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: theRef.Name, UID: theRef.UID, Labels: map[string]string{}, Annotations: map[string]string{}},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + theID},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		edit(node)
		client := fake.NewClientset(node)
		nodes, err := cluster.New(client, pace.NewGate(8, 8), "queue", cluster.CordonOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() { nodes.Run(ctx) })
		if err := nodes.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		do(t, New(Config{
			Cluster: nodes, Log: logtest.To(t.Output()), Observer: report.Observers{},
			Cancelled: func(string, intent.Entry) bool { return false },
		}), client)
	})
}

func asItIs(*corev1.Node) {}

// An undo that has quit a drain may give up waiting for its end. Then the drain may find a reason of its own to end, too.
func TestADrainThatAnUndoHasQuitEndsForThat(t *testing.T) {
	nd := New(Config{}).newDrain(theRef)
	nd.setIntent(intent.Intent{Version: intent.Version})
	nd.quitFor(errUndone)
	err := nd.quitIf(t.Context(), errRestarted, func(intent.Intent) bool { return true })
	if !errors.Is(err, errUndone) {
		t.Errorf("it ends for %v", err)
	}
	if err := nd.runEnded(t.Context(), err); err != nil {
		t.Errorf("runEnded = %v", err)
	}
}

// A drain that was just made has nobody else who would begin or end it.
func TestADrainThatNobodyHasIsLockedAlsoWhenTimeIsUp(t *testing.T) {
	r := New(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		d, err := r.locked(ctx, theRef)
		if err != nil {
			t.Fatal(err)
		}
		d.unlock()
	}
}

// The warning is recorded after the node was found to be only cordoned, and before its end is.
func TestACordonWithAWarningDoesNotEnd(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		r.CordonRebalance = true
		now := time.Now().UTC()
		nd := r.getOrCreate(theRef)
		carried, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent {
			i = i.With(intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"r"}, Time: now}, nil, now)
			return i.With(intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: now, Deadline: now.Add(2 * time.Minute)}, nil, now)
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the watch tells
		nd.setIntent(*carried)
		nd.outcome = intent.Cordoned
		err = endStage{nd}.completeAndFinish(t.Context(), map[intent.Hook]bool{})
		if left := nd.carried(); !errors.Is(err, errAsksMore) || left.Finished() {
			t.Errorf("%v, finished %t", err, left.Finished())
		}
	})
}

// It waits for all that other hooks wait for: the option's delay, other Nodes of the instance, load balancers.
func TestAHookThatComesAtTheEndOfADrainIsNotCompletedAtOnce(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		now := time.Now().UTC()
		nd := r.getOrCreate(theRef)
		entry := intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"a"}, Time: now}
		before, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent { return i.With(entry, nil, now) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent {
			return i.With(entry, &intent.Hook{Name: "hook", Group: "group", Instance: theID, Started: now, Deadline: now.Add(time.Hour)}, now)
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the watch tells
		nd.setIntent(*before)
		nd.outcome = intent.Drained
		err = endStage{nd}.completeAndFinish(t.Context(), map[intent.Hook]bool{})
		if left := nd.carried(); !errors.Is(err, errHooksLeft) || left.Finished() {
			t.Errorf("%v, finished %t", err, left.Finished())
		}
	})
}

// refusingHooks refuse the completion of the first hook for good; another one comes meanwhile.
type refusingHooks struct {
	Hooks
	meanwhile func()
	held      chan intent.Hook
}

func (h refusingHooks) Hold(ctx context.Context, hook intent.Hook) {
	h.held <- hook
	<-ctx.Done()
}

func (h refusingHooks) Complete(_ context.Context, hook intent.Hook) error {
	if hook.Name == "other" {
		return nil
	}
	h.meanwhile()
	return asg.ErrRefused
}

// Its heartbeats would have the group wait for nothing.
func TestAHookThatIsRefusedForGoodIsNotHeldOpenAgainForOneThatComesLater(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		now := time.Now().UTC()
		entry := intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"a"}, Time: now, Terms: intent.Terms{CordonOnly: true}}
		record := func(name string) intent.Intent {
			hook := &intent.Hook{Name: name, Group: "group", Instance: theID, Started: now, Deadline: now.Add(time.Hour)}
			i, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent { return i.With(entry, hook, now) })
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the watch tells
			return *i
		}
		hooks := refusingHooks{meanwhile: func() { record("other") }, held: make(chan intent.Hook, 8)}
		r.Hooks = hooks
		nd := r.getOrCreate(theRef)
		nd.setIntent(record("hook"))
		if err := nd.stages(t.Context()); err != nil || !nd.carried().Finished() {
			t.Fatalf("%v, finished %t", err, nd.carried().Finished())
		}
		close(hooks.held)
		var held []string
		for hook := range hooks.held {
			held = append(held, hook.Name)
		}
		if want := []string{"hook", "other"}; !slices.Equal(held, want) {
			t.Errorf("held open: %q, want %q", held, want)
		}
		if h := nd.history; len(h.hooks) != 1 || h.hooks[0].Name != "other" || len(h.uncompleted) != 1 || h.uncompleted[0].Name != "hook" {
			t.Errorf("completed %v, and not %v", h.hooks, h.uncompleted)
		}
	})
}

func TestADrainDoesNotWaitForACordonThatNobodyWillSet(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"without an intent": nil, "with one that cannot be read": {cluster.IntentAnnotation: "{"},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(n *corev1.Node) { n.Annotations = annotations }, func(t *testing.T, r *Registry) {
				if state := (evacuateStage{r.getOrCreate(theRef)}).nodeState(); state != (evacuation.NodeState{Ready: true}) {
					t.Errorf("state %+v", state)
				}
			})
		})
	}
}

// A watch that is behind shows a node without its cordon, and without the intent that was written with it.
func TestANodeStaysUncordonedAfterTheSecondTime(t *testing.T) {
	for uncordoned, want := range map[int]evacuation.NodeState{
		0: {Ready: true, CordonPending: true}, 1: {Ready: true, StaysUncordoned: true}, 2: {Ready: true, StaysUncordoned: true},
	} {
		i := intent.Intent{}.With(intent.Entry{Kind: notice.ASGTerminate, Time: time.Now()}, nil, time.Now())
		i.Uncordoned = uncordoned
		text, err := i.Encode()
		if err != nil {
			t.Fatal(err)
		}
		withNode(t, func(n *corev1.Node) { n.Annotations[cluster.IntentAnnotation] = text }, func(t *testing.T, r *Registry) {
			if state := (evacuateStage{r.getOrCreate(theRef)}).nodeState(); state != want {
				t.Errorf("uncordoned %d times before: %+v, want %+v", uncordoned, state, want)
			}
		})
	}
}

// slowInstances calls meanwhile before each urgent look-up, and knows an instance that runs.
type slowInstances struct {
	lookup.Instances
	meanwhile func()
}

func (i slowInstances) Get(_ context.Context, _ string, _ time.Duration, hurry bool) (instance.Instance, bool, error) {
	if !hurry {
		return instance.Instance{}, false, errors.New("of a stranger")
	}
	i.meanwhile()
	return instance.Instance{ID: theID, State: "running", Launched: time.Now()}, true, nil
}

func TestADrainThatBeginsDuringALookUpIsWaitedFor(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		r.Lookup = &lookup.Lookup{Instances: slowInstances{meanwhile: func() { r.getOrCreate(theRef) }}, Needed: true, Log: r.Log}
		deleted := r.getOrCreate(cluster.Ref{Name: "before", UID: "before", Instance: theID})
		deleted.setIntent(intent.Intent{
			Version: intent.Version,
			Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation, Time: time.Now().Add(-time.Hour)}}, // of an earlier life
		})
		ended, begin := make(chan time.Duration, 1), time.Now()
		go func() {
			_, _ = endStage{deleted}.awaitOtherNodes(t.Context())
			ended <- time.Since(begin)
		}()
		time.Sleep(time.Minute)
		r.Get(theRef).podsGone.close()
		if took := <-ended; took < time.Minute {
			t.Errorf("it waited for %s, and the pods of the other Node have left after a minute", took)
		}
	})
}

func TestADrainHasOneOutcome(t *testing.T) {
	some := []string{"ns/pod"}
	deadline := time.Date(2026, 11, 20, 10, 2, 0, 0, time.UTC)
	gone := func(after time.Duration) evacuation.Record {
		return evacuation.Record{LastLeft: deadline.Add(after), PodsGone: deadline.Add(after)}
	}
	spot := intent.Entry{Kind: notice.SpotInterruption, Time: deadline.Add(-2 * time.Minute), Deadline: deadline}
	warned := intent.Intent{}.With(spot, nil, spot.Time)
	for name, test := range map[string]struct {
		result evacuation.Result
		err    error
		want   intent.Outcome
	}{
		"all have left before the deadline":       {evacuation.Result{Evicted: 3, Record: gone(-time.Minute)}, nil, intent.Drained},
		"in the moment of the deadline":           {evacuation.Result{Forced: 3, Record: gone(time.Millisecond)}, nil, intent.Drained},
		"after it":                                {evacuation.Result{Forced: 3, Record: gone(10 * time.Second)}, nil, intent.Missed},
		"there was none, and it has passed":       {evacuation.Result{Record: evacuation.Record{PodsGone: deadline.Add(time.Minute)}}, nil, intent.Drained},
		"all have left":                           {evacuation.Result{Evicted: 3, Forced: 1, Ended: 1}, nil, intent.Drained},
		"there was none":                          {evacuation.Result{}, nil, intent.Drained},
		"an option keeps some":                    {evacuation.Result{Stayed: some}, nil, intent.Drained},
		"some came, and stay":                     {evacuation.Result{Returned: some}, nil, intent.Drained},
		"their volumes are still attached":        {evacuation.Result{Volumes: 2}, nil, intent.Drained},
		"some are there at the deadline":          {evacuation.Result{Evicted: 3, Missed: some}, nil, intent.Missed},
		"and of some nobody knows":                {evacuation.Result{Missed: some, Unconfirmed: some}, nil, intent.Missed},
		"some are there when the machine is gone": {evacuation.Result{Evicted: 3, Lost: some}, nil, intent.Gone},
		"and of some nobody knew":                 {evacuation.Result{Lost: some, Unconfirmed: some}, nil, intent.Gone},
		"no kubelet says that they have ended":    {evacuation.Result{Unconfirmed: some}, nil, intent.Unconfirmed},
		"the leader ends":                         {evacuation.Result{Evicted: 3}, errors.New("the lease is lost"), ""},
		"somebody has uncordoned the node":        {evacuation.Result{Evicted: 3}, errUncordoned, intent.CalledOff},
		"the machine was started again":           {evacuation.Result{}, fmt.Errorf("drain: %w", errRestarted), intent.CalledOff},
		"what asked for it is over":               {evacuation.Result{}, errUndone, intent.CalledOff},
	} {
		t.Run(name, func(t *testing.T) {
			if got := outcomeOf(warned, test.result, test.err); got != test.want {
				t.Errorf("the outcome is %q, want %q", got, test.want)
			}
		})
	}
}

// A budget has its share of what was left when the drain could begin.
func TestTheNoticeOfADrainBeginsWithItsCordon(t *testing.T) {
	told := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	cordoned := told.Add(10 * time.Second)
	for _, kind := range []notice.Kind{notice.SpotInterruption, notice.ScheduledChange} {
		i := intent.Intent{}.With(intent.Entry{Kind: kind, Change: "instance-event-00000000000000001", Time: told, Deadline: told.Add(time.Hour)}, nil, told)
		i.CordonedAt = cordoned
		if got := TermsOf(i).NoticedAt; !got.Equal(cordoned) {
			t.Errorf("the notice of %s counts from %s, want %s", kind, got, cordoned)
		}
		i.FirstCordonedAt, i.CordonedAt = cordoned, told.Add(50*time.Minute) // somebody had uncordoned the node
		if terms := TermsOf(i); !terms.NoticedAt.Equal(cordoned) || !terms.CordonedAt.Equal(i.CordonedAt) {
			t.Errorf("after another cordon the terms of %s are %+v, want a notice that counts from the first", kind, terms)
		}
	}
}

// A rule may have an impaired instance drained with force: never, beside a change that is days ahead.
func TestPatientTermsDoNotIgnoreBudgetsForThoseOfOthers(t *testing.T) {
	told := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	change := intent.Entry{Kind: notice.ScheduledChange, Change: "instance-event-0d59937288b749b32", Time: told, Deadline: told.Add(120 * time.Hour)}
	for patient, want := range map[bool]bool{true: false, false: true} {
		impaired := intent.Entry{Kind: notice.InstanceImpaired, Time: told, Deadline: told.Add(time.Hour), Terms: intent.Terms{Patient: patient}}
		i := intent.Intent{}.With(change, nil, told).With(impaired, nil, told)
		if got := TermsOf(i).IgnoreBudgets; got != want {
			t.Errorf("patient: %t; budgets are ignored: %t, want %t", patient, got, want)
		}
	}
}

func TestTheShareOfTheBudgetsIsThatOfTheRule(t *testing.T) {
	told := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	for percent, want := range map[*int]float64{nil: .5, new(0): 0, new(30): .3} {
		terms := intent.Terms{BudgetPercent: percent}
		i := intent.Intent{}.With(intent.Entry{Kind: notice.SpotInterruption, Time: told, Deadline: told.Add(2 * time.Minute), Terms: terms}, nil, told)
		if got := TermsOf(i).BudgetShare; got != want {
			t.Errorf("budgets have %g of the notice, want %g", got, want)
		}
	}
}

func TestANoticeThatLeavesNoTimeIsNotLate(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	hibernates := intent.Intent{}.With(intent.Entry{Kind: notice.SpotInterruption, Time: at, Deadline: at}, nil, at)
	result := evacuation.Result{Forced: 1, Record: evacuation.Record{LastLeft: at.Add(5 * time.Second)}}
	if got := outcomeOf(hibernates, result, nil); got != intent.Drained {
		t.Errorf("the outcome of a hibernation is %q", got)
	}
}

// The notice could not be recorded, and half of it has passed.
func TestWhatGoesOnUnrecordedIsWhatStillHasTo(t *testing.T) {
	for name, test := range map[string]struct{ void, ended, want bool }{
		"the notice holds":              {want: true},
		"the notice is void by now":     {void: true},
		"the drain has ended meanwhile": {ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, asItIs, func(t *testing.T, r *Registry) {
				d := r.getOrCreate(theRef)
				if err := d.lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer d.unlock()
				if d.started = test.ended; test.ended {
					r.end(d, nil)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := make(chan bool, 1)
				go func() {
					select {
					case <-r.toRun:
						began <- true
					case <-ctx.Done():
						began <- false
					}
				}()
				now := time.Now()
				entry := &intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: now, Deadline: now.Add(2 * time.Minute)}
				n := &News{Entry: entry, Void: func() bool { return test.void }}
				p := &recording{Registry: r, News: n, ref: theRef, log: r.Log}
				if err := p.drainUnrecorded(ctx, d, errors.New("refused")); err != nil {
					t.Fatal(err)
				}
				if got := <-began; got != test.want {
					t.Errorf("a drain begins: %t, want %t", got, test.want)
				}
				if left := r.Get(theRef); (left != nil) != test.want {
					t.Errorf("the drain that is left: %v", left)
				}
			})
		})
	}
}

// One request may fail in a storm, and the next be due in minutes.
func TestANodeCannotBeWrittenIfThatFailsForAWhile(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		fails := func(want bool, when string) {
			t.Helper()
			if got := r.Status(t.Context()); (len(got) == 1 && got[0].WaitsFor[0].Cause == overview.FailingWrite) != want {
				t.Errorf("%s: %+v", when, got)
			}
		}
		news := &News{Entry: &intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: time.Now()}}
		refused := errors.New("refused")
		r.writes.note(theRef, news, time.Now(), refused)
		time.Sleep(firstTries + time.Second)
		fails(false, "after one failure")
		r.writes.note(theRef, news, time.Now(), refused)
		fails(true, "after two")
		r.writes.note(theRef, nil, time.Now(), cluster.ErrNoTurn)
		fails(true, "when it was not tried")
		r.writes.note(theRef, nil, time.Now(), nil)
		fails(false, "when it could be written")
		r.writes.note(theRef, news, time.Now(), refused)
		time.Sleep(firstTries + time.Second)
		r.writes.note(theRef, news, time.Now(), refused)
		time.Sleep(forgottenAfter + time.Second)
		fails(false, "when nobody tries any more")
		since := time.Now()
		r.writes.note(theRef, news, since, refused)
		for range 3 { // other requests go first for minutes
			time.Sleep(50 * time.Second)
			r.writes.note(theRef, news, time.Now(), cluster.ErrNoTurn)
		}
		fails(true, "while it has no turn")
		if got := r.writes.since(theRef); !got.Equal(since) {
			t.Errorf("it fails since %s, want %s", got, since)
		}
	})
}

// A busy API server is no Node that cannot be written: its cordon comes before all evictions.
func TestPodsDoNotLeaveWithoutTheCordonBecauseItHasHadNoTurn(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		now := time.Now()
		p := &recording{Registry: r, ref: theRef, began: now.Add(-15 * time.Second), News: &News{
			Entry: &intent.Entry{Kind: notice.SpotInterruption, Time: now.Add(-70 * time.Second), Deadline: now.Add(50 * time.Second)},
		}}
		if p.isLate(cluster.ErrNoTurn) {
			t.Error("it was not tried at all")
		}
		if !p.isLate(context.DeadlineExceeded) {
			t.Error("a try of 15 s has failed")
		}
		p.began = now.Add(-time.Second)
		if p.isLate(errors.New("refused")) {
			t.Error("it has failed once")
		}
		r.writes.note(theRef, p.News, now.Add(-time.Minute), errors.New("refused"))
		if !p.isLate(cluster.ErrNoTurn) {
			t.Error("it has failed for a minute")
		}
		p.Entry.Time = now.Add(-10 * time.Second)
		if p.isLate(cluster.ErrNoTurn) {
			t.Error("half of the notice has not passed")
		}
	})
}

// EC2 has answered that the spot interruption is of an earlier life of the machine: its deadline, long past, would force
// all pods.
func TestAVoidNoticeIsNotObeyedBecauseTheNodeCannotBeWritten(t *testing.T) {
	withClient(t, asItIs, func(t *testing.T, r *Registry, client *fake.Clientset) {
		var healed atomic.Bool
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !healed.Load(), nil, errors.New("refused")
		})
		r.Lookup = &lookup.Lookup{Instances: slowInstances{meanwhile: func() {}}, Needed: true, Log: r.Log}
		now := time.Now()
		ago := func(d time.Duration) time.Time { return now.Add(-d) }
		hook := &intent.Hook{Name: "hook", Group: "group", Instance: theID}
		i := intent.Intent{Version: intent.Version}.With(
			intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: ago(10 * time.Minute), Deadline: ago(8 * time.Minute)}, nil, now,
		).With(intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"a"}, Time: ago(9 * time.Minute), Deadline: now.Add(time.Hour)}, hook, now)
		d := r.getOrCreate(theRef)
		d.setIntent(i)
		ctx, cancel := context.WithCancel(t.Context())
		if err := d.forgetWhatPassed(ctx); err != nil {
			t.Fatal(err)
		}
		if left := d.carried(); len(left.Entries) != 1 || left.Entries[0].Kind != notice.ASGTerminate || !d.unrecorded.Load() {
			t.Errorf("it goes by %+v, want the termination alone", left)
		}
		healed.Store(true)
		time.Sleep(time.Minute)
		if d.unrecorded.Load() {
			t.Error("nobody writes what is left, though the node can be written")
		}
		cancel()
		d.beside.Wait()
	})
}

// The cordon of a Node whose last patch has hung has its turn after those of others, and may never have it.
func TestANodeWhosePatchesHangIsLateThoughItHasNoTurn(t *testing.T) {
	withClient(t, asItIs, func(t *testing.T, r *Registry, client *fake.Clientset) {
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(12 * time.Second)
			return false, nil, nil
		})
		rebalance := intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"r"}, Time: time.Now()}
		_, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent { return i.With(rebalance, nil, time.Now()) })
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		p := &recording{Registry: r, ref: theRef, began: now.Add(-15 * time.Second), News: &News{
			Entry: &intent.Entry{Kind: notice.SpotInterruption, Time: now.Add(-70 * time.Second), Deadline: now.Add(50 * time.Second)},
		}}
		if !p.isLate(cluster.ErrNoTurn) {
			t.Error("its pods wait for a turn")
		}
		r.writes.note(theRef, p.News, p.began, cluster.ErrNoTurn)
		if r.writes.since(theRef).IsZero() {
			t.Error("it is not known as one that cannot be written")
		}
	})
}

// Each try hangs for as long as Record tries, as with a webhook of a long timeout. The pods leave with the first that
// fails after half of the notice.
func TestPodsLeaveThoughEachPatchOfTheirNodeHangs(t *testing.T) {
	for name, age := range map[string]time.Duration{"half has passed before": 90 * time.Second, "half passes meanwhile": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			withClient(t, asItIs, func(t *testing.T, r *Registry, client *fake.Clientset) {
				client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					time.Sleep(lookup.KeptShort)
					return true, nil, context.DeadlineExceeded
				})
				now := time.Now()
				news := &News{
					Entry: &intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: now.Add(-age), Deadline: now.Add(2*time.Minute - age)},
					Void:  func() bool { return false },
				}
				ctx, cancel := context.WithCancel(t.Context())
				var recording sync.WaitGroup
				recording.Go(func() {
					for ctx.Err() == nil { // as who handles the message does
						_, _ = r.Record(ctx, r.Log, theRef, news)
					}
				})
				select {
				case d := <-r.toRun:
					if !d.isUncordoned() {
						t.Error("the drain that begins is not one without the cordon")
					}
				case <-time.After(max(0, time.Minute-age) + lookup.KeptShort + time.Second):
					t.Error("no drain begins with the first try that has failed when half of the notice has passed")
				}
				cancel()
				recording.Wait()
			})
		})
	}
}

// A hook waits for the cordon that is to come, and not for hours for one that is refused.
func TestACordonThatFailsForLongIsNotWaitedFor(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		d := evacuateStage{r.getOrCreate(theRef)}
		d.unrecorded.Store(true)
		for begun := time.Now(); time.Since(begun) < cordonPatience+time.Minute; time.Sleep(20 * time.Second) {
			r.writes.note(theRef, nil, time.Now(), errors.New("refused"))
			if want := time.Since(begun) < cordonPatience; d.nodeState().CordonPending != want {
				t.Errorf("after %s the cordon is awaited: %t", time.Since(begun), !want)
			}
		}
	})
}

// refusedLater are hooks whose heartbeats are refused from a time on: they end by themselves then.
type refusedLater struct {
	Hooks
	at, ends time.Time
}

func (h refusedLater) HeartbeatFailure(intent.Hook) (time.Time, error) {
	if time.Now().Before(h.at) {
		return time.Time{}, nil
	}
	return h.ends, errors.New("not allowed")
}

// The worker is another drain's, and the hook ends by itself, because its heartbeats are refused.
func TestADrainWhoseHookEndsSoonNeedsNoWorker(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		r.NodeGracePeriod, r.workers = 2*time.Minute, make(chan struct{}, 1)
		r.workers <- struct{}{}
		now := time.Now()
		r.Hooks = refusedLater{at: now.Add(30 * time.Second), ends: now.Add(5 * time.Minute)}
		d := evacuateStage{r.getOrCreate(theRef)}
		hook := &intent.Hook{Group: "workers", Name: "drain", Instance: theID, Started: now, Deadline: now.Add(time.Hour)}
		d.setIntent(intent.Intent{}.With(intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Time: now, Deadline: now.Add(time.Hour)}, hook, now))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := d.acquireWorker(ctx); err != nil || time.Since(now) > 4*time.Minute {
			t.Errorf("it begins after %s: %v", time.Since(now), err)
		}
	})
}

// Another handler has finished the intent meanwhile, and a notice with a hook has begun the next drain of the node.
func TestADrainThatHasEndedWaitsForTheNextOneOfItsNode(t *testing.T) {
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		now := time.Now()
		d := r.getOrCreate(theRef)
		d.applyIntent(&intent.Intent{Version: intent.Version, FinishedAt: now})
		next := r.getOrCreate(theRef)
		hook := &intent.Hook{Group: "workers", Name: "drain", Instance: theID, Started: now}
		next.setIntent(intent.Intent{}.With(intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Time: now}, hook, now))
		if with, _ := (endStage{d}).otherWithHooks(); with != next {
			t.Errorf("it waits for %v, want the next drain of the node", with)
		}
		if others := (endStage{d}).othersWithPods(); len(others) != 1 || others[0] != next {
			t.Errorf("the others with pods are %v", others)
		}
	})
}

// A notice is handled while the drain of another node is waited for, and ends the drain that was to begin.
func TestALeaderResumesWhatANodeCarriesByThen(t *testing.T) {
	now := time.Now()
	carried := intent.Intent{}.With(intent.Entry{Kind: notice.ScheduledChange, IDs: []string{"e"}, Time: now}, nil, now)
	for name, test := range map[string]struct {
		meanwhile func(ctx context.Context, r *Registry) error
		begins    bool
	}{
		"it was called off": {meanwhile: func(ctx context.Context, r *Registry) error {
			return r.Revert(ctx, r.Log, theRef, decision.WhyChangeEnded, func(intent.Intent) intent.Intent { return intent.Intent{} })
		}},
		"a notice had nothing to add": {begins: true, meanwhile: func(ctx context.Context, r *Registry) error {
			n := &News{Entry: &intent.Entry{Kind: notice.RebalanceRecommendation, Time: now}, Void: func() bool { return true }}
			_, err := r.Record(ctx, r.Log, theRef, n)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, asItIs, func(t *testing.T, r *Registry) {
				if _, err := r.Cluster.Record(t.Context(), theRef, func(intent.Intent) intent.Intent { return carried }); err != nil {
					t.Fatal(err)
				}
				first := cluster.Ref{Name: "first", UID: "first"}
				busy := r.getOrCreate(first)
				if err := busy.lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				go r.resumeAll(t.Context(), []cluster.Unfinished{{Ref: first, Intent: carried}, {Ref: theRef, Intent: carried}})
				synctest.Wait()
				if err := test.meanwhile(t.Context(), r); err != nil || r.Get(theRef) != nil {
					t.Fatalf("%v; its drain: %v", err, r.Get(theRef))
				}
				busy.unlock()
				if begun := <-r.toRun; begun != busy {
					t.Errorf("the drain of %s has begun", begun.ref.Name)
				}
				<-r.resumed
				synctest.Wait()
				begins := false
				select {
				case begun := <-r.toRun:
					begins = begun.ref == theRef && begun.carried().InWork()
				default:
				}
				if begins != test.begins || (r.Get(theRef) != nil) != test.begins {
					t.Errorf("its drain begins: %t, want %t; it is %v", begins, test.begins, r.Get(theRef))
				}
			})
		})
	}
}

// What is reverted goes by what a node carries, which others may write.
func TestAnUndoThatPanicsLocksNoNode(t *testing.T) {
	now := time.Now()
	for name, carried := range map[string]intent.Intent{
		"its drain goes on":   intent.Intent{}.With(intent.Entry{Kind: notice.ScheduledChange, IDs: []string{"e"}, Time: now}, nil, now),
		"its drain has ended": {Version: intent.Version, FinishedAt: now},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, asItIs, func(t *testing.T, r *Registry) {
				if _, err := r.Cluster.Record(t.Context(), theRef, func(intent.Intent) intent.Intent { return carried }); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				go func() { // whoever runs the drains
					for {
						select {
						case <-r.toRun:
						case <-ctx.Done():
							return
						}
					}
				}()
				if !carried.Finished() {
					if err := r.resumeDrain(t.Context(), r.getOrCreate(theRef), carried); err != nil {
						t.Fatal(err)
					}
				}
				err := logging.Recover(r.Log, func() error {
					return r.Revert(t.Context(), r.Log, theRef, decision.WhyChangeEnded, func(intent.Intent) intent.Intent { panic("mistake") })
				})
				if err == nil {
					t.Fatal("it does not panic")
				}
				spot := &News{Void: func() bool { return false }, Entry: &intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"s"}, Time: time.Now(), Deadline: time.Now().Add(2 * time.Minute)}}
				if _, err := r.Record(ctx, r.Log, theRef, spot); err != nil {
					t.Errorf("a warning that comes then is not recorded: %v", err)
				}
			})
		})
	}
}

// The limits of a hook can be read at last, while another notice is being recorded: the node still carries the guess.
func TestWhatWasLearnedIsHeededUntilItIsWritten(t *testing.T) {
	now := time.Now()
	guess := &intent.Hook{
		Group: "workers", Name: "drain", Token: "t", Instance: theID, Started: now, Deadline: now.Add(2 * time.Minute), Assumed: true,
	}
	carried := intent.Intent{}.With(intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Time: now}, guess, now)
	until := now.Add(time.Hour).UTC()
	withNode(t, asItIs, func(t *testing.T, r *Registry) {
		written, err := r.Cluster.Record(t.Context(), theRef, func(intent.Intent) intent.Intent { return carried })
		if err != nil {
			t.Fatal(err)
		}
		d := r.getOrCreate(theRef)
		d.setIntent(*written)
		if err := d.lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		learned := make(chan error, 1)
		go func() {
			learned <- d.learn(t.Context(), func(i intent.Intent) intent.Intent { return i.WithDeadline(*guess, until) })
		}()
		synctest.Wait()
		d.applyIntent(written)
		if got := d.carried().Hooks[0]; got.Assumed || !got.Deadline.Equal(until) {
			t.Errorf("the hook ends at %s, guessed: %t", got.Deadline, got.Assumed)
		}
		d.unlock()
		if err := <-learned; err != nil {
			t.Fatal(err)
		}
		on, err := r.Cluster.Record(t.Context(), theRef, func(i intent.Intent) intent.Intent { return i })
		if err != nil || on.Hooks[0].Assumed || !on.Hooks[0].Deadline.Equal(until) {
			t.Errorf("the node carries %+v, %v", on, err)
		}
		if d.applyIntent(written); !d.carried().Hooks[0].Assumed {
			t.Error("what is written is still learned")
		}
	})
}
