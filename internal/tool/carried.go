package tool

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// carried returns what the nodes carry: the drains in progress as far as one sees them without the leader.
func (v *Viewer) carried(ctx context.Context, now time.Time) (*overview.Overview, error) {
	list, err := v.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: cluster.StateLabel})
	if err != nil {
		return nil, fmt.Errorf("list the nodes with %s: %w", cluster.StateLabel, err)
	}
	o := &overview.Overview{At: now, Source: overview.Nodes, Nodes: []overview.Node{}}
	held := 0
	for k := range list.Items {
		node := carriedBy(&list.Items[k], now)
		if node == nil {
			if c, still := stillCordoned(&list.Items[k], now); still {
				o.Cordoned = append(o.Cordoned, c)
			}
			continue
		}
		if node.Stage == overview.HeldBack {
			held++
		}
		o.Nodes = append(o.Nodes, *node)
	}
	if held > 0 {
		o.HeldBack = overview.Count(held, "node")
	}
	slices.SortFunc(o.Nodes, overview.ByDeadline)
	slices.SortFunc(o.Cordoned, overview.LongestFirst)
	return o, nil
}

// stillCordoned is report.CordonedOf for any node.
func stillCordoned(node *corev1.Node, now time.Time) (overview.Cordoned, bool) {
	i, ok, err := cluster.ReadIntent(node)
	if !ok || err != nil || !node.Spec.Unschedulable || !cluster.Ready(node) {
		return overview.Cordoned{}, false
	}
	return report.CordonedOf(cluster.RefOf(node), i, now)
}

// carriedBy returns the drain of a node; nil: none is in progress.
func carriedBy(node *corev1.Node, now time.Time) *overview.Node {
	i, ok, err := cluster.ReadIntent(node)
	switch {
	case err != nil:
		return &overview.Node{
			Name: node.Name, Instance: cluster.InstanceID(node), Kind: node.Labels[cluster.KindLabel], Stage: overview.Draining,
			WaitsFor: []overview.Wait{{Cause: overview.Record, Why: err.Error()}},
		}
	case !ok || i.Finished():
		return nil
	}
	i = i.Current(now)
	n := report.NodeOf(cluster.RefOf(node), i)
	n.WaitsFor = carriedWaits(i, &n, now)
	return &n
}

// carriedWaits are what a node says itself that it waits for.
func carriedWaits(i intent.Intent, n *overview.Node, now time.Time) []overview.Wait {
	switch {
	case n.NotBefore.After(now):
		return []overview.Wait{{Cause: overview.Window, Why: "the drain begins later", Until: n.NotBefore}}
	case i.HeldBack && i.Replacement.Step == intent.Marked && i.ReplacesFirst():
		return []overview.Wait{{
			Cause: overview.Replacement, Why: "group " + i.Replacement.Group + " replaces the instance first",
			Until: i.Replacement.Until,
		}}
	case i.HeldBack:
		return []overview.Wait{{Cause: overview.MaxUnready, Why: "it is held back, and only the leader knows for what"}}
	case i.Delegated() && i.DrainedAt.IsZero():
		return []overview.Wait{{Cause: overview.Karpenter, Why: "Karpenter gets the pods off the node"}}
	}
	return nil
}
