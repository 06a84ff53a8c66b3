package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// notListed takes the place of pods whose names are not known.
const notListed = "all, which could not be listed"

// countMissed fills in the result at the deadline.
func (r *run) countMissed(now time.Time) {
	synced := r.store.synced()
	if synced && !r.pods.listed { // the first list came at the deadline
		r.pods.refresh(now)
	}
	if r.pods.countPods(&r.result.Missed); !synced {
		r.result.Missed = []string{notListed}
	}
}

// countPods counts each pod that had to leave in the result, at the end of the drain. The names of
// those that are still there and were waited for are added to remaining; nil: they are not counted.
func (n *nodePods) countPods(remaining *[]string) {
	there := n.sorted()
	for _, pod := range there {
		p := n.leaving[pod.UID]
		p.end.note(pod, time.Now())
		switch {
		case p.end.hasCome():
			n.depart(pod.UID, p, time.Now())
		case p.unconfirmed:
			n.result.Unconfirmed = append(n.result.Unconfirmed, nameOf(pod))
		case remaining != nil:
			*remaining = append(*remaining, nameOf(pod))
			n.countKept(pod, time.Now())
		}
	}
	for uid, p := range n.leaving {
		if !slices.ContainsFunc(there, func(pod *corev1.Pod) bool { return pod.UID == uid }) {
			n.depart(uid, p, time.Now())
		}
	}
	n.result.Surged, n.result.Record.Kept = n.surged(), n.obstacles.sorted()
	for _, p := range n.departed {
		switch { // a request without an answer may have been accepted
		case p.forced || p.deleting || p.unanswered && p.failed > 0:
			n.result.Forced++
			n.result.Record.ForcedPods = append(n.result.Record.ForcedPods, p.name)
		case p.evicted || p.unanswered || !p.evictingSince.IsZero():
			n.result.Evicted++
			n.result.Record.EvictedPods = append(n.result.Record.EvictedPods, p.name)
		default:
			n.result.Ended++
		}
	}
	slices.Sort(n.result.Stayed)
	slices.Sort(n.result.Record.EvictedPods)
	slices.Sort(n.result.Record.ForcedPods)
	slices.Sort(n.result.Record.CutShort)
}

// Remaining lists the pods that have to leave a node by the rules and have not ended, as namespace/name, sorted.
// Those of DaemonSets are not among them: it cannot tell one that was not asked from one that has come in its
// place. It makes one request.
func (d *Drainer) Remaining(ctx context.Context, node string, rules decision.Rules) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: onNode(node)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var candidates []candidate
	for k := range list.Items {
		if pod := &list.Items[k]; pod.Spec.NodeName == node && !evacuation.Ended(pod) {
			turn := turnOf(pod, rules, evacuation.Terms{}, time.Now())
			turn.Stays = turn.Stays || ofDaemonSet(pod)
			candidates = append(candidates, candidate{pod, turn})
		}
	}
	answers, _ := d.Filter.mustLeave(candidates)
	var names []string
	for k, c := range candidates {
		if answers[k].leaves {
			names = append(names, nameOf(c.pod))
		}
	}
	slices.Sort(names)
	return names, nil
}

// unlistedPods returns the pods of a node whose machine was gone before its drain had listed them.
func (d *Drainer) unlistedPods(ctx context.Context, request *evacuation.Request) []string {
	names, err := d.Remaining(ctx, request.Node, request.Rules)
	if err != nil {
		return []string{notListed}
	}
	return names
}
