package policyfile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A Test is one of the tests of a file: what is expected of the rules for a notice about a node, or
// for a pod.
type Test struct {
	Name string
	Line int

	// Of a notice: Kind is not Ignored. Code and Start are those of a scheduled change.
	Kind   notice.Kind
	Code   string
	Labels map[string]string // of the node
	Now    time.Time         // zero: when the test runs
	Start  time.Time
	// Of a pod: not nil.
	Pod *decision.Pod

	Want Outcome
}

// An Outcome is what comes out of a test, in the words of a file. Of what is expected, what is empty
// is not compared.
type Outcome struct {
	Do    string `json:"do,omitempty"`
	Rule  string `json:"rule,omitempty"`
	Begin string `json:"begin,omitempty"` // now, never, or a time in UTC
	Leave string `json:"leave,omitempty"`
}

// String is the outcome in words.
func (o Outcome) String() string {
	switch {
	case o.Leave != "":
		return fmt.Sprintf("leaves %s, rule %s", o.Leave, o.Rule)
	case o.Begin == never:
		return fmt.Sprintf("%s, rule %s", o.Do, o.Rule)
	}
	return fmt.Sprintf("%s, rule %s, begins %s", o.Do, o.Rule, o.Begin)
}

// Words of a file.
const (
	beginsNow = "now"
	never     = "never"
	noRule    = "none" // of a pod
)

// Run does what the handler does with a policy, which has the rules of the file: it decides.
func (t Test) Run(p decision.Policy) Outcome {
	if t.Pod != nil {
		return t.runPod(p.Rules)
	}
	now := t.Now
	if now.IsZero() {
		now = time.Now()
	}
	n := notice.Notice{Kind: t.Kind, Detail: t.Code, Time: now, Deadline: t.Start, Instances: []string{"i-00000000"}}
	f := decision.Facts{Ownership: decision.Ours, Labels: t.Labels, Now: now}
	if t.Kind == notice.ASGTerminate {
		// Auto Scaling's defaults.
		// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
		n.Hook.Name = "test"
		f.Limits = notice.HookLimits{Timeout: time.Hour, Global: 100 * time.Hour}
	}
	d := decision.Decide(n, f, p)
	got := Outcome{Do: d.Action.String(), Rule: d.Rule, Begin: never}
	if effort, is := withoutAction[d.Why]; is {
		got.Do = effort.String()
	}
	if d.Action == decision.Cordon || d.Action == decision.Drain {
		got.Begin = beginsNow
		if !d.Terms.NotBefore.IsZero() {
			got.Begin = d.Terms.NotBefore.UTC().Format(time.RFC3339)
		}
	}
	return got
}

// withoutAction are the efforts of rules for which there is no action of that name.
var withoutAction = map[decision.Why]decision.Effort{
	decision.WhyIgnoredByRule: decision.Ignoring, decision.WhyNotifiedByRule: decision.Notifying,
}

// runPod is about a drain with a deadline.
func (t Test) runPod(rules decision.Rules) Outcome {
	turn := rules.TurnOf(*t.Pod, true, time.Now())
	got := Outcome{Rule: noRule, Leave: turn.Leave.String()}
	if rule := rules.PodRuleFor(*t.Pod); rule != nil {
		got.Rule = rule.Name
	}
	if turn.Stays {
		got.Leave = decision.LeaveNever.String()
	}
	return got
}

// Differences say what of an outcome is not as the test wants it; none: the test passes.
func (t Test) Differences(got Outcome) []string {
	var all []string
	compare := func(key, got, want string) {
		if want != "" && got != want {
			all = append(all, fmt.Sprintf("%s is %s, expected %s", key, cmp.Or(got, "not known"), want))
		}
	}
	compare("do", got.Do, t.Want.Do)
	compare("rule", got.Rule, t.Want.Rule)
	compare("begin", got.Begin, t.Want.Begin)
	compare("leave", got.Leave, t.Want.Leave)
	return all
}
