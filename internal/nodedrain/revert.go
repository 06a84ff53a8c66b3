package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Revert removes notices from the intent of a node. If none is left, or only such as can wait for a later time, it ends
// the drain of the node, and reverts what was done.
func (r *Registry) Revert(
	ctx context.Context, log logr.Logger, ref cluster.Ref, why decision.Why, change cluster.Change,
) error {
	if r.isDelegated(ref) {
		logging.Warn(log, "the node is not uncordoned: Karpenter replaces it, which cannot be taken back",
			"node", ref.Name, "why", why)
		r.Observer.Stepped(report.Step{Node: ref, Kind: report.KeepDelegated, Why: why})
		return nil
	}
	var undone cluster.Undoing
	putOff := func(i intent.Intent) intent.Intent { return r.putOff(i, change(i), time.Now().UTC()) }
	err := r.Cluster.RetryWrite(ctx, log, ref, "uncordon the node", func(ctx context.Context) (err error) {
		undone, err = r.revertLocked(ctx, ref, putOff)
		if undone != cluster.NothingUndone || err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			r.Observer.Stepped(report.Step{Node: ref, Kind: stepOf(undone), Why: why, Err: err})
		}
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	if undone != cluster.NothingUndone && err == nil { // else the last try has been cut off
		says := "uncordoned"
		if undone == cluster.Undone {
			says = "the drain is called off: the handler had not cordoned the node"
		}
		log.Info(says, "node", ref.Name, "why", why)
	}
	return err
}

// stepOf is how it is told that a drain was undone, or could not be.
func stepOf(u cluster.Undoing) report.StepKind {
	if u == cluster.Undone {
		return report.Undo
	}
	return report.Uncordon
}

// putOff is what is left of an intent when notices are taken back. What the rules let begin later only is held back
// again: otherwise the node would stay empty until then. A drained machine that terminates stays cordoned.
func (c *Config) putOff(before, left intent.Intent, now time.Time) intent.Intent {
	policy := c.CurrentPolicy()
	if at := before.CordonedAt; !at.IsZero() {
		if opened, _ := policy.Opens(left, at); !opened.After(at) { // it has begun in its own time
			return left
		}
	}
	opens, _ := policy.Opens(left, now)
	terminates := before.Finished() && left.Has(notice.ASGTerminate) // other hooks may still wait
	if terminates || before.HeldBack || len(left.Entries) == 0 || len(left.Entries) == len(before.Entries) ||
		!opens.After(now) || !decision.CanWait(left, now, c.Policy) {
		return left
	}
	return left.PutOff(now)
}

// revertLocked does so while it holds the lock of the node, so that a notice that is being
// recorded at this moment is heeded, and that nobody begins a drain for what is being reverted.
func (r *Registry) revertLocked(
	ctx context.Context, ref cluster.Ref, change cluster.Change,
) (undone cluster.Undoing, err error) {
	var held *Drain
	defer func() { // also if change panics
		if held != nil {
			held.unlock()
		}
	}()
	for {
		if held, err = r.locked(ctx, ref); err != nil {
			return undone, err
		}
		carried := held.carried()
		goesOn := !isClosed(held.quit.done) && !ends(carried, change(carried))
		if !held.started || len(carried.Entries) == 0 || goesOn {
			return held.undo(ctx, ref, change)
		}
		d := held
		held = nil
		if held, err = d.handOver(ctx); err != nil {
			return undone, err
		}
		if held != nil {
			return held.undo(ctx, ref, change)
		}
	}
}

// handOver ends a drain. It returns the one that takes its place, which has not started, and is locked; nil: the drain
// had ended, or was being called off, which may begin it again. The caller holds the lock of the drain, and has lost it
// by that. The error is that of the drain, or the cause of ctx.
func (d *Drain) handOver(ctx context.Context) (next *Drain, err error) {
	if next = d.r.reserveSuccessor(d); next == nil {
		d.unlock() // for a notice that cannot wait until it is called off, see awaitCalledOff
		return nil, d.AwaitEnd(ctx)
	}
	d.quitFor(errUndone)
	defer d.unlock()
	return d.awaitSuccession(ctx, next)
}

// supersede ends a drain at once that is being called off, if that cannot be written: a notice waits for it. It returns
// the drain that takes its place, which has not started, is locked, and goes by what the node would carry. It returns
// nil if another notice has done so, or if this one is called off itself.
func (d *Drain) supersede(n *News) (next *Drain) {
	if d.callsOff == nil {
		return nil
	}
	left := d.callsOff(d.carried())
	if left.Over(*n.Entry) {
		return nil
	}
	if len(left.Entries) == 0 {
		left.FinishedAt = time.Now().UTC()
	}
	d.r.mu.Lock()
	next = d.r.successorOf(d)
	d.r.mu.Unlock()
	if next != nil {
		next.why = n.Why
		next.supersedes.Store(true)
		next.unrecorded.Store(true)
		next.setIntent(left)
		d.superseded.close()
		d.tell()
	}
	return next
}

// awaitSuccession waits for the end of a drain, and returns the one that takes its place, which is locked; nil: there
// is none. The error is the cause of ctx.
func (d *Drain) awaitSuccession(ctx context.Context, next *Drain) (*Drain, error) {
	err := d.AwaitEnd(ctx)
	if err != nil && next != nil {
		d.r.end(next, nil)
		next.unlock()
		next = nil
	}
	return next, err
}

// undo changes what the node carries, and reverts what was done if nothing is left. The caller holds the lock.
func (d *Drain) undo(ctx context.Context, ref cluster.Ref, change cluster.Change) (undone cluster.Undoing, err error) {
	if err = d.recordAtLast(ctx); err != nil { // the node lacks notices that stay
		return undone, err
	}
	var kept intent.Intent
	undone, err = d.r.Cluster.Undo(ctx, ref, func(i intent.Intent) intent.Intent {
		kept = change(i)
		return kept
	})
	if err == nil {
		d.r.writes.note(ref, nil, time.Time{}, nil)
	}
	switch left := err == nil && len(kept.Entries) > 0; {
	case d.started && err == nil && undone == cluster.NothingUndone:
		if d.setIntent(kept); d.r.hasEnded(d) {
			return undone, d.r.goOn(ctx, d.r.Log, ref)
		}
	case d.started:
	case left && undone != cluster.NothingUndone:
		d.setIntent(kept)
		return undone, d.r.start(ctx, d)
	case left && !kept.Finished() && d.r.Cluster.Serves(kept):
		// Its drain has ended for nothing: another handler has recorded a notice meanwhile, which the lock of
		// the node does not prevent.
		return undone, d.r.begin(ctx, d, kept)
	default:
		d.r.end(d, nil)
	}
	return undone, err
}

// ends reports whether a drain ends by a change of what its node carries.
func ends(carried, left intent.Intent) bool {
	return len(left.Entries) == 0 || left.HeldBack && !carried.HeldBack
}

// callOff reverts a drain that has not ended, for the reason that it was quit for.
func (d *Drain) callOff(ctx context.Context, reason error) error {
	why := decision.WhyEarlierLife
	switch {
	case errors.Is(reason, errUncordoned):
		why = decision.WhyUncordoned
	case isIgnored(reason):
		why = decision.WhyIgnoredByRule
	}
	logging.Warn(d.log, "the drain is called off", "why", why, "error", reason)
	undoing, stop := d.whileNot(ctx, errSuperseded, func() bool { return isClosed(d.superseded.done) })
	defer stop()
	var kept intent.Intent
	var undone cluster.Undoing
	err := d.r.Cluster.RetryWrite(undoing, d.log, d.ref, "revert the drain", func(ctx context.Context) (err error) {
		began := time.Now()
		defer func() {
			if undoing.Err() == nil {
				d.r.writes.note(d.ref, nil, began, err)
			}
		}()
		undone, err = d.r.Cluster.Undo(ctx, d.ref, func(i intent.Intent) intent.Intent {
			kept = d.callsOff(i)
			return kept
		})
		return err
	})
	switch {
	case errors.Is(err, errSuperseded):
		logging.Warn(d.log, "the drain could not be called off", "error", err)
		return nil
	case err != nil && !errors.Is(err, cluster.ErrNodeGone):
		return err
	case err == nil && len(kept.Entries) > 0:
		d.r.remove(d)
		return d.r.goOn(ctx, d.log, d.ref)
	}
	step := stepOf(undone)
	if errors.Is(reason, errUncordoned) {
		step = report.CallOff
	}
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: step, Why: why})
	return nil
}

// goOn begins the drain of a node again whose drain has ended, and that carries a notice.
func (r *Registry) goOn(ctx context.Context, log logr.Logger, ref cluster.Ref) error {
	err := r.Cluster.RetryWrite(ctx, log, ref, "go on with the drain", func(ctx context.Context) error {
		_, err := r.revertLocked(ctx, ref, unchanged)
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	return err
}

// revertUncordoned reverts what is left of a drain on a node that somebody has uncordoned after it. A cordon that comes
// later is theirs.
func (r *Registry) revertUncordoned(ctx context.Context, ref cluster.Ref) {
	_ = r.Cluster.RetryWrite(ctx, r.Log, ref, "revert what is left of a drain", func(ctx context.Context) error {
		// The read itself drops the claim that the cordon is ours.
		_, err := r.Cluster.Undo(ctx, ref, unchanged)
		return err
	}) // the node is gone, or ctx has ended
}

// revertIfRestarted reverts what was done to a node whose machine has come back since: it was rebooted for a scheduled
// change, stopped and started, or has got another root volume. It waits for the end of its drain, which watches the
// node too; see watchNode. What ctx cuts off is left to the next term, which may be in this process.
func (r *Registry) revertIfRestarted(ctx context.Context, ref cluster.Ref) {
	defer func() {
		if ctx.Err() != nil {
			r.Cluster.NoteRestart(ref)
		}
	}()
	drained := false
	for nd := r.Get(ref); nd != nil; nd = r.Get(ref) {
		drained = true
		if nd.AwaitEnd(ctx) != nil {
			return
		}
	}
	node, there := r.Cluster.Look(ref)
	if !there || !cluster.Ready(node) {
		return
	}
	i, ok, err := cluster.ReadIntent(node)
	// Since the cordon, and not the end: another leader may have ended the drain after that, and died.
	restarted := drained || i.BootID != cluster.BootID(node) || cluster.ReadySince(node).After(i.CordonedAt)
	if !ok || err != nil || !drained && !i.Finished() || len(i.Entries) == 0 || !restarted || !r.Cluster.Reverts(i) {
		return
	}
	if ref.Instance == "" {
		if is, _ := r.isInstance(ctx, r.Log.WithValues("node", ref.Name), ref, i.Instance); !is {
			return
		}
		ref.Instance = i.Instance
	}
	log := r.Log.WithValues("instance", ref.Instance)
	launched, err := r.Lookup.LaunchOf(ctx, log, ref.Instance)
	if err == nil {
		_ = r.Revert(ctx, log, ref, decision.WhyRestarted, r.sinceRestart(ref, launched)) // it ends with ctx alone
	}
}

// sinceRestart forgets what the last restart of a node's machine has ended. launched is when
// EC2 has started the machine last; zero: not known. The hooks of an instance stand on one of its
// Nodes, and hold on all of them, but for those that have ended.
func (r *Registry) sinceRestart(ref cluster.Ref, launched time.Time, ended ...intent.Hook) cluster.Change {
	now, bootID := time.Now(), ""
	if node, there := r.Cluster.Look(ref); there && cluster.Ready(node) {
		bootID = cluster.BootID(node)
	}
	var elsewhere []intent.Hook
	for _, other := range r.otherDrains(ref) {
		elsewhere = append(elsewhere, other.carried().Hooks...)
	}
	return func(i intent.Intent) intent.Intent {
		own := slices.DeleteFunc(slices.Clone(i.Hooks), func(h intent.Hook) bool {
			return slices.Contains(ended, h.Action())
		})
		i.Hooks = slices.Concat(own, elsewhere)
		i = i.SinceLaunch(launched).SinceBoot(bootID, !launched.IsZero(), now)
		i.Hooks = own
		return i
	}
}

// forgetEarlierLife forgets notices about an earlier life of the instance. An error means
// that the drain ends.
func (d *Drain) forgetEarlierLife(ctx context.Context) error {
	ref := d.r.Cluster.Identify(d.ref)
	if ref.Instance == "" {
		return nil
	}
	launched, err := d.r.Lookup.LaunchOf(ctx, d.log, ref.Instance)
	if err != nil {
		return err
	}
	return d.forgetBefore(ctx, ref, launched)
}

// forgetWhatPassed does so for a drain of an earlier leader, as nobody knows how long there was
// no leader, and for one that was held back. Without a quick answer of EC2 the drain goes on as it was.
func (d *Drain) forgetWhatPassed(ctx context.Context) error {
	carried, now := d.carried(), time.Now()
	mayBeOver := func(e intent.Entry) bool { // an instance that stops or hibernates can be started at once
		begun := e.Kind == notice.StateChange || !e.Deadline.IsZero() && !e.Deadline.After(now)
		return begun || now.Sub(e.Time) > decision.LateAfter
	}
	ref := d.r.Cluster.Identify(d.ref)
	if ref.Instance == "" || !slices.ContainsFunc(carried.Entries, mayBeOver) {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
	defer cancel()
	launched, err := d.r.Lookup.LaunchOf(asking, d.log, ref.Instance)
	if err != nil {
		return context.Cause(ctx)
	}
	if err = d.forgetBefore(asking, ref, launched); asking.Err() != nil && !isCalledOff(err) {
		return d.forgetUnwritten(ctx, d.r.sinceRestart(ref, launched))
	}
	return err
}

// forgetUnwritten has a drain that has begun go by what is left of its intent, though the Node cannot be written: void
// notices would take the pods' time. The error is the cause of ctx.
func (d *Drain) forgetUnwritten(ctx context.Context, since cluster.Change) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	carried := d.carried()
	if left := since(carried); !carried.HeldBack && len(left.Entries) > 0 && len(left.Entries) < len(carried.Entries) {
		d.unrecorded.Store(true)
		d.setIntent(left)
		d.goBeside(func() { _ = d.rewrite(ctx, unchanged) }) // it ends with ctx alone
	}
	return context.Cause(ctx)
}

// ForgetEarlierLife has the drain of a node, if there is one, forget notices about an earlier life of the instance. A
// drain that has no other notices ends.
func (r *Registry) ForgetEarlierLife(ctx context.Context, ref cluster.Ref) error {
	nd := r.Get(ref)
	if nd == nil {
		return nil
	}
	r.Cluster.Identify(ref) // a message knows the instance, and the drain might not
	if err := nd.forgetEarlierLife(ctx); err != nil && !errors.Is(err, errRestarted) {
		return err
	}
	return nil
}

// forgetBefore forgets notices that are older than a launch, and those that the last restart has
// ended. ref is the Node with its instance. An error means that the drain ends.
func (d *Drain) forgetBefore(ctx context.Context, ref cluster.Ref, launched time.Time) error {
	for {
		carried := d.carried()
		since := d.r.sinceRestart(ref, launched, d.r.endedHooks(ctx, ref, carried)...)
		switch left := since(carried); {
		case len(left.Entries) == len(carried.Entries) && left.BootID == carried.BootID:
			return nil
		case len(left.Entries) == 0:
			err := d.quitIf(ctx, errRestarted, func(i intent.Intent) bool { return len(since(i).Entries) == 0 })
			if err != nil || carried.Delegated() {
				return err
			}
			continue // a notice has joined meanwhile
		case len(left.Entries) < len(carried.Entries):
			d.log.Info("the machine was restarted: older notices are void")
		}
		if err := d.rewrite(ctx, unlessNothingIsLeft(since)); err != nil {
			return err
		}
	}
}

// unchanged is no change: who writes it reads the intent, and drops what is no longer true.
func unchanged(i intent.Intent) intent.Intent { return i }

// unlessNothingIsLeft is a change of an intent that does nothing where no notice would be left: a drain is called off
// then, which is no change of its intent.
func unlessNothingIsLeft(change cluster.Change) cluster.Change {
	return func(i intent.Intent) intent.Intent {
		if left := change(i); len(left.Entries) > 0 {
			return left
		}
		return i
	}
}

// endedHooks are those of an intent's hooks for which Auto Scaling does not wait any more. It is asked if the machine
// has another boot id and was to come back after a hook: a leader may have completed the hook, and ended before it
// could write that. Without an answer a hook counts as open.
func (c *Config) endedHooks(ctx context.Context, ref cluster.Ref, i intent.Intent) (ended []intent.Hook) {
	node, there := c.Cluster.Look(ref)
	returns := slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
		return e.Kind == notice.ASGTerminate && e.Returns
	})
	if !there || !returns || i.BootID == "" || cluster.BootID(node) == "" || i.BootID == cluster.BootID(node) {
		return nil
	}
	for _, h := range i.Hooks {
		if _, over, err := c.Hooks.Waits(ctx, h); err == nil && over {
			ended = append(ended, h.Action())
		}
	}
	return ended
}

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
	asking := cluster.PerNode{Log: d.log} // of one node
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
			if err := d.forgetSoon(ctx, &asking); err != nil {
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
		asking.Wait()
	}
}

// forgetSoon is forgetEarlierLife. Without a quick answer of EC2 it returns, and asking goes on: who uncordons the node
// meanwhile is heeded. The error is the cause of ctx, which has ended if the drain ends by that.
func (d *Drain) forgetSoon(ctx context.Context, asking *cluster.PerNode) error {
	quickly, answered := context.WithTimeout(ctx, lookup.DoubtTimeout)
	defer answered()
	asking.Do("", func() { // where it goes on already it asks once more, and tells nobody here when
		defer answered()
		if ctx.Err() == nil {
			_ = d.forgetEarlierLife(ctx) // with an error the drain ends, and ctx
		}
	})
	<-quickly.Done()
	return context.Cause(ctx)
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
	on, goes := d.r.uncordoned(node)
	switch {
	case on == nil, on.Uncordoned > 1, on.CordonedAt.Before(d.carried().CordonedAt): // it was an earlier cordon
		return nil
	case goes: // the watch may be behind: the node is read, and cordoned by that; see cluster.Cluster.Record
		return d.rewrite(ctx, unchanged)
	}
	return d.quitIf(ctx, errUncordoned, func(carried intent.Intent) bool {
		now := time.Now()
		return carried.Uncordoned == on.Uncordoned && !decision.MachineGoes(carried.Current(now), now, d.r.Policy)
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
	now := time.Now()
	d.callsOff = func(i intent.Intent) intent.Intent {
		if isIgnored(reason) {
			return i.Dismiss(carried.Asks)
		}
		return i.CalledOff(carried.Entries, now)
	}
	d.quitFor(reason)
	return reason
}

// isIgnored reports whether a drain is called off because nobody asks for it any more: if its notices come again, it is
// decided about them again.
func isIgnored(reason error) bool {
	return errors.Is(reason, errIgnored) || errors.Is(reason, errLeftAlone)
}

// uncordoned returns what the node carries if somebody has uncordoned it during its drain, else nil, and whether the
// machine goes away anyway. A node that has lost its intent is not cordoned again.
func (c *Config) uncordoned(node *corev1.Node) (on *intent.Intent, goes bool) {
	if node.Spec.Unschedulable { // as most are, and a drain asks often
		return nil, false
	}
	i, _, err := cluster.ReadIntent(node)
	if err != nil || !i.UncordonedWithin(false) {
		return nil, false
	}
	now := time.Now()
	return &i, decision.MachineGoes(i.Current(now), now, c.Policy)
}
