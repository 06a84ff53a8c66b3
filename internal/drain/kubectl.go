package drain

import (
	"context"
	"errors"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"
)

// kubectlDrains reports whether kubectl would evict a pod. The error is kubectl's reason to refuse to
// drain the whole node because of this pod.
//
// kubectl only chooses the pods: its rules are the ones that users know. It makes no request, as a
// podClient answers what it asks. It is asked about each pod once, when the pod is first seen, in some
// microseconds.
//
// Eviction and deletion stay ours, because kubectl's
//
//   - set no UID precondition: they could hit the pod that a StatefulSet has made on another node under
//     the same name;
//   - know one grace for all pods, and no deadline by which each of them has to be gone;
//   - are not paced: they retry after a fixed time, and read every pod once a second to see it go;
//   - print, and return errors without their type.
func (f Filter) kubectlDrains(pod *corev1.Pod) (bool, error) {
	helper := kubectl.Helper{
		Client:              podClient{pod: pod},
		Force:               true, // pods without a controller have to leave as well
		IgnoreAllDaemonSets: f.IgnoreDaemonSets,
		DeleteEmptyDirData:  f.DeleteEmptyDir,
		GracePeriodSeconds:  -1,
		Out:                 io.Discard,
		ErrOut:              io.Discard,
	}
	list, errs := helper.GetPodsForDeletion(pod.Spec.NodeName)
	if len(errs) > 0 {
		return false, errors.Join(errs...)
	}
	return len(list.Pods()) > 0, nil
}

// A podClient is the clientset of a cluster with one pod, as far as kubectl's choice of pods asks it.
// It has no other method, so that kubectl would panic if it called one. A test applies each of its rules.
type podClient struct {
	kubernetes.Interface
	pod *corev1.Pod
}

func (c podClient) CoreV1() typedcorev1.CoreV1Interface { return podCore{pod: c.pod} }
func (c podClient) AppsV1() typedappsv1.AppsV1Interface { return podApps{} }

type podCore struct {
	typedcorev1.CoreV1Interface
	pod *corev1.Pod
}

func (c podCore) Pods(string) typedcorev1.PodInterface { return podList{pod: c.pod} }

type podList struct {
	typedcorev1.PodInterface
	pod *corev1.Pod
}

func (l podList) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: []corev1.Pod{*l.pod}}, nil
}

type podApps struct{ typedappsv1.AppsV1Interface }

func (podApps) DaemonSets(string) typedappsv1.DaemonSetInterface { return podDaemonSets{} }

// podDaemonSets has the DaemonSet of each pod that says it belongs to one. kubectl asks whether it still
// exists, and evicts pods without theirs. To know that would need a request for each such pod, and a
// right more; and without it the garbage collector takes either the pod or its owner reference away.
type podDaemonSets struct{ typedappsv1.DaemonSetInterface }

func (podDaemonSets) Get(context.Context, string, metav1.GetOptions) (*appsv1.DaemonSet, error) {
	return &appsv1.DaemonSet{}, nil
}
