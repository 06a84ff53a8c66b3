package doctor

import (
	"fmt"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// budgets finds the PodDisruptionBudgets that refuse every eviction, whatever the state of their
// pods. A drain with a deadline deletes such pods in the end; other drains wait.
// https://kubernetes.io/docs/tasks/run-application/configure-pdb/
func budgets(f *Facts) verdict {
	const subject = "whether the PodDisruptionBudgets let pods go"
	switch {
	case f.Budgets.Err != nil:
		return unknown(subject, f.Budgets.Err)
	case len(f.Budgets.Value) == 0:
		return ok("there is no PodDisruptionBudget")
	}
	var never []string
	for k := range f.Budgets.Value {
		b := &f.Budgets.Value[k]
		switch {
		case b.Uncounted != "":
			never = append(never, fmt.Sprintf("%s (its pods cannot be counted: %s)", b, b.Uncounted))
		case b.never():
			never = append(never, fmt.Sprintf("%s (needs %d of %s)", b, b.Desired, overview.Count(b.Expected, "pod")))
		}
	}
	const effect = "drains with a deadline delete these pods when it is near, and drains without one wait forever"
	switch doubled := twiceCovered(f); {
	case len(never) > 0 && len(doubled) > 0:
		return warn("let each budget allow one pod to be away (maxUnavailable: 1), with a replica more than has to run, and "+
			"one budget cover each pod",
			"PodDisruptionBudgets that never allow an eviction: %s; pods with two of them, which the eviction API refuses as "+
				"well: %s; %s", list(never), list(doubled), effect)
	case len(never) > 0:
		return warn("let the budget allow one pod to be away (maxUnavailable: 1), and run one replica more than has to run",
			"PodDisruptionBudgets that never allow an eviction: %s; %s", list(never), effect)
	case len(doubled) > 0:
		return warn("let one budget alone cover each pod",
			"pods with two PodDisruptionBudgets, which the eviction API refuses: %s; %s", list(doubled), effect)
	case f.Pods.Err != nil:
		return unknown("whether a pod has two PodDisruptionBudgets", f.Pods.Err)
	}
	return ok("%s, and each can allow an eviction", overview.Count(len(f.Budgets.Value), "PodDisruptionBudget"))
}

// twiceCovered returns the pairs of budgets that cover the same pod, each with one such pod.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func twiceCovered(f *Facts) []string {
	inNamespace := map[string][]*Budget{}
	for k := range f.Budgets.Value {
		b := &f.Budgets.Value[k]
		inNamespace[b.Namespace] = append(inNamespace[b.Namespace], b)
	}
	pods := map[string][]string{} // by the names of the budgets
	for k := range f.Pods.Value {
		p := &f.Pods.Value[k]
		var of []string
		for _, b := range inNamespace[p.Namespace] {
			if p.Node != "" && !p.DaemonSet && b.covers(p) {
				of = append(of, b.Name)
			}
		}
		if len(of) > 1 {
			names := list(of)
			pods[names] = append(pods[names], p.Namespace+"/"+p.Name)
		}
	}
	var found []string
	for names, of := range pods {
		first, more := sorted(of)[0], ""
		if len(of) > 1 {
			more = " and " + overview.Count(len(of)-1, "other pod")
		}
		found = append(found, fmt.Sprintf("%s%s (%s)", first, more, names))
	}
	return found
}

// graces finds the pods on spot instances that may take longer to stop than a spot interruption
// leaves them.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
func graces(f *Facts) verdict {
	const subject = "whether the pods on spot instances can stop in time"
	if f.Nodes.Err != nil {
		return unknown(subject, f.Nodes.Err)
	}
	instances := behind(f)
	spot := map[string]bool{}
	for _, n := range f.Nodes.Value {
		if n.Spot || instances[n.Name].Spot {
			spot[n.Name] = true
		}
	}
	switch {
	case len(spot) == 0 && f.Instances.Err != nil && !f.Options.NoQueue:
		return unknown(subject, f.Instances.Err) // nodes without a label may be on one
	case len(spot) == 0:
		return ok("no node is known to be on a spot instance")
	case f.Pods.Err != nil:
		return unknown(subject, f.Pods.Err)
	}
	var long []string
	for _, p := range f.Pods.Value {
		grace := p.Grace
		if f.Options.PodGrace > 0 {
			grace = f.Options.PodGrace
		}
		if spot[p.Node] && !p.DaemonSet && grace > spotNotice {
			long = append(long, say("%s/%s (%s)", p.Namespace, p.Name, grace))
		}
	}
	if len(long) > 0 {
		return warn(fmt.Sprintf("keep terminationGracePeriodSeconds below %d, or these pods on on-demand instances",
			spotNotice/time.Second),
			"pods on spot instances that may take longer to stop than the %s of a spot interruption: %s; they are killed with "+
				"the instance", spotNotice, list(long))
	}
	return ok("the pods on %s can stop within the %s of a spot interruption", overview.Count(len(spot), "spot instance"),
		spotNotice)
}
