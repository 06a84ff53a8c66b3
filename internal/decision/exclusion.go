package decision

import (
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// An Exclusion says which nodes are excluded from load balancers, by the label that service controllers
// and the AWS Load Balancer Controller heed.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-from-external-load-balancers
type Exclusion uint8

// The exclusions.
const (
	ExcludeEnding Exclusion = iota // those whose machine ends
	ExcludeAll                     // each that is cordoned
	ExcludeNone
)

// Excludes reports whether a node with this intent is to be excluded from load balancers. It is pure:
// the table of TestExcludes is its specification. With ExcludeEnding one notice of the sort that is
// excluded is enough:
//
//	spot, capacity, state change, termination hook  | excluded, also if the node is only cordoned:
//	                                                | its connections end within minutes
//	scheduled change that ends the machine          | excluded if the node is drained: until then its
//	                                                | pods go on to serve, for days maybe
//	other scheduled change, rebalance, impaired     | not excluded: the machine comes back, or may stay
func (p Policy) Excludes(i intent.Intent) bool {
	switch p.Exclusion {
	case ExcludeAll:
		return true
	case ExcludeNone:
		return false
	case ExcludeEnding:
	}
	return slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
		switch e.Kind {
		case notice.SpotInterruption, notice.CapacityReservationInterruption, notice.CapacityBlockExpiration,
			notice.StateChange, notice.ASGTerminate:
			return true
		case notice.ScheduledChange:
			return notice.EffectOf(e.Code) == notice.EndsMachine && !CordonsOnly(i, p)
		case notice.RebalanceRecommendation, notice.InstanceImpaired, notice.ASGLaunch, notice.Ignored:
		}
		return false
	})
}
