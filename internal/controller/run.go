package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// ErrGiveWay is returned by Run when the pod of this program is the last on a node that is
// being drained: the next leader has to finish the drain.
var ErrGiveWay = errors.New("this pod is the last on its node")

// Resumed returns a channel that is closed when all drains of earlier leaders have begun again.
func (c *Controller) Resumed() <-chan struct{} {
	return c.resumed
}

// Run carries out the drains: first those that the nodes carry, then those that Handle
// begins. It returns the cause of ctx when ctx ends, or ErrGiveWay. Nothing is written after
// it has returned.
func (c *Controller) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.resume(ctx) })
	if c.OutOfServiceTaint {
		all.Go(func() { c.removeOutOfServiceTaints(ctx) })
	}
	if !c.DryRun {
		all.Go(func() { c.releaseUncordoned(ctx) })
		all.Go(func() { c.revertRestarted(ctx) })
		all.Go(func() { c.informNewNodes(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case nd := <-c.toRun:
			all.Go(func() {
				if c.carryOut(ctx, nd) {
					stop(ErrGiveWay)
				}
			})
		}
	}
}

// carryOut carries out a drain, and tells those who wait for its end. It reports whether the leader is to give way.
func (c *Controller) carryOut(ctx context.Context, nd *nodeDrain) (givesWay bool) {
	working := nd.working(ctx)
	pprof.SetGoroutineLabels(working) // a goroutine dump tells whose drain it is
	err := c.recoverPanic(func() error { return c.run(working, nd) })
	c.end(nd, err)
	givesWay = errors.Is(err, ErrGiveWay)
	if err != nil && !givesWay && ctx.Err() == nil {
		c.Log.Error("the drain of a node failed: it starts again when SQS delivers its message again",
			"error", err, "node", nd.ref.Name)
	}
	return givesWay
}

// working is ctx with the labels and the trace of the drain.
func (nd *nodeDrain) working(ctx context.Context) context.Context {
	return pprof.WithLabels(nd.span.In(ctx), pprof.Labels("node", nd.ref.Name, "instance", nd.ref.Instance))
}

// end says that the drain has ended, and with which error. One that has never started can be waited for, too; then the
// caller holds its lock.
func (c *Controller) end(nd *nodeDrain, err error) {
	c.remove(nd)
	nd.span.End(err)
	nd.err = err
	close(nd.done)
}

// resume begins the drains that the nodes carry from an earlier leader.
func (c *Controller) resume(ctx context.Context) {
	if c.DryRun {
		close(c.resumed)
		return
	}
	var unfinished []cluster.Unfinished
	err := c.retry(ctx, c.Log, "list the nodes to go on with", func(ctx context.Context) (err error) {
		unfinished, err = c.Cluster.Unfinished(ctx)
		if len(unfinished) > 0 && err != nil {
			c.Log.Error("the intent in the annotation of a node cannot be read", "error", err)
			err = nil
		}
		return err
	})
	if err != nil {
		return
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, u := range unfinished {
		if len(u.Claimed) == 0 {
			c.getOrCreate(u.Ref) // two of them may be of one instance, and look for each other
		}
	}
	for _, u := range unfinished {
		if len(u.Claimed) > 0 { // only EC2 can say whose the hooks are: no other drain waits for that
			asking.Go(func() {
				if c.identify(ctx, &u) == nil {
					_ = c.resumeDrain(ctx, u) // it ends with ctx alone
				}
			})
		} else if c.resumeDrain(ctx, u) != nil {
			return
		}
	}
	close(c.resumed)
}

// resumeDrain begins the drain that a node carries, unless a message has begun it. It
// returns the cause of ctx if that ends first.
func (c *Controller) resumeDrain(ctx context.Context, u cluster.Unfinished) error {
	nd := c.getOrCreate(u.Ref)
	if err := nd.lock(ctx); err != nil {
		return err
	}
	defer nd.unlock()
	if c.hasEnded(nd) || nd.started {
		return nil
	}
	return c.begin(ctx, nd, u.Intent)
}

// begin begins the drain that a node carries. The caller holds the lock.
func (c *Controller) begin(ctx context.Context, nd *nodeDrain, i intent.Intent) error {
	c.Log.Info("resuming the drain that an earlier leader began", "node", nd.ref.Name, "deadline", i.Deadline())
	nd.setIntent(i)
	nd.resumed = true
	span := trace.Resume(ctx, i.Traces(), "drain",
		"node", nd.ref.Name, "instance", nd.ref.Instance, "resumed", true)
	return c.start(ctx, nd, span)
}

// identify finds out which instance a node without a provider id is, if its intent claims
// hooks. A kubelet can write such claims; only EC2 knows the name of an instance. The error is
// the cause of ctx, or cluster.ErrNodeGone.
func (c *Controller) identify(ctx context.Context, u *cluster.Unfinished) error {
	log := c.Log.With("node", u.Ref.Name)
	for _, id := range slices.Compact(u.Claimed) {
		inst, _, err := c.ask(ctx, log, "look up the instance of a hook", id, answerKept)
		if err != nil {
			return err
		}
		if inst.PrivateDNSName != u.Ref.Name {
			log.Warn("the node claims a hook of another instance: the hook is ignored", "instance", id)
			continue
		}
		u.Ref.Instance = id
		err = c.retry(ctx, log, "read the intent", func(ctx context.Context) error {
			carried, err := c.Cluster.Record(ctx, u.Ref, func(i intent.Intent) intent.Intent { return i })
			u.Intent = *carried
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
