package replacement

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A Group is what matters of an Auto Scaling group.
type Group struct {
	Name string
	// Desired is its desired capacity, and Max what that may be at most.
	Desired, Max int
	// Rebalances: Capacity Rebalancing is on.
	Rebalances bool
	// LaunchesFirst: its instance maintenance policy has it launch an instance before it terminates the one
	// that is replaced.
	LaunchesFirst bool
	// LaunchTemplate: it has one, and not a launch configuration. MixedMarkets: it launches both Spot and
	// On-Demand Instances.
	LaunchTemplate, MixedMarkets bool
	// Suspended are its processes that are.
	Suspended []string
	// TerminationHooks are the names of its hooks for terminations.
	TerminationHooks []string
}

// A Way is how a node gets a replacement.
type Way uint8

// The ways.
const (
	NoWay    Way = iota
	ByItself     // the group does it already: Capacity Rebalancing
	ByGroup      // the group does it when the instance is said to be unhealthy
	ByLaunch     // we launch another instance, and terminate the node's own after the drain
)

// Choose returns how to replace an instance of a group that gets notices of these kinds, and why there is no
// way. hooked: one of the group's termination hooks is completed by us after a drain. Without one the
// group would terminate the instance with its pods.
//
// A recommendation is about minutes: LaunchInstances says at once whether there is capacity. Otherwise the
// group does it if its policy covers that: it takes one call, and nothing is left to do.
func Choose(kinds []notice.Kind, g Group, hooked bool) (way Way, why string) {
	rebalance := slices.Contains(kinds, notice.RebalanceRecommendation)
	switch {
	case rebalance && g.Rebalances && hooked:
		return ByItself, ""
	case rebalance && g.Rebalances:
		return NoWay, "group " + g.Name + " replaces the instance by itself (Capacity Rebalancing), and no termination " +
			"hook lets the drain wait for that"
	}
	byGroup, byLaunch := g.notByGroup(hooked), g.notByLaunch()
	switch {
	case byLaunch == "" && (rebalance || byGroup != ""):
		return ByLaunch, ""
	case byGroup == "":
		return ByGroup, ""
	}
	return NoWay, fmt.Sprintf("group %s: not by its maintenance policy: %s; not by a launch: %s",
		g.Name, byGroup, byLaunch)
}

// notByGroup is why the group cannot be asked to replace an instance; empty: it can.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-maintenance-policy-overview-and-considerations.html
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html
func (g Group) notByGroup(hooked bool) string {
	switch idle := g.suspends("Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy"); {
	case !g.LaunchesFirst:
		return "it does not launch before it terminates"
	case !hooked:
		return "no termination hook lets the node be drained"
	case idle != "":
		return idle
	}
	return ""
}

// notByLaunch is why LaunchInstances is not for the group; empty: it is.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/launch-instances-synchronously.html
func (g Group) notByLaunch() string {
	switch idle := g.suspends("Launch", "Terminate"); {
	case !g.LaunchTemplate:
		return "it has no launch template"
	case g.MixedMarkets:
		return "it mixes Spot and On-Demand Instances"
	case g.Desired >= g.Max:
		return fmt.Sprintf("its desired capacity %d is its maximum", g.Desired)
	case idle != "":
		return idle
	}
	return ""
}

func (g Group) suspends(processes ...string) string {
	var idle []string
	for _, p := range processes {
		if slices.Contains(g.Suspended, p) {
			idle = append(idle, p)
		}
	}
	if len(idle) == 0 {
		return ""
	}
	return "suspended: " + strings.Join(idle, ", ")
}

// A Step is what to do next about a replacement.
type Step uint8

// The steps. Each that acts is taken after what it does is written down.
const (
	Begin  Step = iota // nothing is to be waited for: the drain begins, or goes on
	Look               // look at the group, and choose a way
	Mark               // say that the instance is unhealthy
	Launch             // launch another instance, or learn which was launched
	Wait               // wait for the replacement
	GiveUp             // it has not come in time, and nothing has to be taken back
	End                // terminate the node's own instance
	Settle             // the instance ends without us: nothing is left to do
	Return             // terminate the instance that was launched
	Forget             // nobody can say any more whether an instance was launched
)

// tokenKept is how long a token is trusted to launch nothing twice. AWS does not say how long it keeps them;
// a leader that takes over does so within a minute.
const tokenKept = time.Hour

// Next is the step before the drain. ready: the instance that was launched has a ready Node.
//
//	written down   known              step
//	nothing        -                  look at the group
//	marking        -                  say that the instance is unhealthy
//	marked         -                  wait: the notice of its termination begins the drain
//	launching      -                  launch: the token makes it one
//	launched       ready              begin the drain
//	returning      -                  wait: what was called off before a leader ended is called off again
//	any of them    the time is over   begin the drain
//	the rest       -                  begin the drain
func Next(r intent.Replacement, ready bool, now time.Time) Step {
	late := !r.Until.IsZero() && !now.Before(r.Until)
	switch r.Step {
	case intent.NotReplacing:
		if r.Why == "" {
			return Look
		}
	case intent.Marking, intent.Marked:
		switch {
		case late:
			return GiveUp
		case r.Step == intent.Marking:
			return Mark
		}
		return Wait
	case intent.Launching:
		if !late {
			return Launch
		}
	case intent.Launched:
		if !late && !ready {
			return Wait
		}
	case intent.Returning:
		if !late {
			return Wait
		}
	case intent.Ending, intent.Over:
	}
	return Begin
}

// A Member is what Auto Scaling says of an instance of a group.
type Member struct {
	Group, Zone string
	// Goes: it is being terminated.
	Goes bool
}

// AtEnd is the step after the drain. own is the node's own instance, and other the one that was launched;
// nil: the group does not have it any more.
//
//	written down   known                step
//	launching      -                    launch, to learn which one; forget if the token is too old
//	launched       own is there         end it
//	               own goes             settle
//	ending         own is there         end it: the call was lost
//	               own goes             settle
//	returning      other is there       return it
//	               other goes           settle
//	the rest       -                    begin: nothing is left to do
func AtEnd(r intent.Replacement, own, other *Member, now time.Time) Step {
	goes := func(m *Member) bool { return m == nil || m.Goes }
	switch r.Step {
	case intent.Launching:
		if now.Sub(r.Since) > tokenKept {
			return Forget
		}
		return Launch
	case intent.Launched, intent.Ending:
		if goes(own) {
			return Settle
		}
		return End
	case intent.Returning:
		if goes(other) {
			return Settle
		}
		return Return
	case intent.NotReplacing, intent.Marking, intent.Marked, intent.Over:
	}
	return Begin
}

// CanProve reports whether a launch can be asked for once more, to learn which instance it has launched.
func CanProve(r intent.Replacement, now time.Time) bool { return now.Sub(r.Since) <= tokenKept }

// For names what a node gets a replacement for: the notice that binds the most. A notice that comes again
// gives the same name.
func For(i intent.Intent) string {
	e := i.Cause()
	return fmt.Sprintf("%s/%s/%d", e.Kind, e.Change, e.Time.Unix())
}

// Token is the client token of the launch of a replacement. It belongs to the instance that is replaced: a
// kubelet that writes the annotations of its node learns nothing of the launches for others.
func Token(instance, what string) string {
	sum := sha256.Sum256([]byte(instance + "\n" + what))
	return "nth-" + hex.EncodeToString(sum[:20])
}
