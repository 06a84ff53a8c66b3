package drain

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// A Filter says which pods have to leave a node: those that `kubectl drain --force` would evict, with
// these options. kubectl itself decides; see choose.
type Filter struct {
	// IgnoreDaemonSets keeps quiet about the pods of DaemonSets. They stay in any case, except for those
	// that a rule or their annotation has leave.
	IgnoreDaemonSets bool
	// DeleteEmptyDir lets pods go that use emptyDir volumes. Without it they stay.
	DeleteEmptyDir bool
}

// A candidate is a pod that may have to leave, and when its rule or annotation has it leave.
type candidate struct {
	pod  *corev1.Pod
	turn decision.Turn
}

// mustLeave says of each candidate, all of one node, whether it has to leave. A pod of a DaemonSet whose turn
// comes has to leave under the rules for the others: a static pod stays, and DeleteEmptyDir counts. warnings is
// what `kubectl drain` would print of them.
func (f Filter) mustLeave(candidates []candidate) (answers []chosen, warnings string) {
	answers = make([]chosen, len(candidates))
	var pods []corev1.Pod
	var asked []int // the candidate of each
	for k, c := range candidates {
		switch {
		case c.turn.Stays && !ofDaemonSet(c.pod):
			if _, static := c.pod.Annotations[corev1.MirrorPodAnnotationKey]; !static { // which no drain moves
				answers[k].why = "it " + c.turn.String()
			}
			continue
		case c.turn.Stays && c.turn.Why != "": // it would come again, or that is wanted
			continue
		}
		pods, asked = append(pods, *c.pod), append(asked, k)
		if ofDaemonSet(c.pod) && !c.turn.Stays {
			pods[len(pods)-1].OwnerReferences = nil
		}
	}
	if len(pods) == 0 {
		return answers, ""
	}
	chosen, warnings := f.choose(pods)
	for k, answer := range chosen {
		answers[asked[k]] = answer
	}
	return answers, warnings
}
