package decision

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// Labels and taints of Karpenter.
// https://karpenter.sh/docs/reference/settings/
const (
	// NodePoolLabel is a label of each of Karpenter's nodes.
	NodePoolLabel = "karpenter.sh/nodepool"
	// DisruptedTaint is the key of the taint that Karpenter puts on a node before it drains it.
	DisruptedTaint = "karpenter.sh/disrupted"
)

// Those who get the pods off a node, as a rule says it.
const (
	ByHandler   = intent.ByHandler
	ByKarpenter = intent.ByKarpenter
)

const (
	// karpenterLead is how long before the deadline Karpenter is to be done. Karpenter deletes a pod at its
	// time less the pod's grace, looks once a second, and its time has whole seconds. Our own last moment
	// for a pod is 5 s before the deadline less its grace. With 2 s more Karpenter is the first to act, and if
	// it does not, nothing is lost.
	karpenterLead = 7 * time.Second
	// actsWithin is how long Karpenter may take to begin with a drain that is urgent, and patience with one that
	// is not. It begins within a second. Another replica of it leads some 20 s after the leader has died.
	actsWithin = 5 * time.Second
	patience   = time.Minute
)

// Drains says who gets the pods off a node with this intent and these labels, and why.
//
//	                                        who        why
//	not a node of Karpenter's               handler    -
//	the option is off                       handler    -, or by a rule that says Karpenter: refused
//	the node is only cordoned               handler    -
//	Karpenter was asked already             Karpenter  it cannot be taken back
//	a rule says the handler                 handler    rule
//	otherwise                               Karpenter  -
func (p Policy) Drains(i intent.Intent, labels map[string]string) (intent.By, Why) {
	switch by := i.Terms().By; {
	case labels[NodePoolLabel] == "", CordonsOnly(i, p):
		return intent.ByHandler, ""
	case !p.DrainByKarpenter && by == intent.ByKarpenter:
		return intent.ByHandler, WhyKarpenterOff
	case !p.DrainByKarpenter:
		return intent.ByHandler, ""
	case by == intent.ByHandler && !i.Delegated():
		return intent.ByHandler, WhyRuleByHandler
	}
	return intent.ByKarpenter, WhyDelegated
}

// KarpenterDeadline is when Karpenter is to be done with the drain for an intent; zero: it takes the time that
// it needs, because nothing is to be forced.
func KarpenterDeadline(i intent.Intent) time.Time {
	d := i.Deadline()
	if d.IsZero() || i.Terms().Patient {
		return time.Time{}
	}
	return d.Add(-karpenterLead)
}

// KarpenterBeginsBy is until when Karpenter has to have begun with a drain that it was asked for, before the
// handler drains the node itself.
func KarpenterBeginsBy(i intent.Intent, asked, now time.Time, p Policy) time.Time {
	if !CanWait(i, now, p) {
		return asked.Add(actsWithin)
	}
	return asked.Add(patience)
}
