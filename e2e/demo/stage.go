package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

	// dbGrace fits into a spot warning: the budget is kept for 120 - 75 - 5 = 40 s, and by then the next leader leads.
	dbName  = "db"
	dbGrace = 75 * time.Second
)

// A node of the demo, and the instance behind it.
type node struct{ name, instance string }

var nodes = []node{
	{"node-a", "i-0a1b2c3d4e5f60001"},
	{"node-b", "i-0a1b2c3d4e5f60002"},
	{"node-c", "i-0a1b2c3d4e5f60003"},
	{"node-d", "i-0a1b2c3d4e5f60004"}, // of the demo alone, with the database
}

// dbNode is where the database runs.
var dbNode = nodes[3]

// nodes are those that there are.
func (d *demo) nodes() []node {
	if d.playground != "" {
		return nodes[:3]
	}
	return nodes
}

func (d *demo) nodeNames() []string {
	var names []string
	for _, n := range d.nodes() {
		names = append(names, n.name)
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
	for _, n := range d.nodes() {
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
	for _, w := range d.workloads() {
		if err := d.deploy(ctx, w); err != nil {
			return fmt.Errorf("deploy %s: %w", w.name, err)
		}
	}
	if d.playground != "" {
		return nil
	}
	switch pods, err := d.podsOn(ctx, dbNode.name); {
	case err != nil:
		return err
	case !slices.ContainsFunc(pods, isDB):
		return fmt.Errorf("%s runs on another node than %s", dbName, dbNode.name)
	}
	return nil
}

func isDB(pod string) bool { return strings.HasPrefix(pod, dbName+"-") }

// setUpAWS makes the queue, an instance for each node, and an Auto Scaling group
// with a hook for that of the second.
func (d *demo) setUpAWS(ctx context.Context) (err error) {
	if d.endpoint, err = d.aws.Listen(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	var instances []awssim.Instance
	for _, n := range d.nodes() {
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

// A workload is a Deployment and its budget.
type workload struct {
	name        string
	replicas    int
	unavailable int           // how many the budget lets be missing
	grace       time.Duration // zero: the default
	on          string        // the node that it prefers; empty: it is spread
}

func (d *demo) workloads() []workload {
	web := workload{name: webName, replicas: webReplicas, unavailable: 1}
	if d.playground != "" {
		return []workload{web}
	}
	return []workload{web, {name: dbName, replicas: 1, grace: dbGrace, on: dbNode.name}}
}

// deploy runs a workload, and returns when all of it is ready and its budget counts.
func (d *demo) deploy(ctx context.Context, w workload) error {
	labels := map[string]string{"app": w.name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	pod := corev1.PodSpec{
		Containers: []corev1.Container{{Name: w.name, Image: "none"}},
	}
	if w.grace > 0 {
		pod.TerminationGracePeriodSeconds = new(int64(w.grace / time.Second))
	}
	if w.on == "" {
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
		}}
	} else {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{w.on}},
				}},
			}},
		}}
	}
	deployments := d.cluster.Client().AppsV1().Deployments(metav1.NamespaceDefault)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(w.replicas)),
			Selector: selector,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      labels,
					Annotations: map[string]string{sandbox.StopAfter: "2s"}, // long enough to be seen
				},
				Spec: pod,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	budgets := d.cluster.Client().PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault)
	_, err = budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt(w.unavailable)), Selector: selector},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) (bool, error) {
		budget, err := budgets.Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && int(budget.Status.CurrentHealthy) == w.replicas &&
			int(budget.Status.DisruptionsAllowed) == w.unavailable, err
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
