package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

func apiServer(f *Facts) verdict {
	if f.User.Err != nil {
		if denied(f.User.Err) {
			return unknown("who calls the API server", f.User.Err)
		}
		return fail("check --kubeconfig, or in the cluster the pod's ServiceAccount and its network", "the API server does not answer: %v", f.User.Err)
	}
	return ok("the API server, %s, is called as %s", f.User.Value.Version, f.User.Value.Name)
}

// Accesses are the rights that the handler needs in the cluster; deploy/ grants these.
func Accesses(o Options) []Access {
	const coordination, storage = "coordination.k8s.io", "storage.k8s.io"
	all := []Access{
		{Resource: "nodes", Verb: "get"},
		{Resource: "nodes", Verb: "list"},
		{Resource: "nodes", Verb: "watch"},
		{Resource: "nodes", Verb: "patch"},
		{Resource: "pods", Verb: "list"},
		{Resource: "pods", Verb: "watch"},
		{Resource: "pods", Verb: "delete"},
		{Resource: "pods", Subresource: "eviction", Verb: "create"},
		{Resource: "persistentvolumeclaims", Verb: "get"},
		{Group: storage, Resource: "volumeattachments", Verb: "list"},
		{Group: storage, Resource: "volumeattachments", Verb: "watch"},
	}
	if o.EmitEvents {
		all = append(all, Access{Resource: "events", Verb: "create"}, Access{Resource: "events", Verb: "patch"})
	}
	if o.LeaderElect {
		all = append(all, Access{Group: coordination, Resource: "leases", Verb: "create", Namespaced: true})
		for _, verb := range []string{"get", "update"} {
			all = append(all, Access{Group: coordination, Resource: "leases", Verb: verb, Namespaced: true, Name: o.Lease})
		}
	}
	return all
}

func rbac(f *Facts) verdict {
	var needed, useful []string
	var unsure error
	for a, answer := range f.Access {
		switch {
		case answer.Err != nil:
			unsure = answer.Err
		case answer.Value:
		case a.Resource == "events":
			useful = append(useful, a.String())
		default:
			needed = append(needed, a.String())
		}
	}
	who := f.User.Value.Name
	const hint = "apply the ClusterRole and the Role of deploy/manifests/node-termination-handler.yaml"
	switch {
	case len(needed) > 0:
		return fail(hint, "%s may not %s", who, list(append(needed, useful...)))
	case len(useful) > 0:
		return warn(hint, "%s may not %s: the rest works", who, list(useful))
	case unsure != nil:
		return unknown("what "+who+" may do in the cluster", unsure)
	case len(f.Access) == 0:
		return verdict{Unknown, "what the handler may do in the cluster was not asked", ""}
	}
	return ok("%s has the %s that the handler needs", who, count(len(f.Access), "right"))
}

func lease(f *Facts) verdict {
	l := f.Lease.Value
	switch {
	case !f.Options.LeaderElect:
		return warn("leave leader-elect on: with two replicas every node would be drained by both", "leader election is off")
	case errors.Is(f.Lease.Err, ErrAbsent):
		return ok("no replica has led in namespace %s so far", f.Options.Namespace)
	case f.Lease.Err != nil:
		return unknown("the Lease", f.Lease.Err)
	case l.Holder == "":
		return warn("see the replicas' logs, if there are any", "nobody leads in namespace %s: the last leader has given the Lease away", f.Options.Namespace)
	case f.Now.Sub(l.Renewed) > 2*l.Duration:
		return warn("see the replicas' logs, if there are any", "nobody leads in namespace %s: %s has not renewed the Lease for %s", f.Options.Namespace, l.Holder, f.Now.Sub(l.Renewed).Round(time.Second))
	}
	return ok("%s leads", l.Holder)
}

func otherHandlers(f *Facts) verdict {
	if f.Pods.Err != nil {
		return unknown("whether another handler runs in the cluster", f.Pods.Err)
	}
	same, beside := map[string]bool{}, map[string]bool{}
	for _, p := range f.Pods.Value {
		name, queue := handlerOf(f, p)
		switch {
		case name == "":
		case queue != "" && (queue == f.Options.QueueURL || queue == f.Options.QueueName):
			same[name] = true
		default:
			beside[name] = true
		}
	}
	switch {
	case len(same) > 0:
		return fail("let one of them have the queue: take the other away, or give it a queue of its own",
			"%s reads this queue as well: each message goes to one of the two", list(slices.Collect(maps.Keys(same))))
	case len(beside) > 0:
		return warn("let one of them drain the nodes: two that hear of the same interruption both evict, and only one completes a hook",
			"%s runs in the cluster as well", list(slices.Collect(maps.Keys(beside))))
	}
	return ok("no other handler of interruptions runs in the cluster")
}

// handlerOf returns the name of a handler that the pod runs, empty for none and
// for our own, and the queue that it reads where that is known.
func handlerOf(f *Facts, p Pod) (name, queue string) {
	const nth, own = "aws-node-termination-handler", "node-termination-handler"
	app := p.Labels["app.kubernetes.io/name"]
	images := func(repository string) bool {
		return slices.ContainsFunc(p.Images, func(image string) bool {
			image = image[strings.LastIndexByte(image, '/')+1:]
			base, _, _ := strings.Cut(image, ":")
			base, _, _ = strings.Cut(base, "@")
			return base == repository
		})
	}
	ours := f.User.Value.Name == "system:serviceaccount:"+p.Namespace+":"+p.ServiceAccount
	switch {
	case app == "karpenter":
		if queue = p.Env["INTERRUPTION_QUEUE"]; queue == "" {
			for _, arg := range p.Args {
				if value, ok := strings.CutPrefix(arg, "--interruption-queue="); ok {
					queue = value
				}
			}
		}
		if queue == "" {
			return "", "" // it does not listen to interruptions
		}
		return "Karpenter, by its interruption queue " + queue + ",", queue
	case ours:
		return "", ""
	case images(own), app == own:
		// Another release of ours: one with another queue is none of our business.
		if p.Namespace != f.Options.Namespace && p.Env["QUEUE_URL"] == f.Options.QueueURL {
			return "another release of this program in namespace " + p.Namespace, p.Env["QUEUE_URL"]
		}
		return "", ""
	case app == nth, p.Labels["k8s-app"] == nth, images(nth):
		return fmt.Sprintf("AWS Node Termination Handler (%s in namespace %s)", kindOf(p), p.Namespace), p.Env["QUEUE_URL"]
	}
	return "", ""
}

func kindOf(p Pod) string {
	if p.DaemonSet {
		return "a DaemonSet"
	}
	return "a Deployment"
}

// nodes says which nodes a notice would find, and what keeps it from the others.
func nodes(f *Facts) verdict {
	if f.Nodes.Err != nil {
		return unknown("which nodes there are", f.Nodes.Err)
	}
	needsEC2 := f.Options.CheckTag || slices.ContainsFunc(f.Nodes.Value, func(n Node) bool { return n.InstanceID == "" && !n.Fargate })
	if needsEC2 && f.Instances.Err != nil {
		if denied(f.Instances.Err) {
			return fail("add ec2:DescribeInstances to the role, or set check-tag-before-draining=false where all nodes have a provider id",
				"no node is covered: %v", f.Instances.Err)
		}
		return unknown("which instances are behind the nodes", f.Instances.Err)
	}
	byID, byName := map[string]Instance{}, map[string]Instance{}
	for _, i := range f.Instances.Value {
		byID[i.ID] = i
		if i.PrivateDNSName != "" {
			byName[i.PrivateDNSName] = i
		}
	}
	covered, fargate := 0, 0
	var not []string
	for _, n := range f.Nodes.Value {
		if n.Fargate {
			fargate++
			continue
		}
		if why := uncovered(f, n, byID, byName); why != "" {
			not = append(not, n.Name+" ("+why+")")
		} else {
			covered++
		}
	}
	all := covered + len(not)
	what := fmt.Sprintf("%d of %s are covered", covered, count(all, "node"))
	if fargate > 0 {
		what += fmt.Sprintf("; %d on Fargate do not count", fargate)
	}
	const hint = "give the instances the tag, nodes a provider id (--cloud-provider=external), or the role the account and region of the instances"
	switch {
	case all == 0:
		return warn("see that this is the right cluster", "there are no nodes on EC2%s", strings.TrimPrefix(what, "0 of 0 nodes are covered"))
	case covered == 0:
		return fail(hint, "%s: %s", what, list(not))
	case len(not) > 0:
		return warn(hint, "%s, not: %s", what, list(not))
	}
	return ok("%s", what)
}

// uncovered is why notices would not find a node; empty if they would.
func uncovered(f *Facts, n Node, byID, byName map[string]Instance) string {
	instance := byID[n.InstanceID]
	switch {
	case n.InstanceID == "" && n.ProviderID != "":
		return "its provider id " + n.ProviderID + " is none of EC2"
	case n.InstanceID == "":
		named, known := byName[n.Name]
		if !known {
			return "no provider id, and no instance has its name"
		}
		instance = named
	case instance.ID == "":
		if f.Options.CheckTag {
			return "EC2 does not know " + n.InstanceID + " in " + f.Options.Region
		}
		return ""
	}
	if _, tagged := instance.Tags[f.Options.ManagedTag]; f.Options.CheckTag && !tagged {
		return "no tag " + f.Options.ManagedTag
	}
	return ""
}

// ofGroups is a check of the Auto Scaling groups behind the nodes.
func ofGroups(subject string, run func(*Facts, []Group) verdict) func(*Facts) verdict {
	return func(f *Facts) verdict {
		switch {
		case f.Groups.Err != nil:
			return unknown(subject, f.Groups.Err)
		case len(f.Groups.Value) == 0:
			return ok("no Auto Scaling group is behind a node")
		}
		for _, g := range f.Groups.Value {
			if g.Hooks.Err != nil {
				return unknown(subject, g.Hooks.Err)
			}
		}
		return run(f, f.Groups.Value)
	}
}

func groupTag(f *Facts) verdict {
	switch {
	case !f.Options.CheckTag:
		return ok("the tag check is off")
	case f.Groups.Err != nil:
		return unknown("whether new instances get the tag", f.Groups.Err)
	}
	var without []string
	for _, g := range f.Groups.Value {
		if g.Tags.Err != nil {
			return unknown("whether new instances get the tag", g.Tags.Err)
		}
		if _, tagged := g.Tags.Value[f.Options.ManagedTag]; !tagged {
			without = append(without, g.Name)
		}
	}
	if len(without) > 0 {
		return warn("tag the group, with propagation at launch; or its launch template, for which this line cannot see",
			"new instances do not get the tag %s from the group %s: their notices are left alone", f.Options.ManagedTag, list(without))
	}
	return ok("new instances get the tag %s", f.Options.ManagedTag)
}

var groupHook = ofGroups("whether the groups have a termination hook", func(_ *Facts, groups []Group) verdict {
	var without []string
	for _, g := range groups {
		if !slices.ContainsFunc(g.Hooks.Value, func(h Hook) bool { return h.Terminating }) {
			without = append(without, g.Name)
		}
	}
	if len(without) > 0 {
		return warn("aws autoscaling put-lifecycle-hook --auto-scaling-group-name "+sorted(without)[0]+
			" --lifecycle-hook-name drain --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING --heartbeat-timeout 300 --default-result CONTINUE",
			"a scale-in terminates instances undrained: no termination hook on the group %s", list(without))
	}
	return ok("%s behind the nodes, each with a termination hook", count(len(groups), "Auto Scaling group"))
})

var hookTimeout = ofGroups("whether the hooks leave pods their time", func(f *Facts, groups []Group) verdict {
	if f.Pods.Err != nil {
		return unknown("whether the hooks leave pods their time", f.Pods.Err)
	}
	longest := longestGrace(f)
	const margin = 10 * time.Second // to cordon, evict and complete
	var short []string
	for _, g := range groups {
		for _, h := range g.Hooks.Value {
			open := h.Timeout
			if f.Options.HeartbeatInterval > 0 {
				open = max(open, min(f.Options.HeartbeatUntil, h.Global))
			}
			if pod, ok := longest[g.Name]; ok && h.Terminating && open < pod.Grace+margin {
				short = append(short, fmt.Sprintf("%s of %s (%s, pod %s/%s may take %s)", h.Name, g.Name, open, pod.Namespace, pod.Name, pod.Grace))
			}
		}
	}
	if len(short) > 0 {
		return warn("raise the hook's heartbeat timeout, or set heartbeat-interval", "hooks end before the pods of their nodes may: %s", list(short))
	}
	return ok("every termination hook stays open for longer than the pods of its nodes may take to stop")
})

// longestGrace is the pod that may take longest to stop, by the group of its node.
func longestGrace(f *Facts) map[string]Pod {
	groupOf := map[string]string{} // by instance
	for _, i := range f.Instances.Value {
		groupOf[i.ID] = i.Tags[GroupTag]
		groupOf[i.PrivateDNSName] = i.Tags[GroupTag]
	}
	byNode := map[string]string{}
	for _, n := range f.Nodes.Value {
		group := groupOf[n.InstanceID]
		if n.InstanceID == "" {
			group = groupOf[n.Name]
		}
		byNode[n.Name] = group
	}
	longest := map[string]Pod{}
	for _, p := range f.Pods.Value {
		group := byNode[p.Node]
		if p.DaemonSet || group == "" {
			continue
		}
		if p.Grace >= longest[group].Grace {
			longest[group] = p
		}
	}
	return longest
}
