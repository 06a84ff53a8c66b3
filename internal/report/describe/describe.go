// Package describe turns reports into text for people: the sentences, and the facts
// about instances, that Events and the webhook share.
package describe

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Decision is a sentence about what a notice announces. It contains the names of the
// decision unchanged.
func Decision(d report.Decision) string {
	about := announced(d)
	switch {
	case d.Why == decision.WhyNotifiedByRule:
		about += "; rule " + d.Rule + " leaves the node as it is"
	case d.Rule != "" && !decision.IsOption(d.Rule):
		about += "; by rule " + d.Rule
	}
	return about
}

func announced(d report.Decision) string {
	n := d.Notice
	switch n.Kind {
	case notice.SpotInterruption:
		return fmt.Sprintf("Spot interruption notice: instance %s will be %s%s", d.Instance,
			cmp.Or(spotEnds[n.Detail], "taken back"), At(" at ", d.Deadline))
	case notice.CapacityReservationInterruption:
		return fmt.Sprintf("Capacity reservation interruption notice: instance %s will be terminated%s", d.Instance,
			At(" at ", d.Deadline))
	case notice.CapacityBlockExpiration:
		return fmt.Sprintf("Capacity Block %s expires: instance %s will be terminated%s", n.Reservation, d.Instance,
			At(" from ", d.Deadline))
	case notice.RebalanceRecommendation:
		return fmt.Sprintf("Rebalance recommendation: instance %s is at an elevated risk of a spot interruption", d.Instance)
	case notice.StateChange:
		return fmt.Sprintf("State change: instance %s is %s", d.Instance, n.Detail)
	case notice.ScheduledChange:
		if n.Ended {
			return fmt.Sprintf("Scheduled change %s of instance %s is over or was called off", n.Detail, d.Instance)
		}
		return fmt.Sprintf("Scheduled change %s: instance %s is affected%s", n.Detail, d.Instance, At(" from ", n.Deadline))
	case notice.ASGTerminate:
		return fmt.Sprintf("Auto Scaling group %s terminates instance %s: lifecycle hook %s waits%s", n.Hook.Group,
			d.Instance, n.Hook.Name, At(" until ", d.Deadline))
	case notice.ASGLaunch:
		return fmt.Sprintf("Auto Scaling group %s launches instance %s: lifecycle hook %s waits%s", n.Hook.Group, d.Instance,
			n.Hook.Name, At(" until ", d.Deadline))
	case notice.InstanceImpaired:
		if n.Ended {
			return fmt.Sprintf("Instance %s is not impaired any more", d.Instance)
		}
		return fmt.Sprintf("Instance %s is impaired: the status checks %s fail", d.Instance, n.Detail)
	case notice.Ignored:
	}
	return ""
}

// Drain is a sentence about how a drain ended.
func Drain(d report.Drain) string {
	r := d.Result
	count := fmt.Sprintf("%d evicted, %d deleted", r.Evicted, r.Forced)
	if r.Ended > 0 {
		count += fmt.Sprintf(", %d ended", r.Ended)
	}
	for _, more := range []struct {
		how  string
		pods []string
	}{{"unconfirmed", r.Unconfirmed}, {"lost", r.Lost}, {"missed", r.Missed}} {
		if n := len(more.pods); n > 0 && r.Unlisted == nil {
			count = fmt.Sprintf("%d %s, %s", n, more.how, count)
		}
	}
	count += fmt.Sprintf(", in %s", Rounded(d.Took))
	if d.Resumed {
		count += " since it was resumed"
	}
	const most = 10 // names that a reader would look at
	if left := d.Targets.Left; len(left) > 0 {
		count += "; still a target of load balancer " + strings.Join(evacuation.Names(left, most), ", ")
	}
	if cut := r.Record.CutShort; len(cut) > 0 {
		count += "; killed before the end of their grace periods: " + strings.Join(evacuation.Names(cut, most), ", ")
	}
	names := strings.Join(evacuation.Names(d.Remaining(), most), ", ")
	if r.Unlisted != nil {
		return fmt.Sprintf("Which pods were still there is not known: %s (%s)", r.Unlisted.Why, count)
	}
	switch d.Outcome {
	case intent.Missed:
		if len(r.Missed) == 0 {
			if names != "" {
				names = "; no kubelet confirms the end of " + names
			}
			return fmt.Sprintf("Pods left up to %s after the deadline%s%s (%s)",
				Rounded(r.Record.LastLeft.Sub(d.Deadline())), At(", ", d.Deadline()), names, count)
		}
		return fmt.Sprintf("Pods were still there at the deadline%s: %s (%s)", At(", ", d.Deadline()), names, count)
	case intent.Gone:
		return fmt.Sprintf("The instance or its Node went away with pods on it: %s (%s)", names, count)
	case intent.Unconfirmed:
		return fmt.Sprintf("Pods should have ended, but no kubelet confirms it: %s (%s)", names, count)
	case intent.Drained, intent.Cordoned, intent.CalledOff:
	}
	text := "The node is drained: " + count + At("; the instance goes away at ", d.Deadline())
	if gone := r.Record.PodsGone; !gone.IsZero() && !d.Deadline().IsZero() {
		text += ", " + d.Deadline().Sub(gone).Round(time.Second).String() + " later"
	}
	return text
}

// Rounded is a duration rounded for people.
func Rounded(took time.Duration) time.Duration { return took.Round(100 * time.Millisecond) }

// spotEnds are the past participles of instance-actions.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
var spotEnds = map[string]string{"terminate": "terminated", "stop": "stopped", "hibernate": "hibernated"}

// At is a time with a preposition before it; empty for no time.
func At(preposition string, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return preposition + t.UTC().Format(time.RFC3339)
}

// A Machine has the facts about a node's instance that are known without a request.
type Machine struct {
	Account    string
	Region     string
	Instance   string // id
	ProviderID string
	Type       string
	Zone       string
	Lifecycle  string // "spot", "capacity-block", or empty if unknown
	Labels     map[string]string
	// Addresses are those in the node's status.
	Addresses map[corev1.NodeAddressType]string
}

// MachineOf returns the Machine of a node, which can be nil.
func MachineOf(node *corev1.Node) Machine {
	if node == nil {
		return Machine{}
	}
	m := Machine{
		Instance:   cluster.InstanceID(node),
		ProviderID: node.Spec.ProviderID,
		// The cloud provider sets these labels to what EC2 says.
		// https://kubernetes.io/docs/reference/labels-annotations-taints/
		Type:      node.Labels[corev1.LabelInstanceTypeStable],
		Zone:      node.Labels[corev1.LabelTopologyZone],
		Region:    node.Labels[corev1.LabelTopologyRegion],
		Labels:    node.Labels,
		Addresses: map[corev1.NodeAddressType]string{},
	}
	for _, a := range node.Status.Addresses {
		if m.Addresses[a.Type] == "" { // the first of a kind is the primary one
			m.Addresses[a.Type] = a.Address
		}
	}
	if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
		for _, e := range i.Entries {
			m.Lifecycle = cmp.Or(lifecycles[e.Kind], m.Lifecycle)
		}
	}
	return m
}

// About adds what a notice says about its instance.
func (m Machine) About(d report.Decision) Machine {
	m.Instance = cmp.Or(d.Instance, m.Instance) // a node without a provider id has none
	m.Account, m.Region = cmp.Or(d.Notice.Account, m.Account), cmp.Or(d.Notice.Region, m.Region)
	m.Lifecycle = cmp.Or(lifecycles[d.Notice.Kind], m.Lifecycle)
	return m
}

// lifecycles are what EC2 calls the lifecycle of the instances that get notices of a kind. The other kinds do not tell.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
var lifecycles = map[notice.Kind]string{
	notice.SpotInterruption: "spot", notice.RebalanceRecommendation: "spot",
	notice.CapacityBlockExpiration: "capacity-block",
}
