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
	"runtime/pprof"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// A podServer is an API server that has pods, lists those of a node and can be watched.
type podServer struct {
	*testing.T
	slow func() time.Duration // how long a request takes; nil: no time
	lag  func() time.Duration // how far a watch is behind; nil: not at all

	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	history  []podChange
	changed  chan struct{} // closed with the next change
	requests []string
	open     map[*podStream]bool
	away     bool // no request arrives
	expired  bool // a watch cannot begin in the past
	refused  bool // a watch of all pods cannot begin
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

func (s *podServer) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// RoundTrip implements http.RoundTripper.
func (s *podServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.slow != nil {
		time.Sleep(s.slow())
	}
	query := r.URL.Query()
	s.mu.Lock()
	if s.away {
		s.mu.Unlock()
		return nil, errors.New("connection refused")
	}
	selector := query.Get("fieldSelector")
	s.requests = append(s.requests, strings.TrimSpace(map[bool]string{true: "watch", false: "list"}[query.Has("watch")]+" "+selector))
	var body io.ReadCloser
	if query.Has("watch") && selector == bound && s.refused {
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
	if s.slow != nil {
		time.Sleep(s.slow())
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
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

// A fleet is nodes whose pods are followed.
type fleet struct {
	s       *podServer
	drainer *Drainer
	ctx     context.Context
	stores  map[string]*podStore
	stop    map[string]func()
	all     sync.WaitGroup
}

func newFleet(s *podServer, shareFrom int) *fleet {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: s, QPS: -1})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(s.Context(), logtest.To(s.Output())))
	f := &fleet{s: s, drainer: &Drainer{Client: client, ShareFrom: shareFrom}, ctx: ctx, stores: map[string]*podStore{}, stop: map[string]func(){}}
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
		if truth := f.s.onNode(node); !maps.Equal(known, truth) {
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

func TestManyDrainsShareOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s, 3)
		for _, node := range []string{"a", "b", "c", "d", "e"} {
			s.change("ADDED", "first-of-"+node, node)
			f.drain(node)
			synctest.Wait()
		}
		f.wantWatches("with five drains", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1, bound: 1})
		for _, node := range []string{"a", "b", "c", "d", "e", "another"} {
			s.change("ADDED", "second-of-"+node, node)
			s.change("MODIFIED", "first-of-"+node, node)
		}
		f.check("after some changes")
		s.change("DELETED", "first-of-c", "c")
		f.check("after a deletion")
		s.change("ADDED", "third-of-d", "")
		f.check("with a pod that has no node yet")
		s.change("MODIFIED", "third-of-d", "d")
		f.check("when it has one")

		f.end("c", "d")
		f.wantWatches("with one follower", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1, bound: 1})

		f.end("e")
		f.wantWatches("without followers", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1})
		f.drain("f")
		f.wantWatches("with a new one", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1, bound: 1})
		f.end("a", "b")
		f.drain("g")
		f.wantWatches("with one more, of few", map[string]int{"spec.nodeName=g": 1, bound: 1})
	})
}

func TestFewDrainsWatchForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(newPodServer(t), 0)
		for k := range defaultShareFrom - 1 {
			f.drain(fmt.Sprint(k))
		}
		synctest.Wait()
		if n := f.s.watches()[bound]; n != 0 {
			t.Errorf("%d watches are shared", n)
		}
		f.drain("one-more")
		synctest.Wait()
		if n := f.s.watches()[bound]; n != 1 {
			t.Errorf("%d watches are shared", n)
		}
	})
}

// A list may take long, and brings the state of its end or of its beginning.
func TestNothingIsMissedWhileAFollowerLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s, 1)
		f.drain("a")
		synctest.Wait()
		s.change("ADDED", "there", "b")
		s.slow = func() time.Duration { return time.Second }
		f.drain("b")
		time.Sleep(500 * time.Millisecond)
		s.change("DELETED", "there", "b") // before the list
		s.change("ADDED", "listed", "b")
		time.Sleep(time.Second)
		s.change("DELETED", "listed", "b") // after the list, before its answer
		s.change("ADDED", "late", "b")
		time.Sleep(time.Minute)
		f.check("after the list")
		f.wantWatches("still", map[string]int{bound: 1})
	})
}

func TestFollowersOfABrokenWatchGoOn(t *testing.T) {
	shared, own := map[string]int{bound: 1}, map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1, "spec.nodeName=c": 1}
	for name, test := range map[string]struct {
		expired, refused time.Duration // how long watches cannot begin
		want             map[string]int
		lists            bool // after the break
	}{
		"by another one":              {want: shared},
		"by another one, after tries": {refused: time.Second, want: shared},
		"for themselves, at once":     {expired: time.Second, want: own, lists: true},
		"for themselves, after tries": {refused: time.Minute, want: own, lists: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPodServer(t)
				f := newFleet(s, 1)
				f.drain("a")
				synctest.Wait()
				f.drain("b", "c")
				f.wantWatches("with three drains", map[string]int{bound: 1})
				s.change("ADDED", "first-of-a", "a")
				s.change("ADDED", "of-another", "another")
				time.Sleep(time.Minute)
				s.mu.Lock()
				s.requests, s.expired, s.refused = nil, test.expired > 0, test.refused > 0
				s.mu.Unlock()
				s.breakOff()
				s.change("ADDED", "second-of-a", "a")
				s.change("ADDED", "first-of-b", "b")
				time.Sleep(max(test.expired, test.refused))
				s.mu.Lock()
				s.expired, s.refused = false, false
				s.mu.Unlock()
				time.Sleep(time.Minute)
				f.check("after the break")
				f.wantWatches("after the break", test.want)
				s.mu.Lock()
				defer s.mu.Unlock()
				lists := slices.ContainsFunc(s.requests, func(r string) bool { return strings.HasPrefix(r, "list") })
				if lists != test.lists {
					t.Errorf("the requests after the break are %q", s.requests)
				}
			})
		})
	}
}

// An API server that cannot be reached for a moment does not end the sharing: neither when a storm begins, nor during it.
func TestAShortOutageDoesNotEndTheSharing(t *testing.T) {
	for name, before := range map[string]time.Duration{"at the beginning": 0, "later": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPodServer(t)
				f := newFleet(s, 3)
				outage := func() {
					s.setAway(true)
					s.breakOff()
				}
				if before == 0 {
					outage()
				}
				for k := range 40 {
					f.drain(fmt.Sprint("node-", k))
				}
				if before > 0 {
					time.Sleep(before)
					outage()
				}
				time.Sleep(100 * time.Millisecond)
				s.setAway(false)
				time.Sleep(time.Minute)
				f.check("after the outage")
				if watches := s.watches(); watches[bound] != 1 || len(watches) > 3 {
					t.Errorf("40 drains have the watches %v", watches)
				}
			})
		})
	}
}

// A goroutine dump names the node of each goroutine of a drain.
func TestWhoWatchesAfterALostSharedWatchIsLabelledWithItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s, 1)
		s.refused = true
		for _, node := range []string{"a", "b"} {
			pprof.Do(f.ctx, pprof.Labels("node", node), func(ctx context.Context) {
				f.ctx = ctx
				f.drain(node)
			})
		}
		time.Sleep(time.Minute)
		f.wantWatches("each for itself", map[string]int{"spec.nodeName=a": 1, "spec.nodeName=b": 1})
		var dump bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&dump, 1); err != nil {
			t.Fatal(err)
		}
		for goroutine := range strings.SplitSeq(dump.String(), "\n\n") {
			if strings.Contains(goroutine, "(*podsOf).watch") && strings.Contains(goroutine, `"node":"all"`) {
				t.Errorf("who watches one node is labelled as who watches all:\n%s", goroutine)
			}
		}
	})
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
			f := newFleet(s, 1+int(up(4)))
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
					s.mu.Lock()
					s.expired, s.refused, s.away = up(2) == 0, up(2) == 0, up(4) == 0
					s.mu.Unlock()
				case s.onNode(node)[node+pod] == "":
					s.change("ADDED", node+pod, node)
				case k < 10:
					s.change("DELETED", node+pod, node)
				default:
					s.change("MODIFIED", node+pod, node)
				}
			}
			s.mu.Lock()
			s.expired, s.refused, s.away = false, false, false
			s.mu.Unlock()
			time.Sleep(10 * time.Minute)
			f.check(fmt.Sprint("seed ", seed))
			for node := range maps.Clone(f.stores) {
				f.end(node)
			}
			time.Sleep(time.Minute) // lists end
			f.wantWatches(fmt.Sprint("at the end of seed ", seed), map[string]int{})
			if d := f.drainer.watches.drains; d != 0 {
				t.Errorf("seed %d: %d drains are counted at the end", seed, d)
			}
		})
	}
}

// What the list has shown is not shown again by older events. A list that is older than the shared watch is made again.
func TestAFollowerTakesWhatCameAfterItsList(t *testing.T) {
	version := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod", ResourceVersion: version}}
	}
	store := newPodStore()
	want := func(when, version string) {
		if pods := store.list(); len(pods) != 1 || pods[0].ResourceVersion != version {
			t.Errorf("%s the pods are %v, want one of version %s", when, pods, version)
		}
	}
	of := &podsOf{node: "a", store: store, watches: &podWatches{}}
	w := of.watches
	f := w.follow(t.Context(), of, nil)
	shared := f.shared
	shared.started, shared.first = true, "8"
	event := func(kind watch.EventType, v string) {
		w.hand(shared, "a", watch.Event{Type: kind, Object: version(v)})
	}
	event(watch.Modified, "9")
	event(watch.Modified, "11")
	event(watch.Deleted, "10")
	if store.synced() {
		t.Error("it has pods before its list")
	}
	list := func(v string) *corev1.PodList {
		return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: v}, Items: []corev1.Pod{*version(v)}}
	}
	if f.begin(list("7")) {
		t.Error("it takes a list that is older than the shared watch")
	}
	if !f.begin(list("10")) {
		t.Error("it does not take its list")
	}
	want("after the list", "11")
	event(watch.Modified, "10")
	want("after an event of before the list", "11")
	event(watch.Modified, "12")
	want("after an event", "12")
}

func TestSoManyListsAndWatchesStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &podWatches{}
		var one func()
		for range maxStarts {
			done, err := w.startOne(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			one = done
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.startOne(ctx); err == nil {
			t.Error("one more starts")
		}
		one()
		if _, err := w.startOne(t.Context()); err != nil {
			t.Errorf("nothing starts in its place: %v", err)
		}
	})
}

// A drain may have two minutes: it knows its pods within seconds of the first list that is answered.
func TestADrainListsItsPodsAgainWithinSecondsWhileTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPodServer(t)
		f := newFleet(s, 0)
		s.setAway(true)
		f.drain("a")
		time.Sleep(5 * time.Minute)
		s.mu.Lock()
		before := len(s.requests)
		s.mu.Unlock()
		s.setAway(false)
		time.Sleep(watchBackoff.Max + watchBackoff.Max/2 + time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.requests) == before {
			t.Errorf("no request in the %s after the API server has come back", watchBackoff.Max)
		}
	})
}
