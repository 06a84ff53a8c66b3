package main

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// sandboxed is a real control plane.
type sandboxed struct {
	*sandbox.Cluster

	kube kubernetes.Interface
	path string // of the kubeconfig
}

func startSandbox(ctx context.Context, manifests string, out io.Writer) (_ *sandboxed, err error) {
	started, err := sandbox.Start(ctx, sandbox.Options{Out: out})
	if err != nil {
		return nil, err
	}
	c := &sandboxed{Cluster: started}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if c.kube, err = unlimited(started.Config()); err != nil {
		return nil, err
	}
	if err := release.Apply(ctx, started, manifests, release.Name, "Deployment"); err != nil {
		return nil, err
	}
	c.path, err = started.ServiceAccountKubeconfig(ctx, release.Name, release.Name)
	return c, err
}

func (c *sandboxed) stop()                      { _ = c.Stop() } // its directory is in the way of nobody
func (c *sandboxed) kubeconfig() string         { return c.path }
func (c *sandboxed) forget()                    {}
func (c *sandboxed) replacements() replacements { return replacements{} }
func (c *sandboxed) peaks() []string            { return nil }

// parallel: on 2 cores more does not make the API server faster.
func (c *sandboxed) parallel() int { return setUps }

func (c *sandboxed) addNode(ctx context.Context, n node, pods nodePods) error {
	spec := sandbox.NodeSpec{Name: n.name, ProviderID: n.providerID()}
	if _, err := c.AddNode(ctx, spec); err != nil {
		return err
	}
	grace := max(30, int64(pods.stop/time.Second))
	for k := range pods.count {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: n.pod(k), Namespace: metav1.NamespaceDefault,
				Annotations: map[string]string{sandbox.StopAfter: fmt.Sprintf("%dms", pods.stop.Milliseconds())},
			},
			Spec: corev1.PodSpec{
				NodeName: n.name, TerminationGracePeriodSeconds: &grace,
				Containers: []corev1.Container{{Name: "c", Image: "none"}},
			},
		}
		if _, err := c.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (c *sandboxed) awaitRunning(ctx context.Context) error {
	for {
		notRunning := metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1}
		pods, err := c.kube.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, notRunning)
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

func (c *sandboxed) removeNode(ctx context.Context, name string) error {
	return c.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}

// watch returns when it has seen what there is.
func (c *sandboxed) watch(ctx context.Context, r *record) error {
	factory := informers.NewSharedInformerFactory(c.kube, 0)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { note(r, obj, false) },
		UpdateFunc: func(_, obj any) { note(r, obj, false) },
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj
			}
			note(r, obj, true)
		},
	}
	core := factory.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.Nodes().Informer(), core.Pods().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return ctx.Err()
}

func note(r *record, obj any, deleted bool) {
	switch obj := obj.(type) {
	case *corev1.Node:
		if obj.Spec.Unschedulable {
			r.noteCordoned(obj.Name)
		}
	case *corev1.Pod:
		if obj.DeletionTimestamp != nil {
			r.noteEvicted(obj.Spec.NodeName)
		}
		if deleted {
			r.noteGone(obj.Spec.NodeName)
		}
	}
}

// calls reads the audit log.
func (c *sandboxed) calls(from, to time.Time) (map[string]int, error) {
	user := "system:serviceaccount:" + release.Name + ":" + release.Name
	events, err := c.Audit(func(e sandbox.AuditEvent) bool {
		return e.User == user && e.Received.After(from) && e.Received.Before(to)
	})
	if err != nil {
		return nil, err
	}
	calls := map[string]int{}
	for _, e := range events {
		name := e.Verb + " " + e.Resource
		if e.Subresource != "" {
			name += "/" + e.Subresource
		}
		if e.Code >= 400 {
			name += fmt.Sprintf(" %d", e.Code)
		}
		calls[name]++
	}
	return calls, nil
}
