package kubectl

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLeaves(t *testing.T) {
	owned := func(kind, version string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "owner", Controller: new(true)}}
		}
	}
	emptyDir := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	mirror := func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	}
	succeeded := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	defaults := Filter{IgnoreDaemonSets: true, DeleteEmptyDir: true}
	for name, tt := range map[string]struct {
		filter Filter
		pod    []func(*corev1.Pod)
		leaves bool
		why    string
	}{
		"of a ReplicaSet":                  {filter: defaults, pod: []func(*corev1.Pod){owned("ReplicaSet", "apps/v1")}, leaves: true},
		"without a controller":             {filter: defaults, leaves: true},
		"of a DaemonSet":                   {filter: defaults, pod: []func(*corev1.Pod){owned("DaemonSet", "apps/v1")}},
		"of a DaemonSet, not ignored":      {filter: Filter{DeleteEmptyDir: true}, pod: []func(*corev1.Pod){owned("DaemonSet", "apps/v1")}, why: "DaemonSet"},
		"of a DaemonSet, finished":         {filter: defaults, pod: []func(*corev1.Pod){owned("DaemonSet", "apps/v1"), succeeded}, leaves: true},
		"mirror":                           {filter: defaults, pod: []func(*corev1.Pod){mirror}},
		"with an emptyDir":                 {filter: defaults, pod: []func(*corev1.Pod){emptyDir}, leaves: true},
		"with an emptyDir, not to be lost": {filter: Filter{IgnoreDaemonSets: true}, pod: []func(*corev1.Pod){emptyDir}, why: "local storage"},
		"with an emptyDir, finished":       {filter: Filter{IgnoreDaemonSets: true}, pod: []func(*corev1.Pod){emptyDir, succeeded}, leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{NodeName: "n"}}
			for _, edit := range tt.pod {
				edit(pod)
			}
			leaves, why := tt.filter.Leaves(t.Context(), pod)
			if leaves != tt.leaves || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("leaves = %t, %q; want %t, %q", leaves, why, tt.leaves, tt.why)
			}
		})
	}
}
