package drain

import (
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubectl/pkg/drain"
)

// The pods that leave are those that kubectl asks to leave: for every kind of pod
// that one of its filters looks at, with every option.
func TestThePodsThatLeaveAreThoseOfKubectlDrain(t *testing.T) {
	none := metav1.OwnerReference{}
	owners := []metav1.OwnerReference{
		none,
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", Controller: new(true)},
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "owner", Controller: new(true)},
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "owner"},
		{APIVersion: "apps.example.com/v1", Kind: "DaemonSet", Name: "owner", Controller: new(true)},
	}
	phases := []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}
	both := []bool{false, true}
	for _, owner := range owners {
		for _, phase := range phases {
			for _, static := range both {
				for _, emptyDir := range both {
					pod := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
						Spec:       corev1.PodSpec{NodeName: "n"},
						Status:     corev1.PodStatus{Phase: phase},
					}
					if owner != none {
						pod.OwnerReferences = []metav1.OwnerReference{owner}
					}
					if static {
						pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
					}
					pod.Spec.Volumes = []corev1.Volume{{Name: "secret"}}
					if emptyDir {
						pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
							Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
						})
					}
					for _, f := range []Filter{{}, {IgnoreDaemonSets: true}, {DeleteEmptyDir: true}, {IgnoreDaemonSets: true, DeleteEmptyDir: true}} {
						want, refused := kubectlDrains(t, f, pod)
						leaves, why := f.leaves(pod)
						if leaves != want || (why != "") != refused {
							t.Errorf("%+v, %s pod of %+v, static %t, emptyDir %t: leaves = %t, %q; kubectl: %t, refused %t",
								f, phase, owner, static, emptyDir, leaves, why, want, refused)
						}
					}
				}
			}
		}
	}
}

// kubectlDrains reports whether kubectl would drain the pod, or refuse the whole drain for it.
func kubectlDrains(t *testing.T, f Filter, pod *corev1.Pod) (drains, refused bool) {
	t.Helper()
	daemons := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "ns"}}
	helper := drain.Helper{
		Ctx: t.Context(), Client: fake.NewClientset(pod, daemons), Force: true, Out: io.Discard, ErrOut: io.Discard,
		IgnoreAllDaemonSets: f.IgnoreDaemonSets, DeleteEmptyDirData: f.DeleteEmptyDir,
	}
	list, errs := helper.GetPodsForDeletion("n")
	if len(errs) > 0 {
		return false, true
	}
	return len(list.Pods()) == 1, false
}

func TestAPodThatAnOptionKeepsSaysWhich(t *testing.T) {
	for option, edit := range map[string]func(*corev1.Pod){
		"ignore-daemon-sets": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "owner", Controller: new(true)}}
		},
		"delete-local-data": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		},
	} {
		pod := &corev1.Pod{}
		edit(pod)
		if leaves, why := (Filter{}).leaves(pod); leaves || !strings.Contains(why, option) {
			t.Errorf("leaves = %t, %q, which does not name %s", leaves, why, option)
		}
	}
}
