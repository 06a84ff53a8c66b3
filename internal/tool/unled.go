package tool

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// withPods adds what the pods of the handler tell about why none of them leads. Who lacks the permission to list pods
// learns nothing.
func (v *Viewer) withPods(ctx context.Context, u unreachable) unreachable {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	list, err := v.client.CoreV1().Pods(u.pods).List(ctx, labelled)
	if err != nil {
		return u
	}
	for k := range list.Items {
		pod := &list.Items[k]
		p := doctor.PodOf(pod)
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if p.DaemonSet || ended || p.State.Leaving { // it does not lead
			continue
		}
		if u.never != "" {
			u.why, u.never, u.leaderless = u.never, "", true
		}
		if why := v.whyNotReady(ctx, pod, p.State); why != "" {
			u.why += ". " + why
			return u
		}
	}
	return u
}

// whyNotReady is what a pod says itself, or its kubelet; empty: nothing yet.
func (v *Viewer) whyNotReady(ctx context.Context, pod *corev1.Pod, s doctor.State) string {
	switch {
	case s.Ready:
		return ""
	case s.Restarts > 0:
		return fmt.Sprintf("Pod %s has ended %s%s", pod.Name, overview.Count(s.Restarts, "time"), s.Exit)
	case s.Waiting != "":
		return fmt.Sprintf("Pod %s does not run: %s", pod.Name, strings.TrimSuffix(s.Waiting+": "+s.Message, ": "))
	}
	for _, c := range pod.Spec.Containers {
		if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil {
			continue
		}
		probe := c.ReadinessProbe.HTTPGet
		get := v.client.CoreV1().Pods(pod.Namespace).ProxyGet("", pod.Name, probe.Port.String(), probe.Path, nil)
		answer, err := get.Stream(ctx)
		if err == nil { // it has become ready
			_ = answer.Close()
			continue
		}
		says, isOfPod := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
		if isOfPod { // and not of the API server
			return fmt.Sprintf("Pod %s is not ready: %s", pod.Name, strings.ReplaceAll(says.Message, "\n", "; "))
		}
	}
	return ""
}
