package evacuation

import (
	"fmt"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Result says how a drain ended. Each pod that had to leave is counted in exactly one of the
// first six fields. One that has ended has left, though finalizers may keep its object. Names of pods are
// namespace/name.
type Result struct {
	Evicted int // pods that left after an eviction
	Forced  int // pods that left after they were deleted: time ran out, or budgets were ignored
	Ended   int // pods that left without us: they had ended or were stopping already, or somebody else deleted them
	// Missed are pods that were still there at the deadline.
	Missed []string
	// Lost are pods that were still there when the machine was gone; see ErrMachineGone.
	Lost []string
	// Unconfirmed are pods that should have ended, but whose kubelet has not confirmed it.
	Unconfirmed []string

	// Surged are those of the Ended whose workload had begun to roll out a replacement.
	Surged []string
	// Stayed are pods that an option, a rule or their owner keeps on the node.
	Stayed []string
	// Returned are pods that came during the drain and stay. If they were asked to leave, they
	// would come again.
	Returned []string
	Self     bool // the only pod left is the one of this program
	Volumes  int  // volumes of the pods that were still attached when they were not waited for any more

	Record Record
}

// A Record says what happened in a drain, for people.
type Record struct {
	// FirstAsked and LastAsked are when pods were asked to leave; zero: none was.
	FirstAsked, LastAsked time.Time
	LastLeft              time.Time     // when the last pod that had run was gone or had ended; zero: none had
	PodsGone              time.Time     // when no pod was waited for any more
	VolumesTook           time.Duration // how long volumes were waited for then
	EvictedPods           []string      // the names of the Evicted, sorted
	ForcedPods            []string      // the names of the Forced, sorted
	// CutShort are pods that were killed before their grace period was over, because the machine goes away: the name, and
	// how much of it they had, such as "shop/web-0 after 1m55s of 10m0s". They are sorted.
	CutShort []string
	// Kept is what has refused evictions, and what has kept pods to the end. What has kept most pods comes first, and
	// some of it is left out if there is much.
	Kept []overview.Refusal
}

// Names returns the first names of pods, at most so many, and then how many more there are.
func Names(pods []string, most int) []string {
	if len(pods) <= most {
		return pods
	}
	return append(slices.Clone(pods[:most]), fmt.Sprintf("and %d more", len(pods)-most))
}
