// Package evacuation has the words of the drain's main part, in which the pods leave the node: what is
// asked of it, how far it has come, how it ends. Package drain carries it out. Whoever only asks or reports
// needs this package alone, which makes no request and does not know kubectl.
package evacuation

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Request is an evacuation that somebody asks for.
type Request struct {
	Node  string
	Terms Terms
	// Resumed: an earlier leader has begun it. What that has asked of pods that are still there counts here.
	Resumed bool
	// Rules say when each pod leaves. They must not change meanwhile. Pods have annotations for that,
	// too, which count without a rule; see [decision.Rules.TurnOf].
	Rules decision.Rules
	// Changed delivers new terms; nil: they never change.
	Changed <-chan Terms
	// Asked delivers questions for the progress of the drain. Each is answered at once, but for the moment in which
	// the drain has not begun or has ended: who asks must not wait forever. The channels need room for the answer.
	// nil: nobody asks.
	Asked <-chan chan<- Progress
	// NodeState returns the present state of the node. It is called often, and makes no request;
	// nil: the node is ready and cordoned.
	NodeState func() NodeState
	Log       logr.Logger
}

// NodeState is what a drain has to know of its node.
type NodeState struct {
	Ready    bool // its kubelet is there
	Cordoned bool
	// CordonPending: somebody has uncordoned the node, and it will be cordoned again. Pods that come
	// meanwhile have to leave too, so that the drain does not end before.
	CordonPending bool
	// StaysUncordoned: somebody has uncordoned the node once more than it is cordoned again. Our watch of the node shows
	// that: it is not behind our cordon.
	StaysUncordoned bool
}

// ErrMachineGone is the cause with which the caller ends the context of an evacuation when nothing runs
// on the machine any more, or when its Node is gone. The evacuation is then over.
var ErrMachineGone = errors.New("nothing runs on the node any more")

// Terms are what a drain has to observe. They can change while it runs. Each value of them is
// safe: without a deadline nothing is forced.
type Terms struct {
	// Deadline is when the machine goes away. Zero: not known, and nothing is forced.
	Deadline time.Time
	// IgnoreBudgets has pods deleted instead of evicted: the machine is going away already, and a
	// budget cannot keep a pod on it. It has no effect without a Deadline.
	IgnoreBudgets bool
	// Patient: nothing is forced, whatever the deadline: no pod is deleted, and none gets less than
	// its grace. The drain ends at the deadline all the same.
	Patient bool
	// NoticedAt is when the notice of the deadline came, or when its drain could begin, if that had to wait. Zero: every
	// grace period fits into the notice.
	NoticedAt time.Time
	// BudgetShare is how much of the notice a budget may keep a pod, from 0 to 1, where the pod's grace
	// period does not fit into the notice. Then it is deleted with what is left.
	BudgetShare float64
	// Grace replaces the grace period of the pods, also that of the drainer; zero: it does not.
	// Requests are in whole seconds.
	Grace time.Duration
	// MostGrace is the longest grace period of a pod, whoever sets it; zero: there is none.
	MostGrace time.Duration
	// Reserve: somebody else gets the pods off the node. A pod is asked to leave only at its last moment, and
	// without a deadline never. It has no effect with IgnoreBudgets.
	Reserve bool
	// CordonedAt is when the node was last cordoned.
	CordonedAt time.Time
}

// Progress is how far a drain has come.
type Progress struct {
	Listed    bool // the pods of the node are known
	Pods      overview.Pods
	LastAsked time.Time // when a pod was last asked to leave; zero: never
	LastLeft  time.Time // when a pod had last left; zero: none has
	PodsGone  time.Time // when no pod was waited for any more; zero: not yet
	// Waits are what the drain waits for, what keeps most pods first.
	Waits []overview.Wait
}

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
	Node  string
	Pod   *corev1.Pod    // nil: it is about volumes or load balancers
	Cause overview.Cause // of what is about a pod
	Why   string
	// First is true for the first pod of the node that this cause keeps.
	First bool
}

// A Result says how a drain ended. Each pod that had to leave is counted in exactly one of the
// first six fields. One that has ended has left, though finalizers may keep its object. Names of pods are
// namespace/name.
type Result struct {
	// Of a drain that is called off, also pods that are still stopping count as Evicted or Forced.
	Evicted int // pods that left after an eviction
	Forced  int // pods that left after they were deleted: time ran out, or budgets were ignored
	Ended   int // pods that left without us: they had ended or were stopping already, or somebody else deleted them
	// Missed are pods that were still there at the deadline, also those that came while the node was not cordoned.
	Missed []string
	// Lost are pods that were still there when the machine was gone; see ErrMachineGone.
	Lost []string
	// Unconfirmed are pods that should have ended, but whose kubelet has not confirmed it.
	Unconfirmed []string
	// Unlisted is why the pods were not listed in time; nil: they were. Missed or Lost has one text in their place.
	Unlisted *overview.Wait

	// Surged are those of the Ended whose workload had begun to roll out a replacement.
	Surged []string
	// Stayed are pods that an option, a rule or their owner keeps on the node.
	Stayed []string
	// Returned are other pods that came during the drain and stay. If they were asked to leave, they would come again.
	Returned []string
	Volumes  int // volumes of the pods that were still attached when they were not waited for any more

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

// Ended reports whether nothing of a pod runs any more, though its object is there. It is the one answer to that
// question, for drains and for simulations:
//
//	not being deleted              | its phase is Succeeded or Failed
//	being deleted                  | no: the object goes when its kubelet has cleaned up
//	being deleted, with finalizers | the phase is Succeeded or Failed; or no container runs, and either all have
//	                               | ended, or the kubelet has confirmed the end: the API server sets the grace to
//	                               | zero then
//
// Whoever deletes a pod by force sets the grace to zero as well. So a container that runs counts for more.
func Ended(pod *corev1.Pod) bool {
	switch deleted := pod.DeletionTimestamp != nil; {
	case deleted && len(pod.Finalizers) == 0:
		return false
	case !deleted, finished(pod):
		return finished(pod)
	}
	s := &pod.Status
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		if c.State.Running != nil {
			return false
		}
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace == 0 {
		return true
	}
	return len(s.ContainerStatuses) > 0 && !slices.ContainsFunc(s.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated == nil
	})
}

// finished reports whether the phase of a pod says that all of its containers have ended for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Unprotected reports whether the eviction API evicts the pod without asking its budgets.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func Unprotected(pod *corev1.Pod) bool {
	return finished(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// Ready reports whether the pod is ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// NameOf is the pod's name for people, with its namespace unless that is the default one.
func NameOf(pod *corev1.Pod) string {
	if pod.Namespace == corev1.NamespaceDefault {
		return pod.Name
	}
	return pod.Namespace + "/" + pod.Name
}
