// Package kubectl asks kubectl's own filters which pods have to leave a node. It
// alone imports k8s.io/kubectl, whose loop around them does not keep deadlines.
package kubectl

import (
	"context"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/drain"
)

// Filter decides as `kubectl drain --force` does.
type Filter struct {
	// IgnoreDaemonSets leaves pods of DaemonSets where they are without a word.
	IgnoreDaemonSets bool
	// DeleteEmptyDir lets pods go that use emptyDir volumes. Without it they stay.
	DeleteEmptyDir bool
}

// Leaves reports whether a pod has to leave its node. If not, why says what keeps
// it: empty for pods that nobody expects to leave (of a DaemonSet, or static),
// else the option that it hurts. It makes no request.
func (f Filter) Leaves(ctx context.Context, pod *corev1.Pod) (leaves bool, why string) {
	helper := drain.Helper{
		Ctx:                             ctx,
		Client:                          only{pod: pod},
		Force:                           true, // pods without a controller go too: the machine does
		GracePeriodSeconds:              -1,
		IgnoreAllDaemonSets:             f.IgnoreDaemonSets,
		Timeout:                         0,
		DeleteEmptyDirData:              f.DeleteEmptyDir,
		Selector:                        "",
		PodSelector:                     "",
		ChunkSize:                       0,
		DisableEviction:                 false,
		SkipWaitForDeleteTimeoutSeconds: 0,
		EvictErrorRetryDelay:            0,
		AdditionalFilters:               nil,
		Out:                             io.Discard,
		ErrOut:                          io.Discard,
		DryRunStrategy:                  cmdutil.DryRunNone,
		OnPodDeletedOrEvicted:           nil,
		OnPodDeletionOrEvictionFinished: nil,
		OnPodDeletionOrEvictionStarted:  nil,
	}
	list, errs := helper.GetPodsForDeletion(pod.Spec.NodeName)
	if len(errs) > 0 {
		// The filter names the pods behind its reason: "cannot delete ...: ns/name".
		reason, _, _ := strings.Cut(errs[0].Error(), ":")
		return false, reason
	}
	return len(list.Pods()) > 0, ""
}

// only is a client whose cluster is one pod, so that kubectl's filters decide
// about what the watch has brought, without a request. Its DaemonSets exist: an
// orphaned pod of a DaemonSet loses its owner reference with the DaemonSet.
type only struct {
	kubernetes.Interface
	pod *corev1.Pod
}

type onlyCore struct {
	coreclient.CoreV1Interface
	pod *corev1.Pod
}

type onlyPods struct {
	coreclient.PodInterface
	pod *corev1.Pod
}

type (
	onlyApps       struct{ appsclient.AppsV1Interface }
	onlyDaemonSets struct{ appsclient.DaemonSetInterface }
)

func (o only) CoreV1() coreclient.CoreV1Interface                { return onlyCore{pod: o.pod} }
func (o onlyCore) Pods(string) coreclient.PodInterface           { return onlyPods{pod: o.pod} }
func (o only) AppsV1() appsclient.AppsV1Interface                { return onlyApps{} }
func (onlyApps) DaemonSets(string) appsclient.DaemonSetInterface { return onlyDaemonSets{} }

func (o onlyPods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: []corev1.Pod{*o.pod}}, nil
}

func (onlyDaemonSets) Get(_ context.Context, name string, _ metav1.GetOptions) (*appsv1.DaemonSet, error) {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}
