package controller

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A decider asks EC2, Auto Scaling and the cluster what [decision.Decide] has to know, and changes neither. Its methods
// may be called concurrently.
type decider struct {
	Config

	registry  *nodedrain.Registry
	resolver  *lookup.Resolver
	cancelled cancelledChanges
}

// decide finds out whose the instance of a task is, by answers of EC2 that are not older than maxAge, and what is to be
// done. It tries until it knows, or ctx ends.
func (d *decider) decide(ctx context.Context, t *task, maxAge time.Duration) error {
	log, n, id := t.log, t.n, t.id
	found, err := d.resolve(ctx, log, n, id, maxAge)
	if err != nil {
		return err
	}
	f := decision.Facts{
		Ownership: found.Ownership, State: found.State, Launched: found.Launched, NotSpot: found.NotSpot,
		CalledOff: d.cancelled.has(*n, id), Labels: found.Labels,
	}
	if d.Owns(n.Hook) && (found.Ownership == decision.Ours || found.Ownership == decision.Pending) {
		f.Limits = d.limits(ctx, log, hookOf(n, id))
	}
	if n.Ended {
		d.cancelled.add(*n, id)
	}
	// Somebody may have stopped and started an instance that its group still waits for.
	restarted := f.EarlierLife(*n)
	returns := n.Hook.Returns() && found.Ownership == decision.Ours && decision.Late(*n, time.Now())
	if n.Kind == notice.ASGTerminate && d.Owns(n.Hook) && (restarted || returns) {
		err := cluster.Retry(ctx, log, "ask for the lifecycle hook", func(ctx context.Context) error {
			waits, ended, err := d.Hooks.Waits(ctx, hookOf(n, id))
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
	f.Drained = d.isAsDrained(ctx, *n, *found)
	f.Now = time.Now()
	t.found, t.Decision = *found, decision.Decide(*n, f, d.CurrentPolicy())
	return nil
}

// resolve is [lookup.Resolver.Resolve]. It tries until it knows, and until EC2 shows what EventBridge has told
// already, which may take a moment.
func (d *decider) resolve(
	ctx context.Context, log logr.Logger, n *notice.Notice, id string, maxAge time.Duration,
) (found *lookup.Found, err error) {
	for begin := time.Now(); ; {
		err := cluster.Retry(ctx, log, "look up the instance", func(ctx context.Context) (err error) {
			found, err = d.resolver.Resolve(ctx, n, id, maxAge)
			return err
		})
		if err != nil {
			return nil, err
		}
		if !n.Gone || d.DryRun || found.State != decision.Running ||
			decision.Late(*n, time.Now()) || time.Since(begin) > decision.LateAfter {
			return found, nil
		}
		if err := pause(ctx, nil, time.Now().Add(askStateAgain)); err != nil {
			return nil, err
		}
	}
}

// limitsTimeout is how long a node can wait for its cordon.
const limitsTimeout = 10 * time.Second

// limits reads the limits of a hook. They are zero where that fails, or takes longer than a
// node can wait for its cordon.
func (d *decider) limits(ctx context.Context, log logr.Logger, hook intent.Hook) notice.HookLimits {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	limits, err := d.Hooks.Limits(ctx, hook)
	if err != nil {
		log.V(1).Info("the hook cannot be read", "why", err.Error())
	}
	return limits
}

// isAsDrained reports whether all Nodes of the instance are as a drain for its end has left
// them: cordoned, and without a pod that would have to leave. The instance has not been
// started since. It is false if that cannot be found out soon: one more drain does no harm.
func (d *decider) isAsDrained(ctx context.Context, n notice.Notice, f lookup.Found) bool {
	if !decision.CanFollow(n) || f.Ownership != decision.Ours || d.CordonOnly ||
		n.Kind == notice.ASGTerminate && d.CompletionDelay > 0 {
		return false
	}
	for _, ref := range f.Refs {
		node, there := d.Cluster.Look(ref)
		if !there || d.registry.Get(ref) != nil || !leftDrained(node, f) || d.hasToBeExcluded(node, n) {
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
	defer cancel()
	for _, ref := range f.Refs {
		node, err := d.Cluster.Read(ctx, ref) // somebody may have uncordoned it a moment ago
		if err != nil || !leftDrained(node, f) {
			return false
		}
		pods, err := d.Drainer.Remaining(ctx, ref.Name, d.CurrentPolicy().Rules)
		if err != nil || len(pods) > 0 {
			return false
		}
	}
	return true
}

// hasToBeExcluded reports whether load balancers are to be waited for: a notice excludes a node from them that what it
// was drained for has not, or the pod on the node has drained it, which does not wait for them.
func (d *decider) hasToBeExcluded(node *corev1.Node, n notice.Notice) bool {
	i, _, _ := cluster.ReadIntent(node)
	noted := i.Noting(decision.Decision{}.Entry(n, time.Now()))
	waitedFor := i.Queue != intent.OfMetadata && (cluster.Excluded(node) || d.Excludes(i))
	return n.Kind == notice.ASGTerminate && d.Owns(n.Hook) && d.Excludes(noted) && !waitedFor
}

// leftDrained reports whether a node carries the intent of a drain that ended well, in
// this life of its instance, and is cordoned still. Where EC2 does not say when that began, another boot id shows
// that the machine has been restarted since.
func leftDrained(node *corev1.Node, f lookup.Found) bool {
	i, ok, err := cluster.ReadIntent(node)
	booted := i.BootID != "" && i.BootID != cluster.BootID(node) && cluster.Ready(node)
	return ok && err == nil && !booted && node.Spec.Unschedulable && i.SinceLaunch(f.Launched).DrainedForEnd()
}
