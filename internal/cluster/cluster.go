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
	list := kube.ListWatch(client, client.CoreV1().Nodes(), seen.String())
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
				reportsAnew(b, a) || b.Spec.ProviderID != a.Spec.ProviderID || b.UID != a.UID {
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

// nodes are those of the cluster as the watch shows them. What its methods return is shared and trimmed: do not change
// it, and do not read fields that trim drops. They may be called concurrently.
type nodes struct {
	informer cache.SharedIndexInformer

	mu      sync.Mutex
	changed chan struct{} // closed and replaced, see Changed

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

// Run watches the nodes until ctx ends.
func (n *nodes) Run(ctx context.Context) { n.informer.RunWithContext(ctx) }

// WaitForSync blocks until all nodes are listed. It returns the cause of ctx if ctx ends first.
func (n *nodes) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), n.informer.HasSynced) {
		return fmt.Errorf("list the nodes: %w", context.Cause(ctx))
	}
	return nil
}

// AtEachChange calls look now, after each change of the nodes and at each receive from again, until ctx ends. A nil
// again is never received from.
func (n *nodes) AtEachChange(ctx context.Context, again <-chan struct{}, look func()) {
	for {
		changed := n.Changed()
		look()
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
// taint, or a notice where it has a report.
// Call Changed, then look at the nodes, then wait.
func (n *nodes) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// OnChange calls look now, and after each change of the Node that Changed tells, until remove is called: who waits for
// one of thousands of nodes needs no goroutine for that. look runs on the goroutine of the watch, once at a time. It
// must not block, nor call OnChange or remove. When remove returns, look has too.
func (n *nodes) OnChange(ref Ref, look func()) (remove func()) {
	n.listening.Lock()
	defer n.listening.Unlock()
	if n.listeners[ref.UID] == nil {
		n.listeners[ref.UID] = map[*func()]bool{}
	}
	n.listeners[ref.UID][&look] = true
	look()
	return func() {
		n.listening.Lock()
		defer n.listening.Unlock()
		if delete(n.listeners[ref.UID], &look); len(n.listeners[ref.UID]) == 0 {
			delete(n.listeners, ref.UID)
		}
	}
}

// reportsAnew reports whether the report of a node has changed, or the node has lost a notice that its report may still
// tell of, as where a rule begins to ignore it.
func reportsAnew(before, after *corev1.Node) bool {
	was, is := before.Annotations, after.Annotations
	if was[ReportAnnotation] != is[ReportAnnotation] {
		return true
	}
	if is[ReportAnnotation] == "" || was[IntentAnnotation] == is[IntentAnnotation] {
		return false
	}
	carried, _, _ := ReadIntent(before) // what cannot be read has no notices
	left, _, _ := ReadIntent(after)
	return slices.ContainsFunc(carried.Entries, func(e intent.Entry) bool { return !left.Asks(e) })
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
func (n *nodes) broadcast(nodes ...*corev1.Node) {
	n.mu.Lock()
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	n.listening.Lock()
	defer n.listening.Unlock()
	for _, node := range nodes {
		for look := range n.listeners[node.UID] {
			(*look)()
		}
	}
}

// ByInstance returns the Nodes of an EC2 instance. There are several if the instance has
// registered again under another name and the old Node still exists. Ready Nodes
// come first, and younger before older. The nodes are shared and trimmed: do not change
// them, and do not read fields that trim drops.
func (n *nodes) ByInstance(id string) []*corev1.Node {
	found, err := n.informer.GetIndexer().ByIndex(byInstance, id)
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
func (n *nodes) ByName(name string) *corev1.Node {
	obj, ok, err := n.informer.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Node)
}

// Exists reports whether the node exists, according to the watch.
func (n *nodes) Exists(ref Ref) bool {
	_, there := n.Look(ref)
	return there
}

// Look returns a node as last seen by the watch, and whether it exists. The node is
// shared and trimmed.
func (n *nodes) Look(ref Ref) (*corev1.Node, bool) {
	node := n.ByName(ref.Name)
	return node, node != nil && node.UID == ref.UID
}

// Unavailable returns the nodes, by UID, that are not ready, or cordoned by anybody, according to the watch, among
// those with labels for which among returns true. all is how many there are of these.
func (n *nodes) Unavailable(among func(labels map[string]string) bool) (out map[string]bool, all int) {
	out = map[string]bool{}
	n.All(func(node *corev1.Node) {
		if !among(node.Labels) {
			return
		}
		if all++; node.Spec.Unschedulable || !Ready(node) {
			out[string(node.UID)] = true
		}
	})
	return out, all
}

// Names returns the names of the nodes whose UIDs are in one of the sets, by their UIDs.
func (n *nodes) Names(uids ...map[string]bool) map[string]string {
	names := map[string]string{}
	n.All(func(node *corev1.Node) {
		if slices.ContainsFunc(uids, func(set map[string]bool) bool { return set[string(node.UID)] }) {
			names[string(node.UID)] = node.Name
		}
	})
	return names
}

// ReadyInstances returns the ids of the instances of all ready Nodes, sorted, each once.
func (n *nodes) ReadyInstances() (ids []string) {
	n.All(func(node *corev1.Node) {
		if Ready(node) && InstanceID(node) != "" {
			ids = append(ids, InstanceID(node))
		}
	})
	slices.Sort(ids)
	return slices.Compact(ids)
}

// All calls visit for each node, according to the watch. The nodes are shared and trimmed.
func (n *nodes) All(visit func(node *corev1.Node)) {
	for _, obj := range n.informer.GetStore().List() {
		visit(obj.(*corev1.Node))
	}
}

// OutOfService returns the nodes with our out-of-service taint that are ready.
// Right after its instance has stopped, a node still seems to be ready.
func (n *nodes) OutOfService() (refs []Ref) {
	n.All(func(node *corev1.Node) {
		if slices.ContainsFunc(node.Spec.Taints, isOurOutOfService) && Ready(node) {
			refs = append(refs, RefOf(node))
		}
	})
	return refs
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
