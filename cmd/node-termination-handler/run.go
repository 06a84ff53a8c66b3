package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	"github.com/go-logr/logr"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/controller"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// requestsAtOnce bounds the cordons and evictions under way. A control plane with
// a few cores is not faster with more, and by its defaults the API server refuses
// a client whose crowd is some hundreds.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
const requestsAtOnce = 64

// serve runs the controller until ctx ends. An error is a reason to exit: what
// heals by itself is not returned.
func serve(ctx context.Context, c *config, out io.Writer) error {
	// The heap is a few MB at rest and a few ten in a storm: to collect it twice as
	// often costs little, and a third of the memory less lies idle.
	if was := debug.SetGCPercent(50); was != 100 { // GOGC says otherwise
		debug.SetGCPercent(was)
	}
	log, endLog := newLogger(c, out)
	defer endLog()
	log.Info("starting", "version", strings.ReplaceAll(strings.TrimSpace(describeVersion()), "\n", ", "), "queue", c.queue.text, "region", c.region, "options", c.changed)
	for _, w := range c.warnings {
		log.Info(w)
	}
	template, err := c.template()
	if err != nil {
		return err
	}
	metrics := telemetry.New()
	metrics.Expect(newController(c, log).Decisions())
	clients, err := connect(ctx, c, metrics)
	if err != nil {
		return err
	}
	kube, namespace, err := c.kube()
	if err != nil {
		return err
	}
	gate := pace.NewGate(requestsAtOnce)
	kube.Wrap(metrics.Kubernetes)
	kube.Wrap(func(next http.RoundTripper) http.RoundTripper { return heeding{next, gate} })
	client, err := newKubeClients(kube)
	if err != nil {
		return err
	}

	// Both replicas watch, so that the one that takes over knows the cluster.
	nodes, err := cluster.New(client, gate, c.queue.text, marksOf(c))
	if err != nil {
		return err
	}
	volumes, err := drain.NewVolumes(client)
	if err != nil {
		return err
	}
	observers, err := observe(ctx, c, log, metrics, template, gate, nodes.ByName)
	if err != nil {
		return err
	}
	defer observers.begin(ctx)()
	ctx, stopTraces := withTraces(ctx, c, log)
	defer stopTraces()
	var server atomic.Pointer[queue.Server] // of the present term
	lastReceive := func() time.Time { return server.Load().LastReceive() }
	newServer := func(handler queue.Handler) *queue.Server {
		return &queue.Server{
			Client: clients.sqs, URL: c.queue.text, Handler: handler, Visibility: c.visibilityTimeout,
			Log: log.WithName("queue"), Metrics: metrics,
		}
	}
	server.Store(newServer(nil))
	instances := instance.NewDirectory(describeInstances(clients.ec2.DescribeInstances))
	var leader atomic.Pointer[controller.Controller] // of the present term; nil before the first
	probes := newHealth(lastReceive, func() string {
		if ctrl := leader.Load(); ctrl != nil {
			_, why := ctrl.HeldBack()
			return why
		}
		return ""
	})
	stopHTTP, err := listen(ctx, log, handlers(c, metrics, probes))
	if err != nil {
		return err
	}
	defer stopHTTP()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go nodes.Run(watching)
	go volumes.Run(watching)
	started := time.Now()
	if err := begin(ctx, probes, []check{
		{"queue", func(ctx context.Context) error { return queueWorks(ctx, c, server.Load()) }},
		{"instances", func(ctx context.Context) error { return instancesWork(ctx, c, instances) }},
		{"permissions", func(ctx context.Context) error { return allowed(ctx, client, rightsNeeded(c, namespace)) }},
		{"nodes", nodes.WaitForSync},
		{"volumes", volumes.WaitForSync},
	}); err != nil {
		return err
	}

	self := types.NamespacedName{Namespace: c.podNamespace, Name: c.podName}
	drainer := &drain.Drainer{
		Client:  client,
		Filter:  filterOf(c),
		Grace:   c.podGracePeriod,
		Self:    self,
		Volumes: volumes,
		Gate:    gate,
		Observe: observers.pod,
	}
	hooks := &asg.Hooks{
		Client: lifecycleHooks{clients.autoscaling.DescribeLifecycleHooks, clients.autoscaling.RecordLifecycleActionHeartbeat, clients.autoscaling.CompleteLifecycleAction}, HeartbeatInterval: c.heartbeatInterval, HeartbeatUntil: c.heartbeatUntil,
		Log: log.WithName("asg"), Metrics: metrics,
	}
	work := func(ctx context.Context) error {
		probes.lead(true)
		defer probes.lead(false)
		// A controller's works and a server's messages are of one term.
		ctrl := newController(c, log)
		ctrl.Cluster, ctrl.Instances, ctrl.Hooks, ctrl.Drainer, ctrl.Observer, ctrl.Metrics = nodes, instances, hooks, drainer, observers, metrics
		leader.Store(ctrl)
		defer leader.Store(nil)
		s := newServer(ctrl)
		s.Probation = startTime - time.Since(started)
		server.Store(s)
		defer metrics.Lead(telemetry.Term{Load: ctrl.Load, Held: s.Held, LastReceive: s.LastReceive})()
		if c.checkTag && c.prometheusServer {
			counting, stop := context.WithCancel(ctx)
			defer stop()
			go countTagged(counting, log, c.managedTag, instances, nodes, metrics)
		}
		return lead(ctx, log, ctrl, s)
	}
	if !c.leaderElect {
		err = work(ctx)
	} else {
		lease := controller.Lease{Client: client.coordination, Namespace: namespace, Name: c.leaseName, Identity: identity(c), Log: log.WithName("lease"), Asked: probes.asked}
		err = lease.Lead(ctx, work)
	}
	if errors.Is(err, controller.ErrGiveWay) {
		return leaveNode(ctx, log, client, self)
	}
	if ctx.Err() != nil {
		log.Info("stopped", "why", context.Cause(ctx).Error())
		return nil
	}
	return err
}

// lead does the work of a leader until ctx ends, until it has to give way, or
// until the queue turns out to be closed to it from the start.
func lead(ctx context.Context, log logr.Logger, ctrl *controller.Controller, s *queue.Server) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ran := make(chan error, 1)
	go func() {
		err := ctrl.Run(ctx)
		stop(err)
		ran <- err
	}()
	select {
	case <-ctrl.Resumed():
		// What the queue allows may have changed since the start; it is no reason to stop.
		if err := s.Check(ctx); err != nil {
			log.Error(err, "check the queue")
		}
		if err := s.Serve(ctx); ctx.Err() == nil {
			stop(err)
		} else if err != nil {
			log.Error(err, "stop receiving")
		}
	case <-ctx.Done():
	}
	return <-ran
}

// sleep waits, or returns the cause of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// leaveNode evicts the pod that this process runs in, which is the last on a
// node that is being drained, and waits for its end. The lease is given away:
// the next leader has the node to finish, and evicts us if we cannot.
func leaveNode(ctx context.Context, log logr.Logger, client kubeClients, self types.NamespacedName) error {
	const pause = 2 * time.Second
	for {
		err := client.PolicyV1().Evictions(self.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: self.Namespace, Name: self.Name},
		})
		if err == nil || apierrors.IsNotFound(err) {
			log.Info("left the node", "pod", self.String())
			<-ctx.Done()
			return nil
		}
		log.Error(err, "leave the node", "pod", self.String())
		if sleep(ctx, pause) != nil {
			return nil
		}
	}
}

func marksOf(c *config) cluster.Marks {
	m := cluster.Marks{ExcludeFromLoadBalancers: c.excludeFromLoadBalancers}
	if c.taintNode {
		m.TaintEffect = c.taintEffect
	}
	return m
}

func filterOf(c *config) drain.Filter {
	return drain.Filter{IgnoreDaemonSets: c.ignoreDaemonSets, DeleteEmptyDir: c.deleteLocalData}
}

// newController returns a controller with the options of c.
func newController(c *config, log logr.Logger) *controller.Controller {
	ctrl := &controller.Controller{
		Log: log,
		Policy: controller.Policy{
			CordonOnly:      c.cordonOnly,
			DeleteForeign:   c.deleteIfNodeNotFound,
			NodeGracePeriod: c.nodeGracePeriod,
			HookNames:       c.hookNames,
			MaxUnready:      c.maxUnready,
		},
		Account:           c.queue.account,
		Region:            c.region,
		ClusterName:       c.clusterName,
		DryRun:            c.dryRun,
		CompletionDelay:   c.completionDelay,
		OutOfServiceTaint: c.outOfServiceTaint,
		Workers:           c.workers,
	}
	if c.heartbeatInterval > 0 {
		ctrl.HeartbeatUntil = c.heartbeatUntil
	}
	if c.checkTag {
		ctrl.ManagedTag = c.managedTag
	}
	return ctrl
}

// describeInstances is the one call to EC2. As a function it keeps the linker from
// keeping the seven hundred others: text/template looks methods up by name, so
// that every method of a type which an interface holds has to stay.
type describeInstances func(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)

// DescribeInstances implements instance.API.
func (d describeInstances) DescribeInstances(ctx context.Context, in *ec2.DescribeInstancesInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error) {
	return d(ctx, in, opts...)
}

// lifecycleHooks are the three calls to Auto Scaling, as functions: see describeInstances.
type lifecycleHooks struct {
	describe  func(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
	heartbeat func(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	complete  func(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
}

// DescribeLifecycleHooks and the others implement asg.API.
func (l lifecycleHooks) DescribeLifecycleHooks(ctx context.Context, in *autoscaling.DescribeLifecycleHooksInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	return l.describe(ctx, in, opts...)
}

// RecordLifecycleActionHeartbeat is one of them.
func (l lifecycleHooks) RecordLifecycleActionHeartbeat(ctx context.Context, in *autoscaling.RecordLifecycleActionHeartbeatInput, opts ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	return l.heartbeat(ctx, in, opts...)
}

// CompleteLifecycleAction is one of them.
func (l lifecycleHooks) CompleteLifecycleAction(ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, opts ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	return l.complete(ctx, in, opts...)
}

// awsClients are the clients of the three services.
type awsClients struct {
	sqs         *sqs.Client
	ec2         *ec2.Client
	autoscaling *autoscaling.Client
}

// awsConfig loads the SDK's default configuration: environment, profile, web
// identity (IRSA), container credentials (EKS Pod Identity), instance role.
// More options come on top.
func awsConfig(ctx context.Context, c *config, more ...func(*awsconfig.LoadOptions) error) (aws.Config, error) {
	const (
		connections = 64 // to one service: a storm is many receives and batches at once
		connectTime = 5 * time.Second
	)
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = connections
	}).WithDialerOptions(func(d *net.Dialer) {
		d.Timeout = connectTime
	})
	options := append([]func(*awsconfig.LoadOptions) error{
		awsconfig.WithRegion(c.region),
		awsconfig.WithHTTPClient(transport),
		awsconfig.WithRetryMode(aws.RetryModeStandard),
		awsconfig.WithAppID(programName),
	}, more...)
	if c.awsEndpoint != "" {
		options = append(options, awsconfig.WithBaseEndpoint(c.awsEndpoint))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return cfg, fmt.Errorf("load the AWS configuration: %w", err)
	}
	return cfg, nil
}

// connect returns the clients for what c says. Each of their tries is counted.
func connect(ctx context.Context, c *config, metrics *telemetry.Metrics) (awsClients, error) {
	cfg, err := awsConfig(ctx, c, awsconfig.WithAPIOptions([]func(*middleware.Stack) error{metrics.AWS}))
	if err != nil {
		return awsClients{}, err
	}
	return awsClients{sqs: sqsClient(cfg, c), ec2: ec2.NewFromConfig(cfg), autoscaling: autoscaling.NewFromConfig(cfg)}, nil
}

func sqsClient(cfg aws.Config, c *config) *sqs.Client {
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if c.sqsEndpoint != "" {
			o.BaseEndpoint = &c.sqsEndpoint
		}
	})
}

// identity names this replica in the Lease: two processes never share one.
func identity(c *config) string {
	name := c.podName
	if name == "" {
		name, _ = os.Hostname()
	}
	return name + "_" + rand.String(8)
}

// handlers are what probes and metrics are served by, as c says, by port: one
// serves both if they want the same. Nothing else is served.
func handlers(c *config, metrics *telemetry.Metrics, probes *health) map[int]*http.ServeMux {
	muxes := map[int]*http.ServeMux{}
	mux := func(port int) *http.ServeMux {
		if muxes[port] == nil {
			muxes[port] = http.NewServeMux()
		}
		return muxes[port]
	}
	if c.probesServer {
		m := mux(c.probesPort)
		m.HandleFunc("GET "+c.probesPath, probes.alive)
		if c.probesPath != "/readyz" {
			m.HandleFunc("GET /readyz", probes.ready)
		}
	}
	if c.prometheusServer {
		mux(c.prometheusPort).Handle("GET /metrics", metrics.Handler())
	}
	return muxes
}

// listen serves handlers by port.
func listen(ctx context.Context, log logr.Logger, muxes map[int]*http.ServeMux) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for port, m := range muxes {
		s, err := serveHTTP(ctx, log, port, m)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
	}
	return stop, nil
}
