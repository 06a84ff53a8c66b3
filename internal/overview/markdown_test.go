package overview_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	gmtext "github.com/yuin/goldmark/text"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// spot is a drain for a spot interruption whose pods were kept by what is given.
func spot(node string, began time.Time, slack float64, pods overview.Counts, refused ...overview.Refusal) overview.Episode {
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	outcome := "drained"
	switch {
	case pods.Missed > 0:
		outcome = "missed"
	case pods.Unconfirmed > 0:
		outcome = "unconfirmed"
	}
	return overview.Episode{
		Node: node, Instance: "i-0123456789abcdef0", Kind: "spot-interruption", Outcome: outcome, Known: overview.Everything,
		Notices: []overview.Notice{{Kind: "spot-interruption", At: began, ID: "6a7e8feb-b491-4cf7-a9f1-bf3703467718", Deadline: at(120)}},
		Began:   began, CordonedAt: at(1.2), FirstAsked: at(2), LastAsked: at(100), PodsGone: at(120 - slack), Deadline: at(120), Ended: at(121), Slack: &slack,
		Pods: &pods, Refused: refused,
	}
}

func episodes() []overview.Episode {
	keeps := func(cause overview.Cause, name, why string, pods int) overview.Refusal {
		return overview.Refusal{Cause: cause, Name: name, Why: why, Pods: pods}
	}
	hooked := spot("ip-10-0-1-5", ago(5*time.Hour), 30, overview.Counts{Evicted: 3, Forced: 1, ForcedPods: []string{"shop/slow-0"}})
	hooked.Kind, hooked.Rule, hooked.HeldBack = "asg-terminate", "one-by-one", "rule one-by-one allows 1 node out of use"
	hooked.Notices = []overview.Notice{
		{Kind: "asg-terminate", At: hooked.Began, ID: "first", Also: []string{"second"}, Rule: "one-by-one", Deadline: hooked.Deadline},
		{Kind: "scheduled-change", Code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", At: hooked.Began.Add(time.Second)},
	}
	hooked.CordonedAt, hooked.FirstAsked = hooked.Began.Add(50*time.Second), hooked.Began.Add(51*time.Second)
	hooked.Hooks = []overview.Hook{{Group: "workers", Name: "drain"}}
	hooked.UncompletedHooks = []overview.Hook{{Group: "workers", Name: "backup"}}
	hooked.Targets, hooked.AwaitedBalancers, hooked.Volumes, hooked.AwaitedVolumes = []string{"k8s-shop-api-1234"}, 42, 1, 30
	carried := overview.Episode{
		Node: "ip-10-0-1-6", Kind: "rebalance-recommendation", Outcome: "missed", Known: overview.AsCarried, Began: ago(30 * time.Hour), Ended: ago(29 * time.Hour),
	}
	calledOff := overview.Episode{
		Node: "ip-10-0-1-7", Kind: "scheduled-change", Outcome: "called-off", Why: "AWS has cancelled the change", Known: overview.SinceTakeOver,
		Began: ago(50 * time.Hour), CordonedAt: ago(49 * time.Hour), Ended: ago(48 * time.Hour), Pods: &overview.Counts{},
	}
	return []overview.Episode{
		spot("ip-10-0-1-1", ago(10*time.Minute), -3, overview.Counts{Evicted: 8, Forced: 1, Missed: 2, ForcedPods: []string{"shop/api-1"}, Remaining: []string{"shop/api-2", "shop/api-3"}},
			keeps(overview.Budget, "shop/api", "PodDisruptionBudget shop/api needs 3 healthy pods and has 3", 3), keeps(overview.Grace, "", "grace until 03:01:00Z", 1)),
		spot("ip-10-0-1-2", ago(2*time.Hour), 0, overview.Counts{Evicted: 2, Unconfirmed: 5, Remaining: []string{"a/b"}},
			keeps(overview.TwoBudgets, "", "two PodDisruptionBudgets cover the pod", 1),
			keeps(overview.Kubelet, "", "its kubelet has not confirmed it", 2), keeps(overview.Webhook, "deny.example.com", `admission webhook "deny.example.com" denied the request`, 1),
			keeps(overview.Budget, "", "a PodDisruptionBudget allows no disruption now", 1), keeps(overview.Surge, "", "its replacement is not ready", 1),
			keeps(overview.Turn, "", "it leaves last", 1), keeps(overview.Refused, "", "the server is on fire", 1)),
		spot("ip-10-0-1-3", ago(3*time.Hour), 9, overview.Counts{Evicted: 20}),
		spot("ip-10-0-1-4", ago(4*time.Hour), 90, overview.Counts{Evicted: 20, Ended: 2}),
		hooked, carried, calledOff,
	}
}

func TestAReportSaysWhatWasLostAndWhatToChange(t *testing.T) {
	all := episodes()
	for name, r := range map[string]*overview.Report{
		"all":  {Since: ago(72 * time.Hour), Episodes: all},
		"node": {Node: "ip-10-0-1-1", Episodes: overview.Select(all, "ip-10-0-1-1", time.Time{})},
		"well": {Node: "ip-10-0-1-4", Episodes: overview.Select(all, "ip-10-0-1-4", time.Time{})},
		"carried": {
			Node: "ip-10-0-1-6", Episodes: overview.Select(all, "ip-10-0-1-6", time.Time{}), Missing: "nobody leads",
			Events: []overview.Event{{ago(30 * time.Hour), "SpotInterruption", "spot interruption: the node is drained"}},
		},
		"current": {Node: "ip-10-0-1-1", Current: &storm().Nodes[0]},
	} {
		t.Run(name, func(t *testing.T) {
			r.At = now
			if r.Missing == "" {
				r.KnownSince = ago(24 * time.Hour)
			}
			golden.Compare(t, "testdata/report_"+name+".md", r.Markdown())
		})
	}
}

// Drains of before may have lost pods on nodes that are gone.
func TestAReportOfATimeThatTheLeaderDoesNotKnowIsIncomplete(t *testing.T) {
	const caveat = "The leader knows all drains since"
	for name, tt := range map[string]struct {
		since time.Time
		want  bool
		told  string
	}{
		"as far as is known":      {time.Time{}, false, "2026-03-04 02:00:10Z."},
		"since before it has led": {ago(24 * time.Hour), true, "2026-03-04 02:00:10Z."},
		"since it has led":        {ago(30 * time.Minute), false, "2026-03-04 02:30:10Z."},
	} {
		r := &overview.Report{At: now, Since: tt.since, KnownSince: ago(time.Hour)}
		if told := "No drain has ended since " + tt.told; !strings.Contains(r.Markdown(), told) {
			t.Errorf("%s: no %q:\n%s", name, told, r.Markdown())
		}
		if got := r.Incomplete(); got != tt.want || strings.Contains(r.Markdown(), caveat) != tt.want {
			t.Errorf("%s: incomplete %t, want %t:\n%s", name, got, tt.want, r.Markdown())
		}
	}
}

func TestAReportOfANodeThatIsGoneSaysSinceWhenDrainsAreKnown(t *testing.T) {
	r := &overview.Report{At: now, Node: "a", KnownSince: ago(time.Minute)}
	if text := r.Markdown(); !strings.Contains(text, "No drain has ended since 2026-03-04 02:59:10Z.\n\n> The leader knows all drains since 2026-03-04 02:59:10Z") {
		t.Errorf("%s", text)
	}
}

func TestANodeThatWasCordonedAgainWasNotCordonedLate(t *testing.T) {
	e := spot("a", ago(time.Hour), 1, overview.Counts{Evicted: 1})
	e.CordonedAt = e.FirstAsked.Add(time.Minute)
	text := (&overview.Report{At: now, Node: "a", Episodes: []overview.Episode{e}}).Markdown()
	if !strings.Contains(text, "the node was cordoned again: somebody had uncordoned it") || strings.Contains(text, "after its notice: check") {
		t.Errorf("it says\n%s", text)
	}
}

// What refused them before a pause is not known to the term that forces them.
func TestPodsThatAreForcedAfterAnInterruptionBlameNoGrace(t *testing.T) {
	for known, want := range map[overview.Known]string{
		overview.Everything:    "Pods were forced with no budget in their way (`shop/a`): their grace period is longer",
		overview.SinceTakeOver: "What kept pods on node `a` is not known here: search its Events for `EvictionBlocked`",
	} {
		e := spot("a", ago(time.Hour), 1, overview.Counts{Forced: 1, ForcedPods: []string{"shop/a"}})
		e.Known = known
		text := (&overview.Report{At: now, Node: "a", Episodes: []overview.Episode{e}}).Markdown()
		if !strings.Contains(text, want) || strings.Contains(text, "longer than the notice") != (known == overview.Everything) {
			t.Errorf("%s: no %q in\n%s", known, want, text)
		}
	}
}

// A machine that stops already leaves no time for a grace.
func TestPodsThatAreDeletedAtOnceBlameNoGrace(t *testing.T) {
	for _, kind := range []string{"state-change", "instance-impaired"} {
		e := spot("a", ago(time.Hour), 1, overview.Counts{Forced: 1, ForcedPods: []string{"shop/a"}})
		e.Known, e.Notices = overview.Everything, append(e.Notices, overview.Notice{Kind: kind})
		text := (&overview.Report{At: now, Node: "a", Episodes: []overview.Episode{e}}).Markdown()
		if strings.Contains(text, "longer than the notice") {
			t.Errorf("%s:\n%s", kind, text)
		}
	}
}

// The node may have been cordoned before, and its pods asked, by the earlier leader.
func TestAReportSaysWhatIsNotKnownAfterATakeOver(t *testing.T) {
	e := spot("a", ago(time.Hour), 30, overview.Counts{Evicted: 1})
	e.Known, e.FirstAsked = overview.SinceTakeOver, time.Time{}
	text := (&overview.Report{At: now, Node: "a", Episodes: []overview.Episode{e}}).Markdown()
	for part, want := range map[string]bool{
		"the times of what was done before are not known.": true, "| the node was cordoned, perhaps again |": true,
		"| the last pod was asked to leave |": true, "the first pod": false,
	} {
		if strings.Contains(text, part) != want {
			t.Errorf("%q is to be in it: %t\n%s", part, want, text)
		}
	}
}

func TestAReportOfAStormIsShort(t *testing.T) {
	var all []overview.Episode
	for range 100 {
		all = append(all, episodes()...)
	}
	r := &overview.Report{At: now, Episodes: all}
	if size := len(r.Markdown()); size > 40_000 {
		t.Errorf("it has %d bytes", size)
	}
	if lost := r.Lost(); lost != 700 {
		t.Errorf("%d pods were lost", lost)
	}
}

func TestPodsAreLostAlsoWhereItIsNotKnownWhich(t *testing.T) {
	for name, test := range map[string]struct {
		node string
		lost bool
	}{"missed": {"ip-10-0-1-1", true}, "unconfirmed": {"ip-10-0-1-2", true}, "drained": {"ip-10-0-1-4", false}, "as carried": {"ip-10-0-1-6", true}, "called off": {"ip-10-0-1-7", false}} {
		r := &overview.Report{Episodes: overview.Select(episodes(), test.node, time.Time{})}
		if got := r.Harmed(); got != test.lost || len(r.Episodes) != 1 {
			t.Errorf("%s: lost is %v", name, got)
		}
	}
	cut := &overview.Report{Episodes: []overview.Episode{{Node: "a", Outcome: "drained", Pods: &overview.Counts{Forced: 2, Cut: 1}}}}
	if !cut.Harmed() {
		t.Error("a pod that was cut short is no harm")
	}
}

// What is not known is neither good nor zero.
func TestADrainWhoseEndIsNotKnownComfortsNobody(t *testing.T) {
	r := &overview.Report{At: now, Episodes: []overview.Episode{
		{Node: "a", Outcome: "drained", Ended: ago(time.Hour), Pods: &overview.Counts{Evicted: 3}},
		{Node: "b", Ended: ago(time.Hour), Known: overview.AsCarried},
		{Node: "c", Outcome: "missed", Ended: ago(time.Hour), Known: overview.AsCarried},
		{Node: "d", Outcome: "cordoned", Ended: ago(time.Hour), Known: overview.Everything}, // no pod had to leave
	}}
	if !r.Incomplete() || !r.Harmed() {
		t.Errorf("unknown %t, lost %t", r.Incomplete(), r.Harmed())
	}
	text := r.Markdown()
	for _, want := range []string{
		"4 drains: 1 drained, 1 missed, 1 cordoned, of 1 it is not known.", "Pods of 1 drain: 3 left in order, 0 forced, none of them lost. Of 2 drains it is not known.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

// Who asks what became of the pods is told of those that nobody has moved.
func TestPodsThatDidNotHaveToLeaveAreTold(t *testing.T) {
	r := &overview.Report{At: now, Episodes: []overview.Episode{{
		Node: "a", Outcome: "drained", Ended: ago(time.Hour), Known: overview.AsCarried,
		Pods: &overview.Counts{Evicted: 3, Stayed: 2, StayedPods: []string{"shop/db-0", "shop/db-1"}, Partial: true},
	}}}
	text := r.Markdown()
	for _, want := range []string{
		"3 left in order, 0 forced, 2 stayed, none of them lost. Of 1 drain, interrupted " +
			"by a pause or a change of leader, the pods that had left before are not counted.", "go with the machine: 2 (",
		"It was interrupted, by a pause or a change of leader: pods that had left before are not counted. Only what the node carries",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if !r.Incomplete() {
		t.Error("it is said to be complete, and an earlier leader may have lost or cut any number of pods")
	}
}

// The handler lacked the rights to patch Nodes and to list pods.
func TestAReportOfANodeThatWasNotTouchedSaysSo(t *testing.T) {
	const why = "the pods of the node cannot be listed: forbidden: User handler cannot list pods"
	r := &overview.Report{At: now, Node: "a", Episodes: []overview.Episode{{
		Node: "a", Kind: "spot-interruption", Outcome: "missed", Began: ago(3 * time.Minute), Deadline: ago(time.Minute), Ended: now, Known: overview.Everything,
		Uncordoned: "forbidden: User handler cannot patch nodes", Refused: []overview.Refusal{{Cause: overview.FailingList, Why: why}},
	}}}
	text := r.Markdown()
	for _, want := range []string{
		"Which pods were still there is not known: they were not listed in time. The node was not cordoned: forbidden: User handler cannot patch nodes.\n",
		"- " + why + "\n", "`kubectl nth doctor` says which rights are missing",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	for _, not := range []string{"the node was cordoned", "Lost:", "0 pods"} {
		if strings.Contains(text, not) {
			t.Errorf("it says %q:\n%s", not, text)
		}
	}
	if !r.Harmed() {
		t.Error("it harmed nobody")
	}
	r.Episodes[0].FirstAsked, r.Episodes[0].CordonedAt = ago(2*time.Minute), ago(90*time.Second)
	if text := r.Markdown(); !strings.Contains(text, "was cordoned too late: forbidden") || strings.Contains(text, "again") {
		t.Errorf("cordoned late:\n%s", text)
	}
}

func TestAReportIsAboutItsNodeAndTime(t *testing.T) {
	var names []string
	for _, e := range overview.Select(episodes(), "", ago(4*time.Hour)) {
		names = append(names, e.Node)
	}
	if want := []string{"ip-10-0-1-1", "ip-10-0-1-2", "ip-10-0-1-3", "ip-10-0-1-4"}; !slices.Equal(names, want) {
		t.Errorf("the nodes are %v", names)
	}
}

// Neither a link, nor a mention, nor HTML, nor another line is made of what somebody else has named.
func TestHostileNamesAreNoMarkdown(t *testing.T) {
	e := overview.Episode{
		Node: hostile, Instance: hostile, Kind: hostile, Outcome: hostile, Why: hostile, Rule: hostile, HeldBack: hostile, CordonedAt: now, Uncordoned: hostile, Began: now, Ended: now,
		Notices: []overview.Notice{{Kind: hostile, ID: hostile, Code: hostile, Rule: hostile, Deadline: now}},
		Pods:    &overview.Counts{Forced: 1, ForcedPods: []string{hostile}, Remaining: []string{hostile}},
		Targets: []string{hostile}, Hooks: []overview.Hook{{Group: hostile, Name: hostile}},
		UncompletedHooks: []overview.Hook{{Group: hostile, Name: hostile}},
	}
	harmless := e
	harmless.Node = "a"
	for _, cause := range []overview.Cause{overview.Budget, overview.Webhook, overview.Refused, overview.Grace, overview.FailingList} {
		e.Refused = append(e.Refused, overview.Refusal{Cause: cause, Name: hostile + "/" + hostile, Why: hostile, Pods: 1})
	}
	r := &overview.Report{
		At: now, Node: hostile, Missing: hostile, Episodes: []overview.Episode{e, harmless}, Events: []overview.Event{{now, hostile, hostile}},
		Current: &overview.Node{Kind: hostile, WaitsFor: []overview.Wait{{Name: hostile, Why: hostile, Pod: hostile}}},
	}
	text := r.Markdown()
	tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(gmtext.NewReader([]byte(text)))
	counts := map[ast.NodeKind]int{}
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			counts[n.Kind()]++
		}
		return ast.WalkContinue, nil
	})
	for _, kind := range []ast.NodeKind{ast.KindLink, ast.KindAutoLink, ast.KindImage, ast.KindRawHTML, ast.KindHTMLBlock, ast.KindCodeBlock, ast.KindFencedCodeBlock} {
		if counts[kind] > 0 {
			t.Errorf("there are %d of %s in\n%s", counts[kind], kind, text)
		}
	}
	// Two tables of steps and that of the drains; the title, two drains and the advice.
	if counts[east.KindTable] != 3 || counts[ast.KindHeading] != 4 {
		t.Errorf("there are %d tables and %d headings in\n%s", counts[east.KindTable], counts[ast.KindHeading], text)
	}
	for line := range strings.Lines(text) {
		bare := strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "> ")
		if strings.ContainsFunc(bare, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune("<>@&", r) }) {
			t.Errorf("a character does harm in %q", line)
		}
		if strings.Count(strings.ReplaceAll(bare, "\\`", ""), "`")%2 != 0 {
			t.Errorf("code does not end in %q", line)
		}
		outside := strings.Builder{}
		for k, part := range strings.Split(strings.ReplaceAll(bare, "\\`", ""), "`") {
			if k%2 == 0 {
				outside.WriteString(part)
			} else if strings.Contains(part, "|") {
				t.Errorf("code ends a cell in %q", line)
			}
		}
		for at, r := range outside.String() {
			if strings.ContainsRune("[]", r) && outside.String()[at-1] != '\\' {
				t.Errorf("there may be a link in %q", line)
			}
		}
	}
}

// GitHub and others make links of addresses that stand in a text, and of those that only begin with www.
func TestAddressesInTextsAreNoLinks(t *testing.T) {
	for _, address := range []string{"https://evil.example/a", "http://evil.example", "ftp://evil.example", "WWW.evil.example", "www.evil.example", "Https://evil.example", "xmpp:a@evil.example", "a@evil.example"} {
		r := &overview.Report{At: now, Missing: "see " + address, Events: []overview.Event{{now, "Other", address}}, Episodes: []overview.Episode{
			{Node: "a", Outcome: "called-off", Why: "(" + address + ")", HeldBack: address, CordonedAt: now, Ended: now},
		}}
		text := r.Markdown()
		tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(gmtext.NewReader([]byte(text)))
		_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if entering && n.Kind() == ast.KindAutoLink {
				t.Errorf("%s is a link in\n%s", address, text)
				return ast.WalkStop, nil
			}
			return ast.WalkContinue, nil
		})
	}
}
