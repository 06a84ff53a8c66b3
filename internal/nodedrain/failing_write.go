package nodedrain

import (
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A failingWrite is a Node whose intent cannot be written.
type failingWrite struct {
	ref         cluster.Ref
	news        *News     // what was to be recorded last; nil: the node is in a drain
	since, last time.Time // the begin of the first try in a row that has failed, and the end of the last one
	err         error     // of the last
}

// forgottenAfter is longer than a try of cluster.RetryWrite and the pause before it: nobody tries any more.
const forgottenAfter = time.Minute

// failingWrites are the Nodes that cannot be written. They may be used concurrently.
type failingWrites struct {
	cluster *cluster.Cluster

	mu     sync.Mutex
	byNode map[types.UID]failingWrite
}

// note notes whether the intent of a Node could be written, in a try that has begun at a time. news is what was to be
// recorded; nil: the node is in a drain.
func (f *failingWrites) note(ref cluster.Ref, news *News, began time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil || errors.Is(err, cluster.ErrNodeGone) {
		delete(f.byNode, ref.UID)
		return
	}
	now := time.Now()
	w, known := f.byNode[ref.UID]
	known = known && now.Sub(w.last) <= forgottenAfter
	switch {
	case !known && f.isBusy(ref, err):
		return
	case !known:
		w = failingWrite{ref: ref, since: began, err: err}
	case !errors.Is(err, cluster.ErrNoTurn):
		w.err = err
	}
	if w.last = now; news != nil {
		w.news = news
	}
	f.byNode[ref.UID] = w
}

// isBusy reports whether a Node was not written for other requests alone: that says nothing of the Node, unless its
// last patch has hung.
func (f *failingWrites) isBusy(ref cluster.Ref, err error) bool {
	return errors.Is(err, cluster.ErrNoTurn) && !f.cluster.LastHung(ref)
}

// since is since when a Node cannot be written; zero: it can, as far as is known.
func (f *failingWrites) since(ref cluster.Ref) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w, known := f.byNode[ref.UID]; known && time.Since(w.last) <= forgottenAfter {
		return w.since
	}
	return time.Time{}
}

// lasting are the Nodes that cannot be written for a while: not those of which one request has failed soon.
func (f *failingWrites) lasting(now time.Time) map[types.UID]failingWrite {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byNode, func(_ types.UID, w failingWrite) bool { return now.Sub(w.last) > forgottenAfter })
	failing := maps.Clone(f.byNode)
	maps.DeleteFunc(failing, func(_ types.UID, w failingWrite) bool { return w.last.Sub(w.since) < firstTries })
	return failing
}

// wait says that the Node cannot be written.
func (w failingWrite) wait(uncordoned bool) overview.Wait {
	why := "the Node cannot be written: "
	if uncordoned {
		why = "the Node cannot be cordoned: "
	}
	return overview.Wait{Cause: overview.FailingWrite, Why: overview.CleanText(why + kube.Why(w.err))}
}

// unrecordedNode is a node on which the first notice cannot be recorded, as people see it; nil: there is none.
func (r *Registry) unrecordedNode(w failingWrite) *overview.Node {
	if w.news == nil || !r.Cluster.Exists(w.ref) {
		return nil
	}
	if on, ok := r.intentOn(w.ref); ok && on.Over(*w.news.Entry) {
		return nil
	}
	carried := intent.Intent{Entries: []intent.Entry{*w.news.Entry}}
	if w.news.Hook != nil {
		carried.Hooks = []intent.Hook{*w.news.Hook}
	}
	n := report.NodeOf(w.ref, carried)
	n.WaitsFor = []overview.Wait{w.wait(r.isUncordoned(w.ref))}
	return &n
}
