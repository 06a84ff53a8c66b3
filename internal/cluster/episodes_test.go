package cluster

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A kubelet writes the annotation, and may not write taints.
func TestAnAnnotationIsNoProofThatAnOutOfServiceTaintIsOurs(t *testing.T) {
	for value, want := range map[string]int{"nodeshutdown": 1, outOfServiceVal: 0} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Annotations: map[string]string{
				IntentAnnotation: `{"v":1,"queue":"` + queueURL + `","notices":null,"cordonedAt":"2000-01-01T00:00:00Z","finishedAt":"2000-01-01T00:00:00Z","outOfServiceAt":"2000-01-01T00:00:00Z"}`,
			}},
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: outOfService, Value: value, Effect: corev1.TaintEffectNoExecute}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		c, client, ref := start(t, node)
		if found := len(c.OutOfService()) == 1; found != (want == 0) {
			t.Errorf("%s: found %t", value, found)
		}
		if err := c.SetOutOfService(t.Context(), ref, false); err != nil {
			t.Fatal(err)
		}
		after, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || len(after.Spec.Taints) != want {
			t.Errorf("%s: taints %v, %v", value, after.Spec.Taints, err)
		}
	}
}

func TestHooksOfANodeThatDoesNotSayWhichInstanceItIsAreNobodys(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Labels: map[string]string{StateLabel: StateDraining}, Annotations: map[string]string{
		IntentAnnotation: `{"v":1,"queue":"` + queueURL + `","notices":[{"kind":"ASGTerminate"}],"hooks":[{"group":"g","name":"h","instance":"i-0fedcba9876543210"}],"cordonedAt":"2000-01-01T00:00:00Z"}`,
	}}}
	if i, _, err := ReadIntent(node); err != nil || len(i.Hooks) > 0 {
		t.Errorf("hooks %v, %v", i.Hooks, err)
	}
	c, _, ref := start(t, node)
	unfinished, unreadable, err := c.Unfinished(t.Context())
	if unreadable != nil || err != nil || len(unfinished) != 1 || len(unfinished[0].Intent.Hooks) > 0 || !cmp.Equal(unfinished[0].Claimed, []string{"i-0fedcba9876543210"}) {
		t.Errorf("unfinished %+v, %v", unfinished, err)
	}
	ref.Instance = "i-0fedcba9876543210" // as EC2 has told
	i, err := c.Record(t.Context(), ref, func(i intent.Intent) intent.Intent { return i })
	if err != nil || len(i.Hooks) != 1 {
		t.Errorf("hooks %v, %v", i.Hooks, err)
	}
}

func TestOfTheNodesOfAnInstanceTheReadyOneComesFirstThenTheYoungest(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, age time.Duration) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/i-0123456789abcdef0"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	c, _, _ := start(t, node("a", corev1.ConditionUnknown, time.Hour), node("b", corev1.ConditionFalse, time.Minute),
		node("c", corev1.ConditionTrue, 2*time.Hour), node("d", corev1.ConditionTrue, time.Hour))
	var names []string
	for _, n := range c.ByInstance("i-0123456789abcdef0") {
		names = append(names, n.Name)
	}
	if diff := cmp.Diff([]string{"d", "c", "b", "a"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnIntentThatIsLostWithItsNodeIsToldOf(t *testing.T) {
	c, err := New(fake.NewClientset(), nil, queueURL, CordonOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var lost []string
	c.WhenDeleted(func(ref Ref, i intent.Intent) { lost = append(lost, ref.Name+" "+i.Queue) })
	for name, text := range map[string]string{
		"ours": `{"v":1,"queue":"` + queueURL + `"}`, "another-queues": `{"v":1,"queue":"` + queueURL + `-2"}`, "unreadable": "{", "none": "",
	} {
		c.noteDeleted(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{IntentAnnotation: text}}})
	}
	if diff := cmp.Diff([]string{"ours " + queueURL}, lost); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The API server says that the Node is gone before the watch does.
func TestTheLastWordsOfADrainAreKeptThoughTheWatchIsBehind(t *testing.T) {
	const id = "i-0123456789abcdef0"
	for name, provider := range map[string]string{"": "aws:///us-east-1a/" + id, "without a provider id": ""} {
		t.Run(name, func(t *testing.T) {
			now := time.Now().UTC()
			i := intent.Intent{Queue: queueURL}.With(
				intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"r"}, Time: now}, nil, now)
			text, err := i.Encode()
			if err != nil {
				t.Fatal(err)
			}
			c, _, _ := start(t, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Annotations: map[string]string{IntentAnnotation: text}},
				Spec:       corev1.NodeSpec{ProviderID: provider},
			})
			shown := c.ByName("a")
			ref, next := c.Identify(Ref{Name: "a", UID: "a", Instance: id}), Ref{Name: "b", UID: "b", Instance: id}
			i.FinishedAt = now
			c.Remember(ref, i)
			check := func() {
				t.Helper()
				if others, all := c.Others(next), c.Intents(next); len(others) != 1 || len(all) != 1 || !all[0].Finished() {
					t.Errorf("of %d other Nodes these intents are left: %+v", len(others), all)
				}
			}
			check()
			c.noteDeleted(shown)
			check()
		})
	}
}
