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
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/surge"
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
	policy    *policyfile.Follower // nil: there is no policy file
	observers observers
	health    *health

	// With a queue:
	queue     queue.Client
	instances *instance.Directory
	statuses  instance.Statuses
	hooks     *asg.Hooks
	volumes   *drain.Volumes

	// In IMDS mode:
	own *ownInstance

	kube      kube.Client
	namespace string // of the Lease
	nodes     *cluster.Cluster
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
	rules, err := followPolicy(o, log, metrics)
	if err != nil {
		return nil, err
	}
	metrics.Expect(Policy(o).Possible())
	gate := pace.NewGate(maxRequests)
	client, namespace, err := newKubeClients(o, metrics, gate)
	if err != nil {
		return nil, err
	}
	nodes, err := newCluster(o, client, gate)
	if err != nil {
		return nil, err
	}
	secondary, err := newLowPriorityClients(o, metrics, gate)
	if err != nil {
		return nil, err
	}
	observers := newObservers(ctx, o, log, telling{metrics, template, secondary, nodes.ByName})
	a := &App{
		options: o, log: log, version: version,
		metrics: metrics, policy: rules, observers: observers, health: newHealth(),
		kube: client, namespace: namespace, nodes: nodes,
		drainer: &drain.Drainer{
			Client: client, Filter: Filter(o), Grace: o.PodGracePeriod,
			Gate: gate, Observe: observers.pod, Blocked: observers.blocked,
		},
	}
	if o.SurgeSingletons {
		a.drainer.Surge = surge.Deployments{Client: client, Gate: gate}.Surge
	}
	if o.IMDS {
		a.serveNode()
		return a, nil
	}
	return a, a.serveQueue(ctx)
}

func newCluster(o *options.Options, client kube.Client, gate *pace.Gate) (*cluster.Cluster, error) {
	if o.IMDS {
		return cluster.NewOfNode(client, gate, ofMetadata, cordonOptions(o), o.NodeName)
	}
	return cluster.New(client, gate, o.Queue.Text, cordonOptions(o))
}

// serveQueue adds what an App needs that has its notices from a queue.
func (a *App) serveQueue(ctx context.Context) (err error) {
	o := a.options
	aws, err := newAWSClients(ctx, o, a.log, a.metrics)
	if err != nil {
		return err
	}
	a.queue = queue.Client{API: aws.sqs, URL: o.Queue.Text, Log: a.log.With("logger", "queue"), Metrics: a.metrics}
	a.instances = instance.NewDirectory(aws.instances)
	a.statuses = instance.Statuses{Client: aws.statuses}
	a.hooks = &asg.Hooks{
		Client: aws.hooks, HeartbeatInterval: o.HeartbeatInterval, HeartbeatUntil: o.HeartbeatUntil,
		Log: a.log.With("logger", "asg"), Metrics: a.metrics,
	}
	// In IMDS mode the own pod stays, as all pods of DaemonSets do.
	a.drainer.Self = types.NamespacedName{Namespace: o.PodNamespace, Name: o.PodName}
	a.volumes, err = drain.NewVolumes(a.kube)
	a.drainer.Volumes = a.volumes
	return err
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
	go unmapIdlePages(ctx, a.log)
	go a.policy.Run(ctx, policyfile.Interval)
	// Replicas that stand by watch as well, so that the one that takes over knows the cluster.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go a.nodes.Run(watching)
	if a.volumes != nil {
		go a.volumes.Run(watching)
	}

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
	if a.options.IMDS {
		return a.checkNode(ctx)
	}
	return runChecks(ctx, a.log, a.health, []check{
		queueCheck(a.options, a.queue, instancesCheck(a.options, a.instances)),
		permissionsCheck(a.kube, accesses(a.options), a.namespace,
			syncCheck("nodes", a.nodes.WaitForSync), syncCheck("volumes", a.volumes.WaitForSync)),
	})
}
