package tool

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
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
	uses       []holdback.Use // of the limits that the drain has to keep; empty: it need not wait for one
}

// isLimited reports whether a drain that begins now has to keep the limit of the rule, and that of the options.
func (x explanation) isLimited(now time.Time, p decision.Policy) bool {
	if x.whyNotDrained() != "" || x.begin().After(now) {
		return false
	}
	carried, _, err := cluster.ReadIntent(x.node)
	inWork := carried.Version > 0 && !carried.Finished() && !carried.HeldBack
	return err == nil && !inWork && decision.CanWait(x.Intent, now, p)
}

// useText says how far a limit is used up.
func useText(use *holdback.Use) string {
	const mostNames = 5
	whose, among, by, then := "Limit of "+use.Rule, "", "", "there is room"
	if use.Rule == "" {
		whose = "max-unready-nodes"
	}
	if use.Per != "" {
		among = " with " + use.Per
	}
	if len(use.Nodes) > 0 {
		by = ": " + strings.Join(evacuation.Names(use.Nodes, mostNames), ", ")
	}
	if len(use.Nodes) >= use.Most {
		then = "the drain would wait"
	}
	return fmt.Sprintf("%s: nodes%s that are out of use now: %d of at most %d%s; %s\n",
		whose, among, len(use.Nodes), use.Most, by, then)
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
	x := explanation{forecast: f, considered: s.policy().Explain(n, t.node.Labels)}
	_, rule := s.policy().Opens(x.Intent, now)
	limits := s.MaxUnready != (intstr.IntOrString{}) || rule != nil && rule.Limit.Nodes != ""
	if limits && x.isLimited(now, s.policy()) {
		nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			s.origin.note(fmt.Sprintf("the nodes could not be listed, so it is not known how far limits are used up: %v", err))
		} else {
			x.uses = holdback.Uses(rule, s.MaxUnready, t.node, nodes.Items)
		}
	}
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
	for k := range x.uses {
		b.WriteString(useText(&x.uses[k]))
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
		// Limits say how far those limits are used up that the drain has to keep.
		Limits []holdback.Use `json:"limits,omitempty"`
		Node   nodeReport     `json:"node"`
	}{x.originReport(), n.Kind.Dashed(), n.Detail, x.file.from, rules, x.uses, x.forecast.report()}
}
