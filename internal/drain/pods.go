package drain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// podStore holds the pods of one node as the API server reports them. A reflector writes to it: an
// informer would cost each node of a storm a queue and two more goroutines. Its methods may be called
// concurrently.
type podStore struct {
	changed chan struct{} // has a value when the pods have changed

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	listed bool
}

func newPodStore() *podStore {
	return &podStore{changed: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
}

// watch keeps the store up to date with the pods of a node until ctx ends. It returns before, if a shared watch does
// that.
func (s *podStore) watch(ctx context.Context, d *Drainer, node string) {
	p := &podsOf{
		pods: d.Client.CoreV1().Pods(metav1.NamespaceAll), node: node, store: s,
		watches: &d.watches, shareFrom: cmp.Or(d.ShareFrom, defaultShareFrom),
	}
	d.watches.enter()
	context.AfterFunc(ctx, p.end)
	p.watch(ctx, 0)
}

// podsOf lists and watches the pods of a node. It lists them first, as of now, which the API server answers from an
// index of its cache. For a watch that also lists it would go through all pods of the cluster, for each node of a
// storm.
type podsOf struct {
	pods      typedcorev1.PodInterface
	node      string
	store     *podStore
	watches   *podWatches
	shareFrom int
	late      int // how many lists have taken too long

	// The mutex of watches guards these.
	following *follower // its part of a shared watch; nil: it has none
	ended     bool      // its drain has ended
}

// end ends what watch has begun.
func (p *podsOf) end() {
	p.watches.mu.Lock()
	defer p.watches.mu.Unlock()
	p.ended = true
	p.watches.drains--
	p.following.stop()
}

// watch is the watch of a podStore, which has lost so many shared watches before, each after a short time.
func (p *podsOf) watch(ctx context.Context, lost int) {
	for failures := 1; lost < sharesLost; failures++ {
		began := time.Now()
		f := p.watches.follow(ctx, p, func() {
			pprof.SetGoroutineLabels(ctx)
			if time.Since(began) > sharedLong {
				p.watch(ctx, 0)
			} else {
				p.watch(ctx, lost+1)
			}
		})
		if f == nil {
			break
		}
		list, err := p.List(ctx, metav1.ListOptions{})
		if err == nil && f.begin(list) || ctx.Err() != nil {
			return
		}
		p.watches.mu.Lock()
		p.following.stop()
		p.watches.mu.Unlock()
		if err != nil { // else the shared watch has ended, or begun after this list
			klog.FromContext(ctx).Info("the pods of a node cannot be listed, trying again", "node", p.node, "error", err)
		}
		if retry.Sleep(ctx, watchBackoff.Pause(failures)) != nil {
			return
		}
	}
	cache.NewReflectorWithOptions(kube.ListWatch(p, p), &corev1.Pod{}, p.store,
		cache.ReflectorOptions{Name: "pods of " + p.node, Backoff: &reflectorBackoff}).RunWithContext(ctx)
}

// List implements [kube.Objects].
func (p *podsOf) List(ctx context.Context, _ metav1.ListOptions) (*corev1.PodList, error) {
	done, err := p.watches.startOne(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	const mostPatience = 4 // of a node with hundreds of large pods, the list may take longer than an answer that is lost
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
	done, err := p.watches.startOne(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	opts.FieldSelector = onNode(p.node)
	return p.pods.Watch(ctx, opts)
}

// IsWatchListSemanticsUnSupported makes a reflector list before it watches.
func (*podsOf) IsWatchListSemanticsUnSupported() bool { return true }

// onNode selects the pods of a node.
func onNode(name string) string { return fields.OneTermEqualSelector("spec.nodeName", name).String() }

// synced reports whether all pods have been seen once.
func (s *podStore) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// list returns the pods, in no order. They are shared and must not be changed; they have the fields
// that [Trim] keeps.
func (s *podStore) list() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.pods))
}

// put adds a pod, or what it is now.
func (s *podStore) put(pod *corev1.Pod) { s.change(func() { s.pods[pod.UID] = pod }) }

func (s *podStore) remove(pod *corev1.Pod) { s.change(func() { delete(s.pods, pod.UID) }) }

// replace makes these all pods that there are.
func (s *podStore) replace(all []*corev1.Pod) {
	pods := make(map[types.UID]*corev1.Pod, len(all))
	for _, pod := range all {
		pods[pod.UID] = pod
	}
	s.change(func() { s.pods, s.listed = pods, true })
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

// Add implements cache.ReflectorStore, as do the methods that follow. The reflector passes pods alone.
func (s *podStore) Add(obj any) error { return s.Update(obj) }

func (s *podStore) Update(obj any) error {
	s.put(obj.(*corev1.Pod))
	return nil
}

func (s *podStore) Delete(obj any) error {
	s.remove(obj.(*corev1.Pod))
	return nil
}

func (s *podStore) Replace(objs []any, _ string) error {
	pods := make([]*corev1.Pod, len(objs))
	for k, obj := range objs {
		pods[k] = obj.(*corev1.Pod)
	}
	s.replace(pods)
	return nil
}

// Resync does nothing: there are no handlers to call again.
func (s *podStore) Resync() error { return nil }

// change calls do, which changes the pods, and signals that.
func (s *podStore) change(do func()) {
	s.mu.Lock()
	do()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
