package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// mostIgnored bounds the instances that ignored remembers: there are more of them than
// nodes in the largest cluster.
const mostIgnored = 8192

// warnOfOtherAccount warns, once for each account and region, that their notices are not acted on.
func (c *Controller) warnOfOtherAccount(n notice.Notice) {
	const most = 100 // a sender can make up any name
	from := n.Account + " " + n.Region
	c.mu.Lock()
	told := c.otherAccounts[from] || len(c.otherAccounts) >= most
	if !told {
		c.otherAccounts[from] = true
	}
	c.mu.Unlock()
	if !told {
		logging.Warn(c.Log, "notices of another account or region are ignored (logged once for each account and region)",
			"account", n.Account, "region", n.Region, "actsOn", c.Accounts, "in", c.Region,
			"hint", "if this cluster's instances are in that account, name it in event-accounts")
	}
}

// reportIgnored tells, once for each instance and cause, that a notice about a node of this
// cluster is not acted on, and how to change that.
func (c *Controller) reportIgnored(n notice.Notice, id string, nodes []*corev1.Node, why, hint string) {
	if len(nodes) == 0 || n.Ended || n.Gone || n.Kind == notice.ASGLaunch {
		return
	}
	c.mu.Lock()
	_, told := c.ignored.Get(id + why)
	c.ignored.Add(id+why, nil)
	c.mu.Unlock()
	if told {
		return
	}
	ref := cluster.RefOf(nodes[0])
	logging.Warn(c.Log, "a notice about a node of this cluster is ignored (logged once for each instance)",
		"node", ref.Name, "instance", id, "kind", n.Kind, "event", n.ID, "why", why, "hint", hint)
	if !c.DryRun {
		c.Observer.Stepped(report.Step{
			Node: ref, Kind: report.Ignore,
			Detail: n.Kind.String() + " of instance " + id + ", " + why + " (" + hint + ")",
		})
	}
}

// hasBeenTold reports whether people have been told of a notice that changes no node, as a rule says, and
// notes that they are. A poll finds what is ignored again each time.
func (c *Controller) hasBeenTold(n notice.Notice, id string) bool {
	event := id + " " + n.ID + n.Change
	c.mu.Lock()
	defer c.mu.Unlock()
	_, told := c.ignored.Get(event)
	c.ignored.Add(event, nil)
	return told
}

// reportUntagged calls reportIgnored for an instance without the managed tag.
func (c *Controller) reportUntagged(n notice.Notice, id string, nodes []*corev1.Node) {
	c.reportIgnored(n, id, nodes, "it has no tag "+c.ManagedTag,
		fmt.Sprintf("aws ec2 create-tags --resources %s --tags 'Key=%s,Value='", id, c.ManagedTag))
}

// reportElsewhere calls reportIgnored for an instance of another account or region.
func (c *Controller) reportElsewhere(n notice.Notice, id string, nodes []*corev1.Node) {
	c.warnOfOtherAccount(n)
	c.reportIgnored(n, id, nodes,
		"it is of account "+n.Account+" and region "+n.Region, "event-accounts names the accounts to act for")
}
