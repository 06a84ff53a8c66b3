// Package drain gets the pods off a node before its deadline.
//
// A [Drainer] watches the pods of one node, evicts them in tiers, deletes those that would
// otherwise outlive the deadline, and waits until they are gone and their volumes are detached.
// A [Simulation] plays the same plan without a cluster.
//
// [Filter] says which pods have to leave, by kubectl's rules. nextStep, in plan.go, decides what is
// done with a pod and when; it is pure, and its comment is the table of what it decides. loop.go
// carries the plan out, request.go makes the requests.
package drain

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// lateBindTime is how long after the cordon a pod can still appear that a scheduler had bound
	// before it saw the cordon.
	lateBindTime = 5 * time.Second
	// recheckInterval is how often the node's readiness is checked while a pod is past its end.
	recheckInterval = 10 * time.Second
	// maxPending bounds the requests of one drain that wait at the gate or are in flight. Urgent
	// ones are counted apart, with the same bound.
	maxPending = 16
	// defaultShareFrom is Drainer.ShareFrom if that is zero.
	defaultShareFrom = 32
)

// Drainer drains nodes. Drain may be called concurrently for different nodes; the fields must not
// change meanwhile.
type Drainer struct {
	Client kube.Client
	Filter Filter
	// Grace replaces the pods' own termination grace period; negative: their own.
	Grace time.Duration
	// Self is the pod that this program runs in. Drain does not evict it, but returns when it is
	// the only one left, so that another leader evicts it. EvictSelf is for a program that has no
	// other leader: its pod is evicted too, as the last one.
	Self      types.NamespacedName
	EvictSelf bool
	// Keep is a pod of a DaemonSet that stays whatever a rule says: the one of a program that runs on
	// each node. If it were evicted, the next one would have to begin with the drain again.
	Keep types.NamespacedName
	// Gate bounds the evictions and deletions in flight; nil: no bound.
	Gate *pace.Gate
	// Surge has the workload of a pod roll out a replacement, which then takes the pod away. It is called
	// once for each pod whose turn is to leave so, on a goroutine of its own, while there is time for it.
	// ctx ends when there is no more. An error says why there is no replacement: the pod leaves last, as
	// it does if the replacement does not come in time. The pod has the fields that [Trim] keeps, and
	// must not be changed. nil: no workload is asked for that.
	Surge func(ctx context.Context, pod *corev1.Pod) error
	// ShareFrom is from how many drains at once they share one watch of all pods of the cluster, instead of one for
	// each node; zero: 32.
	ShareFrom int
	// Volumes are waited for after the pods; nil: they are not.
	Volumes *Volumes
	// Observe is called for each answer to a request for a pod, by the goroutine of Drain; nil: it
	// is not called.
	Observe func(evacuation.Answer)
	// Blocked is called when something has kept a pod or the volumes on the node for a while, once
	// for each pod and cause, by the goroutine of Drain; nil: it is not called.
	Blocked func(evacuation.Blocked)

	watches         podWatches
	conditionDenied sync.Once // the log says that pods of Jobs cannot get their condition
}
