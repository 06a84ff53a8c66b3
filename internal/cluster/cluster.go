// Package cluster is the view of the cluster's nodes: which node an EC2 instance
// is, what this controller intends with it, and the patches that say so.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// ErrNodeGone is returned when the Node is no longer there, or is another one
// under the old name.
var ErrNodeGone = errors.New("the node is gone")

// Client speaks to the API server: a clientset, or as much of one as this package uses.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

// Cluster knows the nodes. Its methods may be called concurrently.
type Cluster struct {
	client Client
	gate   *pace.Gate
	queue  string
	marks  Marks
	nodes  cache.SharedIndexInformer

	mu      sync.Mutex
	changed chan struct{}             // closed and replaced when a node comes, goes or turns ready
	left    *utilcache.LRUExpireCache // instance ids of nodes that were deleted
}

// A Ref names one Node for its whole life; a new Node of the same name is another.
type Ref struct {
	Name     string
	UID      types.UID
	Instance string // EC2 instance id; empty where the node has no provider id
}

const (
	byInstance = "instance"
	// One conflict is a watch that was behind, two are bad luck.
	tries = 3
	// How many instance ids of deleted nodes are remembered, and how long: the
	// notices of an instance's end come within minutes of its Node's deletion.
	leftSize = 10_000
	leftTTL  = time.Hour
)

// New returns a Cluster that marks nodes as marks says, and goes on only with
// what notices of the queue, a URL, began. Its patches pass the gate. It sees no
// node before Run.
func New(client Client, gate *pace.Gate, queue string, marks Marks) (*Cluster, error) {
	c := &Cluster{
		client:  client,
		gate:    gate,
		queue:   queue,
		marks:   marks,
		nodes:   cache.NewSharedIndexInformer(listWatch(client), &corev1.Node{}, 0, cache.Indexers{byInstance: indexByInstance}),
		changed: make(chan struct{}),
		left:    utilcache.NewLRUExpireCache(leftSize),
	}
	if err := c.nodes.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch the nodes: %w", err)
	}
	_, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.broadcast() },
		UpdateFunc: func(before, after any) {
			b, a := before.(*corev1.Node), after.(*corev1.Node)
			if Ready(b) != Ready(a) || b.Spec.ProviderID != a.Spec.ProviderID || b.UID != a.UID {
				c.broadcast()
			}
		},
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj
			}
			if node, ok := obj.(*corev1.Node); ok && InstanceID(node) != "" {
				c.left.Add(InstanceID(node), struct{}{}, leftTTL)
			}
			c.broadcast()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the nodes: %w", err)
	}
	return c, nil
}

func listWatch(client Client) cache.ListerWatcher {
	nodes, watches := client.CoreV1().Nodes(), pace.NewWatches()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return pace.List(ctx, func(ctx context.Context) (runtime.Object, error) { return nodes.List(ctx, opts) })
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return pace.BeginWatch(ctx, watches, func(ctx context.Context) (watch.Interface, error) { return nodes.Watch(ctx, opts) })
		},
	}, client)
}

// Run watches the nodes until ctx ends.
func (c *Cluster) Run(ctx context.Context) { c.nodes.RunWithContext(ctx) }

// WaitForSync blocks until all nodes have been seen once; it returns the cause of ctx when that ends first.
func (c *Cluster) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.nodes.HasSynced) {
		return fmt.Errorf("list the nodes: %w", context.Cause(ctx))
	}
	return nil
}

// Changed returns a channel that is closed at the next coming, going, or change
// of readiness of any node. Look at the nodes after the call, then wait.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *Cluster) broadcast() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// ByInstance returns the node of an EC2 instance; nil when there is none. The
// node is shared and trimmed: read it, and nothing that trim drops.
func (c *Cluster) ByInstance(id string) *corev1.Node {
	found, err := c.nodes.GetIndexer().ByIndex(byInstance, id)
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0].(*corev1.Node)
}

// ByName returns the node of that name; nil when there is none.
func (c *Cluster) ByName(name string) *corev1.Node {
	obj, ok, err := c.nodes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Node)
}

// Left reports whether a Node of that instance was seen here and was deleted lately.
func (c *Cluster) Left(id string) bool {
	_, ok := c.left.Get(id)
	return ok
}

// Exists reports whether the node is there as far as the watch has told.
func (c *Cluster) Exists(ref Ref) bool {
	node := c.ByName(ref.Name)
	return node != nil && node.UID == ref.UID
}

// Unfinished asks the API server, not the watch, for the nodes whose intent has
// work left, as a new leader must: the old one may have written a moment ago.
// Nodes whose intent cannot be read are left out, with an error for each.
func (c *Cluster) Unfinished(ctx context.Context) (map[Ref]Intent, error) {
	const unfinished = StateLabel + " in (" + StateDraining + "," + StateWaiting + ")"
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: unfinished})
	if err != nil {
		return nil, fmt.Errorf("list the nodes with %s: %w", unfinished, err)
	}
	found := map[Ref]Intent{}
	var errs []error
	for k := range list.Items {
		switch i, ok, err := ReadIntent(&list.Items[k]); {
		case err != nil:
			errs = append(errs, err)
		case ok && !i.Finished() && i.Queue == c.queue:
			found[RefOf(&list.Items[k])] = i
		}
	}
	return found, errors.Join(errs...)
}

// OutOfUse returns the nodes that are not ready or cordoned, by whomever, as far
// as the watch has told, and how many nodes there are in all.
func (c *Cluster) OutOfUse() (out map[types.UID]bool, all int) {
	nodes := c.nodes.GetStore().List()
	out = map[types.UID]bool{}
	for _, obj := range nodes {
		if node := obj.(*corev1.Node); node.Spec.Unschedulable || !Ready(node) {
			out[node.UID] = true
		}
	}
	return out, len(nodes)
}

// Record changes the node's intent and makes the node carry it: cordoned, marked
// and annotated in one patch. It returns the intent as the node now carries it.
// change gets the current intent, zero if there is none, and may be called again
// when somebody else wrote the node meanwhile; an unchanged intent writes nothing.
// ErrNodeGone: the node went before the patch.
func (c *Cluster) Record(ctx context.Context, ref Ref, change func(Intent) Intent) (Intent, error) {
	var written Intent
	err := c.update(ctx, ref, func(node *corev1.Node, old Intent, found bool) (*nodePatch, error) {
		next := change(old)
		next.Version = intentVersion // also where somebody has removed the annotation meanwhile
		if next.Queue == "" {
			next.Queue = c.queue
		}
		if found && same(old, next) {
			written = old
			return nil, nil
		}
		var p *nodePatch
		var err error
		if next.Finished() { // done: whoever uncordons it now means it
			p = newPatch(node)
			written, err = next, p.write(next)
		} else {
			written, p, err = cordon(node, next, c.marks)
		}
		return p, err
	})
	return written, err
}

// Undo takes back what the intent changed on the node, if keep, which gets the
// intent, returns false. The intent that keep returns is recorded otherwise.
func (c *Cluster) Undo(ctx context.Context, ref Ref, keep func(Intent) (Intent, bool)) (undone bool, err error) {
	err = c.update(ctx, ref, func(node *corev1.Node, old Intent, found bool) (*nodePatch, error) {
		undone = false
		if !found {
			return nil, nil
		}
		next, stay := keep(old)
		if !stay {
			undone = true
			return uncordon(node, old), nil
		}
		if same(old, next) {
			return nil, nil
		}
		p := newPatch(node)
		if key := taintKey(notice.ScheduledChange); !next.Has(notice.ScheduledChange) && slices.Contains(next.Taints, key) {
			p.Spec.Taints = new(slices.DeleteFunc(slices.Clone(node.Spec.Taints), hasKey(key)))
			next.Taints = slices.DeleteFunc(slices.Clone(next.Taints), func(k string) bool { return k == key })
		}
		return p, p.write(next)
	})
	return undone, err
}

// SetOutOfService adds the out-of-service taint, or takes back the one that we added.
func (c *Cluster) SetOutOfService(ctx context.Context, ref Ref, on bool) error {
	return c.update(ctx, ref, func(node *corev1.Node, old Intent, _ bool) (*nodePatch, error) {
		there := slices.ContainsFunc(node.Spec.Taints, hasKey(outOfService))
		if there == on || !on && old.OutOfServiceAt.IsZero() {
			return nil, nil
		}
		now := time.Now().UTC()
		if old.Version == 0 { // a node without an intent gets a finished one: there is nothing to drain
			old = Intent{Version: intentVersion, Queue: c.queue, CordonedAt: now, FinishedAt: now}
		}
		return outOfServiceTaint(node, old, on, now)
	})
}

// Returned are the nodes that turned ready after we had tainted them out of service.
func (c *Cluster) Returned() []Ref {
	var refs []Ref
	for _, obj := range c.nodes.GetStore().List() {
		node := obj.(*corev1.Node)
		if !slices.ContainsFunc(node.Spec.Taints, hasKey(outOfService)) || !Ready(node) {
			continue
		}
		i, ok, err := ReadIntent(node)
		// Right after a stop the node still seems ready; so it must have turned ready since.
		if err == nil && ok && i.Queue == c.queue && !i.OutOfServiceAt.IsZero() && node.Status.Conditions[0].LastTransitionTime.After(i.OutOfServiceAt) {
			refs = append(refs, RefOf(node))
		}
	}
	return refs
}

// update patches a node with what build makes of it. A nil patch writes nothing.
// The first try is made from the watch; when that was behind, or there seems to be
// nothing to write, from a fresh read.
// A node that somebody else writes all the time is an error: try again later.
func (c *Cluster) update(ctx context.Context, ref Ref, build func(*corev1.Node, Intent, bool) (*nodePatch, error)) error {
	node := c.ByName(ref.Name)
	for try, fresh := 1, false; ; try++ {
		if fresh = fresh || node == nil || node.UID != ref.UID; fresh {
			var err error
			if node, err = c.read(ctx, ref); err != nil {
				return err
			}
		}
		// An annotation that cannot be read is replaced: the notice at hand counts more.
		old, found, err := ReadIntent(node)
		if err != nil {
			found = false
		}
		patch, err := build(node, old, found)
		if err != nil || patch == nil && fresh {
			return err
		}
		if patch == nil {
			fresh = true
			continue
		}
		body, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("patch node %s: %w", ref.Name, err)
		}
		leave, err := c.gate.Enter(ctx, patch.priority())
		if err != nil {
			return fmt.Errorf("patch node %s: %w", ref.Name, err)
		}
		_, err = c.client.CoreV1().Nodes().Patch(ctx, ref.Name, types.MergePatchType, body, metav1.PatchOptions{})
		leave(0)
		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err):
			return ErrNodeGone
		case apierrors.IsConflict(err) && try < tries:
			fresh = true
		default:
			return fmt.Errorf("patch node %s: %w", ref.Name, err)
		}
	}
}

func (c *Cluster) read(ctx context.Context, ref Ref) (*corev1.Node, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, ErrNodeGone
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", ref.Name, err)
	case node.UID != ref.UID:
		return nil, ErrNodeGone
	}
	return node, nil
}

// RefOf names a node.
func RefOf(node *corev1.Node) Ref {
	return Ref{Name: node.Name, UID: node.UID, Instance: InstanceID(node)}
}

// InstanceID is the EC2 instance of a node, from its provider id
// (aws:///us-east-1a/i-0123456789abcdef0); empty where it has none.
func InstanceID(node *corev1.Node) string {
	if !strings.HasPrefix(node.Spec.ProviderID, "aws://") {
		return ""
	}
	id := node.Spec.ProviderID[strings.LastIndexByte(node.Spec.ProviderID, '/')+1:]
	if !strings.HasPrefix(id, "i-") {
		return ""
	}
	return id
}

// Ready reports whether the kubelet says that the node is ready.
func Ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func indexByInstance(obj any) ([]string, error) {
	if id := InstanceID(obj.(*corev1.Node)); id != "" {
		return []string{id}, nil
	}
	return nil, nil
}

// trim keeps of a Node what this program reads: the rest is most of the memory.
func trim(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, Labels: node.Labels,
		},
		Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
	}
	if text, ok := node.Annotations[IntentAnnotation]; ok {
		small.Annotations = map[string]string{IntentAnnotation: text}
	}
	small.Status.Addresses = node.Status.Addresses
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			small.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return small, nil
}

func same(a, b Intent) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
