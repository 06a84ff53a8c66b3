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
)

// A block is what keeps a pod on its node.
type block struct {
	cause    overview.Cause
	name     string // of what keeps it; with cause it identifies the block, as the text of why changes
	why      string
	since    time.Time
	reported bool
}

// setBlock notes what keeps a pod now, and returns whether it is a new cause.
func (p *podState) setBlock(cause overview.Cause, name, why string, now time.Time) (isNew bool) {
	k := slices.IndexFunc(p.blocks, func(b block) bool { return b.cause == cause && b.name == name })
	b := block{cause: cause, name: name, since: now}
	switch {
	case k >= 0:
		b = p.blocks[k]
		p.blocks = slices.Delete(p.blocks, k, k+1)
	case len(p.blocks) == maxCauses:
		p.blocks = slices.Delete(p.blocks, 0, 1)
	}
	b.why = why
	p.blocks = append(p.blocks, b)
	return k < 0
}

// dropBlock says that no such cause keeps the pod any more.
func (p *podState) dropBlock(cause overview.Cause) {
	p.blocks = slices.DeleteFunc(p.blocks, func(b block) bool { return b.cause == cause })
}

// reportAt returns when to report what keeps the pod; zero: it was reported, or nothing does.
func (p podState) reportAt() time.Time {
	if len(p.blocks) == 0 || p.blocks[len(p.blocks)-1].reported {
		return time.Time{}
	}
	return p.blocks[len(p.blocks)-1].since.Add(blockedTime)
}

// logRefusal logs that an eviction was refused, once for each cause.
func (r *run) logRefusal(c *call, log logr.Logger, now time.Time) {
	cause, name, why := causeOf(c.pod, c.err)
	fails := cause == overview.Answer || cause == overview.Refused && !refuses(c.err)
	if fails && slices.ContainsFunc(c.state.blocks, func(b block) bool { return b.cause != overview.Answer }) {
		// That one request fails is not what keeps the pod.
		return
	}
	if !c.state.setBlock(cause, name, why, now) {
		return
	}
	r.countRefusal(cause, name, why)
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
		p.setBlock(overview.Turn, "", p.turnWords()+", and there is no deadline so far", now)
		return
	}
	p.dropBlock(overview.Turn)
}

// reportBlocked reports what has kept a pod for blockedTime, once for each cause.
func (r *run) reportBlocked(pod *corev1.Pod, p *podState, now time.Time) {
	if at := p.reportAt(); at.IsZero() || now.Before(at) {
		return
	}
	b := &p.blocks[len(p.blocks)-1]
	b.reported = true
	if b.cause != overview.Answer { // an overloaded API server needs no Event for each pod
		r.reportCause(pod, b.cause, b.name, b.why)
	}
}

// reportCause calls Blocked with what keeps a pod, or the volumes if pod is nil.
func (r *run) reportCause(pod *corev1.Pod, cause overview.Cause, name, why string) {
	if r.drainer.Blocked == nil {
		return
	}
	key := string(cause) + " " + name
	first := !r.reportedCauses[key]
	if r.reportedCauses == nil {
		r.reportedCauses = map[string]bool{}
	}
	r.reportedCauses[key] = true
	r.drainer.Blocked(evacuation.Blocked{Node: r.request.Node, Pod: pod, Why: why, First: first})
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
	for _, pod := range r.sortedPods() {
		if p := r.pods[pod.UID]; !p.unconfirmed {
			waiting = append(waiting, nameOf(pod)+": "+inWords(r.waitOf(*p, now)))
		}
	}
	if len(waiting) > 0 {
		r.request.Log.Info("waiting for pods to leave",
			"pods", len(waiting), "why", strings.Join(evacuation.Names(waiting, maxNames), "; "), "untilDeadline", untilDeadline)
	}
}

// timeOfDay formats a time for the log.
func timeOfDay(t time.Time) string { return t.UTC().Format("15:04:05Z") }
