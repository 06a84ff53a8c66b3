// Package conditions writes conditions of Nodes that say how far their drains are, so that kubectl describe node
// tells it, and other controllers can wait for it.
//
// What a node should say follows from the intent that it carries, and from nothing else. So a new leader corrects
// what the one before it has left.
package conditions

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// interval is how often all nodes are compared with their conditions. A drain that ends within it costs one write
	// instead of two.
	interval = 3 * time.Second
	// writePause bounds the writes to 20 a second. Each is sent to everybody who watches the nodes.
	writePause = 50 * time.Millisecond
	// deniedPause is how long nothing is written without the permission: a person grants it.
	deniedPause = 10 * time.Minute
)

// A Writer writes the conditions. Set the fields before Run.
type Writer struct {
	// Client writes. It must not use up the requests of drains, and needs a time limit.
	Client typedcorev1.NodesGetter
	Nodes  *cluster.Cluster
	// Policy says which drains only cordon their nodes.
	Policy decision.Policy
	Log    logr.Logger
}

// Run writes until ctx ends. It may be called again after that.
func (w *Writer) Run(ctx context.Context) {
	told := false
	for ctx.Err() == nil {
		pause := interval
		if err := w.writeAll(ctx); err != nil {
			pause = deniedPause
			if !told {
				told = true
				logging.Warn(w.Log, "the conditions of nodes cannot be written (logged once)", "error", err,
					"hint", "allow patch of nodes/status in the ClusterRole, or turn the conditions off by node-conditions")
			}
		}
		_ = retry.Sleep(ctx, pause) // the loop ends with ctx
	}
}

// writeAll lets each node say what it should. The error says that this is forbidden.
func (w *Writer) writeAll(ctx context.Context) error {
	var differ []cluster.Ref
	w.Nodes.All(func(node *corev1.Node) {
		if len(w.changed(node)) > 0 {
			differ = append(differ, cluster.RefOf(node))
		}
	})
	for _, ref := range differ {
		node := w.Nodes.ByName(ref.Name)
		if node == nil || node.UID != ref.UID {
			continue
		}
		all := w.changed(node)
		if len(all) == 0 {
			continue
		}
		if err := w.write(ctx, node, all); apierrors.IsForbidden(err) {
			return err
		}
		if retry.Sleep(ctx, writePause) != nil {
			return nil
		}
	}
	return nil
}

// changed returns what the node should say, and does not.
func (w *Writer) changed(node *corev1.Node) []corev1.NodeCondition {
	i, ours := w.Nodes.SpeaksFor(node)
	if !ours {
		return nil
	}
	return changed(node.Status.Conditions, i, decision.CordonsOnly(i, w.Policy), time.Now())
}

// write lets a node say it.
func (w *Writer) write(ctx context.Context, node *corev1.Node, all []corev1.NodeCondition) error {
	body, _ := json.Marshal(map[string]any{ // it fails only for what is no JSON
		"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"conditions": all},
	})
	// The merge key of conditions is their type: those of others stay as they are.
	_, err := w.Client.Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	switch {
	case errors.Is(err, context.Canceled), apierrors.IsNotFound(err), apierrors.IsConflict(err): // another Node by now
		return nil
	case err != nil:
		w.Log.V(1).Info("the conditions of a node could not be written", "node", node.Name, "error", err)
	}
	return err
}
