package drain

import (
	"context"
	"runtime/pprof"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

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

// enter counts a drain in.
func (w *podWatches) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drains++
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

// end ends a shared watch. Those who follow it watch anew.
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
