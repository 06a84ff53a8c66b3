package asg

import (
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A Group is what matters of an Auto Scaling group.
type Group struct {
	Name string
	// Rebalances: Capacity Rebalancing is on.
	Rebalances bool
	// LaunchesFirst: its instance maintenance policy has it launch an instance before it terminates the one
	// that is replaced.
	LaunchesFirst bool
	// Suspended are its processes that are.
	Suspended []string
	// TerminationHooks are the names of its hooks for terminations.
	TerminationHooks []string
}

// Choose returns the next step to replace an instance of a group that gets notices of these kinds. It is Marked if the
// group does it by itself, by Capacity Rebalancing; Marking if it does when the instance is said to be unhealthy; and
// NotReplacing if there is no way, and why. hooked: one of the group's termination hooks is completed by us after a
// drain. Without one the group would terminate the instance with its pods.
func Choose(kinds []notice.Kind, g Group, hooked bool) (next intent.ReplacementStep, why string) {
	rebalance := slices.Contains(kinds, notice.RebalanceRecommendation)
	switch {
	case rebalance && g.Rebalances && hooked:
		return intent.Marked, ""
	case rebalance && g.Rebalances:
		return intent.NotReplacing, "group " + g.Name + " replaces the instance by itself (Capacity Rebalancing), and no " +
			"termination hook lets the drain wait for that"
	}
	if why = g.notByGroup(hooked); why != "" {
		return intent.NotReplacing, "group " + g.Name + ": " + why
	}
	return intent.Marking, ""
}

// notByGroup is why the group cannot be asked to replace an instance; empty: it can.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-maintenance-policy-overview-and-considerations.html
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html
func (g Group) notByGroup(hooked bool) string {
	needed := []string{"Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy"}
	idle := slices.DeleteFunc(needed, func(process string) bool { return !slices.Contains(g.Suspended, process) })
	switch {
	case !g.LaunchesFirst:
		return "it does not launch before it terminates"
	case !hooked:
		return "no termination hook lets the node be drained"
	case len(idle) > 0:
		return "suspended: " + strings.Join(idle, ", ")
	}
	return ""
}

// A Member is what Auto Scaling says of an instance of a group.
type Member struct {
	Group string
	// Goes: it is being terminated.
	Goes bool
}
