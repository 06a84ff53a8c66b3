package tool

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
	f, err := t.forecast(view, time.Now().Truncate(time.Second))
	if err != nil {
		return err
	}
	f.uses = f.usesOfLimits(ctx)
	rules := s.policy().Explain(f.parsed, t.node.Labels)
	if e.JSON {
		return WriteJSON(out, f.explanation(rules))
	}
	_, err = io.WriteString(out, s.origin.text(s.identity)+f.rulesText(rules)+"\n"+f.fate())
	return err
}

// rulesText says for people which rules were asked.
func (f forecast) rulesText(rules []decision.Considered) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Rules for %s", f.kind.Dashed())
	if f.parsed.Detail != "" {
		fmt.Fprintf(&b, " (%s)", f.parsed.Detail)
	}
	fmt.Fprintf(&b, " of node %s", f.node.Name)
	if f.file.From == "" {
		b.WriteString(", without a policy file")
	} else {
		fmt.Fprintf(&b, ", of %s", f.file.From)
	}
	b.WriteString(":\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for k, c := range rules {
		why := "does not match: " + string(c.Why)
		if c.Why == decision.MatchesRule {
			why = "decides: " + c.Rule.String()
		}
		fmt.Fprintf(table, "  %2d  %s\t%s\n", k+1, c.Rule.Name, why)
	}
	_ = table.Flush() // into memory
	for _, warning := range f.file.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}
	return b.String()
}

// A ruleReport is a rule that was asked, for programs.
type ruleReport struct {
	Rule string `json:"rule"`
	// DoesNotMatch says why; absent for the one that decides.
	DoesNotMatch string `json:"doesNotMatch,omitempty"`
	Does         string `json:"does"`
}

// explanation is the forecast, and the rules that were asked, for programs.
func (f forecast) explanation(asked []decision.Considered) any {
	var rules []ruleReport
	for _, c := range asked {
		rules = append(rules, ruleReport{c.Rule.Name, string(c.Why), c.Rule.String()})
	}
	return struct {
		originReport
		Kind   string       `json:"kind"`
		Code   string       `json:"code,omitempty"`
		Policy string       `json:"policy,omitempty"`
		Rules  []ruleReport `json:"rules"`
		Node   nodeReport   `json:"node"`
	}{f.originReport(), f.kind.Dashed(), f.parsed.Detail, f.file.From, rules, f.report()}
}
