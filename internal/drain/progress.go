package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
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
	if !r.pods.listed {
		p.Waits = []overview.Wait{r.listWait(now)}
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
		if p.Pods.Left = len(r.pods.leaving); p.Pods.Left > 0 { // of which no kubelet has confirmed the end
			p.PodsGone = time.Time{}
		}
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
	slices.SortFunc(p.Waits, overview.ByWeight)
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
		return p.graceUntil(end, n.request.Terms.Deadline)
	case !end.IsZero():
		w := wait(overview.Kubelet, "it should have ended at "+timeOfDay(end)+", but its kubelet has not confirmed it")
		w.Until = n.kubelet.unconfirmedAt(&p)
		return w
	case p.failed > 0 && blocked != nil:
		return *blocked
	case p.failed > 0:
		return wait(overview.Refused, "its deletion fails")
	case blocked != nil:
		blocked.Until = p.forceAt(n.request.Terms)
		if at := p.lastMoment(n.request.Terms); blocked.Cause == overview.Surge {
			blocked.Until = at
		}
		return *blocked
	case !p.deletingSince.IsZero(), !p.evictingSince.IsZero():
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

// graceUntil is the wait for a pod that is killed at end. It may need more time, which the machine does not leave it.
func (p podState) graceUntil(end, deadline time.Time) overview.Wait {
	w := overview.Wait{Cause: overview.Grace, Why: "grace until " + timeOfDay(end), Until: end}
	needs := later(end, p.firstAcceptedAt.Add(p.grace)) // it may have been given less
	if deadline.IsZero() || needs.Sub(deadline) < time.Second {
		return w
	}
	if needs.After(end) {
		w.Why += "; it may need until " + timeOfDay(needs)
	}
	w.Why += "; the machine ends " + timeOfDay(deadline)
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
	p := n.leaving[pod.UID]
	w := n.waitOf(*p, now)
	if w.Cause == overview.Turn && p.tier == own { // nobody can change that it goes last
		return
	}
	switch w.Cause { //nolint:exhaustive // the others are refusals, or no reason
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
		r.noteUnlisted(r.listWait(now))
	}
}

// noteUnlisted notes that nobody knows which pods had to leave.
func (r *run) noteUnlisted(w overview.Wait) {
	r.result.Unlisted = &w
	r.result.Record.Kept = []overview.Refusal{{Cause: w.Cause, Why: w.Why}}
}

// listWait is what a drain waits for that has not seen its pods.
func (r *run) listWait(now time.Time) overview.Wait {
	if !r.begun {
		return atGate
	}
	return r.store.wait(now)
}

// countPods counts each pod that had to leave in the result, at the end of the drain. The names of
// those that are still there and were waited for, or came because the node was not cordoned, are added to remaining;
// nil: they are not counted.
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
	if remaining != nil {
		*remaining = append(*remaining, n.takeNewcomers(false)...)
	}
	n.result.Surged, n.result.Record.Kept = n.surged(), n.obstacles.sorted()
	for _, p := range n.departed {
		switch { // a request without an answer may have been accepted
		case p.forced || !p.deletingSince.IsZero() || p.unanswered && p.failed > 0:
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

// countLost fills in the result where the machine was gone before the drain had listed its pods.
func (r *run) countLost(ctx context.Context) {
	names, err := r.drainer.Remaining(ctx, r.request.Node, r.request.Rules)
	if err != nil {
		names = []string{notListed}
		r.noteUnlisted(overview.Wait{Cause: overview.FailingList, Why: unlisted(errors.Unwrap(err))})
	}
	r.result.Lost = names
}

const (
	// blockedTime is how long something has to keep a pod before Blocked is called. A budget mostly
	// allows the eviction within seconds, when a replacement is ready.
	blockedTime = 10 * time.Second
	// progressInterval is how often a drain that waits says what for.
	progressInterval = time.Minute
	// maxNames bounds the pods or volumes that a log line names: a node has a hundred pods.
	maxNames = 10
	// maxWhy bounds the text of somebody else in a log line, in bytes.
	maxWhy = 300
	// maxCauses bounds the causes that are reported of one pod.
	maxCauses = 4
	// maxRefusals bounds the refusals that a drain remembers: a pod's causes are few, and a node's budgets, too.
	maxRefusals = 16
	// maxMistakes bounds the mistakes of annotations that a drain warns of, and maxStayed the pods that it says have
	// stayed: owners can make ever new ones.
	maxMistakes = 16
	maxStayed   = 200
)

// A block is what keeps a pod on its node.
type block struct {
	cause    overview.Cause
	id       string // with cause it identifies the block, as the text of why changes; see identify
	name     string // of what keeps it
	why      string
	since    time.Time
	reported bool
}

// blocks are what keeps a pod or has kept it on the node; the last one does so now.
type blocks []block

// identify sets what tells a block from others of its cause. The node tells of each pod in a namespace that is being
// deleted, because the API server takes no Event there. Where an answer does not say who refuses, its words do, but for
// numbers and the pod's name.
func (b *block) identify(pod *corev1.Pod) {
	switch b.cause { //nolint:exhaustive // the others have a name, or there is one of them
	case overview.Namespace:
		b.id = pod.Name
	case overview.Refused:
		b.id = strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) {
				return -1
			}
			return r
		}, strings.ReplaceAll(b.why, pod.Name, ""))
	default:
		b.id = b.name
	}
}

// set notes what keeps the pod now, and returns whether it is a new cause.
func (b *blocks) set(found block, now time.Time) (isNew bool) {
	k := slices.IndexFunc(*b, func(b block) bool { return b.cause == found.cause && b.id == found.id })
	found.since = now
	switch {
	case k >= 0:
		found.since, found.reported = (*b)[k].since, (*b)[k].reported
		*b = slices.Delete(*b, k, k+1)
	case len(*b) == maxCauses:
		*b = slices.Delete(*b, 0, 1)
	}
	*b = append(*b, found)
	return k < 0
}

// drop says that no such cause keeps the pod any more.
func (b *blocks) drop(cause overview.Cause) {
	*b = slices.DeleteFunc(*b, func(b block) bool { return b.cause == cause })
}

// now returns what keeps the pod; nil: nothing does.
func (b blocks) now() *block {
	if len(b) == 0 {
		return nil
	}
	return &b[len(b)-1]
}

// reportAt returns when to report what keeps the pod; zero: it was reported, or nothing does.
func (b blocks) reportAt() time.Time {
	if now := b.now(); now != nil && !now.reported {
		return now.since.Add(blockedTime)
	}
	return time.Time{}
}

// obstacles are what has kept the pods of a node, or its volumes, on it.
type obstacles struct {
	node     string
	blocked  func(evacuation.Blocked) // Drainer.Blocked
	reported map[string]bool          // causes that blocked was called for
	refusals []overview.Refusal       // what has refused evictions
}

// noteRefusal notes that an eviction or a deletion was refused, and logs it, once for each cause of a pod.
func (o *obstacles) noteRefusal(c *call, log logr.Logger, now time.Time) {
	cause, name, why := causeOf(c.pod, c.err)
	found := block{cause: cause, name: name, why: why}
	found.identify(c.pod)
	fails := cause == overview.Answer || cause == overview.Refused && !refuses(c.err)
	if fails && slices.ContainsFunc(c.state.blocks, func(b block) bool { return b.cause != overview.Answer }) {
		// That one request fails is not what keeps the pod.
		return
	}
	if !c.state.blocks.set(found, now) {
		return
	}
	o.count(cause, name, why)
	switch {
	case c.step.kind == stepDelete:
		logging.Warn(log, "a pod could not be deleted", "why", why)
	case cause == overview.TwoBudgets, // it does not clear by itself
		cause == overview.Refused && apierrors.IsForbidden(c.err):
		logging.Warn(log, "an eviction was refused", "why", why)
	default:
		log.Info("an eviction was refused", "why", why)
	}
}

// truncate shortens a text to what a log line has room for.
func truncate(text string) string {
	if len(text) <= maxWhy {
		return text
	}
	return strings.ToValidUTF8(text[:maxWhy], "") + "…"
}

// noteLast notes that a pod keeps its drain from ending, because it leaves last and there is no deadline.
// A deadline ends that.
func (p *podState) noteLast(terms evacuation.Terms, now time.Time) {
	surges := p.surge.begun || p.surge.cancel != nil
	if p.tier == last && terms.Deadline.IsZero() && !p.asked() && !surges {
		p.blocks.set(block{cause: overview.Turn, why: p.turnWords() + ", and there is no deadline so far"}, now)
		return
	}
	p.blocks.drop(overview.Turn)
}

// report reports what has kept a pod for blockedTime, once for each cause.
func (o *obstacles) report(pod *corev1.Pod, p *podState, now time.Time) {
	if at := p.blocks.reportAt(); at.IsZero() || now.Before(at) {
		return
	}
	b := p.blocks.now()
	b.reported = true
	if b.cause != overview.Answer { // an overloaded API server needs no Event for each pod
		o.tell(pod, *b)
	}
}

// tell calls Blocked with what keeps a pod, or the volumes if pod is nil.
func (o *obstacles) tell(pod *corev1.Pod, b block) {
	if o.blocked == nil {
		return
	}
	key := string(b.cause) + " " + b.id
	first := !o.reported[key]
	o.reported[key] = true
	o.blocked(evacuation.Blocked{Node: o.node, Pod: pod, Cause: b.cause, Why: b.why, First: first})
}

// count counts a pod that somebody keeps on the node. The text is that of the last one.
func (o *obstacles) count(cause overview.Cause, name, why string) {
	same := func(known overview.Refusal) bool { return known.Cause == cause && known.Name == name }
	k := slices.IndexFunc(o.refusals, same)
	if k < 0 {
		if len(o.refusals) == maxRefusals {
			return
		}
		k = len(o.refusals)
		o.refusals = append(o.refusals, overview.Refusal{Cause: cause, Name: name})
	}
	o.refusals[k].Pods++
	o.refusals[k].Why = why
}

// sorted returns what has refused evictions, of most pods first.
func (o *obstacles) sorted() []overview.Refusal {
	sorted := slices.Clone(o.refusals)
	slices.SortFunc(sorted, func(a, b overview.Refusal) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// logProgress calls write when the drain has waited for another minute, with the time to the
// deadline. It returns when to call it again.
func (r *run) logProgress(now time.Time, write func(left string)) time.Time {
	switch {
	case r.nextProgress.IsZero():
		r.nextProgress = now.Add(progressInterval)
	case !now.Before(r.nextProgress):
		left := "no deadline"
		if d := r.request.Terms.Deadline; !d.IsZero() {
			left = max(0, d.Sub(now)).Round(time.Second).String()
		}
		write(left)
		r.nextProgress = now.Add(progressInterval)
	}
	return r.nextProgress
}

// logWaiting logs which pods are waited for, and why they are still there.
func (r *run) logWaiting(now time.Time, left string) {
	if !r.store.synced() {
		r.request.Log.Info("waiting for the list of the node's pods", "left", left)
		return
	}
	var waiting []string
	for _, pod := range r.pods.sorted() {
		if p := r.pods.leaving[pod.UID]; !p.unconfirmed {
			waiting = append(waiting, nameOf(pod)+": "+inWords(r.pods.waitOf(*p, now)))
		}
	}
	if len(waiting) > 0 {
		r.request.Log.Info("waiting for pods to leave",
			"pods", len(waiting), "why", strings.Join(evacuation.Names(waiting, maxNames), "; "), "left", left)
	}
}

// timeOfDay formats a time for the log.
func timeOfDay(t time.Time) string { return t.UTC().Format("15:04:05Z") }
