package nodedrain

import (
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// unwritten is a Node whose intent cannot be written.
type unwritten struct {
	ref         cluster.Ref
	entry       *intent.Entry // what was to be recorded; nil: the node is in a drain
	since, last time.Time     // the first failure in a row, and the last one
	err         error         // of the last
}

// forgottenAfter is longer than the time between two tries of cluster.Retry: nobody tries any more.
const forgottenAfter = 30 * time.Second

// noteWrite notes whether the intent of a Node could be written, for Status. entry is what was to be recorded; nil: the
// node is in a drain.
func (r *Registry) noteWrite(ref cluster.Ref, entry *intent.Entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || errors.Is(err, cluster.ErrNodeGone) {
		delete(r.unwritten, ref.UID)
		return
	}
	if errors.Is(err, cluster.ErrNoTurn) || errors.Is(err, ErrOutdated) { // it was not tried
		return
	}
	now := time.Now()
	w, known := r.unwritten[ref.UID]
	if !known || now.Sub(w.last) > forgottenAfter {
		w = unwritten{ref: ref, entry: entry, since: now}
	}
	w.last, w.err = now, err
	r.unwritten[ref.UID] = w
}

// failedWrites are the Nodes that cannot be written for a while.
func (r *Registry) failedWrites(now time.Time) map[types.UID]unwritten {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.unwritten, func(_ types.UID, w unwritten) bool { return now.Sub(w.last) > forgottenAfter })
	failing := maps.Clone(r.unwritten)
	maps.DeleteFunc(failing, func(_ types.UID, w unwritten) bool { return now.Sub(w.since) < firstTries })
	return failing
}

// wait says that the Node of a drain cannot be written.
func (w unwritten) wait(n *overview.Node) overview.Wait {
	why := "the Node cannot be written: "
	if n.CordonedAt.IsZero() {
		why = "the Node cannot be cordoned: "
	}
	return overview.Wait{Cause: overview.Record, Why: why + kube.Why(w.err)}
}

// node is a node on which the first notice cannot be recorded, as people see it; nil: it is in a drain.
func (w unwritten) node() *overview.Node {
	if w.entry == nil {
		return nil
	}
	n := report.NodeOf(w.ref, intent.Intent{Entries: []intent.Entry{*w.entry}})
	n.WaitsFor = []overview.Wait{w.wait(&n)}
	return &n
}
