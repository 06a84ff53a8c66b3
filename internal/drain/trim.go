package drain

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// What the API server bounds only by the size of the whole pod is cut, so that a pod has some kilobytes at most.
const (
	mostFinalizers = 4
	mostClaims     = 27  // about as many volumes as most instances can have
	longestText    = 253 // no name of an object is longer, and no value that a rule compares with
	longestMessage = 1 << 10
)

// mostKeys bounds the keys that a PodTrimmer remembers of earlier rules.
const mostKeys = 1000

// A PodTrimmer makes pods smaller. It may be used concurrently.
type PodTrimmer struct {
	mu                  sync.Mutex
	of                  *decision.Rules // the last ones
	labels, annotations []string        // of pods that rules have read so far; nobody changes them
}

// Trim returns what this program reads of a pod: a pod has up to 1.5 MB, and who may write one could stop all drains by
// the memory that some of them take. Labels and annotations are kept if the rules read them, or those of earlier calls
// did: a drain keeps the rules that it has begun with. rules are not changed any more.
func (t *PodTrimmer) Trim(pod *corev1.Pod, rules *decision.Rules) *corev1.Pod {
	labels, annotations := t.keys(rules)
	return trim(pod, labels, annotations)
}

// keys are those that rules read by now.
func (t *PodTrimmer) keys(rules *decision.Rules) (labels, annotations []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == rules {
		return t.labels, t.annotations
	}
	labels, annotations = rules.PodKeys()
	annotations = append(annotations, corev1.MirrorPodAnnotationKey)
	if len(t.labels)+len(t.annotations) < mostKeys {
		labels, annotations = union(labels, t.labels), union(annotations, t.annotations)
	}
	t.of, t.labels, t.annotations = rules, labels, annotations
	return labels, annotations
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func trim(pod *corev1.Pod, labels, annotations []string) *corev1.Pod {
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Finalizers: pod.Finalizers[:min(len(pod.Finalizers), mostFinalizers)],
			Labels:     some(pod.Labels, labels), Annotations: some(pod.Annotations, annotations),
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, Volumes: volumesOf(pod),
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, Conditions: conditionsOf(pod)},
	}
	keepContainers(small, pod)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		small.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: cut(owner.APIVersion, longestText), Kind: cut(owner.Kind, longestText),
			Name: cut(owner.Name, longestText), UID: types.UID(cut(string(owner.UID), longestText)),
			Controller: owner.Controller,
		}}
	}
	if toleratesCordon(pod) {
		small.Spec.Tolerations = cordonTolerated
	}
	return small
}

// volumesOf are the volumes of a pod that matter: those that kubectl's filter looks for, and those that have a claim.
// Every pod has a projected one, with its token.
func volumesOf(pod *corev1.Pod) (kept []corev1.Volume) {
	local, claims := false, 0
	if pod.Status.Phase == corev1.PodFailed && len(pod.Status.ContainerStatuses) == 0 {
		claims = mostClaims // a kubelet has refused it, and so attaches none: anybody can put thousands on a node
	}
	for k := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[k]
		var small corev1.Volume
		switch {
		case v.EmptyDir != nil && !local:
			local, small.EmptyDir = true, &corev1.EmptyDirVolumeSource{}
		case claims == mostClaims:
			continue
		case v.PersistentVolumeClaim != nil:
			name := cut(v.PersistentVolumeClaim.ClaimName, longestText)
			small.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
			claims++
		case v.Ephemeral != nil:
			small.Name, small.Ephemeral = v.Name, &corev1.EphemeralVolumeSource{}
			claims++
		default:
			continue
		}
		kept = append(kept, small)
	}
	return kept
}

// conditionsOf are those conditions of a pod that are read: whether it is disrupted, and why it has no node.
func conditionsOf(pod *corev1.Pod) (kept []corev1.PodCondition) {
	for k := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[k]; {
		case isDisruption(*c):
			kept = append(kept, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: cut(c.Reason, longestText)})
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			kept = append(kept, corev1.PodCondition{
				Type: c.Type, Status: c.Status, Reason: cut(c.Reason, longestText), Message: cut(c.Message, longestMessage),
			})
		}
	}
	return kept[:min(len(kept), 2)]
}

// some returns the entries with these keys; nil: there are none. No rule compares with a value that is cut.
func some(all map[string]string, keys []string) (kept map[string]string) {
	for _, key := range keys {
		value, there := all[key]
		if !there {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = cut(value, longestText)
	}
	return kept
}

// cut returns a text of at most so many bytes.
func cut(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "")
}

// keepContainers keeps of a Pod what Ended reads of its containers.
func keepContainers(small, pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil || len(pod.Finalizers) == 0 {
		return
	}
	small.Status.InitContainerStatuses = states(pod.Status.InitContainerStatuses)
	small.Status.ContainerStatuses = states(pod.Status.ContainerStatuses)
	small.Status.EphemeralContainerStatuses = states(pod.Status.EphemeralContainerStatuses)
}

// states are the states that some containers have, each once.
func states(of []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for k := range of {
		var s corev1.ContainerState
		switch state := &of[k].State; {
		case state.Running != nil:
			s.Running = &corev1.ContainerStateRunning{}
		case state.Terminated != nil:
			s.Terminated = &corev1.ContainerStateTerminated{}
		default:
			s.Waiting = &corev1.ContainerStateWaiting{}
		}
		same := func(c corev1.ContainerStatus) bool {
			return (c.State.Running != nil) == (s.Running != nil) && (c.State.Terminated != nil) == (s.Terminated != nil)
		}
		if !slices.ContainsFunc(kept, same) {
			kept = append(kept, corev1.ContainerStatus{State: s})
		}
	}
	return kept
}
