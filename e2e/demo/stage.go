package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

const (
	account = "123456789012"
	region  = release.Region
	zone    = region + "a"

	managedTag = "aws-node-termination-handler/managed"

	webName     = "web"
	webReplicas = 9
)

// A node of the demo, and the instance behind it.
type node struct{ name, instance string }

var nodes = []node{
	{"node-a", "i-0a1b2c3d4e5f60001"},
	{"node-b", "i-0a1b2c3d4e5f60002"},
	{"node-c", "i-0a1b2c3d4e5f60003"},
}

func nodeNames() []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.name+" "+n.instance)
	}
	return names
}

// setStage sets up all but the controller: AWS, nodes, its rights and the workload.
func (d *demo) setStage(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, soon, errors.New("it took longer than "+soon.String()))
	defer cancel()
	if err := d.setUpAWS(ctx); err != nil {
		return fmt.Errorf("set up AWS: %w", err)
	}
	for _, n := range nodes {
		spec := sandbox.NodeSpec{Name: n.name, ProviderID: "aws:///" + zone + "/" + n.instance}
		if _, err := d.cluster.AddNode(ctx, spec); err != nil {
			return err
		}
	}
	deploy := d.grantRights
	if d.playground != "" {
		deploy = d.deployHandler
	}
	if err := deploy(ctx); err != nil {
		return fmt.Errorf("apply %s: %w", d.manifests, err)
	}
	if err := d.deployWeb(ctx); err != nil {
		return fmt.Errorf("deploy %s: %w", webName, err)
	}
	return nil
}

// setUpAWS makes the queue, an instance for each node, and an Auto Scaling group
// with a hook for that of the second.
func (d *demo) setUpAWS(ctx context.Context) (err error) {
	if d.endpoint, err = d.aws.Listen(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	var instances []awssim.Instance
	for _, n := range nodes {
		instances = append(instances, awssim.Instance{
			ID: n.instance, Lifecycle: "spot", Tags: map[string]string{managedTag: "true"},
		})
	}
	return d.aws.Apply(awssim.State{
		Queues:    []awssim.Queue{{Name: queueName}},
		Instances: instances,
		Groups:    []awssim.Group{{Name: groupName, Instances: []string{nodes[1].instance}}},
		Hooks: []awssim.Hook{
			{Group: groupName, Name: hookName, Transition: awssim.Terminating, HeartbeatTimeout: hookTimeout},
		},
		Rules: []awssim.Rule{{Name: "terminations", DetailType: asgName, Queue: queueName}},
	})
}

// grantRights creates what the manifests have besides the Deployment.
func (d *demo) grantRights(ctx context.Context) error {
	return release.Apply(ctx, d.cluster, d.manifests, release.Name, "Deployment")
}

// deployWeb runs the workload, spread over the nodes, and returns when all of it
// is ready and its budget counts.
func (d *demo) deployWeb(ctx context.Context) error {
	labels := map[string]string{"app": webName}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	deployments := d.cluster.Client().AppsV1().Deployments(metav1.NamespaceDefault)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: webName},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(webReplicas)),
			Selector: selector,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      labels,
					Annotations: map[string]string{sandbox.StopAfter: "2s"}, // long enough to be seen
				},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "none"}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	budgets := d.cluster.Client().PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault)
	_, err = budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: webName},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: selector},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) (bool, error) {
		budget, err := budgets.Get(ctx, webName, metav1.GetOptions{})
		return err == nil && budget.Status.CurrentHealthy == webReplicas && budget.Status.DisruptionsAllowed == 1, err
	})
}

// poll waits until ok or an error.
func poll(ctx context.Context, ok wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, ok)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
