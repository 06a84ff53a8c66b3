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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
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
	d.watches.mu.Lock()
	d.watches.drains++
	d.watches.mu.Unlock()
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
			log := klog.FromContext(ctx).WithValues("node", p.node, "error", err)
			if says := "the pods of a node cannot be listed, trying again"; failures == 1 {
				logging.Warn(log, says)
			} else {
				log.V(1).Info(says)
			}
		}
		if retry.Sleep(ctx, watchBackoff.Pause(failures)) != nil {
			return
		}
	}
	cache.NewReflectorWithOptions(kube.ListWatch(p, p, onNode(p.node)), &corev1.Pod{}, p.store,
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
	return p.pods.Watch(ctx, opts)
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

const (
	// maxStarts bounds how many drains list their pods or start a watch at once. The gate bounds it too, but not where
	// all of them have to list again: each would open connections of its own for that.
	maxStarts = 128
	// sharesLost is how many shared watches a drain loses, each after less than sharedLong, before it watches for
	// itself.
	sharesLost = 2
	sharedLong = time.Minute
	// resumeFor is how long it is tried to go on with a shared watch that was cut.
	resumeFor = 10 * time.Second
)

// bound selects the pods that have a node. Those that replace evicted ones are created, found unschedulable and bound
// meanwhile: the API server tells of them when they are bound.
var bound = fields.OneTermNotEqualSelector("spec.nodeName", "").String()

// watchBackoff says when a list of the pods of a node, or a shared watch, is tried again. It has the first pause of a
// reflector, and is never as long as that: a drain may have two minutes in all.
var watchBackoff = retry.Backoff{First: 500 * time.Millisecond, Max: 4 * time.Second, Factor: 2, Jitter: 0.5}

// reflectorBackoff is the same for a node that does not share its watch: client-go's own pauses, of up to a minute, are
// for watches that have more time.
var reflectorBackoff = wait.Backoff{
	Duration: watchBackoff.First, Factor: watchBackoff.Factor, Jitter: watchBackoff.Jitter, Cap: watchBackoff.Max,
	Steps: 10,
}

// podWatches are the watches of the pods of all nodes that one Drainer drains. A node's own watch brings its own pods
// and no others. In a storm that is a stream, its buffers and three goroutines for each node. Then they share one
// watch of all pods, which has one goroutine for all. It ends with its last follower. The zero value is ready for use.
// Methods may be called concurrently.
type podWatches struct {
	mu     sync.Mutex
	starts chan struct{} // a semaphore, see maxStarts; nil: nobody has used it
	drains int
	shared *sharedWatch // the one that can be followed; nil: there is none
}

// sharedWatch is one watch of all pods. The mutex of its podWatches guards it.
type sharedWatch struct {
	start     func(version string)
	stop      func()
	started   bool                          // there was a list to start from
	first     string                        // the resource version of that list
	followers map[string]map[*follower]bool // by the name of the node
	count     int
}

// follower is a node's part of a shared watch. The mutex of its podWatches guards it.
type follower struct {
	of   *podsOf
	lost func() // called, on a goroutine of its own, when the shared watch has ended

	shared *sharedWatch  // nil: it has ended, or nobody follows it here any more
	begun  bool          // the store has its list
	since  string        // the resource version of the list
	early  []watch.Event // what came before the list
}

// startOne waits until a list or the start of a watch may begin. done is to be called at its end. The error is the
// cause of ctx.
func (w *podWatches) startOne(ctx context.Context) (done func(), err error) {
	w.mu.Lock()
	if w.starts == nil {
		w.starts = make(chan struct{}, maxStarts)
	}
	starts := w.starts
	w.mu.Unlock()
	select {
	case starts <- struct{}{}:
		return func() { <-starts }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// follow has a node follow the shared watch; nil: there are too few drains, for which it would bring too much, or the
// drain has ended. Who then lists the pods, as of now, and calls begin, has the store get all that comes after. ctx
// hands on its logger.
func (w *podWatches) follow(ctx context.Context, of *podsOf, lost func()) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drains < of.shareFrom || of.ended {
		return nil
	}
	if w.shared == nil {
		s := &sharedWatch{followers: map[string]map[*follower]bool{}}
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		s.stop = stop
		s.start = func(version string) {
			go w.serve(ctx, s, of.pods, metav1.ListOptions{
				FieldSelector: bound, ResourceVersion: version, AllowWatchBookmarks: true,
			})
		}
		w.shared = s
	}
	s := w.shared
	f := &follower{of: of, lost: lost, shared: s}
	if s.followers[of.node] == nil {
		s.followers[of.node] = map[*follower]bool{}
	}
	s.followers[of.node][f] = true
	s.count++
	of.following = f
	return f
}

// begin fills the store with a list, and from then on with what comes after it. The first list starts the shared watch.
// It returns false if the shared watch does not bring all that comes after the list.
func (f *follower) begin(list *corev1.PodList) bool {
	f.of.watches.mu.Lock()
	defer f.of.watches.mu.Unlock()
	s := f.shared
	switch {
	case s == nil || s.started && isNewer(s.first, list.ResourceVersion):
		return false
	case !s.started:
		s.started, s.first = true, list.ResourceVersion
		s.start(s.first)
	}
	f.begun, f.since = true, list.ResourceVersion
	pods := make([]*corev1.Pod, len(list.Items))
	for k := range list.Items {
		pods[k] = &list.Items[k]
	}
	f.of.store.replace(pods)
	for _, event := range f.early {
		f.receive(event)
	}
	f.early = nil
	return true
}

// serve hands what happens after a list to the followers. The API server ends a stream after some minutes, and another
// one goes on from there. If that fails for a while, or is not possible any more, the followers are lost.
func (w *podWatches) serve(
	ctx context.Context, shared *sharedWatch, pods typedcorev1.PodInterface, opts metav1.ListOptions,
) {
	defer w.end(shared)
	ctx = pprof.WithLabels(ctx, pprof.Labels("node", "all", "instance", "")) // not those of the first drain
	pprof.SetGoroutineLabels(ctx)
	failures, passed := 0, time.Now()
	for {
		stream, err := kube.StartWatch(ctx, pods, opts)
		if err == nil {
			begun, before := time.Now(), opts.ResourceVersion
			ended := w.pass(shared, stream, &opts.ResourceVersion)
			stream.Stop()
			if !ended {
				return
			}
			if time.Since(begun) > time.Second || opts.ResourceVersion != before {
				failures, passed = 0, time.Now()
				continue
			}
		}
		if failures++; time.Since(passed) > resumeFor || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) ||
			retry.Sleep(ctx, watchBackoff.Pause(failures)) != nil {
			return
		}
	}
}

// pass hands the events of one stream to the followers until it ends, and notes the newest resource version. It returns
// false if the stream has failed.
func (w *podWatches) pass(shared *sharedWatch, stream watch.Interface, version *string) bool {
	for event := range stream.ResultChan() {
		pod, isPod := event.Object.(*corev1.Pod)
		if !isPod { // an error
			return false
		}
		*version = pod.ResourceVersion
		if event.Type != watch.Bookmark {
			w.hand(shared, pod.Spec.NodeName, event)
		}
	}
	return true
}

// hand hands an event to the followers of its node. Nobody waits for a drain in that: the shared watch would fall
// behind, for all nodes, and the API server would end it.
func (w *podWatches) hand(shared *sharedWatch, node string, event watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range shared.followers[node] {
		f.receive(event)
	}
}

// receive hands an event to the store, if it came after the list. The caller holds the mutex.
func (f *follower) receive(event watch.Event) {
	pod := event.Object.(*corev1.Pod)
	switch {
	case !f.begun:
		f.early = append(f.early, event)
	case !isNewer(pod.ResourceVersion, f.since): // the list may be newer than what the shared watch has brought
	case event.Type == watch.Deleted:
		f.of.store.remove(pod)
	default:
		f.of.store.put(pod)
	}
}

// isNewer reports whether a resource version came after another one, or cannot be compared with it.
func isNewer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || order > 0
}

// end ends a shared watch. Its followers begin another watch.
func (w *podWatches) end(shared *sharedWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shared.stop()
	if w.shared == shared {
		w.shared = nil
	}
	for _, followers := range shared.followers {
		for f := range followers {
			f.shared = nil
			if f.begun { // else begin tells it
				go f.lost()
			}
		}
	}
}

// stop ends what follow has begun. It may be called more than once, and for nil. The caller holds the mutex.
func (f *follower) stop() {
	if f == nil || f.shared == nil {
		return
	}
	s := f.shared
	f.shared, f.of.following = nil, nil
	delete(s.followers[f.of.node], f)
	if len(s.followers[f.of.node]) == 0 {
		delete(s.followers, f.of.node)
	}
	if s.count--; s.count == 0 {
		s.stop()
		if f.of.watches.shared == s {
			f.of.watches.shared = nil
		}
	}
}
