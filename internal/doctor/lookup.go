package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
)

// InstancesBehind returns the instances behind nodes that EC2 knows, by the name of the node.
func (g *Gatherer) InstancesBehind(ctx context.Context, nodes []Node) (map[string]Instance, error) {
	found, err := g.AWS.instances(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return behind(&Facts{Options: g.Options, Nodes: answer(nodes, nil), Instances: answer(found, nil)}), nil
}

// Caller returns who calls AWS.
func (g *Gatherer) Caller(ctx context.Context) (Caller, error) { return g.AWS.caller(ctx) }

// TerminationHook returns, of the termination hooks of a group that the handler is to complete, the first one to end.
func (g *Gatherer) TerminationHook(ctx context.Context, group string) (Hook, error) {
	found, _ := hooks(ctx, autoscaling.NewFromConfig(g.AWS.Config), group, g.Options.HookNames)
	if found.Err != nil {
		return Hook{}, found.Err
	}
	ours := slices.DeleteFunc(found.Value, func(h Hook) bool { return !h.Terminating })
	if len(ours) == 0 {
		return Hook{}, fmt.Errorf("a termination hook of group %s: %w", group, ErrAbsent)
	}
	return slices.MinFunc(ours, func(a, b Hook) int { return cmp.Compare(g.Options.open(a), g.Options.open(b)) }), nil
}
