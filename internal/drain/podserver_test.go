package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// A podServer is an API server that has pods, lists those of a node and can be watched.
type podServer struct {
	*testing.T
	slow func() time.Duration // how long each half of a request takes; nil: no time
	lag  func() time.Duration // how far a watch is behind; nil: not at all

	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	history  []podChange
	changed  chan struct{} // closed with the next change
	requests []string
	open     map[*podStream]bool
	away     bool   // no request arrives
	expired  bool   // a watch cannot begin in the past
	refused  bool   // a watch cannot begin
	hangs    string // "list" or "watch": these get no answer
}

type podChange struct {
	version int
	kind    string
	pod     *corev1.Pod
}

// versionAtStart has fewer digits than later ones: versions are numbers, not texts.
const versionAtStart = 95

func newPodServer(t *testing.T) *podServer {
	return &podServer{T: t, pods: map[string]*corev1.Pod{}, changed: make(chan struct{}), open: map[*podStream]bool{}}
}

func (s *podServer) version() int { return versionAtStart + len(s.history) }

func (s *podServer) change(kind, name, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name), ResourceVersion: strconv.Itoa(s.version() + 1)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	s.history = append(s.history, podChange{s.version() + 1, kind, pod})
	s.pods[name] = pod
	if kind == "DELETED" {
		delete(s.pods, name)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// onNode are the versions of the pods of a node, by name.
func (s *podServer) onNode(node string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string]string{}
	for name, pod := range s.pods {
		if pod.Spec.NodeName == node {
			versions[name] = pod.ResourceVersion
		}
	}
	return versions
}

// watches counts the open watches by their selector.
func (s *podServer) watches() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for w := range s.open {
		counts[w.selector]++
	}
	return counts
}

// breakOff ends the open watches.
func (s *podServer) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.open {
		w.cut()
	}
}

// asked returns the requests so far.
func (s *podServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// set calls do, which sets what the server does from now on.
func (s *podServer) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// RoundTrip implements http.RoundTripper.
func (s *podServer) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	query.Del("timeoutSeconds")
	query.Del("timeout")
	s.mu.Lock()
	s.requests = append(s.requests, r.URL.Path+"?"+query.Encode())
	hangs := s.hangs != "" && query.Has("watch") == (s.hangs == "watch")
	s.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if err := s.takeTime(r.Context()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.away {
		s.mu.Unlock()
		return nil, errors.New("connection refused")
	}
	selector := query.Get("fieldSelector")
	var body io.ReadCloser
	if query.Has("watch") && s.refused {
		s.mu.Unlock()
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden"}`)),
		}, nil
	}
	if query.Has("watch") {
		since, err := strconv.Atoi(query.Get("resourceVersion"))
		if err != nil || query.Has("sendInitialEvents") {
			s.Errorf("a watch with %v", query)
		}
		w := &podStream{s: s, selector: selector, next: since - versionAtStart, ctx: r.Context()}
		w.ended, w.cut = context.WithCancel(context.WithoutCancel(s.Context()))
		if s.expired {
			w.next = len(s.history)
			w.unread = []byte(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired"}}`)
		}
		s.open[w] = true
		body = w
	} else {
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version())}}
		for _, pod := range s.pods {
			if "spec.nodeName="+pod.Spec.NodeName == selector {
				list.Items = append(list.Items, *pod)
			}
		}
		text, err := json.Marshal(list)
		if err != nil {
			s.Error(err)
		}
		body = io.NopCloser(bytes.NewReader(text))
	}
	s.mu.Unlock()
	if err := s.takeTime(r.Context()); err != nil {
		_ = body.Close()
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
}

// takeTime takes the time of half a request.
func (s *podServer) takeTime(ctx context.Context) error {
	if s.slow == nil {
		return nil
	}
	return retry.Sleep(ctx, s.slow())
}

// A podStream is the body of the answer to a watch.
type podStream struct {
	s        *podServer
	selector string
	next     int
	unread   []byte
	ctx      context.Context // of the request
	ended    context.Context
	cut      func()
}

// Read implements io.Reader.
func (w *podStream) Read(p []byte) (int, error) {
	for {
		if n := copy(p, w.unread); n > 0 {
			w.unread = w.unread[n:]
			return n, nil
		}
		if w.ended.Err() != nil {
			return 0, io.EOF
		}
		w.s.mu.Lock()
		changed, behind := w.s.changed, w.next < len(w.s.history)
		w.s.mu.Unlock()
		if !behind {
			select {
			case <-changed:
			case <-w.ended.Done():
			case <-w.ctx.Done():
				return 0, w.ctx.Err()
			}
			continue
		}
		if w.s.lag != nil {
			time.Sleep(w.s.lag())
		}
		w.s.mu.Lock()
		change := w.s.history[w.next]
		w.s.mu.Unlock()
		w.next++
		if selects := fields.ParseSelectorOrDie(w.selector); !selects.Matches(fields.Set{"spec.nodeName": change.pod.Spec.NodeName}) {
			continue
		}
		text, err := json.Marshal(map[string]any{"type": change.kind, "object": change.pod})
		if err != nil {
			return 0, err
		}
		w.unread = text
	}
}

// Close implements io.Closer.
func (w *podStream) Close() error {
	w.cut()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.s.open, w)
	return nil
}

// A fleet is nodes whose pods are watched.
type fleet struct {
	s       *podServer
	log     logtest.Log
	drainer *Drainer
	ctx     context.Context
	stores  map[string]*podStore
	stop    map[string]func()
	all     sync.WaitGroup
}

func newFleet(s *podServer) *fleet {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: s, QPS: -1})
	if err != nil {
		s.Fatal(err)
	}
	f := &fleet{s: s, drainer: &Drainer{Client: client}, stores: map[string]*podStore{}, stop: map[string]func(){}}
	var cancel func()
	f.ctx, cancel = context.WithCancel(klog.NewContext(s.Context(), f.log.Logger()))
	s.Cleanup(func() {
		cancel()
		f.all.Wait()
	})
	return f
}

func (f *fleet) drain(nodes ...string) {
	for _, node := range nodes {
		store := newPodStore()
		ctx, cancel := context.WithCancel(f.ctx)
		f.stores[node], f.stop[node] = store, cancel
		f.all.Go(func() { store.watch(ctx, f.drainer, node) })
	}
}

// end ends drains.
func (f *fleet) end(nodes ...string) {
	for _, node := range nodes {
		f.stop[node]()
		delete(f.stores, node)
	}
	synctest.Wait()
}

// check compares what the drains know with what is true.
func (f *fleet) check(when string) {
	f.s.Helper()
	synctest.Wait()
	for node, store := range f.stores {
		known := map[string]string{}
		for _, pod := range store.list() {
			known[pod.Name] = pod.ResourceVersion
		}
		if truth := f.s.onNode(node); !maps.Equal(known, truth) || !store.synced() {
			f.s.Errorf("%s: the drain of %s knows the pods %v, and there are %v", when, node, known, truth)
		}
	}
}

func (f *fleet) wantWatches(when string, want map[string]int) {
	f.s.Helper()
	synctest.Wait()
	if got := f.s.watches(); !maps.Equal(got, want) {
		f.s.Errorf("%s the watches are %v, want %v", when, got, want)
	}
}

// A list from a cache that is behind lacks pods, and one in pages is not from a
// cache everywhere.
func TestPodsAreListedAsOfNowAndWatchedFromThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		s.change("ADDED", "there", "a")
		s.change("ADDED", "elsewhere", "b")
		f := newFleet(s)
		f.drain("a")
		f.check("after the list")
		want := []string{
			"/api/v1/pods?fieldSelector=spec.nodeName%3Da",
			"/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Da&resourceVersion=97&watch=true",
		}
		if got := s.asked(); !slices.Equal(got, want) {
			t.Errorf("the requests are\n%q, want\n%q", got, want)
		}
		s.change("ADDED", "late", "")
		f.check("with a pod that has no node yet")
		s.change("MODIFIED", "late", "a")
		s.change("DELETED", "there", "a")
		f.check("when it has one")
		if f.log.String() != "" {
			t.Errorf("the log says:\n%s", &f.log)
		}
	})
}

// A list may take long, and brings the state of its end or of its beginning.
func TestNothingIsMissedDuringAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s)
		s.change("ADDED", "there", "a")
		s.slow = func() time.Duration { return time.Second }
		f.drain("a")
		time.Sleep(500 * time.Millisecond)
		s.change("DELETED", "there", "a") // before the list
		s.change("ADDED", "listed", "a")
		time.Sleep(time.Second)
		s.change("DELETED", "listed", "a") // after the list, before its answer
		s.change("ADDED", "late", "a")
		time.Sleep(time.Minute)
		f.check("after the list")
	})
}

func TestAListWithoutAnAnswerIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		var once sync.Once
		s.slow = func() (takes time.Duration) {
			once.Do(func() { takes = time.Hour })
			return takes
		}
		f := newFleet(s)
		f.drain("a")
		time.Sleep(requestTimeout + 2*time.Second)
		f.check("after the second list")
	})
}

// A watch that breaks off goes on where it was. If it cannot, the pods are listed again.
func TestABrokenWatchGoesOn(t *testing.T) {
	for name, test := range map[string]struct{ expired, refused bool }{
		"at once":     {},
		"from a list": {expired: true},
		"after tries": {refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPodServer(t)
				f := newFleet(s)
				f.drain("a")
				time.Sleep(time.Minute)
				s.set(func() { s.requests, s.expired, s.refused = nil, test.expired, test.refused })
				s.breakOff()
				s.change("ADDED", "first", "a")
				time.Sleep(time.Second)
				s.set(func() { s.expired, s.refused = false, false })
				time.Sleep(time.Minute)
				f.check("after the break")
				f.wantWatches("after the break", map[string]int{"spec.nodeName=a": 1})
				asked := s.asked()
				listed := slices.ContainsFunc(asked, func(r string) bool { return !strings.Contains(r, "watch=true") })
				if listed != (test.expired || test.refused) {
					t.Errorf("the requests after the break are %q", asked)
				}
			})
		})
	}
}

// While the API server is away, or answers half of what is asked, each of the nodes of a storm tries again within
// seconds, and warns once.
func TestANodeWhosePodsCannotBeWatchedWarnsOnce(t *testing.T) {
	for name, fail := range map[string]func(*podServer, bool){
		"no request arrives":   func(s *podServer, fails bool) { s.away = fails },
		"no list is answered":  func(s *podServer, fails bool) { s.hangs = map[bool]string{true: "list"}[fails] },
		"no watch is answered": func(s *podServer, fails bool) { s.hangs = map[bool]string{true: "watch"}[fails] },
		"watches are refused":  func(s *podServer, fails bool) { s.refused = fails },
		"watches end at once":  func(s *podServer, fails bool) { s.expired = fails },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPodServer(t)
				f := newFleet(s)
				s.set(func() { fail(s, true) })
				f.drain("a", "b")
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				s.set(func() { fail(s, false) })
				time.Sleep(3*requestTimeout + watchBackoff.Cap*3/2)
				f.check("after it")
				f.wantWatches("after it", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1})
				warnings, tries := map[any]int{}, 0
				for _, e := range f.log.Entries("") {
					if e.Level == "debug" {
						tries++
						continue
					}
					if e.Level != "warn" || e.Message != "the pods of a node cannot be listed and watched, trying again" {
						t.Errorf("it is logged: %v", e)
					}
					warnings[e.Values["node"]]++
				}
				want := map[any]int{"a": 1, "b": 1}
				if name == "watches end at once" { // they have begun
					want = map[any]int{}
				}
				if !maps.Equal(warnings, want) || tries == 0 && len(want) > 0 {
					t.Errorf("warnings by node: %v, want %v; %d lines beside them", warnings, want, tries)
				}
			})
		})
	}
}

// Drains begin and end, pods change, watches lag, break off and expire, all at random.
func TestWhateverHappensDrainsKnowTheirPods(t *testing.T) {
	for seed := range uint64(race.Rounds(300)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			up := func(to time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.Int64N(int64(to)))
			}
			s := newPodServer(t)
			s.slow = func() time.Duration { return up(300 * time.Millisecond) }
			s.lag = func() time.Duration { return up(100 * time.Millisecond) }
			f := newFleet(s)
			nodes := []string{"a", "b", "c", "d", "e", "f"}
			for range 200 {
				time.Sleep(up(200 * time.Millisecond))
				node, pod := nodes[up(6)], fmt.Sprint("pod-", up(5))
				switch k := up(20); {
				case k < 3 && f.stores[node] == nil:
					f.drain(node)
				case k < 3:
					f.end(node)
				case k == 3:
					s.breakOff()
				case k == 4:
					s.set(func() { s.expired, s.refused, s.away = up(2) == 0, up(2) == 0, up(4) == 0 })
				case s.onNode(node)[node+pod] == "":
					s.change("ADDED", node+pod, node)
				case k < 10:
					s.change("DELETED", node+pod, node)
				default:
					s.change("MODIFIED", node+pod, node)
				}
			}
			s.set(func() { s.expired, s.refused, s.away = false, false, false })
			time.Sleep(10 * time.Minute)
			f.check(fmt.Sprint("seed ", seed))
			for node := range maps.Clone(f.stores) {
				f.end(node)
			}
			time.Sleep(time.Minute) // lists end
			f.wantWatches(fmt.Sprint("at the end of seed ", seed), map[string]int{})
		})
	}
}

// In a storm on a slow API server the last nodes wait for a while. That is no failure of their requests.
func TestSoManyListsAndWatchesStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 8 * maxStarts
		s := newPodServer(t)
		s.slow = func() time.Duration { return 2 * time.Second }
		f := newFleet(s)
		for k := range nodes {
			f.drain(fmt.Sprint(k))
		}
		synctest.Wait()
		if n := len(s.asked()); n != maxStarts {
			t.Errorf("%d requests at once, want %d", n, maxStarts)
		}
		time.Sleep(5 * time.Minute)
		f.check("after all have begun")
		if n := len(s.asked()); n != 2*nodes {
			t.Errorf("%d requests, want a list and a watch for each of %d nodes", n, nodes)
		}
	})
}

// Watches that do not start, and drains that end while their requests hang, keep no other node from its list.
func TestADrainListsItsPodsThoughOthersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s)
		for _, hangs := range []string{"watch", "list"} {
			s.set(func() { s.hangs = hangs })
			for k := range 2 * maxStarts {
				f.drain(fmt.Sprint(hangs, k))
			}
			time.Sleep(time.Second)
			if hangs == "list" {
				s.set(func() { s.hangs = "" })
				for node := range maps.Clone(f.stores) {
					f.end(node)
				}
			}
			f.drain(hangs)
			time.Sleep(time.Second)
			if !f.stores[hangs].synced() {
				t.Errorf("beside nodes without an answer to their %s, another one has no list", hangs)
			}
		}
	})
}
