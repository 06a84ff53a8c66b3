package delivery

import (
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/report/describe"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

// kinds are the names of AWS Node Termination Handler. It does not know the last three.
var kinds = map[notice.Kind]string{
	notice.SpotInterruption:        "SPOT_ITN",
	notice.RebalanceRecommendation: "REBALANCE_RECOMMENDATION",
	notice.StateChange:             "STATE_CHANGE",
	notice.ScheduledChange:         "SCHEDULED_EVENT",
	notice.ASGTerminate:            "ASG_LIFECYCLE",
	notice.ASGLaunch:               "ASG_LAUNCH_LIFECYCLE",

	notice.CapacityReservationInterruption: "CAPACITY_RESERVATION_INTERRUPTION",
	notice.CapacityBlockExpiration:         "CAPACITY_BLOCK_EXPIRATION",
	notice.InstanceImpaired:                "INSTANCE_IMPAIRED",
}

// interruptionOf puts a decision about a machine in a template's terms.
func interruptionOf(d report.Decision, m describe.Machine) webhook.Interruption {
	d, m = harmless(d, m)
	m = m.About(d)
	i := webhook.Interruption{
		EventID: d.Notice.ID, Kind: kinds[d.Notice.Kind], Monitor: webhook.SQSMonitor, Description: describe.Decision(d),
		AutoScalingGroupName: d.Notice.Hook.Group, NodeName: d.Node.Name, NodeLabels: m.Labels, IsManaged: true,
		InstanceID: m.Instance, InstanceType: m.Type, ProviderID: m.ProviderID, InstanceLifeCycle: m.Lifecycle,
		StartTime: d.Notice.Time, EndTime: d.Deadline, Deadline: d.Deadline, Rule: d.Rule,
		Phase: webhook.PhaseReceived, InProgress: true,
		AccountId: m.Account, Region: m.Region, AvailabilityZone: m.Zone,
		PublicHostname: m.Addresses[corev1.NodeExternalDNS], PublicIP: m.Addresses[corev1.NodeExternalIP],
		LocalHostname: m.Addresses[corev1.NodeInternalDNS], LocalIP: m.Addresses[corev1.NodeInternalIP],
	}
	if d.Why == decision.WhyNotifiedByRule {
		i.NodeProcessed, i.InProgress = true, false
	}
	if d.Notice.Kind == notice.StateChange {
		i.State = d.Notice.Detail
	}
	if d.Notice.Kind == notice.ScheduledChange && !d.Notice.Deadline.IsZero() {
		i.StartTime, i.EndTime = d.Notice.Deadline, time.Time{}
	}
	return i
}

// harmless replaces the characters that have a meaning where templates put them. The templates of
// AWS Node Termination Handler, its default among them, write fields between the quotes of JSON as
// they are: a quote would end the text, and what follows could add fields. Chat services read
// <!channel> as a call to everybody. The name of an Auto Scaling group may contain such characters.
// A kubelet may write them into its Node, and into the annotation with the intent.
func harmless(d report.Decision, m describe.Machine) (report.Decision, describe.Machine) {
	n := &d.Notice
	for _, text := range []*string{
		&n.ID, &n.Account, &n.Region, &n.Detail, &n.Hook.Group, &n.Hook.Name, &d.Instance, &d.Node.Name,
		&m.Instance, &m.ProviderID, &m.Type, &m.Zone,
	} {
		*text = standIns(*text)
	}
	m.Addresses = maps.Clone(m.Addresses)
	for kind, address := range m.Addresses {
		m.Addresses[kind] = standIns(address)
	}
	return d, m
}

// standIns replaces characters that end a text, a tag or a line by similar ones.
func standIns(text string) string {
	return strings.Map(func(r rune) rune {
		if at := strings.IndexRune("\"`\\<>", r); at >= 0 {
			return rune("''/()"[at])
		}
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, text)
}

// ended is the same interruption when its node's drain has ended.
func ended(i webhook.Interruption, d report.Drain) webhook.Interruption {
	i.Phase = webhook.Phase(d.Outcome)
	i.Description = describe.Drain(d)
	i.NodeProcessed, i.InProgress = true, false
	i.Deadline, i.Took = d.Deadline(), describe.Rounded(d.Took)
	r := d.Result
	const most = 100 // names; a message with more is too long for chat services
	i.Evicted, i.Forced, i.Ended = r.Evicted, r.Forced, r.Ended
	i.Missed, i.Lost = evacuation.Names(r.Missed, most), evacuation.Names(r.Lost, most)
	i.Unconfirmed = evacuation.Names(r.Unconfirmed, most)
	return i
}
