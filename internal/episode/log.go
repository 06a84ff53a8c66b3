package episode

import (
	"reflect"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// values are the keys and values of the log line about an episode. Its keys are stable: users search for them.
// What is not known, or did not come about, is left out.
func values(e overview.Episode) []any {
	all := []any{
		"node", e.Node, "instance", e.Instance, "kind", e.Kind, "rule", e.Rule, "outcome", e.Outcome, "why", e.Why,
		"known", string(e.Known), "notices", notices(e), "heldBack", e.HeldBack, "began", e.Began,
		"cordonedAt", e.CordonedAt, "firstAsked", e.FirstAsked, "lastAsked", e.LastAsked, "podsGone", e.PodsGone,
		"deadline", e.Deadline, "slackSeconds", e.Slack,
	}
	if p := e.Pods; p != nil {
		all = append(all, "evicted", &p.Evicted, "forced", &p.Forced, "ended", p.Ended, "missed", p.Missed, "lost", p.Lost,
			"unconfirmed", p.Unconfirmed, "forcedPods", p.ForcedPods, "cut", p.Cut, "cutShort", p.CutShort,
			"remaining", p.Remaining)
	}
	var kept, hooks []string
	for _, r := range e.Refused {
		kept = append(kept, r.Why)
	}
	for _, h := range e.Hooks {
		hooks = append(hooks, h.Group+"/"+h.Name)
	}
	all = append(all, "keptBy", kept, "awaitedLoadBalancersSeconds", e.AwaitedBalancers, "targets", e.Targets,
		"awaitedVolumesSeconds", e.AwaitedVolumes, "volumes", e.Volumes, "hooks", hooks)
	var known []any
	for pair := range slices.Chunk(all, 2) {
		if value := shown(pair[1]); value != nil {
			known = append(known, pair[0], value)
		}
	}
	return known
}

// shown is a value as the log has it; nil: it is not shown. What a pointer points to is shown where it is zero, too.
func shown(value any) any {
	switch v := value.(type) {
	case time.Time:
		if !v.IsZero() {
			return v.UTC().Format(time.RFC3339Nano)
		}
		return nil
	case []string:
		if len(v) == 0 {
			return nil
		}
	}
	if v := reflect.ValueOf(value); v.IsZero() {
		return nil
	} else if v.Kind() == reflect.Pointer {
		return v.Elem().Interface()
	}
	return value
}

// notices are the kinds of an episode's notices, with their times.
func notices(e overview.Episode) (all []string) {
	for _, n := range e.Notices {
		all = append(all, n.Kind+" "+n.At.UTC().Format(time.RFC3339))
	}
	return all
}
