package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func good(t *testing.T) File {
	t.Helper()
	text, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAFileIsTheRulesThatItSays(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	nights := &decision.Window{
		Name: "nights", Days: [7]bool{false, true, true, true, true, true, false}, From: 22 * 60, To: 5 * 60, Zone: berlin,
	}
	evenings := &decision.Window{
		Name: "evenings", Days: [7]bool{true, true, true, true, true, true, true}, From: 18 * 60, To: 24 * 60, Zone: time.UTC,
	}
	want := decision.Rules{
		Nodes: []decision.NodeRule{
			{
				Name: "reboot-at-night", Kinds: []notice.Kind{notice.ScheduledChange}, Codes: []string{"*_REBOOT_*", "system-reboot"},
				Nodes: []decision.Selector{{
					{Key: "gpu", Operator: decision.DoesNotExist}, {Key: "team", Operator: decision.In, Values: []string{"batch"}},
				}},
				Do: decision.Draining, Before: 30 * time.Minute, Within: nights, Patient: true, Grace: time.Minute,
				Limit: decision.Limit{Nodes: "2", Per: "topology.kubernetes.io/zone", Wait: 2 * time.Hour}, By: decision.ByHandler,
			},
			{
				Name: "gpu", Kinds: []notice.Kind{notice.RebalanceRecommendation},
				Nodes: []decision.Selector{
					{{Key: "nvidia.com/gpu.present", Operator: decision.In, Values: []string{"true"}}},
					{
						{Key: "generation", Operator: decision.Greater, Values: []string{"3"}},
						{Key: "gpus", Operator: decision.In, Values: []string{"4", "8"}},
					},
				},
				Do: decision.Cordoning, Before: -1, Within: evenings,
			},
			{
				Name: "karpenters-own", Kinds: []notice.Kind{notice.StateChange, notice.SpotInterruption},
				Nodes: []decision.Selector{{{Key: "karpenter.sh/nodepool", Operator: decision.Exists}}},
				Do:    decision.Ignoring, Before: -1,
			},
			{Name: "tell", Kinds: []notice.Kind{notice.InstanceImpaired}, Codes: []string{"*system"}, Do: decision.Notifying, Before: -1},
			{Name: "slowly", Do: decision.Draining, Before: -1, MostGrace: 5 * time.Minute, BudgetPercent: new(30), Limit: decision.Limit{Nodes: "10%"}},
		},
		Pods: []decision.PodRule{
			{
				Name: "jobs", Leave: decision.LeaveLast,
				Pods: []decision.Selector{{{Key: "batch.kubernetes.io/job-name", Operator: decision.Exists}}},
			},
			{Name: "databases", Namespaces: []string{"data-*"}, Leave: decision.LeaveAfter, Order: 10},
			{
				Name: "caches", Leave: decision.LeaveAfter, Order: 1,
				Pods: []decision.Selector{
					{{Key: "app", Operator: decision.In, Values: []string{"redis"}}},
					{{Key: "app", Operator: decision.In, Values: []string{"memcached"}}},
				},
			},
			{
				Name: "agents", DaemonSets: true, Leave: decision.LeaveEnd,
				Pods: []decision.Selector{{{Key: "app", Operator: decision.In, Values: []string{"log-shipper"}}}},
			},
			{
				Name: "single", Leave: decision.LeaveSurged,
				Annotations: []decision.Selector{{{Key: "example.com/surge", Operator: decision.In, Values: []string{"true"}}}},
			},
		},
	}
	f := good(t)
	options := cmp.Options{
		cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(decision.NodeRule{}),
		cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() }),
	}
	if diff := cmp.Diff(want, f.Rules, options); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if len(f.Warnings) > 0 || len(f.Tests) != 5 {
		t.Errorf("%d tests, warnings: %v", len(f.Tests), f.Warnings)
	}
}

func TestTheTestsOfAFileAreRunAsTheHandlerDecides(t *testing.T) {
	f := good(t)
	p := decision.Policy{NodeGracePeriod: 2 * time.Minute, Rules: f.Rules}
	for _, test := range f.Tests {
		if wrong := test.Differences(test.Run(p)); len(wrong) > 0 {
			t.Errorf("line %d, %s: %s", test.Line, test.Name, strings.Join(wrong, ", "))
		}
	}
	reboot := f.Tests[0]
	reboot.Labels = map[string]string{"team": "batch", "gpu": "1"}
	want := []string{
		"rule is slowly, expected reboot-at-night", "begin is now, expected 2026-03-05T21:00:00Z",
	}
	if diff := cmp.Diff(want, reboot.Differences(reboot.Run(p))); diff != "" {
		t.Errorf("another node (-want +got):\n%s", diff)
	}
}

func TestATestIsOfAnOptionToo(t *testing.T) {
	for kind, want := range map[string]string{
		"spot": "drain by drain", "rebalance": "cordon by cordon-rebalance", "asg-terminate": "drain by drain",
	} {
		f, err := Parse([]byte("version: 1\ntests: [{name: x, kind: " + kind + ", expect: {do: drain}}]"))
		if err != nil {
			t.Fatal(err)
		}
		got := f.Tests[0].Run(decision.Policy{CordonRebalance: true, NodeGracePeriod: 2 * time.Minute})
		if got.Do+" by "+got.Rule != want || got.Begin != "now" {
			t.Errorf("%s: %+v, want %s", kind, got, want)
		}
	}
}

// A hook that has an hour can wait for a window; what is ignored has no begin.
func TestTestsTellWhatIsIgnoredAndWhatWaits(t *testing.T) {
	f, err := Parse([]byte(`
version: 1
windows: {noon: {from: "12:00", to: "13:00"}}
nodes:
  - {name: scale-in, kinds: asg-terminate, do: drain, within: noon}
  - {name: hush, kinds: rebalance, do: ignore}
  - {name: tell, kinds: state-change, do: notify}
tests:
  - {name: soon, kind: asg-terminate, now: 2026-03-04T11:30:00Z, expect: {begin: 2026-03-04T12:00:00Z}}
  - {name: too late, kind: asg-terminate, now: 2026-03-04T06:30:00+02:00, expect: {begin: 2026-03-04T05:27:55Z}}
  - {name: ignored, kind: rebalance, expect: {do: ignore, rule: hush}}
  - {name: told, kind: state-change, expect: {do: notify, rule: tell}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range f.Tests {
		got := test.Run(decision.Policy{NodeGracePeriod: 2 * time.Minute, Rules: f.Rules})
		if wrong := test.Differences(got); len(wrong) > 0 {
			t.Errorf("%s: %v", test.Name, wrong)
		}
		if (got.Do == "ignore" || got.Do == "notify") != (got.Begin == "never") {
			t.Errorf("%s: it begins %s", test.Name, got.Begin)
		}
	}
}

func TestWhatCanHardlyBeMeantIsAWarning(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{
			"a rule after one for everything", `
nodes:
  - {name: everything, do: drain}
  - {name: reboots, kinds: health, codes: ["*_REBOOT_*"], do: cordon}`,
			`line 4, column 12: nodes[1].name: the rule reboots never matches, because everything in line 3 matches all that it would match`,
		},
		{
			"a rule after some for all of its kinds", `
nodes:
  - {name: a, kinds: rebalance, do: drain}
  - {name: b, kinds: [spot, rebalance], do: drain}
  - {name: c, kinds: [rebalance, spot], do: cordon}
  - {name: d, kinds: [rebalance, health], do: cordon}`,
			`line 5, column 12: nodes[2].name: the rule c never matches, because a in line 3 or b in line 4 matches all that it would match`,
		},
		{
			"a rule for pods after one for all of them", `
pods:
  - {name: a, leave: last}
  - {name: b, namespaces: data-x, leave: first}
  - {name: c, daemonsets: true, leave: end}
  - {name: d, daemonsets: true, namespaces: data-x, leave: never}`,
			`line 4, column 12: pods[1].name: the rule b never matches, because a in line 3 matches all that it would match
line 6, column 12: pods[3].name: the rule d never matches, because c in line 5 matches all that it would match`,
		},
		{
			"a window that nobody uses", `
windows:
  nights: {from: "22:00", to: "05:00"}
nodes: []`,
			`line 3, column 3: windows.nights: is a window that no rule uses`,
		},
		{
			"a window for kinds that cannot wait", `
windows: {nights: {from: "22:00", to: "05:00"}}
nodes:
  - {name: a, kinds: [spot, rebalance, impaired], do: drain, within: nights, limit: {nodes: 1}}`,
			`line 4, column 70: nodes[0].within: has no effect on spot-interruption, instance-impaired, which cannot wait
line 4, column 85: nodes[0].limit: has no effect on spot-interruption, instance-impaired, which cannot wait`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse([]byte("version: 1" + c.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, f.Warnings.Error()); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFileIsBounded(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for k := range n {
			fmt.Fprintf(&b, format+"\n", k)
		}
		return b.String()
	}
	for _, c := range []struct{ name, file, want string }{
		{"size", "version: 1\n" + strings.Repeat("#", MaxSize), "line 1: the file has 1048587 bytes, and 1048576 are allowed"},
		{"lines", "version: 1\n" + strings.Repeat("#\n", maxElements), "line 50002: the file has more than 50000 lines and values"},
		{"brackets", "version: 1\nnodes: " + strings.Repeat("[", maxElements), "line 2: the file has more than 50000 lines and values"},
		{"dashes", "version: 1\nnodes: " + strings.Repeat("- ", maxElements), "line 2: the file has more than 50000 lines and values"},
		{"rules", "version: 1\nnodes:\n" + many(maxRules+1, "- {name: a%d, do: drain}"), "line 503, column 3: nodes: has 501 entries, and 500 are allowed"},
		{"pods", "version: 1\npods:\n" + many(maxRules+1, "- {name: a%d, leave: now}"), "line 503, column 3: pods: has 501 entries, and 500 are allowed"},
		{"codes", "version: 1\nnodes: [{name: a, do: drain, kinds: health, codes: [" + strings.Repeat("a,", maxTexts) + "b]}]", "line 2, column 253: nodes[0].codes: has 101 entries, and 100 are allowed"},
	} {
		if _, err := Parse([]byte(c.file)); err == nil || err.Error() != c.want {
			t.Errorf("%s: %.300v, want %s", c.name, err, c.want)
		}
	}
	_, err := Parse([]byte("version: 1\nnodes:\n" + many(maxRules, "- %d")))
	if problems, _ := errors.AsType[Problems](err); len(problems) != mostProblems {
		t.Errorf("%d problems", len(problems))
	}
}

func TestAPanicOfTheParserIsAnError(t *testing.T) {
	err := guarded(func() error { panic("internal error") })
	if err == nil || err.Error() != "the parser of YAML failed: internal error" {
		t.Errorf("the error is %v", err)
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, seed := range []string{"", "version: 1", "a: &a [*a]", "{", "- - -", "version: 1\nnodes: [{name: a, do: drain, nodes: \"a>1\"}]", "\ufeffversion: 1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			problems, ok := errors.AsType[Problems](err)
			if !ok || len(problems) == 0 {
				t.Fatalf("the error is %v", err)
			}
			last := 1 // YAML has more breaks of lines than one
			for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
				last += bytes.Count(data, []byte(end))
			}
			for k, p := range problems {
				if p.Line < 1 || p.Line > last+1 || p.Text == "" || k > 0 && p.Line < problems[k-1].Line {
					t.Fatalf("%q: %+v", data, p)
				}
			}
			return
		}
		now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
		policy := decision.Policy{NodeGracePeriod: 2 * time.Minute, Rules: file.Rules}
		for _, kind := range notice.Kinds {
			n := notice.Notice{Kind: kind, Detail: "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", Time: now, Deadline: now.Add(48 * time.Hour)}
			d := decision.Decide(n, decision.Facts{Ownership: decision.Ours, Labels: map[string]string{"team": "batch"}, Now: now}, policy)
			if end := d.Deadline; !end.IsZero() && d.Terms.NotBefore.After(end) {
				t.Fatalf("%q: a drain for %s begins at %s, after its deadline", data, kind, d.Terms.NotBefore)
			}
		}
		file.Rules.PodRuleFor(decision.Pod{Namespace: "data-x", Labels: map[string]string{"app": "redis"}})
		for _, test := range file.Tests {
			test.Differences(test.Run(policy))
		}
	})
}
