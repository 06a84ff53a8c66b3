package kubesim

import (
	"sort"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// An object is one version of a pod or a node. It is never changed.
type object interface {
	// encodable is the object with its TypeMeta.
	encodable() runtime.Object
	key() string // its name
	fields() fieldSet
	labels() labels.Set
	resourceVersion() uint64
}

// An event is one change of a resource.
type event struct {
	kind    watch.EventType
	version uint64
	before  object // nil: it was added
	object  object // as it was at last, if it was deleted

	frames [codecCount]struct { // for the watches that get the event as it is
		once sync.Once
		text []byte
		err  error
	}
}

// frame is the event as it is sent. It is encoded once, however many watches there are.
func (e *event) frame(c *codec) ([]byte, error) {
	f := &e.frames[c.index]
	f.once.Do(func() { f.text, f.err = c.frame(e.kind, e.object.encodable()) })
	return f.text, f.err
}

// history has the last events of a resource, as the watch cache of the API server. The mutex of the Server guards it.
type history struct {
	kept    int
	events  []*event // a ring, once it has as many as are kept
	next    int      // how many events there ever were
	dropped uint64   // version of the newest event that is not kept any more
	grown   chan struct{}
}

func newHistory(kept int) *history {
	return &history{kept: kept, grown: make(chan struct{})}
}

func (h *history) add(e *event) {
	if len(h.events) < h.kept {
		h.events = append(h.events, e)
	} else {
		slot := &h.events[h.next%h.kept]
		h.dropped = (*slot).version
		*slot = e
	}
	h.next++
	close(h.grown)
	h.grown = make(chan struct{})
}

// oldest is the number of the oldest event that is kept.
func (h *history) oldest() int { return max(0, h.next-len(h.events)) }

// after is the number of the first event after a version; false: that was too long ago.
func (h *history) after(version uint64) (int, bool) {
	if version < h.dropped {
		return 0, false
	}
	oldest := h.oldest()
	n := sort.Search(h.next-oldest, func(k int) bool { return h.events[(oldest+k)%len(h.events)].version > version })
	return oldest + n, true
}

// from returns the events from a number on, at most so many, and a channel that is closed when there are more; false:
// the first of them is not kept any more.
func (h *history) from(number, most int) (events []*event, grown <-chan struct{}, ok bool) {
	if number < h.oldest() {
		return nil, nil, false
	}
	for k := number; k < min(h.next, number+most); k++ {
		events = append(events, h.events[k%len(h.events)])
	}
	return events, h.grown, true
}

// A tail gets the events of one node's pods as they come. The watches of all nodes would else go through each other's
// events; the API server has an index for them, too. Its methods may be called concurrently.
type tail struct {
	mu     sync.Mutex
	events []*event
	wake   chan struct{} // has a value when there are events
}

func newTail(events []*event) *tail {
	t := &tail{wake: make(chan struct{}, 1)}
	t.add(events...)
	return t
}

func (t *tail) add(events ...*event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, events...)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take returns the events that came since it was last called.
func (t *tail) take() []*event {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := t.events
	t.events = nil
	return events
}
