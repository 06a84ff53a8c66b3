package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/karpenter"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
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
func (d evacuateStage) delegate(ctx context.Context) {
	node, there := d.r.Cluster.Look(d.ref)
	if d.r.Karpenter == nil || !there {
		return
	}
	carried := d.carried()
	switch by, why := d.r.Drains(carried, node.Labels); {
	case by == intent.ByKarpenter:
	case why == decision.WhyKarpenterOff:
		logging.Warn(d.log, "the handler drains the node itself", "why", why, "rule", carried.Terms().Rule)
		return
	default:
		return
	}
	d.setReserve(true)
	g := &delegation{Drain: d.Drain, begun: time.Now()}
	d.goBeside(func() { g.watch(ctx) })
}

// A delegation is a drain in reserve. Only the goroutine of watch uses it.
type delegation struct {
	*Drain

	begun time.Time
	asked bool      // Karpenter has accepted
	told  time.Time // the time that Karpenter was given; zero: none
	tries int       // that have failed in a row
	last  error     // of them
}

// watch asks Karpenter, again each time that the deadline gets earlier, and takes over if it has to.
func (g *delegation) watch(ctx context.Context) {
	for {
		carried, changed := g.current()
		node, there := g.r.Cluster.Look(g.ref)
		if !there || ctx.Err() != nil {
			return
		}
		if by, why := g.r.Drains(carried, node.Labels); !g.asked && by == intent.ByHandler {
			g.takeOver(why, nil)
			return
		}
		by := decision.KarpenterDeadline(carried)
		earlier := !by.IsZero() && (g.told.IsZero() || by.Before(g.told))
		if (!g.asked || earlier) && g.ask(ctx, by) {
			return
		}
		look := g.look(carried, node, time.Now())
		if look == 0 {
			return
		}
		_ = awaitFor(ctx, look, changed, nil, nil) // the loop ends with ctx
	}
}

// ask asks Karpenter once. ended: the reserve has ended by that.
func (g *delegation) ask(ctx context.Context, by time.Time) (ended bool) {
	err := g.askKarpenter(ctx, by)
	refusal, final := errors.AsType[karpenter.Refusal](err)
	switch {
	case errors.Is(err, cluster.ErrNodeGone), ctx.Err() != nil:
		return true
	case err == nil:
		g.told, g.tries, g.last = by, 0, nil
		if !g.asked {
			g.asked = true
			g.note(ctx, by)
		}
		return false
	case g.asked: // our own drain is in reserve until the deadline of now
		logging.Warn(g.log, "give Karpenter an earlier deadline", "error", err)
		g.told = by
	case final:
		g.takeOver(decision.WhyNoNodeClaim, refusal)
		return true
	case apierrors.IsForbidden(err):
		g.takeOver(decision.WhyKarpenterRefused, err)
		return true
	}
	g.last = err
	g.tries++
	return false
}

// look returns when to look again whether Karpenter has begun; zero: it has not in time, and the reserve has ended.
func (g *delegation) look(carried intent.Intent, node *corev1.Node, now time.Time) time.Duration {
	since := g.begun
	if carried.Delegated() { // maybe by an earlier leader
		since = carried.DelegatedAt
	}
	begins := decision.KarpenterBeginsBy(carried, since, now, g.r.Policy)
	switch {
	case karpenterActs(node) && (g.asked || !now.Before(begins)): // else the answer may have been lost
		return time.Hour // nothing is waited for but an earlier deadline
	case now.Before(begins) && g.asked:
		return lookAtKarpenter
	case now.Before(begins): // all nodes of a storm would ask a server that fails ten times a second
		return min(askAgain.Pause(g.tries), begins.Sub(now))
	case g.asked:
		g.takeOver(decision.WhyKarpenterAway, nil)
	default:
		g.takeOver(decision.WhyKarpenterRefused, g.last)
	}
	return 0
}

// askKarpenter reads the Node, which names its NodeClaim, and asks once.
func (g *delegation) askKarpenter(ctx context.Context, by time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, replaceTimeout)
	defer cancel()
	node, err := g.r.Cluster.Read(ctx, g.ref)
	if err != nil {
		return err
	}
	return g.r.Karpenter.Replace(ctx, node, by)
}

// note writes down that Karpenter was asked. It does not wait for that: what the next leader does
// not know, it finds out by asking again.
func (g *delegation) note(ctx context.Context, by time.Time) {
	if g.carried().Delegated() {
		return
	}
	values := []any{"why", decision.WhyDelegated}
	if !by.IsZero() {
		values = append(values, "by", by.Format(time.RFC3339))
	}
	g.log.Info("Karpenter is asked to replace the node, and gets its pods off it", values...)
	g.r.Observer.Stepped(report.Step{Node: g.ref, Kind: report.Delegate, Why: decision.WhyDelegated})
	now := time.Now().UTC()
	g.goBeside(func() {
		// An error is the end of ctx.
		_ = g.rewrite(ctx, func(i intent.Intent) intent.Intent {
			if !i.Delegated() {
				i.DelegatedAt = now
			}
			return i
		})
	})
}

// takeOver ends the reserve: the handler gets the pods off the node.
func (g *delegation) takeOver(why decision.Why, reason error) {
	step := report.Step{Node: g.ref, Kind: report.TakeOver, Why: why}
	values := []any{"why", why}
	if reason != nil {
		step.Detail = reason.Error()
		values = append(values, "error", reason)
	}
	logging.Warn(g.log, "the handler drains the node itself", values...)
	g.r.Observer.Stepped(step)
	g.setReserve(false)
}

// karpenterActs reports whether Karpenter has begun to drain the node: it deletes the Node, which its finalizer
// keeps, and puts its taint on it.
func karpenterActs(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == decision.DisruptedTaint
	})
}

// isDelegated reports whether Karpenter was asked to replace the node, which nobody can take back.
func (r *Registry) isDelegated(ref cluster.Ref) bool {
	if r.Karpenter == nil {
		return false
	}
	if nd := r.Get(ref); nd != nil && nd.carried().Delegated() {
		return true
	}
	i, _ := r.intentOn(ref)
	return i.Delegated()
}
