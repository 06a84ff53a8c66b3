package kubesim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// The sizes of the objects, about, for the width of a list.
const (
	nodeBytes = 5_000
	podBytes  = 2_000
)

// A collection is all objects of a resource.
type collection struct {
	resource  string
	bytesEach int
	list      func(selection) runtime.Object
}

// A selection is what a list or a watch asks for.
type selection struct {
	options metav1.ListOptions
	fields  fields.Selector
	labels  labels.Selector
	version uint64 // from which a watch goes on; 0: any
}

func selectionOf(query url.Values) (s selection, err error) {
	if err = scheme.ParameterCodec.DecodeParameters(query, corev1.SchemeGroupVersion, &s.options); err != nil {
		return s, err
	}
	if s.fields, err = fields.ParseSelector(s.options.FieldSelector); err != nil {
		return s, err
	}
	if s.labels, err = labels.Parse(s.options.LabelSelector); err != nil {
		return s, err
	}
	s.version, err = strconv.ParseUint(cmp.Or(s.options.ResourceVersion, "0"), 10, 64)
	return s, err
}

// has reports whether an object is selected; nil never is.
func (s selection) has(o object) bool {
	return o != nil && s.fields.Matches(o.fields()) && (s.labels.Empty() || s.labels.Matches(o.labels()))
}

// serveCollection answers a list, or begins a watch.
func (s *Server) serveCollection(w http.ResponseWriter, req *http.Request, c collection) {
	wanted, err := selectionOf(req.URL.Query())
	codec := codecFor(req)
	if err != nil {
		status, code := statusOf(err)
		codec.write(w, code, status)
		return
	}
	if wanted.options.Watch {
		s.serveWatch(w, req, c, wanted)
		return
	}
	what, came := "list "+c.resource, time.Now()
	width := s.listCost(c, wanted)
	if !s.enter(w, req, what, width) {
		return
	}
	defer s.flow.leave(width)
	s.pause(req, s.options.Latency.List)
	s.requests.note(came, what, http.StatusOK)
	codec.write(w, http.StatusOK, c.list(wanted))
}

// listCost is the cost of a list, or of the list that a watch begins with.
func (s *Server) listCost(c collection, wanted selection) cost {
	if _, one := wanted.fields.RequiresExactMatch("metadata.name"); one {
		return read
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	count := map[string]int{resourceNodes: len(s.nodes), resourcePods: len(s.pods)}[c.resource]
	if limit := int(wanted.options.Limit); limit > 0 {
		count = min(count, limit)
	}
	return listCost(count, c.bytesEach, s.width)
}

// selected are the objects of a resource that a list asks for, and its metadata. The caller holds mu.
func (s *Server) selected(resource string, wanted selection) ([]object, metav1.ListMeta) {
	var all []object
	sorted := false
	node, ofNode := wanted.fields.RequiresExactMatch("spec.nodeName")
	name, one := wanted.fields.RequiresExactMatch("metadata.name")
	switch {
	case resource == resourceNodes && one:
		if n := s.nodes[name]; n != nil {
			all = append(all, n)
		}
	case resource == resourceNodes:
		all = appendAll(all, s.nodes)
	case one:
		if p := s.pods[name]; p != nil {
			all = append(all, p)
		}
	case ofNode && node == "":
		sorted = true
		for _, p := range s.scheduler.queue {
			all = append(all, p)
		}
	case ofNode:
		all = appendAll(all, s.onNode[node])
	default:
		all = appendAll(all, s.pods)
	}
	all = slices.DeleteFunc(all, func(o object) bool { return !wanted.has(o) })
	if !sorted {
		slices.SortFunc(all, func(a, b object) int { return strings.Compare(a.key(), b.key()) })
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(s.version, 10)}
	if after := wanted.options.Continue; after != "" { // here it is the last name of the page before
		n, _ := slices.BinarySearchFunc(all, after+"\x00", func(o object, name string) int {
			return strings.Compare(o.key(), name)
		})
		all = all[n:]
	}
	if limit := int(wanted.options.Limit); limit > 0 && len(all) > limit {
		meta.Continue, meta.RemainingItemCount = all[limit-1].key(), new(int64(len(all)-limit))
		all = all[:limit]
	}
	return all, meta
}

func appendAll[O object](all []object, from map[string]O) []object {
	for _, o := range from {
		all = append(all, o)
	}
	return all
}

// snapshot is selected for those that do not hold mu.
func (s *Server) snapshot(resource string, wanted selection) ([]object, metav1.ListMeta) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.selected(resource, wanted)
}

func (s *Server) listNodes(wanted selection) runtime.Object {
	found, meta := s.snapshot(resourceNodes, wanted)
	list := &corev1.NodeList{TypeMeta: typeMeta("NodeList"), ListMeta: meta, Items: make([]corev1.Node, len(found))}
	for k, o := range found {
		list.Items[k] = *o.(*node).Node
		list.Items[k].TypeMeta = metav1.TypeMeta{}
	}
	return list
}

func (s *Server) listPods(wanted selection) runtime.Object {
	found, meta := s.snapshot(resourcePods, wanted)
	list := &corev1.PodList{TypeMeta: typeMeta("PodList"), ListMeta: meta, Items: make([]corev1.Pod, len(found))}
	for k, o := range found {
		list.Items[k] = o.(*pod).build()
	}
	return list
}

func (s *Server) noVolumeAttachments(selection) runtime.Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return &storagev1.VolumeAttachmentList{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "VolumeAttachmentList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(s.version, 10)},
	}
}

func typeMeta(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

// A stream is one watch that is answered.
type stream struct {
	server     *Server
	collection collection
	wanted     selection
	codec      *codec
	out        *http.ResponseController
	writer     http.ResponseWriter
	next       int    // number of the event to be sent next
	tail       *tail  // of the one node that is watched; nil: it is not one node's pods
	node       string // of the tail
	version    uint64 // up to which all is sent
}

var errTooOld = errors.New("too old resource version")

const (
	// eventsAtOnce are sent, and then the others have a turn.
	eventsAtOnce = 500
	// bookmarkEvery is how often a watch gets a bookmark.
	bookmarkEvery = time.Minute
	// shortestWatch: without a timeout a watch lasts as long, or up to twice that: --min-request-timeout.
	shortestWatch = 30 * time.Minute
)

// serveWatch answers a watch until its client ends it, or its time is over.
func (s *Server) serveWatch(w http.ResponseWriter, req *http.Request, c collection, wanted selection) {
	what, came := "watch "+c.resource, time.Now()
	first := read
	// Without a version, or where the client asks for it, a watch begins with all objects.
	list := wanted.version == 0 || wanted.options.SendInitialEvents != nil && *wanted.options.SendInitialEvents
	if list {
		first = s.listCost(c, wanted)
	}
	if !s.enter(w, req, what, first) {
		return
	}
	s.pause(req, s.options.Latency.WatchStart)
	st := &stream{
		server: s, collection: c, wanted: wanted, codec: codecFor(req), out: http.NewResponseController(w), writer: w,
	}
	initial, err := st.begin(list)
	defer st.end()
	s.requests.note(came, what, http.StatusOK)
	w.Header().Set("Content-Type", st.codec.stream)
	w.WriteHeader(http.StatusOK)
	if err == nil {
		err = st.sendInitial(initial, list)
	}
	s.flow.leave(first)
	if err == nil {
		err = st.run(req)
	}
	if errors.Is(err, errTooOld) {
		s.expired.Add(1)
		status, _ := statusOf(apierrors.NewResourceExpired(err.Error()))
		_ = st.sendObject(watch.Error, status) // the client lists again, if it is there
	}
}

// begin finds where the watch begins, and returns the objects that there are by then.
func (st *stream) begin(list bool) (initial []object, err error) {
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	changes := st.server.changes[st.collection.resource]
	if changes == nil {
		return nil, nil
	}
	st.next, st.version = changes.next, st.server.version
	if list {
		initial, _ = st.server.selected(st.collection.resource, st.wanted)
	} else {
		next, ok := changes.after(st.wanted.version)
		if !ok {
			return nil, fmt.Errorf("%w: %d (%d)", errTooOld, st.wanted.version, changes.dropped+1)
		}
		st.next, st.version = next, st.wanted.version
	}
	node, one := st.wanted.fields.RequiresExactMatch("spec.nodeName")
	if !one || node == "" || st.collection.resource != resourcePods {
		return initial, nil
	}
	missed, _, _ := changes.from(st.next, changes.next)
	st.tail, st.node = newTail(missed), node
	if st.server.tails[node] == nil {
		st.server.tails[node] = map[*tail]bool{}
	}
	st.server.tails[node][st.tail] = true
	return initial, nil
}

// end ends what begin has begun.
func (st *stream) end() {
	if st.tail == nil {
		return
	}
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	delete(st.server.tails[st.node], st.tail)
	if len(st.server.tails[st.node]) == 0 {
		delete(st.server.tails, st.node)
	}
}

// sendInitial sends the objects that a watch begins with, and that these were all.
func (st *stream) sendInitial(initial []object, list bool) error {
	for _, o := range initial {
		if err := st.sendObject(watch.Added, o.encodable()); err != nil {
			return err
		}
	}
	if list && st.wanted.options.SendInitialEvents != nil {
		if err := st.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}); err != nil {
			return err
		}
	}
	return st.out.Flush()
}

// run sends the events as they come.
func (st *stream) run(req *http.Request) error {
	timeout := time.Duration((1 + rand.Float64()) * float64(shortestWatch))
	if seconds := st.wanted.options.TimeoutSeconds; seconds != nil && *seconds < math.MaxInt32 {
		timeout = time.Duration(*seconds) * time.Second
	}
	end := time.NewTimer(timeout)
	defer end.Stop()
	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	for {
		grown, err := st.catchUp()
		if err != nil {
			return err
		}
		select {
		case <-grown:
		case <-bookmarks.C:
			if !st.wanted.options.AllowWatchBookmarks {
				continue
			}
			if err := st.bookmark(nil); err != nil {
				return err
			}
			if err := st.out.Flush(); err != nil {
				return err
			}
		case <-end.C:
			return nil
		case <-req.Context().Done():
			return nil
		case <-st.server.done:
			return nil
		}
	}
}

// catchUp sends all events that there are, and returns a channel that has news when there are more.
func (st *stream) catchUp() (grown <-chan struct{}, err error) {
	for sent := 0; ; {
		events, grown, newest, ok := st.events()
		if !ok {
			return nil, errTooOld
		}
		for _, e := range events {
			n, err := st.send(e)
			if err != nil {
				return nil, err
			}
			st.next++
			st.version = e.version
			sent += n
		}
		if len(events) == eventsAtOnce {
			continue
		}
		st.version = max(st.version, newest)
		if sent > 0 {
			err = st.out.Flush()
		}
		return grown, err
	}
}

// events returns those that come next, a channel that has news when there are more, and the newest version that there
// is.
func (st *stream) events() (events []*event, grown <-chan struct{}, newest uint64, ok bool) {
	st.server.mu.RLock()
	defer st.server.mu.RUnlock()
	changes := st.server.changes[st.collection.resource]
	switch {
	case changes == nil:
		return nil, nil, st.server.version, true
	case st.tail != nil:
		return st.tail.take(), st.tail.wake, st.server.version, true
	}
	events, grown, ok = changes.from(st.next, eventsAtOnce)
	behind := int64(changes.next - st.next)
	if st.collection.resource == resourcePods && behind > st.server.behind.Load() {
		st.server.behind.Store(behind)
	}
	return events, grown, st.server.version, ok
}

// send sends an event as the selection sees it: what was not selected before is added, what is not any more deleted.
// It returns how many events were sent.
func (st *stream) send(e *event) (int, error) {
	before, after := st.wanted.has(e.before), st.wanted.has(e.object) && e.kind != watch.Deleted
	kind := e.kind
	switch {
	case !before && !after:
		return 0, nil
	case !before:
		kind = watch.Added
	case !after:
		kind = watch.Deleted
	}
	if kind != e.kind {
		return 1, st.sendObject(kind, e.object.encodable())
	}
	frame, err := e.frame(st.codec)
	if err == nil {
		_, err = st.writer.Write(frame)
	}
	return 1, err
}

func (st *stream) sendObject(kind watch.EventType, o runtime.Object) error {
	frame, err := st.codec.frame(kind, o)
	if err == nil {
		_, err = st.writer.Write(frame)
	}
	return err
}

// bookmark tells up to which version all is sent.
func (st *stream) bookmark(annotations map[string]string) error {
	meta := metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(st.version, 10), Annotations: annotations}
	var empty runtime.Object
	switch st.collection.resource {
	case resourceNodes:
		empty = &corev1.Node{TypeMeta: typeMeta("Node"), ObjectMeta: meta}
	case resourcePods:
		empty = &corev1.Pod{TypeMeta: typeMeta("Pod"), ObjectMeta: meta}
	default:
		empty = &storagev1.VolumeAttachment{
			TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "VolumeAttachment"}, ObjectMeta: meta,
		}
	}
	return st.sendObject(watch.Bookmark, empty)
}
