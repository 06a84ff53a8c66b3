package drain

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// A busyServer asks each request to come again, as an overloaded API server does.
type busyServer struct{ requests []string }

func (b *busyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var options struct {
		metav1.DeleteOptions
		Inner *metav1.DeleteOptions `json:"deleteOptions"`
	}
	if err := json.Unmarshal(body, &options); err != nil {
		return nil, err
	}
	sent := options.DeleteOptions
	if options.Inner != nil {
		sent = *options.Inner
	}
	sent.TypeMeta = metav1.TypeMeta{}
	text, err := json.Marshal(sent)
	b.requests = append(b.requests, r.Method+" "+r.URL.Path+" "+string(text))
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)),
	}, err
}

func TestARequestNamesThePodItMeansAndIsMadeOnce(t *testing.T) {
	server := &busyServer{}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://api", Transport: server, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(&Drainer{Client: client}, &evacuation.Request{}, nil).requests
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "shop", UID: "uid-7", ResourceVersion: "42"}}
	for _, request := range []struct {
		make func(context.Context, *corev1.Pod, step) error
		step step
	}{
		{r.evict, step{kind: stepEvict, version: "42"}},
		{r.evict, step{kind: stepEvict, grace: 7 * time.Second}},
		{r.remove, step{kind: stepDelete, grace: 30 * time.Second}},
		{r.remove, step{kind: stepDelete, version: "42"}},
	} {
		if err := request.make(t.Context(), pod, request.step); refusalOf(err) != evacuation.Busy {
			t.Errorf("%+v: %v, want the refusal of a busy API server", request.step, err)
		}
	}
	const path = "/api/v1/namespaces/shop/pods/db-0"
	want := []string{
		"POST " + path + `/eviction {"preconditions":{"uid":"uid-7","resourceVersion":"42"}}`,
		"POST " + path + `/eviction {"gracePeriodSeconds":7,"preconditions":{"uid":"uid-7"}}`,
		"DELETE " + path + ` {"gracePeriodSeconds":30,"preconditions":{"uid":"uid-7"}}`,
		"DELETE " + path + ` {"preconditions":{"uid":"uid-7","resourceVersion":"42"}}`,
	}
	if diff := cmp.Diff(want, server.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestWhatKubectlWarnsOfIsLoggedOnceForANode(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Filter = Filter{IgnoreDaemonSets: true}
		s.pod("logs", daemon)
		s.pod("metrics", daemon)
		s.pod("web")
		go func() {
			if s.passes(10 * time.Second) {
				s.pod("more-logs", daemon)
			}
		}()
		s.stops["web"] = 30 * time.Second
		log := s.drainLogged(evacuation.Terms{})
		want := []string{`says="deleting Pods that declare no controller: ns/web; ignoring DaemonSet-managed Pods: ns/logs, ns/metrics"`}
		if diff := cmp.Diff(want, log.Said("kubectl's drain warns of pods")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// The pods of a node are asked about together, and each gets its own answer, also where two have one name: the pod of a
// StatefulSet that was made anew on the node, before the watch has told of the end of the first.
func TestEachPodGetsItsOwnAnswer(t *testing.T) {
	pod := func(name string, edits ...func(*corev1.Pod)) candidate {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "x"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		for _, edit := range edits {
			edit(p)
		}
		return candidate{p, decision.Turn{Stays: ofDaemonSet(p)}}
	}
	static := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	scratch := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	leaving := pod("other", daemon)
	leaving.turn = decision.Turn{}
	never := pod("batch", scratch)
	never.turn = decision.Turn{Leave: decision.LeaveNever, Stays: true, Why: "jobs"}
	staticNever := pod("kube-proxy", static)
	staticNever.turn = never.turn
	answers, _ := Filter{}.mustLeave([]candidate{
		pod("web"), pod("logs", daemon), pod("db-0", scratch), pod("db-0"), pod("kube-proxy", static), leaving, never, staticNever,
	})
	want := []chosen{
		{leaves: true},
		{why: "it belongs to a DaemonSet: ignore-daemon-sets is false"},
		{why: "it has an emptyDir volume: delete-local-data is false"},
		{leaves: true},
		{},
		{leaves: true},
		{why: "it stays (jobs)"},
		{},
	}
	if diff := cmp.Diff(want, answers, cmp.AllowUnexported(chosen{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if answers, warnings := (Filter{}).mustLeave(nil); len(answers) != 0 || warnings != "" {
		t.Errorf("of no pods: %v, %q", answers, warnings)
	}
}

// kubectl asks whether the DaemonSet is there, and evicts the pod if not. Here nobody is asked.
func TestThePodOfADaemonSetThatIsGoneStays(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Filter.IgnoreDaemonSets = true
		s.pod("orphan", daemon) // the API server has no DaemonSet
		s.pod("web")
		result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
			Node: "node", NodeState: s.look, Terms: evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(2 * time.Minute)},
		})
		if err != nil || result.Evicted != 1 {
			t.Errorf("Drain = %+v, %v", result, err)
		}
		s.want(0, "0s evicted web with 30s")
	})
}
