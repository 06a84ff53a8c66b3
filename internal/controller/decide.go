package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// decide finds out whose the instance of a task is, by answers of EC2 that are not older than maxAge, and what is to be
// done. It asks EC2, Auto Scaling and the cluster what [decision.Decide] has to know, and changes nothing.
// It tries until it knows, or ctx ends.
func (t *task) decide(ctx context.Context, maxAge time.Duration) error {
	c, n := t.c, t.n
	found, err := t.resolve(ctx, maxAge)
	if err != nil {
		return err
	}
	f := decision.Facts{
		Ownership: found.Ownership, State: found.State, Launched: found.Launched, NotSpot: found.NotSpot,
		CalledOff: c.cancelled.has(*n, t.id), Labels: found.Labels,
	}
	if c.Owns(n.Hook) && (found.Ownership == decision.Ours || found.Ownership == decision.Pending) {
		f.Limits = t.limits(ctx)
	}
	if n.Ended && slices.Contains([]decision.Ownership{decision.Ours, decision.Pending, decision.Departed}, f.Ownership) {
		c.cancelled.add(*n, t.id)
	}
	// Somebody may have stopped and started an instance that its group still waits for.
	restarted := f.EarlierLife(*n)
	returns := n.Hook.Returns() && found.Ownership == decision.Ours && decision.Late(*n, time.Now())
	if n.Kind == notice.ASGTerminate && c.Owns(n.Hook) && (restarted || returns) {
		err := cluster.Retry(ctx, t.log, "ask for the lifecycle hook", func(ctx context.Context) error {
			waits, ended, err := c.Hooks.Waits(ctx, hookOf(n, t.id))
			if waits && restarted {
				f.Launched = time.Time{}
			}
			f.HookEnded = ended && returns
			return err
		})
		if err != nil {
			return err
		}
	}
	f.Drained = t.isAsDrained(ctx, *found)
	f.Now = time.Now()
	t.found, t.Decision = *found, decision.Decide(*n, f, c.CurrentPolicy())
	return nil
}

// resolve is [lookup.Resolver.Resolve]. It tries until it knows, and until EC2 shows what EventBridge has told
// already, which may take a moment.
func (t *task) resolve(ctx context.Context, maxAge time.Duration) (found *lookup.Found, err error) {
	for begin := time.Now(); ; {
		err := cluster.Retry(ctx, t.log, "look up the instance", func(ctx context.Context) (err error) {
			found, err = t.c.resolver.Resolve(ctx, t.n, t.id, maxAge)
			return err
		})
		if err != nil {
			return nil, err
		}
		if !t.n.Gone || t.c.DryRun || found.State != decision.Running ||
			decision.Late(*t.n, time.Now()) || time.Since(begin) > decision.LateAfter {
			return found, nil
		}
		if err := retry.Sleep(ctx, askStateAgain); err != nil {
			return nil, err
		}
	}
}

// limitsTimeout is how long a node can wait for its cordon.
const limitsTimeout = 10 * time.Second

// limits reads the limits of the notice's hook. They are zero where that fails, or takes longer than a
// node can wait for its cordon.
func (t *task) limits(ctx context.Context) notice.HookLimits {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	limits, err := t.c.Hooks.Limits(ctx, hookOf(t.n, t.id))
	if err != nil {
		t.log.V(1).Info("the hook cannot be read", "error", err)
	}
	return limits
}

// isAsDrained reports whether all Nodes of the instance are as a drain for its end has left
// them: cordoned, and without a pod that would have to leave. The instance has not been
// started since. It is false if that cannot be found out soon: one more drain does no harm.
func (t *task) isAsDrained(ctx context.Context, f lookup.Found) bool {
	c := t.c
	if !decision.CanFollow(*t.n) || f.Ownership != decision.Ours || c.CordonOnly ||
		t.n.Kind == notice.ASGTerminate && c.CompletionDelay > 0 {
		return false
	}
	for _, ref := range f.Refs {
		node, there := c.Cluster.Look(ref)
		if !there || c.Registry.Get(ref) != nil || !leftDrained(node, f) || c.hasToBeExcluded(node, *t.n) {
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
	defer cancel()
	for _, ref := range f.Refs {
		node, err := c.Cluster.Read(ctx, ref) // somebody may have uncordoned it a moment ago
		if err != nil || !leftDrained(node, f) {
			return false
		}
		pods, err := c.Drainer.Remaining(ctx, ref.Name, c.CurrentPolicy().Rules)
		if err != nil || len(pods) > 0 {
			return false
		}
	}
	return true
}

// hasToBeExcluded reports whether load balancers are to be waited for: a notice excludes a node from them that what it
// was drained for has not, or the pod on the node has drained it, which does not wait for them.
func (c *Controller) hasToBeExcluded(node *corev1.Node, n notice.Notice) bool {
	i, _, _ := cluster.ReadIntent(node)
	noted := i.Noting(decision.Decision{}.Entry(n, time.Now()))
	waitedFor := i.Queue != intent.OfMetadata && (cluster.Excluded(node) || c.Excludes(i))
	return n.Kind == notice.ASGTerminate && c.Owns(n.Hook) && c.Excludes(noted) && !waitedFor
}

// leftDrained reports whether a node carries the intent of a drain that ended well, in
// this life of its instance, and is cordoned still. Where EC2 does not say when that began, another boot id shows
// that the machine has been restarted since.
func leftDrained(node *corev1.Node, f lookup.Found) bool {
	i, ok, err := cluster.ReadIntent(node)
	booted := i.BootID != "" && i.BootID != cluster.BootID(node) && cluster.Ready(node)
	return ok && err == nil && !booted && node.Spec.Unschedulable && i.SinceLaunch(f.Launched).DrainedForEnd()
}

// cancelledChanges remembers when scheduled changes were cancelled, for announcements that
// SQS delivers after that. It is bounded, because this order is rare: for each instance by itself,
// because a pod on a node can report ever new ends of changes.
type cancelledChanges struct {
	mu    *sync.Mutex
	ended *utilcache.LRUExpireCache // of instances: their changes as []cancelled, which nobody changes
}

type cancelled struct {
	change string
	at     time.Time
}

func newCancelledChanges() cancelledChanges {
	const instances = 4096
	return cancelledChanges{new(sync.Mutex), utilcache.NewLRUExpireCache(instances)}
}

func (c cancelledChanges) add(n notice.Notice, id string) {
	const (
		ttl  = time.Hour // SQS does not reorder messages by more
		most = 16
	)
	c.mu.Lock()
	defer c.mu.Unlock()
	all, at := slices.Clone(c.of(id)), n.Time
	if k := slices.IndexFunc(all, func(e cancelled) bool { return e.change == n.Change }); k >= 0 {
		if all[k].at.After(at) {
			at = all[k].at
		}
		all = slices.Delete(all, k, k+1)
	}
	all = append(all, cancelled{n.Change, at})
	c.ended.Add(id, all[max(0, len(all)-most):], ttl)
}

func (c cancelledChanges) of(id string) []cancelled {
	all, _ := c.ended.Get(id)
	known, _ := all.([]cancelled)
	return known
}

// has reports whether the change was cancelled for the instance after this announcement.
func (c cancelledChanges) has(n notice.Notice, id string) bool {
	return !n.Ended && c.hasAnnounced(id, n.Kind, n.Change, n.Time)
}

// hasEntry is has for a notice that a node carries.
func (c cancelledChanges) hasEntry(id string, e intent.Entry) bool {
	return c.hasAnnounced(id, e.Kind, e.Change, e.Time)
}

func (c cancelledChanges) hasAnnounced(id string, kind notice.Kind, change string, at time.Time) bool {
	return kind == notice.ScheduledChange && slices.ContainsFunc(c.of(id), func(ended cancelled) bool {
		return ended.change == change && !at.After(ended.at)
	})
}
