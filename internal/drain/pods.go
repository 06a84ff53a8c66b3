package drain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// podStore holds the pods of one node as the API server reports them. A reflector writes to it: an
// informer would cost each node of a storm a queue and two more goroutines. Its methods may be called
// concurrently.
type podStore struct {
	changed chan struct{} // has a value when the pods have changed

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	listed bool
	failed error     // of the last list; nil: it has not ended, or all have been seen
	since  time.Time // when the first list failed
}

func newPodStore() *podStore {
	return &podStore{changed: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
}

// watch keeps the store up to date with the pods of a node until ctx ends.
func (s *podStore) watch(ctx context.Context, d *Drainer, node string) {
	p := &podsOf{
		pods: d.Client.CoreV1().Pods(metav1.NamespaceAll), node: node,
		log: klog.FromContext(ctx).WithValues("node", node),
	}
	lists, watches := d.podTurns()
	requests := cache.ToListerWatcherWithContext(kube.ListWatch(p, p, onNode(node)))
	inTurn := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			list, err := takeTurn(ctx, p, lists, func() (runtime.Object, error) { return requests.ListWithContext(ctx, opts) })
			s.noteList(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			started, err := takeTurn(ctx, p, watches, func() (watch.Interface, error) {
				return requests.WatchWithContext(ctx, opts)
			})
			p.failed = p.failed && err != nil
			return started, err
		},
	}, p)
	// The reflector would log each failure for each node, while the API server is away.
	cache.NewReflectorWithOptions(inTurn, &corev1.Pod{}, s, cache.ReflectorOptions{Backoff: &watchBackoff}).
		RunWithContext(klog.NewContext(ctx, logging.Quiet(p.log)))
}

// podsOf lists and watches the pods of a node. It lists them first, as of now, which the API server answers from an
// index of its cache. For a watch that also lists it would go through all pods of the cluster, for each node of a
// storm.
type podsOf struct {
	pods   typedcorev1.PodInterface
	node   string
	log    logr.Logger
	failed bool // a request has failed, and no watch has begun since
	late   int  // how many lists have taken too long
}

// List implements [kube.Objects].
func (p *podsOf) List(ctx context.Context, _ metav1.ListOptions) (*corev1.PodList, error) {
	const mostPatience = 3 // the list of hundreds of large pods may take longer than an answer that is lost
	ctx, cancel := context.WithTimeout(ctx, requestTimeout*time.Duration(min(1+p.late, mostPatience)))
	defer cancel()
	list, err := p.pods.List(ctx, metav1.ListOptions{FieldSelector: onNode(p.node)})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.late++
	}
	return list, err
}

// Watch implements [kube.Objects].
func (p *podsOf) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return p.pods.Watch(ctx, opts)
}

// takeTurn makes a request when one of the turns is free, and logs that it has failed, if it is the first.
func takeTurn[T any](
	ctx context.Context, p *podsOf, turns chan struct{}, request func() (T, error),
) (answer T, err error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
	answer, err = request()
	if err != nil && ctx.Err() == nil && !p.failed {
		p.failed = true
		logging.Warn(p.log, "the pods of a node cannot be listed and watched, trying again", "error", err)
	}
	return answer, err
}

// IsWatchListSemanticsUnSupported makes a reflector list before it watches.
func (*podsOf) IsWatchListSemanticsUnSupported() bool { return true }

func onNode(name string) string { return fields.OneTermEqualSelector("spec.nodeName", name).String() }

// synced reports whether all pods have been seen once.
func (s *podStore) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// noteList notes whether a list has failed.
func (s *podStore) noteList(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.since = time.Now()
	}
	s.failed = err
}

// wait says that the pods have not been seen so far, and why.
func (s *podStore) wait(now time.Time) overview.Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed == nil:
		return overview.Wait{Cause: overview.List, Why: "the pods of the node are being listed"}
	case now.Sub(s.since) < blockedTime:
		return overview.Wait{Cause: overview.List, Why: unlisted(s.failed)}
	}
	return overview.Wait{Cause: overview.FailingList, Why: unlisted(s.failed)}
}

func unlisted(err error) string {
	return truncate("the pods of the node cannot be listed: " + kube.Why(err))
}

// list returns the pods by namespace and name, as the API server lists them: what is told of several, or of the first,
// is the same each time. They are shared and must not be changed; they have the fields that [Trim] keeps.
func (s *podStore) list() []*corev1.Pod {
	s.mu.Lock()
	pods := slices.Collect(maps.Values(s.pods))
	s.mu.Unlock()
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// updateKnown updates a pod that was read by itself. A pod that the watch has removed does not come
// back.
func (s *podStore) updateKnown(pod *corev1.Pod) {
	s.change(func() {
		if s.pods[pod.UID] != nil {
			s.pods[pod.UID] = pod
		}
	})
}

func (s *podStore) remove(pod *corev1.Pod) { s.change(func() { delete(s.pods, pod.UID) }) }

// Add implements cache.ReflectorStore, as do the methods that follow. The reflector passes pods alone.
func (s *podStore) Add(obj any) error { return s.Update(obj) }

func (s *podStore) Update(obj any) error {
	pod := obj.(*corev1.Pod)
	s.change(func() { s.pods[pod.UID] = pod })
	return nil
}

func (s *podStore) Delete(obj any) error {
	s.remove(obj.(*corev1.Pod))
	return nil
}

func (s *podStore) Replace(objs []any, _ string) error {
	pods := make(map[types.UID]*corev1.Pod, len(objs))
	for _, obj := range objs {
		pod := obj.(*corev1.Pod)
		pods[pod.UID] = pod
	}
	s.change(func() { s.pods, s.listed = pods, true })
	return nil
}

// Resync does nothing: there are no handlers to call again.
func (s *podStore) Resync() error { return nil }

// change calls do, which changes the pods, and signals that.
func (s *podStore) change(do func()) {
	func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
	}()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// maxStarts bounds how many drains list their pods at once, and how many start a watch. The gate bounds those that
// begin. Where all of them have to list or watch again, each would open a connection of its own for that.
const maxStarts = 128

// podTurns are two semaphores of maxStarts each: watches that do not start keep out no list.
func (d *Drainer) podTurns() (lists, watches chan struct{}) {
	d.turns.Do(func() { d.lists, d.watches = make(chan struct{}, maxStarts), make(chan struct{}, maxStarts) })
	return d.lists, d.watches
}

// watchBackoff says when the pods of a node are listed and watched again. client-go's own pauses, of up to a minute,
// are for watches that have more time than a drain.
var watchBackoff = wait.Backoff{
	Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Cap: 4 * time.Second, Steps: 10,
}
