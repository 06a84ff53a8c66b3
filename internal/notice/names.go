package notice

import (
	"strings"
	"unicode"
)

// aliases are other names of the kinds, as spelling leaves them: what people say,
// what AWS calls the events, what AWS Node Termination Handler calls them, and the
// reasons in our log.
var aliases = map[Kind][]string{
	SpotInterruption:        {"spot", "spot-itn", "itn", "EC2 Spot Instance Interruption Warning"},
	RebalanceRecommendation: {"rebalance", "EC2 Instance Rebalance Recommendation"},
	StateChange:             {"state-change", "instance-stopping", "EC2 Instance State-change Notification"},
	ScheduledChange:         {"health", "scheduled-event", "AWS Health Event"},
	ASGTerminate: {
		"asg-terminate", "asg", "asg-lifecycle", "lifecycle-hook-terminating",
		"EC2 Instance-terminate Lifecycle Action",
	},
	ASGLaunch: {
		"asg-launch", "asg-launch-lifecycle", "lifecycle-hook-launching",
		"EC2 Instance-launch Lifecycle Action",
	},
	CapacityReservationInterruption: {
		"capacity-reservation", "EC2 Capacity Reservation Instance Interruption Warning",
		"EC2 Interruptible Capacity Reservation Instance Interruption Warning",
	},
	CapacityBlockExpiration: {
		"capacity-block", "Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning",
	},
	InstanceImpaired: {"impaired", "instance-status-impaired", "system-status-impaired"},
}

// Names are the kind's name, and its others; the first of these is the shortest that people say.
func (k Kind) Names() []string {
	return append([]string{k.String()}, aliases[k]...)
}

// Dashed is the kind's name in small letters, with dashes between its words, as a policy file and the label of
// a node have it.
func (k Kind) Dashed() string {
	var b strings.Builder
	name := k.String()
	for at, r := range name {
		startsWord := unicode.IsUpper(r) && at+1 < len(name) && unicode.IsLower(rune(name[at+1]))
		if at > 0 && startsWord {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// KindNamed is the kind that people mean by a name, in any case, with dashes,
// underscores, blanks or nothing between its words; Ignored: none.
func KindNamed(name string) Kind {
	for _, k := range Kinds {
		for _, n := range k.Names() {
			if spelling(n) == spelling(name) {
				return k
			}
		}
	}
	return Ignored
}

func spelling(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(name))
}
