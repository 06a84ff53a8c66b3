package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

const (
	queueName = "storm"
	zone      = release.Region + "a"
	// parallel is how many requests set-up and floor have under way. On 2 cores
	// more does not make the API server faster.
	parallel = 64
)

// storm is one measurement under way.
type storm struct {
	options
	out        io.Writer
	cluster    *sandbox.Cluster
	kube       kubernetes.Interface
	kubeconfig string // of the handler's user
	// bare is for the floor: that user, so that its requests are checked and queued as the handler's are.
	bare     kubernetes.Interface
	aws      *awssim.Server
	endpoint string
}

func run(ctx context.Context, o options, out io.Writer) error {
	cluster, err := sandbox.Start(ctx, sandbox.Options{Out: out})
	if err != nil {
		return err
	}
	defer cluster.Stop()
	kube, err := unlimited(cluster.Config())
	if err != nil {
		return err
	}
	s := &storm{
		options: o, out: out, cluster: cluster, kube: kube,
		aws: awssim.New(awssim.Options{CallsKept: 200_000, EffectsKept: 200_000}),
	}
	defer s.aws.Close()
	if s.endpoint, err = s.aws.Listen(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	if err := release.Apply(ctx, cluster, o.manifests, release.Name, "Deployment"); err != nil {
		return err
	}
	if s.kubeconfig, err = cluster.ServiceAccountKubeconfig(ctx, release.Name, release.Name); err != nil {
		return err
	}
	handlers, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	if s.bare, err = unlimited(handlers); err != nil {
		return err
	}
	s.say("%d nodes of %d pods that stop in %s, %d more nodes that are not interrupted", o.nodes, o.pods, o.stop, o.idle)
	if err := s.fill(ctx, "idle", o.idle, o.stop); err != nil {
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
	return s.report(ours, h, before, after)
}

// unlimited is a client that the API server alone slows down.
func unlimited(config *restclient.Config) (kubernetes.Interface, error) {
	config.QPS = -1
	return kubernetes.NewForConfig(config)
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
	if err := r.watch(watching, s.kube); err != nil {
		return nil, err
	}
	s.say("%s: begins", name)
	if err := do(ctx, nodes, r); err != nil {
		return nil, err
	}
	return r, s.clear(ctx, nodes)
}

// A node of the storm, and the instance behind it.
type node struct{ name, instance string }

func (s *storm) named(prefix string, n int) []node {
	nodes := make([]node, n)
	for k := range nodes {
		nodes[k] = node{fmt.Sprintf("%s-%04d", prefix, k), fmt.Sprintf("i-%08x%09x", len(prefix)*1000+int(prefix[0]), k)}
	}
	return nodes
}

// fill adds nodes and their pods, and returns when all pods run.
func (s *storm) fill(ctx context.Context, prefix string, n int, stops time.Duration) error {
	nodes := s.named(prefix, n)
	stop := fmt.Sprintf("%dms", stops.Milliseconds())
	grace := max(30, int64(stops/time.Second))
	err := each(ctx, nodes, func(ctx context.Context, n node) error {
		tags := map[string]string{"aws-node-termination-handler/managed": ""}
		if err := s.aws.PutInstance(awssim.Instance{ID: n.instance, Tags: tags}); err != nil {
			return err
		}
		spec := sandbox.NodeSpec{Name: n.name, ProviderID: "aws:///" + zone + "/" + n.instance}
		if _, err := s.cluster.AddNode(ctx, spec); err != nil {
			return err
		}
		for k := range s.pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%02d", n.name, k), Namespace: metav1.NamespaceDefault,
					Annotations: map[string]string{sandbox.StopAfter: stop},
				},
				Spec: corev1.PodSpec{
					NodeName: n.name, TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{Name: "c", Image: "none"}},
				},
			}
			if _, err := s.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	for {
		notRunning := metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1}
		pods, err := s.kube.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, notRunning)
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return nil
		}
		if err := rest(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// clear removes the nodes, so that the next measurement has the API server alone.
func (s *storm) clear(ctx context.Context, nodes []node) error {
	return each(ctx, nodes, func(ctx context.Context, n node) error {
		return s.kube.CoreV1().Nodes().Delete(ctx, n.name, metav1.DeleteOptions{})
	})
}

// floor cordons all nodes and evicts all pods in bare loops.
func (s *storm) floor(ctx context.Context, nodes []node, r *record) error {
	r.begin()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": true}})
	if err != nil {
		return err
	}
	err = each(ctx, nodes, func(ctx context.Context, n node) error {
		_, err := s.bare.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, nodes, func(ctx context.Context, n node) error {
		for k := range s.pods {
			err := s.bare.PolicyV1().Evictions(metav1.NamespaceDefault).Evict(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%02d", n.name, k), Namespace: metav1.NamespaceDefault},
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
	return r.awaitEmpty(ctx)
}

// each calls do for all items, parallel of them at once, to the first error.
func each[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
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
