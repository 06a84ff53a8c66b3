// Package app is the running handler. New makes what lives as long as the process, Run
// stands for election, and each term of leadership has its own controller and queue server.
package app

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// maxRequests bounds the cordons and evictions in flight. A control plane with a few cores
// is not faster with more, and by default the API server refuses a client that sends some
// hundreds at once.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
const maxRequests = 64

// probationTime is how long after the start-up checks the process still exits when it may not
// receive messages. A permission that goes missing later may come back.
const probationTime = 25 * time.Second

// An App has everything that lives as long as the process.
type App struct {
	options *options.Options
	log     *slog.Logger
	version string // empty: unknown

	metrics   *telemetry.Metrics
	observers observers
	health    *health

	queue     queue.Client
	instances *instance.Directory
	statuses  instance.Statuses
	hooks     *asg.Hooks

	kube      kube.Client
	namespace string // of the Lease
	nodes     *cluster.Cluster
	volumes   *drain.Volumes
	drainer   *drain.Drainer
}

// New makes an App, which asks nobody anything before Run. The Kubernetes Events that it
// writes end with ctx. The version is for traces; it can be empty.
func New(ctx context.Context, o *options.Options, log *slog.Logger, version string) (*App, error) {
	template, err := webhookTemplate(o)
	if err != nil {
		return nil, err
	}
	warnOfBody(log, o, template)
	metrics := telemetry.New()
	metrics.Expect(Policy(o).Possible())
	aws, err := newAWSClients(ctx, o, log, metrics)
	if err != nil {
		return nil, err
	}
	gate := pace.NewGate(maxRequests)
	client, namespace, err := newKubeClients(o, metrics, gate)
	if err != nil {
		return nil, err
	}
	nodes, err := cluster.New(client, gate, o.Queue.Text, cordonOptions(o))
	if err != nil {
		return nil, err
	}
	volumes, err := drain.NewVolumes(client)
	if err != nil {
		return nil, err
	}
	secondary, err := newLowPriorityClients(o, metrics, gate)
	if err != nil {
		return nil, err
	}
	observers := newObservers(ctx, o, log, telling{metrics, template, secondary, nodes.ByName})
	return &App{
		options: o, log: log, version: version,
		metrics: metrics, observers: observers, health: newHealth(),
		queue:     queue.Client{API: aws.sqs, URL: o.Queue.Text, Log: log.With("logger", "queue"), Metrics: metrics},
		instances: instance.NewDirectory(aws.instances),
		statuses:  instance.Statuses{Client: aws.statuses},
		hooks: &asg.Hooks{
			Client: aws.hooks, HeartbeatInterval: o.HeartbeatInterval, HeartbeatUntil: o.HeartbeatUntil,
			Log: log.With("logger", "asg"), Metrics: metrics,
		},
		kube: client, namespace: namespace, nodes: nodes, volumes: volumes,
		drainer: &drain.Drainer{
			Client: client, Filter: Filter(o), Grace: o.PodGracePeriod,
			Self:    types.NamespacedName{Namespace: o.PodNamespace, Name: o.PodName},
			Volumes: volumes, Gate: gate, Observe: observers.pod, Blocked: observers.blocked,
		},
	}, nil
}

// Run watches the cluster, serves probes and metrics, makes the start-up checks, and leads
// whenever this replica is elected, until ctx ends: then it returns nil. An error is a reason
// to exit: what may heal by itself is not returned. Run is called once.
func (a *App) Run(ctx context.Context) error {
	defer a.observers.start(ctx)()
	ctx, stopTraces := a.withTraces(ctx)
	defer stopTraces()
	stopHTTP, err := listen(ctx, a.log, handlers(a.options, a.metrics, a.health))
	if err != nil {
		return err
	}
	defer stopHTTP()
	// Replicas that stand by watch as well, so that the one that takes over knows the cluster.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go a.nodes.Run(watching)
	go a.volumes.Run(watching)

	err = a.checkAll(ctx)
	if err == nil {
		err = a.stand(ctx)
	}
	if ctx.Err() != nil {
		a.log.Info("stopped", "why", context.Cause(ctx).Error())
		return nil
	}
	return err
}

func (a *App) checkAll(ctx context.Context) error {
	return runChecks(ctx, a.log, a.health, []check{
		queueCheck(a.options, a.queue, instancesCheck(a.options, a.instances)),
		permissionsCheck(a.kube, accesses(a.options), a.namespace,
			syncCheck("nodes", a.nodes.WaitForSync), syncCheck("volumes", a.volumes.WaitForSync)),
	})
}
