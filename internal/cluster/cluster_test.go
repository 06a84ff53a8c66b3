package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const queueURL = "https://sqs.us-east-1.amazonaws.com/123456789012/nth"

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

func spot(id string, deadline int) Entry {
	return Entry{Kind: notice.SpotInterruption, IDs: []string{id}, Time: now, Deadline: at(deadline)}
}

func TestADeadlineOnlyEverTightens(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now).With(spot("b", 300), nil, now)
	if got := i.Deadline(); !got.Equal(at(120)) {
		t.Errorf("deadline %s, want %s", got, at(120))
	}
	i = i.With(spot("c", 60), nil, now)
	i = i.With(Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"d"}}, nil, now)
	if got := i.Deadline(); !got.Equal(at(60)) {
		t.Errorf("deadline %s, want %s", got, at(60))
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, i.Entries[0].IDs); diff != "" {
		t.Errorf("event ids (-want +got):\n%s", diff)
	}
}

func TestTheCauseIsTheNoticeThatBindsTheMost(t *testing.T) {
	rebalance := Entry{Kind: notice.RebalanceRecommendation}
	change := Entry{Kind: notice.ScheduledChange, Deadline: at(900)}
	hook := Entry{Kind: notice.ASGTerminate, Deadline: at(300)}
	tests := []struct {
		entries []Entry
		want    notice.Kind
	}{
		{nil, notice.Ignored},
		{[]Entry{rebalance, {Kind: notice.ScheduledChange}}, notice.RebalanceRecommendation},
		{[]Entry{rebalance, change}, notice.ScheduledChange},
		{[]Entry{change, rebalance, hook}, notice.ASGTerminate},
		{[]Entry{hook, change, rebalance}, notice.ASGTerminate},
		{[]Entry{hook, spot("a", 300)}, notice.ASGTerminate},
	}
	for _, test := range tests {
		if got := (Intent{Entries: test.entries}).Cause().Kind; got != test.want {
			t.Errorf("the cause of %v is %s, want %s", test.entries, got, test.want)
		}
	}
}

func TestAHookEndsWithItsNoticeAndOnlyWhileItIsOpen(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now)
	i = i.With(Entry{Kind: notice.ASGTerminate, IDs: []string{"b"}, Deadline: at(300)}, &Hook{Name: "drain"}, now)
	if got := i.HookDeadline(); !got.Equal(at(300)) {
		t.Errorf("the hook ends at %s, want %s", got, at(300))
	}
	i.Hooks = nil
	if got := i.HookDeadline(); !got.IsZero() {
		t.Errorf("a hook that is completed ends at %s", got)
	}
}

// Any order and any repetition of notices gives the same end.
func TestTheOrderOfNoticesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []Entry
		for k := range rapid.IntRange(1, 6).Draw(t, "entries") {
			e := Entry{Kind: rapid.SampledFrom(notice.Kinds).Draw(t, "kind"), IDs: []string{fmt.Sprint(k)}}
			if rapid.Bool().Draw(t, "hard") {
				e.Deadline = at(rapid.IntRange(1, 1000).Draw(t, "deadline"))
			}
			entries = append(entries, e)
		}
		build := func(entries []Entry) (i Intent) {
			for _, e := range entries {
				i = i.With(e, nil, now)
			}
			return i
		}
		a := build(entries)
		b := build(append(rapid.Permutation(entries).Draw(t, "order"), entries...))
		if !a.Deadline().Equal(b.Deadline()) || len(a.Entries) != len(b.Entries) {
			t.Fatalf("%+v\n%+v", a, b)
		}
		for _, e := range entries {
			if !a.Covers(e) || !b.Covers(e) || !b.Has(e.Kind) {
				t.Fatalf("%+v is not covered", e)
			}
		}
	})
}

func TestAFloodOfNoticesDoesNotGrowTheAnnotation(t *testing.T) {
	var i Intent
	for k := range 1000 {
		e := Entry{Kind: notice.ScheduledChange, Change: fmt.Sprint(k), IDs: []string{fmt.Sprint(k)}, Deadline: at(10 + k)}
		i = i.With(e, &Hook{Group: "g", Name: "h", Token: fmt.Sprint(k)}, now).With(spot(fmt.Sprint(k), 5000), nil, now)
	}
	text, err := json.Marshal(i)
	if err != nil || len(text) > 8192 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if !i.Deadline().Equal(at(10)) {
		t.Errorf("the nearest deadline was lost: %s", i.Deadline())
	}
}

func TestARedeliveryOpensNothingThatIsFinished(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now)
	i.FinishedAt = now
	if again := i.With(spot("a", 120), nil, now); !again.Finished() {
		t.Error("a redelivery opened the finished intent")
	}
	if again := i.With(spot("b", 120), nil, now); again.Finished() {
		t.Error("a new warning left the intent finished")
	}
}

func TestCordonChangesWhatNobodyHasChangedBefore(t *testing.T) {
	marks := Marks{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: true}
	entry := spot("7d5a1d4c-7f2b-4f3e-9d1a-000000000001", 120)
	foreign := corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute}
	for name, tt := range map[string]struct {
		node  corev1.Node
		marks Marks
		want  string // the patch's spec and labels
	}{
		"by default": {
			want: `{"spec":{"unschedulable":true},"labels":{"node-termination-handler/state":"draining"}}`,
		},
		"marked": {
			marks: marks,
			node:  corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{foreign}}},
			want: `{"spec":{"unschedulable":true,"taints":[{"key":"a","value":"b","effect":"NoExecute"},` +
				`{"key":"aws-node-termination-handler/spot-itn","value":"7d5a1d4c-7f2b-4f3e-9d1a-000000000001","effect":"NoSchedule"}]},` +
				`"labels":{"node-termination-handler/state":"draining","node.kubernetes.io/exclude-from-external-load-balancers":"aws-node-termination-handler"}}`,
		},
		"cordoned and labelled by others": {
			marks: Marks{ExcludeFromLoadBalancers: true},
			node: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{excludeLabel: ""}},
				Spec:       corev1.NodeSpec{Unschedulable: true},
			},
			want: `{"spec":{},"labels":{"node-termination-handler/state":"draining"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, p, err := cordon(&tt.node, Intent{}.With(entry, nil, now), tt.marks)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, digest(t, p)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			// Undoing brings the node back to what it was.
			after := apply(t, tt.node, p)
			back := apply(t, after, uncordon(&after, i))
			if diff := cmp.Diff(tt.node.Spec, back.Spec); diff != "" {
				t.Errorf("spec after cordon and uncordon (-want +got):\n%s", diff)
			}
			if len(back.Labels) != len(tt.node.Labels) || len(back.Annotations) != 0 {
				t.Errorf("left behind: %v %v", back.Labels, back.Annotations)
			}
		})
	}
}

func TestANodeThatIsHeldBackGetsTheIntentAndNothingElse(t *testing.T) {
	held := Intent{HeldBack: true}.With(spot("a", 120), nil, now)
	i, p, err := cordon(&corev1.Node{}, held, Marks{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"spec":{},"labels":{"node-termination-handler/state":"waiting"}}`, digest(t, p)); diff != "" || i.Cordoned {
		t.Errorf("cordoned %t, patch (-want +got):\n%s", i.Cordoned, diff)
	}
	if next := held.Released(at(60)); next.HeldBack || !next.CordonedAt.Equal(at(60)) {
		t.Errorf("released it is %+v", next)
	}
}

func TestUncordonLeavesALabelThatSomebodyHasChanged(t *testing.T) {
	i, p, err := cordon(&corev1.Node{}, Intent{}.With(spot("a", 120), nil, now), Marks{ExcludeFromLoadBalancers: true})
	if err != nil {
		t.Fatal(err)
	}
	node := apply(t, corev1.Node{}, p)
	node.Labels[excludeLabel] = "mine"
	if back := apply(t, node, uncordon(&node, i)); back.Labels[excludeLabel] != "mine" {
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
	i, err := c.Record(t.Context(), ref, func(i Intent) Intent { return i.With(spot("a", 120), nil, now) })
	if err != nil || !i.Cordoned || i.Queue != queueURL {
		t.Fatalf("Record = %+v, %v", i, err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || !node.Spec.Unschedulable {
		t.Errorf("the node is not cordoned: %+v, %v", node, err)
	}
	written, ok, err := ReadIntent(node)
	if diff := cmp.Diff(i, written); diff != "" || !ok || err != nil {
		t.Errorf("the node's intent (-returned +written): %s, %v", diff, err)
	}
}

func TestAnIntentThatSomebodyRemovedIsFinishedAllTheSame(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	if _, err := c.Record(t.Context(), ref, func(i Intent) Intent {
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

func TestRecordLeavesANodeAloneThatSomebodyWritesAllTheTime(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	patches := 0
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches++
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("again"))
	})
	if _, err := c.Record(t.Context(), ref, func(i Intent) Intent { return i.With(spot("a", 120), nil, now) }); !apierrors.IsConflict(err) || patches != tries {
		t.Errorf("Record = %v after %d patches, want a conflict after %d", err, patches, tries)
	}
}

func TestNothingToWriteIsNotBelievedOfAWatchThatIsBehind(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	c, err := New(client, nil, queueURL, Marks{})
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
	record := func(change func(Intent) Intent) Intent {
		t.Helper()
		i, err := c.Record(t.Context(), ref, change)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	warned := func(i Intent) Intent { return i.With(spot("a", 120), nil, now) }
	stop() // from here on the watch knows a bare node
	<-ended
	record(warned)
	if undone, err := c.Undo(t.Context(), ref, func(i Intent) (Intent, bool) { return i, false }); !undone || err != nil {
		t.Errorf("Undo = %t, %v; want the record undone that the watch does not know", undone, err)
	}

	record(warned)
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.nodes.GetStore().Update(node); err != nil { // and from here on, one with unfinished work
		t.Fatal(err)
	}
	record(func(i Intent) Intent { i.FinishedAt = now; return i })
	if i := record(warned); !i.Finished() {
		t.Errorf("the intent is %+v, want the finished one that the watch does not know", i)
	}
}

func TestRecordIsOfNoUseToAnotherNodeOfThatName(t *testing.T) {
	c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	ref.UID = "0"
	record := func() error {
		_, err := c.Record(t.Context(), ref, func(i Intent) Intent { return i.With(spot("a", 120), nil, now) })
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
		i, err := c.Record(t.Context(), ref, func(i Intent) Intent { return i.With(spot("a", 120), nil, now) })
		if err != nil || len(i.Entries) != 1 {
			t.Errorf("over %q: %+v, %v", text, i, err)
		}
	}
}

func TestUnfinishedAreTheIntentsOfOurOwnQueue(t *testing.T) {
	node := func(name string, edit func(*Intent)) *corev1.Node {
		i := Intent{Queue: queueURL}.With(spot("a", 120), nil, now)
		edit(&i)
		_, p, err := cordon(&corev1.Node{}, i, Marks{})
		if err != nil {
			t.Fatal(err)
		}
		n := apply(t, corev1.Node{}, p)
		n.Name, n.UID = name, "1"
		return &n
	}
	c, _, _ := start(t,
		node("ours", func(*Intent) {}),
		node("held-back", func(i *Intent) { i.HeldBack = true }),
		node("done", func(i *Intent) { i.FinishedAt = now }),
		node("of-another-queue", func(i *Intent) { i.Queue = "https://sqs/other" }),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "broken", Labels: map[string]string{StateLabel: StateDraining}, Annotations: map[string]string{IntentAnnotation: "{"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
	)
	found, err := c.Unfinished(t.Context())
	if err == nil {
		t.Error("no error about the broken one")
	}
	if len(found) != 2 || found[Ref{Name: "ours", UID: "1"}].Version != intentVersion || !found[Ref{Name: "held-back", UID: "1"}].HeldBack {
		t.Errorf("found %+v", found)
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
	want := Intent{
		Version: 1, Hooks: []Hook{{Group: "g", Name: "h", Instance: "i-0123456789abcdef0"}}, Taints: []string{"aws-node-termination-handler/spot-itn"},
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
		if err != nil && (ok || !cmp.Equal(i, Intent{})) {
			t.Fatalf("an intent with an error: %+v, %v", i, err)
		}
		if !ok {
			return
		}
		next := i.With(spot("new", 120), &Hook{Group: "g", Name: "h", Instance: instance}, now)
		if len(i.Entries) < maxEntries && !next.Covers(spot("new", 120)) {
			t.Errorf("the warning is not in %+v", next)
		}
		if want := Earlier(i.Deadline(), at(120)); !next.Deadline().Equal(want) {
			t.Errorf("the deadline is %s, want %s: %+v", next.Deadline(), want, next)
		}
		if again := next.With(spot("new", 120), &Hook{Group: "g", Name: "h", Instance: instance}, at(1)); len(i.Entries) < maxEntries && !cmp.Equal(next, again) {
			t.Errorf("a redelivery changes %+v to %+v", next, again)
		}
		if len(next.Entries) > maxEntries || len(next.Hooks) > max(maxHooks, len(i.Hooks)) {
			t.Errorf("%d notices and %d hooks", len(next.Entries), len(next.Hooks))
		}
		for _, e := range i.Entries {
			if i.Without(e.Change).HasChange(e.Change) {
				t.Errorf("change %q cannot be taken back from %+v", e.Change, i)
			}
		}
		for _, h := range next.Hooks {
			if h.Instance != instance {
				t.Errorf("a hook of another instance: %+v", h)
			}
		}

		// What is written can be read, and undoing it touches nothing that is somebody else's.
		written, p, err := cordon(&node, next, Marks{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: true})
		if err != nil {
			t.Fatalf("cordon with %+v: %v", next, err)
		}
		after := apply(t, node, p)
		read, ok, err := ReadIntent(&after)
		if !ok || err != nil || !same(read, written) {
			t.Errorf("written is %+v, read %+v, %v", written, read, err)
		}
		back := apply(t, after, uncordon(&after, read))
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
	c, err := New(client, nil, queueURL, Marks{})
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
		for k, v := range m {
			out[k] = v
		}
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

func TestAnEntryKeepsTheTraceOfItsFirstEventUntilTheWorkIsOver(t *testing.T) {
	traced := func(id, trace string) Entry {
		e := spot(id, 120)
		e.Trace = trace
		return e
	}
	rebalance := Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"r"}, Trace: "t0"}
	i := Intent{}.With(rebalance, nil, now).With(traced("a", ""), nil, now).With(traced("b", "t1"), nil, now).With(traced("c", "t2"), nil, now)
	if diff := cmp.Diff([]string{"t0", "t1"}, i.Traces()); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
	before := i
	i.FinishedAt = now
	if diff := cmp.Diff([]string{"t3"}, i.With(traced("d", "t3"), nil, now).Traces()); diff != "" {
		t.Errorf("traces of what was opened again (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"t0", "t1"}, before.Traces()); diff != "" {
		t.Errorf("traces of the intent before (-want +got):\n%s", diff)
	}
}
