package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Result says how a drain ended. Each pod that had to leave is counted in exactly one of the
// first six fields. Names of pods are namespace/name.
type Result struct {
	Evicted int // pods that left after an eviction
	Forced  int // pods that left after they were deleted: time ran out, or budgets were ignored
	Ended   int // pods that left without us: they were stopping already, or somebody else deleted them
	// Missed are pods that were still there at the deadline.
	Missed []string
	// Lost are pods that were still there when the machine was gone; see ErrMachineGone.
	Lost []string
	// Unconfirmed are pods that should have ended, but whose kubelet is not there to confirm it.
	Unconfirmed []string

	// Surged are those of the Ended whose workload had begun to roll out a replacement.
	Surged []string
	// Stayed are pods that an option keeps on the node.
	Stayed []string
	// Returned are pods that came during the drain and stay. If they were asked to leave, they
	// would come again.
	Returned []string
	Self     bool // the only pod left is the one of this program
	Volumes  int  // volumes that were still attached at the deadline

	Record Record
}

// A Record says what happened in a drain, for people.
type Record struct {
	// FirstAsked and LastAsked are when pods were asked to leave; zero: none was.
	FirstAsked, LastAsked time.Time
	PodsGone              time.Time     // when no pod was waited for any more
	VolumesTook           time.Duration // how long volumes were waited for then
	ForcedPods            []string      // the names of the Forced, sorted
	// Kept is what has refused evictions, and what has kept pods to the end. What has kept most pods comes first, and
	// some of it is left out if there is much.
	Kept []overview.Refusal
}

// notListed takes the place of pods whose names are not known.
const notListed = "all, which could not be listed"

// Names returns the first names of pods, at most so many, and then how many more there are.
func Names(pods []string, most int) []string {
	if len(pods) <= most {
		return pods
	}
	return append(slices.Clone(pods[:most]), fmt.Sprintf("and %d more", len(pods)-most))
}

// countMissed fills in the result at the deadline.
func (r *run) countMissed(now time.Time) {
	synced := r.store.synced()
	if synced && !r.listed { // the first list came at the deadline
		r.refresh(now)
	}
	if r.countPods(&r.result.Missed); !synced {
		r.result.Missed = []string{notListed}
	}
}

// countPods counts each pod that had to leave in the result, at the end of the drain. The names of
// those that are still there and were waited for are added to remaining; nil: they are not counted.
func (r *run) countPods(remaining *[]string) {
	there := r.sortedPods()
	for _, pod := range there {
		switch {
		case r.pods[pod.UID].unconfirmed:
			r.result.Unconfirmed = append(r.result.Unconfirmed, nameOf(pod))
		case remaining != nil:
			*remaining = append(*remaining, nameOf(pod))
			r.countKept(pod, time.Now())
		}
	}
	for uid, p := range r.pods {
		if !slices.ContainsFunc(there, func(pod *corev1.Pod) bool { return pod.UID == uid }) {
			r.departed[uid] = p
		}
	}
	r.result.Surged, r.result.Record.Kept = r.surged(), r.sortedRefusals()
	for _, p := range r.departed {
		switch { // a request without an answer may have been accepted
		case p.forced || p.deleting || p.unanswered && p.failed > 0:
			r.result.Forced++
			r.result.Record.ForcedPods = append(r.result.Record.ForcedPods, p.name)
		case p.evicted || p.unanswered || !p.evictingSince.IsZero():
			r.result.Evicted++
		default:
			r.result.Ended++
		}
	}
	slices.Sort(r.result.Record.ForcedPods)
}

// Remaining lists the pods that have to leave a node, as namespace/name, sorted. Those of DaemonSets
// are not among them: it cannot tell one that was not asked from one that has come in its place. It
// makes one request.
func (d *Drainer) Remaining(ctx context.Context, node string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: onNode(node)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var names []string
	for k := range list.Items {
		if pod := &list.Items[k]; pod.Spec.NodeName == node {
			if leaves, _ := d.Filter.mustLeave(pod, decision.Turn{Stays: true}); leaves {
				names = append(names, nameOf(pod))
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// unlistedPods returns the pods of a node whose machine was gone before its drain had listed them.
func (d *Drainer) unlistedPods(ctx context.Context, node string) []string {
	names, err := d.Remaining(ctx, node)
	if err != nil {
		return []string{notListed}
	}
	return names
}
