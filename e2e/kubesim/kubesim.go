// Package kubesim simulates the API server of a cluster that is too large for the machine of a test: the nodes and
// pods of a storm, in memory, over HTTP on loopback. It answers what the handler asks, in JSON and protobuf: Nodes
// (list, watch, get, merge patch), Pods (list, watch, delete, evict), Leases, and Events, which it forgets. Of what
// else is listed there is nothing. Package sandbox has the real control plane, and e2e holds this one to it.
//
// It has three models of what a real control plane makes a client wait for:
//
//   - API Priority and Fairness: the seats of a [Tier], of which the client has those of a [Level]. Requests wait for
//     seats in a queue, and are refused with 429 when it is full. A write takes more seats the more watches get it.
//   - Latency: how long each request takes, see [Latency].
//   - The scheduler: each pod that is evicted is replaced, and the scheduler binds so many pods a second.
//
// It leaves out what the other clients of a cluster do, but for the watches whose number the [Options] tell.
package kubesim

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Options say what is simulated. The zero value has no limits and no latency.
type Options struct {
	Tier    Tier
	Level   Level // of all clients; the zero value is ServiceAccounts
	Latency Latency
	// NodeWatches and PodWatches are how many other clients watch all nodes, or all pods, at this API server. A
	// kube-proxy or a kubelet, which watches its own, does not count. They cost what flow control takes for them.
	NodeWatches, PodWatches int
	// Observe is told what happens, in its order; nil: nobody is. It must not block, nor call the Server.
	Observe func(what Happening, node string)
	// EventsKept is how many changes of a resource can be watched afterwards. Default 102,400, as of the watch cache
	// of k8s.io/apiserver while changes come fast.
	EventsKept int
}

// Latency is how long requests take once they have their seats: half of it to one and a half times. The zero value
// is no time at all.
type Latency struct {
	Get, List, WatchStart, Write, Eviction time.Duration
}

// Typical is the latency of a control plane with cores to spare: 10 ms for a write, which etcd's members write to their
// disks, and 20 ms for an eviction, which makes two. What is read comes from the watch cache. On two cores the real
// API server takes 0.6 ms of CPU time for the list of a node's pods, and 0.8 ms to start a watch.
var Typical = Latency{
	Get: 2 * time.Millisecond, List: 4 * time.Millisecond, WatchStart: 2 * time.Millisecond,
	Write: 10 * time.Millisecond, Eviction: 20 * time.Millisecond,
}

// Happening is what an observer is told of.
type Happening int

// The happenings of a node, and of each of its pods.
const (
	Cordoned Happening = iota
	PodStops
	PodGone
)

// Server is a simulated API server. Its methods may be called concurrently.
type Server struct {
	options  Options
	flow     *flowControl
	width    int // seats of one request, at most
	http     *httptest.Server
	done     chan struct{} // closed by Stop
	ending   sync.WaitGroup
	requests requests
	behind   atomic.Int64 // see Peaks
	expired  atomic.Int64
	opened   atomic.Int64

	mu        sync.RWMutex
	version   uint64
	nodes     map[string]*node
	pods      map[string]*pod
	onNode    map[string]map[string]*pod // by node and name
	changes   map[string]*history        // by resource
	tails     map[string]map[*tail]bool  // of the watches of a node's pods, by node
	leases    map[string]runtime.Object
	scheduler scheduler
}

// NodeSpec describes a node, and its pods.
type NodeSpec struct {
	Name       string
	ProviderID string // such as aws:///us-east-1a/i-0123456789abcdef0
	Pods       int
	Stop       time.Duration // how long a pod takes to stop, 30 s at most
	// Spare makes the node one that the scheduler binds replacements to.
	Spare bool
}

// Start starts a server without nodes. The caller must call Stop.
func Start(o Options) *Server {
	if o.Level == (Level{}) {
		o.Level = ServiceAccounts
	}
	if o.EventsKept == 0 {
		o.EventsKept = 102_400
	}
	s := &Server{
		options: o, flow: newFlowControl(o.Tier, o.Level), done: make(chan struct{}),
		width: width(o.Level.seats(o.Tier), o.Level.HandSize),
		nodes: map[string]*node{}, pods: map[string]*pod{}, onNode: map[string]map[string]*pod{},
		changes: map[string]*history{resourceNodes: newHistory(o.EventsKept), resourcePods: newHistory(o.EventsKept)},
		leases:  map[string]runtime.Object{},
		tails:   map[string]map[*tail]bool{},
		// As etcd, it begins with more than one: a version 0 would mean any.
		version: 1000,
	}
	s.scheduler.wake = make(chan struct{}, 1)
	if s.flow.seats == 0 {
		s.width = widest
	}
	s.http = httptest.NewUnstartedServer(s.handler())
	s.http.EnableHTTP2 = true
	const streams = 100 // of a connection, as kube-apiserver has it: --http2-max-streams-per-connection
	s.http.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that go are no news
	s.http.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.opened.Add(1)
		}
	}
	s.http.StartTLS()
	s.ending.Go(s.schedule)
	return s
}

// Stop ends all requests and the server.
func (s *Server) Stop() {
	close(s.done)
	s.http.CloseClientConnections()
	s.http.Close()
	s.ending.Wait()
}

// Config is for a client, without a limit of its own on its rate. It is the caller's to change.
func (s *Server) Config() *rest.Config {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	return &rest.Config{
		Host: s.http.URL, QPS: -1, BearerToken: "simulated", TLSClientConfig: rest.TLSClientConfig{CAData: authority},
	}
}

// Seats are those of the clients' level; 0: there is no limit.
func (s *Server) Seats() int { return s.flow.seats }

// Peaks are what was worst since some time.
type Peaks struct {
	Seats   int           // in use at once
	Wait    time.Duration // of a request for its seats
	Behind  int           // changes that a watch of all pods had not got yet
	Expired int           // watches that ended because they were too far behind
	// Connections are those that were opened, not the most at once. One has room for 100 requests.
	Connections int
}

// Peaks returns what was worst since the last call.
func (s *Server) Peaks() Peaks {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	p := Peaks{
		Seats: s.flow.peak, Wait: s.flow.longest, Behind: int(s.behind.Swap(0)), Expired: int(s.expired.Swap(0)),
		Connections: int(s.opened.Swap(0)),
	}
	s.flow.peak, s.flow.longest = s.flow.inUse, 0
	return p
}

// AddNode adds a node, with its pods, which run.
func (s *Server) AddNode(spec NodeSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	n := &node{Node: newNode(spec, s.newUID("node"), now)}
	s.setNode(n)
	for k := range spec.Pods {
		s.setPod(&pod{
			name: fmt.Sprintf("%s-%02d", spec.Name, k), uid: s.newUID("pod"), node: spec.Name, created: now,
			phase: corev1.PodRunning, stop: spec.Stop, workload: int(s.version) % workloads,
		})
	}
	if spec.Spare {
		s.scheduler.spare = append(s.scheduler.spare, spec.Name)
	}
}

// RemoveNode removes a node, and what pods it has, at once.
func (s *Server) RemoveNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		return
	}
	for _, p := range slices.Collect(maps.Values(s.onNode[name])) {
		s.removePod(p)
	}
	gone := &node{Node: n.DeepCopy()}
	s.version++
	gone.setVersion(s.version)
	delete(s.nodes, name)
	s.changes[resourceNodes].add(&event{kind: watch.Deleted, version: s.version, before: n, object: gone})
}

// newUID is one that no other object has. The caller holds mu.
func (s *Server) newUID(kind string) types.UID {
	return types.UID(fmt.Sprintf("%s-0000-4000-8000-%012d", kind, s.version))
}

// setNode stores a new version of a node. The caller holds mu.
func (s *Server) setNode(n *node) {
	s.version++
	n.setVersion(s.version)
	e := &event{kind: watch.Added, version: n.version, object: n}
	before := s.nodes[n.Name]
	if before != nil {
		e.kind, e.before = watch.Modified, before
	}
	s.nodes[n.Name] = n
	s.changes[resourceNodes].add(e)
	if n.Spec.Unschedulable && (before == nil || !before.Spec.Unschedulable) {
		s.tell(Cordoned, n.Name)
	}
}

// setPod stores a new version of a pod. The caller holds mu.
func (s *Server) setPod(p *pod) {
	s.version++
	p.version = s.version
	e := &event{kind: watch.Added, version: p.version, object: p}
	before := s.pods[p.name]
	if before != nil {
		e.kind, e.before = watch.Modified, before
	}
	s.pods[p.name] = p
	if p.node != "" {
		if s.onNode[p.node] == nil {
			s.onNode[p.node] = map[string]*pod{}
		}
		s.onNode[p.node][p.name] = p
	}
	s.addPodEvent(p.node, e)
	if !p.deletion.IsZero() && before != nil && before.deletion.IsZero() {
		s.tell(PodStops, p.node)
	}
}

// removePod removes a pod. The caller holds mu.
func (s *Server) removePod(p *pod) {
	s.version++
	gone := *p
	gone.version = s.version
	delete(s.pods, p.name)
	if delete(s.onNode[p.node], p.name); len(s.onNode[p.node]) == 0 {
		delete(s.onNode, p.node)
	}
	s.addPodEvent(p.node, &event{kind: watch.Deleted, version: s.version, before: p, object: &gone})
	s.tell(PodGone, p.node)
}

// addPodEvent adds an event of a pod of that node. The caller holds mu.
func (s *Server) addPodEvent(node string, e *event) {
	s.changes[resourcePods].add(e)
	for t := range s.tails[node] {
		t.add(e)
	}
}

func (s *Server) tell(what Happening, node string) {
	if s.options.Observe != nil {
		s.options.Observe(what, node)
	}
}
