package simulate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

// A Story is a notice that was sent, and how long to wait for what.
type Story struct {
	Notice timeline.Notice
	Out    timeline.Printer
	// Taken is how long a handler has to take the notice; End is when the story has
	// to be over.
	Taken time.Duration
	End   time.Time
}

// Follow prints what happens until the end. The error says what did not happen
// in time, or what went wrong.
func (s Story) Follow(ctx context.Context, events <-chan timeline.Event) error {
	var story timeline.Timeline
	s.Out.Row(story.Begin(s.Notice))
	over := time.NewTimer(time.Until(s.End))
	defer over.Stop()
	nobody := time.NewTimer(s.Taken)
	defer nobody.Stop()
	for len(story.Missing()) > 0 {
		select {
		case e := <-events:
			for _, row := range story.Observe(e) {
				if row.Kind == timeline.NodeCordoned || row.Kind == timeline.NodeHeldBack {
					nobody.Stop()
				}
				s.Out.Row(row)
			}
		case <-nobody.C:
			return fmt.Errorf("no handler has taken the notice within %.0f s; it stays in the queue until its retention is over, and a handler that comes may still act on it", s.Taken.Seconds())
		case <-over.C:
			return fmt.Errorf("this did not happen within %.0f s:%s", s.End.Sub(s.Notice.Sent).Seconds(), list(story.Missing()))
		case <-ctx.Done():
			return fmt.Errorf("the notice was sent, and is not followed any more: %w", context.Cause(ctx))
		}
	}
	if troubles := story.Troubles(); len(troubles) > 0 {
		return fmt.Errorf("this should not have happened:%s", list(troubles))
	}
	s.Out.End(story.Summary())
	return nil
}

// list is a line of its own for each of what.
func list(what []string) string { return "\n  " + strings.Join(what, "\n  ") }
