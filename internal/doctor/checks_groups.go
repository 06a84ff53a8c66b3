package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// groupsErr says why it is not known which Auto Scaling groups are behind the nodes; nil: it is.
func (f *Facts) groupsErr() error {
	if unseen := unseenInstances(f); f.Groups.Err == nil && len(f.Groups.Value) == 0 && unseen > 0 {
		return fmt.Errorf("EC2 does not know the instances of %s, and so their Auto Scaling groups",
			overview.Count(unseen, "node"))
	}
	return f.Groups.Err
}

// ofGroups makes a check of the Auto Scaling groups behind the nodes. If there are no groups, the
// check passes and says none.
func ofGroups(subject, none string, run func(*Facts, []Group) Finding) func(*Facts) Finding {
	return func(f *Facts) Finding {
		switch err := f.groupsErr(); {
		case err != nil:
			return unknown(subject, err)
		case len(f.Groups.Value) == 0:
			return ok("%s", none)
		}
		for _, g := range f.Groups.Value {
			if g.Hooks.Err != nil {
				return unknown(subject, g.Hooks.Err)
			}
		}
		return run(f, f.Groups.Value)
	}
}

func groupTag(f *Facts) Finding {
	const subject = "whether new instances get the tag"
	switch err := f.groupsErr(); {
	case !f.Options.CheckTag:
		return ok("the tag check is off")
	case err != nil:
		return unknown(subject, err)
	case len(f.Groups.Value) == 0:
		return unclear("let the launch template, or Karpenter's EC2NodeClass in spec.tags, have it",
			"%s %s: no node belongs to an Auto Scaling group that would tag them", subject, f.Options.ManagedTag)
	}
	var without []string
	for _, g := range f.Groups.Value {
		if g.Tags.Err != nil {
			return unknown(subject, g.Tags.Err)
		}
		if _, tagged := g.Tags.Value[f.Options.ManagedTag]; !tagged {
			without = append(without, g.Name)
		}
	}
	if len(without) > 0 {
		return warn("nothing is to be done if the launch template has the tag, which doctor cannot see; otherwise: "+
			"aws autoscaling create-or-update-tags --tags ResourceId="+sorted(without)[0]+
			",ResourceType=auto-scaling-group,Key="+f.Options.ManagedTag+",Value=,PropagateAtLaunch=true",
			"new instances do not get the tag %s from the Auto Scaling group %s: their notices are ignored",
			f.Options.ManagedTag, list(without))
	}
	return ok("new instances get the tag %s", f.Options.ManagedTag)
}

var groupHook = ofGroups("whether the groups have a termination hook",
	"no Auto Scaling group is behind a node", hooksExist)

func hooksExist(f *Facts, groups []Group) Finding {
	var without, others, names, met []string // names: of the hooks of others
	for _, g := range groups {
		switch {
		case g.LeftToEKS:
			if slices.ContainsFunc(actionsOf(g), func(a action) bool {
				enabled, _ := taken(f, sample.ASGTerminate, a)
				return len(enabled) > 0
			}) {
				met = append(met, g.Name)
			}
		case slices.ContainsFunc(g.Hooks.Value, func(h Hook) bool { return h.Terminating }):
		case len(g.OtherHooks) > 0:
			others = append(others, g.Name+" ("+list(g.OtherHooks)+")")
			names = append(names, g.OtherHooks...)
		default:
			without = append(without, g.Name)
		}
	}
	left := fmt.Sprintf("lifecycle-hook-names=%s leaves out the termination hooks of the Auto Scaling group %s",
		strings.Join(f.Options.HookNames, ","), list(others))
	switch {
	case len(without) > 0:
		what := "a scale-in terminates instances without a drain: no termination hook on the Auto Scaling group " +
			list(without)
		if len(others) > 0 {
			what += "; " + left
		}
		name := slices.Concat(f.Options.HookNames, []string{"drain"})[0]
		return warn("aws autoscaling put-lifecycle-hook --auto-scaling-group-name "+sorted(without)[0]+
			" --lifecycle-hook-name "+name+
			" --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING --heartbeat-timeout 300 --default-result CONTINUE",
			"%s", what)
	case len(met) > 0:
		return warn("set lifecycle-hook-names to the names of your own hooks, or let the rule name your own groups",
			"the handler completes the hooks of EKS too: a rule sends the terminations of the managed node group %s "+
				"to the queue", list(met))
	case len(others) > 0:
		all := slices.Concat(f.Options.HookNames, slices.Compact(sorted(names)))
		return warn("if these hooks are for this handler, set lifecycle-hook-names="+strings.Join(all, ","),
			"a scale-in is not drained by this handler: %s", left)
	}
	return ok("%s behind the nodes, each with a termination hook of yours or of EKS",
		overview.Count(len(groups), "Auto Scaling group"))
}

// raiseHook is the command that raises the timeout of a hook. Auto Scaling accepts two hours at
// most.
func raiseHook(g Group, h Hook, timeout time.Duration) string {
	return fmt.Sprintf("aws autoscaling put-lifecycle-hook --auto-scaling-group-name %s --lifecycle-hook-name %s "+
		"--heartbeat-timeout %d",
		g.Name, h.Name, min(timeout, 2*time.Hour)/time.Second)
}

var hookTimeout = ofGroups("whether the hooks leave pods their time",
	"no Auto Scaling group is behind a node whose termination hook could end too early", hooksLastLongEnough)

func hooksLastLongEnough(f *Facts, groups []Group) Finding {
	if f.Pods.Err != nil {
		return unknown("whether the hooks leave pods their time", f.Pods.Err)
	}
	longest := longestGrace(f)
	const (
		margin = 10 * time.Second // to cordon, evict and complete
		// A leader that is killed costs some 20 s until another replica leads and has received the
		// message. Then the pods need their grace, 30 s by default.
		failover = time.Minute
	)
	var short, fragile []string
	fix := "" // of the first
	for _, g := range groups {
		for _, h := range g.Hooks.Value {
			open := f.Options.open(h)
			pod, ok := longest[g.Name]
			switch {
			case !h.Terminating:
				continue
			case ok && open < pod.Grace+margin:
				short = append(short, say("%s of %s (%s, pod %s/%s may take %s)", h.Name, g.Name, open, pod.Namespace,
					pod.Name, pod.Grace))
			case open < failover:
				fragile = append(fragile, say("%s of %s (%s)", h.Name, g.Name, open))
			default:
				continue
			}
			if fix == "" {
				fix = "set heartbeat-interval=30, or raise the timeout: " + raiseHook(g, h, max(5*time.Minute, pod.Grace+failover))
			}
		}
	}
	switch {
	case len(short) > 0:
		return warn(fix, "hooks time out before the grace periods of the pods on their nodes end: %s",
			list(append(short, fragile...)))
	case len(fragile) > 0:
		return warn(fix, "hooks are over before another replica has taken over from a leader that dies, and drained the "+
			"node: %s", list(fragile))
	}
	return ok("every termination hook stays open for longer than the pods of its nodes may take to stop")
}

// hookLaunch finds launch hooks that end an instance before its node can be ready. The handler
// sends no heartbeats for them.
var hookLaunch = ofGroups("whether the launch hooks leave instances their time",
	"no Auto Scaling group is behind a node whose launch hook could end too early", launchHooksLastLongEnough)

func launchHooksLastLongEnough(_ *Facts, groups []Group) Finding {
	// An instance is Ready one to three minutes after its launch, depending on its image and on
	// what it has to pull.
	const joining = 3 * time.Minute
	var short []string
	launching, fix := 0, ""
	for _, g := range groups {
		for _, h := range g.Hooks.Value {
			if h.Terminating {
				continue
			}
			launching++
			if h.Abandons && h.Timeout < joining {
				short = append(short, say("%s of %s (%s)", h.Name, g.Name, h.Timeout))
				fix = cmp.Or(fix, raiseHook(g, h, 10*time.Minute))
			}
		}
	}
	switch {
	case len(short) > 0:
		return warn(fix, "launch hooks terminate an instance (ABANDON) whose node is not ready in time, and the next one is "+
			"launched into the same: %s", list(short))
	case launching == 0:
		return ok("no Auto Scaling group behind a node has a launch hook")
	}
	return ok("every launch hook leaves an instance enough time to become a node")
}

// longestGrace returns, for each group, the pod on its nodes that may take longest to stop.
func longestGrace(f *Facts) map[string]Pod {
	instances := behind(f)
	longest := map[string]Pod{}
	for _, p := range f.Pods.Value {
		group := instances[p.Node].Tags[GroupTag]
		if p.DaemonSet || group == "" {
			continue
		}
		if p.Grace >= longest[group].Grace {
			longest[group] = p
		}
	}
	return longest
}
