package app

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"

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
	l.renewed(held, 7)
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
	}
	close(resumed)
	if o, err := l.Overview(t.Context()); err != nil || o.Resuming || o.Queue == nil {
		t.Errorf("after that: %+v, %v", o, err)
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
	case <-time.After(3 * time.Second):
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
