package controller

import (
	"context"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Unannounced is a controller for those who look for what no message has told of: the sweep of lifecycle hooks, the
// poll of EC2's statuses, the pod on the node. They ask what the Nodes carry.
type Unannounced struct{ *Controller }

// Unannounced returns the controller for them.
func (c *Controller) Unannounced() Unannounced { return Unannounced{c} }

// HandleNotice does what a notice about one instance asks for, of which no message has told.
// It calls acts when it begins to do something. It returns nil when that is done, or when the
// instance is not this cluster's to drain. It may be called again for the same notice, by
// another process too.
func (c *Controller) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	defer pprof.SetGoroutineLabels(ctx)
	ctx = pprof.WithLabels(ctx, pprof.Labels("event", n.ID))
	pprof.SetGoroutineLabels(ctx)
	log := c.Log.WithValues("kind", n.Kind, "event", n.ID)
	acts = sync.OnceFunc(acts)
	err := logging.Recover(c.Log, func() error {
		return c.handle(ctx, log, &n, func(a decision.Action) {
			if !c.DryRun && a != decision.Leave && a != decision.Drop {
				acts()
			}
		})
	})
	if isLeave(err) {
		return nil
	}
	return err
}

// Acts reports whether HandleNotice would do something about a notice now. The error is the cause of ctx.
func (c *Controller) Acts(ctx context.Context, n notice.Notice) (bool, error) {
	log := c.Log.WithValues("kind", n.Kind, "event", n.ID, "instance", n.Instances[0])
	t := &task{c: c, log: log, n: &n, id: n.Instances[0]}
	err := t.decide(ctx, lookup.Kept)
	return err == nil && t.Action != decision.Leave && t.Action != decision.Drop, err
}

// Count is how many Nodes the cluster has.
func (u Unannounced) Count() int {
	_, all := u.Cluster.Unavailable(func(map[string]string) bool { return true })
	return all
}

// HasHeardOf reports whether a Node of the instance carries what a poll has found, as this handler has recorded it, or
// has carried it before: then somebody has called it off, or it was over.
func (u Unannounced) HasHeardOf(n notice.Notice) bool {
	return slices.ContainsFunc(u.Cluster.ByInstance(n.Instances[0]), func(node *corev1.Node) bool {
		return u.isRecorded(node, n)
	})
}

// intentsOn are what nodes carry, without what cannot be read.
func intentsOn(nodes []*corev1.Node) (all []intent.Intent) {
	for _, node := range nodes {
		if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
			all = append(all, i)
		}
	}
	return all
}

// Scheduled are the scheduled changes that the Nodes of the instance carry.
func (u Unannounced) Scheduled(id string) (all []intent.Entry) {
	for _, i := range intentsOn(u.Cluster.ByInstance(id)) {
		for _, e := range i.Entries {
			if e.Kind == notice.ScheduledChange {
				all = append(all, e)
			}
		}
	}
	return all
}

// Polled calls visit for each entry that a Node carries and that a poll has found.
func (u Unannounced) Polled(visit func(instance string, e intent.Entry, ready, reported bool)) {
	u.Cluster.Carried(func(node *corev1.Node, e intent.Entry) {
		if id := cluster.InstanceID(node); id != "" && e.Polled() {
			r, _ := cluster.ReadReport(node) // what cannot be read reports nothing
			tells := func(n notice.Notice) bool { return n.Kind == e.Kind && n.Change == e.Change && !n.Ended }
			visit(id, e, cluster.Ready(node), slices.ContainsFunc(r.Notices, tells))
		}
	})
}

// Impaired tells people of an instance whose status checks fail, with their names.
func (u Unannounced) Impaired(id, checks string) {
	u.tell(id, report.Step{
		Kind: report.Impair, Detail: "EC2 says that instance " + id + " is impaired, by the status checks: " + checks,
	}, "the status checks of an instance fail", "checks", checks)
}

// tell tells people of each Node of an instance, by the log and by a step.
func (u Unannounced) tell(id string, step report.Step, message string, keysAndValues ...any) {
	for _, node := range u.Cluster.ByInstance(id) {
		step.Node = cluster.RefOf(node)
		logging.Warn(u.Log.WithValues("node", step.Node.Name, "instance", id), message, keysAndValues...)
		if !u.DryRun {
			u.Observer.Stepped(step)
		}
	}
}

// Changes are the scheduled changes that the Nodes of the instance carry, by [notice.Notice.Change].
func (u Unannounced) Changes(id string) []string {
	nodes := u.Cluster.ByInstance(id)
	if inst, known, _ := u.resolver.Known(id); len(nodes) == 0 && known {
		nodes = u.resolver.NodesNamedLike(inst)
	}
	var changes []string
	for _, i := range intentsOn(nodes) {
		for _, e := range i.Entries {
			if e.Kind == notice.ScheduledChange {
				changes = append(changes, e.Change)
			}
		}
	}
	return changes
}

// HasNode reports whether the cluster has a Node of the instance.
func (u Unannounced) HasNode(id string) bool { return len(u.Cluster.ByInstance(id)) > 0 }

// Terminates reports whether a notice has told that the instance is terminated, as its Nodes carry it,
// by an event that is no older than since, or that has begun to bind the Node since: an event has the time of AWS's
// clock, a cordon that of ours. What the metadata tells does not count: it knows of no hooks.
func (u Unannounced) Terminates(id string, since time.Time) bool {
	return slices.ContainsFunc(intentsOn(u.Cluster.ByInstance(id)), func(i intent.Intent) bool {
		return slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
			ofEvent := len(e.IDs) == 0 || slices.ContainsFunc(e.IDs, func(id string) bool { return !notice.OfMetadata(id) })
			return e.Kind == notice.ASGTerminate && ofEvent && (!e.Before(since) || !i.CordonedAt.Before(since))
		})
	})
}

// Told reports whether a notice has told of the hook: a Node of its instance carries it. A drain
// that has completed the hook does not carry it any more.
func (u Unannounced) Told(h intent.Hook) bool {
	return slices.ContainsFunc(intentsOn(u.Cluster.ByInstance(h.Instance)), func(i intent.Intent) bool {
		return slices.ContainsFunc(i.Hooks, func(have intent.Hook) bool {
			return have.Group == h.Group && have.Name == h.Name
		})
	})
}

// Retained tells people of an instance that its group keeps after an abandoned termination.
func (u Unannounced) Retained(id, group string) {
	u.tell(id, report.Step{
		Kind: report.Retain,
		Detail: "Auto Scaling group " + group + " keeps instance " + id + ", because its termination was abandoned: " +
			"end it with aws autoscaling terminate-instance-in-auto-scaling-group",
	}, "an instance is retained by its group: its termination was abandoned, and a person has to end it", "group", group,
		"hint", "aws autoscaling terminate-instance-in-auto-scaling-group "+
			"--no-should-decrement-desired-capacity --instance-id "+id)
}
