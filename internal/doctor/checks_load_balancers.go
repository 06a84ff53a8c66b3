package doctor

import (
	"errors"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// targetAction is what a handler needs that waits for load balancers.
const targetAction = "elasticloadbalancing:DescribeTargetHealth"

// isOfTargets reports whether a right is needed by a handler that waits for load balancers alone.
func isOfTargets(a kube.Access) bool { return a.Resource == "targetgroupbindings" }

// loadBalancers checks that drains wait for load balancers, where there are any to wait for.
func loadBalancers(f *Facts) verdict {
	const subject = "whether drains wait for load balancers"
	groups := f.TargetGroups
	switch {
	case !f.Options.Excludes:
		return ok("drains wait for no load balancers, as exclude-from-load-balancers says")
	case errors.Is(groups.Err, ErrAbsent):
		return ok("there is no AWS Load Balancer Controller, for whose load balancers drains would wait")
	case groups.Err != nil:
		return unknown(subject, groups.Err)
	case len(groups.Value) == 0:
		return ok("no TargetGroupBinding is of type instance: drains wait for no load balancers")
	}
	for a, granted := range f.Access {
		if isOfTargets(a) && granted.Err == nil && !granted.Value {
			return warn("apply the ClusterRole of deploy/manifests, which is the chart's too",
				"the handler may not %s: drains do not wait for the %s of type instance", a,
				overview.Count(len(groups.Value), "target group"))
		}
	}
	if f.Role.Err != nil {
		return unknown(subject, blocked("permissions", f.Role.Err))
	}
	for _, p := range f.Permissions {
		switch {
		case p.Action != targetAction:
		case p.Err == nil:
			return ok("drains wait for %s of type instance", overview.Count(len(groups.Value), "target group"))
		case denied(p.Err):
			return warn("add "+targetAction+" to the role's policy, as in deploy/iam/policy.json",
				"the role lacks %s: drains do not wait for the %s of type instance", targetAction,
				overview.Count(len(groups.Value), "target group"))
		default:
			return unknown(subject, p.Err)
		}
	}
	return unclear("", "%s was not tried", subject)
}
