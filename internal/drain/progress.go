package drain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	type key struct {
		cause overview.Cause
		name  string
	}
	waits := map[key]*overview.Wait{}
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
		known := waits[key{w.Cause, w.Name}]
		if known == nil {
			w.Pod = state.name
			waits[key{w.Cause, w.Name}] = &w
			known = &w
		} else {
			known.Until = earlier(known.Until, w.Until)
		}
		known.Pods++
	}
	for _, w := range waits {
		p.Waits = append(p.Waits, *w)
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
