package drain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

func TestThePodsThatLeaveAreThoseThatKubectlEvicts(t *testing.T) {
	ownedBy := func(apiVersion, kind string, controller bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: apiVersion, Kind: kind, Name: "owner", Controller: &controller},
			}
		}
	}
	var (
		replicated = ownedBy("apps/v1", "ReplicaSet", true)
		daemon     = ownedBy("apps/v1", "DaemonSet", true)
		static     = func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
		emptyDir   = func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
				Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			})
		}
		in = func(phase corev1.PodPhase) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Status.Phase = phase }
		}
		stopping   = func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(-time.Hour))) }
		ignore     = Filter{IgnoreDaemonSets: true}
		deleteData = Filter{DeleteEmptyDir: true}
		both       = Filter{IgnoreDaemonSets: true, DeleteEmptyDir: true}
	)
	const daemonSets, localData = "ignore-daemon-sets", "delete-local-data" // the options
	type edits []func(*corev1.Pod)
	for name, tt := range map[string]struct {
		pod    edits
		filter Filter
		stays  bool
		option string // that why names
	}{
		"a pod with a controller leaves":                          {pod: edits{replicated}},
		"so does one without, though nothing makes it anew":       {},
		"and one that has not started":                            {pod: edits{in(corev1.PodPending)}},
		"and one whose node is unreachable":                       {pod: edits{in(corev1.PodUnknown)}},
		"and one that has been stopping for long":                 {pod: edits{stopping}},
		"the pod of a DaemonSet stays, and the option is named":   {pod: edits{daemon}, stays: true, option: daemonSets},
		"without a word if DaemonSets are to be ignored":          {pod: edits{daemon}, filter: ignore, stays: true},
		"it leaves when it has succeeded":                         {pod: edits{daemon, in(corev1.PodSucceeded)}},
		"or failed":                                               {pod: edits{daemon, in(corev1.PodFailed)}, filter: ignore},
		"a pod that a DaemonSet owns and does not control leaves": {pod: edits{ownedBy("apps/v1", "DaemonSet", false)}},
		"so does one of what only has that name":                  {pod: edits{ownedBy("apps.example.com/v1", "DaemonSet", true)}},
		"a static pod stays without a word":                       {pod: edits{static}, stays: true},
		"also when it has ended":                                  {pod: edits{static, in(corev1.PodSucceeded)}, filter: both, stays: true},
		"a pod with an emptyDir stays, and the option is named":   {pod: edits{replicated, emptyDir}, stays: true, option: localData},
		"whatever is done with DaemonSets":                        {pod: edits{replicated, emptyDir}, filter: ignore, stays: true, option: localData},
		"it leaves with the option":                               {pod: edits{replicated, emptyDir}, filter: deleteData},
		"and when it has ended":                                   {pod: edits{replicated, emptyDir, in(corev1.PodFailed)}},
		"a DaemonSet's pod with an emptyDir is first of all that": {pod: edits{daemon, emptyDir}, stays: true, option: daemonSets},
		"also where data may be deleted":                          {pod: edits{daemon, emptyDir}, filter: deleteData, stays: true, option: daemonSets},
		"and stays without a word if DaemonSets are ignored":      {pod: edits{daemon, emptyDir}, filter: ignore, stays: true},
		"a static pod with an emptyDir is first of all static":    {pod: edits{static, emptyDir}, stays: true},
		"other volumes do not matter": {pod: edits{func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
			}
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{NodeName: "n"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning},
			}
			for _, edit := range tt.pod {
				edit(pod)
			}
			before := pod.DeepCopy()
			answers, _ := tt.filter.mustLeave([]candidate{{pod, decision.Turn{Stays: ofDaemonSet(pod)}}})
			leaves, why := answers[0].leaves, answers[0].why
			if leaves == tt.stays || (why == "") != (tt.option == "") || !strings.Contains(why, tt.option) {
				t.Errorf("leaves = %t, %q; want %t, naming %q", leaves, why, !tt.stays, tt.option)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod, which others read, was changed:\n%s", diff)
			}
		})
	}
}

func BenchmarkFilterOf100Pods(b *testing.B) {
	owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", Controller: new(true)}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", OwnerReferences: owner}}
	b.ReportAllocs()
	candidates := slices.Repeat([]candidate{{pod, decision.Turn{Stays: ofDaemonSet(pod)}}}, 100)
	for b.Loop() {
		Filter{}.mustLeave(candidates)
	}
}
