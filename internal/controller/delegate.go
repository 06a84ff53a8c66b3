package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/karpenter"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// Karpenter is asked to replace a node, and to get its pods off; see package karpenter. by is when the pods
// have to be gone; zero: there is no such time. It may be called again, also with an earlier time. An error of
// type [karpenter.Refusal] is final.
type Karpenter interface {
	Replace(ctx context.Context, node *corev1.Node, by time.Time) error
}

const (
	// lookAtKarpenter is how often the watch of the nodes is asked whether Karpenter has begun.
	lookAtKarpenter = 100 * time.Millisecond
	// replaceTimeout bounds one try to ask Karpenter, so that a server that hangs leaves time for a second one.
	replaceTimeout = 2 * time.Second
)

// askAgain are the pauses between tries to ask Karpenter that fail.
var askAgain = retry.Backoff{First: lookAtKarpenter, Max: 2 * time.Second, Factor: 2, Jitter: 0.2}

// delegate has Karpenter get the pods off the node, if it is to do that, and returns at once. The drain is in
// reserve meanwhile: it asks a pod only at its last moment. It takes over if Karpenter cannot be asked, or does
// not begin. The watch ends with ctx.
func (c *Controller) delegate(ctx context.Context, log *slog.Logger, nd *nodeDrain) {
	node, there := c.Cluster.Look(nd.ref)
	if c.Karpenter == nil || !there {
		return
	}
	carried, _ := nd.current()
	switch by, why := c.Drains(carried, node.Labels); {
	case by == intent.ByKarpenter:
	case why == decision.WhyKarpenterOff:
		log.Warn("the handler drains the node itself", "why", why, "rule", carried.Terms().Rule)
		return
	default:
		return
	}
	nd.setReserve(true)
	go c.watchDelegate(ctx, log, nd)
}

// watchDelegate asks Karpenter, again each time that the deadline gets earlier, and takes over if it has to.
func (c *Controller) watchDelegate(ctx context.Context, log *slog.Logger, nd *nodeDrain) {
	begun := time.Now()
	var asked bool
	failed := 0        // tries in a row
	var told time.Time // the time that Karpenter was given; zero: none
	var last error
	for {
		carried, changed := nd.current()
		node, there := c.Cluster.Look(nd.ref)
		if !there || ctx.Err() != nil {
			return
		}
		if !asked {
			if by, why := c.Drains(carried, node.Labels); by == intent.ByHandler {
				c.takeOver(log, nd, why, nil)
				return
			}
		}
		if by := decision.KarpenterDeadline(carried); !asked || !by.IsZero() && (told.IsZero() || by.Before(told)) {
			err := c.askKarpenter(ctx, nd, by)
			refusal, final := errors.AsType[karpenter.Refusal](err)
			switch {
			case errors.Is(err, cluster.ErrNodeGone):
				return
			case ctx.Err() != nil:
				return
			case err == nil:
				told = by
				if !asked {
					asked = true
					c.noteDelegated(ctx, log, nd, by)
				}
			case asked: // our own drain is in reserve until the deadline of now
				log.Warn("give Karpenter an earlier deadline", "error", err)
				told = by
			case final:
				c.takeOver(log, nd, decision.WhyNoNodeClaim, refusal)
				return
			case apierrors.IsForbidden(err):
				c.takeOver(log, nd, decision.WhyKarpenterRefused, err)
				return
			}
			last = err
			failed++
		}
		now := time.Now()
		since := begun
		if carried.Delegated() { // maybe by an earlier leader
			since = carried.DelegatedAt
		}
		begins := decision.KarpenterBeginsBy(carried, since, now, c.Policy)
		look := lookAtKarpenter
		switch {
		case karpenterActs(node):
			look = time.Hour // nothing is waited for but an earlier deadline
		case now.Before(begins):
			if !asked { // all nodes of a storm would ask a server that fails ten times a second
				look = min(askAgain.Pause(failed), begins.Sub(now))
			}
		case asked:
			c.takeOver(log, nd, decision.WhyKarpenterAway, nil)
			return
		default:
			c.takeOver(log, nd, decision.WhyKarpenterRefused, last)
			return
		}
		again := time.NewTimer(look)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again.C:
		}
		again.Stop()
	}
}

// askKarpenter reads the Node, which names its NodeClaim, and asks once.
func (c *Controller) askKarpenter(ctx context.Context, nd *nodeDrain, by time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, replaceTimeout)
	defer cancel()
	node, err := c.Cluster.Read(ctx, nd.ref)
	if err != nil {
		return err
	}
	return c.Karpenter.Replace(ctx, node, by)
}

// noteDelegated writes down that Karpenter was asked. It does not wait for that: what the next leader does
// not know, it finds out by asking again.
func (c *Controller) noteDelegated(ctx context.Context, log *slog.Logger, nd *nodeDrain, by time.Time) {
	carried, _ := nd.current()
	if carried.Delegated() {
		return
	}
	values := []any{"why", decision.WhyDelegated}
	if !by.IsZero() {
		values = append(values, "by", by.Format(time.RFC3339))
	}
	log.Info("Karpenter is asked to replace the node, and gets its pods off it", values...)
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.Delegate, Why: decision.WhyDelegated})
	now := time.Now().UTC()
	go func() {
		// An error is the end of ctx.
		_ = c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
			if !i.Delegated() {
				i.DelegatedAt = now
			}
			return i
		})
	}()
}

// takeOver ends the reserve: the handler gets the pods off the node.
func (c *Controller) takeOver(log *slog.Logger, nd *nodeDrain, why decision.Why, reason error) {
	step := report.Step{Node: nd.ref, Kind: report.TakeOver, Why: why}
	values := []any{"why", why}
	if reason != nil {
		step.Detail = reason.Error()
		values = append(values, "because", reason.Error())
	}
	log.Warn("the handler drains the node itself", values...)
	c.Observer.Stepped(step)
	nd.setReserve(false)
}

// karpenterActs reports whether Karpenter has begun to drain the node: it deletes the Node, which its finalizer
// keeps, and puts its taint on it.
func karpenterActs(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == decision.DisruptedTaint
	})
}

// isDelegated reports whether Karpenter was asked to replace the node, which nobody can take back.
func (c *Controller) isDelegated(ref cluster.Ref) bool {
	if c.Karpenter == nil {
		return false
	}
	if nd := c.get(ref); nd != nil {
		if carried, _ := nd.current(); carried.Delegated() {
			return true
		}
	}
	node, there := c.Cluster.Look(ref)
	if !there {
		return false
	}
	i, _, err := cluster.ReadIntent(node)
	return err == nil && i.Delegated()
}

// setReserve sets whether the drain is in reserve, and sends its terms.
func (nd *nodeDrain) setReserve(on bool) { nd.change(func() { nd.reserve = on }) }
