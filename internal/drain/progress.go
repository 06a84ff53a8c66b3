package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// atGate is the wait for a free place among the requests to the API server.
var atGate = overview.Wait{Cause: overview.Gate, Why: "other requests to the API server go first"}

// progress returns how far the drain has come.
func (r *run) progress(now time.Time) evacuation.Progress {
	record := &r.result.Record
	p := evacuation.Progress{
		Listed: r.pods.listed, LastAsked: record.LastAsked, LastLeft: record.LastLeft, PodsGone: record.PodsGone,
	}
	switch {
	case r.waitsAtGate:
		p.Waits = []overview.Wait{atGate}
		return p
	case !r.pods.listed:
		p.Waits = []overview.Wait{{Cause: overview.List, Why: "the pods of the node are being listed"}}
		return p
	}
	for _, pod := range r.pods.departed {
		p.Pods.Gone++
		if pod.forced {
			p.Pods.Forced++
		}
	}
	if !p.PodsGone.IsZero() {
		p.Waits = r.volumeWaits
		return p
	}
	for _, pod := range r.pods.sorted() {
		state := r.pods.leaving[pod.UID]
		p.Pods.Left++
		if state.forced {
			p.Pods.Forced++
		}
		if state.unconfirmed {
			continue
		}
		w := r.pods.waitOf(*state, now)
		same := func(known overview.Wait) bool { return known.Cause == w.Cause && known.Name == w.Name }
		k := slices.IndexFunc(p.Waits, same)
		if k < 0 {
			k, w.Pod = len(p.Waits), state.name
			p.Waits = append(p.Waits, w)
		}
		p.Waits[k].Until = earlier(p.Waits[k].Until, w.Until)
		p.Waits[k].Pods++
	}
	slices.SortFunc(p.Waits, func(a, b overview.Wait) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Name, b.Name))
	})
	return p
}

// waitOf says why a pod is still there, and until when at the latest.
func (n *nodePods) waitOf(p podState, now time.Time) overview.Wait {
	wait := func(cause overview.Cause, why string) overview.Wait { return overview.Wait{Cause: cause, Why: why} }
	var blocked *overview.Wait
	if b := p.blocks.now(); b != nil {
		blocked = &overview.Wait{Cause: b.cause, Name: b.name, Why: b.why}
	}
	switch end := p.stopsAt(); {
	case p.end.keptBy != "":
		w := wait(overview.Finalizer, "it has ended, and is kept by its finalizers: "+p.end.keptBy)
		w.Name, w.Until = p.end.keptBy, p.end.countsAsGoneAt()
		return w
	case !end.IsZero() && blocked != nil:
		return *blocked
	case !end.IsZero() && now.Before(end):
		w := wait(overview.Grace, "grace until "+timeOfDay(end))
		w.Until = end
		return w
	case !end.IsZero():
		w := wait(overview.Kubelet, "it should have ended at "+timeOfDay(end)+", but its kubelet has not confirmed it")
		w.Until = n.kubelet.unconfirmedAt(&p)
		return w
	case p.failed > 0:
		return wait(overview.Refused, "its deletion fails")
	case blocked != nil:
		blocked.Until = p.forceAt(n.request.Terms)
		if at := p.lastMoment(n.request.Terms); blocked.Cause == overview.Surge {
			blocked.Until = at
		}
		return *blocked
	case p.deleting, !p.evictingSince.IsZero():
		return wait(overview.Answer, "the API server has not answered the request to evict or delete it")
	case !p.acceptedAt.IsZero():
		return wait(overview.Answer, "its eviction or deletion was accepted, but it is not stopping yet")
	case p.ticket != nil:
		return atGate
	}
	w := wait(overview.Turn, cmp.Or(p.turnWords(), "it waits for its turn"))
	if n.request.Terms.Reserve {
		w = wait(overview.Karpenter, "Karpenter gets it off the node")
	}
	if p.tier == last || n.request.Terms.Reserve {
		w.Until = p.lastMoment(n.request.Terms)
	}
	return w
}

// inWords adds to a wait for a pod what happens at its end, for the log.
func inWords(w overview.Wait) string {
	switch at := timeOfDay(w.Until); {
	case w.Until.IsZero():
	case w.Cause == overview.Surge:
		return w.Why + "; it leaves at " + at + " at the latest"
	case w.Cause == overview.Turn, w.Cause == overview.Karpenter:
		return w.Why + ", at " + at
	case w.Cause.Refuses():
		return w.Why + ", deleted at " + at
	}
	return w.Why
}

// countKept counts a pod that is still there at the end, where it was no refusal that has kept it.
func (n *nodePods) countKept(pod *corev1.Pod, now time.Time) {
	switch w := n.waitOf(*n.leaving[pod.UID], now); w.Cause { //nolint:exhaustive // the others are refusals, or no reason
	case overview.Kubelet, overview.Grace, overview.Surge, overview.Turn:
		n.obstacles.count(w.Cause, w.Name, w.Why)
	}
}

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
