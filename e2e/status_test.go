package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// overview is what the handler says is in progress.
func (h *handler) overview() (o overview.Overview) {
	h.s.Helper()
	h.s.must(json.Unmarshal([]byte(h.body(h.metrics, overview.StatusPath)), &o))
	return o
}

// history is what the handler says has happened.
func (h *handler) history() (past overview.History) {
	h.s.Helper()
	h.s.must(json.Unmarshal([]byte(h.body(h.metrics, overview.HistoryPath)), &past))
	return past
}

// episode is the newest episode of a node; zero: there is none.
func (h *handler) episode(n node) overview.Episode {
	h.s.Helper()
	for _, e := range h.history().Episodes {
		if e.Node == n.name {
			return e
		}
	}
	return overview.Episode{}
}

// waitFor counts the nodes that wait for something of a cause.
func waitFor(o overview.Overview, cause overview.Cause) (n int) {
	for _, node := range o.Nodes {
		if slices.ContainsFunc(node.WaitsFor, func(w overview.Wait) bool { return w.Cause == cause }) {
			n++
		}
	}
	return n
}

// awaitWait waits until the handler says that a node waits for something of that cause, whose name or sentence has
// the words.
func (h *handler) awaitWait(n node, cause overview.Cause, words string) overview.Wait {
	h.s.Helper()
	var found overview.Wait
	h.s.eventually(fmt.Sprintf("%s waits for: %s %s", n.name, cause, words), func() bool {
		o := h.overview()
		for _, shown := range o.Nodes {
			at := slices.IndexFunc(shown.WaitsFor, func(w overview.Wait) bool {
				return w.Cause == cause && strings.Contains(w.Name+" "+w.Why, words)
			})
			if shown.Name == n.name && at >= 0 {
				found = shown.WaitsFor[at]
				return strings.Contains(o.Table(overview.Style{Wide: true}), words) // as the command prints it
			}
		}
		return false
	})
	return found
}

func TestTheStatusNamesWhatKeepsPods(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(5)
	s.pod("kept", nodes[0].name, app("kept"))
	s.budget("one", "kept", 1)
	s.pod("twice", nodes[1].name, app("twice"))
	s.budget("two", "twice", 0)
	s.budget("three", "twice", 0)
	s.pod("held", nodes[2].name, stopping(time.Second, time.Second), func(p *corev1.Pod) { p.Finalizers = []string{"example.com/backup"} })
	s.pod("slow", nodes[3].name, stopping(10*time.Minute, 10*time.Minute))
	s.claim("data")
	s.pod("db", nodes[4].name, claiming("data"))
	s.attach("data", nodes[4])
	h := s.alone()
	for _, n := range nodes {
		s.send(s.body("rebalance-recommendation", n.instance))
	}
	budget := h.awaitWait(nodes[0], overview.Budget, "PodDisruptionBudget "+s.name+"/one needs 1 healthy pods and has 1")
	if budget.Name != s.name+"/one" || budget.Pods != 1 || budget.Pod != s.name+"/kept" || !budget.Until.IsZero() {
		t.Errorf("%+v", budget)
	}
	h.awaitWait(nodes[1], overview.TwoBudgets, "two PodDisruptionBudgets")
	h.awaitWait(nodes[2], overview.Kubelet, "its kubelet has not confirmed it")
	h.awaitWait(nodes[3], overview.Grace, "grace until")
	h.awaitWait(nodes[4], overview.Volume, s.volume("data"))

	// A deadline says until when.
	s.reserve(nodes[0])
	s.eventually("the pod is known to be forced", func() bool {
		return !h.awaitWait(nodes[0], overview.Budget, "one").Until.IsZero()
	})
	shown := h.overview()
	if shown.Source != overview.Leader || len(shown.Nodes) != 5 || shown.Nodes[0].Name != nodes[0].name ||
		shown.Nodes[0].Kind != "capacity-reservation-interruption" || shown.Nodes[0].Deadline.IsZero() || shown.Nodes[0].Pods.Left != 1 ||
		shown.Queue == nil || shown.Queue.LastReceive.IsZero() || shown.Queue.InFlight < 5 {
		t.Errorf("%+v", shown)
	}
}

func TestTheStatusNamesWhatTheEndOfADrainWaitsFor(t *testing.T) {
	tier.Full(t, "20 s; internal/controller has each wait")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
	s.must(s.aws.SetFault(awssim.Fault{
		ID: "down", Service: "autoscaling", Action: "CompleteLifecycleAction", Status: http.StatusInternalServerError, Count: 1000,
	}))
	const delay = 5 * time.Minute
	s.bind("web", delay)
	_, stop := s.balance("web", nodes[1:], delay)
	defer stop()
	h := s.alone()
	s.transition(nodes[0], awssim.Terminating)
	s.warn(nodes[1], 2*time.Minute)
	h.awaitWait(nodes[0], overview.FailingHook, "lifecycle hook workers/hook is not completed yet: ")
	h.awaitWait(nodes[1], overview.Target, "web")
}

func TestTheStatusNamesTheLimitOfARule(t *testing.T) {
	tier.Full(t, "20 s; internal/controller has it")
	s := newScenario(t)
	nodes := s.nodes(2)
	for _, n := range nodes {
		s.pod("on-"+n.name, n.name, stopping(10*time.Minute, 10*time.Minute))
	}
	file := s.policy("nodes:", "- {name: one-by-one, kinds: [rebalance], do: drain, limit: {nodes: 1}, nodes: scenario="+s.name+"}")
	h := s.alone("--policy-file=" + file.path)
	s.send(s.body("rebalance-recommendation", nodes[0].instance))
	h.awaitWait(nodes[0], overview.Grace, "grace until")
	s.send(s.body("rebalance-recommendation", nodes[1].instance))
	h.awaitWait(nodes[1], overview.Limit, "one-by-one")
}

// Evictions that hang take all places at the gate.
func TestTheStatusNamesTheGate(t *testing.T) {
	tier.Full(t, "40 s and 128 pods")
	s := newScenario(t)
	nodes := s.crowd(8, func(n node) (pods []*corev1.Pod) {
		for k := range 16 {
			pods = append(pods, s.newPod(fmt.Sprintf("%s-%d", n.name, k), n.name))
		}
		return pods
	})
	hang := make(chan struct{})
	defer sync.OnceFunc(func() { close(hang) })()
	h := s.launchBehind(func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(ctx context.Context, c proxy.Call) proxy.Fault {
			if c.Resource == "pods" && c.Action == "create" {
				select {
				case <-hang:
				case <-ctx.Done():
				}
			}
			return proxy.Fault{}
		}}
	})
	h.awaitLead()
	for _, n := range nodes {
		s.send(s.body("rebalance-recommendation", n.instance))
	}
	s.eventually("a node waits for the gate", func() bool {
		return slices.ContainsFunc(h.overview().Nodes, func(n overview.Node) bool {
			return slices.ContainsFunc(n.WaitsFor, func(w overview.Wait) bool { return w.Cause == overview.Gate })
		})
	})
}

// The next leader knows what the nodes carry, and says what it cannot know.
func TestTheHistoryOutlivesItsLeaderAsFarAsNodesCarryIt(t *testing.T) {
	tier.Full(t, "40 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("plain", nodes[0].name)
	s.pod("slow", nodes[1].name, stopping(30*time.Second, 8*time.Second))
	first := s.leader()
	s.awaitDeleted(soon, s.reserve(nodes[0]))
	s.eventually("the first leader has the episode", func() bool { return first.episode(nodes[0]).Node != "" })
	if e := first.episode(nodes[0]); e.Known != overview.Everything || e.Pods.Evicted != 1 || e.Slack == nil || *e.Slack < 60 {
		t.Errorf("%+v, with %+v", e, e.Pods)
	}
	second := s.start()
	if code, _ := second.fetch(second.metrics, overview.StatusPath); code != http.StatusServiceUnavailable {
		t.Errorf("a replica that stands by answers %d", code)
	}
	message := s.reserve(nodes[1])
	s.eventually("the second drain has begun", func() bool { return len(s.requests("slow")) > 0 })
	first.kill()
	second.awaitLead()
	s.eventually("the next leader has what the node carries", func() bool { return second.episode(nodes[0]).Node != "" })
	if e := second.episode(nodes[0]); e.Known != overview.AsCarried || e.Outcome != "drained" || e.Pods == nil || e.Pods.Evicted == 0 || e.Kind != "capacity-reservation-interruption" || len(e.Notices) != 1 {
		t.Errorf("%+v", e)
	}
	s.awaitDeleted(soon, message)
	s.eventually("the next leader has the episode that it has ended", func() bool { return second.episode(nodes[1]).Node != "" })
	if e := second.episode(nodes[1]); e.Known != overview.SinceTakeOver || e.Outcome != "drained" {
		t.Errorf("%+v", e)
	}
}
