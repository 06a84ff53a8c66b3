package doctor

import (
	"context"
	"fmt"
	"slices"
)

// Instance is the one behind a node. ErrAbsent: EC2 knows none.
func (g *Gatherer) Instance(ctx context.Context, n Node) (Instance, error) {
	found := g.AWS.instances(ctx, Answer[[]Node]{Value: []Node{n}})
	switch {
	case found.Err != nil:
		return Instance{}, found.Err
	case len(found.Value) == 0:
		return Instance{}, ErrAbsent
	}
	return found.Value[0], nil
}

// TerminationHook is the first of a group that is ours.
func (g *Gatherer) TerminationHook(ctx context.Context, group string) (Hook, error) {
	hooks := g.AWS.hooks(ctx, group, g.Options.HookNames)
	if hooks.Err != nil {
		return Hook{}, hooks.Err
	}
	k := slices.IndexFunc(hooks.Value, func(h Hook) bool { return h.Terminating })
	if k < 0 {
		return Hook{}, fmt.Errorf("a termination hook of group %s: %w", group, ErrAbsent)
	}
	return hooks.Value[k], nil
}

// RulesTaking are the names of the rules that would send an event to the queue.
func (g *Gatherer) RulesTaking(ctx context.Context, event string) ([]string, error) {
	queue := g.AWS.queue(ctx, g.Options.QueueURL)
	if queue.Err != nil {
		return nil, queue.Err
	}
	rules := g.AWS.rules(ctx, queue.Value.ARN)
	if rules.Err != nil {
		return nil, rules.Err
	}
	enabled, _ := takers(rules.Value, event)
	return enabled, nil
}

// IsDenied reports whether the error is that of a missing permission.
func IsDenied(err error) bool { return denied(err) }
