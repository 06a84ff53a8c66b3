package nodedrain

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// ErrGiveWay is returned by Run when the pod of this program is the last on a node that is
// being drained: the next leader has to finish the drain.
var ErrGiveWay = errors.New("this pod is the last on its node")

// Resumed returns a channel that is closed when all drains of earlier leaders have begun again.
func (r *Registry) Resumed() <-chan struct{} { return r.resumed }

// Run carries out the drains: first those that the nodes carry, then those that are recorded. It returns the cause of
// ctx when ctx ends, or ErrGiveWay. Nothing is written after it has returned.
func (r *Registry) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	u := upkeep{r}
	all.Go(func() { u.resume(ctx) })
	if !r.DryRun {
		all.Go(func() { u.forEach(ctx, r.Cluster.Uncordoned, u.revertUncordoned) })
		all.Go(func() { u.forEach(ctx, r.Cluster.Restarted, u.revertIfRestarted) })
		all.Go(func() { u.forEach(ctx, r.Cluster.NodesToInform, u.informNode) })
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case nd := <-r.toRun:
			all.Go(func() {
				switch err := r.carryOut(ctx, nd); {
				case errors.Is(err, ErrGiveWay):
					stop(ErrGiveWay)
				case err != nil && ctx.Err() == nil:
					u.beginAgain(ctx, nd, err)
				}
			})
		}
	}
}

// An upkeep does what no message asks for: it resumes the drains of an earlier leader, and looks after nodes whose
// drains have ended, or whose machines have got another Node.
type upkeep struct{ *Registry }

// forEach works on the nodes that find returns now and after each change of a node, until ctx ends: a node that cannot
// be written holds up no other.
func (r upkeep) forEach(ctx context.Context, find func() []cluster.Ref, work func(context.Context, cluster.Ref)) {
	nodes := cluster.PerNode{Log: r.Log}
	defer nodes.Wait()
	r.Cluster.AtEachChange(ctx, nil, func() {
		for _, ref := range find() {
			nodes.Do(ref.UID, func() { work(ctx, ref) })
		}
	})
}

// carryOut carries out a drain, and tells those who wait for its end.
func (r *Registry) carryOut(ctx context.Context, nd *Drain) error {
	working := pprof.WithLabels(ctx, pprof.Labels("node", nd.ref.Name, "instance", nd.ref.Instance))
	pprof.SetGoroutineLabels(working) // a goroutine dump tells whose drain it is
	err := logging.Recover(r.Log, func() error { return nd.run(working) })
	r.end(nd, err)
	return err
}

// failedPause is how long after a failure a drain is begun again.
const failedPause = 30 * time.Second

// beginAgain begins the drain of a node again that has failed by a mistake of this program: its message may have been
// deleted, as the node carries the intent.
func (r upkeep) beginAgain(ctx context.Context, nd *Drain, failure error) {
	r.Log.Error(failure, "the drain of a node failed: it begins again", "node", nd.ref.Name, "in", failedPause.String())
	if retry.Sleep(ctx, failedPause) != nil {
		return
	}
	i, carries := r.intentOn(nd.ref)
	if !carries || !r.Cluster.Serves(i) {
		return
	}
	i = i.Current(time.Now())
	if last := nd.carried(); len(i.Hooks) == 0 {
		i.Hooks = last.Hooks // a Node without a provider id proves none
	}
	_ = r.resumeDrain(ctx, cluster.Unfinished{Ref: nd.ref, Intent: i}) // it ends with ctx alone
}

// end says that the drain has ended, and with which error. One that has never started can be waited for, too; then the
// caller holds its lock.
func (r *Registry) end(nd *Drain, err error) {
	r.remove(nd)
	nd.err = err
	close(nd.done)
}

// resume begins the drains that the nodes carry from an earlier leader.
func (r upkeep) resume(ctx context.Context) {
	if r.DryRun {
		close(r.resumed)
		return
	}
	var unfinished []cluster.Unfinished
	err := cluster.Retry(ctx, r.Log, "list the nodes to go on with", func(ctx context.Context) (err error) {
		var unreadable error
		unfinished, unreadable, err = r.Cluster.Unfinished(ctx)
		if unreadable != nil { // a kubelet can write anything there: the next notice replaces it
			r.Log.Error(unreadable, "the intent in the annotation of a node cannot be read")
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
			r.getOrCreate(u.Ref) // two of them may be of one instance, and look for each other
		}
	}
	for _, u := range unfinished {
		if len(u.Claimed) > 0 { // only EC2 can say whose notices and hooks they are: no other drain waits for that
			asking.Go(func() {
				if r.identify(ctx, &u) == nil {
					_ = r.resumeDrain(ctx, u) // it ends with ctx alone
				}
			})
		} else if r.resumeDrain(ctx, u) != nil {
			return
		}
	}
	close(r.resumed)
}

// resumeDrain begins the drain that a node carries, unless a message has begun it. It
// returns the cause of ctx if that ends first.
func (r upkeep) resumeDrain(ctx context.Context, u cluster.Unfinished) error {
	if u.Intent.Finished() { // while EC2 was asked for its instance
		return nil
	}
	nd := r.getOrCreate(u.Ref)
	if err := nd.lock(ctx); err != nil {
		return err
	}
	defer nd.unlock()
	if r.hasEnded(nd) || nd.started {
		return nil
	}
	return r.begin(ctx, nd, u.Intent)
}

// begin begins the drain that a node carries. The caller holds the lock.
func (r *Registry) begin(ctx context.Context, nd *Drain, i intent.Intent) error {
	nd.log.Info("going on with the drain that the node carries", "deadline", i.Deadline())
	nd.setIntent(i)
	nd.resumed = true
	return r.start(ctx, nd)
}

// identify finds out which instance a node without a provider id is, if its intent claims one. A kubelet can write such
// claims; only EC2 knows the name of an instance. Without a quick answer the drain of a node that claims no hooks goes
// on without its instance. The error is the cause of ctx, or cluster.ErrNodeGone.
func (r upkeep) identify(ctx context.Context, u *cluster.Unfinished) error {
	log, asking := r.Log.WithValues("node", u.Ref.Name), ctx
	if !u.ClaimsHooks {
		quickly, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
		defer cancel()
		asking = quickly
	}
	for _, id := range slices.Compact(u.Claimed) {
		inst, _, err := r.Lookup.Ask(asking, log, "look up the instance that a node claims", id, lookup.Kept)
		if err != nil {
			return context.Cause(ctx)
		}
		if inst.PrivateDNSName != u.Ref.Name {
			logging.Warn(log, "the node claims another instance, or a hook of one: that is ignored", "instance", id)
			continue
		}
		u.Ref.Instance = id
		err = cluster.Retry(ctx, log, "read the intent", func(ctx context.Context) error {
			carried, err := r.Cluster.Record(ctx, u.Ref, func(i intent.Intent) intent.Intent { return i })
			u.Intent = *carried
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
