package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

const (
	queueName = "storm"
	zone      = release.Region + "a"
	idle      = "idle" // begins the names of nodes that are not interrupted
	// setUps is how many requests the set-up has in flight.
	setUps = 64
)

// storm is one measurement in progress.
type storm struct {
	options
	out     io.Writer
	cluster cluster
	// bare is for the floor: the handler's user, so that its requests are checked and queued as the handler's are.
	bare     kubernetes.Interface
	aws      *awssim.Server
	endpoint string
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	s := &storm{options: o, out: out, aws: awssim.New(awssim.Options{CallsKept: 200_000, EffectsKept: 200_000})}
	defer s.aws.Close()
	if o.simulate == "" {
		s.cluster, err = startSandbox(ctx, o.manifests, out)
	} else {
		s.cluster, err = startSimulated(o)
	}
	if err != nil {
		return err
	}
	defer s.cluster.stop()
	if s.endpoint, err = s.aws.Listen(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.cluster.kubeconfig())
	if err != nil {
		return err
	}
	if s.bare, err = unlimited(config); err != nil {
		return err
	}
	s.say("%d nodes of %d pods that stop in %s, %d more nodes that are not interrupted", o.nodes, o.pods, o.stop, o.idle)
	if err := s.fill(ctx, idle, o.idle, o.stop); err != nil {
		return err
	}
	if err := s.fill(ctx, "busy", o.busy, o.busyStop); err != nil {
		return err
	}
	before, err := s.measure(ctx, "floor", s.floor)
	if err != nil {
		return fmt.Errorf("measure the floor: %w", err)
	}
	h := &handler{storm: s}
	defer h.kill()
	ours, err := s.measure(ctx, "storm", h.interrupt)
	if err != nil {
		return fmt.Errorf("measure the handler: %w\n%s", err, h.log.LastLines(20))
	}
	h.kill()
	after, err := s.measure(ctx, "again", s.floor)
	if err != nil {
		return fmt.Errorf("measure the floor again: %w", err)
	}
	return s.report(ctx, ours, h, before, after)
}

func (s *storm) say(format string, args ...any) {
	fmt.Fprintf(s.out, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// measure fills the cluster, watches it while do makes all nodes empty, and clears up.
func (s *storm) measure(
	ctx context.Context, name string, do func(context.Context, []node, *record) error,
) (*record, error) {
	if err := s.fill(ctx, name, s.nodes, s.stop); err != nil {
		return nil, err
	}
	nodes := s.named(name, s.nodes)
	r := newRecord(nodes, s.pods)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := s.cluster.watch(watching, r); err != nil {
		return nil, err
	}
	s.say("%s: begins", name)
	if err := do(ctx, nodes, r); err != nil {
		return nil, err
	}
	defer s.cluster.forget()
	return r, s.clear(ctx, nodes)
}

// A node of the storm, and the instance behind it.
type node struct{ name, instance string }

func (n node) providerID() string { return "aws:///" + zone + "/" + n.instance }

// pod is the name of a pod of the node.
func (n node) pod(k int) string { return fmt.Sprintf("%s-%02d", n.name, k) }

func (s *storm) named(prefix string, n int) []node {
	nodes := make([]node, n)
	for k := range nodes {
		nodes[k] = node{fmt.Sprintf("%s-%04d", prefix, k), fmt.Sprintf("i-%08x%09x", len(prefix)*1000+int(prefix[0]), k)}
	}
	return nodes
}

// fill adds nodes and their pods, and returns when all pods run.
func (s *storm) fill(ctx context.Context, prefix string, n int, stops time.Duration) error {
	pods := nodePods{count: s.pods, stop: stops, spare: prefix == idle}
	err := each(ctx, setUps, s.named(prefix, n), func(ctx context.Context, n node) error {
		tags := map[string]string{"aws-node-termination-handler/managed": ""}
		if err := s.aws.PutInstance(awssim.Instance{ID: n.instance, Lifecycle: "spot", Tags: tags}); err != nil {
			return err
		}
		return s.cluster.addNode(ctx, n, pods)
	})
	if err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	return s.cluster.awaitRunning(ctx)
}

// clear removes the nodes, so that the next measurement has the API server alone.
func (s *storm) clear(ctx context.Context, nodes []node) error {
	return each(ctx, setUps, nodes, func(ctx context.Context, n node) error { return s.cluster.removeNode(ctx, n.name) })
}

// floor cordons all nodes and evicts all pods in bare loops.
func (s *storm) floor(ctx context.Context, nodes []node, r *record) error {
	// The first request connects, else each of the first would.
	if _, err := s.bare.CoreV1().Nodes().Get(ctx, nodes[0].name, metav1.GetOptions{}); err != nil {
		return err
	}
	r.begin()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": true}})
	if err != nil {
		return err
	}
	err = each(ctx, s.cluster.parallel(), nodes, func(ctx context.Context, n node) error {
		_, err := s.bare.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, s.cluster.parallel(), nodes, func(ctx context.Context, n node) error {
		for k := range s.pods {
			err := s.bare.PolicyV1().Evictions(metav1.NamespaceDefault).Evict(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Name: n.pod(k), Namespace: metav1.NamespaceDefault},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.awaitEmpty(ctx, r)
}

// awaitEmpty waits until all nodes are empty, and notes what replaces their pods.
func (s *storm) awaitEmpty(ctx context.Context, r *record) error {
	err := r.awaitEmpty(ctx)
	r.replaced, r.peaks = s.cluster.replacements(), s.cluster.peaks()
	return err
}

// each calls do for all items, parallel of them at once, to the first error.
func each[T any](ctx context.Context, parallel int, items []T, do func(context.Context, T) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	slots := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for _, item := range items {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, item); err != nil {
				stop(err)
			}
		})
	}
	all.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return ctx.Err()
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
