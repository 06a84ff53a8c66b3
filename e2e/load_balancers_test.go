package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// bindings is the resource that the AWS Load Balancer Controller brings along, as far as the handler reads it.
const bindings = `{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {
    "name": "targetgroupbindings.elbv2.k8s.aws",
    "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}
  },
  "spec": {
    "group": "elbv2.k8s.aws", "scope": "Namespaced",
    "names": {"kind": "TargetGroupBinding", "listKind": "TargetGroupBindingList", "plural": "targetgroupbindings", "singular": "targetgroupbinding"},
    "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
      "type": "object", "properties": {"spec": {
        "type": "object", "required": ["serviceRef", "targetGroupARN"], "properties": {
          "targetGroupARN": {"type": "string"},
          "targetType": {"type": "string", "enum": ["instance", "ip"]},
          "serviceRef": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"x-kubernetes-int-or-string": true}}},
          "nodeSelector": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
        }}}}}}]
  }
}`

// bind adds a target group of the scenario's nodes, as the AWS Load Balancer Controller would for a NodePort.
func (s *scenario) bind(group string, delay time.Duration) {
	s.Helper()
	s.defineBindings()
	s.must(s.aws.PutTargetGroup(awssim.TargetGroup{Name: group, DeregistrationDelay: delay}))
	s.addBinding(group, fmt.Sprintf(`{"matchLabels": {"scenario": %q}}`, s.name))
}

const bindingsPath = "/apis/elbv2.k8s.aws/v1beta1"

// defineBindings adds the resource, unless the cluster has it.
func (s *scenario) defineBindings() {
	s.Helper()
	err := s.kube.CoreV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
		SetHeader("Content-Type", "application/json").Body([]byte(bindings)).Do(s.ctx).Error()
	if !apierrors.IsAlreadyExists(err) {
		s.must(err)
	}
}

// addBinding adds a binding of a target group to the nodes that a selector selects.
func (s *scenario) addBinding(group, selector string) {
	s.Helper()
	body := fmt.Sprintf(`{"apiVersion": "elbv2.k8s.aws/v1beta1", "kind": "TargetGroupBinding", "metadata": {"name": %q}, "spec": {
		"targetGroupARN": %q, "targetType": "instance", "serviceRef": {"name": "web", "port": 80},
		"nodeSelector": %s}}`, group, s.aws.TargetGroupARN(group), selector)
	s.eventually("the binding is there", func() bool {
		err := s.kube.CoreV1().RESTClient().Post().AbsPath(bindingsPath, "namespaces", s.name, "targetgroupbindings").
			SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(s.ctx).Error()
		return err == nil || apierrors.IsAlreadyExists(err)
	})
}

// A balancer plays a load balancer with one target group, and the controller that registers nodes with it. Each
// node is a listener that ends with its machine. The balancer learns of a change a moment later, as a real one.
type balancer struct {
	*scenario
	group    string
	lag      time.Duration // until it knows of a change of its targets
	delay    time.Duration
	backends map[string]string // the addresses of the machines, by instance
	listener net.Listener

	mu      sync.Mutex
	current []string // the instances that get new connections
	next    int
	made    int
	early   int // machines that ended while they were targets still
	failed  []string
}

// balance registers the nodes with the group and begins to send connections to them, until stop is called.
func (s *scenario) balance(group string, nodes []node, delay time.Duration) (b *balancer, stop func()) {
	s.Helper()
	b = &balancer{scenario: s, group: group, delay: delay, lag: delay / 6, backends: map[string]string{}}
	ctx, cancel := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	for _, n := range nodes {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		s.must(err)
		b.backends[n.instance] = l.Addr().String()
		s.must(s.aws.RegisterTarget(group, n.instance, 0))
		all.Go(func() { b.playMachine(ctx, n, l) })
	}
	var err error
	b.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	s.must(err)
	b.learn(s.aws.Targets(group))
	all.Go(func() { b.playController(ctx) })
	all.Go(func() { b.follow(ctx) })
	all.Go(func() { b.serve(ctx) })
	return b, func() {
		cancel()
		all.Wait()
	}
}

// playMachine echoes lines until the machine ends: then it takes its connections along.
func (b *balancer) playMachine(ctx context.Context, n node, l net.Listener) {
	var mu sync.Mutex
	var open []net.Conn
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // ends with the connection
			})
		}
	})
	for b.runs(n.instance) && sleep(ctx, 50*time.Millisecond) {
	}
	_ = l.Close()
	isTarget := func(t awssim.Target) bool { return t.ID == n.instance }
	if !b.runs(n.instance) && slices.ContainsFunc(b.aws.Targets(b.group), isTarget) {
		b.mu.Lock()
		b.early++
		b.mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

func (b *balancer) runs(instance string) bool {
	for _, i := range b.aws.Instances() {
		if i.ID == instance {
			return i.State == "running"
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// playController deregisters the nodes that are excluded from load balancers.
func (b *balancer) playController(ctx context.Context) {
	for done := map[string]bool{}; sleep(ctx, 300*time.Millisecond); {
		list, err := b.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelNodeExcludeBalancers + ",scenario=" + b.name})
		if err != nil {
			continue
		}
		for k := range list.Items {
			if id := cluster.InstanceID(&list.Items[k]); !done[id] && b.aws.DeregisterTarget(b.group, id) == nil {
				done[id] = true
			}
		}
	}
}

// follow learns of the targets, later than they change.
func (b *balancer) follow(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for sleep(ctx, 100*time.Millisecond) {
		seen := b.aws.Targets(b.group)
		all.Go(func() {
			if sleep(ctx, b.lag) {
				b.learn(seen)
			}
		})
	}
}

func (b *balancer) learn(targets []awssim.Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current = nil
	for _, t := range targets {
		if t.State == "healthy" {
			b.current = append(b.current, t.ID)
		}
	}
}

// serve sends each connection to the next target.
func (b *balancer) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = b.listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer client.Close()
			b.mu.Lock()
			id := b.current[b.next%len(b.current)]
			b.next++
			b.mu.Unlock()
			backend, err := new(net.Dialer).DialContext(ctx, "tcp", b.backends[id])
			if err != nil {
				return // the client sees its connection close
			}
			defer backend.Close()
			var both sync.WaitGroup
			for _, way := range [][2]net.Conn{{client, backend}, {backend, client}} {
				both.Go(func() {
					_, _ = io.Copy(way[1], way[0]) // until either has closed it
					_ = way[1].(*net.TCPConn).CloseWrite()
				})
			}
			both.Wait()
		})
	}
}

// connect makes a connection that lasts for a while, and counts it. It fails if it is refused or cut.
func (b *balancer) connect(ctx context.Context, lasts time.Duration) {
	err := func() error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", b.listener.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		lines := bufio.NewReader(c)
		for begin := time.Now(); time.Since(begin) < lasts; {
			if _, err := fmt.Fprintln(c, "ping"); err != nil {
				return err
			}
			if line, err := lines.ReadString('\n'); err != nil || line != "ping\n" {
				return fmt.Errorf("after %v: %q, %w", time.Since(begin), line, errors.Join(err))
			}
			sleep(ctx, lasts/8)
		}
		return nil
	}()
	if ctx.Err() != nil { // the test has ended it
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made++
	if err != nil {
		b.failed = append(b.failed, err.Error())
	}
}

// deregistration is the delay of the target group; NTH_E2E_DEREGISTRATION=30s measures with another one.
func deregistration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("NTH_E2E_DEREGISTRATION")
	if text == "" {
		return 12 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// drainBehind drains nodes behind a load balancer while clients connect, and returns how many connections were made,
// how many machines ended while they were targets, and what became of those that failed. The longest take two thirds of
// the delay of deregistration.
func drainBehind(
	s *scenario, draining int, delay time.Duration, pods func(node) []*corev1.Pod, before func(),
) (made, early int, failed []string) {
	s.Helper()
	s.bind("web", delay)
	nodes := s.crowd(draining+2, pods)
	gone := nodes[:draining]
	s.hook(awssim.Terminating, 3*time.Minute, gone[0])
	workers := awssim.Group{Name: "workers"}
	for _, n := range gone {
		workers.Instances = append(workers.Instances, n.instance)
	}
	s.must(s.aws.PutGroup(workers))
	before()
	b, stop := s.balance("web", nodes, delay)
	ctx, hangUp := context.WithCancel(s.ctx)
	var clients sync.WaitGroup
	for k := range 60 {
		clients.Go(func() {
			for sleep(ctx, time.Duration(10+k)*time.Millisecond) { // the slowest takes most of the delay
				b.connect(ctx, time.Duration(k)*delay*7/600)
			}
		})
	}
	s.alone()
	begin := time.Now()
	var messages []string
	for _, n := range gone {
		_, message := s.transition(n, awssim.Terminating)
		messages = append(messages, message)
	}
	s.awaitDeleted(soon, messages...)
	took := time.Since(begin)
	s.eventually("all machines are gone", func() bool {
		for _, n := range gone {
			if b.runs(n.instance) {
				return false
			}
		}
		return true
	})
	sleep(s.ctx, delay) // those that were open then end, or fail
	hangUp()
	clients.Wait()
	stop()
	calls := s.calls("elasticloadbalancing", "DescribeTargetHealth")
	s.Logf("%d nodes, delay %v: %d connections, %d failed, all hooks completed after %v, %d calls about target health",
		draining, delay, b.made, len(b.failed), took.Round(100*time.Millisecond), calls)
	return b.made, b.early, b.failed
}

func TestNoConnectionIsCutWhereTheDeadlineAllowsIt(t *testing.T) {
	tier.Full(t, "a minute, 50 nodes and 60 clients; internal/loadbalancer plays it in virtual time")
	s := newScenario(t)
	pods := func(n node) []*corev1.Pod { return []*corev1.Pod{s.newPod("web-"+n.name, n.name)} }
	var pulse *pulse
	made, early, failed := drainBehind(s, 50, deregistration(t), pods, func() { pulse = s.feel() })
	if made < 200 {
		t.Errorf("%d connections, want 200 at least", made)
	}
	if early > 0 { // on any machine
		t.Errorf("%d machines ended while they were targets", early)
	}
	if len(failed) > 0 {
		pulse.judge("%d of %d connections failed, such as:\n%s", len(failed), made, strings.Join(failed[:min(5, len(failed))], "\n"))
	}
	// One call about all of them, each ten seconds.
	var calls []awssim.Call
	for _, c := range s.aws.Calls() {
		if c.Action == "DescribeTargetHealth" {
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		t.Fatal("nobody has asked about target health")
	}
	if most := int(calls[len(calls)-1].Start.Sub(calls[0].Start)/(10*time.Second)) + 5; len(calls) > most {
		t.Errorf("%d calls, want %d at most", len(calls), most)
	}
}

// It is the wait that keeps the connections: without the permission there is none, and the label alone does not help.
func TestConnectionsAreCutWhereNobodyMayWaitForLoadBalancers(t *testing.T) {
	tier.Full(t, "80 s; it proves the test above")
	s := newScenario(t)
	none := func(node) []*corev1.Pod { return nil } // the machines end as soon as they are excluded
	delay := 3 * deregistration(t)                  // a drain takes 5 s, and longer on a slow machine: connections have to outlive it
	var pulse *pulse
	made, early, failed := drainBehind(s, 10, delay, none, func() {
		pulse = s.feel()
		s.must(s.aws.SetFault(awssim.Fault{ID: "denied", Service: "elasticloadbalancing", Code: "AccessDenied", Status: http.StatusForbidden}))
	})
	if early == 0 || len(failed) == 0 {
		pulse.judge("%d machines ended while they were targets, %d of %d connections failed: the test above proves nothing",
			early, len(failed), made)
	}
}
