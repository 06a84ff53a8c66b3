// Package conditions writes conditions of Nodes that say how far their drains are, so that kubectl describe node
// tells it, and other controllers can wait for it.
//
// What a node should say follows from the intent that it carries, and from nothing else. So a new leader corrects
// what the one before it has left, and a report that is dropped costs some seconds.
package conditions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// settleTime is how long after a report the node is looked at: the watch has the last write by then, and a
	// drain that ends within it costs one write instead of two.
	settleTime = time.Second
	// sweepInterval is how often all nodes are compared with their conditions: a planned maintenance begins
	// without a report, and reports may have been dropped.
	sweepInterval = 30 * time.Second
	// writePause bounds the writes to 20 a second. Each is sent to everybody who watches the nodes.
	writePause = 50 * time.Millisecond
	// mostWaiting bounds the nodes that wait for a write. In a larger storm the sweep writes the rest later.
	mostWaiting = 1024
	// deniedPause is how long nothing is written without the permission: a person grants it.
	deniedPause = 10 * time.Minute
)

// Nodes are those of the cluster, as [cluster.Cluster] sees them by its watch.
type Nodes interface {
	// All calls visit for each node, which has its intent and the conditions that are ours.
	All(visit func(node *corev1.Node))
	// ByName returns the node of that name; nil: there is none.
	ByName(name string) *corev1.Node
	// SpeaksFor reports whether this handler writes the conditions of the node, and what it carries.
	SpeaksFor(node *corev1.Node) (intent.Intent, bool)
}

// A Writer writes the conditions. It is a [report.Observer], whose reports tell it where to look. Its methods
// may be called concurrently, and do not block. Set the fields before Run.
type Writer struct {
	// Client writes. It must not use up the requests of drains, and needs a time limit.
	Client typedcorev1.NodesGetter
	Nodes  Nodes
	// Policy says which drains only cordon their nodes.
	Policy decision.Policy
	Log    logr.Logger

	mu      sync.Mutex
	waiting []nudge              // the oldest first, a node once
	counts  map[types.UID]string // of the nodes that wait: what became of their pods
	woken   chan struct{}        // nil outside of Run
}

// A nudge asks to look at a node.
type nudge struct {
	name string
	uid  types.UID
	at   time.Time
}

// Decided implements report.Observer. It does nothing: what is decided is then done.
func (w *Writer) Decided(report.Decision) {}

// Recorded implements report.Observer. It does nothing: the step has told of the node.
func (w *Writer) Recorded(intent.Entry) {}

// Stepped implements report.Observer.
func (w *Writer) Stepped(s report.Step) {
	if s.Err == nil && s.Node.Name != "" {
		w.look(nudge{s.Node.Name, s.Node.UID, time.Now().Add(settleTime)}, "")
	}
}

// Drained implements report.Observer.
func (w *Writer) Drained(d report.Drain) {
	w.look(nudge{d.Node.Name, d.Node.UID, time.Now().Add(settleTime)}, counted(d.Result))
}

// counted says what became of pods, without their names: who may read nodes may not know them.
func counted(r evacuation.Result) string {
	var parts []string
	for _, p := range []struct {
		pods int
		how  string
	}{
		{r.Evicted, "evicted"},
		{r.Forced, "deleted"},
		{r.Ended, "ended"},
		{len(r.Missed), "missed"},
		{len(r.Lost), "lost"},
		{len(r.Unconfirmed), "unconfirmed"},
	} {
		if p.pods > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.pods, p.how))
		}
	}
	if len(parts) == 0 {
		return "none had to leave"
	}
	return strings.Join(parts, ", ")
}

// look has a node looked at. Of too many that wait the oldest is dropped: the sweep finds it again. Outside of Run
// it does nothing.
func (w *Writer) look(n nudge, counts string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.woken == nil {
		return
	}
	if counts != "" {
		for uid := range w.counts { // any: what is lost is a number in a text
			if len(w.counts) < mostWaiting {
				break
			}
			delete(w.counts, uid)
		}
		w.counts[n.uid] = counts
	}
	for k := range w.waiting {
		if w.waiting[k].uid == n.uid {
			return
		}
	}
	if w.waiting = append(w.waiting, n); len(w.waiting) > mostWaiting {
		delete(w.counts, w.waiting[0].uid)
		w.waiting = w.waiting[1:]
	}
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// next takes out the node that has waited longest, if its time has come. Otherwise wait says when to ask again;
// zero: no node waits.
func (w *Writer) next(now time.Time) (n nudge, counts string, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return nudge{}, "", 0
	}
	if n = w.waiting[0]; n.at.After(now) {
		return nudge{}, "", n.at.Sub(now)
	}
	w.waiting = w.waiting[1:]
	return n, w.counts[n.uid], 0
}

// Run writes until ctx ends. It may be called again after that.
func (w *Writer) Run(ctx context.Context) {
	w.start(make(chan struct{}, 1))
	defer w.start(nil)
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	w.sweep(time.Now())
	var denied time.Time
	for ctx.Err() == nil {
		n, counts, wait := w.next(time.Now())
		if n.name != "" {
			if time.Since(denied) < deniedPause && !denied.IsZero() {
				continue
			}
			wrote, err := w.write(ctx, n, counts)
			if apierrors.IsForbidden(err) {
				first := denied.IsZero()
				denied = time.Now()
				if !first {
					continue
				}
				logging.Warn(w.Log, "the conditions of nodes cannot be written (logged once)", "error", err,
					"hint", "allow patch of nodes/status in the ClusterRole, or turn the conditions off by node-conditions")
			}
			if wrote {
				_ = retry.Sleep(ctx, writePause) // the loop ends with ctx
			}
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-sweep.C:
			w.sweep(time.Now())
		case <-w.woken:
		case <-due:
		}
	}
}

// start begins a run with nothing that waits, or ends one if woken is nil.
func (w *Writer) start(woken chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.counts, w.woken = nil, map[types.UID]string{}, woken
}

// sweep has all nodes looked at that do not say what they should.
func (w *Writer) sweep(now time.Time) {
	w.Nodes.All(func(node *corev1.Node) {
		if len(w.changed(node, "", now)) > 0 {
			w.look(nudge{node.Name, node.UID, now}, "")
		}
	})
}

// changed returns what the node should say, and does not.
func (w *Writer) changed(node *corev1.Node, counts string, now time.Time) []corev1.NodeCondition {
	i, ours := w.Nodes.SpeaksFor(node)
	if !ours {
		return nil
	}
	return changed(node.Status.Conditions, i, decision.CordonsOnly(i, w.Policy), counts, now)
}

// write lets a node say what it should. wrote: a request was made.
func (w *Writer) write(ctx context.Context, n nudge, counts string) (wrote bool, err error) {
	node := w.Nodes.ByName(n.name)
	if node == nil || node.UID != n.uid {
		w.forget(n.uid)
		return false, nil
	}
	all := w.changed(node, counts, time.Now())
	if i, _ := w.Nodes.SpeaksFor(node); i.Finished() {
		w.forget(n.uid)
	}
	if len(all) == 0 {
		return false, nil
	}
	var patch struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status struct {
			Conditions []corev1.NodeCondition `json:"conditions"`
		} `json:"status"`
	}
	patch.Metadata.UID, patch.Status.Conditions = node.UID, all
	body, err := json.Marshal(patch)
	if err != nil {
		return false, err
	}
	// The merge key of conditions is their type: those of others stay as they are.
	_, err = w.Client.Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	switch {
	case errors.Is(err, context.Canceled), apierrors.IsNotFound(err), apierrors.IsConflict(err): // another Node by now
		return true, nil
	case err != nil:
		w.Log.V(1).Info("the conditions of a node could not be written", "node", node.Name, "error", err)
	}
	return true, err
}

// forget forgets what became of a node's pods.
func (w *Writer) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.counts, uid)
}
