package nodedrain

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// revertRestarted reverts what was done to nodes whose machines have come back since: they were
// rebooted for a scheduled change, stopped and started, or have got another root volume. Nodes
// whose drains have not ended are watched by their drains too; see watchNode.
func (r upkeep) revertRestarted(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex
	looking := map[types.UID]bool{} // true: look once more
	r.Cluster.AtEachChange(ctx, nil, func() error {
		for _, ref := range r.Cluster.Restarted() {
			mu.Lock()
			_, busy := looking[ref.UID]
			looking[ref.UID] = busy
			mu.Unlock()
			if busy {
				continue
			}
			all.Go(func() { // each waits for EC2
				for again := true; again; {
					_ = logging.Recover(r.Log, func() error { return r.revertIfRestarted(ctx, ref) }) // it ends with ctx alone
					mu.Lock()
					if again = looking[ref.UID] && ctx.Err() == nil; again {
						looking[ref.UID] = false
					} else {
						delete(looking, ref.UID)
					}
					mu.Unlock()
				}
			})
		}
		return nil
	})
}

// revertIfRestarted does so for one node, after the end of its drain. The error is the cause of ctx.
func (r upkeep) revertIfRestarted(ctx context.Context, ref cluster.Ref) error {
	drained := false
	for nd := r.Get(ref); nd != nil; nd = r.Get(ref) {
		drained = true
		if err := nd.AwaitEnd(ctx); err != nil {
			return err
		}
	}
	node, there := r.Cluster.Look(ref)
	if !there || ref.Instance == "" || !cluster.Ready(node) {
		return nil
	}
	i, ok, err := cluster.ReadIntent(node)
	restarted := drained || i.BootID != cluster.BootID(node) || cluster.ReadySince(node).After(i.FinishedAt)
	if !ok || err != nil || !drained && !i.Finished() || len(i.Entries) == 0 || !restarted || !r.Cluster.Reverts(i) {
		return nil
	}
	log := r.Log.WithValues("node", ref.Name, "instance", ref.Instance)
	launched, err := r.Lookup.LaunchOf(ctx, log, ref.Instance)
	if err != nil {
		return err
	}
	return r.Revert(ctx, log, ref, decision.WhyRestarted, r.sinceRestart(ref, launched))
}

// sinceRestart forgets what the last restart of a node's machine has ended. launched is when
// EC2 has started the machine last; zero: not known. The hooks of an instance stand on one of its
// Nodes, and hold on all of them, but for those that have ended.
func (r *Registry) sinceRestart(
	ref cluster.Ref, launched time.Time, ended ...intent.Hook,
) func(intent.Intent) intent.Intent {
	now, bootID := time.Now(), ""
	if node, there := r.Cluster.Look(ref); there && cluster.Ready(node) {
		bootID = cluster.BootID(node)
	}
	elsewhere := r.drains.hooksOfOthers(ref)
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
