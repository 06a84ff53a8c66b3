// Package app is the running handler. New makes what lives as long as the process, Run
// stands for election, and each term of leadership has its own controller and queue server.
package app

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/conditions"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/karpenter"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/surge"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
	"github.com/node-termination-handler/node-termination-handler/internal/unscheduled"
)

// firstRequests bounds the cordons and evictions in flight at first, and mostRequests how far that grows while the API
// server answers fast. A control plane with a few cores is not faster with more than 64, and by default the API server
// refuses a client that sends some hundreds at once.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
const (
	firstRequests = 64
	mostRequests  = 512
)

// probationTime is how long after the start-up checks the process still exits when it lacks the permission to receive
// messages. A permission that goes missing later may come back.
const probationTime = 25 * time.Second

// An App has everything that lives as long as the process.
type App struct {
	options *options.Options
	log     logr.Logger
	version string // empty: unknown
	// identity names this replica in the Lease: no two processes share a name. Empty: there is no Lease.
	identity string
	// port is that of the metrics, once Run listens; 0: none.
	port int

	metrics   *telemetry.Metrics
	policy    *policyfile.Follower // nil: there is no policy file
	karpenter nodedrain.Karpenter  // nil: Karpenter is not asked
	observers observers
	// conditions is nil if nothing is said by conditions of nodes.
	conditions *conditions.Writer
	health     *health
	lookout    *lookout

	hooks *asg.Hooks // nil: it completes none

	// With a queue:
	queue     queue.Client
	instances *instance.Directory
	statuses  instance.Statuses
	bindings  *loadbalancer.Watch
	targets   *loadbalancer.Targets

	// unscheduled are the pods that wait for another node after a drain. Not in IMDS mode.
	unscheduled *unscheduled.Pods

	own *ownInstance // nil: not in IMDS mode

	kube      kube.Client
	namespace string // of the Lease
	nodes     *cluster.Cluster
	drainer   *drain.Drainer
}

// New makes an App, which asks nobody anything before Run. The Kubernetes Events that it
// writes end with ctx. The version can be empty.
func New(ctx context.Context, o *options.Options, log logr.Logger, version string) (*App, error) {
	template, err := webhookTemplate(o)
	if err != nil {
		return nil, err
	}
	warnOfBody(log, o, template)
	warnOfPlainHTTP(log, o)
	metrics := telemetry.New()
	rules, err := followPolicy(o, log, metrics)
	if err != nil {
		return nil, err
	}
	metrics.Expect(Policy(o).Possible())
	gate := pace.NewGate(firstRequests, mostRequests)
	metrics.Bound(gate.Bound)
	client, secondary, namespace, err := newKubeClients(o, metrics, gate, newTrimmer(rules))
	if err != nil {
		return nil, err
	}
	nodes, err := newCluster(o, client, gate, namespace)
	if err != nil {
		return nil, err
	}
	a := &App{
		options: o, log: log, version: version, metrics: metrics, policy: rules,
		health: newHealth(), lookout: newLookout(o.PodName, rules, log),
		kube: client, namespace: namespace, nodes: nodes,
	}
	a.observers, a.conditions = a.newObservers(ctx, template, secondary), a.newConditions(secondary)
	a.drainer = &drain.Drainer{
		Client: client, Filter: Filter(o), Grace: o.PodGracePeriod,
		Gate: gate, Observe: a.observers.pod, Blocked: a.observers.blocked,
	}
	if o.SurgeSingletons {
		a.drainer.Surge = surge.Deployments{Client: client, Gate: gate}.Surge
	}
	if o.DrainByKarpenter && !o.IMDS {
		a.karpenter = karpenter.NodeClaims{Client: client, Gate: gate}
	}
	a.lookout.dryRun = o.DryRun
	nodes.WhenDeleted(a.lookout.deleted)
	if o.IMDS {
		a.serveNode()
		return a, nil
	}
	if o.LeaderElect {
		a.identity = newIdentity(o)
	}
	a.unscheduled = &unscheduled.Pods{
		Client: secondary, Node: nodes.ByName, Observer: a.observers, Metrics: metrics, Log: log.WithName("unscheduled"),
	}
	a.lookout.waiting, a.lookout.nodes = a.unscheduled.Waiting, nodes
	if err := a.serveCluster(); err != nil || o.Queue.None() && o.SweepInterval == 0 {
		return a, err
	}
	return a, a.serveAWS(ctx)
}

// newCluster returns the nodes of the cluster, or the own one. namespace is that of the Lease.
func newCluster(o *options.Options, client kube.Client, gate *pace.Gate, namespace string) (*cluster.Cluster, error) {
	if o.IMDS {
		return cluster.NewOfNode(client, gate, intent.OfMetadata, cordonOptions(o), o.NodeName)
	}
	queue := o.Queue.Text
	if o.Queue.None() {
		queue = intent.OfReports(namespace + "/" + o.LeaseName)
	}
	return cluster.New(client, gate, queue, cordonOptions(o))
}

// serveCluster adds what an App needs that drains the nodes of a cluster.
func (a *App) serveCluster() (err error) {
	// In IMDS mode the own pod stays, as all pods of DaemonSets do.
	a.drainer.Self = types.NamespacedName{Namespace: a.options.PodNamespace, Name: a.options.PodName}
	a.drainer.Volumes, err = drain.NewVolumes(a.kube)
	a.drainer.Observe = func(answer evacuation.Answer) {
		a.observers.pod(answer)
		a.unscheduled.Left(answer)
	}
	return err
}

// serveAWS adds what an App needs that completes lifecycle hooks, and then what one needs that has its notices from a
// queue.
func (a *App) serveAWS(ctx context.Context) error {
	o := a.options
	if o.Queue.None() && o.Region == "" {
		return errors.New("aws-region: is required for sweep-interval with queue-url none")
	}
	aws, err := newAWSClients(ctx, o, a.log, a.metrics)
	if err != nil {
		return err
	}
	a.hooks = &asg.Hooks{
		Client: aws.scaling, HeartbeatInterval: o.HeartbeatInterval, HeartbeatUntil: o.HeartbeatUntil,
		Log: a.log.WithName("asg"), Metrics: a.metrics,
	}
	if o.Queue.None() {
		return nil
	}
	a.queue = queue.Client{API: aws.sqs, URL: o.Queue.Text, Log: a.log.WithName("queue"), Metrics: a.metrics}
	a.instances = instance.NewDirectory(aws.instances)
	a.statuses = instance.Statuses{Client: aws.statuses}
	log := a.log.WithName("loadbalancer")
	a.bindings = loadbalancer.NewWatch(loadbalancer.OfCluster(a.kube.CoreV1().RESTClient()), log)
	a.targets = &loadbalancer.Targets{
		Client: aws.targets, Groups: a.bindings.GroupsOf, Region: o.Region, Log: log, Metrics: a.metrics,
	}
	return nil
}

// Run watches the cluster, serves probes and metrics, makes the start-up checks, and leads
// whenever this replica is elected, until ctx ends: then it returns nil. An error is a reason
// to exit: what may heal by itself is not returned. Run is called once.
func (a *App) Run(ctx context.Context) error {
	defer a.observers.start(ctx)()
	ports, stopHTTP, err := listen(ctx, a.log, a.options.BindAddresses, a.handlers())
	if err != nil {
		return err
	}
	a.port = ports[a.options.PrometheusPort]
	defer stopHTTP()
	go giveIdleMemoryBack(ctx, a.log)
	go a.policy.Run(ctx, policyfile.Interval)
	// Replicas that stand by watch as well, so that the one that takes over knows the cluster.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go a.nodes.Run(watching)
	if a.drainer.Volumes != nil {
		go a.drainer.Volumes.Run(watching)
	}
	if a.bindings != nil && a.options.ExcludeFromLoadBalancers != decision.ExcludeNone {
		go a.bindings.Run(watching)
	}

	err = a.checkAll(ctx)
	if err == nil {
		err = a.stand(ctx)
	}
	if ctx.Err() != nil {
		a.log.Info("stopped", "why", context.Cause(ctx))
		return nil
	}
	return err
}

func (a *App) checkAll(ctx context.Context) error {
	if a.options.IMDS {
		return a.checkNode(ctx)
	}
	checks := []check{permissionsCheck(a.kube, accesses(a.options), a.namespace,
		nodesCheck(a.kube, a.nodes.WaitForSync), volumesCheck(a.kube, a.drainer.Volumes.WaitForSync))}
	if !a.options.Queue.None() {
		checks = append(checks, queueCheck(a.options, a.queue, instancesCheck(a.options, a.instances)))
	}
	return runChecks(ctx, a.log, a.health, checks)
}
