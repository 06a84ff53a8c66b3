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

// reported are the notices that the pods on the nodes report, until they are handled.
type reported struct {
	c    *Controller
	seen map[types.UID]string // what was read of each node last
	room chan struct{}        // a node that had the most in progress has one less
	all  sync.WaitGroup

	mu         sync.Mutex
	inProgress map[types.UID]int // by node
}

// handleReports handles what the pods on the nodes have read from the metadata of their instances, like messages, until
// ctx ends.
func (c *Controller) handleReports(ctx context.Context) {
	r := &reported{c: c, room: make(chan struct{}, 1), inProgress: map[types.UID]int{}}
	defer r.all.Wait()
	c.Cluster.AtEachChange(ctx, r.room, func() {
		before := r.seen
		r.seen = map[types.UID]string{}
		c.Cluster.Reported(func(node *corev1.Node) { r.look(ctx, node, before[node.UID]) })
	})
}

// look handles what is open on a node, if what it reads is not as before.
func (r *reported) look(ctx context.Context, node *corev1.Node, before string) {
	of, err := cluster.ReadReport(node)
	open := slices.DeleteFunc(of.Notices, func(n notice.Notice) bool {
		return of.To != r.c.Lease || slices.Contains(of.Answered, n.ID) || r.c.isRecorded(node, n)
	})
	// By its provider id a report is read. What is recorded may be dropped, as where a rule begins to ignore it.
	text := node.Spec.ProviderID + node.Annotations[cluster.ReportAnnotation]
	for _, n := range open {
		text += " " + n.ID
	}
	if r.seen[node.UID] = text; before == text {
		return
	}
	if err != nil {
		logging.Warn(r.c.Log, "what the pod on a node reports cannot be read: "+
			"only that pod can drain the node, unless it only reports", "error", err, "node", node.Name)
		return
	}
	for _, n := range open {
		if !r.begin(node.UID) {
			r.seen[node.UID] = "" // it is looked at again
			return
		}
		r.all.Go(func() {
			defer r.end(node.UID)
			r.c.handleReport(ctx, cluster.RefOf(node), n)
		})
	}
}

// begin counts a notice of a node, unless there are as many as a node may have: a kubelet can write ever new ones.
func (r *reported) begin(node types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inProgress[node] >= notice.MostReported {
		return false
	}
	r.inProgress[node]++
	return true
}

func (r *reported) end(node types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inProgress[node] == notice.MostReported {
		select {
		case r.room <- struct{}{}:
		default:
		}
	}
	if r.inProgress[node]--; r.inProgress[node] == 0 {
		delete(r.inProgress, node)
	}
}

// isRecorded reports whether a node carries a reported notice as this handler has recorded it, or nothing is left to
// do.
func (c *Controller) isRecorded(node *corev1.Node, n notice.Notice) bool {
	i, ok, err := cluster.ReadIntent(node)
	if !ok || err != nil || !decision.Knows(i, n, time.Now()) {
		return false
	}
	if i.Finished() {
		return true
	}
	// The pod may have recorded it in the intent that it shares with this handler, whose drain does not know of it then.
	d := c.Registry.Get(cluster.RefOf(node))
	return c.Cluster.Serves(i) && d != nil && d.Knows(n)
}

// handleReport handles a reported notice. Where it asks for nothing, the report says so: otherwise the pod on the node
// would drain it in the end.
func (c *Controller) handleReport(ctx context.Context, ref cluster.Ref, n notice.Notice) {
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
	// It ends with ctx, or the Node.
	_ = c.Cluster.RetryWrite(ctx, log, ref, "answer a report", func(ctx context.Context) error {
		return c.Cluster.Report(ctx, ref, func(r notice.Report) notice.Report { return r.Answering(n.ID) })
	})
}
