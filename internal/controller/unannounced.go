package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

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
	if isLeave(err) || errors.Is(err, nodedrain.ErrGiveWay) { // the next leader goes on with what the node carries
		return nil
	}
	return err
}

// Changes are the scheduled changes that the Nodes of the instance carry, by [notice.Notice.Change].
func (c *Controller) Changes(id string) []string {
	nodes := c.Cluster.ByInstance(id)
	if inst, known, _ := c.Lookup.Known(id); len(nodes) == 0 && known {
		nodes = c.nodesNamedLike(inst)
	}
	var changes []string
	for _, node := range nodes {
		i, _, err := cluster.ReadIntent(node)
		if err != nil {
			continue
		}
		for _, e := range i.Entries {
			if e.Kind == notice.ScheduledChange {
				changes = append(changes, e.Change)
			}
		}
	}
	return changes
}

// HasNode reports whether the cluster has a Node of the instance.
func (c *Controller) HasNode(id string) bool { return len(c.Cluster.ByInstance(id)) > 0 }

// Terminates reports whether a notice has told that the instance is terminated, as its Nodes carry it,
// by an event that is no older than since. What the metadata tells does not count: it knows of no hooks.
func (c *Controller) Terminates(id string, since time.Time) bool {
	return slices.ContainsFunc(c.Cluster.ByInstance(id), func(node *corev1.Node) bool {
		i, _, err := cluster.ReadIntent(node)
		return err == nil && slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
			ofEvent := len(e.IDs) == 0 || slices.ContainsFunc(e.IDs, func(id string) bool { return !notice.OfMetadata(id) })
			return e.Kind == notice.ASGTerminate && ofEvent && !e.Before(since)
		})
	})
}

// Told reports whether a notice has told of the hook: a Node of its instance carries it. A drain
// that has completed the hook does not carry it any more.
func (c *Controller) Told(h intent.Hook) bool {
	return slices.ContainsFunc(c.Cluster.ByInstance(h.Instance), func(node *corev1.Node) bool {
		i, _, err := cluster.ReadIntent(node)
		return err == nil && slices.ContainsFunc(i.Hooks, func(have intent.Hook) bool {
			return have.Group == h.Group && have.Name == h.Name
		})
	})
}

// Retained tells people of an instance that its group keeps after an abandoned termination.
func (c *Controller) Retained(id, group string) {
	for _, node := range c.Cluster.ByInstance(id) {
		ref := cluster.RefOf(node)
		logging.Warn(c.Log, "an instance is retained by its group: its termination was abandoned, and a person has to end it",
			"node", ref.Name, "instance", id, "group", group,
			"hint", "aws autoscaling terminate-instance-in-auto-scaling-group "+
				"--no-should-decrement-desired-capacity --instance-id "+id)
		if !c.DryRun {
			c.Observer.Stepped(report.Step{
				Node: ref, Kind: report.Retain,
				Detail: "Auto Scaling group " + group + " keeps instance " + id + ", because its termination was abandoned: " +
					"end it with aws autoscaling terminate-instance-in-auto-scaling-group",
			})
		}
	}
}
