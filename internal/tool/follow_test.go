package tool

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A change is what happens to the node at a time.
type change struct {
	after    time.Duration
	event    string // that the node carries
	heldBack bool
	outcome  intent.Outcome
	podGone  bool
}

// followed follows a notice of two minutes for a node with a pod, and returns what was printed.
func followed(t *testing.T, interrupt time.Duration, changes ...change) (printed string, last progress, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{}}}
		client := fake.NewClientset(node, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"}, Spec: corev1.PodSpec{NodeName: "a"},
		})
		sent := time.Now()
		go func() {
			for _, c := range changes {
				time.Sleep(time.Until(sent.Add(c.after)))
				i := intent.Intent{}.With(intent.Entry{Kind: notice.SpotInterruption, IDs: []string{c.event}}, nil, sent)
				if i.HeldBack, i.Outcome = c.heldBack, c.outcome; c.outcome != "" {
					i.FinishedAt = time.Now()
				}
				text, err := json.Marshal(i)
				if err != nil {
					t.Error(err)
				}
				node.Annotations[cluster.IntentAnnotation] = string(text)
				if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
				if c.podGone {
					_ = client.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{}) // it may be gone
				}
			}
		}()
		if interrupt > 0 {
			time.AfterFunc(interrupt, func() { stop(errors.New("interrupted")) })
		}
		var out strings.Builder
		s := &sentNotice{
			target: &target{
				Session: &Session{Options: &options.Options{}, client: client, origin: &Origin{release: &Release{}}}, node: node, kind: notice.SpotInterruption,
				notice: sample.Notice{ID: "e", Instance: "i-0123456789abcdef0"},
			},
			sent: sent, deadline: sent.Add(2 * time.Minute), leaving: map[types.UID]string{"1": "p"}, out: &out,
		}
		last, err = s.follow(ctx)
		printed = out.String()
	})
	return printed, last, err
}

func TestADrainIsFollowedToItsEnd(t *testing.T) {
	printed, last, err := followed(t, 0,
		change{after: 1500 * time.Millisecond, event: "e", heldBack: true},
		change{after: 3500 * time.Millisecond, event: "e"},
		change{after: 6500 * time.Millisecond, event: "e", podGone: true},
		change{after: 8500 * time.Millisecond, event: "e", podGone: true, outcome: intent.Drained})
	want := `
spot-interruption e: the node must be empty in 120 s
     0 s  notice sent about instance i-0123456789abcdef0
     2 s  node held back, 1 of 1 pod left
     4 s  node cordoned, 1 of 1 pod left
     7 s  node cordoned, 0 of 1 pod left
     9 s  drained, 0 of 1 pod left
`
	if diff := cmp.Diff(want, printed); diff != "" || err != nil || last.outcome != intent.Drained {
		t.Errorf("%+v, %v (-want +got):\n%s", last, err, diff)
	}
}

func TestADrainThatDoesNotEndWellIsAnErrorThatSaysWhy(t *testing.T) {
	taken := change{after: time.Second, event: "e"}
	for name, tt := range map[string]struct {
		changes []change
		want    string
	}{
		"nobody takes it":    {nil, "no handler has taken the notice within 60 s"},
		"it is about others": {[]change{{after: time.Second, event: "f"}}, "no handler has taken the notice within 60 s"},
		"the pod stays":      {[]change{taken}, "the drain has not ended within 135 s: node cordoned, 1 of 1 pod left"},
		"it ends too late": {
			[]change{taken, {after: 121 * time.Second, event: "e", outcome: intent.Missed}},
			"not drained in time: missed, 1 of 1 pod left: p; kubectl nth report --node a says why",
		},
		"it is called off": {[]change{taken, {after: 3 * time.Second, event: "f"}}, "the drain was called off; kubectl nth report --node a says why"},
	} {
		if _, _, err := followed(t, 0, tt.changes...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
	if _, _, err := followed(t, 0); !errors.Is(err, errNotTaken) {
		t.Errorf("nobody takes it: %v", err)
	}
}

// The leader has the record of a drain a moment after the node says that it has ended.
func TestTheEndOfASimulationTellsOfThePodsWhereTheLeaderDoes(t *testing.T) {
	sent := time.Now()
	drained := &overview.History{At: sent, Episodes: []overview.Episode{
		{Node: "b", Ended: sent.Add(time.Minute), Pods: &overview.Counts{Lost: 7}},
		{Node: "a", Ended: sent.Add(time.Second), Pods: &overview.Counts{Evicted: 1, Cut: 1}, Notices: []overview.Notice{{ID: "another"}}},
		{
			Node: "a", Ended: sent.Add(time.Minute), Pods: &overview.Counts{Evicted: 3, Forced: 1, Cut: 2, Missed: 1},
			Notices: []overview.Notice{{ID: "first", Also: []string{"sent"}}},
		},
		{Node: "a", Ended: sent.Add(-time.Minute), Pods: &overview.Counts{Evicted: 50}},
	}}
	answers := []http.HandlerFunc{serves(&overview.History{At: sent}), serves(drained)}
	leader := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers[0](w, r)
		answers = answers[1:]
	})
	c, err := parseOptions([]string{"--queue-url=" + testQueue}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		lease any
		last  progress
		want  string
		cut   int
	}{
		"it has ended":       {leaseOf("handler-1_x"), progress{outcome: intent.Missed}, "Pods: 3 left in order, 1 forced, 2 killed before the end of their grace periods, 1 lost.\n", 2},
		"it has not":         {leaseOf("handler-1_x"), progress{taken: true}, "", 0},
		"who may not ask":    {apierrors.NewForbidden(coordinationv1.Resource("leases"), "x", nil), progress{outcome: intent.Missed}, "", 0},
		"it does not answer": {leaseOf("handler-2_x"), progress{outcome: intent.Missed}, "", 0},
	} {
		server := newAPIServer(t, map[string]any{leasePath: tt.lease, historyPath: leader})
		s := sentNotice{sent: sent, target: &target{
			Session: &Session{Options: c, client: server.viewer(t).client, origin: &Origin{release: &Release{namespace: "node-termination-handler"}}},
			node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			notice:  sample.Notice{ID: "sent"},
		}}
		if got, cut := s.pods(t.Context(), tt.last); got != tt.want || cut != tt.cut {
			t.Errorf("%s: %q, %d cut, want %q, %d", name, got, cut, tt.want, tt.cut)
		}
	}
	if err := orCutShort(nil, 2, "a"); err == nil || !strings.Contains(err.Error(), "2 of its pods were killed") {
		t.Errorf("two were killed too early: %v", err)
	}
	if err := orCutShort(nil, 0, "a"); err != nil {
		t.Errorf("none was: %v", err)
	}
}

// A budget blocks the pods of the node: who follows the drain is told, as the leader says.
func TestWhatBlocksADrainIsToldWhileItIsFollowed(t *testing.T) {
	status := &overview.Overview{Source: overview.Leader, Nodes: []overview.Node{
		{Name: "b", WaitsFor: []overview.Wait{{Cause: overview.Budget, Why: "another"}}},
		{Name: "a", WaitsFor: []overview.Wait{{Cause: overview.Grace, Why: "it stops"}, {Cause: overview.Budget, Why: "PodDisruptionBudget d/web needs 1"}}},
	}}
	c, err := parseOptions([]string{"--queue-url=" + testQueue}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, answer := range map[string]any{
		"node cordoned, 1 of 1 pod left; it waits: PodDisruptionBudget d/web needs 1": serves(status),
		"node cordoned, 1 of 1 pod left":                                              serves(&overview.Overview{Source: overview.Leader}),
	} {
		server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_x"), proxyPath: answer})
		s := &sentNotice{leaving: map[types.UID]string{"1": "p"}, target: &target{
			Session: &Session{Options: c, client: server.viewer(t).client, origin: &Origin{release: &Release{namespace: "node-termination-handler"}}},
			node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		}}
		s.askWhatBlocks(t.Context())
		if got := s.describe(progress{taken: true, left: []string{"p"}, blocked: s.blocked}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestADrainThatIsFollowedNoLongerGoesOn(t *testing.T) {
	_, _, err := followed(t, 10*time.Second, change{after: time.Second, event: "e"})
	want := "is not followed any more (interrupted); the drain goes on: kubectl get node a -L node-termination-handler/state"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
