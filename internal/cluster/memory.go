package cluster

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

const (
	// How many deleted Nodes are remembered, and how long: the notices about the end
	// of an instance arrive within minutes after its Node is deleted.
	memorySize = 10_000
	memoryTTL  = time.Hour
)

// memory is what is remembered of nodes beside what the watch shows of them now.
type memory struct {
	nodes *nodes
	owner owner

	lastDeleted *utilcache.LRUExpireCache // by instance id: the Node that was deleted last
	whenDeleted func(Ref, intent.Intent)  // nil: nobody wants to know
	// identified are the instances of nodes without a provider id, by UID; see Identify.
	identified *lru.Cache

	mu        sync.Mutex
	toInform  map[types.UID]Ref  // see NodesToInform
	restarted map[types.UID]Ref  // see Restarted
	hangs     map[types.UID]bool // see noteHang
}

func newMemory(nodes *nodes, owner owner) *memory {
	return &memory{
		nodes: nodes, owner: owner,
		lastDeleted: utilcache.NewLRUExpireCache(memorySize), identified: lru.New(memorySize),
		toInform: map[types.UID]Ref{}, restarted: map[types.UID]Ref{}, hangs: map[types.UID]bool{},
	}
}

// WhenDeleted has tell called with each intent that is lost with its Node, on the goroutine of the watch. It is called
// before Run.
func (m *memory) WhenDeleted(tell func(ref Ref, i intent.Intent)) { m.whenDeleted = tell }

// noteDeleted remembers a deleted Node. If it carried no intent, because it was deleted too
// early, the Node before it is remembered instead. What Remember has been told of it is newer.
func (m *memory) noteDeleted(node *corev1.Node) {
	uid := node.UID
	if i, ok, err := ReadIntent(node); m.whenDeleted != nil && ok && err == nil && m.owner.Serves(i) {
		m.whenDeleted(RefOf(node), i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := m.instanceOf(node); id != "" {
		node = ofInstance(node, id)
		if last := m.deleted(id); last != nil && (last.UID == uid || node.Annotations[IntentAnnotation] == "") {
			node = last
		}
		m.lastDeleted.Add(id, node, memoryTTL)
	}
	delete(m.toInform, uid)
	delete(m.restarted, uid)
	delete(m.hangs, uid)
}

// hangsAfter is how long a patch takes that hangs: an admission webhook that does not answer is given 10 s unless its
// configuration says otherwise.
const hangsAfter = 10 * time.Second

// noteHang remembers whether the last patch of a Node has hung.
func (m *memory) noteHang(ref Ref, hung bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.hangs, ref.UID); hung {
		m.hangs[ref.UID] = true
	}
}

// LastHung reports whether the last patch of a Node has hung: the next has its turn after those of others.
func (m *memory) LastHung(ref Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hangs[ref.UID]
}

// Identify returns the ref with the instance of its Node. Where the Node has no provider id it remembers the instance
// that EC2 has told with a notice: a drain that the Node carried from an earlier leader began without it.
func (m *memory) Identify(ref Ref) Ref {
	node, there := m.nodes.Look(ref)
	switch {
	case !there:
	case ref.Instance == "":
		ref.Instance = m.instanceOf(node)
	case InstanceID(node) == "":
		m.identified.Add(ref.UID, ref.Instance)
	}
	return ref
}

// instanceOf is the instance of a node, from its provider id, or from EC2 where the node had
// none. It must not come from the node itself: a kubelet could claim any.
func (m *memory) instanceOf(node *corev1.Node) string {
	if id := InstanceID(node); id != "" {
		return id
	}
	id, _ := m.identified.Get(node.UID)
	text, _ := id.(string)
	return text
}

// noteNewNode remembers a Node that follows or joins another Node of its instance, together
// with those other Nodes: the new Node may carry an intent from before it had a provider id.
func (m *memory) noteNewNode(node *corev1.Node) {
	id := InstanceID(node)
	if id == "" {
		return
	}
	nodes := m.nodes.ByInstance(id)
	if m.deleted(id) == nil && len(nodes) < 2 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, heir := range append(nodes, node) {
		if len(m.toInform) < memorySize {
			m.toInform[heir.UID] = RefOf(heir)
		}
	}
}

// NoteNewNodes has NodesToInform return all Nodes again that have followed or joined another one: the term before may
// have ended before it passed on the notices of that one.
func (m *memory) NoteNewNodes() { m.nodes.All(m.noteNewNode) }

// NoteRestart has Restarted return a node again: who has taken it was not done with it.
func (m *memory) NoteRestart(ref Ref) {
	if node, there := m.nodes.Look(ref); there {
		m.noteRestart(nil, node)
	}
}

// NodesToInform returns the Nodes that, since the last call, followed or joined another
// Node of their instance. Each is returned once, and again after NoteNewNodes.
func (m *memory) NodesToInform() []Ref { return m.take(m.toInform) }

// take empties one of the maps, and returns what was in it.
func (m *memory) take(of map[types.UID]Ref) []Ref {
	m.mu.Lock()
	defer m.mu.Unlock()
	refs := slices.Collect(maps.Values(of))
	clear(of)
	return refs
}

// noteRestart remembers a node whose machine may have been restarted since its drain, and reports
// whether it does. before is the node as it was; nil: not known.
func (m *memory) noteRestart(before, node *corev1.Node) bool {
	if node.Annotations[IntentAnnotation] == "" || !Ready(node) {
		return false
	}
	may := before == nil || before.UID != node.UID || BootID(before) != BootID(node) || !Ready(before)
	if !may && before.Labels[StateLabel] != node.Labels[StateLabel] { // it was restarted during the drain, maybe
		i, _, err := ReadIntent(node)
		may = err == nil && i.BootID != "" && i.BootID != BootID(node)
	}
	if may {
		m.mu.Lock()
		defer m.mu.Unlock()
		ref := RefOf(node)
		ref.Instance = m.instanceOf(node)
		m.restarted[node.UID] = ref
	}
	return may
}

// Restarted returns the nodes that carry an intent, and turned ready or got another boot id since the
// last call: their machines may have been restarted. Each is returned once.
func (m *memory) Restarted() []Ref { return m.take(m.restarted) }

// Intents returns the intents of the other Nodes of the same instance: those that exist,
// and the one that was deleted last, within memoryTTL. Only the deleted one's intent keeps its
// hooks, and only if ref is the only Node of the instance.
func (m *memory) Intents(ref Ref) []intent.Intent {
	var intents []intent.Intent
	add := func(node *corev1.Node, hooks bool) {
		i, ok, err := ReadIntent(node)
		if node.UID == ref.UID || !ok || err != nil || !m.owner.Serves(i) {
			return
		}
		if !hooks {
			i.Hooks = nil
		}
		intents = append(intents, i)
	}
	there, last := m.of(ref.Instance)
	for _, node := range there {
		add(node, false)
	}
	if last != nil {
		add(last, len(there) == 1)
	}
	return intents
}

// Others are the other Nodes of the same instance: those that exist, and the one that was deleted last.
func (m *memory) Others(ref Ref) (refs []Ref) {
	nodes, last := m.of(ref.Instance)
	if last != nil {
		nodes = append(nodes, last)
	}
	for _, node := range nodes {
		if node.UID != ref.UID {
			refs = append(refs, RefOf(node))
		}
	}
	return refs
}

// of are the Nodes of an instance, and the one that was deleted last, nil if none was: the watch may still show it.
func (m *memory) of(id string) (there []*corev1.Node, last *corev1.Node) {
	last = m.deleted(id)
	isDeleted := func(node *corev1.Node) bool { return last != nil && node.UID == last.UID }
	return slices.DeleteFunc(m.nodes.ByInstance(id), isDeleted), last
}

// Remember stores the intent of a recently deleted Node, for the Nodes that follow it. The watch may still show that
// Node.
func (m *memory) Remember(ref Ref, i intent.Intent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.deleted(ref.Instance)
	if last == nil || last.UID != ref.UID {
		there := false
		if last, there = m.nodes.Look(ref); !there || ref.Instance == "" {
			return
		}
	}
	text, err := i.Encode()
	if err != nil {
		return // impossible: it was encoded before
	}
	node := ofInstance(last, ref.Instance).DeepCopy()
	node.Annotations = map[string]string{IntentAnnotation: text}
	m.lastDeleted.Add(ref.Instance, node, memoryTTL)
}

// ofInstance is a Node of that instance, also if it has no provider id: what is read of it later is that instance's.
func ofInstance(node *corev1.Node, id string) *corev1.Node {
	if InstanceID(node) == "" {
		node = node.DeepCopy()
		node.Spec.ProviderID = "aws:///" + id
	}
	return node
}

// ChangeRemembered changes the stored intent of the Node that was deleted last of an instance.
func (m *memory) ChangeRemembered(id string, change Change) {
	last := m.deleted(id)
	if last == nil {
		return
	}
	if i, ok, err := ReadIntent(last); ok && err == nil {
		m.Remember(RefOf(last), change(i))
	}
}

// RecentlyDeleted reports whether a Node of that instance existed here and was deleted
// within memoryTTL. Then the instance is this cluster's; only EC2 knows whether it still runs.
func (m *memory) RecentlyDeleted(id string) bool { return m.deleted(id) != nil }

// deleted is the Node that was deleted last of an instance, within memoryTTL; nil: none was.
func (m *memory) deleted(id string) *corev1.Node {
	last, _ := m.lastDeleted.Get(id)
	node, _ := last.(*corev1.Node)
	return node
}
