package drain

import (
	"context"
	"runtime/pprof"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

const (
	// roomForEvents is how many events of a node can wait without a goroutine that hands them over.
	roomForEvents = 8
	// maxStarts bounds how many drains list their pods or start a watch at once. The gate bounds it too, but not where
	// all of them have to list again: each would open connections of its own for that.
	maxStarts = 128
)

// podWatches are the watches of the pods of all nodes that one Drainer drains. A node's own watch brings its own pods
// and no others. In a storm that is a stream, its buffers and three goroutines for each node. Then they share one
// watch of all pods: the first that begins while there are many starts it, and those that begin later follow it. It
// ends with its last follower. The zero value is ready for use. Methods may be called concurrently.
type podWatches struct {
	mu       sync.Mutex
	starts   chan struct{} // a semaphore, see maxStarts; nil: nobody has used it
	drains   int
	starting bool         // somebody starts a shared watch
	shared   *sharedWatch // the one that can be followed; nil: there is none
}

// sharedWatch is one watch of all pods. The mutex of its podWatches guards it.
type sharedWatch struct {
	stop      func()
	followers map[string]map[*follower]bool // by the name of the node
	count     int
}

// follower is a node's part of a shared watch. It implements [watch.Interface].
type follower struct {
	watches *podWatches
	node    string
	stopped chan struct{} // closed by Stop
	once    sync.Once

	shared *sharedWatch     // guarded by the mutex of watches, as is what follows
	since  string           // the resource version of the list
	early  []watch.Event    // came before from was called
	events chan watch.Event // nil: from was not called; see send

	sending sync.Mutex    // guards what follows
	late    []watch.Event // what events has no room for
	pumping bool          // a goroutine sends them, and nobody else sends
	ended   bool          // nothing comes after them
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

func (w *podWatches) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drains--
}

// follow makes a node a follower of the shared watch; nil: there is none, or there are fewer drains than from, for
// which it would bring too much. Who lists the pods afterwards, as of now, gets by [follower.from] all that comes after
// the list.
func (w *podWatches) follow(node string, from int) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shared == nil || w.drains < from {
		return nil
	}
	return w.shared.add(w, node)
}

// start starts a shared watch from the resource version of a list of one node, which becomes its first follower; nil:
// there are fewer drains than from, or there is one, or it cannot be started. ctx bounds the start, and hands on its
// logger.
func (w *podWatches) start(
	ctx context.Context, pods typedcorev1.PodInterface, node string, from int, opts metav1.ListOptions,
) *follower {
	w.mu.Lock()
	if w.drains < from || w.starting || w.shared != nil {
		w.mu.Unlock()
		return nil
	}
	w.starting = true
	w.mu.Unlock()
	streaming, stop := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, stop)
	opts.FieldSelector = ""
	stream, err := pods.Watch(streaming, opts)
	if err == nil && !unlink() {
		stream.Stop()
		err = context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting = false
	if err != nil { // the node's own watch tells
		stop()
		return nil
	}
	w.shared = &sharedWatch{stop: stop, followers: map[string]map[*follower]bool{}}
	f := w.shared.add(w, node)
	f.begin(opts.ResourceVersion)
	go w.serve(streaming, w.shared, pods, opts, stream)
	return f
}

// serve hands the events of a stream to the followers. The API server ends a stream after some minutes, and another one
// goes on from there. If that fails the followers end, and watch for themselves.
func (w *podWatches) serve(
	ctx context.Context, shared *sharedWatch,
	pods typedcorev1.PodInterface, opts metav1.ListOptions, stream watch.Interface,
) {
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels("node", "all", "instance", ""))) // not the first one's
	for {
		begun, before := time.Now(), opts.ResourceVersion
		ended := w.pass(shared, stream, &opts.ResourceVersion)
		stream.Stop()
		if !ended || ctx.Err() != nil || time.Since(begun) <= time.Second && opts.ResourceVersion == before {
			break
		}
		var err error
		if stream, err = kube.StartWatch(ctx, pods, opts); err != nil {
			break
		}
	}
	w.end(shared, opts.ResourceVersion)
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
		if event.Type == watch.Bookmark {
			continue
		}
		for _, f := range w.readers(shared, pod.Spec.NodeName, event) {
			f.send(event)
		}
	}
	return true
}

// end ends the followers of a shared watch, which has brought all up to a resource version.
func (w *podWatches) end(shared *sharedWatch, version string) {
	w.mu.Lock()
	var readers []*follower
	for _, followers := range shared.followers {
		for f := range followers {
			f.shared = nil
			if f.events != nil {
				readers = append(readers, f)
			}
		}
	}
	if w.shared == shared {
		w.shared = nil
	}
	w.mu.Unlock()
	shared.stop()
	seen := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	for _, f := range readers {
		f.send(watch.Event{Type: watch.Bookmark, Object: seen}) // from where it is to watch
		f.finish()
	}
}

// readers returns the followers of a node that read, and keeps the event for the others.
func (w *podWatches) readers(shared *sharedWatch, node string, event watch.Event) (readers []*follower) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range shared.followers[node] {
		if f.events == nil {
			f.early = append(f.early, event)
		} else {
			readers = append(readers, f)
		}
	}
	return readers
}

// add adds a follower. The caller holds the mutex of w.
func (s *sharedWatch) add(w *podWatches, node string) *follower {
	f := &follower{watches: w, node: node, stopped: make(chan struct{}), shared: s}
	if s.followers[node] == nil {
		s.followers[node] = map[*follower]bool{}
	}
	s.followers[node][f] = true
	s.count++
	return f
}

// from begins to report what came after a list with this resource version. It returns false if the shared watch has
// ended.
func (f *follower) from(version string) bool {
	f.watches.mu.Lock()
	defer f.watches.mu.Unlock()
	if f.shared == nil {
		return false
	}
	f.begin(version)
	return true
}

// begin is from. The caller holds the mutex.
func (f *follower) begin(version string) {
	f.since = version
	f.events = make(chan watch.Event, len(f.early)+roomForEvents)
	for _, event := range f.early {
		if f.isNew(event) {
			f.events <- event
		}
	}
	f.early = nil
}

// send hands an event to who reads, if it came after the list. It does not wait for that: the shared watch would fall
// behind, for all nodes, and the API server would end it.
func (f *follower) send(event watch.Event) {
	if !f.isNew(event) {
		return
	}
	f.sending.Lock()
	defer f.sending.Unlock()
	if !f.pumping {
		select {
		case f.events <- event:
			return
		default:
			f.pumping = true
			go f.pump()
		}
	}
	f.late = append(f.late, event)
}

// finish closes the events after the last one.
func (f *follower) finish() {
	f.sending.Lock()
	defer f.sending.Unlock()
	if f.ended = true; !f.pumping {
		close(f.events)
	}
}

// pump sends what events had no room for.
func (f *follower) pump() {
	for {
		f.sending.Lock()
		late := f.late
		f.late = nil
		if f.pumping = len(late) > 0; !f.pumping && f.ended {
			close(f.events)
		}
		f.sending.Unlock()
		if len(late) == 0 {
			return
		}
		for _, event := range late {
			select {
			case f.events <- event:
			case <-f.stopped:
				return
			}
		}
	}
}

// isNew reports whether an event came after the list. The list may be newer than what the shared watch has brought.
func (f *follower) isNew(event watch.Event) bool {
	order, err := resourceversion.CompareResourceVersion(event.Object.(*corev1.Pod).ResourceVersion, f.since)
	return err != nil || order > 0
}

// ResultChan implements [watch.Interface].
func (f *follower) ResultChan() <-chan watch.Event { return f.events }

// Stop implements [watch.Interface]. It may be called more than once, and for nil.
func (f *follower) Stop() {
	if f == nil {
		return
	}
	f.once.Do(func() {
		close(f.stopped)
		f.watches.mu.Lock()
		defer f.watches.mu.Unlock()
		s := f.shared
		if s == nil {
			return
		}
		f.shared = nil
		delete(s.followers[f.node], f)
		if len(s.followers[f.node]) == 0 {
			delete(s.followers, f.node)
		}
		if s.count--; s.count == 0 {
			s.stop()
			if f.watches.shared == s {
				f.watches.shared = nil
			}
		}
	})
}
