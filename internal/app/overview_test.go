package app

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
)

// slowTerm is a term whose drains answer when that is allowed.
func slowTerm() (term lookedAt, begun, answer chan struct{}) {
	begun, answer = make(chan struct{}, 10), make(chan struct{})
	return lookedAt{
		status: func(context.Context) []overview.Node {
			begun <- struct{}{}
			<-answer
			return []overview.Node{{Name: "a"}}
		},
		heldBack:    func() (int, string) { return 0, "" },
		lastReceive: time.Now,
	}, begun, answer
}

func TestALeaderThatReadsTheNodesSaysSo(t *testing.T) {
	l := newLookout("handler-1", nil, logr.Discard())
	l.dryRun = true
	held := time.Now().Add(-time.Minute)
	l.renewed(lease.Term{Since: held, Transitions: 7, Answer: 2 * time.Second})
	resumed := make(chan struct{})
	defer l.lead(lookedAt{
		status:      func(context.Context) []overview.Node { return nil },
		heldBack:    func() (int, string) { return 0, "" },
		lastReceive: time.Now,
		inFlight:    func() (int, time.Time) { return 0, time.Time{} },
		failing:     func() (time.Time, string) { return time.Time{}, "" },
		resumed:     resumed,
	})()
	if o, err := l.Overview(t.Context()); err != nil || !o.Resuming || o.Queue != nil || !o.DryRun || o.Transitions != 7 || !o.LeadsSince.Equal(held) {
		t.Errorf("while it reads them: %+v, %v", o, err)
	} else if want := []string{"changes of the cluster in time: the API server answers after 2s"}; !slices.Equal(o.Unseen, want) {
		t.Errorf("unseen: %q, want %q", o.Unseen, want)
	}
	l.renewed(lease.Term{Since: held, Transitions: 7, Answer: 20 * time.Millisecond})
	close(resumed)
	if o, err := l.Overview(t.Context()); err != nil || o.Resuming || o.Queue == nil || len(o.Unseen) > 0 {
		t.Errorf("after that: %+v, %v", o, err)
	}
}

// What has happened does not become unknown when another replica takes over: it has watched the nodes.
func TestAReplicaThatStandsByKnowsHowDrainsHaveEnded(t *testing.T) {
	at := time.Now()
	drained := intent.Intent{Version: 1, FinishedAt: at, Outcome: intent.Drained, Entries: []intent.Entry{{Kind: notice.SpotInterruption, Time: at}}}
	missed, draining := drained, drained
	missed.Outcome = intent.Missed
	draining.FinishedAt, draining.Outcome = time.Time{}, ""
	resumed := make(chan struct{})
	for name, tt := range map[string]struct {
		carried intent.Intent
		leads   *lookedAt
		want    []string // outcomes
	}{
		"a drain that has ended":    {drained, nil, []string{"drained"}},
		"one that came too late":    {missed, nil, []string{"missed"}},
		"one that goes on":          {draining, nil, []string{""}},
		"nothing":                   {intent.Intent{Version: 1}, nil, nil},
		"one before it is resumed":  {draining, &lookedAt{resumed: resumed}, []string{""}},
		"one of a replica's own":    {draining, &lookedAt{}, nil},
		"one that it has ended too": {drained, &lookedAt{}, nil},
	} {
		l := newLookout("handler-2", nil, logr.Discard())
		if tt.leads != nil {
			l.lead(*tt.leads)
		}
		l.deleted(cluster.Ref{Name: "a"}, tt.carried)
		l.lead(lookedAt{})
		h, err := l.History(t.Context())
		var got []string
		for _, e := range h.Episodes {
			got = append(got, e.Outcome)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: outcomes %q, want %q; error %v", name, got, tt.want, err)
		}
		r := overview.Report{Since: h.Since, KnownSince: h.Since, Episodes: h.Episodes}
		if unknown := slices.Contains(tt.want, ""); r.Incomplete() != unknown || r.Harmed() != slices.Contains(tt.want, "missed") {
			t.Errorf("%s: incomplete %t, lost %t", name, r.Incomplete(), r.Harmed())
		}
	}
}

// The lease is given away after the end of the term.
func TestTheEndOfATermWaitsForNoReader(t *testing.T) {
	l := newLookout("handler-1", nil, logr.Discard())
	term, begun, answer := slowTerm()
	end := l.lead(term)
	read := make(chan error)
	go func() {
		_, err := l.Overview(t.Context())
		read <- err
	}()
	<-begun
	ended := make(chan struct{})
	go func() {
		end()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Error("the end of the term waits for a drain that does not answer a reader")
	}
	close(answer)
	if err := <-read; !errors.As(err, new(page.Standby)) {
		t.Errorf("a reader was told of a term that has ended: %v", err)
	}
	term.status = func(context.Context) []overview.Node { return []overview.Node{{Name: "b"}} }
	defer l.lead(term)()
	if o, err := l.Overview(t.Context()); err != nil || len(o.Nodes) != 1 || o.Nodes[0].Name != "b" {
		t.Errorf("the next term shows %+v, %v", o, err)
	}
}
