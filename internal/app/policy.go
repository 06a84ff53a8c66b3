package app

import (
	"fmt"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// Policy is what the options say about decisions.
func Policy(o *options.Options) decision.Policy {
	p := decision.Policy{
		CordonOnly: o.CordonOnly, NodeGracePeriod: o.NodeGracePeriod,
		Exclusion: o.ExcludeFromLoadBalancers, DrainByKarpenter: o.DrainByKarpenter,
	}
	p.HookNames = o.HookNames
	if o.HeartbeatInterval > 0 {
		p.HeartbeatUntil = o.HeartbeatUntil
	}
	if o.ByMetadata() { // the metadata is about the own instance: its tags do not matter
		p.CordonRebalance = !o.RebalanceDraining
		return p
	}
	// Rebalance recommendations drain: the rules of EventBridge say whether there are any.
	p.DeleteForeign, p.Accounts, p.Region = o.DeleteIfNodeNotFound, o.EventAccounts, o.Region
	if o.CheckTag {
		p.ManagedTag = o.ManagedTag
	}
	return p
}

// Filter is what the options say about the pods that stay on their nodes.
func Filter(o *options.Options) drain.Filter {
	return drain.Filter{IgnoreDaemonSets: o.IgnoreDaemonSets, DeleteEmptyDir: o.DeleteLocalData}
}

func cordonOptions(o *options.Options) cluster.CordonOptions {
	m := cluster.CordonOptions{ExcludeFromLoadBalancers: Policy(o).Excludes}
	if o.TaintNode {
		m.TaintEffect = o.TaintEffect
	}
	return m
}

// followPolicy reads the policy file, if the options name one; else it returns nil. The error is of type
// [options.Problems].
func followPolicy(o *options.Options, log logr.Logger, m *telemetry.Metrics) (*policyfile.Follower, error) {
	if o.PolicyFile == "" {
		return nil, nil //nolint:nilnil // nil is a Follower without a file
	}
	f, err := policyfile.Follow(o.PolicyFile, log.WithName("policy"), m.PolicyValid, fits(o))
	if err == nil {
		return f, nil
	}
	var wrong options.Problems
	for _, p := range policyfile.ProblemsOf(err) {
		wrong = append(wrong, options.Problem{Name: "policy-file", Text: o.PolicyFile + ", " + p.String()})
	}
	if len(wrong) == 0 { // it cannot be read
		wrong = options.Problems{{Name: "policy-file", Text: err.Error()}}
	}
	return nil, wrong
}

// fits checks that rules need no option that is off. A pod in IMDS mode asks Karpenter for nothing.
func fits(o *options.Options) func(*decision.Rules) error {
	return func(rules *decision.Rules) error {
		for _, rule := range rules.Nodes {
			if rule.By == intent.ByKarpenter && !o.DrainByKarpenter && !o.IMDS {
				return fmt.Errorf("%s, rule %s says by: karpenter, which needs the option drain-by-karpenter",
					o.PolicyFile, rule.Name)
			}
		}
		return nil
	}
}
