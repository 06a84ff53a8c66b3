package conditions

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// written are the conditions as a person reads them.
func written(all []corev1.NodeCondition) (lines []string) {
	for _, c := range all {
		lines = append(lines, strings.Join([]string{string(c.Type), string(c.Status), c.Reason, c.Message}, " | "))
	}
	return lines
}

func TestANodeSaysHowFarItsDrainIs(t *testing.T) {
	spot := intent.Entry{Kind: notice.SpotInterruption, Time: noon, Deadline: noon.Add(2 * time.Minute)}
	hook := intent.Entry{Kind: notice.ASGTerminate, Time: noon}
	stopping := intent.Entry{Kind: notice.StateChange, Time: noon}
	planned := intent.Entry{
		Kind: notice.ScheduledChange, Code: "system-reboot", Time: noon.Add(-time.Hour), Deadline: noon.Add(time.Hour),
	}
	sooner := intent.Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000002", Time: noon, Deadline: noon.Add(time.Minute)}
	begun := intent.Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000003", Time: noon.Add(-time.Hour), Deadline: noon}
	finished := func(o intent.Outcome, entries ...intent.Entry) intent.Intent {
		return intent.Intent{Entries: entries, Outcome: o, FinishedAt: noon}
	}
	is := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message}
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	draining := []corev1.NodeCondition{
		is(cluster.DrainInProgress, yes, "SpotInterruption", "The pods leave the node; the instance goes away at 2026-06-01T12:02:00Z"),
		is(cluster.Drained, no, "SpotInterruption", "The drain has not ended"),
	}
	drained := []corev1.NodeCondition{
		is(cluster.DrainInProgress, no, "SpotInterruption", "The drain has ended"),
		is(cluster.Drained, yes, "SpotInterruption", "The pods have left the node; the instance goes away at 2026-06-01T12:02:00Z"),
	}
	rebooting := []corev1.NodeCondition{is(cluster.MaintenancePlanned, yes, "ScheduledChange", "system-reboot begins at 2026-06-01T13:00:00Z")}
	for _, tt := range []struct {
		name       string
		have       []corev1.NodeCondition
		intent     intent.Intent
		cordonOnly bool
		want       []string
	}{
		{name: "a node of nobody's interest"},
		{name: "other conditions", have: []corev1.NodeCondition{is(corev1.NodeReady, yes, "KubeletReady", "")}},
		{name: "a spot warning", intent: intent.Intent{Entries: []intent.Entry{spot}}, want: []string{
			"DrainInProgress | True | SpotInterruption | The pods leave the node; the instance goes away at 2026-06-01T12:02:00Z",
			"Drained | False | SpotInterruption | The drain has not ended",
		}},
		{name: "the same once more", have: draining, intent: intent.Intent{Entries: []intent.Entry{spot}}},
		{name: "a hook without a deadline that is known", intent: intent.Intent{Entries: []intent.Entry{hook}}, want: []string{
			"DrainInProgress | True | LifecycleHook | The pods leave the node", "Drained | False | LifecycleHook | The drain has not ended",
		}},
		{name: "an instance that stops", intent: intent.Intent{Entries: []intent.Entry{stopping}}, want: []string{
			"DrainInProgress | True | InstanceStopping | The pods leave the node", "Drained | False | InstanceStopping | The drain has not ended",
		}},
		{name: "a tighter deadline", have: draining, intent: intent.Intent{Entries: []intent.Entry{
			{Kind: notice.SpotInterruption, Deadline: noon.Add(time.Minute)},
		}}, want: []string{
			"DrainInProgress | True | SpotInterruption | The pods leave the node; the instance goes away at 2026-06-01T12:01:00Z",
			"Drained | False | SpotInterruption | The drain has not ended",
		}},
		{name: "drained", have: draining, intent: finished(intent.Drained, spot), want: []string{
			"DrainInProgress | False | SpotInterruption | The drain has ended",
			"Drained | True | SpotInterruption | The pods have left the node; the instance goes away at 2026-06-01T12:02:00Z",
		}},
		{name: "drained before anybody could say that it began", intent: finished(intent.Drained, hook), want: []string{
			"DrainInProgress | False | LifecycleHook | The drain has ended",
			"Drained | True | LifecycleHook | The pods have left the node",
		}},
		{name: "drained, told by an earlier leader", have: drained, intent: finished(intent.Drained, spot)},
		{name: "drained, by an older version", have: draining, intent: finished("", hook), want: []string{
			"DrainInProgress | False | LifecycleHook | The drain has ended", "Drained | True | LifecycleHook | The pods have left the node",
		}},
		{name: "missed", have: draining, intent: finished(intent.Missed, spot), want: []string{
			"DrainInProgress | False | SpotInterruption | The drain has ended",
			"Drained | False | SpotInterruption | Pods were still there at the deadline",
		}},
		{name: "gone", have: drained, intent: finished(intent.Gone, spot), want: []string{
			"DrainInProgress | False | SpotInterruption | The drain has ended",
			"Drained | False | SpotInterruption | The instance went away with pods on it",
		}},
		{name: "unconfirmed", have: drained, intent: finished(intent.Unconfirmed, spot), want: []string{
			"DrainInProgress | False | SpotInterruption | The drain has ended",
			"Drained | False | SpotInterruption | Pods should have ended, but no kubelet confirms it",
		}},
		{name: "undone", have: drained, intent: finished(""), want: []string{
			"DrainInProgress | False | DrainOver | No notice asks for a drain", "Drained | False | DrainOver | No notice asks for a drain",
		}},
		{name: "undone in the middle", have: draining, intent: finished(""), want: []string{
			"DrainInProgress | False | DrainOver | No notice asks for a drain", "Drained | False | DrainOver | No notice asks for a drain",
		}},
		{name: "the next episode", have: drained, intent: intent.Intent{Entries: []intent.Entry{hook}}, want: []string{
			"DrainInProgress | True | LifecycleHook | The pods leave the node", "Drained | False | LifecycleHook | The drain has not ended",
		}},
		{name: "held back", intent: intent.Intent{Entries: []intent.Entry{spot}, HeldBack: true}},
		{name: "held back, after another drain", have: drained, intent: intent.Intent{Entries: []intent.Entry{hook}, HeldBack: true}, want: []string{
			"DrainInProgress | False | LifecycleHook | The drain is held back", "Drained | False | LifecycleHook | The drain has not begun",
		}},
		{name: "only cordoned, not finished", intent: intent.Intent{Entries: []intent.Entry{hook}}, cordonOnly: true},
		{name: "only cordoned", intent: finished(intent.Cordoned, spot)},
		{name: "a planned change, held back until then", intent: intent.Intent{Entries: []intent.Entry{planned}, HeldBack: true}, want: []string{
			"MaintenancePlanned | True | ScheduledChange | system-reboot begins at 2026-06-01T13:00:00Z",
		}},
		{name: "the same once more", have: rebooting, intent: intent.Intent{Entries: []intent.Entry{planned}, HeldBack: true}},
		{name: "the next of two", have: rebooting, intent: intent.Intent{Entries: []intent.Entry{planned, sooner, begun}, HeldBack: true}, want: []string{
			"MaintenancePlanned | True | ScheduledChange | A scheduled change begins at 2026-06-01T12:01:00Z",
		}},
		{name: "the change begins", have: rebooting, intent: finished(intent.Cordoned, begun), want: []string{
			"MaintenancePlanned | False | NoMaintenancePlanned | No scheduled change is ahead that the node is to be drained for",
		}},
		{name: "the change is called off", have: rebooting, intent: finished(""), want: []string{
			"MaintenancePlanned | False | NoMaintenancePlanned | No scheduled change is ahead that the node is to be drained for",
		}},
		{name: "drained for a change that is ahead", have: rebooting, intent: finished(intent.Drained, planned), want: []string{
			"DrainInProgress | False | ScheduledChange | The drain has ended",
			"Drained | True | ScheduledChange | The pods have left the node; the instance goes away at 2026-06-01T13:00:00Z",
		}},
		{name: "a kind that a kubelet has made up", intent: intent.Intent{Entries: []intent.Entry{{Kind: 99}}}, want: []string{
			"DrainInProgress | True | DrainOver | The pods leave the node", "Drained | False | DrainOver | The drain has not ended",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := changed(tt.have, tt.intent, tt.cordonOnly, noon)
			if diff := cmp.Diff(tt.want, written(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, c := range got {
				if !c.LastHeartbeatTime.Time.Equal(noon) {
					t.Errorf("%s was last seen at %s", c.Type, c.LastHeartbeatTime)
				}
			}
		})
	}
}
