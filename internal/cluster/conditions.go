package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The conditions of a Node that are ours. The first two have the names that kubectl drain is to use.
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-cli/4212-declarative-node-maintenance
const (
	// DrainInProgress is true while pods leave the node.
	DrainInProgress corev1.NodeConditionType = "DrainInProgress"
	// Drained is true when all pods that had to leave have left, until the node is uncordoned.
	Drained corev1.NodeConditionType = "Drained"
	// MaintenancePlanned is true from the announcement of a scheduled change until its start.
	MaintenancePlanned corev1.NodeConditionType = "MaintenancePlanned"
)

// ReasonOver is the reason of conditions of ours that no notice is the reason for.
const ReasonOver = "DrainOver"

// ReasonOf is the reason of a condition of ours because of a notice.
func ReasonOf(kind notice.Kind) string {
	switch {
	case kind == notice.StateChange:
		return "InstanceStopping"
	case kind == notice.ASGTerminate:
		return "LifecycleHook"
	case !slices.Contains(notice.Kinds, kind): // a kubelet can write another one
		return ReasonOver
	}
	return kind.String()
}

// isOurReason reports whether it is a reason of ours: others write conditions of the same types.
func isOurReason(reason string) bool {
	return reason == ReasonOver ||
		slices.ContainsFunc(notice.Kinds, func(k notice.Kind) bool { return ReasonOf(k) == reason })
}

func isOurCondition(t corev1.NodeConditionType) bool {
	return t == DrainInProgress || t == Drained || t == MaintenancePlanned
}

// trimmedConditions are those that this program reads. The condition Ready comes first.
func trimmedConditions(node *corev1.Node) (kept []corev1.NodeCondition) {
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady:
			kept = slices.Insert(kept, 0, corev1.NodeCondition{
				Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			})
		case isOurCondition(c.Type):
			kept = append(kept, c)
		}
	}
	return kept
}

// SpeaksFor reports whether this handler says how far the drain of the node is: the node carries an intent that it
// carries out or reverts, or conditions of ours and no intent at all, as when somebody has removed it. The intent is
// zero then.
func (c *Cluster) SpeaksFor(node *corev1.Node) (intent.Intent, bool) {
	i, found, err := ReadIntent(node)
	switch {
	case err != nil:
		return intent.Intent{}, false
	case !found:
		return i, slices.ContainsFunc(node.Status.Conditions, func(n corev1.NodeCondition) bool {
			return isOurCondition(n.Type) && isOurReason(n.Reason) && n.Status == corev1.ConditionTrue
		})
	}
	return i, c.Reverts(i)
}
