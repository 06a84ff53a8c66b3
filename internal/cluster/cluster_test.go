package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const queueURL = "https://sqs.us-east-1.amazonaws.com/123456789012/nth"

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

// always excludes each node.
func always(intent.Intent) bool { return true }

// spot is a spot warning of now: its deadline is in two minutes.
func spot(id string) intent.Entry {
	return intent.Entry{Kind: notice.SpotInterruption, IDs: []string{id}, Time: now, Deadline: at(120)}
}

func TestCordonChangesWhatNobodyHasChangedBefore(t *testing.T) {
	marks := CordonOptions{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: always}
	entry := spot("7d5a1d4c-7f2b-4f3e-9d1a-000000000001")
	foreign := corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute}
	for name, tt := range map[string]struct {
		node  corev1.Node
		marks CordonOptions
		want  string // the patch's spec and labels
	}{
		"by default": {
			want: `{"spec":{"unschedulable":true},"labels":{"node-termination-handler/kind":"spot-interruption","node-termination-handler/state":"draining"}}`,
		},
		"marked": {
			marks: marks,
			node:  corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{foreign}}},
			want: `{"spec":{"unschedulable":true,"taints":[{"key":"a","value":"b","effect":"NoExecute"},` +
				`{"key":"aws-node-termination-handler/spot-itn","value":"7d5a1d4c-7f2b-4f3e-9d1a-000000000001","effect":"NoSchedule"}]},` +
				`"labels":{"node-termination-handler/kind":"spot-interruption","node-termination-handler/state":"draining","node.kubernetes.io/exclude-from-external-load-balancers":"aws-node-termination-handler"}}`,
		},
		"cordoned and labelled by others": {
			marks: CordonOptions{ExcludeFromLoadBalancers: always},
			node: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{excludeLabel: ""}},
				Spec:       corev1.NodeSpec{Unschedulable: true},
			},
			want: `{"spec":{},"labels":{"node-termination-handler/kind":"spot-interruption","node-termination-handler/state":"draining"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, p, err := cordon(&tt.node, intent.Intent{}.With(entry, nil, now), tt.marks)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, digest(t, p)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			// Undoing brings the node back to what it was.
			after := apply(t, tt.node, p)
			undo, err := uncordon(&after, i, i)
			if err != nil {
				t.Fatal(err)
			}
			back := apply(t, after, undo)
			if diff := cmp.Diff(tt.node.Spec, back.Spec); diff != "" {
				t.Errorf("spec after cordon and uncordon (-want +got):\n%s", diff)
			}
			if len(back.Labels) != len(tt.node.Labels) {
				t.Errorf("left behind: %v %v", back.Labels, back.Annotations)
			}
		})
	}
}

func TestTheStateOfANodeWhoseWorkIsDoneIsHowItsDrainEnded(t *testing.T) {
	for outcome, want := range map[intent.Outcome]string{
		"": "drained", intent.Drained: "drained", intent.Missed: "missed", intent.Gone: "gone",
		intent.Unconfirmed: "unconfirmed", intent.Cordoned: "cordoned", "no label's value!": "drained",
	} {
		done := intent.Intent{}.With(spot("a"), nil, now)
		done.FinishedAt, done.Outcome = now, outcome
		p := newPatch(&corev1.Node{})
		if err := p.write(done); err != nil {
			t.Fatal(err)
		}
		if got := *p.Metadata.Labels[StateLabel]; got != want {
			t.Errorf("outcome %q: the state is %q, want %q", outcome, got, want)
		}
		if again := done.With(spot("b"), nil, now); again.Outcome != "" || again.Finished() {
			t.Errorf("a new episode has the outcome of the one before: %q", again.Outcome)
		}
	}
}

func TestANodeThatIsHeldBackGetsTheIntentAndNothingElse(t *testing.T) {
	held := intent.Intent{HeldBack: true}.With(spot("a"), nil, now)
	i, p, err := cordon(&corev1.Node{}, held, CordonOptions{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: always})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"spec":{},"labels":{"node-termination-handler/kind":"spot-interruption","node-termination-handler/state":"waiting"}}`, digest(t, p)); diff != "" || i.Cordoned {
		t.Errorf("cordoned %t, patch (-want +got):\n%s", i.Cordoned, diff)
	}
	if next := held.Released(at(60)); next.HeldBack || !next.CordonedAt.Equal(at(60)) {
		t.Errorf("released it is %+v", next)
	}
}

func TestUncordonLeavesALabelThatSomebodyHasChanged(t *testing.T) {
	i, p, err := cordon(&corev1.Node{}, intent.Intent{}.With(spot("a"), nil, now), CordonOptions{ExcludeFromLoadBalancers: always})
	if err != nil {
		t.Fatal(err)
	}
	node := apply(t, corev1.Node{}, p)
	node.Labels[excludeLabel] = "mine"
	undo, err := uncordon(&node, i, i)
	if err != nil {
		t.Fatal(err)
	}
	if back := apply(t, node, undo); back.Labels[excludeLabel] != "mine" {
		t.Errorf("labels %v", back.Labels)
	}
}

func TestTaintValuesAreValidWhateverTheEventID(t *testing.T) {
	for id, want := range map[string]string{
		"":                       "",
		"7d5a1d4c-7f2b":          "7d5a1d4c-7f2b",
		"a b/c":                  "a-b-c",
		"--x--":                  "x",
		string(make([]byte, 99)): "",
		"0123456789012345678901234567890123456789012345678901234567890123456789": "012345678901234567890123456789012345678901234567890123456789012",
	} {
		if got := taintValue([]string{id}); got != want {
			t.Errorf("taintValue(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestInstanceIDsComeFromProviderIDs(t *testing.T) {
	for providerID, want := range map[string]string{
		"aws:///us-east-1a/i-0123456789abcdef0":      "i-0123456789abcdef0",
		"aws:///us-east-1a/fargate-ip-10-0-0-1.ec2":  "",
		"gce://project/zone/i-0123456789abcdef0":     "",
		"":                                           "",
		"aws:///us-west-2-lax-1a/i-0fedcba987654321": "i-0fedcba987654321",
	} {
		if got := InstanceID(&corev1.Node{Spec: corev1.NodeSpec{ProviderID: providerID}}); got != want {
			t.Errorf("InstanceID(%q) = %q, want %q", providerID, got, want)
		}
	}
}

func TestRecordReadsTheNodeAnewWhenTheWatchWasBehind(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	conflicts := 2
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts--
		if conflicts < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("behind"))
	})
	i, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) })
	if err != nil || !i.Cordoned || i.Queue != queueURL {
		t.Fatalf("Record = %+v, %v", i, err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || !node.Spec.Unschedulable {
		t.Errorf("the node is not cordoned: %+v, %v", node, err)
	}
	written, ok, err := ReadIntent(node)
	if diff := cmp.Diff(*i, written); diff != "" || !ok || err != nil {
		t.Errorf("the node's intent (-returned +written): %s, %v", diff, err)
	}
}

func TestAnIntentThatSomebodyRemovedIsFinishedAllTheSame(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	if _, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent {
		i.FinishedAt = now
		return i
	}); err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if i, ok, err := ReadIntent(node); !ok || err != nil || !i.Finished() {
		t.Errorf("the node's intent: %+v, %t, %v", i, ok, err)
	}
}

// A recommendation has cordoned the node, and now comes the spot interruption: its drain does not know of the deadline
// before that is written. That all is done can be written later.
func TestANoticeAboutACordonedNodeWaitsForNoEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, ref := start(t, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Spec: corev1.NodeSpec{Unschedulable: true},
		})
		record := func(id string, within time.Duration, change func(intent.Intent) intent.Intent) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := c.Record(ctx, ref, func(i intent.Intent) intent.Intent { return change(i.With(spot(id), nil, now)) })
			return err
		}
		asIs := func(i intent.Intent) intent.Intent { return i }
		c.gate = pace.NewGate(1, 1)
		if _, err := c.gate.Enter(t.Context(), pace.Priority{Deadline: now}); err != nil { // an eviction without an answer
			t.Fatal(err)
		}
		if err := record("a", 30*time.Second, asIs); err != nil {
			t.Errorf("a notice: %v", err)
		}
		if err := record("b", 30*time.Second, asIs); err != nil {
			t.Errorf("another notice: %v", err)
		}
		for name, change := range map[string]func(intent.Intent) intent.Intent{
			"what the drain notes":     func(i intent.Intent) intent.Intent { i.DrainedAt = now; return i },
			"a node held back":         func(i intent.Intent) intent.Intent { i.HeldBack = true; return i },
			"the end of a cordon only": func(i intent.Intent) intent.Intent { i.FinishedAt, i.Outcome = now, intent.Cordoned; return i },
		} { // who writes to a node holds its lock
			if err := record("b", 30*time.Second, change); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		ended := func(i intent.Intent) intent.Intent { i.FinishedAt, i.Outcome = now, intent.Drained; return i }
		if err := record("c", 100*time.Millisecond, ended); !errors.Is(err, ErrNoTurn) {
			t.Errorf("the end of a drain: %v, want no turn", err)
		}
		if err := c.SetOutOfService(t.Context(), ref, true); err != nil {
			t.Errorf("the out-of-service taint: %v", err)
		}
	})
}

// They come before all evictions, and a webhook of nodes may have its pods on the nodes that go.
func TestPatchesThatHangDoNotKeepEvictionsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(15 * time.Second)
			return true, nil, errors.New("failed calling webhook")
		})
		c.gate = pace.NewGate(1, 1)
		begin := time.Now()
		recorded := make(chan error)
		go func() {
			_, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) })
			recorded <- err
		}()
		synctest.Wait()
		leave, err := c.gate.Enter(t.Context(), pace.Priority{Deadline: now})
		if took := time.Since(begin); err != nil || took != 2*time.Second {
			t.Fatalf("an eviction enters after %s, %v, want 2 s", took, err)
		}
		leave(0)
		if err := <-recorded; err == nil {
			t.Error("recorded")
		}
	})
}

// A cordon may have to wait for a busy API server, and the node takes pods until then.
func TestANodeCarriesWhenItsCordonsWereWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
		c.gate = pace.NewGate(1, 1)
		record := func() intent.Intent {
			leave, err := c.gate.Enter(t.Context(), pace.Priority{Deadline: now})
			if err != nil {
				t.Fatal(err)
			}
			leave(4 * time.Second)
			i, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, time.Now()) })
			if err != nil {
				t.Fatal(err)
			}
			node, err := c.Read(t.Context(), ref)
			if carried, _, readErr := ReadIntent(node); err != nil || readErr != nil || !carried.CordonedAt.Equal(i.CordonedAt) {
				t.Errorf("the node carries %+v, %v; want %+v", carried, readErr, i)
			}
			if ago := time.Since(i.CordonedAt); ago >= time.Second {
				t.Errorf("the node was cordoned by a patch of just now, and carries that of %s ago", ago)
			}
			return *i
		}
		first := record()
		patch := []byte(`{"spec":{"unschedulable":false}}`)
		if _, err := client.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the watch
		again := record()
		if !again.FirstCordonedAt.Equal(first.CordonedAt) || !again.CordonedAt.After(first.CordonedAt) || !first.FirstCordonedAt.IsZero() {
			t.Errorf("cordoned at %s, then first %s, last %s", first.CordonedAt, again.FirstCordonedAt, again.CordonedAt)
		}
	})
}

func TestRecordLeavesANodeAloneThatSomebodyWritesAllTheTime(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	patches := 0
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches++
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("again"))
	})
	if _, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) }); !apierrors.IsConflict(err) || patches != tries {
		t.Errorf("Record = %v after %d patches, want a conflict after %d", err, patches, tries)
	}
}

func TestNothingToWriteIsNotBelievedOfAWatchThatIsBehind(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	c, err := New(client, nil, queueURL, CordonOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(watching) }()
	if err := c.WaitForSync(watching); err != nil {
		t.Fatal(err)
	}
	ref := Ref{Name: "a", UID: "1"}
	record := func(change func(intent.Intent) intent.Intent) intent.Intent {
		t.Helper()
		i, err := c.Record(t.Context(), ref, change)
		if err != nil {
			t.Fatal(err)
		}
		return *i
	}
	warned := func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) }
	stop() // from here on the watch knows a bare node
	<-ended
	record(warned)
	if undone, err := c.Undo(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.CalledOff(i.Entries, now) }); undone != Uncordoned || err != nil {
		t.Errorf("Undo = %d, %v; want the record undone that the watch does not know", undone, err)
	}

	if undone, err := c.Undo(t.Context(), ref, func(i intent.Intent) intent.Intent { return i }); undone != NothingUndone || err != nil {
		t.Errorf("Undo once more = %d, %v", undone, err)
	}

	record(warned)
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.informer.GetStore().Update(node); err != nil { // and from here on, one with unfinished work
		t.Fatal(err)
	}
	record(func(i intent.Intent) intent.Intent { i.FinishedAt = now; return i })
	if i := record(warned); !i.Finished() {
		t.Errorf("the intent is %+v, want the finished one that the watch does not know", i)
	}
}

// A node that is given back still tells how its last drain has ended.
func TestWhatIsUndoneTellsOfItsLastEpisode(t *testing.T) {
	began := now.Add(-2 * time.Minute)
	missed := intent.Intent{Version: intent.Version}.With(spot("a"), nil, began)
	missed.Cordoned, missed.CordonedAt, missed.FinishedAt, missed.Outcome = true, began, now, intent.Missed
	underWay := missed
	underWay.FinishedAt, underWay.Outcome = time.Time{}, ""
	for name, tt := range map[string]struct {
		carried intent.Intent
		want    intent.Outcome
	}{"missed": {missed, intent.Missed}, "not ended": {underWay, intent.CalledOff}} {
		left := tt.carried
		left.Entries = nil
		node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
		p, err := uncordon(node, tt.carried, left)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := intent.Decode(*p.Metadata.Annotations[IntentAnnotation])
		if err != nil || kept.Last == nil || kept.Last.Outcome != tt.want || kept.Last.Kind != notice.SpotInterruption {
			t.Errorf("%s: it keeps %+v, %v, want the outcome %s", name, kept.Last, err, tt.want)
		}
		again, err := uncordon(node, kept, kept)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := intent.Decode(*again.Metadata.Annotations[IntentAnnotation]); err != nil || twice.Last == nil || twice.Last.Outcome != tt.want {
			t.Errorf("%s: undone once more it keeps %+v, %v", name, twice.Last, err)
		}
	}
}

// Whatever takes the place of an episode that has ended, its outcome stays known.
func TestTheNextEpisodeTellsOfTheOneBefore(t *testing.T) {
	began := now.Add(-time.Hour)
	missed := intent.Intent{Version: intent.Version}.With(spot("a"), nil, began)
	missed.Cordoned, missed.CordonedAt, missed.FinishedAt, missed.Outcome = true, began, now.Add(-58*time.Minute), intent.Missed
	text, err := missed.Encode()
	if err != nil {
		t.Fatal(err)
	}
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Annotations: map[string]string{IntentAnnotation: text}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}
	heldBack := missed
	heldBack.HeldBack, heldBack.FinishedAt, heldBack.Outcome = true, time.Time{}, ""
	put, err := uncordon(&node, missed, heldBack)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := intent.Decode(*put.Metadata.Annotations[IntentAnnotation])
	if err != nil || kept.Last == nil || kept.Last.Outcome != intent.Missed {
		t.Errorf("put off it keeps %+v, %v", kept.Last, err)
	}
	if never := kept.Memory(now); never.Outcome != intent.Missed {
		t.Errorf("what was only held back is remembered in its place: %+v", never)
	}
	uncordoned := node
	uncordoned.Spec.Unschedulable = false
	if held := holding(missed, &uncordoned, now); held.Last == nil || held.Last.Outcome != intent.Missed || len(held.Entries) > 0 {
		t.Errorf("uncordoned by somebody it keeps %+v", held.Last)
	}
	c, _, ref := start(t, &node)
	next := spot("b")
	next.Time, next.Deadline = now, now.Add(2*time.Minute)
	i, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(next, nil, now) })
	if err != nil || i.Last == nil || i.Last.Outcome != intent.Missed || i.Last.Deadline.IsZero() {
		t.Errorf("the next episode keeps %+v, %v", i.Last, err)
	}
}

func TestRecordIsOfNoUseToAnotherNodeOfThatName(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	ref.UID = "0"
	record := func() error {
		_, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) })
		return err
	}
	if err := record(); !errors.Is(err, ErrNodeGone) {
		t.Errorf("another node: %v", err)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := record(); !errors.Is(err, ErrNodeGone) {
		t.Errorf("no node: %v", err)
	}
}

func TestAnIntentThatCannotBeReadIsReplaced(t *testing.T) {
	for _, text := range []string{"", "{", `{"v":2}`, `[]`, `{"v":1,"notices":7}`} {
		c, _, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Annotations: map[string]string{IntentAnnotation: text}}})
		if unseen := c.Unseen(); unseen != "" { // it has no label: a kubelet can write anything there
			t.Errorf("%q is said to be unseen of %q", unseen, text)
		}
		i, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i.With(spot("a"), nil, now) })
		if err != nil || len(i.Entries) != 1 {
			t.Errorf("over %q: %+v, %v", text, i, err)
		}
	}
}

func TestUnfinishedAreTheIntentsOfOurOwnQueue(t *testing.T) {
	node := func(name string, edit func(*intent.Intent)) *corev1.Node {
		i := intent.Intent{Queue: queueURL}.With(spot("a"), nil, now)
		edit(&i)
		_, p, err := cordon(&corev1.Node{}, i, CordonOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := apply(t, corev1.Node{}, p)
		n.Name, n.UID = name, "1"
		return &n
	}
	c, _, _ := start(t,
		node("ours", func(*intent.Intent) {}),
		node("held-back", func(i *intent.Intent) { i.HeldBack = true }),
		node("done", func(i *intent.Intent) { i.FinishedAt = now }),
		node("of-another-queue", func(i *intent.Intent) { i.Queue = "https://sqs/other" }),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "broken", Labels: map[string]string{StateLabel: StateDraining}, Annotations: map[string]string{IntentAnnotation: "{"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
	)
	found, err, _ := c.Unfinished(t.Context())
	if err == nil {
		t.Error("no error about the broken one")
	}
	slices.SortFunc(found, func(a, b Unfinished) int { return strings.Compare(a.Ref.Name, b.Ref.Name) })
	if len(found) != 2 || found[0].Ref.Name != "held-back" || !found[0].Intent.HeldBack || found[1].Ref.Name != "ours" {
		t.Errorf("found %+v", found)
	}
	if unseen := c.Unseen(); !strings.HasPrefix(unseen, "what is left to do on 1 of the nodes, such as broken: ") {
		t.Errorf("unseen: %q", unseen)
	}
}

func TestTheLeaderKnowsWhoseMetadataIsSilent(t *testing.T) {
	node := func(name, report string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{ReportAnnotation: report}}}
	}
	c, _, _ := start(t,
		node("b", `{"to":"ns/lease","notices":null,"deaf":"2026-01-01T00:02:00Z"}`),
		node("a", `{"to":"ns/lease","notices":null,"deaf":"2026-01-01T00:01:00Z"}`),
		node("hears", `{"to":"ns/lease","notices":null}`),
		node("of-another", `{"to":"ns/other","notices":null,"deaf":"2026-01-01T00:00:00Z"}`),
		node("broken", `{"to":"ns/lease","deaf":"9999-12-31T23:59:59-01:00"}`),
	)
	want := "notices of 2 of the nodes, such as a: the pod there gets no answer of the instance metadata, since 2026-01-01T00:01:00Z"
	if got := c.Deaf("ns/lease"); got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if got := c.Deaf("ns/nobody"); got != "" {
		t.Errorf("it says %q", got)
	}
}

func TestAnIntentHoldsNothingThatIsNotItsNodes(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{IntentAnnotation: `{"v":1,` +
			`"hooks":[{"group":"g","name":"h","instance":"i-0123456789abcdef0"},{"group":"g","name":"h","instance":"i-0fedcba9876543210"}],` +
			`"taints":["aws-node-termination-handler/spot-itn","node.kubernetes.io/unreachable"]}`}},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/i-0123456789abcdef0"},
	}
	i, ok, err := ReadIntent(node)
	want := intent.Intent{
		Version: 1, Hooks: []intent.Hook{{Group: "g", Name: "h", Instance: "i-0123456789abcdef0"}}, Taints: []string{"aws-node-termination-handler/spot-itn"},
	}
	if diff := cmp.Diff(want, i); diff != "" || !ok || err != nil {
		t.Errorf("intent (-want +got), %v:\n%s", err, diff)
	}
}

// FuzzReadIntent: a user may edit the annotation, a kubelet may write it, an
// older version wrote it.
func FuzzReadIntent(f *testing.F) {
	f.Add(`{"v":1,"notices":[{"kind":"SpotInterruption","ids":["a"],"time":"2026-11-20T10:15:30Z","deadline":"2026-11-20T10:17:30Z"}],"cordonedAt":"2026-11-20T10:15:30Z"}`)
	f.Add(`{"v":1,"queue":"q","notices":[{"kind":"ScheduledChange","change":"c","ids":["a","b"],"time":"2026-11-20T10:15:30Z"}],"hooks":[{"group":"g","name":"h","instance":"i-0fedcba9876543210","started":"2026-11-20T10:15:30Z"}],` +
		`"cordoned":true,"taints":["a","aws-node-termination-handler/spot-itn"],"excluded":true,"outOfServiceAt":"2026-11-20T10:15:30Z","finishedAt":"2026-11-20T10:15:30Z"}`)
	f.Add(`{"v":1,"notices":[{"kind":"Ignored","time":"0001-01-01T00:00:00Z","deadline":"0000-01-10T00:00:00Z"}]}`)
	f.Add(`{"v":1}`)
	f.Add(`{"v":99}`)
	f.Add(`nonsense`)
	const instance = "i-0123456789abcdef0"
	foreign := []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}, {Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}}
	labels := map[string]string{"a": "b", excludeLabel: ""}
	f.Fuzz(func(t *testing.T, text string) {
		node := corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{IntentAnnotation: text, "a": "b"}},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + instance, Taints: foreign},
		}
		i, ok, err := ReadIntent(&node)
		if err != nil && (ok || !cmp.Equal(i, intent.Intent{})) {
			t.Fatalf("an intent with an error: %+v, %v", i, err)
		}
		if !ok {
			return
		}
		next := i.With(spot("new"), &intent.Hook{Group: "g", Name: "h", Instance: instance}, now)
		if len(i.Entries) < intent.MaxEntries && !next.Covers(spot("new")) {
			t.Errorf("the warning is not in %+v", next)
		}
		want := intent.Earlier(intent.Intent{Entries: i.Pending(now)}.Deadline(), at(120))
		if i.Over(spot("new")) || i.Finished() && i.Covers(spot("new")) {
			want = i.Deadline()
		}
		if !next.Deadline().Equal(want) {
			t.Errorf("the deadline is %s, want %s: %+v", next.Deadline(), want, next)
		}
		again := next.With(spot("new"), &intent.Hook{Group: "g", Name: "h", Instance: instance}, at(1))
		if len(i.Entries) < intent.MaxEntries && !cmp.Equal(next.Current(at(1)), again.Current(at(1))) {
			t.Errorf("a redelivery changes %+v to %+v", next, again)
		}
		if len(next.Entries) > intent.MaxEntries || len(next.Hooks) > max(intent.MaxHooks, len(i.Hooks)) {
			t.Errorf("%d notices and %d hooks", len(next.Entries), len(next.Hooks))
		}
		for _, e := range i.Entries {
			if slices.ContainsFunc(i.Without(notice.ScheduledChange, e.Change, now).Entries, func(left intent.Entry) bool {
				return left.Kind == notice.ScheduledChange && left.Change == e.Change
			}) {
				t.Errorf("change %q cannot be taken back from %+v", e.Change, i)
			}
		}
		for _, h := range next.Hooks {
			if h.Instance != instance {
				t.Errorf("a hook of another instance: %+v", h)
			}
		}

		// What is written can be read, and undoing it touches nothing that is somebody else's.
		written, p, err := cordon(&node, next, CordonOptions{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: always})
		if err != nil {
			t.Fatalf("cordon with %+v: %v", next, err)
		}
		after := apply(t, node, p)
		read, ok, err := ReadIntent(&after)
		if !ok || err != nil || !same(read, written) {
			t.Errorf("written is %+v, read %+v, %v", written, read, err)
		}
		undo, err := uncordon(&after, read, read)
		if err != nil {
			t.Fatal(err)
		}
		back := apply(t, after, undo)
		delete(back.Annotations, IntentAnnotation)
		if !cmp.Equal(back.Spec.Taints, foreign) || !cmp.Equal(back.Labels, labels) || !cmp.Equal(back.Annotations, map[string]string{"a": "b"}) {
			t.Errorf("undone: %+v, labels %v, annotations %v", back.Spec, back.Labels, back.Annotations)
		}
	})
}

func BenchmarkByInstanceAmong5000Nodes(b *testing.B) {
	var nodes []runtime.Object
	for k := range 5000 {
		nodes = append(nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(k), UID: "1"},
			Spec:       corev1.NodeSpec{ProviderID: fmt.Sprintf("aws:///us-east-1a/i-%017x", k)},
		})
	}
	c, _, _ := start(b, nodes...)
	b.ReportAllocs()
	for b.Loop() {
		if c.ByInstance("i-00000000000000abc") == nil {
			b.Fatal("not found")
		}
	}
}

func start(t testing.TB, nodes ...runtime.Object) (*Cluster, *fake.Clientset, Ref) {
	t.Helper()
	client := fake.NewClientset(nodes...)
	c, err := New(client, nil, queueURL, CordonOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go c.Run(ctx)
	if err := c.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	return c, client, RefOf(nodes[0].(*corev1.Node))
}

// digest is what a patch changes beside the annotation.
func digest(t *testing.T, p *nodePatch) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"spec": p.Spec, "labels": p.Metadata.Labels})
	if err != nil {
		t.Fatal(err)
	}
	var ordered struct {
		Spec   json.RawMessage `json:"spec"`
		Labels json.RawMessage `json:"labels"`
	}
	if err := json.Unmarshal(text, &ordered); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(ordered); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// apply is what the API server makes of a patch.
func apply(t *testing.T, node corev1.Node, p *nodePatch) corev1.Node {
	t.Helper()
	set := func(m map[string]string, changes map[string]*string) map[string]string {
		out := map[string]string{}
		maps.Copy(out, m)
		for k, v := range changes {
			delete(out, k)
			if v != nil {
				out[k] = *v
			}
		}
		return out
	}
	node.Labels = set(node.Labels, p.Metadata.Labels)
	node.Annotations = set(node.Annotations, p.Metadata.Annotations)
	if p.Spec.Unschedulable != nil {
		node.Spec.Unschedulable = *p.Spec.Unschedulable
	}
	if p.Spec.Taints != nil {
		node.Spec.Taints = *p.Spec.Taints
		if len(node.Spec.Taints) == 0 {
			node.Spec.Taints = nil
		}
	}
	return node
}

// Each of thousands of drains listens to its own node: it hears of each change, and of no other node's.
func TestWhoListensToANodeHearsOfItsChangesAndNoOthers(t *testing.T) {
	for name, end := range map[string]func(context.Context, typedcorev1.NodeInterface) error{
		"deleted": func(ctx context.Context, nodes typedcorev1.NodeInterface) error {
			return nodes.Delete(ctx, "a", metav1.DeleteOptions{})
		},
		"replaced": func(ctx context.Context, nodes typedcorev1.NodeInterface) error { // between two events
			_, err := nodes.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "2"}}, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, client, _ := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
				nodes, ref := client.CoreV1().Nodes(), Ref{Name: "a", UID: "1"}
				type state struct {
					who          string
					there, ready bool
				}
				heard := make(chan state, 20)
				listen := func(who string, ref Ref) (remove func()) {
					return c.OnChange(ref, func() {
						node, there := c.Look(ref)
						heard <- state{who, there, there && Ready(node)}
					})
				}
				// want waits until each of them has heard of its state, and nobody else of anything. That the node was added
				// may be told late.
				want := func(want ...state) {
					t.Helper()
					for left := slices.Clone(want); len(left) > 0; {
						select {
						case h := <-heard:
							if !slices.ContainsFunc(want, func(w state) bool { return w.who == h.who }) {
								t.Fatalf("heard %+v, want %+v", h, want)
							}
							left = slices.DeleteFunc(left, func(w state) bool { return w == h })
						case <-time.After(30 * time.Second):
							t.Fatalf("not heard: %+v", left)
						}
					}
				}
				removeA, removeB := listen("a", ref), listen("b", ref)
				listen("other", Ref{Name: "other", UID: "other"})
				listen("stopped", ref)()
				want(state{"a", true, false}, state{"b", true, false}, state{"other", false, false}, state{"stopped", true, false})
				if _, err := nodes.Update(t.Context(), &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"},
					Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
				}, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				want(state{"a", true, true}, state{"b", true, true})
				removeB()
				for len(heard) > 0 {
					<-heard
				}
				if err := end(t.Context(), nodes); err != nil {
					t.Fatal(err)
				}
				want(state{"a", false, false})
				removeA()
				listen("late", ref)()
				want(state{"late", false, false})
				c.listening.Lock()
				defer c.listening.Unlock()
				if len(c.listeners) != 1 { // the other node
					t.Errorf("%d nodes are listened to", len(c.listeners))
				}
			})
		})
	}
}
