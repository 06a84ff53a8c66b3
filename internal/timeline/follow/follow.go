// Package follow watches the cluster after a notice was sent, and prints the timeline of
// what happens to its node and pods until the work is done.
package follow

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

// A Story is a notice that was sent, and how long to wait for what follows.
type Story struct {
	Notice timeline.Notice
	Out    timeline.Printer
	// Taken is how long a handler may need to act on the notice. End is when the story ends at the
	// latest.
	Taken time.Duration
	End   time.Time
	// Settle is how long to wait after the work is done for pods to come up elsewhere: a
	// StatefulSet makes the next pod only when the old one is gone.
	Settle time.Duration
}

// ErrNotTaken says that no handler acted on the notice in time.
var ErrNotTaken = errors.New("no handler has taken the notice")

// A Result is what became of the notice.
type Result struct {
	timeline.Tally
	// Missing is what did not happen, and Troubles what should not have.
	Missing  []string `json:"missing,omitempty"`
	Troubles []string `json:"troubles,omitempty"`
}

// untilQuiet is how long nothing happens before it is said what is waited for.
const untilQuiet = 15 * time.Second

// Follow prints what happens until the end of the story. The error says what did not happen in
// time, or what went wrong.
func (s Story) Follow(ctx context.Context, events <-chan timeline.Event) (Result, error) {
	var story timeline.Timeline
	s.Out.Row(story.Begin(s.Notice))
	err := s.follow(ctx, events, &story)
	result := Result{Tally: story.Tally(), Missing: story.Missing(), Troubles: story.Troubles()}
	switch {
	case err != nil:
	case len(result.Troubles) > 0:
		err = fmt.Errorf("this should not have happened:%s", list(result.Troubles))
	default:
		s.Out.End(story.Summary())
		if n := story.Unmoved(); n > 0 {
			fmt.Fprintf(s.Out.Out, "Not ready elsewhere yet: %d of the pods that left. See kubectl get pods -A.\n", n)
		}
	}
	return result, err
}

func (s Story) follow(ctx context.Context, events <-chan timeline.Event, story *timeline.Timeline) error {
	over := time.NewTimer(time.Until(s.End))
	defer over.Stop()
	nobody := time.NewTimer(s.Taken)
	defer nobody.Stop()
	quiet := time.NewTicker(untilQuiet)
	defer quiet.Stop()
	for len(story.Missing()) > 0 {
		select {
		case e := <-events:
			printed, taken := s.observe(story, e)
			if taken {
				nobody.Stop()
			}
			if printed {
				quiet.Reset(untilQuiet)
			}
		case now := <-quiet.C:
			for _, row := range story.Waits(now) {
				s.Out.Row(row)
			}
		case <-nobody.C:
			return fmt.Errorf("%w within %.0f s", ErrNotTaken, s.Taken.Seconds())
		case <-over.C:
			return fmt.Errorf("this did not happen within %.0f s:%s", s.End.Sub(s.Notice.Sent).Seconds(), list(story.Missing()))
		case <-ctx.Done():
			return fmt.Errorf("the notice was sent, and is not followed any more (%w); the drain goes on: kubectl get node %s "+
				"-L %s",
				context.Cause(ctx), s.Notice.Node, cluster.StateLabel)
		}
	}
	settled := time.NewTimer(s.Settle)
	defer settled.Stop()
	for story.Unmoved() > 0 {
		select {
		case e := <-events:
			s.observe(story, e)
		case <-settled.C:
			return nil // the summary says how many have moved
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// observe prints the new rows, and reports whether there are some, and whether they show that a handler has the notice.
func (s Story) observe(story *timeline.Timeline, e timeline.Event) (printed, taken bool) {
	for _, row := range story.Observe(e) {
		printed = true
		taken = taken || row.Kind == timeline.NodeCordoned || row.Kind == timeline.NodeHeldBack
		s.Out.Row(row)
	}
	return printed, taken
}

// list puts each item on a line of its own.
func list(what []string) string { return "\n  " + strings.Join(what, "\n  ") }
