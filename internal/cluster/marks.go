package cluster

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Names of what this controller writes on a node.
const (
	// IntentAnnotation holds an intent.Intent as JSON.
	IntentAnnotation = "node-termination-handler/intent"
	// ReportAnnotation holds a notice.Report: what the pod on the node has read from the instance metadata.
	ReportAnnotation = "node-termination-handler/reported"
	// StateLabel is one of the states below or, when the work is finished, an
	// intent.Outcome. It is for people and for selectors.
	StateLabel = "node-termination-handler/state"
	// KindLabel is the kind of the notice that binds the node the most, as [notice.Kind.Dashed] has it. It is
	// for people too.
	KindLabel = "node-termination-handler/kind"

	StateWaiting  = "waiting"  // the intent is held back
	StateDraining = "draining" // the intent has unfinished work
	StateDrained  = string(intent.Drained)
)

// stateOf is the value of StateLabel for finished work. Others can write the annotation,
// and the API server would reject the whole patch for an invalid label value.
func stateOf(o intent.Outcome) string {
	switch o {
	case intent.Missed, intent.Gone, intent.Unconfirmed, intent.Cordoned:
		return string(o)
	case intent.Drained, intent.CalledOff:
	}
	return StateDrained // also for intents of older versions, which had no outcomes
}

// ReadIntent returns the intent of a node. ok is false when there is none. It returns an
// error for an annotation that cannot be read; treat the node as one without an intent.
func ReadIntent(node *corev1.Node) (i intent.Intent, ok bool, err error) {
	i, ok, err = readAnnotation(node)
	return i.ForInstance(InstanceID(node), taintPrefix), ok, err
}

// ReadReport returns what the pod on a node has reported; a zero Report where it has reported nothing.
func ReadReport(node *corev1.Node) (notice.Report, error) {
	text := node.Annotations[ReportAnnotation]
	if text == "" {
		return notice.Report{}, nil
	}
	r, err := notice.DecodeReport(text, InstanceID(node), time.Now())
	if err != nil {
		return r, fmt.Errorf("annotation %s of node %s: %w", ReportAnnotation, node.Name, err)
	}
	return r, nil
}

// readAnnotation returns the intent exactly as in the annotation.
func readAnnotation(node *corev1.Node) (i intent.Intent, ok bool, err error) {
	text, ok := node.Annotations[IntentAnnotation]
	if !ok {
		return intent.Intent{}, false, nil
	}
	if i, err = intent.Decode(text); err != nil {
		return intent.Intent{}, false, fmt.Errorf("annotation %s of node %s: %w; remove the annotation to start again",
			IntentAnnotation, node.Name, err)
	}
	return i, true, nil
}

// holding compares the intent with the node, and drops what is no longer true at that time.
func holding(i intent.Intent, node *corev1.Node, now time.Time) intent.Intent {
	if i.UncordonedAfter(node.Spec.Unschedulable) {
		i.Cordoned, i.Last = false, i.Memory(now) // a later cordon is somebody else's
		i = i.Forget(func(intent.Entry) bool { return true })
	}
	if i.UncordonedHeldBack(node.Spec.Unschedulable) {
		i.Cordoned = false
	}
	return i.Current(now)
}

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
