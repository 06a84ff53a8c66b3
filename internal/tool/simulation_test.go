package tool

import (
	"errors"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

func TestASimulationKnowsWhetherTheHandlerIsPausedOrSaysThatItDoesNot(t *testing.T) {
	paused := func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{lease.PausedAnnotation: "an incident"}
	}
	for name, tt := range map[string]struct {
		answer       any
		paused, note string // parts
	}{
		"it runs":                          {answer: leaseOf("handler-1_x")},
		"it is paused":                     {answer: leaseOf("handler-1_x", paused), paused: "an incident"},
		"it has not begun":                 {paused: "nobody has led so far, so no notice is acted on: there is no Lease node-termination-handler/node-termination-handler"},
		"its Lease may not be read":        {answer: apierrors.NewForbidden(coordinationv1.Resource("leases"), "x", nil), note: "it is not known whether the handler is paused: "},
		"the API server is overloaded now": {answer: apierrors.NewInternalError(errors.New("overloaded")), note: "it is not known whether the handler is paused: "},
	} {
		t.Run(name, func(t *testing.T) {
			server := newAPIServer(t, map[string]any{leasePath: tt.answer})
			c, err := parseOptions([]string{"--queue-url=" + testQueue}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := &Session{Options: c, client: server.viewer(t).client, origin: &Origin{release: &Release{namespace: "node-termination-handler"}}}
			s.readLease(t.Context())
			if note := strings.Join(s.origin.notes, ""); !strings.Contains(s.idle, tt.paused) || (s.idle == "") != (tt.paused == "") ||
				!strings.HasPrefix(note, tt.note) || (note == "") != (tt.note == "") {
				t.Errorf("paused %q, note %q", s.idle, note)
			}
		})
	}
}

func TestNothingIsSentToAHandlerThatDoesNotRun(t *testing.T) {
	for _, ready := range []bool{true, false} {
		s, all := forecasts(t, notice.SpotInterruption)
		s.origin.release = &Release{kind: "Deployment", namespace: "a", name: "nth", ready: ready}
		view, err := rehearsal.ReadAll(t.Context(), fake.NewClientset())
		if err != nil {
			t.Fatal(err)
		}
		f := all[len(all)-1]
		err = Simulation{Node: f.node.Name, Yes: true}.confirm(t.Context(), f.target, view, Terminal{})
		if (err == nil) != ready || !ready && !strings.Contains(err.Error(), "no replica of Deployment a/nth is ready") {
			t.Errorf("ready %t: %v", ready, err)
		}
	}
}
