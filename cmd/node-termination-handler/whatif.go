package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

func (p *program) whatIfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "what-if [" + kindWords() + "] --node NAME",
		Short: "Say what a notice would do to a node.",
		Long: `Says what a notice (spot if none is named) would do to a node, and does none of it: which pods would
be evicted when, which budgets block, whose grace is longer than the notice, what is left at the
deadline. It decides as the handler does, with the same options, and supposes the worst: that every
pod takes all of its grace and that no budget frees up. It needs no queue.`,
	}
	node := nodeFlag(cmd)
	kind := sample.Spot
	check := func(args []string) (wrong mistakes) {
		if len(args) > 0 {
			kind, wrong = parseKind(args)
		}
		return append(wrong, missingNode(*node)...)
	}
	p.withOptionsAnd(cmd, &config{queueOptional: true}, check, func(ctx context.Context, c *config) error {
		return whatIf(ctx, c, kind, *node, cmd.OutOrStdout())
	})
	return cmd
}

func whatIf(ctx context.Context, c *config, kind sample.Kind, node string, out io.Writer) error {
	s, err := setScene(ctx, c, kind, node)
	if err != nil {
		return err
	}
	remark := ""
	if kind == sample.ASGTerminate {
		if err := s.lookUp(ctx); err != nil {
			remark = fmt.Sprintf("The hook is not known (%v): its timeout counts as node-termination-grace-period.\n", err)
		}
	}
	now := time.Now().Truncate(time.Second)
	outcome, answer, err := s.rehearse(ctx, now)
	if err != nil {
		return err
	}
	if c.cordonOnly {
		_, err := fmt.Fprintf(out, "%s, %s: it would be cordoned; cordon-only keeps its pods there\n", node, outcome.Why)
		return err
	}
	budgets := ""
	if outcome.Terms.IgnoreBudgets {
		budgets = "; budgets are not asked: the machine is going already"
	}
	if _, err := fmt.Fprintf(out, "%s, %s: %s%s\n%s\n", node, outcome.Why, until(outcome.Terms.Deadline, now), budgets, remark); err != nil {
		return err
	}
	return answer.Print(out)
}
