package nodedrain

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// firstTries is how long it is tried to write a node before its pods leave without the cordon: some of them would be
// scheduled to it again.
const firstTries = 5 * time.Second

// halfPassed reports whether half of the time is over that a notice leaves. A notice without a deadline can wait.
func halfPassed(entry *intent.Entry, now time.Time) bool {
	return !entry.Deadline.IsZero() && now.Sub(entry.Time) >= entry.Deadline.Sub(entry.Time)/2
}

// drainUnrecorded drains a node that cannot be written, as where a webhook refuses every patch: its own pods may be on
// nodes that go away. The pods leave although the node is not cordoned and carries no intent, so a new leader learns of
// the drain from the message alone. Whoever has the message tries on to record the notice, and with it what has come
// meanwhile. The drain waits for that at its end, and what has come to the node until then leaves, too.
//
// The caller holds the lock since before the try that has failed, and calls place.Recorded afterwards. A drain that has
// started may have ended since. Then the next try begins another one.
func (p *recording) drainUnrecorded(ctx context.Context, d *Drain) error {
	carried := d.carried()
	if on, ok := p.intentOn(d.ref); !d.started && ok {
		carried = on
	}
	known := d.started && (carried.Covers(*p.Entry) || p.drains.hasEnded(d))
	if known || carried.Over(*p.Entry) || p.Void() {
		p.drop(d)
		return nil
	}
	next := p.with(d, carried, time.Now().UTC())
	if next.Finished() || next.HeldBack {
		p.drop(d)
		return nil
	}
	p.Observer.Recorded(*p.Entry)
	d.goUnrecorded(p.log.WithValues("node", d.ref.Name), next)
	if d.started {
		return nil
	}
	return p.start(ctx, d)
}

// goUnrecorded has the drain go by an intent that the node does not carry. The caller holds the lock.
func (d *Drain) goUnrecorded(log logr.Logger, i intent.Intent) {
	logging.Warn(log, "the node cannot be written, and half of the notice has passed: its pods leave without the cordon")
	d.unrecorded.Store(true)
	d.setIntent(i)
}

// intentOn is the intent that the node carries, as the watch says; zero where there is none, or it cannot be read.
func (c *Config) intentOn(ref cluster.Ref) (intent.Intent, bool) {
	node, there := c.Cluster.Look(ref)
	if !there {
		return intent.Intent{}, false
	}
	i, ok, err := cluster.ReadIntent(node)
	return i, ok && err == nil
}
