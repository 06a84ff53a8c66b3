package controller

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// refusePatches has the API server refuse the patches that have the text.
func (s *story) refusePatches(text string) {
	refuse := clienttesting.ReactionFunc(func(action clienttesting.Action) (bool, runtime.Object, error) {
		if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), text) {
			return true, nil, errors.New("refused by the story")
		}
		return false, nil, nil
	})
	s.beforePatch.Store(&refuse)
}

// addUnready adds a node that is out of use.
func (s *story) addUnready() {
	s.Helper()
	node := aNode("out-of-use", "i-00000000000000001")
	notReady(node)
	_, err := s.kube.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{})
	s.must(err)
}

// status returns what is said of the Nodes of the story's name.
func (s *story) status() (found []overview.Node) {
	s.Helper()
	for _, n := range s.c.Registry.Status(s.Context()) {
		if n.Name == theNode {
			found = append(found, n)
		}
	}
	return found
}

// causes are those of the waits.
func causes(n overview.Node) (all []overview.Cause) {
	for _, w := range n.WaitsFor {
		all = append(all, w.Cause)
	}
	return all
}

func TestANodeThatNeedsNoWorkerAnyMoreDoesNotSayThatItWaitsForOne(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.Workers = 1 }
		s.drain.takes = time.Hour
		const other = "i-0fedcba9876543210"
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-b", other), metav1.CreateOptions{})
		s.must(err)
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: other, Tags: map[string]string{"managed": ""}}))
		s.lead()
		s.send(s.body("rebalance-recommendation", other))
		s.after(5 * time.Second)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		if got := s.status(); len(got) != 1 || !slices.Equal(causes(got[0]), []overview.Cause{overview.Worker}) {
			t.Fatalf("while another node is drained: %+v", got)
		}
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		if got := s.status(); len(got) != 1 || len(got[0].WaitsFor) > 0 || len(s.drain.all()) != 2 {
			t.Errorf("while it is drained itself: %+v", got)
		}
	})
}

func TestANodeThatIsOnlyCordonedAfterAllIsNotSaidToBeHeldBack(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CordonOnly, c.MaxUnready = true, intstr.FromInt32(1) }
		s.addUnready()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		if got := s.status(); len(got) != 1 || got[0].Stage != overview.HeldBack {
			t.Fatalf("at first: %+v", got)
		}
		s.refusePatches("finishedAt")
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		if got := s.status(); len(got) != 1 || got[0].Stage == overview.HeldBack || len(got[0].WaitsFor) > 0 || !s.isCordoned(theNode) {
			t.Errorf("cordoned: %+v", got)
		}
		s.beforePatch.Store(nil)
	})
}

func TestADeletedNodeSaysThatItWaitsForTheNextOne(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		s.terminate(10 * time.Minute)
		s.after(10 * time.Second)
		s.remove(theNode)
		s.after(10 * time.Second)
		want := []overview.Cause{overview.OtherNode}
		if got := s.status(); len(got) != 1 || got[0].Stage != overview.Completing || !slices.Equal(causes(got[0]), want) ||
			got[0].WaitsFor[0].Until.IsZero() {
			t.Errorf("while there is none: %+v", got)
		}
		s.register(theNode, "another")
		s.after(10 * time.Second)
		got := s.status()
		if len(got) != 2 || len(got[0].WaitsFor)+len(got[1].WaitsFor) != 1 {
			t.Fatalf("when there is one: %+v", got)
		}
		old := got[0]
		if len(old.WaitsFor) == 0 {
			old = got[1]
		}
		if !slices.Equal(causes(old), want) || !strings.Contains(old.WaitsFor[0].Why, theNode) {
			t.Errorf("the deleted Node: %+v", old)
		}
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

func TestPodsThatWereMissedAreNotGone(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = -1
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.refusePatches("finishedAt")
		s.after(2 * time.Minute)
		got := s.status()
		if len(got) != 1 || got[0].Pods == nil || got[0].Pods.Left == 0 || !got[0].PodsGone.IsZero() || !got[0].Stuck(time.Now()) {
			t.Errorf("%+v", got)
		}
		s.beforePatch.Store(nil)
	})
}

// A kubelet can write the annotation of its node. An answer that cannot be encoded would tell nothing of the others.
func TestTimesThatAKubeletMakesUpCanBeEncoded(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CompletionDelay = time.Minute }
		end := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		s.forge(intent.Intent{
			Version: intent.Version, Queue: s.aws.QueueURL(queueName), DrainedAt: end, CordonedAt: end,
			Entries: []intent.Entry{{Kind: notice.ASGTerminate, Time: time.Now()}},
			Hooks:   []intent.Hook{{Group: "workers", Name: "drain", Instance: theID, Token: "t"}},
		})
		s.change(theNode, func(n *corev1.Node) {
			n.Labels, n.Spec.Unschedulable = map[string]string{cluster.StateLabel: cluster.StateDraining}, true
		})
		s.lead()
		s.after(s.drain.takes + time.Second)
		got := s.status()
		if _, err := json.Marshal(got); err != nil || len(got) != 1 || len(got[0].WaitsFor) != 1 {
			t.Errorf("%v: %+v", err, got)
		}
	})
}

func TestTheEpisodeOfANodeThatWasHeldBackDoesNotTellOfACordon(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.MaxUnready = intstr.FromInt32(1) }
		s.addUnready()
		episodes := s.ended()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.end(theID)
		s.remove(theNode)
		s.after(time.Hour)
		if all := episodes(); len(all) != 1 || !all[0].CordonedAt.IsZero() || all[0].HeldBack == "" {
			t.Errorf("%+v", all)
		}
	})
}

// Nobody has asked a pod of it to leave before.
func TestADrainThatTheNextLeaderBeginsIsKnownAsAWhole(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.MaxUnready = intstr.FromInt32(1) }
		s.addUnready()
		episodes := s.ended()
		stop := s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		stop()
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if all := episodes(); len(all) != 1 || all[0].Known != overview.Everything || all[0].Pods == nil || all[0].Pods.Partial {
			t.Errorf("%+v", all)
		}
	})
}

// The API server is away when the end of a drain is to be written. What the node carries then is the same episode.
func TestAnEpisodeEndsWhenItsNodeSays(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		episodes := s.ended()
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.refusePatches("finishedAt")
		s.after(time.Minute)
		s.beforePatch.Store(nil)
		s.after(time.Minute)
		all := episodes()
		i, _, err := cluster.ReadIntent(s.node())
		if err != nil || len(all) != 1 || i.FinishedAt.IsZero() || !all[0].Ended.Equal(i.FinishedAt) {
			t.Errorf("the node says %s, the episodes %+v", i.FinishedAt, all)
		}
	})
}
