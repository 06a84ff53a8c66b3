package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// takeReports handles what the pods on the nodes have read from the metadata of their instances as it handles messages,
// until ctx ends.
func (c *Controller) takeReports(ctx context.Context) {
	seen := map[types.UID]string{}
	var mu sync.Mutex
	underWay := map[types.UID]int{} // a kubelet can write ever new notices
	room := make(chan struct{}, 1)  // a node that had the most under way has one less
	var all sync.WaitGroup
	defer all.Wait()
	c.Cluster.AtEachChange(ctx, room, func() error {
		before := seen
		seen = map[types.UID]string{}
		c.Cluster.Reported(func(node *corev1.Node) {
			text := node.Spec.ProviderID + node.Annotations[cluster.ReportAnnotation] // by the id it is read
			if seen[node.UID] = text; before[node.UID] == text {
				return
			}
			r, err := cluster.ReadReport(node)
			if err != nil {
				logging.Warn(c.Log, "what the pod on a node reports cannot be read: the pod drains the node by itself if it has to",
					"error", err, "node", node.Name)
				return
			}
			for _, n := range r.Notices {
				if r.To != c.Lease || slices.Contains(r.Answered, n.ID) || c.hasTaken(node, n) {
					continue
				}
				mu.Lock()
				full := underWay[node.UID] >= notice.MostReported
				if !full {
					underWay[node.UID]++
				}
				mu.Unlock()
				if full {
					seen[node.UID] = "" // it is looked at again
					return
				}
				all.Go(func() {
					c.takeReport(ctx, cluster.RefOf(node), n)
					mu.Lock()
					defer mu.Unlock()
					if underWay[node.UID] == notice.MostReported {
						select {
						case room <- struct{}{}:
						default:
						}
					}
					if underWay[node.UID]--; underWay[node.UID] == 0 {
						delete(underWay, node.UID)
					}
				})
			}
		})
		return nil
	})
}

// hasTaken reports whether a node carries a reported notice as this handler has recorded it, or nothing is left to do.
func (c *Controller) hasTaken(node *corev1.Node, n notice.Notice) bool {
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && (i.Finished() || c.Cluster.Serves(i)) && decision.Knows(i, n, time.Now())
}

// takeReport handles a reported notice. Where it asks for nothing, the report says so: otherwise the pod on the node
// would drain it in the end.
func (c *Controller) takeReport(ctx context.Context, ref cluster.Ref, n notice.Notice) {
	log := c.Log.WithValues("node", ref.Name, "kind", n.Kind, "event", n.ID)
	acts := false
	for tries := 1; ; tries++ {
		err := c.HandleNotice(ctx, n, func() { acts = true })
		if err == nil {
			break
		}
		if cluster.PauseAfter(ctx, log, err, "handle what the pod on the node reports", tries) != nil {
			return
		}
	}
	if acts {
		return
	}
	_ = cluster.Retry(ctx, log, "answer a report", func(ctx context.Context) error { // it ends with ctx, or the Node
		return c.Cluster.Report(ctx, ref, func(r notice.Report) notice.Report { return r.Answering(n.ID) })
	})
}
