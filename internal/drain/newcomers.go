package drain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newcomers are the pods that come to a node while it is drained, and stay there. Some tolerate the
// cordon, and some are made for this very node. If somebody uncordons the node, the scheduler even
// prefers it, because it is the emptiest. The owner of such a pod makes another one on the same node
// as soon as the pod is asked to leave. If all of them had to leave, one drain would delete hundreds
// of pods of one Deployment. As it is, at most twice as many are asked as were there when the node
// was cordoned.
//
// It belongs to the goroutine of Drain.
type newcomers struct {
	cordonedAt time.Time
	// replaceable is set for each owner with a pod that was asked to leave: how many replacements
	// may still be asked to leave, too.
	replaceable map[owner]int
	staying     map[types.UID]newcomer
}

// A newcomer is a pod that came during the drain, and stays.
type newcomer struct {
	name  string
	seen  time.Time
	owner owner
}

// An owner makes a new pod when one is gone: the pod's controller, or, if it has none, whoever gives
// another pod the same name.
type owner string

func ownerOf(pod *corev1.Pod) owner {
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		return owner(controller.UID)
	}
	return owner(nameOf(pod))
}

// noteRequest notes that a pod is asked to leave, and whether it is the replacement of one that was.
func (n *newcomers) noteRequest(pod *corev1.Pod, replacement bool) {
	if replacement {
		n.replaceable[ownerOf(pod)]--
	} else {
		n.replaceable[ownerOf(pod)]++
	}
}

// admit decides whether a pod stays that was not in the first list. If it does not, replacement
// says whether it replaces a pod that was asked to leave. why is empty if another pod of the same
// owner stays already.
//
//	                         | first seen later than 5 s | before: the scheduler, or our
//	                         | after the cordon          | watch of the node, may be behind
//	tolerates the cordon     | stays                     | stays
//	is a replacement         | stays                     | leaves, unless as many as were asked
//	                         |                           | have come back and were asked too
//	the node is not cordoned | stays                     | leaves
//	otherwise                | leaves                    | leaves
//
// The first list is made after the cordon. A pod that tolerates the cordon and is not in that list
// was sent here in spite of the cordon, and would be again.
func (n *newcomers) admit(pod *corev1.Pod, cordoned bool, now time.Time) (stays, replacement bool, why string) {
	c := newcomer{name: nameOf(pod), seen: now, owner: ownerOf(pod)}
	remaining, replacement := n.replaceable[c.owner]
	tolerates := toleratesCordon(pod)
	if now.After(n.cordonedAt.Add(lateBindTime)) {
		stays = tolerates || replacement || !cordoned
	} else {
		stays = tolerates || replacement && remaining <= 0
	}
	if !stays {
		return false, replacement, ""
	}
	switch {
	case tolerates:
		why = "it tolerates the cordon"
	case replacement:
		why = "it replaces one that was asked to leave"
	default:
		why = "the node is not cordoned at the moment"
	}
	for _, other := range n.staying {
		if other.owner == c.owner {
			why = ""
		}
	}
	n.staying[pod.UID] = c
	return true, replacement, why
}

// contains reports whether a pod stays.
func (n *newcomers) contains(pod types.UID) bool {
	_, stays := n.staying[pod]
	return stays
}

// cordonedAgain notes when the node was last cordoned. If that was since the last call, it returns
// those of the pods that have to leave after all, because they came before that cordon. A replacement
// that tolerates the cordon stays: there would be another one.
func (n *newcomers) cordonedAgain(at time.Time, pods []*corev1.Pod) (leave []*corev1.Pod) {
	if at.Equal(n.cordonedAt) {
		return nil
	}
	n.cordonedAt = at
	for _, pod := range pods {
		c, stays := n.staying[pod.UID]
		if !stays || c.seen.After(at.Add(lateBindTime)) {
			continue
		}
		if _, replacement := n.replaceable[c.owner]; replacement && toleratesCordon(pod) {
			continue
		}
		delete(n.staying, pod.UID)
		leave = append(leave, pod)
	}
	return leave
}

// names returns the names of the pods that stay, sorted.
func (n *newcomers) names() []string {
	var names []string
	for _, c := range n.staying {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

// cordonTolerated is all that [Trim] keeps of the tolerations of a pod that tolerates a cordon. All
// such pods share it.
var cordonTolerated = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}

// toleratesCordon reports whether the scheduler puts a pod on a cordoned node, too.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
func toleratesCordon(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		anyValue := t.Operator == corev1.TolerationOpExists
		noValue := (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == ""
		return (t.Key == "" || t.Key == corev1.TaintNodeUnschedulable) &&
			(t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) && (anyValue || noValue)
	})
}
