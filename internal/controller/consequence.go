package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// isAsDrained reports whether all Nodes of the instance are as a drain for its end has left
// them: cordoned, and without a pod that would have to leave. The instance has not been
// started since. It is false if that cannot be found out soon: one more drain does no harm.
func (c *Controller) isAsDrained(ctx context.Context, n notice.Notice, f lookup.Found) bool {
	if !decision.CanFollow(n) || f.Ownership != decision.Ours || c.CordonOnly ||
		n.Kind == notice.ASGTerminate && c.CompletionDelay > 0 {
		return false
	}
	for _, ref := range f.Refs {
		node, there := c.Cluster.Look(ref)
		if !there || c.Registry.Get(ref) != nil || !leftDrained(node, f) || c.hasToBeExcluded(node, n) {
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

// noteConsequence records, on the Nodes of finished drains, a notice that the instance ends.
// It holds even if the notice of the drain is cancelled, and the next Node of the instance is
// told. cluster.ErrNodeGone, nodedrain.ErrOutdated: a Node has changed meanwhile.
func (c *Controller) noteConsequence(
	ctx context.Context, log logr.Logger, t *task,
) error {
	d := t.Decision
	if d.Deadline.IsZero() {
		d.Deadline = decision.DeadlineOf(*t.n, time.Now(), c.Policy)
	}
	entry := d.Entry(*t.n, time.Now())
	for _, ref := range t.found.Refs {
		noted := false
		err := cluster.Retry(ctx, log, "note what follows from the drain", func(ctx context.Context) error {
			_, err := c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
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
