package app

import (
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// Policy is what the options say about decisions.
func Policy(o *options.Options) decision.Policy {
	if o.IMDS || o.Queue.None() { // what the metadata says is about the own instance, whatever its tags
		return decision.Policy{
			CordonOnly: o.CordonOnly, NodeGracePeriod: o.NodeGracePeriod, CordonRebalance: !o.RebalanceDraining,
			Exclusion: o.ExcludeFromLoadBalancers, DrainByKarpenter: o.DrainByKarpenter,
		}
	}
	// Rebalance recommendations drain: the rules of EventBridge say whether there are any.
	p := decision.Policy{
		CordonOnly:      o.CordonOnly,
		DeleteForeign:   o.DeleteIfNodeNotFound,
		NodeGracePeriod: o.NodeGracePeriod,
		Exclusion:       o.ExcludeFromLoadBalancers,
		HookNames:       o.HookNames,
		Accounts:        o.EventAccounts,

		DrainByKarpenter: o.DrainByKarpenter,
		Region:           o.Region,
	}
	if o.HeartbeatInterval > 0 {
		p.HeartbeatUntil = o.HeartbeatUntil
	}
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
