// Package cluster watches the cluster's nodes. It finds the Nodes of an EC2 instance,
// reads the intent that a node carries, and patches nodes.
package cluster

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// ErrNodeGone is returned when the Node was deleted, or replaced by another one of
// the same name.
var ErrNodeGone = errors.New("the node is gone")

// ErrNoTurn is returned when the context ended before the patch had its turn at the gate: nothing was tried.
var ErrNoTurn = errors.New("other requests to the API server go first")

// Cluster is the nodes as this handler sees and writes them. Its methods may be called concurrently.
type Cluster struct {
	*nodes
	*memory
	owner
	client  kube.Client
	gate    *pace.Gate
	options CordonOptions
	seen    fields.Selector // of the nodes that there are, to this Cluster
}

const (
	byInstance = "instance"
	// One conflict can come from a watch that was behind; two in a row are rare.
	tries = 3

	readinessPrefix = "readiness.k8s.io/"
)

// New returns a Cluster that marks nodes as marks says. queue is the URL of the queue:
// intents of other queues are ignored. Patches wait at the gate. The Cluster has
// no nodes before Run.
func New(client kube.Client, gate *pace.Gate, queue string, marks CordonOptions) (*Cluster, error) {
	return newCluster(client, gate, queue, marks, fields.Everything())
}

// NewOfNode is New for a cluster of which only the Node of that name is seen.
func NewOfNode(client kube.Client, gate *pace.Gate, queue string, marks CordonOptions, node string) (*Cluster, error) {
	return newCluster(client, gate, queue, marks, fields.OneTermEqualSelector(metav1.ObjectNameField, node))
}

func newCluster(
	client kube.Client, gate *pace.Gate, queue string, marks CordonOptions, seen fields.Selector,
) (*Cluster, error) {
	list := kube.ListWatch(client, kube.Selecting(client.CoreV1().Nodes(), seen))
	watched := &nodes{
		informer: cache.NewSharedIndexInformer(
			list, &corev1.Node{}, 0, cache.Indexers{byInstance: indexByInstance}),
		changed:   make(chan struct{}),
		listeners: map[types.UID]map[*func()]bool{},
	}
	c := &Cluster{
		nodes: watched, memory: newMemory(watched, owner{queue}), owner: owner{queue},
		client: client, gate: gate, options: marks, seen: seen,
	}
	if err := watched.informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch the nodes: %w", err)
	}
	_, err := watched.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			c.noteNewNode(obj.(*corev1.Node))
			c.noteRestart(nil, obj.(*corev1.Node))
			c.broadcast(obj.(*corev1.Node))
		},
		UpdateFunc: func(before, after any) {
			b, a := before.(*corev1.Node), after.(*corev1.Node)
			if b.UID != a.UID { // deleted and created again between two events
				c.noteDeleted(b)
			}
			if b.UID != a.UID || b.Spec.ProviderID != a.Spec.ProviderID {
				c.noteNewNode(a)
			}
			// The cordon before may have come and gone between two lists.
			wrote := b.Annotations[IntentAnnotation] != a.Annotations[IntentAnnotation]
			uncordoned := (b.Spec.Unschedulable || wrote) && !a.Spec.Unschedulable
			tainted := slices.ContainsFunc(a.Spec.Taints, isOurOutOfService) &&
				!slices.ContainsFunc(b.Spec.Taints, isOurOutOfService)
			restarted := c.noteRestart(b, a)
			if uncordoned || tainted || restarted || Ready(b) != Ready(a) || untainted(b, a) || relabelled(b, a) ||
				b.Annotations[ReportAnnotation] != a.Annotations[ReportAnnotation] ||
				b.Spec.ProviderID != a.Spec.ProviderID || b.UID != a.UID {
				c.broadcast(b, a)
			}
		},
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj
			}
			if node, ok := obj.(*corev1.Node); ok {
				c.noteDeleted(node)
				c.broadcast(node)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the nodes: %w", err)
	}
	return c, nil
}

// An owner tells which intents are this handler's: those that serve its queue.
type owner struct{ queue string }

// Serves reports whether the intent is of this queue.
func (o owner) Serves(i intent.Intent) bool { return i.Serves(o.queue) }

// Reverts reports whether this handler reverts what a drain has left on its node: one of its own, or one by the pod on
// the node, which only reports where a handler leads, or one by the leader that had a queue when this one has none, or
// had none.
func (o owner) Reverts(i intent.Intent) bool { return i.Serves(o.queue) || i.LeftBehind(o.queue) }

// Joined is an intent that this handler carries out too.
func (o owner) Joined(i intent.Intent) intent.Intent { return i.From(o.queue) }

// Shares reports whether the intent has notices that another handler has written.
func (o owner) Shares(i intent.Intent) bool { return i.SharedBy(o.queue) }
