package conditions

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report/describe"
)

// reasonNotPlanned is the reason of a condition about no scheduled change.
const reasonNotPlanned = "NoMaintenancePlanned"

// changed returns the conditions that a node with this intent should have at a time, and does not have.
// cordonOnly says that no pod is asked to leave.
//
//	                                      DrainInProgress  Drained
//	no notice, held back, only cordoned   false            false
//	the drain has begun                   true             false
//	it has ended, and all pods have left  false            true
//	it has ended otherwise                false            false
//
// A condition that the node does not have counts as false: a node that is never drained gets none. Both are
// written together.
func changed(have []corev1.NodeCondition, i intent.Intent, cordonOnly bool, now time.Time) []corev1.NodeCondition {
	progress, drained := drainConditions(i, cordonOnly)
	var all []corev1.NodeCondition
	if differs(have, progress) || differs(have, drained) { // they tell one story
		all = append(all, progress, drained)
	}
	if want := maintenance(i, now); differs(have, want) {
		all = append(all, want)
	}
	for k := range all {
		all[k].LastHeartbeatTime = metav1.NewTime(now)
		all[k].LastTransitionTime = all[k].LastHeartbeatTime
		if old := find(have, all[k].Type); old != nil && old.Status == all[k].Status {
			all[k].LastTransitionTime = old.LastTransitionTime
		}
	}
	return all
}

// drainConditions are the two about the drain.
func drainConditions(i intent.Intent, cordonOnly bool) (progress, drained corev1.NodeCondition) {
	cause := i.Cause()
	reason, leaves := cluster.ReasonOf(cause.Kind), describe.At("; the instance goes away at ", i.Deadline())
	progress = corev1.NodeCondition{Type: cluster.DrainInProgress, Status: corev1.ConditionFalse, Reason: reason}
	drained = corev1.NodeCondition{Type: cluster.Drained, Status: corev1.ConditionFalse, Reason: reason}
	switch {
	case len(i.Entries) == 0:
		progress.Reason, drained.Reason = cluster.ReasonOver, cluster.ReasonOver
		progress.Message, drained.Message = "No notice asks for a drain", "No notice asks for a drain"
	case i.HeldBack:
		progress.Message, drained.Message = "The drain is held back"+leaves, "The drain has not begun"
	case !i.Finished() && cordonOnly, i.Outcome == intent.Cordoned:
		progress.Message, drained.Message = "The node is only cordoned"+leaves, "The node is only cordoned"
	case !i.Finished():
		progress.Status, progress.Message = corev1.ConditionTrue, "The pods leave the node"+leaves
		drained.Message = "The drain has not ended"
	default:
		progress.Message = "The drain has ended"
		drained.Message = cmp.Or(endings[i.Outcome], "The pods have left the node")
		if i.Outcome == intent.Drained || i.Outcome == "" { // older versions wrote none
			drained.Status, drained.Message = corev1.ConditionTrue, drained.Message+leaves
		}
	}
	return progress, drained
}

// endings are how a drain ends but with an empty node.
var endings = map[intent.Outcome]string{
	intent.Missed:      "Pods were still there at the deadline",
	intent.Gone:        "The instance went away with pods on it",
	intent.Unconfirmed: "Pods should have ended, but no kubelet confirms it",
	intent.CalledOff:   "The drain was called off",
}

// maintenance is the condition about scheduled changes: the first of those that are ahead.
func maintenance(i intent.Intent, now time.Time) corev1.NodeCondition {
	var next intent.Entry
	for _, e := range i.Entries {
		if e.Kind == notice.ScheduledChange && e.Deadline.After(now) &&
			(next.Deadline.IsZero() || e.Deadline.Before(next.Deadline)) {
			next = e
		}
	}
	if next.Deadline.IsZero() {
		return corev1.NodeCondition{
			Type: cluster.MaintenancePlanned, Status: corev1.ConditionFalse, Reason: reasonNotPlanned,
			Message: "No scheduled change is ahead that the node is to be drained for",
		}
	}
	return corev1.NodeCondition{
		Type: cluster.MaintenancePlanned, Status: corev1.ConditionTrue, Reason: cluster.ReasonOf(next.Kind),
		Message: cmp.Or(next.Code, "A scheduled change") + describe.At(" begins at ", next.Deadline),
	}
}

// differs reports whether a condition is to be written. The message counts only where it is true.
func differs(have []corev1.NodeCondition, want corev1.NodeCondition) bool {
	old := find(have, want.Type)
	if old == nil {
		return want.Status == corev1.ConditionTrue
	}
	return old.Status != want.Status || old.Reason != want.Reason ||
		want.Status == corev1.ConditionTrue && old.Message != want.Message
}

func find(have []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	at := slices.IndexFunc(have, func(c corev1.NodeCondition) bool { return c.Type == t })
	if at < 0 {
		return nil
	}
	return &have[at]
}
