package tool

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// Explain says which rule decides about a notice for a node, why the ones before it do not, when the
// drain begins, and which pods leave when.
type Explain struct {
	Kind notice.Kind // one that is Sendable
	Node string
	// Code is that of a scheduled change; empty: the one of the example.
	Code string
	// Start is when a scheduled change begins, from now on.
	Start time.Duration
	JSON  bool
}

// An explanation is the answer.
type explanation struct {
	forecast
	considered []decision.Considered
}

// Run prints the explanation.
func (e Explain) Run(ctx context.Context, s *Session, out io.Writer) error {
	t, err := s.targetNamed(ctx, e.Kind, e.Node)
	if err != nil {
		return err
	}
	t.code, t.start = e.Code, e.Start
	view, err := rehearsal.Read(ctx, s.client, e.Node)
	if err != nil {
		return err
	}
	s.readLease(ctx)
	s.lookUpAll(ctx, []*target{t})
	now := time.Now().Truncate(time.Second)
	f, err := t.forecast(view, now)
	if err != nil {
		return err
	}
	n, err := t.parsedAt(now)
	if err != nil {
		return err
	}
	f.uses = f.usesOfLimits(ctx)
	x := explanation{forecast: f, considered: s.policy().Explain(n, t.node.Labels)}
	if e.JSON {
		return WriteJSON(out, x.report(n))
	}
	return x.write(out, n)
}

// write writes the explanation for people.
func (x explanation) write(out io.Writer, n notice.Notice) error {
	if err := x.origin.writeWith(out, x.identity); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Rules for %s", n.Kind.Dashed())
	if n.Detail != "" {
		fmt.Fprintf(&b, " (%s)", n.Detail)
	}
	fmt.Fprintf(&b, " of node %s", x.node.Name)
	if x.file.from == "" {
		b.WriteString(", without a policy file")
	} else {
		fmt.Fprintf(&b, ", of %s", x.file.from)
	}
	b.WriteString(":\n")
	width := 0
	for _, c := range x.considered {
		width = max(width, len(c.Rule.Name))
	}
	for k, c := range x.considered {
		why := "does not match: " + string(c.Why)
		if c.Why == decision.MatchesRule {
			why = "decides: " + c.Rule.String()
		}
		fmt.Fprintf(&b, "  %2d  %-*s  %s\n", k+1, width, c.Rule.Name, why)
	}
	for _, warning := range x.file.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}
	b.WriteString("\n")
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	return x.writeFate(out)
}

// A ruleReport is a rule that was asked, for programs.
type ruleReport struct {
	Rule string `json:"rule"`
	// DoesNotMatch says why; absent for the one that decides.
	DoesNotMatch string `json:"doesNotMatch,omitempty"`
	Does         string `json:"does"`
}

// report returns the explanation for programs.
func (x explanation) report(n notice.Notice) any {
	var rules []ruleReport
	for _, c := range x.considered {
		rules = append(rules, ruleReport{c.Rule.Name, string(c.Why), c.Rule.String()})
	}
	return struct {
		originReport
		Kind   string       `json:"kind"`
		Code   string       `json:"code,omitempty"`
		Policy string       `json:"policy,omitempty"`
		Rules  []ruleReport `json:"rules"`
		Node   nodeReport   `json:"node"`
	}{x.originReport(), n.Kind.Dashed(), n.Detail, x.file.from, rules, x.forecast.report()}
}
