// Package cluster watches the cluster's nodes. It finds the Nodes of an EC2 instance,
// reads the intent that a node carries, and patches nodes.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// ErrNodeGone is returned when the Node was deleted, or replaced by another one of
// the same name.
var ErrNodeGone = errors.New("the node is gone")

// ErrNoTurn is returned when the context ended before the patch had its turn at the gate: nothing was tried.
var ErrNoTurn = errors.New("other requests to the API server go first")

// Cluster is an index of the nodes. Its methods may be called concurrently.
type Cluster struct {
	client  kube.Client
	gate    *pace.Gate
	queue   string
	options CordonOptions
	seen    fields.Selector // of the nodes that there are, to this Cluster
	nodes   cache.SharedIndexInformer

	mu          sync.Mutex
	changed     chan struct{}             // closed and replaced, see Changed
	lastDeleted *utilcache.LRUExpireCache // by instance id: the Node that was deleted last
	toInform    map[types.UID]Ref         // see NodesToInform
	restarted   map[types.UID]Ref         // see Restarted
	// identified are the instances of nodes without a provider id that were written to, by UID.
	identified *lru.Cache

	listening sync.Mutex                     // held while listeners are called
	listeners map[types.UID]map[*func()]bool // see OnChange
}

// A Ref names one Node for its whole life; a new Node of the same name is another.
type Ref struct {
	Name string
	UID  types.UID
	// Instance is its EC2 instance, from the provider id, or from EC2 where the node
	// has none; empty: not known.
	Instance string
}

const (
	byInstance = "instance"
	// One conflict can come from a watch that was behind; two in a row are rare.
	tries = 3
	// How many deleted Nodes are remembered, and how long: the notices about the end
	// of an instance arrive within minutes after its Node is deleted.
	memorySize = 10_000
	memoryTTL  = time.Hour

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
	watched := kube.ListWatch(client, kube.Selecting(client.CoreV1().Nodes(), seen))
	c := &Cluster{
		client:      client,
		gate:        gate,
		queue:       queue,
		options:     marks,
		seen:        seen,
		nodes:       cache.NewSharedIndexInformer(watched, &corev1.Node{}, 0, cache.Indexers{byInstance: indexByInstance}),
		changed:     make(chan struct{}),
		lastDeleted: utilcache.NewLRUExpireCache(memorySize),
		toInform:    map[types.UID]Ref{},
		restarted:   map[types.UID]Ref{},
		identified:  lru.New(memorySize),
		listeners:   map[types.UID]map[*func()]bool{},
	}
	if err := c.nodes.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch the nodes: %w", err)
	}
	_, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
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

// Serves reports whether the intent is of this queue.
func (c *Cluster) Serves(i intent.Intent) bool { return i.Serves(c.queue) }

// Reverts reports whether this handler reverts what a drain has left on its node: one of its own, or one by the pod on
// the node, which only reports where a handler leads, or one by the leader that had a queue when this one has none, or
// had none.
func (c *Cluster) Reverts(i intent.Intent) bool {
	return i.Serves(c.queue) || i.LeftBehind(c.queue)
}

// Joined is an intent that this handler carries out too.
func (c *Cluster) Joined(i intent.Intent) intent.Intent { return i.From(c.queue) }

// Shares reports whether the intent has notices that another handler has written.
func (c *Cluster) Shares(i intent.Intent) bool { return i.SharedBy(c.queue) }

// Run watches the nodes until ctx ends.
func (c *Cluster) Run(ctx context.Context) { c.nodes.RunWithContext(ctx) }

// WaitForSync blocks until all nodes are listed. It returns the cause of ctx if ctx ends first.
func (c *Cluster) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.nodes.HasSynced) {
		return fmt.Errorf("list the nodes: %w", context.Cause(ctx))
	}
	return nil
}

// AtEachChange calls look now, after each change of the nodes and at each receive from again, until look returns an
// error or ctx ends. A nil again is never received from.
func (c *Cluster) AtEachChange(ctx context.Context, again <-chan struct{}, look func() error) {
	for {
		changed := c.Changed()
		if look() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// Changed returns a channel that is closed when a node is next created, deleted, restarted,
// uncordoned or tainted out of service, when its readiness, its report or a label of others changes, or when it loses a
// taint.
// Call Changed, then look at the nodes, then wait.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// OnChange calls look now, and after each change of the Node that Changed tells, until remove is called: who waits for
// one of thousands of nodes needs no goroutine for that. look runs on the goroutine of the watch, once at a time. It
// must not block, nor call OnChange or remove. When remove returns, look has too.
func (c *Cluster) OnChange(ref Ref, look func()) (remove func()) {
	c.listening.Lock()
	defer c.listening.Unlock()
	if c.listeners[ref.UID] == nil {
		c.listeners[ref.UID] = map[*func()]bool{}
	}
	c.listeners[ref.UID][&look] = true
	look()
	return func() {
		c.listening.Lock()
		defer c.listening.Unlock()
		if delete(c.listeners[ref.UID], &look); len(c.listeners[ref.UID]) == 0 {
			delete(c.listeners, ref.UID)
		}
	}
}

// relabelled reports whether labels have changed that are not ours.
func relabelled(before, after *corev1.Node) bool {
	differ := func(a, b map[string]string) bool {
		for key, value := range a {
			if other, there := b[key]; (!there || other != value) && key != StateLabel && key != KindLabel {
				return true
			}
		}
		return false
	}
	return differ(before.Labels, after.Labels) || differ(after.Labels, before.Labels)
}

// broadcast tells that these nodes have changed.
func (c *Cluster) broadcast(nodes ...*corev1.Node) {
	c.mu.Lock()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	c.listening.Lock()
	defer c.listening.Unlock()
	for _, node := range nodes {
		for look := range c.listeners[node.UID] {
			(*look)()
		}
	}
}

// ByInstance returns the Nodes of an EC2 instance. There are several if the instance has
// registered again under another name and the old Node still exists. Ready Nodes
// come first, and younger before older. The nodes are shared and trimmed: do not change
// them, and do not read fields that trim drops.
func (c *Cluster) ByInstance(id string) []*corev1.Node {
	found, err := c.nodes.GetIndexer().ByIndex(byInstance, id)
	if err != nil || len(found) == 0 {
		return nil
	}
	nodes := make([]*corev1.Node, len(found))
	for k := range found {
		nodes[k] = found[k].(*corev1.Node)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		if Ready(a) != Ready(b) {
			if Ready(a) {
				return -1
			}
			return +1
		}
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return nodes
}

// ByName returns the node of that name; nil when there is none.
func (c *Cluster) ByName(name string) *corev1.Node {
	obj, ok, err := c.nodes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Node)
}

// Exists reports whether the node exists, according to the watch.
func (c *Cluster) Exists(ref Ref) bool {
	_, there := c.Look(ref)
	return there
}

// Look returns a node as last seen by the watch, and whether it exists. The node is
// shared and trimmed.
func (c *Cluster) Look(ref Ref) (*corev1.Node, bool) {
	node := c.ByName(ref.Name)
	return node, node != nil && node.UID == ref.UID
}

// Unavailable returns the nodes, by UID, that are not ready, or cordoned by anybody, according to the watch, among
// those with labels for which among returns true. all is how many there are of these.
func (c *Cluster) Unavailable(among func(labels map[string]string) bool) (out map[string]bool, all int) {
	out = map[string]bool{}
	for _, obj := range c.nodes.GetStore().List() {
		node := obj.(*corev1.Node)
		if !among(node.Labels) {
			continue
		}
		if all++; node.Spec.Unschedulable || !Ready(node) {
			out[string(node.UID)] = true
		}
	}
	return out, all
}

// Names returns the names of the nodes whose UIDs are in one of the sets, by their UIDs.
func (c *Cluster) Names(uids ...map[string]bool) map[string]string {
	names := map[string]string{}
	for _, obj := range c.nodes.GetStore().List() {
		node := obj.(*corev1.Node)
		if slices.ContainsFunc(uids, func(set map[string]bool) bool { return set[string(node.UID)] }) {
			names[string(node.UID)] = node.Name
		}
	}
	return names
}

// ReadyInstances returns the ids of the instances of all ready Nodes, sorted, each once.
func (c *Cluster) ReadyInstances() []string {
	var ids []string
	for _, obj := range c.nodes.GetStore().List() {
		if node := obj.(*corev1.Node); Ready(node) && InstanceID(node) != "" {
			ids = append(ids, InstanceID(node))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// RefOf returns the Ref of a node.
func RefOf(node *corev1.Node) Ref {
	return Ref{Name: node.Name, UID: node.UID, Instance: InstanceID(node)}
}

// InstanceID is the EC2 instance of a node, from its provider id
// (aws:///us-east-1a/i-0123456789abcdef0); empty if it has none.
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

// BootID is the boot id of a node's machine, as its kubelet says; empty if it has not said so.
// It changes with each boot. A machine that hibernates keeps it.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
func BootID(node *corev1.Node) string { return node.Status.NodeInfo.BootID }

// ReadySince is when the node turned ready; zero if it is not ready.
func ReadySince(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// untainted reports whether a taint of the node is gone.
func untainted(before, after *corev1.Node) bool {
	return slices.ContainsFunc(before.Spec.Taints, func(t corev1.Taint) bool {
		return !slices.ContainsFunc(after.Spec.Taints, hasKey(t.Key))
	})
}

// AwaitsStartup reports whether the node carries a taint that it loses at the end of its startup:
// one of a NodeReadinessRule, or one with a key of startup.
// https://kubernetes.io/blog/2026/02/03/introducing-node-readiness-controller/
func AwaitsStartup(node *corev1.Node, startup []string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, readinessPrefix) || slices.Contains(startup, t.Key)
	})
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

// trim drops the fields of a Node that this program does not read, which saves most of
// the memory.
func trim(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp, Labels: node.Labels,
		},
		Spec: corev1.NodeSpec{
			ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints,
		},
	}
	for _, key := range []string{IntentAnnotation, ReportAnnotation} {
		if text, ok := node.Annotations[key]; ok {
			if small.Annotations == nil {
				small.Annotations = map[string]string{}
			}
			small.Annotations[key] = text
		}
	}
	small.Status.Addresses = node.Status.Addresses
	small.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	small.Status.Conditions = trimmedConditions(node)
	return small, nil
}
