package episode

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// values are the keys and values of the log line about an episode. Its keys are stable: users search for them.
// What is not known, or did not come about, is left out.
func values(e overview.Episode) []any {
	v := []any{"node", e.Node}
	text := func(key, value string) {
		if value != "" {
			v = append(v, key, value)
		}
	}
	when := func(key string, t time.Time) {
		if !t.IsZero() {
			v = append(v, key, t.UTC().Format(time.RFC3339Nano))
		}
	}
	names := func(key string, names []string) {
		if len(names) > 0 {
			v = append(v, key, names)
		}
	}
	count := func(key string, n int) {
		if n > 0 {
			v = append(v, key, n)
		}
	}
	text("instance", e.Instance)
	text("kind", e.Kind)
	text("rule", e.Rule)
	text("outcome", e.Outcome)
	text("why", e.Why)
	text("known", string(e.Known))
	names("notices", notices(e))
	text("heldBack", e.HeldBack)
	when("began", e.Began)
	when("cordonedAt", e.CordonedAt)
	when("firstAsked", e.FirstAsked)
	when("lastAsked", e.LastAsked)
	when("podsGone", e.PodsGone)
	when("deadline", e.Deadline)
	if e.Slack != nil {
		v = append(v, "slackSeconds", *e.Slack)
	}
	if p := e.Pods; p != nil {
		v = append(v, "evicted", p.Evicted, "forced", p.Forced)
		count("ended", p.Ended)
		count("missed", p.Missed)
		count("lost", p.Lost)
		count("unconfirmed", p.Unconfirmed)
		names("forcedPods", p.ForcedPods)
		count("cut", p.Cut)
		names("cutShort", p.CutShort)
		names("remaining", p.Remaining)
	}
	var kept []string
	for _, r := range e.Refused {
		kept = append(kept, r.Why)
	}
	names("keptBy", kept)
	if e.AwaitedBalancers > 0 {
		v = append(v, "awaitedLoadBalancersSeconds", e.AwaitedBalancers)
	}
	names("targets", e.Targets)
	if e.AwaitedVolumes > 0 {
		v = append(v, "awaitedVolumesSeconds", e.AwaitedVolumes)
	}
	count("volumes", e.Volumes)
	var hooks []string
	for _, h := range e.Hooks {
		hooks = append(hooks, h.Group+"/"+h.Name)
	}
	names("hooks", hooks)
	return v
}

// notices are the kinds of an episode's notices, with their times.
func notices(e overview.Episode) (all []string) {
	for _, n := range e.Notices {
		all = append(all, n.Kind+" "+n.At.UTC().Format(time.RFC3339))
	}
	return all
}
