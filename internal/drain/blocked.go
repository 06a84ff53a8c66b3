package drain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

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
	name     string // of what keeps it; with cause it identifies the block, as the text of why changes
	why      string
	since    time.Time
	reported bool
}

// blocks are what keeps a pod or has kept it on the node; the last one does so now.
type blocks []block

// set notes what keeps the pod now, and returns whether it is a new cause.
func (b *blocks) set(cause overview.Cause, name, why string, now time.Time) (isNew bool) {
	k := slices.IndexFunc(*b, func(b block) bool { return b.cause == cause && b.name == name })
	found := block{cause: cause, name: name, since: now}
	switch {
	case k >= 0:
		found = (*b)[k]
		*b = slices.Delete(*b, k, k+1)
	case len(*b) == maxCauses:
		*b = slices.Delete(*b, 0, 1)
	}
	found.why = why
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

// noteRefusal notes that an eviction was refused, and logs it, once for each cause of a pod.
func (o *obstacles) noteRefusal(c *call, log logr.Logger, now time.Time) {
	cause, name, why := causeOf(c.pod, c.err)
	fails := cause == overview.Answer || cause == overview.Refused && !refuses(c.err)
	if fails && slices.ContainsFunc(c.state.blocks, func(b block) bool { return b.cause != overview.Answer }) {
		// That one request fails is not what keeps the pod.
		return
	}
	if !c.state.blocks.set(cause, name, why, now) {
		return
	}
	o.count(cause, name, why)
	if refusalOf(c.err) == evacuation.TwoBudgets { // it does not clear by itself
		logging.Warn(log, "an eviction was refused", "why", why)
		return
	}
	log.Info("an eviction was refused", "why", why)
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
		p.blocks.set(overview.Turn, "", p.turnWords()+", and there is no deadline so far", now)
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
		o.reportCause(pod, b.cause, b.name, b.why)
	}
}

// reportCause calls Blocked with what keeps a pod, or the volumes if pod is nil.
func (o *obstacles) reportCause(pod *corev1.Pod, cause overview.Cause, name, why string) {
	if o.blocked == nil {
		return
	}
	key := string(cause) + " " + name
	first := !o.reported[key]
	o.reported[key] = true
	o.blocked(evacuation.Blocked{Node: o.node, Pod: pod, Why: why, First: first})
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
	slices.SortStableFunc(sorted, func(a, b overview.Refusal) int { return b.Pods - a.Pods })
	return sorted
}

// logProgress calls write when the drain has waited for another minute, with the time to the
// deadline. It returns when to call it again.
func (r *run) logProgress(now time.Time, write func(untilDeadline string)) time.Time {
	switch {
	case r.nextProgress.IsZero():
		r.nextProgress = now.Add(progressInterval)
	case !now.Before(r.nextProgress):
		untilDeadline := "no deadline"
		if d := r.request.Terms.Deadline; !d.IsZero() {
			untilDeadline = max(0, d.Sub(now)).Round(time.Second).String()
		}
		write(untilDeadline)
		r.nextProgress = now.Add(progressInterval)
	}
	return r.nextProgress
}

// logWaiting logs which pods are waited for, and why they are still there.
func (r *run) logWaiting(now time.Time, untilDeadline string) {
	if !r.store.synced() {
		r.request.Log.Info("waiting for the list of the node's pods", "untilDeadline", untilDeadline)
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
			"pods", len(waiting), "why", strings.Join(evacuation.Names(waiting, maxNames), "; "), "untilDeadline", untilDeadline)
	}
}

// timeOfDay formats a time for the log.
func timeOfDay(t time.Time) string { return t.UTC().Format("15:04:05Z") }
