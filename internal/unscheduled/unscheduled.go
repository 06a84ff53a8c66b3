// Package unscheduled counts the pods that have left a drained node, and for whose successors the scheduler
// finds no node. At scale not the drain but the room in the cluster decides when a workload is back.
package unscheduled

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// Interval is how often the pods that wait for a node are listed, while pods have left nodes.
	Interval = 15 * time.Second
	// remembered is for how long after a pod has left a node its successor is looked for.
	remembered = 15 * time.Minute
	// pageSize and mostPages bound what a look reads.
	pageSize, mostPages = 500, 20
	// clocksDiffer is the most by which our clock and that of the API server differ. The creation of a pod is
	// known to the second.
	clocksDiffer = 2 * time.Second
	// sayAgain is how often the log says that pods wait.
	sayAgain = time.Minute
	// named is how many nodes the log names.
	named = 5
)

// waiting selects the pods that have no node.
const waiting = "spec.nodeName=,status.phase=Pending"

// Metrics is told how many pods wait. Its methods must not block.
type Metrics interface {
	Unscheduled(pods int)
}

// Pods remembers which workloads have lost pods from which nodes, for a quarter of an hour, or as long as a pod of that
// node waits, and looks for their successors. What left before the process led is not known. Set the fields before Run.
type Pods struct {
	// Client lists the pods of the cluster that wait, of low priority.
	Client kube.Client
	// Node returns the node of that name from the watch; nil: there is none. It makes no request.
	Node     func(name string) *corev1.Node
	Observer report.Observer
	Metrics  Metrics
	Log      logr.Logger

	mu   sync.Mutex
	left map[types.UID][]departure // by the UID of the pods' controller
	now  []overview.Unscheduled    // what waits, as the last look has found it

	// Only Run uses these.
	told   map[cluster.Ref]time.Time // the nodes that an Event was written about
	saidAt time.Time                 // when the log has said that pods wait; zero: none do
}

// A departure is what one workload has lost from one node.
type departure struct {
	node        cluster.Ref
	first, last time.Time
	pods        int
}

// Left is told the answer to each request for a pod. It is a drain.Drainer.Observe, and makes no request.
func (p *Pods) Left(a evacuation.Answer) {
	owner := metav1.GetControllerOfNoCopy(a.Pod)
	if a.Err != nil || !a.First || owner == nil {
		return
	}
	node := cluster.Ref{Name: a.Pod.Spec.NodeName}
	if there := p.Node(node.Name); there != nil {
		node = cluster.RefOf(there)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == nil {
		p.left = map[types.UID][]departure{}
	}
	all := p.left[owner.UID]
	at := slices.IndexFunc(all, func(d departure) bool { return d.node == node })
	if at < 0 {
		p.left[owner.UID] = append(all, departure{node: node, first: now, last: now, pods: 1})
		return
	}
	all[at].last = now
	all[at].pods++
}

// Run looks until ctx ends. It makes no request while nothing has left a node.
func (p *Pods) Run(ctx context.Context) {
	p.told, p.saidAt = map[cluster.Ref]time.Time{}, time.Time{} // what has come of the last term's is not known
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.left, p.now = nil, nil // the next term may be an hour from now
		p.Metrics.Unscheduled(0)
	}()
	for retry.Sleep(ctx, retry.Jitter(Interval, 0.1)) == nil {
		departures := p.departures(time.Now())
		if len(departures) == 0 {
			p.tell(nil, time.Now())
			continue
		}
		pods, all, err := p.list(ctx)
		if err != nil {
			p.Log.V(1).Info("the pods that wait for a node cannot be listed", "error", err)
			continue
		}
		before := 0
		for _, u := range p.Waiting() {
			before += u.Pods
		}
		if found := match(pods, departures); all || count(found) >= before { // else they may only not have been seen
			p.tell(found, time.Now())
		}
	}
}

// Waiting returns the pods that wait for another node, by the node that they have left, most pods first.
func (p *Pods) Waiting() []overview.Unscheduled {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func count(found map[cluster.Ref]backlog) (pods int) {
	for _, b := range found {
		pods += len(b.pods)
	}
	return pods
}

// departures forgets those of long ago, unless pods of the node still wait, and returns the others.
func (p *Pods) departures(now time.Time) map[types.UID][]departure {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := map[string]bool{}
	for _, u := range p.now {
		wait[u.Node] = true
	}
	recent := map[types.UID][]departure{}
	for owner, all := range p.left {
		all = slices.DeleteFunc(all, func(d departure) bool {
			return now.Sub(d.last) > remembered && !wait[d.node.Name]
		})
		if p.left[owner] = all; len(all) == 0 {
			delete(p.left, owner)
			continue
		}
		recent[owner] = slices.Clone(all)
	}
	return recent
}

// list returns the pods of the cluster for which the scheduler has found no node, and whether these are all.
func (p *Pods) list(ctx context.Context) (pods []pending, all bool, err error) {
	options := metav1.ListOptions{FieldSelector: waiting, Limit: pageSize}
	for range mostPages {
		page, err := p.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, false, fmt.Errorf("list the pods that wait for a node: %w", err)
		}
		for k := range page.Items {
			if one, waits := pendingOf(&page.Items[k]); waits {
				pods = append(pods, one)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return pods, true, nil
		}
	}
	return pods, false, nil
}

// A pending is a pod for which the scheduler has found no node.
type pending struct {
	name    string // namespace/name
	owner   types.UID
	created time.Time
	why     string // in the words of the scheduler
}

func pendingOf(pod *corev1.Pod) (p pending, waits bool) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return pending{}, false
	}
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
	if at < 0 {
		return pending{}, false
	}
	return pending{
		name: pod.Namespace + "/" + pod.Name, owner: owner.UID, created: pod.CreationTimestamp.Time,
		why: pod.Status.Conditions[at].Message,
	}, true
}

// A backlog is what waits of the pods that left one node.
type backlog struct {
	pods []string // namespace/name
	why  string   // of the first
}

// match finds the node that each pod comes from: the newest to which a pod was that had the same controller,
// and left before this one was made. Each pod that left has one successor at most.
func match(pods []pending, departures map[types.UID][]departure) map[cluster.Ref]backlog {
	slices.SortFunc(pods, func(a, b pending) int {
		return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.name, b.name))
	})
	for _, all := range departures {
		slices.SortFunc(all, func(a, b departure) int {
			return cmp.Or(b.first.Compare(a.first), cmp.Compare(a.node.Name, b.node.Name))
		})
	}
	found := map[cluster.Ref]backlog{}
	for _, one := range pods {
		all := departures[one.owner]
		at := slices.IndexFunc(all, func(d departure) bool {
			return d.pods > 0 && !one.created.Before(d.first.Add(-clocksDiffer)) && !one.created.After(d.last.Add(remembered))
		})
		if at < 0 {
			continue
		}
		all[at].pods--
		b := found[all[at].node]
		b.pods, b.why = append(b.pods, one.name), cmp.Or(b.why, one.why)
		found[all[at].node] = b
	}
	return found
}

// tell tells what waits: of each node once.
func (p *Pods) tell(found map[cluster.Ref]backlog, now time.Time) {
	pods := count(found)
	var waiting []overview.Unscheduled
	var nodes []string
	var most backlog
	byName := func(a, b cluster.Ref) int { return cmp.Compare(a.Name, b.Name) }
	for _, node := range slices.SortedFunc(maps.Keys(found), byName) {
		b := found[node]
		if nodes = append(nodes, node.Name); len(b.pods) > len(most.pods) {
			most = b
		}
		waiting = append(waiting, overview.Unscheduled{Node: node.Name, Pods: len(b.pods), Why: b.String()})
		if p.told[node].IsZero() {
			p.Observer.Stepped(report.Step{Node: node, Kind: report.Unscheduled, Detail: b.String()})
		}
		p.told[node] = now
	}
	for node, at := range p.told {
		if now.Sub(at) > remembered {
			delete(p.told, node)
		}
	}
	slices.SortFunc(waiting, func(a, b overview.Unscheduled) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Node, b.Node))
	})
	p.mu.Lock()
	p.now = waiting
	p.mu.Unlock()
	p.Metrics.Unscheduled(pods)
	switch {
	case pods > 0 && now.Sub(p.saidAt) >= sayAgain:
		p.saidAt = now
		logging.Warn(p.Log, "pods have left drained nodes, and the scheduler finds no other node", "pods", pods,
			"nodes", evacuation.Names(nodes, named), "why", most.why)
	case pods == 0 && !p.saidAt.IsZero():
		p.saidAt = time.Time{}
		p.Log.Info("no pod that has left a drained node waits for another one any more")
	}
}

// String is such as "3 pods that left the node wait for another one, such as shop/web-1: 0/5 nodes are available".
func (b backlog) String() string {
	count := fmt.Sprintf("%d pods that left the node wait for another one, such as %s", len(b.pods), b.pods[0])
	if len(b.pods) == 1 {
		count = "a pod that left the node waits for another one, " + b.pods[0]
	}
	return strings.TrimSuffix(count+": "+b.why, ": ")
}
