package lookup

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// mostIgnored bounds the instances that ignored remembers: there are more of them than
// nodes in the largest cluster.
const mostIgnored = 8192

// memory is what people have been told of.
type memory struct {
	ignored *report.Told // instances, with the cause

	mu       sync.Mutex
	accounts map[string]bool // and regions, whose notices are not acted on
}

// WarnOfOtherAccount warns, once for each account and region, that their notices are not acted on.
func (r *Resolver) WarnOfOtherAccount(n notice.Notice) {
	const most = 100 // a sender can make up any name
	from := n.Account + " " + n.Region
	r.memory.mu.Lock()
	told := r.memory.accounts[from] || len(r.memory.accounts) >= most
	if !told {
		r.memory.accounts[from] = true
	}
	r.memory.mu.Unlock()
	if !told {
		logging.Warn(r.Log, "notices of another account or region are ignored (logged once for each account and region)",
			"account", n.Account, "region", n.Region, "actsOn", r.Policy.Accounts, "in", r.Policy.Region,
			"hint", "if this cluster's instances are in that account, name it in event-accounts")
	}
}

// reportIgnored tells, once for each instance and cause, that a notice about a node of this
// cluster is not acted on, and how to change that.
func (r *Resolver) reportIgnored(n notice.Notice, id string, nodes []*corev1.Node, why, hint string) {
	if len(nodes) == 0 || n.Ended || n.Gone || n.Kind == notice.ASGLaunch {
		return
	}
	if r.memory.ignored.Before(id + why) {
		return
	}
	ref := cluster.RefOf(nodes[0])
	logging.Warn(r.Log, "a notice about a node of this cluster is ignored (logged once for each instance)",
		"node", ref.Name, "instance", id, "kind", n.Kind, "event", n.ID, "why", why, "hint", hint)
	if !r.DryRun {
		r.Observer.Stepped(report.Step{
			Node: ref, Kind: report.Ignore,
			Detail: n.Kind.String() + " of instance " + id + ", " + why + " (" + hint + ")",
		})
	}
}
