package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// conditionTold is how long it takes until a condition that needs no report is written.
const conditionTold = soon

// patchNodeStatus patches the status of a node.
func (s *scenario) patchNodeStatus(by kubernetes.Interface, node, patch string) error {
	_, err := by.CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// says waits until the node has the conditions, each as TYPE=STATUS REASON.
func (s *scenario) says(within time.Duration, n node, want ...string) {
	s.Helper()
	s.within(within, fmt.Sprintf("node %s says %q", n.name, want), func() bool {
		have := map[string]bool{}
		for _, c := range s.getNode(n.name).Status.Conditions {
			have[fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason)] = true
		}
		for _, w := range want {
			if !have[w] {
				return false
			}
		}
		return true
	})
}

func (s *scenario) condition(n node, t corev1.NodeConditionType) corev1.NodeCondition {
	s.Helper()
	for _, c := range s.getNode(n.name).Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func TestANodeSaysHowFarItsDrainIsAndLosesNobodysCondition(t *testing.T) {
	tier.Full(t, "75 s; internal/conditions plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	n, other := nodes[0], nodes[1]
	s.pod("slow", n.name, stopping(30*time.Second, 5*time.Second))
	s.must(s.patchNodeStatus(s.kube, n.name, `{"status":{"conditions":[{"type":"example.com/Disk","status":"True","reason":"Mine","message":"full"}]}}`))
	mine := s.condition(n, "example.com/Disk")
	h := s.leader()
	message, deadline := s.warn(n, 2*time.Minute)
	s.says(soon, n, "DrainInProgress=True SpotInterruption", "Drained=False SpotInterruption")
	if c := s.condition(n, cluster.DrainInProgress); !strings.Contains(c.Message, deadline.UTC().Format(time.RFC3339)) || c.LastTransitionTime.IsZero() {
		t.Errorf("it says %+v, want the deadline %s", c, deadline)
	}
	s.awaitDeleted(soon, message)
	s.says(conditionTold, n, "DrainInProgress=False SpotInterruption", "Drained=True SpotInterruption")

	// While nobody leads, somebody wants the node back.
	h.kill()
	s.patchNode(n.name, map[string]any{"spec": map[string]any{"unschedulable": false}})
	s.leader()
	s.says(conditionTold, n, "DrainInProgress=False DrainOver", "Drained=False DrainOver")
	if now := s.condition(n, "example.com/Disk"); now != mine {
		t.Errorf("the condition of somebody else was %+v and is %+v", mine, now)
	}
	for _, c := range s.getNode(other.name).Status.Conditions {
		if c.Type == cluster.DrainInProgress || c.Type == cluster.Drained || c.Type == cluster.MaintenancePlanned {
			t.Errorf("a node that is not drained says %+v", c)
		}
	}
}

func TestANodeThatIsNotEmptyAtItsDeadlineIsNotDrained(t *testing.T) {
	tier.Full(t, "a minute; internal/conditions plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("stuck", n.name, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} })
	s.alone()
	message, _ := s.warn(n, 15*time.Second)
	s.awaitDeleted(soon, message)
	s.says(conditionTold, n, "DrainInProgress=False SpotInterruption", "Drained=False SpotInterruption")
	s.within(conditionTold, "it says why", func() bool {
		return strings.Contains(s.condition(n, cluster.Drained).Message, "still there at the deadline")
	})
}

func TestANodeSaysThatMaintenanceIsPlannedUntilItBegins(t *testing.T) {
	tier.Full(t, "75 s; internal/conditions plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("pod", n.name)
	file := s.policy("nodes:", "- {name: late, kinds: [scheduled-change], do: cordon, at: start-1s}")
	h := s.leader("--policy-file=" + file.path)
	change := s.send(s.body("health-reboot-scheduled", n.instance, "Fri, 27 Nov 2026 06:00:00 GMT", startIn(30*time.Second)))
	s.awaitDeleted(soon, change)
	s.says(soon, n, "MaintenancePlanned=True ScheduledChange")
	if c := s.condition(n, cluster.DrainInProgress); c.Status == corev1.ConditionTrue {
		t.Errorf("a node that is held back says %+v", c)
	}
	h.kill()
	s.leader("--policy-file=" + file.path)
	s.says(30*time.Second+conditionTold, n, "MaintenancePlanned=False NoMaintenancePlanned")
}

func TestNoConditionIsWrittenWhereTheOptionIsOff(t *testing.T) {
	tier.Full(t, "an option that is off")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("pod", n.name)
	s.alone("--node-conditions=false")
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.throughout(3*time.Second, "the node says nothing", func() bool { return s.condition(n, cluster.Drained).Type == "" })
	wrote := s.audit(func(e sandbox.AuditEvent) bool {
		return e.Resource == "nodes" && e.Subresource == "status" && e.Verb == "patch"
	})
	if len(wrote) > 0 {
		t.Errorf("it wrote %+v", wrote)
	}
}

func TestOnTheNodeItSaysHowFarItsDrainIs(t *testing.T) {
	s := newIMDSScenario(t)
	s.pod("pod", s.node.name)
	s.start()
	s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
	s.says(soon, s.node, "Drained=True SpotInterruption", "DrainInProgress=False SpotInterruption")
}

// Who may patch the status of a node could give it the address of another machine.
func TestATokenOfTheHandlerWritesNoOtherStatusOfANode(t *testing.T) {
	s := newIMDSScenario(t)
	otherRights.Store(s.name, true)
	const ours = `{"status":{"conditions":[{"type":"Drained","status":"True","reason":"SpotInterruption"}]}}`
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	queue, pod := s.holder(kubeconfig), s.holder(s.kubeconfig)
	for _, holder := range []kubernetes.Interface{queue, pod} {
		s.awaitPolicies(holder, s.node)
		for _, tt := range []struct{ what, patch, says string }{
			{"a node that is not ready", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"x"}]}}`, "conditions of a node that are not its own: Ready"},
			{"ours beside another's", `{"status":{"conditions":[{"type":"Drained","status":"True"},{"type":"MaintenanceInProgress","status":"True"}]}}`, "not its own: MaintenanceInProgress"},
			{"the condition of another taken away", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, "not its own: Ready"},
			{"an address", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, "fields of the status of a node: status.addresses"},
			{"room for pods", `{"status":{"capacity":{"example.com/gpu":"8"}}}`, "fields of the status of a node: status.capacity"},
			{"a label", `{"metadata":{"labels":{"example.com/new":"1"}}}`, "fields of the status of a node: metadata.labels"},
		} {
			refused(t, tt.what, s.patchNodeStatus(holder, s.node.name, tt.patch), tt.says)
		}
		s.must(s.patchNodeStatus(holder, s.node.name, ours))
	}
	s.must(s.patchNodeStatus(queue, s.other.name, ours))
	refused(t, "another node", s.patchNodeStatus(pod, s.other.name, ours), "it may not change the status of node "+s.other.name)
}
