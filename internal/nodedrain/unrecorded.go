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
// the drain from the message alone. Who has the message tries on to record the notice; what has come meanwhile is
// recorded with it. The drain waits for that, and what has come to the node until then leaves, too.
//
// Since the failed try d may have ended. If it had not started, another notice could not be recorded either: the next
// drain of the node takes its place. Otherwise the node could be written meanwhile.
func (p *recording) drainUnrecorded(ctx context.Context, d *Drain) error {
	d, err := p.orNext(ctx, d)
	if d == nil || err != nil {
		return err
	}
	defer d.unlock()
	if p.Void() || !p.spent && !d.unrecorded.Load() {
		p.drop(d)
		return nil
	}
	carried, _ := d.current()
	if on, ok := p.intentOn(d.ref); !d.started && ok {
		carried = on
	}
	if d.started && carried.Covers(*p.Entry) || isClosed(d.quit.done) || carried.Over(*p.Entry) {
		p.drop(d)
		return nil
	}
	defer d.place.Recorded()
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

// orNext returns the drain, locked, or the one that takes its place; nil: it has ended after it had started.
func (p *recording) orNext(ctx context.Context, d *Drain) (*Drain, error) {
	if err := d.lock(ctx); err != nil {
		return nil, err
	}
	if !p.drains.hasEnded(d) {
		return d, nil
	}
	started := d.started
	d.unlock()
	if started {
		return nil, nil
	}
	return p.drains.locked(ctx, d.ref)
}

// goUnrecorded has the drain go by an intent that the node does not carry. The caller holds the lock.
func (d *Drain) goUnrecorded(log logr.Logger, i intent.Intent) {
	logging.Warn(log, "the node cannot be written, and half of the notice has passed: its pods leave without the cordon")
	d.unrecorded.Store(true)
	d.setIntent(i)
}

// intentOn is what the watch says that the node carries.
func (c *Config) intentOn(ref cluster.Ref) (intent.Intent, bool) {
	node, there := c.Cluster.Look(ref)
	if !there {
		return intent.Intent{}, false
	}
	i, ok, err := cluster.ReadIntent(node)
	return i, ok && err == nil
}
