package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestThePolicyFile(t *testing.T) {
	rule := func(name, value string) decision.NodeRule {
		return decision.NodeRule{Name: name, Nodes: []decision.Selector{{{Key: "team", Operator: decision.In, Values: []string{value}}}}}
	}
	nodes := value([]Node{{Name: "a", Labels: map[string]string{"team": "batch"}}, {Name: "b"}})
	for name, tt := range map[string]struct {
		policy Answer[Policy]
		nodes  Answer[[]Node]
		want   Status
		says   string
	}{
		"there is none":          {Answer[Policy]{Err: ErrAbsent}, nodes, OK, "the options decide"},
		"it is right":            {value(Policy{From: "ConfigMap nth/policy", Rules: decision.Rules{Nodes: []decision.NodeRule{rule("batch", "batch")}}}), nodes, OK, "1 rule for nodes and 0 rules for pods of ConfigMap nth/policy"},
		"a rule selects nothing": {value(Policy{Rules: decision.Rules{Nodes: []decision.NodeRule{rule("batch", "batch"), rule("gpu", "gpu")}}}), nodes, Warning, "rule gpu selects none"},
		"it has a warning":       {value(Policy{Warnings: []string{"line 7: nights is used by no rule"}}), nodes, Warning, "line 7"},
		"it is wrong": {
			Answer[Policy]{Err: &PolicyError{"ConfigMap nth/policy", errors.New("line 3: x\nline 4: y")}}, nodes, Failed, "of ConfigMap nth/policy is wrong: line 3: x; line 4: y",
		},
		"nobody may read it": {Answer[Policy]{Err: &DeniedError{Permission: "get configmaps"}}, nodes, Unknown, "get configmaps"},
		"there are no nodes": {value(Policy{Rules: decision.Rules{Nodes: []decision.NodeRule{rule("gpu", "gpu")}}}), value([]Node{}), OK, "1 rule"},
	} {
		f := healthy()
		f.Policy, f.Nodes = tt.policy, tt.nodes
		if got := policyFits(f); got.Status != tt.want || !strings.Contains(got.What, tt.says) {
			t.Errorf("%s: %+v, want %v with %q", name, got, tt.want, tt.says)
		}
	}
}

func TestGroupsWhoseInstancesAreNotReplacedFirst(t *testing.T) {
	able := asg.Group{Name: "workers", LaunchesFirst: true}
	plain, rebalancing := able, able
	plain.LaunchesFirst, rebalancing.Rebalances = false, true
	hooks := []Hook{{Name: "drain", Terminating: true}}
	first := func(kinds ...notice.Kind) []decision.NodeRule {
		return []decision.NodeRule{{Name: "replaced", Kinds: kinds, Do: decision.Draining, ReplaceFirst: true}}
	}
	for name, tt := range map[string]struct {
		rules []decision.NodeRule
		group asg.Group
		want  Status
		says  string
	}{
		"all are":                           {first(), able, OK, "1 rule"},
		"no maintenance policy":             {first(notice.ScheduledChange), plain, Warning, "it does not launch before it terminates"},
		"no rule asks for it":               {[]decision.NodeRule{{Name: "drained", Do: decision.Draining}}, plain, OK, "1 rule"},
		"Capacity Rebalancing":              {first(notice.RebalanceRecommendation), rebalancing, OK, "1 rule"}, // it launches first by itself
		"Capacity Rebalancing, for changes": {first(notice.ScheduledChange), rebalancing, OK, "1 rule"},
		"a group that may not be described": {first(), asg.Group{}, OK, "1 rule"},
	} {
		f := healthy()
		f.Policy = value(Policy{Rules: decision.Rules{Nodes: tt.rules}})
		f.Groups = value([]Group{{Name: "workers", Hooks: value(hooks), Replacing: tt.group}})
		if got := policyFits(f); got.Status != tt.want || !strings.Contains(got.What, tt.says) {
			t.Errorf("%s: %+v, want %v with %q", name, got, tt.want, tt.says)
		}
	}
}
