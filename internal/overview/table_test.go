package overview_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

var now = time.Date(2026, 3, 4, 3, 0, 10, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// storm is an overview with every sort of line.
func storm() *overview.Overview {
	return &overview.Overview{
		At: now, Source: overview.Leader, Leader: "node-termination-handler-7d9c-abcde",
		LeadsSince: ago(7*time.Hour + 5*time.Second), Transitions: 7,
		Queue:     &overview.Queue{InFlight: 5, Oldest: ago(2*time.Hour + 3*time.Minute), LastReceive: ago(4 * time.Second)},
		Held:      []overview.Held{{Instance: "i-00000000000000004", Until: now.Add(time.Minute)}, {Instance: "i-00000000000000005", Until: now.Add(24 * time.Hour)}},
		Policy:    &overview.Policy{Rules: 3, Problem: "line 7: there is no action drian"},
		Unseen:    []string{"lifecycle hooks whose notices are lost, since 10:00: AccessDenied"},
		LeftAlone: []string{"ip-10-0-3-1"},
		HeldBack:  "1 drain, because 3 of 10 nodes are not ready or cordoned, and max-unready-nodes is 3",
		Unscheduled: []overview.Unscheduled{
			{Node: "ip-10-0-1-9", Pods: 3, Why: "0/9 nodes are available: 9 Insufficient cpu"},
			{Node: "ip-10-0-1-8", Pods: 1, Why: "no"},
			{Node: "ip-10-0-1-7", Pods: 1, Why: "no"},
			{Node: "ip-10-0-1-6", Pods: 1, Why: "no"},
			{Node: "ip-10-0-1-5", Pods: 1, Why: "no"},
		},
		Cordoned: []overview.Cordoned{
			{Node: "ip-10-0-2-1", Since: ago(50 * time.Hour)},
			{Node: "ip-10-0-2-2", Since: ago(3 * time.Hour)},
			{Node: "ip-10-0-2-3", Since: ago(20 * time.Minute)},
			{Node: "ip-10-0-2-4", Since: ago(6 * time.Minute)},
		},
		Nodes: []overview.Node{
			{
				Name: "ip-10-0-1-1", Instance: "i-00000000000000001", Kind: "spot-interruption", Stage: overview.Draining,
				Since: ago(110 * time.Second), CordonedAt: ago(110 * time.Second), Deadline: now.Add(10 * time.Second),
				Pods: &overview.Pods{Left: 4, Forced: 1, Gone: 8},
				WaitsFor: []overview.Wait{
					{Cause: overview.Budget, Name: "shop/api", Why: "PodDisruptionBudget shop/api allows no disruption", Pods: 3, Pod: "shop/api-1", Until: now.Add(5 * time.Second)},
					{Cause: overview.Grace, Why: "a pod is stopping", Pods: 1, Pod: "shop/worker-0", Until: now.Add(8 * time.Second)},
				},
				MoreWaits: 2,
			},
			{
				Name: "ip-10-0-1-2", Instance: "i-00000000000000002", Kind: "asg-terminate", Rule: "gpus-first", Stage: overview.Detaching,
				Since: ago(4 * time.Minute), Deadline: now.Add(time.Hour + 5*time.Minute), Pods: &overview.Pods{Gone: 3}, PodsGone: ago(time.Second),
				Hooks:    []overview.Hook{{Group: "workers", Name: "drain-me"}},
				WaitsFor: []overview.Wait{{Cause: overview.Volume, Name: "pvc-1", Why: "a volume is still attached"}},
			},
			{
				Name: "ip-10-0-1-3", Kind: "scheduled-change", Rule: "at-night", Stage: overview.HeldBack,
				Since: ago(50 * time.Hour), Deadline: now.Add(70 * time.Hour),
				WaitsFor: []overview.Wait{{Cause: overview.Window, Why: "rule at-night drains from 22:00", Until: now.Add(19 * time.Hour)}},
			},
			{Name: "ip-10-0-1-4", Kind: "rebalance-recommendation", Stage: overview.Completing, Since: ago(9 * time.Second), Pods: &overview.Pods{Gone: 2}},
		},
	}
}

func TestTheTableSaysWhatEachNodeWaitsFor(t *testing.T) {
	for name, style := range map[string]overview.Style{
		"text": {}, "wide": {Wide: true}, "colour": {Colour: true},
	} {
		golden.Compare(t, "testdata/table_"+name+".txt", storm().Table(style))
	}
}

func TestTheTableOfTheDocIsWhatStatusPrints(t *testing.T) {
	o := storm()
	o.Policy, o.Unscheduled, o.Cordoned, o.Held, o.HeldBack = nil, nil, nil, nil, "1 drain, because 3 of 10 nodes are not ready or cordoned"
	o.Nodes = []overview.Node{o.Nodes[0], o.Nodes[2]}
	blocks := regexp.MustCompile("(?ms)^```text\n(.*?)^```$")
	page, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	if *golden.Update {
		page = blocks.ReplaceAllLiteral(page, []byte("```text\n"+o.Table(overview.Style{})+"```"))
		if err := os.WriteFile("../../docs/status.md", page, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if all := blocks.FindAllSubmatch(page, -1); len(all) != 1 || string(all[0][1]) != o.Table(overview.Style{}) {
		t.Errorf("docs/status.md does not show (go test ./internal/overview -update changes that):\n%s", o.Table(overview.Style{}))
	}
}

func TestTheTableOfNodesAloneSaysWhatIsMissing(t *testing.T) {
	o := storm()
	o.Source, o.Queue, o.Policy, o.HeldBack, o.Leader, o.Unscheduled, o.Cordoned = overview.Nodes, nil, nil, "", "", nil, nil
	o.LeadsSince, o.Held = time.Time{}, nil
	o.Missing = "the leader does not answer: no answer within 3s"
	o.Nodes = o.Nodes[2:3]
	o.Nodes[0].WaitsFor, o.Nodes[0].Pods = nil, nil
	golden.Compare(t, "testdata/table_nodes.txt", o.Table(overview.Style{}))
}

func TestTheFirstLineIsThatNoNoticeArrives(t *testing.T) {
	o := storm()
	o.Queue.FailingSince, o.Queue.Failure = ago(3*time.Minute), "AccessDenied: not authorized to perform sqs:receivemessage"
	want := "Notices:     no notice arrives since 3m: AccessDenied: not authorized to perform sqs:receivemessage"
	if first, _, _ := strings.Cut(o.Table(overview.Style{}), "\n"); first != want {
		t.Errorf("the first line is %q, want %q", first, want)
	}
}

func TestADryRunIsTheFirstLine(t *testing.T) {
	o := &overview.Overview{At: now, Leader: "a", DryRun: true}
	if first, _, _ := strings.Cut(o.Table(overview.Style{}), "\n"); !strings.HasPrefix(first, "Notices:     dry-run is on") {
		t.Errorf("the first line is %q", first)
	}
}

func TestALeaderThatHasJustBegunDoesNotSayThatThereIsNothing(t *testing.T) {
	o := &overview.Overview{At: now, Leader: "a", Resuming: true}
	if text := o.Table(overview.Style{}); !strings.HasSuffix(text, "\nWhich nodes are being drained is not known yet: the leader has just begun.\n") {
		t.Errorf("%s", text)
	}
}

func TestNothingInProgressIsSaid(t *testing.T) {
	o := &overview.Overview{At: now, Leader: "a", Queue: &overview.Queue{}}
	want := "Leader:      a, at 03:00:10Z\nQueue:       0 messages held by this leader; the first receive is in progress, which takes up to 20s if there is no message\nNo node is being drained.\n"
	if got := o.Table(overview.Style{Colour: true}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// hostile has what may harm a terminal or a page: an escape sequence, a new line, a mark that turns the direction.
const hostile = "\x1b[31mred\x1b]0;title\a\nnew\r\u202eline|`<script>alert(1)</script>`<!channel> @all [a](javascript:b) **c**"

func TestHostileNamesDoNothingToATerminal(t *testing.T) {
	o := &overview.Overview{
		At: now, Leader: hostile, Missing: hostile, HeldBack: hostile, Policy: &overview.Policy{Problem: hostile},
		Unscheduled: []overview.Unscheduled{{Node: hostile, Pods: 1, Why: hostile}},
		Nodes: []overview.Node{{
			Name: hostile, Instance: hostile, Kind: hostile, Rule: hostile, Stage: overview.Stage(hostile), Since: now,
			Hooks:    []overview.Hook{{Group: hostile, Name: hostile}},
			WaitsFor: []overview.Wait{{Cause: overview.Cause(hostile), Name: hostile, Pods: 1, Pod: hostile}, {Why: hostile, Name: "a"}},
		}},
	}
	text := o.Table(overview.Style{Wide: true})
	if lines := strings.Count(text, "\n"); lines != 9 {
		t.Errorf("%d lines instead of 9:\n%s", lines, text)
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("there is %U in %q", r, text)
		}
	}
	o.Nodes[0].Name = strings.Repeat("x", 100_000)
	if got := len(o.Table(overview.Style{Wide: true})); got > 10_000 {
		t.Errorf("a long name makes a table of %d bytes", got)
	}
}

func TestATableFitsTheScreen(t *testing.T) {
	o := &overview.Overview{At: now, Source: overview.Leader, Leader: "handler"}
	for k := range 106 {
		n := overview.Node{Name: fmt.Sprintf("node-%03d", k), Deadline: now.Add(time.Duration(k) * time.Minute), Stage: overview.Draining}
		if n.WaitsFor = []overview.Wait{{Cause: overview.Budget, Name: "shop/api", Why: strings.Repeat("very long ", 40)}}; k%3 == 0 {
			n.WaitsFor[0] = overview.Wait{Cause: overview.Grace, Why: "a pod is stopping"}
		}
		o.Nodes = append(o.Nodes, n)
	}
	o.Nodes = append(o.Nodes, overview.Node{Name: "no-deadline", Since: ago(time.Hour), Stage: overview.Draining, WaitsFor: []overview.Wait{{Cause: overview.Budget}}})
	for _, colour := range []bool{false, true} {
		text := o.Table(overview.Style{Columns: 100, Lines: 30, Colour: colour})
		lines := strings.Split(strings.TrimSuffix(escapes.ReplaceAllString(text, ""), "\n"), "\n")
		if len(lines) != 29 { // and one for the cursor
			t.Errorf("%d lines:\n%s", len(lines), text)
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 99 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		if !strings.HasPrefix(lines[4], "node-000") || !strings.HasPrefix(lines[5], "no-deadline") || // the two that are stuck
			lines[28] != "and 83 more nodes: 55 wait for budget shop/api, 28 wait for grace" {
			t.Errorf("the first nodes are %q, the last line %q", lines[4:6], lines[28])
		}
	}
	if text := o.Table(overview.Style{}); strings.Count(text, "\n") != 107+4 || strings.Contains(text, "more node") {
		t.Errorf("on no screen there are %d lines", strings.Count(text, "\n"))
	}
	o.Paused = new(strings.Repeat("why ", 60)) // the heading is broken by the terminal, and not cut
	if text := o.Table(overview.Style{Columns: 100, Lines: 30}); !strings.Contains(text, "until kubectl nth resume") || strings.Count(text, "\n")+3 != 29 {
		t.Errorf("%d lines:\n%s", strings.Count(text, "\n"), text)
	}
	if text := o.Table(overview.Style{Columns: 10, Lines: 3}); !strings.Contains(text, "node-000") {
		t.Errorf("on a tiny screen:\n%s", text)
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestWhatIsStuck(t *testing.T) {
	budget := []overview.Wait{{Cause: overview.Budget, Why: "no"}}
	grace := []overview.Wait{{Cause: overview.Grace, Why: "stopping"}}
	forced := func(in time.Duration) []overview.Wait {
		return []overview.Wait{{Cause: overview.Budget, Why: "no", Until: now.Add(in)}}
	}
	for name, test := range map[string]struct {
		node  overview.Node
		stuck bool
	}{
		"a pod is forced soon":                  {overview.Node{Deadline: now.Add(10 * time.Minute), WaitsFor: forced(30 * time.Second)}, true},
		"a pod should have been forced":         {overview.Node{Deadline: now.Add(10 * time.Minute), WaitsFor: forced(-time.Second)}, true},
		"a pod is forced later":                 {overview.Node{Deadline: now.Add(10 * time.Minute), WaitsFor: forced(31 * time.Second)}, false},
		"pods stop soon":                        {overview.Node{Deadline: now.Add(10 * time.Minute), WaitsFor: []overview.Wait{{Cause: overview.Grace, Until: now.Add(time.Second)}}}, false},
		"in time":                               {overview.Node{Deadline: now.Add(time.Minute), WaitsFor: budget}, false},
		"blocked near its deadline":             {overview.Node{Deadline: now.Add(20 * time.Second), WaitsFor: budget}, true},
		"its namespace goes, near its deadline": {overview.Node{Deadline: now.Add(20 * time.Second), WaitsFor: []overview.Wait{{Cause: overview.Namespace}}}, true},
		"pods stop near its deadline":           {overview.Node{Deadline: now.Add(20 * time.Second), WaitsFor: grace}, false},
		"past its deadline":                     {overview.Node{Deadline: now, WaitsFor: grace}, true},
		"past its deadline, and empty":          {overview.Node{Deadline: now, PodsGone: ago(time.Second)}, false},
		"past its deadline, completing":         {overview.Node{Deadline: now, Stage: overview.Completing}, false},
		"past its deadline with pods":           {overview.Node{Deadline: now, Stage: overview.Completing, Pods: &overview.Pods{Left: 1}}, true},
		"volumes past the deadline":             {overview.Node{Deadline: now, PodsGone: ago(time.Second), WaitsFor: []overview.Wait{{Cause: overview.Volume}}}, true},
		"its hook fails at its end":             {overview.Node{Deadline: now, Stage: overview.Completing, WaitsFor: []overview.Wait{{Cause: overview.FailingHook}}}, true},
		"its hook fails":                        {overview.Node{Deadline: now.Add(time.Hour), PodsGone: ago(14 * time.Minute), WaitsFor: []overview.Wait{{Cause: overview.FailingHook}}}, false},
		"its hook fails for long":               {overview.Node{Deadline: now.Add(time.Hour), PodsGone: ago(15 * time.Minute), WaitsFor: []overview.Wait{{Cause: overview.FailingHook}}}, true},
		"no deadline, blocked for a while":      {overview.Node{Since: ago(14 * time.Minute), WaitsFor: budget}, false},
		"no deadline, blocked for long":         {overview.Node{Since: ago(15 * time.Minute), WaitsFor: budget}, true},
		"no deadline, pods stop for long":       {overview.Node{Since: ago(15 * time.Minute), WaitsFor: grace}, false},
		"blocked for long, days ahead":          {overview.Node{Since: ago(time.Hour), CordonedAt: ago(15 * time.Minute), Deadline: now.Add(70 * time.Hour), WaitsFor: budget}, true},
		"blocked for long, and pods leave":      {overview.Node{Since: ago(time.Hour), LastLeft: ago(14 * time.Minute), Deadline: now.Add(time.Hour), WaitsFor: budget}, false},
		"its volumes, after its pods":           {overview.Node{Since: ago(time.Hour), PodsGone: ago(time.Minute), Deadline: now.Add(time.Hour), WaitsFor: []overview.Wait{{Cause: overview.Volume}}}, false},
		"told long ago, begun just now":         {overview.Node{Since: ago(time.Hour), CordonedAt: ago(time.Minute), Deadline: now.Add(time.Hour), WaitsFor: budget}, false},
		"no deadline, blocked since who knows":  {overview.Node{WaitsFor: budget}, false},
	} {
		o := &overview.Overview{At: now, Nodes: []overview.Node{test.node}}
		if got := o.Stuck() == 1; got != test.stuck {
			t.Errorf("%s: stuck is %v", name, got)
		}
	}
}

// The drain has ended at its deadline, and so is no drain in progress.
func TestANodeThatPodsWereLeftOnIsToldInRed(t *testing.T) {
	o := &overview.Overview{At: now, Source: overview.Leader, Leader: "me", Cordoned: []overview.Cordoned{
		{Node: "quiet", Since: ago(time.Hour)}, {Node: "late", Since: ago(12 * time.Second), Missed: true},
	}}
	slices.SortFunc(o.Cordoned, overview.WorstFirst)
	const want = "\x1b[31mCordoned:    2 nodes since drains that have ended: late (12s, pods were left on it), quiet (1h); "
	if table := o.Table(overview.Style{Colour: true}); !strings.Contains(table, want) {
		t.Errorf("%q", table)
	}
}

func TestNodesAreSortedByTheirDeadlines(t *testing.T) {
	o := &overview.Overview{Nodes: []overview.Node{
		{Name: "never"}, {Name: "late", Deadline: now.Add(time.Hour)}, {Name: "never-2", Since: now}, {Name: "soon", Deadline: now}, {Name: "also-soon", Deadline: now},
	}}
	slices.SortFunc(o.Nodes, overview.ByDeadline)
	var names []string
	for _, n := range o.Nodes {
		names = append(names, n.Name)
	}
	if got := strings.Join(names, " "); got != "also-soon soon late never never-2" {
		t.Errorf("the order is %s", got)
	}
}

// Times that a kubelet or a leader has made up are further apart than a duration can say.
func TestTimesFarApartAreShownWithOneSign(t *testing.T) {
	far := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	o := &overview.Overview{At: now, Queue: &overview.Queue{Oldest: far, LastReceive: far}, Nodes: []overview.Node{
		{Name: "a", Since: far, Deadline: time.Time{}.Add(time.Second)},
	}}
	text := o.Table(overview.Style{})
	if strings.Contains(text, "--") || strings.Count(text, "-106751d23h") != 4 {
		t.Error(text)
	}
}

// Each line is as wide as the widest: one node must not make those of a thousand long.
func TestANodeWithManyHooksMakesNoWideTable(t *testing.T) {
	o := &overview.Overview{At: now, Nodes: make([]overview.Node, 1000)}
	for range 5000 {
		o.Nodes[0].Hooks = append(o.Nodes[0].Hooks, overview.Hook{Group: "group", Name: "hook"})
	}
	text := o.Table(overview.Style{Wide: true})
	if len(text) > 1<<20 || !strings.Contains(text, "group/hook,and 4984 more") {
		t.Errorf("the table has %d bytes", len(text))
	}
}

func TestColourIsForTerminalsOfThoseWhoWantIt(t *testing.T) {
	for _, c := range []struct {
		terminal      bool
		noColor, term string
		want          bool
	}{
		{terminal: true, term: "xterm", want: true},
		{terminal: true, want: true},
		{terminal: true, term: "dumb"},
		{terminal: true, term: "xterm", noColor: "1"},
		{terminal: false, term: "xterm"},
	} {
		getenv := func(name string) string { return map[string]string{"NO_COLOR": c.noColor, "TERM": c.term}[name] }
		if got := overview.ColourWanted(c.terminal, getenv); got != c.want {
			t.Errorf("%+v: got %t", c, got)
		}
	}
}
