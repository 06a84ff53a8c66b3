package tool

import (
	"context"
	"fmt"
	"strconv"
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
	why, ready, unready := "", false, false
	for k := range list.Items {
		pod := &list.Items[k]
		p := doctor.PodOf(pod)
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		switch {
		case p.DaemonSet, ended, p.State.Leaving: // it does not lead
		case p.State.Ready && u.never != "": // it leads, by another Lease or without one
			return u
		case p.State.Ready:
			ready = true
		default:
			unready = true
			if why == "" {
				why = v.whyNotReady(ctx, pod, p.State)
			}
		}
	}
	if u.never != "" && unready {
		u.why, u.leaderless = u.never, true
	}
	switch {
	case why != "":
		u.why += ". " + why
	case ready && u.leaderless: // such as one that hangs
		u.why += ". Some count as ready: kubectl nth doctor says more"
	}
	return u
}

// whyNotReady is what a pod says itself, and its kubelet; empty: nothing yet.
func (v *Viewer) whyNotReady(ctx context.Context, pod *corev1.Pod, s doctor.State) string {
	var why []string
	if s.Waiting == "" {
		if missing := v.lacks(ctx, pod); missing != "" {
			why = append(why, "is not ready: "+missing)
		}
	}
	switch {
	case s.Restarts > 0:
		why = append(why, fmt.Sprintf("has ended %s%s", overview.Count(s.Restarts, "time"), s.Exit))
	case s.Waiting != "":
		why = append(why, "does not run: "+strings.TrimSuffix(s.Waiting+": "+s.Message, ": "))
	}
	if len(why) == 0 {
		return ""
	}
	return "Pod " + pod.Name + " " + strings.Join(why, "; it ")
}

// lacks is what a pod answers to its readiness probe; empty: it is ready, or gives no answer. The pod says where it is
// asked, and not for which path: it is asked with the rights of a person.
func (v *Viewer) lacks(ctx context.Context, pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil {
			continue
		}
		port := c.ReadinessProbe.HTTPGet.Port.String()
		for _, p := range c.Ports { // the API server knows no names here
			if p.Name == port {
				port = strconv.Itoa(int(p.ContainerPort))
			}
		}
		answer, err := v.client.CoreV1().Pods(pod.Namespace).ProxyGet("", pod.Name, port, "/readyz", nil).Stream(ctx)
		if err == nil {
			_ = answer.Close()
			continue
		}
		says, isOfPod := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
		if isOfPod { // and not of the API server
			return strings.ReplaceAll(says.Message, "\n", "; ")
		}
	}
	return ""
}
