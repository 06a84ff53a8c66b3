package nodedrain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// watchNode watches the node during its drain, until stop is called.
//
// Somebody who uncordons the node means it, or has made a mistake; nobody is to fight with
// the controller over a cordon. If the machine goes away the node is cordoned again, once.
// A drain that can wait is called off.
//
// A node that turns ready again, or has another boot id, may have been restarted: notices of
// before that may be void.
func (d *Drain) watchNode(ctx context.Context) (stop func()) {
	wasReady := true
	l := looker{looks: cluster.PerNode{Log: d.log}, look: func() error {
		node, there := d.r.Cluster.Look(d.ref)
		if !there {
			return nil
		}
		isReady := cluster.Ready(node)
		carried := d.carried()
		bootID := cluster.BootID(node)
		restarted := carried.BootID != "" && bootID != "" && bootID != carried.BootID
		if isReady && (!wasReady || restarted) {
			if err := d.forgetEarlierLife(ctx); err != nil {
				return err
			}
		}
		wasReady = isReady
		if node.Spec.Unschedulable {
			return nil
		}
		return d.onUncordon(ctx, node)
	}}
	remove := d.r.Cluster.OnChange(d.ref, func() {
		if ctx.Err() == nil {
			l.changed()
		}
	})
	return func() {
		remove()
		l.looks.Wait()
	}
}

// A looker looks after each change, on a goroutine of its own that ends then: one that waits for the next change would
// cost each of thousands of drains a stack. It looks once at a time, and never again after an error.
type looker struct {
	look  func() error
	looks cluster.PerNode // of one node
	ended bool            // with an error; only changed uses it, once at a time
}

// changed has it look, soon. It does not block.
func (l *looker) changed() {
	l.looks.Do("", func() { l.ended = l.ended || l.look() != nil })
}

// onUncordon reacts if somebody has uncordoned the node. An error means that the drain ends.
func (d *Drain) onUncordon(ctx context.Context, node *corev1.Node) error {
	uncordoned, times, goes := d.r.uncordoned(node)
	switch {
	case !uncordoned || times > 1:
		return nil
	case goes: // the watch may be behind: the node is read, and cordoned by that; see cluster.Cluster.Record
		return d.rewrite(ctx, func(i intent.Intent) intent.Intent { return i })
	}
	return d.quitIf(ctx, errUncordoned, func(carried intent.Intent) bool {
		now := time.Now()
		return carried.Uncordoned == times && !decision.MachineGoes(carried.Current(now), now, d.r.Policy)
	})
}

// quitIf ends the drain for a reason, if what the node carries is such that it ends. It asks while it
// holds the lock of the node: a notice that is being recorded is heeded, and one that comes later
// begins another drain. The error is the reason if the drain ends, or the cause of ctx.
func (d *Drain) quitIf(ctx context.Context, reason error, ends func(intent.Intent) bool) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	carried := d.carried()
	switch {
	case !ends(carried), carried.Delegated(): // Karpenter ends the machine whatever we do
		return nil
	case isClosed(d.quit.done): // an undo, for example
		return d.quit.why
	}
	d.quitOn = &carried
	d.quitFor(reason)
	return reason
}

// uncordoned reports whether somebody has uncordoned the node during its drain, how many times
// they had done so before, and whether the machine goes away anyway. It goes by the intent on the
// node: a node that has lost its intent is not cordoned again.
func (c *Config) uncordoned(node *corev1.Node) (uncordoned bool, times int, goes bool) {
	if node.Spec.Unschedulable { // as most are, and a drain asks often
		return false, 0, false
	}
	i, _, err := cluster.ReadIntent(node)
	if err != nil || !i.UncordonedWithin(false) {
		return false, 0, false
	}
	now := time.Now()
	return true, i.Uncordoned, decision.MachineGoes(i.Current(now), now, c.Policy)
}
