package drain

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// A Filter says which pods have to leave a node: those that `kubectl drain --force` would evict, with
// these options. kubectl itself decides; see kubectlDrains.
type Filter struct {
	// IgnoreDaemonSets keeps quiet about the pods of DaemonSets. They stay in any case, except for those
	// that a rule or their annotation has leave.
	IgnoreDaemonSets bool
	// DeleteEmptyDir lets pods go that use emptyDir volumes. Without it they stay.
	DeleteEmptyDir bool
}

// mustLeave reports whether a pod has to leave its node. If not, why names the option that keeps it;
// it is empty for pods that nobody expects to leave. A pod of a DaemonSet whose turn comes has to leave
// under the rules for the others: a static pod stays, and DeleteEmptyDir counts.
func (f Filter) mustLeave(pod *corev1.Pod, turn decision.Turn) (leaves bool, why string) {
	if ofDaemonSet(pod) && !turn.Stays {
		unowned := *pod
		unowned.OwnerReferences = nil
		pod = &unowned
	}
	leaves, refusal := f.kubectlDrains(pod)
	comesAgain := turn.Stays && turn.Why != ""
	if refusal == nil || comesAgain {
		return leaves, ""
	}
	// kubectl refuses to drain the node because of this pod, and names its own option for it. We keep
	// the pod, and name ours: the one without which kubectl would not refuse.
	ignoring, deleting := f, f
	ignoring.IgnoreDaemonSets = true
	deleting.DeleteEmptyDir = true
	if _, err := ignoring.kubectlDrains(pod); err == nil {
		return false, "it belongs to a DaemonSet: ignore-daemon-sets is false"
	}
	if _, err := deleting.kubectlDrains(pod); err == nil {
		return false, "it has an emptyDir volume: delete-local-data is false"
	}
	return false, refusal.Error()
}
