package telemetry

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// describe says in a sentence for people what was announced. It holds names that
// came from the message, as they were.
func describe(d Decision) string {
	n := d.Notice
	switch n.Kind {
	case notice.SpotInterruption:
		return fmt.Sprintf("Spot interruption notice: instance %s will be %s%s", d.Instance, spotEnd(n.Detail), at(" at ", d.Deadline))
	case notice.RebalanceRecommendation:
		return fmt.Sprintf("Rebalance recommendation: instance %s is at an elevated risk of a spot interruption", d.Instance)
	case notice.StateChange:
		return fmt.Sprintf("State change: instance %s is %s", d.Instance, n.Detail)
	case notice.ScheduledChange:
		if n.Ended {
			return fmt.Sprintf("Scheduled change %s of instance %s is over or was called off", n.Detail, d.Instance)
		}
		return fmt.Sprintf("Scheduled change %s: instance %s is affected%s", n.Detail, d.Instance, at(" from ", n.Deadline))
	case notice.ASGTerminate:
		return fmt.Sprintf("Auto Scaling group %s terminates instance %s: lifecycle hook %s waits%s", n.Hook.Group, d.Instance, n.Hook.Name, at(" until ", d.Deadline))
	case notice.ASGLaunch:
		return fmt.Sprintf("Auto Scaling group %s launches instance %s: lifecycle hook %s waits%s", n.Hook.Group, d.Instance, n.Hook.Name, at(" until ", d.Deadline))
	case notice.Ignored:
	}
	return ""
}

// howDrained says in a sentence how a drain ended.
func howDrained(r drain.Result, took time.Duration, deadline time.Time) string {
	left := fmt.Sprintf("%d evicted, %d deleted, in %s", r.Evicted, r.Forced, rounded(took))
	if len(r.Missed) == 0 {
		return "The node is drained: " + left + at("; the instance goes away at ", deadline)
	}
	const most = 10 // names that a reader would look at
	names := strings.Join(r.Missed[:min(most, len(r.Missed))], ", ")
	if more := len(r.Missed) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("Pods were still there at the deadline%s: %s (%d missed, %s)", at(", ", deadline), names, len(r.Missed), left)
}

// rounded is a time as people want to read it.
func rounded(took time.Duration) time.Duration { return took.Round(100 * time.Millisecond) }

// spotEnd puts an instance-action in words.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
func spotEnd(action string) string {
	switch action {
	case "terminate":
		return "terminated"
	case "stop":
		return "stopped"
	case "hibernate":
		return "hibernated"
	}
	return "taken back"
}

// at is a time after a preposition; empty for no time.
func at(preposition string, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return preposition + t.UTC().Format(time.RFC3339)
}

// A machine is what is known of a node's instance without asking anybody.
type machine struct {
	account      string
	region       string
	instance     string // id
	providerID   string
	instanceType string
	zone         string
	lifecycle    string // "spot", or not known
	labels       map[string]string
	// addresses are those that the node itself has told of.
	addresses map[corev1.NodeAddressType]string
}

// machineOf reads a machine from its node, which can be nil.
func machineOf(node *corev1.Node) machine {
	if node == nil {
		return machine{}
	}
	m := machine{
		instance:   cluster.InstanceID(node),
		providerID: node.Spec.ProviderID,
		// The cloud provider sets both labels to what EC2 says.
		// https://kubernetes.io/docs/reference/labels-annotations-taints/
		instanceType: node.Labels[corev1.LabelInstanceTypeStable],
		zone:         node.Labels[corev1.LabelTopologyZone],
		labels:       node.Labels,
		addresses:    map[corev1.NodeAddressType]string{},
	}
	for _, a := range node.Status.Addresses {
		if m.addresses[a.Type] == "" { // the first of a kind is the primary one
			m.addresses[a.Type] = a.Address
		}
	}
	if i, ok, err := cluster.ReadIntent(node); ok && err == nil && (i.Has(notice.SpotInterruption) || i.Has(notice.RebalanceRecommendation)) {
		m.lifecycle = lifecycleSpot
	}
	return m
}

// about adds what a notice tells of its instance.
func (m machine) about(d Decision) machine {
	if d.Instance != "" {
		m.instance = d.Instance // a node without a provider id has none
	}
	m.account, m.region = d.Notice.Account, d.Notice.Region
	if d.Notice.Kind == notice.SpotInterruption || d.Notice.Kind == notice.RebalanceRecommendation {
		m.lifecycle = lifecycleSpot
	}
	return m
}

// lifecycleSpot is what EC2 calls the lifecycle of a spot instance.
const lifecycleSpot = "spot"
