package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

const (
	// soon is how long is waited for what happens at once on a machine that has nothing else to do.
	soon = 5 * time.Minute
	// spotWarning is how long before the end EC2 warns:
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
	spotWarning = 2 * time.Minute
	// hookTimeout is what users of lifecycle hooks give their nodes for a drain.
	hookTimeout = 5 * time.Minute

	spotName = "EC2 Spot Instance Interruption Warning"
	asgName  = "EC2 Instance-terminate Lifecycle Action"

	queueName = "interruptions"
	groupName = "workers"
	hookName  = "drain-before-terminate"
)

// demo is one run of the program.
type demo struct {
	options
	out timeline.Printer

	cluster  *sandbox.Cluster
	egress   *sandbox.Egress // leads the API server to the replicas of the playground; nil in the demo
	shown    string          // where the leader has served its page last
	aws      *awssim.Server
	endpoint string // of aws
	replicas []*replica
	staying  bool          // the playground shows the replicas' logs
	ended    chan *replica // gets those that end by themselves
	events   chan timeline.Event
	story    timeline.Timeline

	simulation *simulation // sends the last spot warning; nil before
}

// run sets the stage, performs the demo or stays as the playground, and clears up. It
// returns an error unless all happened that should have.
func (d *demo) run(ctx context.Context) (err error) {
	begin := time.Now()
	d.say("starting a control plane: kube-apiserver, etcd, scheduler, controller manager, KWOK for kubelets")
	cluster := sandbox.Options{Out: d.out.Out}
	if d.playground != "" {
		if d.egress, err = sandbox.NewEgress(ctx); err != nil {
			return err
		}
		defer d.egress.Close()
		cluster.APIServerFlags = []string{d.egress.Flag()}
	}
	if d.cluster, err = sandbox.Start(ctx, cluster); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cluster.Stop()) }()
	d.aws = awssim.New(awssim.Options{})
	defer d.aws.Close()

	// What stops first is deferred last: replicas, watches, endpoints, cluster.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := d.setStage(ctx); err != nil {
		return err
	}
	if d.playground != "" {
		if err := d.setUpAccount(); err != nil {
			return fmt.Errorf("set up AWS: %w", err)
		}
	}
	d.say("nodes         %s", strings.Join(d.nodeNames(), ", "))
	d.say("workload      Deployment %s, %d pods; its PodDisruptionBudget lets one at a time be missing",
		webName, webReplicas)
	if d.playground == "" {
		d.say("              Deployment %s, one pod; its PodDisruptionBudget lets none go; grace period %.0f s",
			dbName, dbGrace.Seconds())
	}
	d.events = make(chan timeline.Event)
	watching, err := watch(ctx, d.cluster.Client(), d.aws, d.events)
	if err != nil {
		return err
	}
	defer func() {
		stop()
		watching.Wait()
		if d.simulation != nil {
			<-d.simulation.ended
		}
	}()
	defer d.stopReplicas()
	if err := d.startReplicas(ctx); err != nil {
		return err
	}
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.say("controller    2 replicas with the rights that %s gives; %s leads", filepath.Dir(d.manifests), leader)
	d.say("ready after   %.0f s", time.Since(begin).Seconds())
	if d.playground != "" {
		return d.stay(ctx)
	}
	return d.perform(ctx)
}

// perform sends the notices, one after the other, and tells what comes of them.
func (d *demo) perform(ctx context.Context) error {
	d.say("")
	d.say("What follows was seen on the API server and on AWS, it is not what the controller says of itself.")
	d.out.Legend()

	warn := func(on node) func(context.Context) (timeline.Notice, error) {
		return func(ctx context.Context) (timeline.Notice, error) { return d.warnOfSpot(ctx, on) }
	}
	for _, a := range []act{{send: warn(nodes[0])}, {send: d.terminateByGroup}, {send: warn(dbNode), crash: true}} {
		if err := d.tell(ctx, a); err != nil {
			return err
		}
		if err := d.simulation.failure(); err != nil {
			return err
		}
	}
	d.out.End(d.story.Summary())
	return nil
}

// An act is a notice, and what else happens.
type act struct {
	send func(context.Context) (timeline.Notice, error)
	// crash: the leader is killed when the pods that may be evicted have been. Earlier, it could be killed within an
	// eviction, whose budget then counts a pod as disrupted for two minutes that nobody deletes.
	crash bool
}

// tell sends a notice and prints its story until the end.
func (d *demo) tell(ctx context.Context, a act) error {
	notice, err := a.send(ctx)
	if err != nil {
		return err
	}
	leader, elected := "", make(chan string, 1)
	if a.crash {
		if leader, err = d.awaitLeader(ctx); err != nil {
			return err
		}
	}
	note := func(kind timeline.Kind, what, where string) {
		now := time.Now()
		d.out.Row(timeline.Row{
			Kind: kind, Since: now.Sub(notice.Sent), Left: notice.Deadline.Sub(now), What: what, Where: where,
		})
	}
	left := notice.Deadline.Sub(notice.Sent).Seconds()
	d.out.Heading(fmt.Sprintf("%s: %s goes away in %.0f s", notice.Name, notice.Node, left))
	d.out.Row(d.story.Begin(notice))
	limit := notice.Deadline
	if d.patience > 0 {
		limit = notice.Sent.Add(d.patience)
	}
	over := time.NewTimer(time.Until(limit))
	defer over.Stop()
	evictions := len(notice.Pods) - len(notice.Guarded)
	for len(d.story.Missing()) > 0 {
		select {
		case e := <-d.events:
			for _, row := range d.story.Observe(e) {
				d.out.Row(row)
			}
			if e.Kind == timeline.PodEvicted && e.Node == notice.Node {
				evictions--
			}
			if a.crash && evictions == 0 {
				a.crash = false
				if err := d.kill(ctx, leader, elected); err != nil {
					return err
				}
			}
		case leader = <-elected:
			note(timeline.LeaderElected, leader, "goes on with the drain")
		case r := <-d.ended:
			if r.killed {
				note(timeline.LeaderKilled, r.name, "by SIGKILL")
				continue
			}
			return fmt.Errorf("%s, in the middle of it:%s", r.fate(), list(d.story.Missing()))
		case <-over.C:
			return fmt.Errorf("this did not happen within %.0f s:%s", limit.Sub(notice.Sent).Seconds(), list(d.story.Missing()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if a.crash {
		return fmt.Errorf("the leader was not killed: of the pods of %s, %d were not evicted", notice.Node, evictions)
	}
	if troubles := d.story.Troubles(); len(troubles) > 0 {
		return fmt.Errorf("this should not have happened:%s", list(troubles))
	}
	return nil
}

// warnOfSpot lets the handler's own simulate send what EventBridge sends when EC2
// takes the instance of a node back. It follows the drain as well, and
// has its own opinion of it; see simulation.
func (d *demo) warnOfSpot(ctx context.Context, on node) (timeline.Notice, error) {
	pods, err := d.podsOn(ctx, on.name)
	if err != nil {
		return timeline.Notice{}, err
	}
	before := len(d.aws.Effects())
	if err := d.startSimulation(ctx, on.name); err != nil {
		return timeline.Notice{}, err
	}
	var sent awssim.Effect
	err = poll(ctx, func(context.Context) (bool, error) {
		for _, effect := range d.aws.Effects()[before:] {
			if effect.Kind == awssim.MessageSent {
				sent = effect
				return true, nil
			}
		}
		select {
		case <-d.simulation.ended:
			return false, cmp.Or(d.simulation.failure(), fmt.Errorf("simulate sent nothing:\n%s", &d.simulation.out))
		default:
			return false, nil
		}
	})
	if err != nil {
		return timeline.Notice{}, fmt.Errorf("send the spot warning: %w", err)
	}
	at := sent.Time.Truncate(time.Second) // the times of events are whole seconds
	return timeline.Notice{
		Name: spotName, Instance: on.instance, Node: on.name, Message: sent.MessageID, Pods: pods,
		Guarded: slices.DeleteFunc(slices.Clone(pods), func(name string) bool { return !isDB(name) }),
		Sent:    at, Deadline: at.Add(spotWarning),
	}, nil
}

// simulation is a process of simulate.
type simulation struct {
	out   bytes.Buffer  // not to be read before ended
	ended chan struct{} // closed at its end; err says how it was
	err   error
}

// startSimulation runs simulate with the rights of the handler. It ends with ctx.
func (d *demo) startSimulation(ctx context.Context, node string) error {
	kubeconfig, err := d.cluster.ServiceAccountKubeconfig(ctx, release.Name, release.Name)
	if err != nil {
		return err
	}
	process := release.Replica{
		Program: d.handler, Kubeconfig: kubeconfig, Namespace: release.Name, QueueURL: d.aws.QueueURL(queueName),
		Endpoint: d.endpoint, AccessKeyID: "AKIDSIMULATE",
		Args: []string{"simulate", "spot", "--node=" + node, "--yes", "--release=none"},
	}.Command(ctx)
	s := &simulation{ended: make(chan struct{})}
	process.Stdout, process.Stderr = &s.out, &s.out
	if err := process.Start(); err != nil {
		return fmt.Errorf("start simulate: %w", err)
	}
	go func() {
		defer close(s.ended)
		s.err = process.Wait()
	}()
	d.simulation = s
	return nil
}

// failure waits for the end of simulate and says what it was not content with; nil if it was.
func (s *simulation) failure() error {
	<-s.ended
	if s.err != nil {
		return fmt.Errorf("simulate: %w:\n%s", s.err, &s.out)
	}
	return nil
}

// terminateByGroup lets the Auto Scaling group of the second node terminate its
// instance, which waits for the lifecycle hook.
func (d *demo) terminateByGroup(ctx context.Context) (timeline.Notice, error) {
	on := nodes[1]
	pods, err := d.podsOn(ctx, on.name)
	if err != nil {
		return timeline.Notice{}, err
	}
	actions, err := d.aws.StartTransition(on.instance, awssim.Terminating)
	if err != nil {
		return timeline.Notice{}, err
	}
	notice := timeline.Notice{
		Name: asgName, Instance: on.instance, Node: on.name, Pods: pods, Hook: hookName,
		Sent: actions[0].Started, Deadline: actions[0].Deadline,
	}
	for _, effect := range d.aws.Effects() {
		if effect.Kind == awssim.MessageSent {
			notice.Message = effect.MessageID // of the latest, which is the hook's
		}
	}
	return notice, nil
}

// podsOn are the names of the workload's pods on a node.
func (d *demo) podsOn(ctx context.Context, node string) ([]string, error) {
	onNode := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
	list, err := d.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, onNode)
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", node, err)
	}
	var names []string
	for _, pod := range list.Items {
		names = append(names, pod.Name)
	}
	return names, nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out.Out, format+"\n", args...) }

// printLogs writes the end of what each replica wrote. They have stopped.
func (d *demo) printLogs(out io.Writer) {
	for _, r := range d.replicas {
		fmt.Fprintf(out, "\n--- the end of the log of %s\n%s\n", r.name, r.log.LastLines(15))
	}
}

// list is a line of its own for each of what.
func list(what []string) string { return "\n  " + strings.Join(what, "\n  ") }
