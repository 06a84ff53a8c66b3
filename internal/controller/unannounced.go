package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/carried"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Unannounced is a controller for those who look for what no message has told of. They ask what the Nodes carry.
type Unannounced struct {
	*Controller
	*carried.Nodes
}

// Unannounced returns the controller with what the Nodes carry.
func (c *Controller) Unannounced() Unannounced {
	return Unannounced{c, &carried.Nodes{
		Cluster: c.Cluster, Resolver: c.decider.resolver, Observer: c.Observer, Log: c.Log, DryRun: c.DryRun,
	}}
}

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

// Acts reports whether HandleNotice would do something about a notice now. The error is the cause of ctx.
func (c *Controller) Acts(ctx context.Context, n notice.Notice) (bool, error) {
	log := c.Log.WithValues("kind", n.Kind, "event", n.ID, "instance", n.Instances[0])
	t := &task{c: c, log: log, n: &n, id: n.Instances[0]}
	err := c.decider.decide(ctx, t, lookup.Kept)
	return err == nil && t.Action != decision.Leave && t.Action != decision.Drop, err
}

// reports are what the pods on the nodes have read from the metadata of their instances.
type reports struct{ *Controller }

// run handles the reports like messages, until ctx ends.
func (r reports) run(ctx context.Context) {
	seen := map[types.UID]string{}
	var mu sync.Mutex
	underWay := map[types.UID]int{} // a kubelet can write ever new notices
	room := make(chan struct{}, 1)  // a node that had the most under way has one less
	var all sync.WaitGroup
	defer all.Wait()
	r.Cluster.AtEachChange(ctx, room, func() {
		before := seen
		seen = map[types.UID]string{}
		r.Cluster.Reported(func(node *corev1.Node) {
			of, err := cluster.ReadReport(node)
			open := slices.DeleteFunc(of.Notices, func(n notice.Notice) bool {
				return of.To != r.Lease || slices.Contains(of.Answered, n.ID) || r.isRecorded(node, n)
			})
			// By its provider id a report is read. What is recorded may be dropped, as where a rule begins to ignore it.
			text := node.Spec.ProviderID + node.Annotations[cluster.ReportAnnotation]
			for _, n := range open {
				text += " " + n.ID
			}
			if seen[node.UID] = text; before[node.UID] == text {
				return
			}
			if err != nil {
				logging.Warn(r.Log, "what the pod on a node reports cannot be read: the pod drains the node by itself if it has to",
					"error", err, "node", node.Name)
				return
			}
			for _, n := range open {
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
					r.handleOne(ctx, cluster.RefOf(node), n)
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
	})
}

// isRecorded reports whether a node carries a reported notice as this handler has recorded it, or nothing is left to
// do.
func (r reports) isRecorded(node *corev1.Node, n notice.Notice) bool {
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && (i.Finished() || r.Cluster.Serves(i)) && decision.Knows(i, n, time.Now())
}

// handleOne handles a reported notice. Where it asks for nothing, the report says so: otherwise the pod on the node
// would drain it in the end.
func (r reports) handleOne(ctx context.Context, ref cluster.Ref, n notice.Notice) {
	log := r.Log.WithValues("node", ref.Name, "kind", n.Kind, "event", n.ID)
	acts := false
	for tries := 1; ; tries++ {
		err := r.HandleNotice(ctx, n, func() { acts = true })
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
		return r.Cluster.Report(ctx, ref, func(r notice.Report) notice.Report { return r.Answering(n.ID) })
	})
}
