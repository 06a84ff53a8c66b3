package controller

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Nodes is how many Nodes the cluster has.
func (c *Controller) Nodes() int {
	_, all := c.Cluster.Unavailable(func(map[string]string) bool { return true })
	return all
}

// HasHeardOf reports whether a Node of the instance carries what a poll has found, or has carried
// it before: then somebody has called it off, or it was over.
func (c *Controller) HasHeardOf(n notice.Notice) bool {
	now := time.Now()
	return slices.ContainsFunc(c.Cluster.ByInstance(n.Instances[0]), func(node *corev1.Node) bool {
		i, ok, err := cluster.ReadIntent(node)
		return ok && err == nil && decision.Knows(i, n, now)
	})
}

// ToldAs is the change that AWS Health has told of, and that begins at that time; empty: no Node of the instance
// carries one.
func (c *Controller) ToldAs(id string, at time.Time) (change string) {
	for _, node := range c.Cluster.ByInstance(id) {
		if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
			change = cmp.Or(change, i.ToldAs(at))
		}
	}
	return change
}

// Polled calls visit for each entry that a Node carries and that a poll has found.
func (c *Controller) Polled(visit func(instance string, e intent.Entry, ready bool)) {
	c.Cluster.Carried(func(node *corev1.Node, e intent.Entry) {
		if id := cluster.InstanceID(node); id != "" && e.Polled() {
			visit(id, e, cluster.Ready(node))
		}
	})
}

// Impaired tells people of an instance whose status checks fail, with their names.
func (c *Controller) Impaired(id, checks string) {
	for _, node := range c.Cluster.ByInstance(id) {
		ref := cluster.RefOf(node)
		logging.Warn(c.Log, "the status checks of an instance fail", "node", ref.Name, "instance", id, "checks", checks)
		if !c.DryRun {
			c.Observer.Stepped(report.Step{
				Node: ref, Kind: report.Impair,
				Detail: "EC2 says that instance " + id + " is impaired, by the status checks: " + checks,
			})
		}
	}
}
