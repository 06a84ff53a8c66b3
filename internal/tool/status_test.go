package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/httpserver"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// An apiServer answers as an API server does, and counts.
type apiServer struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
	answers  map[string]any // by path: an object, an error, or a handler
}

func newAPIServer(t testing.TB, answers map[string]any) *apiServer {
	a := &apiServer{answers: answers}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	answer := a.answers[r.URL.Path]
	a.mu.Unlock()
	var object runtime.Object
	code := http.StatusOK
	switch answer := answer.(type) {
	case http.HandlerFunc:
		answer(w, r)
		return
	case runtime.Object:
		object = answer
	case *apierrors.StatusError:
		code, object = int(answer.ErrStatus.Code), &answer.ErrStatus
	default:
		missing := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		code, object = http.StatusNotFound, &missing.ErrStatus
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.WriteHeader(code)
	encoder := scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersions{corev1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, {Version: "v1"}})
	_ = encoder.Encode(object, w)
}

func (a *apiServer) viewer(t testing.TB) *Viewer {
	client, err := kube.New(&rest.Config{Host: a.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &Viewer{client: client}
}

// inMemory is the transport to a handler, without a network: a synctest bubble holds none.
type inMemory struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

const (
	leasePath  = "/apis/coordination.k8s.io/v1/namespaces/node-termination-handler/leases/node-termination-handler"
	leasesPath = "/apis/coordination.k8s.io/v1/leases"
	proxyPath  = "/api/v1/namespaces/node-termination-handler/pods/handler-1:9999/proxy/status"
	nodesPath  = "/api/v1/nodes"
)

func leaseOf(holder string, edit ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "node-termination-handler", Name: "node-termination-handler", Labels: map[string]string{app.PortLabel: "9999"},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NowMicro()),
		},
	}
	for _, e := range edit {
		e(l)
	}
	return l
}

func serves(v any) http.HandlerFunc {
	text, _ := json.Marshal(v)
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }
}

func says(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
}

func draining(name string, i intent.Intent) *corev1.Node {
	text, _ := i.Encode()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{cluster.IntentAnnotation: text}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/i-" + name},
	}
}

func TestStatusAsksTheLeaderWithTwoRequests(t *testing.T) {
	want := &overview.Overview{
		At: time.Now().UTC().Truncate(time.Second), Source: overview.Leader, Leader: "handler-1",
		Nodes: []overview.Node{{Name: "a", Stage: overview.Draining, WaitsFor: []overview.Wait{{Cause: overview.Budget, Why: "no"}}}},
	}
	server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_abcdefgh"), proxyPath: serves(want)})
	got, err := server.viewer(t).Overview(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if asked := []string{"GET " + leasePath, "GET " + proxyPath}; !slices.Equal(server.requests, asked) {
		t.Errorf("the requests are %q", server.requests)
	}
}

// The API server's proxy names the host by which it was asked itself. The leader cannot know it, and refuses strangers'.
func TestTheLeaderAnswersThroughAnAPIServerOfAnyName(t *testing.T) {
	guard := httpserver.Guard{Identity: "handler-1_abcdefgh"}
	proxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "ABCDEF.gr7.eu-west-1.eks.amazonaws.com"
		guard.Protect(serves(&overview.Overview{Source: overview.Leader})).ServeHTTP(w, r)
	})
	for holder, source := range map[string]overview.Source{guard.Identity: overview.Leader, "handler-1_zzzzzzzz": overview.Nodes} {
		server := newAPIServer(t, map[string]any{leasePath: leaseOf(holder), proxyPath: proxy, nodesPath: &corev1.NodeList{}})
		if o, err := server.viewer(t).Overview(t.Context()); err != nil || o.Source != source {
			t.Errorf("%s holds the Lease: %+v, %v", holder, o, err)
		}
	}
}

// In a pod of the handler no right to the proxy is needed.
func TestAPodOfTheHandlerAsksTheLeaderItself(t *testing.T) {
	code := http.StatusOK
	itself := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		serves(&overview.Overview{Leader: r.URL.Path, Source: overview.Leader})(w, r)
	}))
	t.Cleanup(itself.Close)
	_, port, err := net.SplitHostPort(itself.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	own := leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Labels[app.PortLabel] = port })
	pods := &corev1.PodList{}
	server := newAPIServer(t, map[string]any{
		leasePath: own, nodesPath: &corev1.NodeList{}, "/api/v1/namespaces/node-termination-handler/pods": pods,
	})
	v := server.viewer(t)
	v.ownPod = "handler-1"
	if o, err := v.Overview(t.Context()); err != nil || o.Leader != "/status" || len(server.requests) != 1 {
		t.Errorf("%+v, %v: %q", o, err, server.requests)
	}
	// Another pod of the handler asks the leader's pod.
	v.ownPod = "handler-2"
	if o, err := v.Overview(t.Context()); err != nil || !strings.Contains(o.Missing, "does not exist") {
		t.Errorf("%+v, %v", o, err)
	}
	// A pod without an address is not this one.
	pods.Items = []corev1.Pod{{}}
	if o, err := v.Overview(t.Context()); err != nil || o.Source != overview.Nodes || !strings.Contains(o.Missing, "has no address") {
		t.Errorf("%+v, %v", o, err)
	}
	pods.Items = []corev1.Pod{{Status: corev1.PodStatus{PodIP: "127.0.0.1"}}}
	if o, err := v.Overview(t.Context()); err != nil || o.Leader != "/status" {
		t.Errorf("%+v, %v", o, err)
	}
	code = http.StatusServiceUnavailable
	if o, err := v.Overview(t.Context()); err != nil || o.Source != overview.Nodes || !strings.Contains(o.Missing, "cannot be asked on port "+port) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestThePageHasWhatIsInProgressAndWhatHasHappened(t *testing.T) {
	at := time.Now().UTC()
	status := &overview.Overview{At: at, Source: overview.Leader, Leader: "handler-1", Nodes: []overview.Node{{Name: "in-progress", Stage: overview.Draining, Deadline: at}}}
	history := &overview.History{At: at, Since: at, Episodes: []overview.Episode{{Node: "has-ended", Kind: "spot-interruption", Outcome: "drained", Ended: at, Deadline: at, Slack: new(5.0)}}}
	server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_x"), proxyPath: serves(status), historyPath: serves(history)})
	var out strings.Builder
	health, err := server.viewer(t).Page(t.Context(), &out, "1.2.3")
	if err != nil || health != Stuck {
		t.Errorf("health %d, %v", health, err)
	}
	for _, part := range []string{"<!doctype html>", "in-progress", "has-ended", "1.2.3", "</html>"} {
		if !strings.Contains(strings.ToLower(out.String()), part) {
			t.Errorf("the page lacks %q", part)
		}
	}
}

func TestThePageSaysThatTheHistoryIsNotKnown(t *testing.T) {
	at := time.Now().UTC()
	status := &overview.Overview{At: at, Source: overview.Leader, Leader: "handler-1"}
	server := newAPIServer(t, map[string]any{
		leasePath: leaseOf("handler-1_x"), proxyPath: serves(status), historyPath: says(http.StatusBadGateway, "no"), nodesPath: &corev1.NodeList{},
	})
	var out strings.Builder
	health, err := server.viewer(t).Page(t.Context(), &out, "1.2.3")
	if err != nil || health != Uncertain || !strings.Contains(out.String(), "drains that have ended, but for what nodes carry: ") {
		t.Errorf("health %d, %v; the page:\n%s", health, err, out.String())
	}
}

func TestALeaderThatIsNotAskedIsToldOfByItsLease(t *testing.T) {
	acquired := metav1.NewMicroTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	led := leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Spec.AcquireTime, l.Spec.LeaseTransitions = &acquired, new(int32(7)) })
	server := newAPIServer(t, map[string]any{leasePath: led, proxyPath: says(503, "no"), nodesPath: &corev1.NodeList{}})
	o, err := server.viewer(t).Overview(t.Context())
	if err != nil || o.Leader != "handler-1" || o.Transitions != 7 || !o.LeadsSince.Equal(acquired.Time) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestWhatTheLeaderDoesNotSeeIsNotHealthy(t *testing.T) {
	unseen := []string{"lifecycle hooks whose notices are lost, since 10:00: AccessDenied"}
	stuck := []overview.Node{{Deadline: time.Now(), Stage: overview.Draining}}
	quiet := []overview.Cordoned{{Node: "a"}}
	missed := []overview.Cordoned{{Node: "b", Missed: true}, {Node: "a"}}
	for _, test := range []struct {
		o    overview.Overview
		want Health
	}{
		{overview.Overview{Source: overview.Leader}, Healthy},
		{overview.Overview{Source: overview.Leader, Cordoned: quiet}, Healthy},
		{overview.Overview{Source: overview.Leader, Cordoned: missed}, Stuck},
		{overview.Overview{Source: overview.Leader, Unseen: unseen}, Uncertain},
		{overview.Overview{Source: overview.Leader, Unseen: unseen, Nodes: stuck, At: time.Now()}, Stuck},
	} {
		if got := healthOf(&test.o); got != test.want {
			t.Errorf("%+v: health %d, want %d", test.o, got, test.want)
		}
	}
}

// What the first line says has a field of its own for programs.
func TestThatNoNoticeArrivesIsAFieldOfTheJSON(t *testing.T) {
	at := time.Now()
	for want, o := range map[string]*overview.Overview{
		"no notice arrives since 20s: AccessDenied": {At: at, Queue: &overview.Queue{FailingSince: at.Add(-20 * time.Second), Failure: "AccessDenied"}},
		"": {At: at, Queue: &overview.Queue{}},
	} {
		text, err := Status{Format: FormatJSON}.text(o, nil, io.Discard)
		var got struct{ Notices string }
		if err != nil || json.Unmarshal([]byte(text), &got) != nil || got.Notices != want {
			t.Errorf("%q, %v, want %q", got.Notices, err, want)
		}
	}
}

func TestTheLeaseIsFoundByItsLabelWhereItHasAnotherName(t *testing.T) {
	other := leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Namespace, l.Name = "kube-system", "nth" })
	path := strings.Replace(proxyPath, "/node-termination-handler/", "/kube-system/", 1)
	server := newAPIServer(t, map[string]any{
		leasesPath: &coordinationv1.LeaseList{Items: []coordinationv1.Lease{*other}}, path: serves(&overview.Overview{Source: overview.Leader}),
	})
	if o, err := server.viewer(t).Overview(t.Context()); err != nil || o.Source != overview.Leader {
		t.Errorf("%+v, %v: %q", o, err, server.requests)
	}
}

func TestWithoutTheLeaderTheNodesTell(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second)
	spot := intent.Entry{Kind: notice.SpotInterruption, Time: at.Add(-time.Minute), Deadline: at.Add(time.Minute)}
	change := intent.Entry{Kind: notice.ScheduledChange, Time: at.Add(-time.Hour), Terms: intent.Terms{Rule: "nightly", NotBefore: at.Add(time.Hour)}}
	hook := intent.Hook{Group: "g", Name: "h", Instance: "i-emptied"}
	broken := draining("broken", intent.Intent{})
	broken.Annotations[cluster.IntentAnnotation], broken.Labels = "{", map[string]string{cluster.KindLabel: "asg-terminate"}
	nodes := &corev1.NodeList{}
	for _, n := range []*corev1.Node{
		draining("waiting", intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{change}, CordonedAt: at}),
		draining("held", intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation, Time: at}}, CordonedAt: at}),
		draining("replaced", intent.Intent{
			Version: 1, HeldBack: true, CordonedAt: at,
			Entries:     []intent.Entry{{Kind: notice.RebalanceRecommendation, Time: at, Terms: intent.Terms{Rule: "first", ReplaceFirst: true}}},
			Replacement: intent.Replacement{Step: intent.Marked, Group: "g", Until: at.Add(time.Minute)},
		}),
		draining("warned", intent.Intent{Version: 1, Entries: []intent.Entry{change, spot}, CordonedAt: at.Add(-30 * time.Second)}),
		draining("emptied", intent.Intent{Version: 1, Entries: []intent.Entry{{Kind: notice.ASGTerminate, Time: at}}, CordonedAt: at, DrainedAt: at, Hooks: []intent.Hook{hook}}),
		draining("finished", intent.Intent{Version: 1, Entries: []intent.Entry{spot}, FinishedAt: at}),
		draining("left", intent.Intent{Version: 1, Cordoned: true, Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation, Time: at.Add(-time.Hour)}}, FinishedAt: at.Add(-20 * time.Minute)}),
		broken,
	} {
		n.Spec.Unschedulable = true
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		nodes.Items = append(nodes.Items, *n)
	}
	want := []overview.Node{
		{Name: "warned", Instance: "i-warned", Kind: "spot-interruption", Stage: overview.Draining, Since: change.Time, CordonedAt: at.Add(-30 * time.Second), Deadline: spot.Deadline},
		{Name: "broken", Instance: "i-broken", Kind: "asg-terminate", Stage: overview.Draining, WaitsFor: []overview.Wait{{
			Cause: overview.Unreadable, Why: "annotation node-termination-handler/intent of node broken: unexpected end of JSON input; remove the annotation to start again",
		}}},
		{
			Name: "waiting", Instance: "i-waiting", Kind: "scheduled-change", Rule: "nightly", Stage: overview.HeldBack, Since: change.Time, NotBefore: change.NotBefore,
			WaitsFor: []overview.Wait{{Cause: overview.Window, Why: "the drain begins later", Until: change.NotBefore}},
		},
		{
			Name: "emptied", Instance: "i-emptied", Kind: "asg-terminate", Stage: overview.Completing, Since: at, CordonedAt: at, PodsGone: at,
			Hooks: []overview.Hook{{Group: "g", Name: "h"}},
		},
		{
			Name: "held", Instance: "i-held", Kind: "rebalance-recommendation", Stage: overview.HeldBack, Since: at,
			WaitsFor: []overview.Wait{{Cause: overview.MaxUnready, Why: "it is held back, and only the leader knows for what"}},
		},
		{
			Name: "replaced", Instance: "i-replaced", Kind: "rebalance-recommendation", Rule: "first", Stage: overview.HeldBack, Since: at,
			WaitsFor: []overview.Wait{{Cause: overview.Replacement, Why: "group g replaces the instance first", Until: at.Add(time.Minute)}},
		},
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods/proxy"}, "handler-1:9999", nil)
	unavailable := apierrors.NewServiceUnavailable("error trying to reach service: dial tcp 10.0.0.1:9999: connect: connection refused")
	noPod := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "handler-1")
	led := leaseOf("handler-1_x")
	for name, test := range map[string]struct {
		lease, proxy any
		missing      string
		leader       string
	}{
		"no lease":                {nil, nil, "there is no Lease node-termination-handler/node-termination-handler, and no other was found: name the Lease by --namespace and --lease. In IMDS mode without a leader there is none", ""},
		"lease forbidden":         {apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", nil), nil, "you lack the permission to get the Lease node-termination-handler/node-termination-handler: name the Lease by --namespace and --lease, or see docs/status.md for the rights", ""},
		"nobody leads at present": {leaseOf(""), nil, "nobody holds the Lease node-termination-handler/node-termination-handler: check that the handler's pods run", ""},
		"nobody leads":            {leaseOf("", func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(-time.Minute))) }), nil, "nobody holds the Lease node-termination-handler/node-termination-handler: check that the handler's pods run", ""},
		"lease expired":           {leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(-time.Hour))) }), noPod, "nobody leads: pod node-termination-handler/handler-1 has not renewed its Lease for 1h. Check that the handler's pods run", ""},
		"proxy forbidden":         {led, forbidden, "you lack the permission to get pods/proxy in namespace node-termination-handler: see docs/status.md for the rights", "handler-1"},
		"pod gone":                {led, noPod, "pod node-termination-handler/handler-1, which holds the Lease, does not exist: another replica leads within 20 seconds", "handler-1"},
		"older release":           {led, says(404, "404 page not found"), "pod node-termination-handler/handler-1 does not know the path: it is of an older release", "handler-1"},
		"another release":         {led, says(200, "<html>"), "the answer of pod handler-1 on port 9999 is not one of this release: compare the versions", "handler-1"},
		"another program":         {led, says(200, `{"status":"ok"}`), "the answer of pod handler-1 on port 9999 is not one of this release: compare the versions", "handler-1"},
		"no object":               {led, says(200, "null"), "the answer of pod handler-1 on port 9999 is not one of this release: compare the versions", "handler-1"},
		"not the leader":          {led, says(503, "this replica does not lead"), "pod node-termination-handler/handler-1 does not lead any more: try again", "handler-1"},
		"restarted":               {led, says(421, "the host is not one of this server"), "pod node-termination-handler/handler-1 does not lead any more: try again", "handler-1"},
		"port closed":             {led, unavailable, "the API server cannot reach pod node-termination-handler/handler-1 on port 9999: it may have ended just now: then another replica leads, mostly within 20 seconds. If that lasts, a NetworkPolicy or a firewall must let it through", "handler-1"},
		"killed": {func() any { // by the clock, when its turn has come
			return leaseOf("handler-1_x", func(l *coordinationv1.Lease) {
				l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-8 * time.Second)))
			})
		}, unavailable, "the API server cannot reach pod node-termination-handler/handler-1 on port 9999: it has not renewed its Lease for 8s by the clock of this machine, so it has probably ended: then another replica leads, mostly within 20 seconds. If that lasts, a NetworkPolicy or a firewall must let it through", "handler-1"},
		"other words": {led, apierrors.NewInternalError(errors.New("etcd is away")), "pod node-termination-handler/handler-1 cannot be asked on port 9999: the answer is: Internal error occurred: etcd is away", "handler-1"},
		"dead, and nothing is served": {leaseOf("handler-1_x", func(l *coordinationv1.Lease) {
			l.Labels[app.PortLabel], l.Spec.RenewTime = app.NoPort, new(metav1.NewMicroTime(at.Add(-time.Hour)))
		}), nil, "nobody leads: pod node-termination-handler/handler-1 has not renewed its Lease for 1h. Check that the handler's pods run", ""},
		"nothing is served": {leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Labels[app.PortLabel] = app.NoPort }), nil, "pod handler-1 leads and serves nothing: set enable-prometheus-server", "handler-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if f, is := test.lease.(func() any); is {
				test.lease = f()
			}
			server := newAPIServer(t, map[string]any{
				leasePath: test.lease, proxyPath: test.proxy, nodesPath: nodes, leasesPath: &coordinationv1.LeaseList{},
			})
			o, err := server.viewer(t).Overview(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leaderless := strings.HasPrefix(test.missing, "nobody ") && name != "nobody leads at present"
			if o.Leaderless != leaderless || (healthOf(o) == Deaf) != leaderless || leaderless != strings.HasPrefix(o.Table(overview.Style{}), "Notices:     nobody leads, so no notice is acted on\n") {
				t.Errorf("leaderless is %t, and health %d:\n%s", o.Leaderless, healthOf(o), o.Table(overview.Style{}))
			}
			if first, _, _ := strings.Cut(o.Table(overview.Style{}), "\n"); !leaderless && first != "Incomplete:  "+test.missing {
				t.Errorf("the first line is %q", first)
			}
			if o.Missing != test.missing || o.Leader != test.leader || o.Source != overview.Nodes || o.HeldBack != "3" {
				t.Errorf("%q leads, %s: %s", o.Leader, o.HeldBack, o.Missing)
			}
			if diff := cmp.Diff(want, o.Nodes); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if broken := o.Nodes[1]; broken.Stuck(at) { // the leader may know better
				t.Errorf("stuck: %+v", broken)
			}
			if diff := cmp.Diff([]overview.Cordoned{{Node: "left", Since: at.Add(-20 * time.Minute)}}, o.Cordoned); diff != "" {
				t.Errorf("still cordoned (-want +got):\n%s", diff)
			}
		})
	}
}

// What keeps the handler from leading is told by its pods: it ends at its start, or waits there.
func TestThePodsTellWhyNobodyLeads(t *testing.T) {
	const podsPath = "/api/v1/namespaces/node-termination-handler/pods"
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	crashing := corev1.ContainerStatus{
		RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Message: "starting\nnode-termination-handler: sqs GetQueueAttributes: no such queue\n",
		}},
	}
	restarted := running
	restarted.RestartCount, restarted.LastTerminationState = crashing.RestartCount, crashing.LastTerminationState
	pulling := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}
	pod := func(name, owner string, c corev1.ContainerStatus) corev1.Pod {
		probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("probe")}}}
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "node-termination-handler", Labels: map[string]string{nameLabel: "node-termination-handler"},
				OwnerReferences: []metav1.OwnerReference{{Kind: owner, Name: "node-termination-handler", Controller: new(true)}},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				ReadinessProbe: probe, Ports: []corev1.ContainerPort{{Name: "probe", ContainerPort: 8080}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{c}},
		}
	}
	ready := pod("ready", "ReplicaSet", running)
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	leaving := pod("leaving", "ReplicaSet", crashing)
	leaving.DeletionTimestamp = new(metav1.Now())
	const absent = "there is no Lease node-termination-handler/node-termination-handler, and no other was found: name the Lease by --namespace and --lease. In IMDS mode without a leader there is none"
	const never = "nobody has led so far: there is no Lease node-termination-handler/node-termination-handler"
	const unheld = "nobody holds the Lease node-termination-handler/node-termination-handler: check that the handler's pods run"
	const ended = "nobody leads: pod node-termination-handler/handler-1 has not renewed its Lease for 1h. Check that the handler's pods run"
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	for name, test := range map[string]struct {
		lease, ready any
		pods         []corev1.Pod
		why          string
	}{
		"another one is ready":           {nil, nil, []corev1.Pod{ready, pod("a", "ReplicaSet", crashing)}, absent},
		"it waits, and had ended before": {nil, says(503, "queue: AccessDenied"), []corev1.Pod{pod("a", "ReplicaSet", restarted)}, never + ". Pod a is not ready: queue: AccessDenied; it has ended 3 times, with status 1: node-termination-handler: sqs GetQueueAttributes: no such queue"},
		"it runs again, and is silent":   {nil, nil, []corev1.Pod{pod("a", "ReplicaSet", restarted)}, never + ". Pod a has ended 3 times, with status 1: node-termination-handler: sqs GetQueueAttributes: no such queue"},
		"it ends at its start":           {nil, nil, []corev1.Pod{leaving, pod("a", "ReplicaSet", crashing)}, never + ". Pod a has ended 3 times, with status 1: node-termination-handler: sqs GetQueueAttributes: no such queue"},
		"its image cannot be pulled":     {leaseOf(""), nil, []corev1.Pod{pod("a", "ReplicaSet", pulling)}, unheld + ". Pod a does not run: ErrImagePull: not found"},
		"it waits":                       {nil, says(503, "instances: not checked yet\nqueue: AccessDenied"), []corev1.Pod{pod("a", "ReplicaSet", running)}, never + ". Pod a is not ready: instances: not checked yet; queue: AccessDenied"},
		"it waits, and cannot be asked":  {nil, apierrors.NewServiceUnavailable("error trying to reach service: refused"), []corev1.Pod{pod("a", "ReplicaSet", running)}, never},
		"it has become ready":            {nil, says(200, "ok"), []corev1.Pod{pod("a", "ReplicaSet", running)}, never},
		"the leader has ended":           {leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Hour))) }), nil, []corev1.Pod{pod("handler-1", "ReplicaSet", crashing)}, ended + ". Pod handler-1 has ended 3 times, with status 1: node-termination-handler: sqs GetQueueAttributes: no such queue"},
		"those of a DaemonSet lead not":  {nil, nil, []corev1.Pod{pod("a", "DaemonSet", crashing)}, absent},
		"there is no pod":                {nil, nil, nil, absent},
		"the pods may not be listed":     {nil, nil, []corev1.Pod{}, absent},
		"all are ready, and nobody does": {leaseOf(""), nil, []corev1.Pod{ready}, unheld},
		"it hangs, and counts as ready": {
			leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Hour))) }), nil,
			[]corev1.Pod{ready},
			ended + ". Some count as ready: kubectl nth doctor says more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			answers := map[string]any{
				leasePath: test.lease, leasesPath: &coordinationv1.LeaseList{}, nodesPath: &corev1.NodeList{},
				podsPath: &corev1.PodList{Items: test.pods}, podsPath + "/a:8080/proxy/readyz": test.ready,
				proxyPath: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "handler-1"),
			}
			if test.pods != nil && len(test.pods) == 0 {
				answers[podsPath] = forbidden
			}
			o, err := newAPIServer(t, answers).viewer(t).Overview(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if leaderless := strings.HasPrefix(test.why, "nobody has led") || strings.HasPrefix(test.why, "nobody leads"); o.Missing != test.why || o.Leaderless != leaderless {
				t.Errorf("leaderless is %t: %s", o.Leaderless, o.Missing)
			}
		})
	}
}

// The next replica needs a moment after the end of the Lease: until then it is not said that nobody leads.
func TestAReplicaMayLeadSoonAfterALeaseHasExpired(t *testing.T) {
	l := &leader{Lease: leaseOf("handler-1_x"), pod: "handler-1", expired: true, silent: 18 * time.Second, lasts: 15 * time.Second}
	const want = "pod node-termination-handler/handler-1 has not renewed its Lease for 18s by the clock of this machine: another replica leads within 30s of that, or nobody does"
	if got := l.whyUnreachable(context.DeadlineExceeded); got != want || l.nobodyLeads() {
		t.Errorf("nobody leads: %t; %s", l.nobodyLeads(), got)
	}
	l.silent = 31 * time.Second
	if got := l.whyUnreachable(context.DeadlineExceeded); !strings.HasPrefix(got, "nobody leads: ") || !l.nobodyLeads() {
		t.Errorf("nobody leads: %t; %s", l.nobodyLeads(), got)
	}
}

func TestALeaseThatIsNamedIsNoOther(t *testing.T) {
	theirs := leaseOf("handler-1_x")
	theirs.Namespace, theirs.Name = "kube-system", "aws-node-termination-handler"
	asked := newAPIServer(t, map[string]any{leasesPath: &coordinationv1.LeaseList{Items: []coordinationv1.Lease{*theirs}}})
	for name, found := range map[string]bool{"": true, "aws-node-termination-handler": true, "foo": false} {
		v := asked.viewer(t)
		v.lease = name
		l, err := v.findLease(t.Context())
		if (err == nil) != found || found && l.Name != theirs.Name {
			t.Errorf("--lease %q finds %v, %v", name, l, err)
		}
	}
}

func TestAPauseIsSetToldAndEnded(t *testing.T) {
	lease := leaseOf("handler-1_x")
	asked := newAPIServer(t, nil)
	asked.answers = map[string]any{
		nodesPath: &corev1.NodeList{},
		leasePath: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch {
				var patch struct {
					Metadata struct{ Annotations map[string]*string }
				}
				if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
					t.Error(err)
				}
				lease.Annotations = map[string]string{}
				for key, value := range patch.Metadata.Annotations {
					if value != nil {
						lease.Annotations[key] = *value
					}
				}
			}
			w.Header().Set("Content-Type", "application/json")
			l := lease.DeepCopy()
			l.APIVersion, l.Kind = "coordination.k8s.io/v1", "Lease"
			_ = json.NewEncoder(w).Encode(l)
		}),
		proxyPath: serves(&overview.Overview{Source: overview.Leader, Leader: "handler-1"}),
	}
	v := asked.viewer(t)
	said := func(do func(out io.Writer) error) string {
		t.Helper()
		var out strings.Builder
		if err := do(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	pause := func(why string) string {
		return said(func(out io.Writer) error { return v.Pause(t.Context(), out, why) })
	}
	resume := func() string { return said(func(out io.Writer) error { return v.Resume(t.Context(), out) }) }
	if text := resume(); text != "The handler is not paused.\n" || slices.Contains(asked.requests, "PATCH "+leasePath) {
		t.Errorf("%s%q", text, asked.requests)
	}
	if text := pause("a bad rule"); !strings.Contains(text, ": a bad rule): no node is drained") || strings.Contains(text, "already") {
		t.Errorf("%s", text)
	}
	o, err := v.Overview(t.Context())
	if err != nil || healthOf(o) != Deaf || o.Paused == nil || !strings.Contains(*o.Paused, ": a bad rule") || o.Source != overview.Nodes {
		t.Errorf("%+v, %v", o, err)
	}
	if text := o.Deaf(); strings.Contains(text, "Nobody leads") {
		t.Errorf("%s", text)
	}
	if r, err := v.Report(t.Context(), "", time.Now()); err != nil || !strings.Contains(r.Missing, "paused") {
		t.Errorf("%+v, %v", r, err)
	}
	first := lease.Annotations["node-termination-handler/paused"]
	if text := pause(""); !strings.Contains(text, "was paused already (since 2") || lease.Annotations["node-termination-handler/paused"] != first {
		t.Errorf("%s%v", text, lease.Annotations)
	}
	since, _, _ := strings.Cut(first, ": ")
	if pause("it is worse"); lease.Annotations["node-termination-handler/paused"] != since+": it is worse" {
		t.Errorf("%v, want that the time stays", lease.Annotations)
	}
	delete(asked.answers, nodesPath) // the rest of the answer may be missing: it is paused all the same
	if text := pause(""); !strings.Contains(text, "What is left in progress is not known") {
		t.Errorf("%s", text)
	}
	asked.answers[nodesPath] = &corev1.NodeList{}
	if text := pause(""); strings.Contains(text, "But ") {
		t.Errorf("%s", text)
	}
	lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-3 * time.Hour)))
	if text := pause(""); !strings.Contains(text, "But there was no renewal for 3h of the Lease node-termination-handler/node-termination-handler: no handler") {
		t.Errorf("%s", text)
	}
	if o, err := v.Overview(t.Context()); err != nil || !strings.Contains(o.Deaf(), "the handler is paused (since 2") || !strings.Contains(o.Deaf(), ". Nobody leads either") {
		t.Errorf("%+v, %v", o, err)
	}
	if text := resume(); !strings.Contains(text, "But there was no renewal for 3h of the Lease node-termination-handler/node-termination-handler, so nobody leads") {
		t.Errorf("%s", text)
	}
	pause("again")
	lease.Spec.RenewTime = new(metav1.NowMicro())
	if text := resume(); !strings.Contains(text, "It was paused (since 2") || strings.Contains(text, "But ") {
		t.Errorf("%s", text)
	}
	if o, err := v.Overview(t.Context()); err != nil || healthOf(o) != Healthy || o.Paused != nil {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestWhoMayNotPauseIsToldWhatIsMissing(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "node-termination-handler", errors.New("no"))
	server := newAPIServer(t, map[string]any{})
	server.answers[leasePath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPatch {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(refused.Status())
			return
		}
		l := leaseOf("handler-1_x")
		l.APIVersion, l.Kind = "coordination.k8s.io/v1", "Lease"
		_ = json.NewEncoder(w).Encode(l)
	})
	err := server.viewer(t).Pause(t.Context(), io.Discard, "")
	if err == nil || !strings.Contains(err.Error(), "you lack the permission to patch the Lease node-termination-handler/node-termination-handler") {
		t.Errorf("%v", err)
	}
}

func TestALeaderThatDoesNotAnswerIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		server := &apiServer{answers: map[string]any{leasePath: leaseOf("handler-1_x"), proxyPath: silent, nodesPath: &corev1.NodeList{}}}
		client, err := kube.New(&rest.Config{Host: "http://api-server", Transport: inMemory{server}, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		o, err := (&Viewer{client: client}).Overview(t.Context())
		if took := time.Since(began); err != nil || !strings.Contains(o.Missing, "does not answer on port 9999 within 3s: it may have ended just now") || took != leaderTimeout {
			t.Errorf("after %s: %+v, %v", took, o, err)
		}
	})
}

// The leader is asked through an API server that is slow: it has its own time beside that of the API server.
func TestASlowAPIServerIsToldFromALeaderThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	slow := 5 * time.Second
	leads := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(overview.Overview{Source: overview.Leader, Leader: "handler-1"})
	})
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for name, tt := range map[string]struct {
		leader http.HandlerFunc
		want   string // what is missing
	}{
		"the leader answers": {leads, ""},
		"it does not":        {silent, "the API server answers after 5s, and pod node-termination-handler/handler-1 not within 3s more"},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &apiServer{answers: map[string]any{leasePath: leaseOf("handler-1_x"), proxyPath: tt.leader, nodesPath: &corev1.NodeList{}}}
			delayed := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(slow)
				server.ServeHTTP(w, r)
			})
			client, err := kube.New(&rest.Config{Host: "http://api-server", Transport: inMemory{delayed}, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			if o, err := (&Viewer{client: client}).Overview(t.Context()); err != nil || o.Missing != tt.want {
				t.Errorf("%s: %q is missing, %v", name, o.Missing, err)
			}
		})
	}
}

func TestAnAPIServerThatSaysNothingIsAnError(t *testing.T) {
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	for name, answers := range map[string]map[string]any{
		"the nodes are forbidden":    {nodesPath: denied},
		"the lease ends in an error": {leasePath: apierrors.NewInternalError(fmt.Errorf("boom"))},
	} {
		if o, err := newAPIServer(t, answers).viewer(t).Overview(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, o)
		}
	}
	gone := newAPIServer(t, nil)
	gone.Close()
	if o, err := gone.viewer(t).Overview(t.Context()); err == nil {
		t.Errorf("no API server: %+v", o)
	} else if !strings.Contains(err.Error(), "get the Lease") {
		t.Errorf("the error is %v", err)
	}
}

func TestAWatchGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	var asked int
	flaky := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 2 {
			says(500, "boom")(w, r)
			return
		}
		serves(&overview.Overview{Source: overview.Leader, Leader: fmt.Sprint("answer ", asked), Nodes: []overview.Node{}})(w, r)
	})
	server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_x"), proxyPath: flaky})
	shown := make(chan string)
	done := make(chan error, 1)
	ctx := t.Context()
	out := writerFunc(func(text []byte) (int, error) {
		select {
		case shown <- string(text):
			return len(text), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	go func() {
		_, err := Status{Format: FormatText, Watch: true, Terminal: true}.Run(ctx, server.viewer(t), out)
		done <- err
	}()
	for k, want := range []string{"\x1b[HLeader:      answer 1, at ", "\x1b[HNo answer:   list the nodes", "\x1b[HLeader:      answer 3"} {
		if got := <-shown; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\x1b[J") {
			t.Errorf("%d: %q", k, got)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// large is an overview of as many nodes, each of which waits for several things.
func large(nodes int) *overview.Overview {
	o := &overview.Overview{At: time.Now(), Source: overview.Leader, Leader: "handler-1", Queue: &overview.Queue{InFlight: nodes}}
	for k := range nodes {
		n := overview.Node{
			Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", k/256, k%256), Instance: fmt.Sprintf("i-%017x", k),
			Kind: "spot-interruption", Stage: overview.Draining, Since: o.At, CordonedAt: o.At, Deadline: o.At.Add(time.Minute), Pods: &overview.Pods{Left: 30},
		}
		for w := range 4 {
			n.WaitsFor = append(n.WaitsFor, overview.Wait{
				Cause: overview.Budget, Name: fmt.Sprintf("team-%d/service-%d", k%50, w), Why: "the PodDisruptionBudget allows no disruption", Pods: 2,
				Pod: fmt.Sprintf("team-%d/service-%d-6f8d9c7b5-abcde", k%50, w), Until: o.At.Add(time.Minute),
			})
		}
		o.Nodes = append(o.Nodes, n)
	}
	return o
}

func BenchmarkStatus(b *testing.B) {
	nodes := &corev1.NodeList{}
	at := time.Now()
	for k := range 500 {
		n := draining(fmt.Sprintf("%017x", k), intent.Intent{
			Version: 1, Queue: "https://sqs.us-east-1.amazonaws.com/123456789012/nth", CordonedAt: at, Cordoned: true,
			Entries: []intent.Entry{{Kind: notice.SpotInterruption, Time: at, Deadline: at.Add(time.Minute), IDs: []string{"6a7e8feb-b491-4cf7-a9f1-bf3703467718"}}},
		})
		n.Annotations["managed"] = strings.Repeat("x", 2000)
		for i := range 50 { // what kubelets report: 5 kB of images
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064x", i, i)}})
		}
		nodes.Items = append(nodes.Items, *n)
	}
	for name, answers := range map[string]map[string]any{
		"leader": {leasePath: leaseOf("handler-1_x"), proxyPath: serves(large(500))},
		"nodes":  {leasePath: leaseOf(""), nodesPath: nodes},
	} {
		b.Run(name, func(b *testing.B) {
			server := newAPIServer(b, answers)
			v := server.viewer(b)
			for b.Loop() {
				o, err := v.Overview(b.Context())
				if err != nil || len(o.Nodes) != 500 {
					b.Fatal(o, err)
				}
				b.SetBytes(int64(len(o.Table(overview.Style{Wide: true}))))
			}
			b.ReportMetric(float64(len(server.requests))/float64(b.N), "requests/op")
		})
	}
}

// The API server passes on where a pod sends its client. There nobody may get the credentials of who asks.
func TestALeaderSendsNobodyElsewhere(t *testing.T) {
	var mu sync.Mutex
	var visits []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		visits = append(visits, r.URL.Path+" "+r.Header.Get("Authorization"))
		mu.Unlock()
		serves(&overview.Overview{Source: overview.Leader})(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	sends := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/taken", http.StatusFound)
	})
	hostile := httptest.NewServer(sends)
	t.Cleanup(hostile.Close)
	_, port, err := net.SplitHostPort(hostile.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	lease := leaseOf("handler-1_x", func(l *coordinationv1.Lease) { l.Labels[app.PortLabel] = port })
	proxy := strings.Replace(proxyPath, "9999", port, 1)
	server := newAPIServer(t, map[string]any{leasePath: lease, proxy: sends, nodesPath: &corev1.NodeList{}})
	client, err := kube.New(&rest.Config{Host: server.URL, QPS: -1, BearerToken: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{"", "handler-1"} {
		v := &Viewer{client: client, ownPod: own}
		if o, err := v.Overview(t.Context()); err != nil || o.Source != overview.Nodes || len(visits) > 0 {
			t.Errorf("from pod %q: %+v, %v; visits: %q", own, o, err, visits)
		}
	}
}
