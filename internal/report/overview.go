package report

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// NodeOf is what the intent of a node says of a drain that has not ended.
func NodeOf(ref cluster.Ref, i intent.Intent) overview.Node {
	terms := i.Terms()
	n := overview.Node{
		Name: ref.Name, Instance: ref.Instance, Kind: kindOf(i), Rule: terms.Rule,
		Stage: overview.Draining, Since: i.Began(), CordonedAt: i.CordonedAt, Deadline: i.Deadline(),
		PodsGone: i.DrainedAt, Hooks: HooksOf(i.Hooks),
	}
	if i.HeldBack {
		n.Stage, n.CordonedAt, n.NotBefore = overview.HeldBack, time.Time{}, terms.NotBefore
	}
	if !i.DrainedAt.IsZero() {
		n.Stage = overview.Completing
	}
	return n
}

// EpisodesOf are what the intent of a node says of episodes that have ended, the newest first.
func EpisodesOf(ref cluster.Ref, i intent.Intent) (all []overview.Episode) {
	if i.Finished() && len(i.Entries) > 0 {
		all = append(all, EpisodeOf(ref, i))
	}
	if last := i.Last; last != nil {
		all = append(all, overview.Episode{
			Node: ref.Name, Instance: ref.Instance, Kind: kindNamed(last.Kind), Rule: last.Rule,
			Outcome: outcomeNamed(last.Outcome), Pods: carriedCounts(last.Pods), Known: overview.AsCarried,
			Began: last.Began, CordonedAt: last.CordonedAt, Ended: last.FinishedAt, Deadline: last.Deadline,
		})
	}
	return all
}

// EpisodeOf is what the intent of a node says of the episode that it carries. The caller adds what else is known.
func EpisodeOf(ref cluster.Ref, i intent.Intent) overview.Episode {
	i = i.AsAnnounced()
	e := overview.Episode{
		Node: ref.Name, Instance: ref.Instance, Kind: kindOf(i), Rule: i.Terms().Rule,
		Outcome: outcomeNamed(i.Outcome), Pods: carriedCounts(i.Pods), Known: overview.AsCarried,
		Began: i.Began(), CordonedAt: i.CordonedAt, PodsGone: i.DrainedAt, Ended: i.FinishedAt, Deadline: i.Deadline(),
	}
	if i.HeldBack {
		e.CordonedAt = time.Time{} // it never was
	}
	for _, entry := range i.Entries {
		n := overview.Notice{
			Kind: kindNamed(entry.Kind), At: entry.Time, Code: entry.Code, Rule: entry.Rule, Deadline: entry.Deadline,
		}
		if len(entry.IDs) > 0 {
			n.ID, n.Also = entry.IDs[0], entry.IDs[1:]
		}
		e.Notices = append(e.Notices, n)
	}
	return e
}

// CordonedOf reports whether a node is still cordoned by us though its drain has ended, and its machine was to be gone,
// a while ago; where pods were left on it, also at once. The node is ready and cordoned.
func CordonedOf(ref cluster.Ref, i intent.Intent, now time.Time) (c overview.Cordoned, still bool) {
	const while = 5 * time.Minute // that a machine takes to go
	since := i.FinishedAt
	for _, e := range i.Entries {
		if e.Kind != notice.ASGTerminate && e.Deadline.After(since) { // a hook that is completed ends before its deadline
			since = e.Deadline
		}
	}
	still = i.Cordoned && i.Finished() && i.Outcome != intent.Cordoned
	left := i.Outcome == intent.Missed || i.Outcome == intent.Unconfirmed
	if i.Outcome == intent.Gone && i.Pods == nil { // nobody knows
		left = true
	}
	if i.Pods != nil { // pods that have left after the deadline are missed too
		left = i.Pods.Missed+i.Pods.Unconfirmed+len(i.Pods.Remaining) > 0
	}
	if left {
		return overview.Cordoned{Node: ref.Name, Since: i.FinishedAt, Missed: true}, still
	}
	return overview.Cordoned{Node: ref.Name, Since: since}, still && now.Sub(since) >= while
}

// WithDrain adds to an episode what is known of the end of its evacuation.
func WithDrain(e overview.Episode, d Drain) overview.Episode {
	r := d.Result
	e.Outcome, e.Deadline = string(d.Outcome), d.Deadline()
	e.FirstAsked, e.LastAsked, e.PodsGone = r.Record.FirstAsked, r.Record.LastAsked, r.Record.PodsGone
	if e.Known == overview.SinceTakeOver {
		e.FirstAsked = time.Time{} // the earlier leader may have asked before
	}
	e.Pods = CountsOf(d)
	e.Refused = r.Record.Kept[:min(len(r.Record.Kept), mostRefusals)]
	const shortest = time.Millisecond // that anybody has waited
	e.Targets = evacuation.Names(d.Targets.Left, mostNames)
	e.AwaitedBalancers = d.Targets.Waited.Truncate(shortest).Seconds()
	e.Volumes, e.AwaitedVolumes = r.Volumes, r.Record.VolumesTook.Truncate(shortest).Seconds()
	if slack, known := d.Slack(); known {
		e.Slack = new(slack.Seconds())
	}
	return e
}

// CountsOf counts what became of the pods of a drain; nil: they were not listed.
func CountsOf(d Drain) *overview.Counts {
	r := d.Result
	if r.Unlisted != nil {
		return nil
	}
	missed, lost, unconfirmed := d.Left()
	stayed := slices.Concat(r.Stayed, r.Returned)
	return &overview.Counts{
		Partial: d.Resumed,
		Evicted: r.Evicted, Forced: r.Forced, Ended: r.Ended,
		Missed: missed, Lost: lost, Unconfirmed: unconfirmed,
		ForcedPods: evacuation.Names(r.Record.ForcedPods, mostNames),
		Cut:        len(r.Record.CutShort), CutShort: evacuation.Names(r.Record.CutShort, mostNames),
		Remaining: evacuation.Names(slices.Concat(r.Missed, r.Lost, r.Unconfirmed), mostNames),
		Stayed:    len(stayed), StayedPods: evacuation.Names(stayed, mostNames),
	}
}

// carriedCounts are the counts that a node carries; nil: there are none, or none that this program has written.
func carriedCounts(p *intent.Pods) *overview.Counts {
	if p == nil || min(p.Evicted, p.Forced, p.Ended, p.Missed, p.Lost, p.Unconfirmed, p.Cut, p.Stayed) < 0 {
		return nil
	}
	c := overview.Counts(*p)
	for _, names := range []*[]string{&c.ForcedPods, &c.CutShort, &c.Remaining, &c.StayedPods} {
		tooLong := func(name string) bool { return len(name) > longestName }
		if *names = (*names)[:min(len(*names), mostNames+1)]; slices.ContainsFunc(*names, tooLong) {
			return nil
		}
	}
	return &c
}

// What a record keeps at most, so that 500 of them are no burden.
const (
	mostNames    = 5
	longestName  = 512 // of a pod with its namespace, and how much of its grace period it had
	mostRefusals = 4
)

// kindOf is the kind of the notice that binds a node the most, as its label has it.
func kindOf(i intent.Intent) string { return kindNamed(i.Cause().Kind) }

// kindNamed is a kind as its label has it. A kubelet can write another one into the intent, which is no kind.
func kindNamed(kind notice.Kind) string {
	if slices.Contains(notice.Kinds, kind) {
		return kind.Dashed()
	}
	return ""
}

// outcomeNamed is how the drain of a node has ended. A kubelet can write another text into the intent, which is no
// outcome.
func outcomeNamed(o intent.Outcome) string {
	switch o {
	case intent.Drained, intent.Missed, intent.Gone, intent.Unconfirmed, intent.Cordoned, intent.CalledOff:
		return string(o)
	}
	return ""
}

// HooksOf are lifecycle hooks as an overview has them.
func HooksOf(hooks []intent.Hook) (all []overview.Hook) {
	for _, h := range hooks {
		all = append(all, overview.Hook{Group: h.Group, Name: h.Name, Deadline: h.Deadline})
	}
	return all
}
