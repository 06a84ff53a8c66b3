package doctor

import (
	"cmp"
	"fmt"
	"strings"
)

// defaultTag is the default of the option managed-tag.
const defaultTag = "aws-node-termination-handler/managed"

func otherHandlers(f *Facts) Finding {
	if f.Pods.Err != nil {
		return unknown("whether another handler runs in the cluster", f.Pods.Err)
	}
	var same, beside []string
	apart := ""
	self, _ := f.handler()
	for _, p := range f.Pods.Value {
		name, queue := handlerOf(f, self, p)
		switch {
		case name == "":
		case queue != "" && (queue == f.Options.QueueURL || queue == f.Options.QueueName):
			same = append(same, name)
		case isKarpenter(p) && karpenterApart(f):
			apart = "; Karpenter, by its interruption queue " + queue + ", drains nodes that this handler ignores"
		default:
			beside = append(beside, name)
		}
	}
	switch {
	case len(same) > 0:
		return fail("let only one of them read the queue: remove the other, or give it a queue of its own",
			"%s reads this queue as well: each message goes to one of the two", list(same))
	case len(beside) > 0:
		return warn("let only one of them drain the nodes: both evict pods for the same interruption, and only one "+
			"completes a hook",
			"%s runs in the cluster as well", list(beside))
	}
	return ok("no other handler drains the same nodes%s", apart)
}

// drainsTheSame reports whether a pod of another release drains nodes that this one drains: it reads the metadata and
// does not see the Lease of this one, or it has a queue of the same region, which gets the same notices, and its nodes
// have the same tag.
func (f *Facts) drainsTheSame(p Pod) bool {
	if p.Env["ENABLE_SQS_TERMINATION_DRAINING"] == "false" {
		return p.Namespace != f.Options.Namespace || p.Env["LEADER_ELECT_RESOURCE_NAME"] != f.Options.Lease
	}
	tag := cmp.Or(p.Env["MANAGED_TAG"], defaultTag)
	all := p.Env["CHECK_TAG_BEFORE_DRAINING"] == "false" || !f.Options.CheckTag
	return strings.Contains(p.Env["QUEUE_URL"], "."+f.Options.Region+".") && (all || tag == f.Options.ManagedTag)
}

// handlerOf returns the name of the handler that a pod runs, and the queue that it reads if that
// is known. Both are empty for a pod that runs none, and for our own handler, self.
func handlerOf(f *Facts, self Handler, p Pod) (name, queue string) {
	app := p.Labels["app.kubernetes.io/name"]
	release := "another release of this program, " + p.Namespace + "/" + cmp.Or(p.Owner, p.Name) + ","
	switch {
	case isKarpenter(p):
		if queue = karpenterQueue(p); queue == "" {
			return "", "" // it does not listen to interruptions
		}
		return "Karpenter, by its interruption queue " + queue + ",", queue
	case p.Namespace == self.Namespace && cmp.Or(p.Owner, p.Name) == self.Name:
		return "", ""
	case f.Options.NoQueue && p.isOurs():
		if p.Namespace == f.Options.Namespace && p.Env["LEADER_ELECT_RESOURCE_NAME"] == f.Options.Lease {
			return "", "" // a pod that reports to ours
		}
		return release, ""
	case p.isOurs():
		if queue = p.Env["QUEUE_URL"]; queue == f.Options.QueueURL || f.drainsTheSame(p) {
			return release, queue
		}
		return "", ""
	case app == nthName, p.Labels["k8s-app"] == nthName, p.runs(nthName):
		kind := "a Deployment"
		if p.DaemonSet {
			kind = "a DaemonSet"
		}
		return fmt.Sprintf("AWS Node Termination Handler (%s in namespace %s)", kind, p.Namespace), p.Env["QUEUE_URL"]
	}
	return "", ""
}
