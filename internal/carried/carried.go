// Package carried is what the Nodes carry of notices, for those who look for what no message has told of: the sweep of
// lifecycle hooks, the poll of EC2's statuses, the pod on the node.
package carried

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Nodes answer what they carry. They have no state. Their methods may be called concurrently.
type Nodes struct {
	Cluster  *cluster.Cluster
	Resolver *lookup.Resolver
	// Observer and Log are told what people have to know; the observer is not with DryRun.
	Observer report.Observer
	Log      logr.Logger
	DryRun   bool
}

// Count is how many Nodes the cluster has.
func (c *Nodes) Count() int {
	_, all := c.Cluster.Unavailable(func(map[string]string) bool { return true })
	return all
}

// HasHeardOf reports whether a Node of the instance carries what a poll has found, as this handler has recorded it, or
// has carried it before: then somebody has called it off, or it was over.
func (c *Nodes) HasHeardOf(n notice.Notice) bool {
	now := time.Now()
	return slices.ContainsFunc(intents(c.Cluster.ByInstance(n.Instances[0])), func(i intent.Intent) bool {
		return (i.Finished() || c.Cluster.Serves(i)) && decision.Knows(i, n, now)
	})
}

// intents are what nodes carry, without what cannot be read.
func intents(nodes []*corev1.Node) (all []intent.Intent) {
	for _, node := range nodes {
		if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
			all = append(all, i)
		}
	}
	return all
}

// ToldAs is the change that AWS Health has told of, and that begins at that time; empty: no Node of the instance
// carries one.
func (c *Nodes) ToldAs(id string, at time.Time) (change string) {
	for _, i := range intents(c.Cluster.ByInstance(id)) {
		change = cmp.Or(change, i.ToldAs(at))
	}
	return change
}

// Polled calls visit for each entry that a Node carries and that a poll has found.
func (c *Nodes) Polled(visit func(instance string, e intent.Entry, ready bool)) {
	c.Cluster.Carried(func(node *corev1.Node, e intent.Entry) {
		if id := cluster.InstanceID(node); id != "" && e.Polled() {
			visit(id, e, cluster.Ready(node))
		}
	})
}

// Impaired tells people of an instance whose status checks fail, with their names.
func (c *Nodes) Impaired(id, checks string) {
	c.tell(id, report.Step{
		Kind: report.Impair, Detail: "EC2 says that instance " + id + " is impaired, by the status checks: " + checks,
	}, "the status checks of an instance fail", "checks", checks)
}

// tell tells people of each Node of an instance, by the log and by a step.
func (c *Nodes) tell(id string, step report.Step, message string, keysAndValues ...any) {
	for _, node := range c.Cluster.ByInstance(id) {
		step.Node = cluster.RefOf(node)
		logging.Warn(c.Log.WithValues("node", step.Node.Name, "instance", id), message, keysAndValues...)
		if !c.DryRun {
			c.Observer.Stepped(step)
		}
	}
}

// Changes are the scheduled changes that the Nodes of the instance carry, by [notice.Notice.Change].
func (c *Nodes) Changes(id string) []string {
	nodes := c.Cluster.ByInstance(id)
	if inst, known, _ := c.Resolver.Known(id); len(nodes) == 0 && known {
		nodes = c.Resolver.NodesNamedLike(inst)
	}
	var changes []string
	for _, i := range intents(nodes) {
		for _, e := range i.Entries {
			if e.Kind == notice.ScheduledChange {
				changes = append(changes, e.Change)
			}
		}
	}
	return changes
}

// HasNode reports whether the cluster has a Node of the instance.
func (c *Nodes) HasNode(id string) bool { return len(c.Cluster.ByInstance(id)) > 0 }

// Terminates reports whether a notice has told that the instance is terminated, as its Nodes carry it,
// by an event that is no older than since. What the metadata tells does not count: it knows of no hooks.
func (c *Nodes) Terminates(id string, since time.Time) bool {
	return slices.ContainsFunc(intents(c.Cluster.ByInstance(id)), func(i intent.Intent) bool {
		return slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
			ofEvent := len(e.IDs) == 0 || slices.ContainsFunc(e.IDs, func(id string) bool { return !notice.OfMetadata(id) })
			return e.Kind == notice.ASGTerminate && ofEvent && !e.Before(since)
		})
	})
}

// Told reports whether a notice has told of the hook: a Node of its instance carries it. A drain
// that has completed the hook does not carry it any more.
func (c *Nodes) Told(h intent.Hook) bool {
	return slices.ContainsFunc(intents(c.Cluster.ByInstance(h.Instance)), func(i intent.Intent) bool {
		return slices.ContainsFunc(i.Hooks, func(have intent.Hook) bool {
			return have.Group == h.Group && have.Name == h.Name
		})
	})
}

// Retained tells people of an instance that its group keeps after an abandoned termination.
func (c *Nodes) Retained(id, group string) {
	c.tell(id, report.Step{
		Kind: report.Retain,
		Detail: "Auto Scaling group " + group + " keeps instance " + id + ", because its termination was abandoned: " +
			"end it with aws autoscaling terminate-instance-in-auto-scaling-group",
	}, "an instance is retained by its group: its termination was abandoned, and a person has to end it", "group", group,
		"hint", "aws autoscaling terminate-instance-in-auto-scaling-group "+
			"--no-should-decrement-desired-capacity --instance-id "+id)
}
