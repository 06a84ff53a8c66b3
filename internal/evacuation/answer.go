package evacuation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// An Answer is the API server's to a request for a pod.
type Answer struct {
	Pod    *corev1.Pod
	Forced bool          // the request was to delete the pod, not to evict it
	Grace  time.Duration // the grace of the request; zero: the pod's own
	Err    error         // nil: the pod is on its way out, or was gone already
	First  bool          // no request for the pod was accepted before
	// Refusal says why an eviction was refused; empty for any other answer.
	Refusal Refusal
}

// A Refusal is why an eviction was refused.
type Refusal string

// The refusals. All but TwoBudgets end by themselves.
const (
	Budget     Refusal = "budget"      // a PodDisruptionBudget allows no disruption now
	TwoBudgets Refusal = "two-budgets" // two budgets cover the pod, which the eviction API does not support
	Namespace  Refusal = "namespace"   // the pod's namespace is being deleted, and the pod goes with it
	Busy       Refusal = "busy"        // the API server is overloaded
	Failed     Refusal = "error"       // anything else
)

// Refusals are all refusals, for metrics that start at zero.
var Refusals = []Refusal{Budget, TwoBudgets, Namespace, Busy, Failed}

// Blocked says what has kept a pod, or the last volumes, on a node for a while.
type Blocked struct {
	Node string
	Pod  *corev1.Pod // nil: it is about volumes
	Why  string
	// First is true for the first pod of the node that this cause keeps.
	First bool
}
