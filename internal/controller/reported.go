package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// reports are what the pods on the nodes have read from the metadata of their instances.
type reports struct {
	cluster *cluster.Cluster
	log     logr.Logger
	lease   string // as namespace/name: those for another handler are its
	// handle is [Controller.HandleNotice].
	handle func(ctx context.Context, n notice.Notice, acts func()) error
}

// handleAll handles the reports like messages, until ctx ends.
func (r reports) handleAll(ctx context.Context) {
	seen := map[types.UID]string{}
	var mu sync.Mutex
	underWay := map[types.UID]int{} // a kubelet can write ever new notices
	room := make(chan struct{}, 1)  // a node that had the most under way has one less
	var all sync.WaitGroup
	defer all.Wait()
	r.cluster.AtEachChange(ctx, room, func() error {
		before := seen
		seen = map[types.UID]string{}
		r.cluster.Reported(func(node *corev1.Node) {
			text := node.Spec.ProviderID + node.Annotations[cluster.ReportAnnotation] // by the id it is read
			if seen[node.UID] = text; before[node.UID] == text {
				return
			}
			of, err := cluster.ReadReport(node)
			if err != nil {
				logging.Warn(r.log, "what the pod on a node reports cannot be read: the pod drains the node by itself if it has to",
					"error", err, "node", node.Name)
				return
			}
			for _, n := range of.Notices {
				if of.To != r.lease || slices.Contains(of.Answered, n.ID) || r.isRecorded(node, n) {
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
		return nil
	})
}

// isRecorded reports whether a node carries a reported notice as this handler has recorded it, or nothing is left to
// do.
func (r reports) isRecorded(node *corev1.Node, n notice.Notice) bool {
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && (i.Finished() || r.cluster.Serves(i)) && decision.Knows(i, n, time.Now())
}

// handleOne handles a reported notice. Where it asks for nothing, the report says so: otherwise the pod on the node
// would drain it in the end.
func (r reports) handleOne(ctx context.Context, ref cluster.Ref, n notice.Notice) {
	log := r.log.WithValues("node", ref.Name, "kind", n.Kind, "event", n.ID)
	acts := false
	for tries := 1; ; tries++ {
		err := r.handle(ctx, n, func() { acts = true })
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
		return r.cluster.Report(ctx, ref, func(r notice.Report) notice.Report { return r.Answering(n.ID) })
	})
}
