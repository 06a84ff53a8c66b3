package docs

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
)

// policies are the policies of docs/policy.md by the headings above them.
func policies(t *testing.T) (all map[string]string, order []string) {
	t.Helper()
	doc, err := os.ReadFile("policy.md")
	if err != nil {
		t.Fatal(err)
	}
	all = map[string]string{}
	heading, block, inside := "", "", false
	for line := range strings.Lines(string(doc)) {
		switch text := strings.TrimRight(line, "\n"); {
		case text == "```yaml":
			inside, block = true, ""
		case text == "```" && inside:
			inside = false
			all[heading] = block
			order = append(order, heading)
		case inside:
			block += line
		case strings.HasPrefix(text, "#"):
			heading = strings.TrimLeft(text, "# ")
		}
	}
	return all, order
}

func TestThePoliciesOfTheDocAreRightAndShort(t *testing.T) {
	all, order := policies(t)
	for k, heading := range order {
		file, err := policyfile.Parse([]byte(all[heading]))
		if err != nil {
			t.Errorf("%s: %v", heading, err)
			continue
		}
		if len(file.Warnings) > 0 {
			t.Errorf("%s: %v", heading, file.Warnings)
		}
		for _, test := range file.Tests {
			policy := decision.Policy{Rules: file.Rules, NodeGracePeriod: 2 * time.Minute}
			if wrong := test.Differences(test.Run(policy)); len(wrong) > 0 {
				t.Errorf("%s: %s: %v", heading, test.Name, wrong)
			}
		}
		if lines := strings.Count(all[heading], "\n"); k > 0 && lines > 5 {
			t.Errorf("%s: %d lines, want at most 5", heading, lines)
		}
	}
	if examples := len(order) - 1; examples != 7 || len(examplesOfPolicies) != examples {
		t.Errorf("%d examples, %d of them with cases; want 7", examples, len(examplesOfPolicies))
	}
}

// A policyCase is a notice for a node, or a pod of a node that is drained, and what becomes of it.
type policyCase struct {
	kind   notice.Kind
	code   string
	start  time.Duration // from noon
	labels map[string]string

	do    decision.Action
	begin time.Duration // from noon; zero: at once
	check func(d decision.Decision, p decision.Policy) bool
}

// forNodePool are the labels of a node of Karpenter.
func forNodePool(name string) map[string]string {
	return map[string]string{"karpenter.sh/nodepool": name}
}

const (
	retirement = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
	reboot     = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"
)

// examplesOfPolicies says for each example what it is to do, and what it is not to.
var examplesOfPolicies = map[string][]policyCase{
	"Each kind in its own way": {
		{kind: notice.SpotInterruption, do: decision.Drain},
		{kind: notice.RebalanceRecommendation, do: decision.Cordon},
		{kind: notice.StateChange, do: decision.Drop},
		{kind: notice.ScheduledChange, code: reboot, start: 48 * time.Hour, do: decision.Drain},
	},
	"Degraded hardware at once, other changes late": {
		{kind: notice.ScheduledChange, code: retirement, start: 48 * time.Hour, do: decision.Drain},
		{kind: notice.ScheduledChange, code: "instance-retirement", start: 48 * time.Hour, do: decision.Drain},
		{kind: notice.ScheduledChange, code: reboot, start: 48 * time.Hour, do: decision.Drain, begin: 47*time.Hour + 30*time.Minute},
	},
	"A few nodes of a group at once": {
		{kind: notice.RebalanceRecommendation, do: decision.Drain, check: func(d decision.Decision, p decision.Policy) bool {
			return p.Rules.Named(d.Rule).Limit == decision.Limit{Nodes: "2", Per: "eks.amazonaws.com/nodegroup"}
		}},
		{kind: notice.SpotInterruption, do: decision.Drain, check: func(d decision.Decision, _ decision.Policy) bool { return !d.ByFile() }},
	},
	"A replacement node first": {
		{kind: notice.RebalanceRecommendation, do: decision.Drain, check: func(d decision.Decision, p decision.Policy) bool {
			return d.Terms.ReplaceFirst && p.Rules.Named(d.Rule).Limit.Wait == 10*time.Minute
		}},
		{
			kind: notice.ScheduledChange, code: reboot, start: 48 * time.Hour, do: decision.Drain, begin: 46 * time.Hour,
			check: func(d decision.Decision, _ decision.Policy) bool { return d.Terms.ReplaceFirst },
		},
		{kind: notice.SpotInterruption, do: decision.Drain, check: func(d decision.Decision, _ decision.Policy) bool { return !d.Terms.ReplaceFirst }},
	},
	"Maintenance in a window": { // noon is at 13:00 in Berlin, so that the night begins nine hours later
		{kind: notice.ScheduledChange, code: reboot, start: 24 * time.Hour, do: decision.Drain, begin: 9 * time.Hour},
		{kind: notice.ScheduledChange, code: reboot, start: 5 * time.Hour, do: decision.Drain, begin: 4 * time.Hour},
		{kind: notice.SpotInterruption, do: decision.Drain},
	},
	"By the labels of the node, and patiently": {
		{
			kind: notice.ScheduledChange, start: 48 * time.Hour, labels: map[string]string{"tier": "critical"}, do: decision.Drain,
			check: func(d decision.Decision, _ decision.Policy) bool { return d.Terms.Patient },
		},
		{
			kind: notice.ScheduledChange, start: 48 * time.Hour, do: decision.Drain,
			check: func(d decision.Decision, _ decision.Policy) bool { return !d.Terms.Patient },
		},
	},
	"Recommendations for one node pool": {
		{kind: notice.RebalanceRecommendation, labels: forNodePool("stateless"), do: decision.Drain},
		{kind: notice.RebalanceRecommendation, labels: forNodePool("databases"), do: decision.Drop},
	},
}

var noon = time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)

func TestThePoliciesOfTheDocDoWhatTheySay(t *testing.T) {
	all, _ := policies(t)
	for heading, cases := range examplesOfPolicies {
		file, err := policyfile.Parse([]byte(all[heading]))
		if err != nil {
			t.Errorf("%s: %v", heading, err)
			continue
		}
		p := decision.Policy{Rules: file.Rules, NodeGracePeriod: 2 * time.Minute}
		for k, tt := range cases {
			n := notice.Notice{Kind: tt.kind, Detail: tt.code, Time: noon}
			if tt.start > 0 {
				n.Deadline = noon.Add(tt.start)
			}
			d := decision.Decide(n, decision.Facts{Ownership: decision.Ours, Labels: tt.labels, Now: noon}, p)
			var begin time.Duration
			if !d.Terms.NotBefore.IsZero() {
				begin = d.Terms.NotBefore.Sub(noon)
			}
			if d.Action != tt.do || begin != tt.begin || tt.check != nil && !tt.check(d, p) {
				t.Errorf("%s, case %d: %+v, want %s after %s", heading, k, d, tt.do, tt.begin)
			}
		}
	}
}
