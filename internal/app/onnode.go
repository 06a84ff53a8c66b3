package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/imds"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/onnode"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// where is the account and the region of instances whose notice does not say; empty: unknown.
func (a *App) where() (account, region string) {
	if a.own == nil {
		return a.options.InstanceAccount(), a.options.Region
	}
	i := a.own.known()
	return i.Account, i.Region
}

// serveNode adds what an App needs that serves the node that it runs on.
func (a *App) serveNode() {
	a.own = &ownInstance{metadata: imds.New(a.options.MetadataURL, nil), node: a.options.NodeName}
	a.health.source = "instance metadata"
	a.drainer.Keep = types.NamespacedName{Namespace: a.options.PodNamespace, Name: a.options.PodName}
}

// checkNode makes the start-up checks of the IMDS mode.
func (a *App) checkNode(ctx context.Context) error {
	err := runChecks(ctx, a.log, a.health, []check{
		metadataCheck(a.own),
		permissionsCheck(a.kube, accesses(a.options), a.namespace, nodesCheck(a.kube, a.nodes.WaitForSync)),
	})
	if err != nil {
		return err
	}
	return runChecks(ctx, a.log, a.health, []check{nodeCheck(a.nodes, a.own)})
}

// metadataCheck finds out which instance this is. That no token comes is no accident at the third
// try.
func metadataCheck(own *ownInstance) check {
	tries := 0
	return check{
		part: "instance metadata",
		heals: func(err error) bool {
			const most = 3
			tries++
			return !errors.Is(err, imds.ErrTurnedOff) && (!errors.Is(err, imds.ErrTooFar) || tries < most)
		},
		run: func(ctx context.Context) error {
			_, err := own.identify(ctx)
			return err
		},
	}
}

// errOtherInstance says that the node is another machine.
var errOtherInstance = errors.New("the instance metadata is that of another instance than the node's: " +
	"is NODE_NAME the node that this pod runs on, and does nothing answer in the place of the metadata service?")

// nodeCheck finds out whether the Node is that of the instance.
func nodeCheck(nodes *cluster.Cluster, own *ownInstance) check {
	return check{
		part:  "node",
		heals: func(err error) bool { return !errors.Is(err, errOtherInstance) },
		run: func(context.Context) error {
			node, id := nodes.ByName(own.node), own.known().Instance
			if node == nil {
				return fmt.Errorf("there is no Node %s", own.node)
			}
			if its := cluster.InstanceID(node); its != "" && its != id {
				return fmt.Errorf("%w (node %s: %s, metadata: %s)", errOtherInstance, node.Name, its, id)
			}
			return nil
		},
	}
}

// onNode serves the node until ctx ends.
func (a *App) onNode(ctx context.Context) error {
	poller := &imds.Poller{
		Metadata: a.own.metadata, Identity: a.own.known(), Kinds: kinds(a.options),
		Log: a.log.WithName("imds"), Metrics: a.metrics,
	}
	if a.options.DryRun { // it reports nothing either
		return a.termOnNode(ctx, poller, true, func(c onnode.Controller) imds.Handler { return c })
	}
	s := onnode.Server{
		Cluster: a.nodes, Node: a.own.node, Policy: Policy(a.options), Log: a.log.WithName("imds"),
		Lease: a.lease(), ReportOnly: a.options.ReportOnly, LastAnswer: poller.LastAnswer,
		Leader: &lease.Watcher{Client: a.kube.CoordinationV1(), Namespace: a.namespace, Name: a.options.LeaseName},
		Term: func(ctx context.Context, drains bool, with func(onnode.Controller) imds.Handler) error {
			return a.termOnNode(ctx, poller, drains, with)
		},
	}
	return s.Run(ctx)
}

// termOnNode is a Term of an onnode.Server.
func (a *App) termOnNode(
	ctx context.Context, poller *imds.Poller, drains bool, with func(onnode.Controller) imds.Handler,
) error {
	ctrl := a.newController()
	if node := a.nodes.ByName(a.own.node); node != nil {
		poller.Life = cluster.BootID(node)
	}
	all := ctrl.Registry
	if drains {
		defer a.lookout.lead(lookedAt{
			status: all.Status, heldBack: all.HeldBack, lastReceive: poller.LastAnswer, resumed: all.Resumed(),
		})()
		a.lookout.rebuild(a.nodes)
	} else {
		defer a.lookout.report()()
	}
	defer a.health.lead(poller.LastAnswer, func() (int, string) { return 0, "" })()
	defer a.metrics.Lead(telemetry.Term{
		Load: ctrl.Load, LastReceive: poller.LastAnswer, Reports: !drains,
	})()
	poller.Handler = with(ctrl.Unannounced())
	if !drains {
		poller.Run(ctx)
		return context.Cause(ctx)
	}
	return lead(ctx, a.log, ctrl, serving(func(ctx context.Context) error {
		poller.Run(ctx)
		return nil
	}, a.beside(nil)...))
}

// Reports reports whether the options have pods look for notices of a kind in the metadata of their instances.
func Reports(o *options.Options, kind notice.Kind) bool {
	k := kinds(o)
	return map[notice.Kind]bool{
		notice.SpotInterruption: k.Spot, notice.ScheduledChange: k.Scheduled, notice.ASGTerminate: k.Lifecycle,
		notice.RebalanceRecommendation: k.Rebalance,
	}[kind]
}

// kinds are the kinds of notice that the options ask for.
func kinds(o *options.Options) imds.Kinds {
	return imds.Kinds{
		Spot: o.SpotDraining, Scheduled: o.ScheduledDraining, Lifecycle: o.LifecycleDraining,
		Rebalance: o.RebalanceMonitoring || o.RebalanceDraining,
	}
}

// An ownInstance knows of the instance that this process runs on, by its metadata, and of no other. It
// implements lookup.Instances.
type ownInstance struct {
	metadata *imds.Client
	node     string // its name

	mu       sync.Mutex
	identity imds.Identity
	asked    time.Time
}

// identify asks which instance this is.
func (o *ownInstance) identify(ctx context.Context) (imds.Identity, error) {
	i, err := o.metadata.Identity(ctx)
	if err != nil {
		return i, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.identity, o.asked = i, time.Now()
	return i, nil
}

// known is the last answer.
func (o *ownInstance) known() imds.Identity {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.identity
}

// instance is what EC2 would say of it. It runs, because this process does.
func (o *ownInstance) instance(i imds.Identity) instance.Instance {
	return instance.Instance{
		ID: i.Instance, State: "running", Launched: i.Started, Type: i.Type,
		PrivateDNSName: o.node, // the Node is found by it if it has no provider id
	}
}

// Get implements lookup.Instances, as the methods below do.
func (o *ownInstance) Get(
	ctx context.Context, id string, maxAge time.Duration, _ bool,
) (instance.Instance, bool, error) {
	o.mu.Lock()
	i, old := o.identity, time.Since(o.asked) > maxAge
	o.mu.Unlock()
	if old {
		var err error
		if i, err = o.identify(ctx); err != nil {
			return instance.Instance{}, false, err
		}
	}
	if i.Instance != id {
		return instance.Instance{}, false, nil
	}
	return o.instance(i), true, nil
}

// Known is the last answer.
func (o *ownInstance) Known(id string) (instance.Instance, bool, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.identity.Instance != id {
		return instance.Instance{}, false, time.Time{}
	}
	return o.instance(o.identity), true, o.asked
}

// Members knows of none.
func (*ownInstance) Members(context.Context, string, []string, time.Duration) ([]instance.Instance, error) {
	return nil, nil
}
