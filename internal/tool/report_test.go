package tool

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	historyPath = "/api/v1/namespaces/node-termination-handler/pods/handler-1:9999/proxy/history"
	eventsPath  = "/api/v1/namespaces/default/events"
)

func names(episodes []overview.Episode) (all []string) {
	for _, e := range episodes {
		all = append(all, e.Node)
	}
	return all
}

func TestAReportGoesByWhatTheLeaderKeeps(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second)
	history := &overview.History{At: at, Since: at.Add(-time.Hour), Episodes: []overview.Episode{
		{Node: "a", Ended: at, Pods: &overview.Counts{Lost: 1}}, {Node: "b", Ended: at.Add(-time.Minute)}, {Node: "a", Ended: at.Add(-2 * time.Hour)},
	}}
	status := &overview.Overview{Source: overview.Leader, Nodes: []overview.Node{{Name: "b"}, {Name: "a", Kind: "spot-interruption"}}}
	server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_x"), historyPath: serves(history), proxyPath: serves(status)})
	v := server.viewer(t)
	r, err := v.Report(t.Context(), "", at.Add(-time.Hour))
	if err != nil || !slices.Equal(names(r.Episodes), []string{"a", "b"}) || r.Lost() != 1 || !r.KnownSince.Equal(history.Since) || r.Current != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if want := []string{"GET " + leasePath, "GET " + historyPath}; !slices.Equal(server.requests, want) {
		t.Errorf("the requests are %q", server.requests)
	}
	r, err = v.Report(t.Context(), "a", time.Time{})
	if err != nil || !slices.Equal(names(r.Episodes), []string{"a", "a"}) || r.Current == nil || r.Current.Kind != "spot-interruption" {
		t.Errorf("%+v, %v", r, err)
	}
}

// Before the first leader there was no handler, and no drain.
func TestAReportOfAFreshInstallationIsComplete(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second)
	history := &overview.History{At: at, Since: at.Add(-time.Minute), Episodes: []overview.Episode{}}
	for name, tt := range map[string]struct {
		transitions int32
		since       time.Time
		incomplete  bool
		told        time.Time // since when
	}{
		"nobody has led before":   {0, at.Add(-24 * time.Hour), false, at.Add(-2 * time.Minute)},
		"as far as is known":      {0, time.Time{}, false, history.Since},
		"another has led before":  {1, at.Add(-24 * time.Hour), true, history.Since},
		"asked for the last 30 s": {0, at.Add(-30 * time.Second), false, at.Add(-30 * time.Second)},
	} {
		lease := leaseOf("handler-1_x", func(l *coordinationv1.Lease) {
			l.CreationTimestamp, l.Spec.LeaseTransitions = metav1.NewTime(at.Add(-2*time.Minute)), &tt.transitions
		})
		v := newAPIServer(t, map[string]any{leasePath: lease, historyPath: serves(history)}).viewer(t)
		r, err := v.Report(t.Context(), "", tt.since)
		if err != nil {
			t.Fatal(err)
		}
		told := "No drain has ended since " + tt.told.Format("2006-01-02 15:04:05Z")
		if r.Incomplete() != tt.incomplete || !strings.Contains(r.Markdown(), told) {
			t.Errorf("%s: incomplete %t, and not %q:\n%s", name, r.Incomplete(), told, r.Markdown())
		}
	}
}

func TestWithoutTheLeaderAReportGoesByNodesAndEvents(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second)
	finished := func(name string, ended time.Time) corev1.Node {
		return *draining(name, intent.Intent{
			Version: 1, CordonedAt: at.Add(-2 * time.Minute), Outcome: intent.Missed, FinishedAt: ended,
			Entries: []intent.Entry{{Kind: notice.SpotInterruption, Time: at.Add(-2 * time.Minute), Deadline: at}},
		})
	}
	events := &corev1.EventList{Items: []corev1.Event{
		{Reason: "Second", Message: "the pod is deleted", LastTimestamp: metav1.NewTime(at)},
		{Reason: "First", Message: "the node is drained", EventTime: metav1.NewMicroTime(at.Add(-time.Minute))},
	}}
	var asked []string
	nodes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("labelSelector")+r.URL.Query().Get("fieldSelector"))
		list := &corev1.NodeList{Items: []corev1.Node{finished("b", at.Add(-time.Hour)), finished("a", at)}}
		(&apiServer{answers: map[string]any{r.URL.Path: list}}).ServeHTTP(w, r)
	})
	answers := map[string]any{leasePath: leaseOf(""), nodesPath: nodes, eventsPath: events}
	server := newAPIServer(t, answers)
	v := server.viewer(t)
	r, err := v.Report(t.Context(), "", at.Add(-2*time.Hour))
	if err != nil || !slices.Equal(names(r.Episodes), []string{"a", "b"}) || r.Missing == "" || len(r.Events) > 0 || r.Episodes[0].Known != overview.AsCarried {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = v.Report(t.Context(), "a", time.Time{})
	if err != nil || !slices.Equal(names(r.Episodes), []string{"a"}) || len(r.Events) != 2 || r.Events[0].Reason != "First" {
		t.Errorf("%+v, %v", r, err)
	}
	if want := []string{"", "metadata.name=a"}; !slices.Equal(asked, want) {
		t.Errorf("nodes were asked for by %q", asked)
	}
	answers[eventsPath] = apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil)
	r, err = v.Report(t.Context(), "a", time.Time{})
	if err != nil || !strings.Contains(r.Missing, "you lack the permission to list the Events of nodes") || len(r.Episodes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	answers[nodesPath] = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	if r, err = v.Report(t.Context(), "a", time.Time{}); err == nil {
		t.Errorf("without a right there is %+v", r)
	}
}

// JSON of another program that listens on the port fits, and says nothing: it must not say that no pod was lost.
func TestTheAnswerOfAnotherProgramIsNoHistory(t *testing.T) {
	for _, answer := range []string{"{}", "null", `{"status":"ok"}`} {
		server := newAPIServer(t, map[string]any{leasePath: leaseOf("handler-1_x"), historyPath: says(200, answer), nodesPath: &corev1.NodeList{}})
		r, err := server.viewer(t).Report(t.Context(), "", time.Time{})
		if err != nil || !strings.Contains(r.Missing, "is not one of this release") {
			t.Errorf("%s: %+v, %v", answer, r, err)
		}
	}
}

func TestAReportOfANodeThatDoesNotExistIsAnError(t *testing.T) {
	answers := map[string]any{
		leasePath:   leaseOf("handler-1_x"),
		historyPath: serves(&overview.History{At: time.Now(), Since: time.Now()}),
		proxyPath:   serves(&overview.Overview{Source: overview.Leader, Leader: "handler-1"}),
		nodesPath:   &corev1.NodeList{},
	}
	v := newAPIServer(t, answers).viewer(t)
	if _, err := v.Report(t.Context(), "nope", time.Time{}); err == nil || !strings.Contains(err.Error(), "there is no node nope") {
		t.Errorf("%v", err)
	}
	answers[nodesPath] = &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	if _, err := newAPIServer(t, answers).viewer(t).Report(t.Context(), "a", time.Time{}); err != nil {
		t.Error(err)
	}
}
