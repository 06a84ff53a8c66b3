package doctor

import (
	"errors"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Policy is the policy file of the handler.
type Policy struct {
	From     string // where it was read, such as ConfigMap nth/policy
	Rules    decision.Rules
	Warnings []string // about the file itself, each with a line
}

// A PolicyError is what is wrong with a policy file. The handler keeps the rules that it had.
type PolicyError struct {
	From string
	Err  error // with a line for each mistake
}

func (e *PolicyError) Error() string { return e.From + ": " + e.Err.Error() }

func (e *PolicyError) Unwrap() error { return e.Err }

// policyFits compares the policy file with the nodes of the cluster.
func policyFits(f *Facts) Finding {
	const subject = "whether the policy file is right"
	switch wrong, isWrong := errors.AsType[*PolicyError](f.Policy.Err); {
	case errors.Is(f.Policy.Err, ErrAbsent):
		return ok("there is no policy file: the options decide about each notice")
	case isWrong:
		return fail("correct the file: until then the handler keeps the rules that it had, and a new pod does not start",
			"the policy file of %s is wrong: %s", wrong.From, strings.ReplaceAll(wrong.Err.Error(), "\n", "; "))
	case f.Policy.Err != nil:
		return unknown(subject, f.Policy.Err)
	}
	p := f.Policy.Value
	problems := slices.Clone(p.Warnings)
	if len(f.Nodes.Value) > 0 {
		for k := range p.Rules.Nodes {
			if r := &p.Rules.Nodes[k]; !slices.ContainsFunc(f.Nodes.Value, func(n Node) bool { return r.Selects(n.Labels) }) {
				problems = append(problems, "rule "+r.Name+" selects none of the nodes that there are")
			}
		}
	}
	groups := notReplaced(f, p.Rules)
	if len(groups) > 0 && len(problems) == 0 {
		return warn("change the groups, or the nodes that the rules with first: replacement select",
			"nodes of these groups are drained without a replacement: %s", list(groups))
	}
	problems = append(problems, groups...)
	switch {
	case len(problems) > 0:
		return warn("correct the selectors, or accept this warning if such nodes come and go",
			"the policy of %s: %s", p.From, list(problems))
	case f.Nodes.Err != nil:
		return unknown("whether the rules of the policy select nodes", f.Nodes.Err)
	}
	return ok("%s for nodes and %s for pods of %s",
		overview.Count(len(p.Rules.Nodes), "rule"), overview.Count(len(p.Rules.Pods), "rule"), p.From)
}

// notReplaced says of which groups rules cannot replace instances first, and why.
func notReplaced(f *Facts, rules decision.Rules) (problems []string) {
	for _, g := range f.Groups.Value {
		if g.Replacing.Name == "" { // not described
			continue
		}
		hooked := slices.ContainsFunc(g.Hooks.Value, func(h Hook) bool { return h.Terminating })
		for _, k := range []notice.Kind{notice.RebalanceRecommendation, notice.ScheduledChange} {
			replaces := func(r decision.NodeRule) bool {
				return r.ReplaceFirst && (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k))
			}
			_, why := asg.Choose([]notice.Kind{k}, g.Replacing, hooked)
			if why != "" && !slices.Contains(problems, why) && slices.ContainsFunc(rules.Nodes, replaces) {
				problems = append(problems, why)
			}
		}
	}
	return problems
}
