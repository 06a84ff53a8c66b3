package drain

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

const (
	// byEviction is the reason of that condition where the API server has set it, for an eviction.
	// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
	byEviction = "EvictionByEvictionAPI"
	// DisruptionReason is the reason of the condition DisruptionTarget of a pod that was deleted.
	DisruptionReason = "TerminationByNodeTerminationHandler"

	// disruptionTimeout bounds the request for the condition. The deletion comes after it, and has
	// to come in time.
	disruptionTimeout = 2 * time.Second
)

// needsDisruption reports whether a pod gets the condition DisruptionTarget before it is deleted: one of a
// Job that has not got it yet. The podFailurePolicy of a Job can ignore the failure of such a pod, so that
// it does not count against the backoffLimit. An eviction sets the condition, a deletion does not.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
func needsDisruption(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String() &&
		pod.DeletionTimestamp == nil && !slices.ContainsFunc(pod.Status.Conditions, isDisruption)
}

func isDisruption(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
}

// setDisruption gives a pod the condition DisruptionTarget. It returns the version that the pod has then, if
// the deletion is to name one. A conflict is the answer to the deletion too: the pod is another one, or has
// another version. No other failure keeps the pod from being deleted.
func (r *requests) setDisruption(ctx context.Context, pod *corev1.Pod, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, disruptionTimeout)
	defer cancel()
	patched, err := r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
		disruptionPatch(pod, version, time.Now()), metav1.PatchOptions{}, "status")
	switch {
	case err == nil && version != "":
		return patched.ResourceVersion, nil
	case err == nil:
		return "", nil
	case apierrors.IsConflict(err):
		return "", err
	case apierrors.IsForbidden(err):
		r.conditionDenied.Do(func() {
			logging.Warn(r.log,
				"pods of Jobs cannot get the condition DisruptionTarget before they are deleted (logged once)",
				"error", err, "hint", "allow patch of pods/status in the ClusterRole, or such a pod counts against the "+
					"backoffLimit of its Job")
		})
	default:
		logging.Warn(r.log, "a pod did not get the condition DisruptionTarget before it is deleted",
			"pod", nameOf(pod), "error", err)
	}
	return version, nil
}

// disruptionPatch is a strategic merge patch of a pod's status. It names the pod's UID, and its version if
// there is one to name.
func disruptionPatch(pod *corev1.Pod, version string, now time.Time) []byte {
	identity := map[string]any{"uid": pod.UID}
	if version != "" {
		identity["resourceVersion"] = version
	}
	patch, _ := json.Marshal(map[string]any{ // it fails only for what is no JSON
		"metadata": identity,
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: DisruptionReason,
			Message:            "node-termination-handler deletes the pod, because its node goes away",
			LastTransitionTime: metav1.NewTime(now),
		}}},
	})
	return patch
}
