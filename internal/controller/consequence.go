package controller

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// noteConsequence records, on the Nodes of finished drains, a notice that the instance ends.
// It holds even if the notice of the drain is cancelled, and the next Node of the instance is
// told. cluster.ErrNodeGone, nodedrain.ErrOutdated: a Node has changed meanwhile.
func (t *task) noteConsequence(ctx context.Context) error {
	d := t.Decision
	if d.Deadline.IsZero() {
		d.Deadline = decision.DeadlineOf(*t.n, time.Now(), t.c.Policy)
	}
	entry := d.Entry(*t.n, time.Now())
	for _, ref := range t.found.Refs {
		noted := false
		err := cluster.Retry(ctx, t.log, "note what follows from the drain", func(ctx context.Context) error {
			_, err := t.c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
				noted = i.DrainedForEnd()
				return i.Noting(entry)
			})
			return err
		})
		if err != nil {
			return err
		}
		if !noted {
			return nodedrain.ErrOutdated
		}
	}
	return nil
}
