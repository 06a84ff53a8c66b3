package app

import (
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/controller"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
	"github.com/node-termination-handler/node-termination-handler/internal/status"
	"github.com/node-termination-handler/node-termination-handler/internal/sweep"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// stand stands for election, and leads whenever this replica is elected.
func (a *App) stand(ctx context.Context) error {
	a.lookout.episodes.Begin()
	probation := time.Now().Add(probationTime)
	lead := func(ctx context.Context) error { return a.term(ctx, probation) }
	switch {
	case a.options.IMDS: // each node has its own process
		lead = a.onNode
	case a.options.LeaderElect:
		elector, term := a.elector(), lead
		lead = func(ctx context.Context) error { return elector.Run(ctx, term) }
	}
	return lead(ctx)
}

// lease is the Lease of this release, as namespace/name.
func (a *App) lease() string { return a.namespace + "/" + a.options.LeaseName }

func (a *App) elector() lease.Elector {
	return lease.Elector{
		Client: a.kube.CoordinationV1(), Namespace: a.namespace, Name: a.options.LeaseName, Identity: a.identity,
		Labels: map[string]string{
			PortLabel: leaderPort(a.options, a.port), lease.DryRunLabel: strconv.FormatBool(a.options.DryRun),
		},
		Log: a.log.WithName("lease"), Observe: a.health.leaseAnswered,
		NewLeader: a.lookout.ledBy, Renewed: a.lookout.renewed, Paused: a.lookout.pause,
	}
}

const (
	// PortLabel is the label of the Lease with the port on which the leader tells what is in progress.
	PortLabel = "node-termination-handler/port"
	// NoPort is its value where the leader serves none.
	NoPort = "none"
)

// leaderPort is the label's value for the port that is served.
func leaderPort(o *options.Options, served int) string {
	if !o.PrometheusServer {
		return NoPort
	}
	return strconv.Itoa(served)
}

func newIdentity(o *options.Options) string {
	name := o.PodName
	if name == "" {
		name, _ = os.Hostname()
	}
	return name + "_" + rand.String(8)
}

// term is one term of leadership, until ctx ends. Its controller and its queue server share
// no drains or messages with those of another term. It returns an error of [lead] and, before
// probation ends, that of a role without the permission to receive messages.
func (a *App) term(ctx context.Context, probation time.Time) error {
	ctrl := a.newController()
	if a.options.Queue.None() {
		return a.termOfReports(ctx, ctrl)
	}
	server, drains := a.newServer(ctrl, probation), ctrl.Registry
	defer a.health.lead(server.Alive, drains.HeldBack)()
	sweeps, polls := a.newSweep(ctrl), a.newPoll(ctrl)
	beside := a.beside(sweeps)
	defer a.lookout.lead(lookedAt{
		status: drains.Status, heldBack: drains.HeldBack, lastReceive: server.LastReceive, inFlight: server.InFlight,
		held: ctrl.Held,
		unseen: []func() string{
			sweeps.Unseen, polls.Unseen, ctrl.Lookup.Unseen, ctrl.Unseen, a.nodes.Unseen,
		},
		failing: server.Failing, resumed: drains.Resumed(),
	})()
	a.lookout.rebuild(a.nodes)
	defer a.metrics.Lead(telemetry.Term{
		Load: ctrl.Load, Held: server.InFlight, LastReceive: server.LastReceive,
	})()
	if a.options.CheckTag {
		beside = append(beside, a.listTagged)
	}
	if a.options.StatusInterval > 0 {
		beside = append(beside, polls.Run)
	}
	return lead(ctx, a.log, ctrl, serving(server.Serve, append(beside, checking(a.log, server))...))
}

// termOfReports is a term without a queue: the controller has its notices from the pods on the nodes.
func (a *App) termOfReports(ctx context.Context, ctrl *controller.Controller) error {
	drains, sweeps := ctrl.Registry, a.newSweep(ctrl)
	defer a.health.lead(time.Now, drains.HeldBack)() // the Lease tells of an API server that is silent
	defer a.lookout.lead(lookedAt{
		status: drains.Status, heldBack: drains.HeldBack, resumed: drains.Resumed(),
		unseen: []func() string{
			sweeps.Unseen, ctrl.Unseen, a.nodes.Unseen, func() string { return a.nodes.Deaf(a.lease()) },
		},
	})()
	a.lookout.rebuild(a.nodes)
	defer a.metrics.Lead(telemetry.Term{Load: ctrl.Load})()
	receive := func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}
	return lead(ctx, a.log, ctrl, serving(receive, a.beside(sweeps)...))
}

// beside is what goes on beside the drains of a term. sweeps are of no use in IMDS mode.
func (a *App) beside(sweeps *sweep.Sweep) (all []func(context.Context)) {
	if a.hooks != nil && a.options.SweepInterval > 0 && !a.options.DryRun {
		all = append(all, sweeps.Run)
	}
	if a.unscheduled != nil && !a.options.DryRun {
		all = append(all, a.unscheduled.Run)
	}
	if a.conditions != nil {
		all = append(all, a.conditions.Run)
	}
	return all
}

func (a *App) newPoll(ctrl *controller.Controller) *status.Poll {
	return &status.Poll{
		Source: a.statuses, Handler: ctrl.Unannounced(), DrainImpaired: a.options.DrainImpaired,
		Interval: a.options.StatusInterval, Log: a.log.WithName("status"), Metrics: a.metrics,
	}
}

func (a *App) newSweep(ctrl *controller.Controller) *sweep.Sweep {
	return &sweep.Sweep{
		Groups: a.hooks, Handler: ctrl.Unannounced(), HookNames: a.options.HookNames, NoQueue: a.options.Queue.None(),
		Interval: a.options.SweepInterval, Log: a.log.WithName("sweep"), Metrics: a.metrics,
	}
}

func (a *App) newController() *controller.Controller {
	o := a.options
	var instances lookup.Instances = a.instances
	var hooks nodedrain.Hooks = a.hooks
	switch {
	case o.IMDS:
		instances = a.own
	case o.Queue.None():
		instances = lookup.NoEC2{}
	}
	if a.hooks == nil {
		hooks = nodedrain.NoHooks{}
	}
	var targets nodedrain.LoadBalancers
	if a.targets != nil && o.ExcludeFromLoadBalancers != decision.ExcludeNone {
		targets = a.targets
	}
	var replacements nodedrain.Replacements
	if a.hooks != nil && !o.Queue.None() {
		replacements = a.hooks
	}
	return controller.New(controller.Config{
		Instances:         instances,
		StartupTaints:     o.StartupTaints,
		ClusterName:       o.ClusterName,
		Lease:             a.lease(),
		OutOfServiceTaint: o.OutOfServiceTaint,
		Config: nodedrain.Config{
			OnNode:          o.IMDS,
			Cluster:         a.nodes,
			Hooks:           hooks,
			Drainer:         a.drainer,
			LoadBalancers:   targets,
			Replacements:    replacements,
			Observer:        a.observers,
			Blocked:         a.observers.blocked,
			Ended:           a.lookout.episodes.Add,
			Karpenter:       a.karpenter,
			Log:             a.log,
			PolicyFile:      a.policy,
			Policy:          Policy(o),
			MaxUnready:      o.MaxUnready,
			DryRun:          o.DryRun,
			CompletionDelay: o.CompletionDelay,
			Workers:         o.Workers,
		},
	})
}

func (a *App) newServer(handler queue.Handler, probation time.Time) *queue.Server {
	return &queue.Server{
		Client: a.queue.API, URL: a.queue.URL, Log: a.queue.Log, Metrics: a.queue.Metrics,
		Handler: handler, Visibility: a.options.VisibilityTimeout, Probation: time.Until(probation),
	}
}

// checking looks once whether the queue is as it has to be: that may have changed since the start-up. That is no reason
// to stop, and the first receive does not wait for the answer.
func checking(log logr.Logger, server *queue.Server) func(context.Context) {
	return func(ctx context.Context) {
		if err := server.Check(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "check the queue")
		}
	}
}

// serving runs receive until ctx ends, and the other functions beside it. The error is that of receive: the role lacks
// the permission, or something was left undone at the end.
func serving(receive func(context.Context) error, beside ...func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		var all sync.WaitGroup
		defer all.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		for _, run := range beside {
			all.Go(func() { run(ctx) })
		}
		return receive(ctx)
	}
}

// lead runs the controller, and once it has resumed what nodes carry, serve. It returns when ctx
// ends, or when serve does so before.
func lead(
	ctx context.Context, log logr.Logger, ctrl *controller.Controller, serve func(context.Context) error,
) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ran := make(chan error, 1)
	go func() { ran <- ctrl.Run(ctx) }()
	select {
	case <-ctrl.Registry.Resumed():
		if err := serve(ctx); ctx.Err() == nil {
			stop(err)
		} else if err != nil {
			log.Error(err, "stop receiving")
		}
	case <-ctx.Done():
	}
	return <-ran
}

// listTagged lists the instances with the managed tag until ctx ends: a notice is acted on while EC2 gives no answer,
// and the metrics count them.
// AWS Node Termination Handler has the same metrics: a difference between its two numbers is
// a machine that never joined. Nodes without the tag are counted too, because nobody acts on
// a notice about them. Each round costs a call for every 200 instances.
func (a *App) listTagged(ctx context.Context) {
	const pause = 5 * time.Minute
	for {
		ids, err := a.instances.Tagged(ctx, a.options.ManagedTag)
		switch {
		case err == nil:
			unmanaged := sets.New(a.nodes.ReadyInstances()...).Delete(ids...)
			a.metrics.Tagged(a.joined(ids), len(ids), unmanaged.Len())
		case ctx.Err() == nil:
			a.log.V(1).Info("the tagged instances could not be counted", "error", err)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// joined returns how many of the instances have a Node.
func (a *App) joined(ids []string) (n int) {
	for _, id := range ids {
		if len(a.nodes.ByInstance(id)) > 0 {
			n++
		}
	}
	return n
}
