// Package surge gets a pod replaced before it leaves: it begins a rollout of the pod's Deployment. The
// Deployment controller then makes a new pod, waits until it is ready, and takes the old one away.
//
// Nothing else of a Deployment is changed, nor is its number of replicas, which may be that of an
// autoscaler or of a repository.
package surge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// Annotation is that of a Deployment's pod template which begins the rollout. Its value is the UID of the
// pod that is replaced, so that nobody begins another rollout for the same pod.
const Annotation = "node-termination-handler/surged-for"

const (
	// tryingTime bounds the tries of one Surge. What has not worked by then needs a person.
	tryingTime = time.Minute
	// requestTimeout bounds one request, so that an API server that hangs costs one try.
	requestTimeout = 10 * time.Second
)

// pauses are those after failed tries. A conflict needs only a new read.
var pauses = retry.Backoff{First: 200 * time.Millisecond, Max: 5 * time.Second, Factor: 2, Jitter: 0.2}

// Deployments begins rollouts. It may be used concurrently.
type Deployments struct {
	Client kube.Client
	// Gate bounds the requests in flight; nil: no bound.
	Gate *pace.Gate
}

// A Refusal is an error that says why a pod gets no replacement first. Another try would not change that.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// Surge begins the rollout that replaces a pod, unless it was begun before. nil: it is in progress, or
// was completed. Of the pod it reads the name, the UID and the owner. It returns a [Refusal] if
//
//   - the pod has no Deployment, or one that is being deleted;
//   - the template of the Deployment has no annotation node-termination-handler/leave: surged. That of the
//     pod proves nothing, because kubelets may write it;
//   - the Deployment has another number of replicas than one, is paused, or would take the old pod away
//     before the new one is ready (Recreate, maxSurge 0, maxUnavailable 1);
//   - its pod is not available, or another rollout has not finished.
//
// Any other error is the API server's. What may work later is tried again for a minute, or until ctx ends.
func (d Deployments) Surge(ctx context.Context, pod *corev1.Pod) error {
	deadline, _ := ctx.Deadline() // of the drain
	priority := pace.Priority{Deadline: deadline, Rank: pace.Advance, Lends: true}
	ctx, cancel := context.WithTimeout(ctx, tryingTime)
	defer cancel()
	for tries := 1; ; tries++ {
		leave, err := d.Gate.Enter(ctx, priority)
		if err != nil {
			return err
		}
		err = d.try(ctx, pod)
		leave(0)
		if err == nil || isFinal(err) || retry.Sleep(ctx, pauses.Pause(tries)) != nil {
			return err
		}
	}
}

// isFinal reports whether another try would end in the same way.
func isFinal(err error) bool {
	_, refused := errors.AsType[Refusal](err)
	return refused || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		kube.DeniedByWebhook(err.Error())
}

// try reads the pod's Deployment, and begins its rollout.
func (d Deployments) try(ctx context.Context, pod *corev1.Pod) error {
	deployment, err := d.deploymentOf(ctx, pod)
	if err != nil {
		return err
	}
	if deployment.Spec.Template.Annotations[Annotation] == string(pod.UID) {
		return nil
	}
	if why := obstacle(deployment); why != "" {
		return Refusal(why)
	}
	body, _ := json.Marshal(patchFor(deployment, pod.UID)) // it fails only for what is no JSON
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = d.Client.AppsV1().Deployments(pod.Namespace).
		Patch(ctx, deployment.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("begin a rollout of Deployment %s: %w", deployment.Name, err)
	}
	return nil
}

// deploymentOf reads the Deployment that the pod's ReplicaSet belongs to.
func (d Deployments) deploymentOf(ctx context.Context, pod *corev1.Pod) (*appsv1.Deployment, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	owner := controllerOf(pod, "ReplicaSet")
	if owner == nil {
		return nil, Refusal("it belongs to no Deployment")
	}
	apps := d.Client.AppsV1()
	set, err := read(ctx, owner, apps.ReplicaSets(pod.Namespace).Get)
	if err != nil {
		return nil, err
	}
	if owner = controllerOf(set, "Deployment"); owner == nil {
		return nil, Refusal("it belongs to ReplicaSet " + set.Name + ", which belongs to no Deployment")
	}
	return read(ctx, owner, apps.Deployments(pod.Namespace).Get)
}

// read reads an owner. One of the same name with another UID is another object.
func read[O metav1.Object](
	ctx context.Context, owner *metav1.OwnerReference, get func(context.Context, string, metav1.GetOptions) (O, error),
) (object O, err error) {
	object, err = get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && object.GetUID() != owner.UID:
		return object, Refusal(owner.Kind + " " + owner.Name + ", which it belongs to, does not exist any more")
	case err != nil:
		return object, fmt.Errorf("get %s %s: %w", owner.Kind, owner.Name, err)
	}
	return object, nil
}

// TrimReplicaSet returns what this program reads of a ReplicaSet, which has up to 1.5 MB.
func TrimReplicaSet(r *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: trimMeta(&r.ObjectMeta)}
}

// TrimDeployment returns what this program reads of a Deployment, which has up to 1.5 MB.
func TrimDeployment(d *appsv1.Deployment) *appsv1.Deployment {
	small := &appsv1.Deployment{
		ObjectMeta: trimMeta(&d.ObjectMeta),
		Spec:       appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, Paused: d.Spec.Paused, Strategy: d.Spec.Strategy},
		Status:     d.Status,
	}
	small.Status.Conditions = nil
	small.Spec.Template.Annotations = map[string]string{}
	for _, key := range []string{decision.LeaveAnnotation, Annotation} {
		if value, there := d.Spec.Template.Annotations[key]; there {
			small.Spec.Template.Annotations[key] = value
		}
	}
	return small
}

// trimMeta keeps what identifies an object, and its controller.
func trimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	small := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		DeletionTimestamp: m.DeletionTimestamp,
	}
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		small.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return small
}

// controllerOf returns the controller of an object, if that is of this kind in the group apps.
func controllerOf(object metav1.Object, kind string) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || owner.Kind != kind || owner.APIVersion != appsv1.SchemeGroupVersion.String() {
		return nil
	}
	return owner
}

// obstacle says why a rollout of a Deployment would not replace its pod before it takes it away; empty:
// it would.
func obstacle(d *appsv1.Deployment) string {
	name := "Deployment " + d.Name
	replicas := ptr.Deref(d.Spec.Replicas, 1)
	switch {
	case d.DeletionTimestamp != nil:
		return name + " is being deleted"
	case d.Spec.Template.Annotations[decision.LeaveAnnotation] != decision.LeaveSurged.String():
		return fmt.Sprintf("the pod template of %s has no annotation %s: %s",
			name, decision.LeaveAnnotation, decision.LeaveSurged)
	case replicas != 1:
		return fmt.Sprintf("%s has %d replicas, not 1", name, replicas)
	case d.Spec.Paused:
		return name + " is paused"
	}
	if why := obstacleInStrategy(d.Spec.Strategy); why != "" {
		return name + " " + why
	}
	// As kubectl rollout status finds out whether a rollout has finished.
	status := d.Status
	switch {
	case status.ObservedGeneration < d.Generation, status.UpdatedReplicas < 1, status.Replicas > status.UpdatedReplicas:
		return "another rollout of " + name + " has not finished"
	case status.AvailableReplicas < 1:
		return "the pod of " + name + " is not available"
	}
	return ""
}

// obstacleInStrategy says why the only pod would go first; empty: its replacement would come first. The
// Deployment controller rounds maxSurge up and maxUnavailable down.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-update-deployment
func obstacleInStrategy(s appsv1.DeploymentStrategy) string {
	if s.Type == appsv1.RecreateDeploymentStrategyType {
		return "has the strategy Recreate"
	}
	if s.RollingUpdate == nil {
		return "" // 25% of both
	}
	if surge, given := ofOne(s.RollingUpdate.MaxSurge, true); given && surge < 1 {
		return "has maxSurge " + s.RollingUpdate.MaxSurge.String()
	}
	if unavailable, given := ofOne(s.RollingUpdate.MaxUnavailable, false); given && unavailable > 0 {
		return "has maxUnavailable " + s.RollingUpdate.MaxUnavailable.String() + ", so that its pod may go first"
	}
	return ""
}

// ofOne is a number of pods, or a percentage of one pod. What cannot be read counts as not given: the API
// server accepts none of it.
func ofOne(n *intstr.IntOrString, up bool) (pods int, given bool) {
	if n == nil {
		return 0, false
	}
	pods, err := intstr.GetScaledValueFromIntOrPercent(n, 1, up)
	return pods, err == nil
}

// patchFor is a JSON merge patch of a Deployment. It is accepted only for the version that was read.
func patchFor(d *appsv1.Deployment, pod types.UID) map[string]any {
	return map[string]any{
		"metadata": metav1.ObjectMeta{UID: d.UID, ResourceVersion: d.ResourceVersion},
		"spec": map[string]any{"template": map[string]any{
			"metadata": metav1.ObjectMeta{Annotations: map[string]string{Annotation: string(pod)}},
		}},
	}
}
