package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// An apiServer is as much of a Kubernetes API server as this program meets: the
// real client-go speaks HTTP to it, without sockets, so that it fits into a
// bubble of virtual time. It knows resource versions, preconditions, watches
// that go on where a list has ended, graceful deletion, and faults. A kubelet
// that stops pods is part of it.
type apiServer struct {
	*testing.T
	// stops is how long a pod takes to stop, if its grace lets it.
	stops func(pod string) time.Duration
	// refuse answers the evictions of a pod in the place of accepting them.
	refuse map[string]*metav1.Status
	// listsOnly: watches cannot send what there is before what changes, as in
	// older API servers.
	listsOnly bool
	// expire: a watch that goes on where another ended finds that expired.
	expire bool
	// clock is by how much its own is ahead of ours.
	clock time.Duration
	// These may be nil; they are called with mu held. budget answers an eviction in
	// the place of accepting it, as refuse does; kubelet is told of a pod that has to
	// stop, in the place of the one here; watched sees each change; asked sees each
	// answered request to stop a pod, and patched each patch of a Node.
	budget  func(pod *unstructured.Unstructured) *metav1.Status
	kubelet func(pod *unstructured.Unstructured, grace time.Duration)
	watched func(e watchEvent)
	asked   func(pod *unstructured.Unstructured, how string, grace time.Duration, status int)
	patched func(before, after *unstructured.Unstructured)

	mu      sync.Mutex
	version int
	objects map[string]*unstructured.Unstructured // by resource, namespace and name
	history []watchEvent
	changed chan struct{} // closed and replaced when history has grown
	faults  []*apiFault
	random  *rand.Rand
	calls   []apiCall
	stopped []podStop
	gone    map[string]time.Time // pods, by UID
}

// apiFault makes calls go wrong between two moments; its Action is such as
// "patch nodes". What a fault of AWS and one of an API server have in common is
// meant the same.
type apiFault struct {
	awssim.Fault
	from, to time.Time
	cut      time.Duration // ends every watch after so long
}

// apiCall is the record of one call.
type apiCall struct {
	start, end   time.Time
	action, path string
	status       int // 0: no answer
}

// podStop is an accepted request that made a pod stop.
type podStop struct {
	uid, name, how string
	grace          time.Duration
	at             time.Time
}

type watchEvent struct {
	version  int
	kind     string
	resource string
	object   *unstructured.Unstructured
}

var kinds = map[string]struct{ version, kind string }{
	"nodes":                  {"v1", "Node"},
	"pods":                   {"v1", "Pod"},
	"persistentvolumeclaims": {"v1", "PersistentVolumeClaim"},
	"events":                 {"v1", "Event"},
	"volumeattachments":      {"storage.k8s.io/v1", "VolumeAttachment"},
	"leases":                 {"coordination.k8s.io/v1", "Lease"},
}

func newAPIServer(t *testing.T, seed uint64) *apiServer {
	return &apiServer{
		T: t, refuse: map[string]*metav1.Status{}, objects: map[string]*unstructured.Unstructured{},
		changed: make(chan struct{}), random: rand.New(rand.NewPCG(seed, 1)), gone: map[string]time.Time{},
	}
}

// client is a client of its own, with the product's limits.
func (a *apiServer) client(timeout time.Duration) kubernetes.Interface {
	a.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://kubernetes.invalid", Transport: a, QPS: 500, Burst: 1000, Timeout: timeout,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	})
	if err != nil {
		a.Fatal(err)
	}
	return client
}

// put adds an object, or replaces it.
func (a *apiServer) put(resource string, object any) {
	a.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		a.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(text, &u.Object); err != nil {
		a.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(resource, u)
}

// node reads a Node; it reports whether there is one.
func (a *apiServer) node(name string, into *corev1.Node) bool {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	u, ok := a.objects["nodes/"+name]
	if !ok {
		return false
	}
	text, err := json.Marshal(u)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		a.Fatal(err)
	}
	return true
}

// edit changes an object in one step, as somebody else than the clients does. It
// reports whether there is one.
func (a *apiServer) edit(resource, namespace, name string, change func(u *unstructured.Unstructured)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	u, ok := a.objects[path.Join(resource, namespace, name)]
	if ok {
		u = u.DeepCopy()
		change(u)
		a.store(resource, u)
	}
	return ok
}

// remove deletes at once an object that has no namespace.
func (a *apiServer) remove(resource, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(path.Join(resource, name), resource)
}

// store writes an object and tells the watches. mu is held.
func (a *apiServer) store(resource string, u *unstructured.Unstructured) {
	key := path.Join(resource, u.GetNamespace(), u.GetName())
	old, there := a.objects[key]
	a.version++
	u.SetAPIVersion(kinds[resource].version)
	u.SetKind(kinds[resource].kind)
	u.SetResourceVersion(strconv.Itoa(a.version))
	kind := "MODIFIED"
	if there {
		u.SetUID(old.GetUID())
	} else {
		kind = "ADDED"
		if u.GetUID() == "" {
			u.SetUID(types.UID(fmt.Sprintf("uid-%d-of-%s", a.version, u.GetName())))
		}
	}
	a.objects[key] = u
	a.tell(watchEvent{a.version, kind, resource, u})
}

// drop removes an object and tells the watches. mu is held.
func (a *apiServer) drop(key, resource string) {
	u, ok := a.objects[key]
	if !ok {
		return
	}
	delete(a.objects, key)
	a.version++
	last := u.DeepCopy()
	last.SetResourceVersion(strconv.Itoa(a.version))
	if resource == "pods" {
		a.gone[string(u.GetUID())] = time.Now()
	}
	a.tell(watchEvent{a.version, "DELETED", resource, last})
}

func (a *apiServer) tell(e watchEvent) {
	a.history = append(a.history, e)
	close(a.changed)
	a.changed = make(chan struct{})
	if a.watched != nil {
		a.watched(e)
	}
}

// request is a call, read.
type request struct {
	verb, resource, subresource string
	namespace, name             string
	list                        metav1.ListOptions
	body                        []byte
}

// action is what is asked for, such as "create pods/eviction".
func (r request) action() string { return r.verb + " " + path.Join(r.resource, r.subresource) }

func readRequest(r *http.Request) (request, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return request{}, fmt.Errorf("path %s", r.URL.Path)
	}
	var req request
	if parts[0] == "namespaces" && len(parts) > 2 {
		req.namespace, parts = parts[1], parts[2:]
	}
	for k, field := range []*string{&req.resource, &req.name, &req.subresource} {
		if k < len(parts) {
			*field = parts[k]
		}
	}
	query := r.URL.Query()
	req.list = metav1.ListOptions{
		LabelSelector: query.Get("labelSelector"), FieldSelector: query.Get("fieldSelector"), ResourceVersion: query.Get("resourceVersion"),
	}
	if query.Get("sendInitialEvents") == "true" {
		req.list.SendInitialEvents = new(true)
	}
	if seconds, err := strconv.ParseInt(query.Get("timeoutSeconds"), 10, 64); err == nil {
		req.list.TimeoutSeconds = &seconds
	}
	switch {
	case r.Method == http.MethodGet && query.Get("watch") != "":
		req.verb = "watch"
	case r.Method == http.MethodGet && req.name == "":
		req.verb = "list"
	default:
		req.verb = map[string]string{
			http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
		}[r.Method]
	}
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if req.body, err = io.ReadAll(r.Body); err != nil {
			return request{}, err
		}
	}
	return req, nil
}

// RoundTrip implements http.RoundTripper.
func (a *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	req, err := readRequest(r)
	if err != nil {
		return nil, err
	}
	call := apiCall{start: time.Now(), action: req.action(), path: r.URL.Path + " " + req.list.FieldSelector}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		call.end = time.Now()
		a.calls = append(a.calls, call)
	}()
	f := a.harm(req.action())
	if err := wait(ctx, f.Latency); err != nil {
		return nil, err
	}
	response := &http.Response{Header: http.Header{"Content-Type": {"application/json"}}, Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1}
	failing := f.Status != 0 || f.Reset || f.Hang
	var answer any
	if !failing || f.AfterEffect {
		response.StatusCode, answer = a.do(req)
	}
	switch {
	case f.Hang:
		err := wait(ctx, f.HangFor)
		return nil, errors.Join(err, syscall.ECONNRESET)
	case f.Reset:
		return nil, syscall.ECONNRESET
	case f.Status != 0:
		response.StatusCode, answer = f.Status, failure(f.Status, "", cmp.Or(f.Message, "a fault of the test"))
		if f.Status == http.StatusTooManyRequests {
			response.Header.Set("Retry-After", "1")
		}
	}
	if f.ContentType != "" {
		response.Header.Set("Content-Type", f.ContentType)
	}
	response.Header.Set("Date", time.Now().Add(a.clock+f.Skew).UTC().Format(http.TimeFormat))
	call.status = response.StatusCode
	if w, ok := answer.(*apiWatch); ok {
		w.ctx = ctx
		if f.cut > 0 {
			w.end = time.Now().Add(f.cut)
		}
		w.half = f.Half
		response.Body = w
		return response, nil
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	if f.Half {
		call.status = 0
		response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text[:len(text)/2]), brokenOff{}))
	}
	return response, nil
}

// brokenOff is the end of a body whose connection was lost.
type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// wait returns nil after d, or the error of ctx.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// harm is the first fault that meets a call.
func (a *apiServer) harm(action string) apiFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, f := range a.faults {
		if f.Action != "" && f.Action != action || now.Before(f.from) || !now.Before(f.to) {
			continue
		}
		if f.cut > 0 && !strings.HasPrefix(action, "watch ") {
			continue
		}
		if f.Probability > 0 && a.random.Float64() >= f.Probability {
			continue
		}
		return *f
	}
	return apiFault{}
}

// failure is the answer to a call that fails.
func failure(code int, reason metav1.StatusReason, message string) *metav1.Status {
	if reason == "" {
		reason = map[int]metav1.StatusReason{
			http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
			http.StatusConflict: metav1.StatusReasonConflict, http.StatusGone: metav1.StatusReasonExpired,
			http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusInternalServerError: metav1.StatusReasonInternalError,
			http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
		}[code]
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

// do performs a call.
func (a *apiServer) do(req request) (status int, answer any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := path.Join(req.resource, req.namespace, req.name)
	old, there := a.objects[key]
	if req.name != "" && !there {
		return http.StatusNotFound, failure(http.StatusNotFound, "", key+" not found")
	}
	switch req.action() {
	case "watch " + req.resource:
		return a.watch(req)
	case "list " + req.resource:
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(kinds[req.resource].version)
		list.SetKind(kinds[req.resource].kind + "List")
		list.SetResourceVersion(strconv.Itoa(a.version))
		for _, u := range a.selected(req) {
			list.Items = append(list.Items, *u)
		}
		return http.StatusOK, list
	case "get " + req.resource:
		return http.StatusOK, old
	case "create pods/eviction":
		return a.evict(req, old)
	case "delete pods":
		return a.stop(req.body, old, "deleted")
	case "create " + req.resource, "update " + req.resource:
		u := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(req.body, &u.Object); err != nil {
			return http.StatusBadRequest, failure(http.StatusBadRequest, "", err.Error())
		}
		u.SetNamespace(req.namespace)
		old, there = a.objects[path.Join(req.resource, req.namespace, u.GetName())]
		switch {
		case there && req.verb == "create" && req.resource != "events": // they are named by the time, which is virtual
			return http.StatusConflict, failure(http.StatusConflict, metav1.StatusReasonAlreadyExists, u.GetName()+" exists")
		case req.verb == "update" && u.GetResourceVersion() != old.GetResourceVersion():
			return http.StatusConflict, failure(http.StatusConflict, "", key+" is another version")
		}
		a.store(req.resource, u)
		return http.StatusOK, u
	case "patch " + req.resource:
		return a.patch(req, old)
	}
	return http.StatusMethodNotAllowed, failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, req.action())
}

// selected are the objects that a list or watch is about. mu is held.
func (a *apiServer) selected(req request) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for key, u := range a.objects {
		if strings.HasPrefix(key, req.resource+"/") && req.selects(u) {
			found = append(found, u)
		}
	}
	slices.SortFunc(found, func(x, y *unstructured.Unstructured) int { return strings.Compare(x.GetName(), y.GetName()) })
	return found
}

func (r request) selects(u *unstructured.Unstructured) bool {
	byLabel, err := labels.Parse(r.list.LabelSelector)
	if err != nil {
		return false
	}
	byField, err := fields.ParseSelector(r.list.FieldSelector)
	if err != nil {
		return false
	}
	node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
	known := fields.Set{"metadata.name": u.GetName(), "spec.nodeName": node}
	return byLabel.Matches(labels.Set(u.GetLabels())) && byField.Matches(known) && (r.namespace == "" || r.namespace == u.GetNamespace())
}

// patch makes a merge patch, for the version and the UID that it names.
func (a *apiServer) patch(req request, old *unstructured.Unstructured) (status int, answer any) {
	u := &unstructured.Unstructured{}
	before, err := json.Marshal(old)
	var after []byte
	if err == nil {
		after, err = jsonpatch.MergePatch(before, req.body)
	}
	if err == nil {
		err = utiljson.Unmarshal(after, &u.Object)
	}
	if err != nil {
		return http.StatusBadRequest, failure(http.StatusBadRequest, "", err.Error())
	}
	if u.GetResourceVersion() != old.GetResourceVersion() || u.GetUID() != old.GetUID() {
		return http.StatusConflict, failure(http.StatusConflict, "", "made from another version")
	}
	a.store(req.resource, u)
	if a.patched != nil && req.resource == "nodes" {
		a.patched(old, u)
	}
	return http.StatusOK, u
}

func (a *apiServer) evict(req request, pod *unstructured.Unstructured) (status int, answer any) {
	refusal := a.refuse[pod.GetName()]
	if a.budget != nil {
		refusal = a.budget(pod)
	}
	if refusal != nil && pod.GetDeletionTimestamp() == nil {
		if a.asked != nil {
			a.asked(pod, "evicted", 0, int(refusal.Code))
		}
		return int(refusal.Code), refusal
	}
	var eviction struct{ DeleteOptions json.RawMessage }
	if err := json.Unmarshal(req.body, &eviction); err != nil {
		return http.StatusBadRequest, failure(http.StatusBadRequest, "", err.Error())
	}
	status, answer = a.stop(eviction.DeleteOptions, pod, "evicted")
	if status == http.StatusOK {
		return http.StatusCreated, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	}
	return status, answer
}

// stop is a graceful deletion: a later one can only shorten the grace.
func (a *apiServer) stop(body []byte, pod *unstructured.Unstructured, how string) (status int, answer any) {
	options := metav1.DeleteOptions{}
	if err := json.Unmarshal(body, &options); err != nil {
		return http.StatusBadRequest, failure(http.StatusBadRequest, "", err.Error())
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != pod.GetUID() {
		return http.StatusConflict, failure(http.StatusConflict, "", "another pod has the name")
	}
	if p := options.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != pod.GetResourceVersion() {
		return http.StatusConflict, failure(http.StatusConflict, "", "the pod has changed")
	}
	seconds, _, _ := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds")
	if options.GracePeriodSeconds != nil {
		seconds = *options.GracePeriodSeconds
	}
	now, grace := time.Now(), time.Duration(seconds)*time.Second
	a.stopped = append(a.stopped, podStop{string(pod.GetUID()), pod.GetName(), how, grace, now})
	if a.asked != nil {
		a.asked(pod, how, grace, http.StatusOK)
	}
	if at := pod.GetDeletionTimestamp(); at != nil && !at.After(now.Add(a.clock+grace)) {
		return http.StatusOK, pod
	}
	next := pod.DeepCopy()
	next.SetDeletionTimestamp(new(metav1.NewTime(now.Add(a.clock + grace))))
	next.SetDeletionGracePeriodSeconds(&seconds)
	a.store("pods", next)
	if a.kubelet != nil {
		a.kubelet(next, grace)
		return http.StatusOK, next
	}
	time.AfterFunc(min(grace, a.stops(pod.GetName())), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		key := path.Join("pods", next.GetNamespace(), next.GetName())
		if now, ok := a.objects[key]; ok && now.GetUID() == next.GetUID() {
			a.drop(key, "pods")
		}
	})
	return http.StatusOK, next
}

// apiWatch is the body of a watch. Its reader waits for what comes.
type apiWatch struct {
	api    *apiServer
	req    request
	ctx    context.Context
	closed chan struct{}
	close  func()
	end    time.Time
	half   bool // breaks off within what comes first

	next   int // in the history
	unread []byte
	broken bool
}

// watch begins a watch. mu is held.
func (a *apiServer) watch(req request) (status int, answer any) {
	closed := make(chan struct{})
	w := &apiWatch{api: a, req: req, closed: closed, close: sync.OnceFunc(func() { close(closed) }), end: time.Now().Add(10 * time.Minute)}
	if s := req.list.TimeoutSeconds; s != nil {
		w.end = time.Now().Add(time.Duration(*s) * time.Second)
	}
	w.next = len(a.history)
	if req.list.SendInitialEvents != nil && a.listsOnly {
		return http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
	}
	if req.list.SendInitialEvents != nil {
		for _, u := range a.selected(req) {
			w.write("ADDED", u)
		}
		mark := &unstructured.Unstructured{}
		mark.SetAPIVersion(kinds[req.resource].version)
		mark.SetKind(kinds[req.resource].kind)
		mark.SetResourceVersion(strconv.Itoa(a.version))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		w.write("BOOKMARK", mark)
		return http.StatusOK, w
	}
	from, err := strconv.Atoi(req.list.ResourceVersion)
	if err != nil {
		return http.StatusBadRequest, failure(http.StatusBadRequest, "", "a watch has to begin somewhere")
	}
	if a.expire {
		return http.StatusGone, failure(http.StatusGone, "", "too old resource version")
	}
	for w.next > 0 && a.history[w.next-1].version > from {
		w.next--
	}
	return http.StatusOK, w
}

func (w *apiWatch) write(kind string, u *unstructured.Unstructured) {
	text, err := json.Marshal(map[string]any{"type": kind, "object": u})
	if err != nil {
		w.api.Error(err)
	}
	w.unread = append(append(w.unread, text...), '\n')
}

// Read implements io.Reader.
func (w *apiWatch) Read(p []byte) (int, error) {
	for {
		w.api.mu.Lock()
		for ; w.next < len(w.api.history); w.next++ {
			if e := w.api.history[w.next]; e.resource == w.req.resource && w.req.selects(e.object) {
				w.write(e.kind, e.object)
			}
		}
		changed := w.api.changed
		w.api.mu.Unlock()
		switch {
		case w.broken:
			return 0, io.ErrUnexpectedEOF
		case len(w.unread) > 0:
			if w.half {
				w.broken, w.unread = true, w.unread[:len(w.unread)/2]
			}
			n := copy(p, w.unread)
			w.unread = w.unread[n:]
			w.broken = w.broken && len(w.unread) == 0
			return n, nil
		}
		timer := time.NewTimer(time.Until(w.end))
		select {
		case <-changed:
		case <-timer.C:
			return 0, io.EOF
		case <-w.closed:
			return 0, http.ErrBodyReadAfterClose
		case <-w.ctx.Done():
			return 0, w.ctx.Err()
		}
		timer.Stop()
	}
}

// Close implements io.Closer.
func (w *apiWatch) Close() error {
	w.close()
	return nil
}
