package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/browser/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

var now = time.Date(2026, 11, 20, 3, 12, 45, 0, time.UTC)

func render(t *testing.T, o overview.Overview, h overview.History) string {
	t.Helper()
	var b bytes.Buffer
	if err := Render(&b, o, h, Options{Refresh: 5 * time.Second, Version: "1.2.3"}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// section is the text of a section of the page, without its markup.
func section(t *testing.T, html, id string) string {
	t.Helper()
	_, rest, found := strings.Cut(html, `<section id="`+id+`"`)
	text, _, ended := strings.Cut(rest, "</section>")
	if !found || !ended {
		t.Fatalf("there is no section %s", id)
	}
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(text, " ")), " ")
}

func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
}

func TestANodeIsALaneWithWhatItWaitsFor(t *testing.T) {
	o := overview.Overview{At: now, Source: overview.Leader, Leader: "handler-0", Nodes: []overview.Node{{
		Name: "node-a", Kind: "spot-interruption", Rule: "gentle", Stage: overview.Draining,
		Since: now.Add(-78 * time.Second), CordonedAt: now.Add(-77 * time.Second), Deadline: now.Add(42 * time.Second),
		Pods: &overview.Pods{Left: 3, Forced: 1, Gone: 9}, MoreWaits: 2,
		WaitsFor: []overview.Wait{{
			Cause: overview.Budget, Name: "shop/web", Why: "PodDisruptionBudget shop/web allows 0 disruptions", Pods: 2,
			Pod: "shop/web-1", Until: now.Add(7 * time.Second),
		}},
	}}}
	text := section(t, render(t, o, overview.History{}), "progress")
	contains(t, text, "Stuck: somebody should look 1", "node-a spot-interruption, rule gentle", "42s left until 03:13:27",
		"stuck, draining 3 left, 9 gone, 1 forced",
		"budget : PodDisruptionBudget shop/web allows 0 disruptions (2 pods, shop/web-1), until 03:12:52 and 2 more",
		"Notice 03:11:27; cordoned 03:11:28; deadline 03:13:27")
}

// What is left of the time is the gap before the line of the deadline, which is one for all lanes of a band.
func TestSlackIsTheGapBeforeTheLine(t *testing.T) {
	node := func(change func(*overview.Node)) overview.Node {
		n := overview.Node{
			Name: "n", Kind: "spot-interruption", Stage: overview.Draining, Since: now.Add(-time.Minute),
			CordonedAt: now.Add(-time.Minute), Deadline: now.Add(time.Minute),
		}
		change(&n)
		return n
	}
	for name, test := range map[string]struct {
		node  overview.Node
		parts []string
	}{
		"half of the time is over": {
			node(func(*overview.Node) {}),
			[]string{
				`<rect class="work k0" x="0.0%" width="45.0%" y="8" height="12"/>`,
				`<rect class="slack ok" x="45.0%" width="45.0%" y="8" height="12"/>`,
				`<use href="#m-now" x="45.0%" y="14"/>`,
			},
		},
		"it is near": {
			node(func(n *overview.Node) { n.Deadline, n.Since = now.Add(12*time.Second), now.Add(-108*time.Second) }),
			[]string{`<rect class="slack near" x="81.0%" width="9.0%" y="8" height="12"/>`},
		},
		"it is over": {
			node(func(n *overview.Node) { n.Deadline, n.Since = now.Add(-8*time.Second), now.Add(-128*time.Second) }),
			[]string{`<rect class="over" x="90.0%" width="6.0%" y="5" height="18"/>`, `<use href="#m-now" x="96.0%" y="14"/>`},
		},
		"the pods have left": {
			node(func(n *overview.Node) { n.PodsGone = now.Add(-30 * time.Second) }),
			[]string{
				`<rect class="work k0" x="0.0%" width="22.5%" y="8" height="12"/>`,
				`<rect class="slack ok" x="22.5%" width="67.5%" y="8" height="12"/>`, `<use href="#m-gone" x="22.5%" y="14"/>`,
			},
		},
		"each time that is known has its mark": {
			node(func(n *overview.Node) {
				n.CordonedAt, n.LastAsked = now.Add(-48*time.Second), now.Add(-24*time.Second)
			}),
			[]string{
				`<use href="#m-notice" x="0.0%" y="14"/>`, `<use href="#m-cordon" x="9.0%" y="14"/>`,
				`<use href="#m-asked" x="27.0%" y="14"/>`, `<use href="#m-now" x="45.0%" y="14"/>`,
			},
		},
		"they left late": {
			node(func(n *overview.Node) {
				n.Deadline, n.Since, n.PodsGone = now.Add(-time.Minute), now.Add(-3*time.Minute), now.Add(-57*time.Second)
			}),
			[]string{`<use href="#m-gone"`},
		},
		"it is held back": {
			node(func(n *overview.Node) { n.CordonedAt, n.NotBefore = time.Time{}, now.Add(20*time.Second) }),
			[]string{`<rect class="held" x="0.0%" width="45.0%" y="12" height="4"/>`, `<use href="#m-begin" x="60.0%" y="14"/>`},
		},
		"without a deadline there is no line of one": {
			node(func(n *overview.Node) { n.Deadline = time.Time{} }),
			[]string{`<rect class="work k0" x="0.0%" width="90.0%" y="8" height="12"/>`, `<use href="#m-now" x="90.0%" y="14"/>`},
		},
		"nothing is known but the deadline": {
			overview.Node{Name: "n", Deadline: now.Add(30 * time.Second), CordonedAt: now.Add(-30 * time.Second)},
			[]string{`<rect class="held" x="0.0%" width="0.0%"`, `<rect class="slack ok" x="45.0%" width="45.0%"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			used, _ := lanesOf(overview.Overview{At: now, Nodes: []overview.Node{test.node}})
			if len(used) != 1 || len(used[0].Lanes) != 1 {
				t.Fatalf("bands: %+v", used)
			}
			drawing := string(used[0].Lanes[0].Drawing)
			for _, part := range test.parts {
				if name != "nothing is known but the deadline" || !strings.Contains(part, "held") {
					contains(t, drawing, part)
				}
			}
			want := 1
			if test.node.Deadline.IsZero() {
				want = 0
			}
			if n := strings.Count(drawing, `<line class="end"`); n != want {
				t.Errorf("%d lines of the deadline, want %d", n, want)
			}
		})
	}
}

// How late they were does not grow afterwards.
func TestPodsThatHaveLeftAreNotLaterAndLater(t *testing.T) {
	n := &overview.Node{Deadline: now.Add(-time.Hour), PodsGone: now.Add(-time.Hour + 3*time.Second)}
	if text, class := left(n, now); text != "pods left 3s late" || class != "late" {
		t.Errorf("%s, %s", text, class)
	}
}

func TestNodesAreApartByHowMuchTimeThereIs(t *testing.T) {
	var o overview.Overview
	o.At = now
	for _, in := range []time.Duration{-time.Minute, time.Minute, 20 * time.Minute, 48 * time.Hour} {
		o.Nodes = append(o.Nodes, overview.Node{Name: in.String(), Deadline: now.Add(in), Since: now.Add(-time.Minute)})
	}
	o.Nodes = append(o.Nodes, overview.Node{Name: "none"})
	used, more := lanesOf(o)
	var got []string
	for _, b := range used {
		names := b.ID + ":"
		for _, l := range b.Lanes {
			names += " " + l.Name
		}
		got = append(got, names)
	}
	want := []string{"stuck: -1m0s", "minutes: 1m0s", "hour: 20m0s", "later: 48h0m0s", "none: none"}
	if !slices.Equal(got, want) || more != 0 {
		t.Errorf("%q, and %d more, want %q", got, more, want)
	}
}

func TestNodesThatAreStuckComeFirst(t *testing.T) {
	o, _ := sample.Storm(now, 600, 0)
	o.Nodes[599].Name, o.Nodes[599].Deadline, o.Nodes[599].CordonedAt = "the-last", time.Time{}, now.Add(-time.Hour)
	o.Nodes[599].WaitsFor = []overview.Wait{{Cause: overview.TwoBudgets, Why: "two budgets"}}
	html := render(t, o, overview.History{})
	text := section(t, html, "progress")
	_, bands, _ := strings.Cut(text, "deadline Stuck: somebody should look ")
	stuck, others, cut := strings.Cut(bands, " Deadline within five minutes ")
	if number, _, _ := strings.Cut(stuck, " "); !cut || number != strconv.Itoa(o.Stuck()) {
		t.Errorf("there are %s stuck, want %d: %.200s", number, o.Stuck(), text)
	}
	if !strings.Contains(stuck, "the-last ") || strings.Contains(others, "stuck, ") || strings.Count(stuck, " stuck, ") != o.Stuck() {
		t.Errorf("some that are stuck are not above the others, or not said to be: %s", stuck)
	}
	contains(t, html, `<div class="late"><dt>stuck: somebody should look</dt><dd><b>`+strconv.Itoa(o.Stuck())+"</b>", "600 drains in progress, "+strconv.Itoa(o.Stuck())+" stuck, ")
	none := overview.Overview{At: now, Source: overview.Leader}
	contains(t, render(t, none, overview.History{}), `<div><dt>stuck: somebody should look</dt><dd><b>0</b>`)
	none.Source = overview.Nodes // it knows no waits
	contains(t, render(t, none, overview.History{}), `<div><dt>stuck: somebody should look</dt><dd><b>–</b>`)
}

func TestWhatBlocksMostNodesComesFirst(t *testing.T) {
	wait := func(cause overview.Cause, name string, pods int) overview.Wait {
		return overview.Wait{Cause: cause, Name: name, Why: "why", Pods: pods}
	}
	o := overview.Overview{At: now}
	for i := range 7 {
		n := overview.Node{Name: sample.Node(i), WaitsFor: []overview.Wait{wait(overview.Budget, "shop/web", 2)}}
		if i < 2 { // the same budget twice on a node is one node
			n.WaitsFor = append(n.WaitsFor, wait(overview.Budget, "shop/web", 1), wait(overview.Budget, "data/db", 1))
		}
		o.Nodes = append(o.Nodes, n)
	}
	all := blocks(o)
	if len(all) != 2 || all[0].Name != "shop/web" || all[0].Nodes != 7 || all[0].Pods != 16 || len(all[0].First) != firstNodes ||
		all[0].More != 2 || all[1].Name != "data/db" || all[1].Nodes != 2 {
		t.Errorf("%+v", all)
	}
}

func TestPodsWithoutANodeAreNamed(t *testing.T) {
	o := overview.Overview{At: now}
	for i := range 22 {
		o.Unscheduled = append(o.Unscheduled, overview.Unscheduled{Node: sample.Node(i), Pods: 30 - i, Why: "0/9 nodes are available: 9 Insufficient cpu"})
	}
	contains(t, section(t, render(t, o, overview.History{}), "blocks"),
		"Pods that have left, and find no other node", sample.Node(0)+" 30 0/9 nodes are available: 9 Insufficient cpu", "and 2 nodes more")
}

func TestEpisodesAreDotsBelowTheLineIfMissed(t *testing.T) {
	slack := func(s float64) *float64 { return &s }
	h := overview.History{At: now, Since: now.Add(-2 * time.Hour), Episodes: []overview.Episode{
		{Node: "in-time", Kind: "spot-interruption", Ended: now.Add(-time.Hour), Slack: slack(41), Outcome: "drained", Pods: &overview.Counts{Evicted: 7, Forced: 1}},
		{
			Node: "missed", Kind: "asg-terminate", Ended: now.Add(-6 * time.Hour), Slack: slack(-12), Outcome: "missed", Pods: &overview.Counts{Evicted: 7, Missed: 2},
			Refused: []overview.Refusal{{Cause: overview.Budget, Name: "shop/web"}},
		},
		{Node: "none", Kind: "rebalance-recommendation", Ended: now.Add(-7 * time.Hour), Outcome: "drained"},
		{Node: "new", Kind: "of-next-year", Ended: now.Add(-8 * time.Hour), Outcome: "drained"},
		{Node: "old", Kind: "spot-interruption", Ended: now.Add(-25 * time.Hour), Slack: slack(1), Outcome: "missed"},
	}}
	html := render(t, overview.Overview{At: now}, h)
	contains(t, section(t, html, "day"),
		"4 drains ended in the last 24 hours, 1 missed the deadline or lost pods. The leader knows all drains since 01:12:45",
		"spot-interruption 1 1 0 41s 41s", "asg-terminate 1 0 1 -12s -12s", "rebalance-recommendation 1 1 0 – –", "unknown 1",
		"missed asg-terminate Nov 19 21:12:45 -12s missed 7 evicted, 2 missed budget shop/web kubectl nth report --node missed",
		"7 evicted, 1 forced")
	if strings.Contains(html, ">old<") {
		t.Error("an episode of the day before is shown")
	}
	dots := regexp.MustCompile(`<use class="dot (\w+)( bad)?" href="#\w+" x="([\d.]+)%" y="([\d.]+)"/>`).FindAllStringSubmatch(html, -1)
	if len(dots) != 4 {
		t.Fatalf("%d dots: %v", len(dots), dots)
	}
	zero := regexp.MustCompile(`<line class="end" x1="0" x2="100%" y1="([\d.]+)"`).FindStringSubmatch(html)[1]
	if number(t, dots[0][4]) >= number(t, zero) || number(t, dots[1][4]) <= number(t, zero) || dots[0][2] != "" || dots[1][2] != " bad" {
		t.Errorf("the line is at %s, the dots are %v", zero, dots)
	}
	if x := []float64{number(t, dots[0][3]), number(t, dots[1][3]), number(t, dots[2][3])}; !slices.IsSortedFunc(x, func(a, b float64) int { return cmp.Compare(b, a) }) {
		t.Errorf("the dots of an hour, six hours and seven hours ago are at %v", x)
	}
}

func TestAStormIsNoColumnBesideADrainOfHoursAgo(t *testing.T) {
	var episodes []overview.Episode
	for k := range 100 {
		episodes = append(episodes, overview.Episode{Ended: now.Add(-time.Duration(k) * time.Second)})
	}
	episodes = append(episodes, overview.Episode{Ended: now.Add(-20 * time.Hour)})
	x := places(episodes, now)
	if storm := x[0] - x[99]; storm < 30 || x[0] > 100 || x[100] < 0 || x[99]-x[100] < 10 {
		t.Errorf("the storm has %.0f %% of the width, and the drain of before is at %.0f %%", storm, x[100])
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhatIsNotKnownIsSaid(t *testing.T) {
	html := render(t, overview.Overview{At: now, Source: overview.Nodes, Missing: "it has no port", HeldBack: "3", LeftAlone: []string{"node-x"}}, overview.History{})
	contains(t, html, "The leader was not asked: <bdi>it has no port</bdi>.", "Drains held back: <bdi>3</bdi>", "Left alone, by their label: <bdi>node-x</bdi>")
	contains(t, section(t, html, "handler"), "Leader not known", "Queue none, or not known here")
	contains(t, section(t, render(t, overview.Overview{At: now, Source: overview.Nodes, Missing: "nobody leads", Leaderless: true}, overview.History{}), "handler"), "Leader nobody leads")
	contains(t, section(t, html, "progress"), "No node is being drained.")
	contains(t, section(t, html, "blocks"), "Nothing is waited for.")
	contains(t, section(t, html, "day"), "No drain is known that has ended in the last 24 hours. There is nothing to draw.")
}

func TestThatNoNoticeArrivesIsABanner(t *testing.T) {
	o := overview.Overview{At: now, Source: overview.Leader, Leader: "a", Queue: &overview.Queue{
		LastReceive: now.Add(-time.Hour), FailingSince: now.Add(-time.Minute), Failure: "AccessDenied",
	}, Unseen: []string{"lifecycle hooks whose notices are lost, since 10:00: no answer"}}
	html := render(t, o, overview.History{})
	contains(t, html, "<strong>Notices:</strong> <bdi>no notice arrives since 1m: AccessDenied</bdi>",
		"Not seen: <bdi>lifecycle hooks whose notices are lost, since 10:00: no answer</bdi>")
	if banner, rest := strings.Index(html, "<strong>Notices:"), strings.Index(html, "<h2"); banner > rest {
		t.Error("something stands before the banner")
	}
}

func TestADrainWhoseEndIsNotKnownIsNotInTime(t *testing.T) {
	h := overview.History{At: now, Episodes: []overview.Episode{
		{Node: "a", Kind: "spot-interruption", Ended: now.Add(-time.Hour), Known: overview.AsCarried},
		{Node: "b", Kind: "spot-interruption", Outcome: "gone", Ended: now.Add(-time.Hour), Known: overview.AsCarried},
	}}
	contains(t, render(t, overview.Overview{At: now}, h), "2 drains ended in the last 24 hours, 1 missed the deadline or lost pods; how 1 of them ended is not known.")
	alone := overview.History{At: now, Episodes: h.Episodes[:1]}
	html := render(t, overview.Overview{At: now}, alone)
	contains(t, html, "1 drain ended in the last 24 hours; how 1 of them ended is not known.")
	known := overview.History{At: now, Since: now.Add(-2 * time.Hour), Episodes: []overview.Episode{{
		Node: "a", Kind: "spot-interruption", Outcome: "drained", Ended: now.Add(-time.Hour),
	}}}
	contains(t, render(t, overview.Overview{At: now}, known), "1 drain ended in the last 24 hours, none of those that are known missed its deadline.", "none known to be missed or lost")
	known.Since = now.Add(-25 * time.Hour)
	contains(t, render(t, overview.Overview{At: now}, known), "1 drain ended in the last 24 hours, none missed its deadline.", "none missed or lost")
	if strings.Contains(html, "none missed") {
		t.Error("it says that none missed its deadline")
	}
	known.Episodes[0].Pods = &overview.Counts{Forced: 2, Cut: 1}
	contains(t, render(t, overview.Overview{At: now}, known), "pods cut short in 1")
	for _, tally := range tallies(h.Episodes) {
		if tally.InTime != 0 || tally.Bad != 1 {
			t.Errorf("%d in time, %d failed, want none and one", tally.InTime, tally.Bad)
		}
	}
}

// What a tally counts as in time is what the account of the drain says, whatever its slack: a drain that ends a moment
// after its deadline may have lost nothing.
func TestATallyCountsWhatTheAccountSays(t *testing.T) {
	slack := func(s float64) *float64 { return &s }
	got := tallies([]overview.Episode{
		{Kind: "spot-interruption", Outcome: "drained", Slack: slack(-0.4)},
		{Kind: "spot-interruption", Outcome: "missed", Slack: slack(-3)},
		{Kind: "spot-interruption", Outcome: "called-off"},
		{Kind: "spot-interruption"},
	})
	want := []tally{{Kind: kindNamed("spot-interruption"), Episodes: 4, InTime: 1, Bad: 1, Unknown: 1, Least: "-3s", Median: "-3s"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestQueueAndPolicyAreShown(t *testing.T) {
	o := overview.Overview{
		At: now, Source: overview.Leader, Leader: "handler-0", LeadsSince: now.Add(-time.Minute), Transitions: 7,
		Queue:  &overview.Queue{InFlight: 3, Oldest: now.Add(-96 * time.Second), LastReceive: now.Add(-2 * time.Minute)},
		Held:   []overview.Held{{Instance: "i-00000000000000004", Until: now.Add(time.Minute)}},
		Policy: &overview.Policy{Rules: 2, Problem: "line 3: no such field"},
	}
	html := render(t, o, overview.History{})
	contains(t, section(t, html, "handler"), "Leader handler-0, leads since 03:11:45Z, transition 7",
		"Held messages about instances whose Nodes are waited for: i-00000000000000004 (until 03:13:45Z)", "Messages held by this leader 3", "received 1m36s ago", "2m ago",
		"2 rules. The file of now does not count: line 3: no such field")
	contains(t, html, `<dd class="late"><bdi>2m ago`)
	o.Queue.LastReceive = time.Time{}
	contains(t, render(t, o, overview.History{}), "<dd><bdi>none since this leader began")
	o.Queue.FailingSince = now.Add(-30 * time.Second)
	contains(t, render(t, o, overview.History{}), `<dd class="late"><bdi>none since this leader began`)
}

func TestAFileNeitherRefreshesNorRuns(t *testing.T) {
	var b bytes.Buffer
	o, h := sample.Storm(now, 3, 3)
	if err := Render(&b, o, h, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"<script", `http-equiv="refresh"`, `href="status"`} {
		if strings.Contains(b.String(), word) {
			t.Errorf("it has %s", word)
		}
	}
}

// Names are text: the markup is the same whatever they are. A browser confirms that in the end-to-end tests.
func TestHostileNamesDoNothing(t *testing.T) {
	o, h := sample.Hostile(now)
	html := render(t, o, h)
	for _, word := range []string{"<script>window", "<img", "<iframe", "<base", "<form", "<a href=\"javascript", "onload=window.harmed=1>", "\u202e", "\x1b", "\x00"} {
		if strings.Contains(html, word) {
			t.Errorf("it has %q", word)
		}
	}
	if n := strings.Count(html, "<script>"); n != 1 {
		t.Errorf("%d scripts", n)
	}
	allowed := "html head meta title style noscript body a header p button nav ul li main svg defs path circle h1 time dl div dt dd b span section h2 use rect line text table caption thead tbody tr th td bdi small i details summary footer code script"
	attributes := "lang charset http-equiv content name class href id role aria-live aria-pressed type aria-label aria-hidden aria-labelledby data-refresh data-summary data-title data-name datetime width height viewBox d r x y x1 x2 y1 y2 cx cy text-anchor scope hidden"
	decoder := xml.NewDecoder(strings.NewReader(html))
	decoder.Strict, decoder.AutoClose, decoder.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for elements := 0; ; elements++ {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			if elements < 1000 {
				t.Errorf("only %d elements were read", elements)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if !slices.Contains(strings.Fields(allowed), element.Name.Local) {
			t.Errorf("element %s", element.Name.Local)
		}
		for _, a := range element.Attr {
			if !slices.Contains(strings.Fields(attributes), a.Name.Local) {
				t.Errorf("%s has attribute %s=%q", element.Name.Local, a.Name.Local, a.Value)
			}
			if a.Name.Local == "href" && !regexp.MustCompile(`^(#[\w-]+|status|history)$`).MatchString(a.Value) {
				t.Errorf("%s links to %q", element.Name.Local, a.Value)
			}
		}
	}
}

func TestCountsThatAreNotOfAllPodsSaySinceWhen(t *testing.T) {
	for want, counts := range map[string]overview.Counts{
		"3 evicted": {Evicted: 3},
		"3 evicted, 1 lost since a pause or a change of leader": {Evicted: 3, Lost: 1, Partial: true},
		"": {Partial: true},
	} {
		if got := became(&counts); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTextsAreShownAsTheyCanBe(t *testing.T) {
	for text, want := range map[string]string{
		"shop/web": "shop/web", "": "", "naïve": "naïve", "a\u202eb": "a\ufffdb", "a\nb\x00": "a\ufffdb\ufffd", "\xff": "\ufffd",
		strings.Repeat("ab", 60): strings.Repeat("ab", 60), strings.Repeat("a", 60) + "xyz" + strings.Repeat("b", 60): strings.Repeat("a", 60) + "…" + strings.Repeat("b", 60),
	} {
		if got := shown(text); got != want {
			t.Errorf("shown(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestEachKindHasAColourAndAShape(t *testing.T) {
	shapes := map[string]bool{}
	for _, k := range notice.Kinds {
		is := kindNamed(k.Dashed())
		if is.Name != k.Dashed() {
			t.Errorf("%s is unknown", k.Dashed())
		}
		if shapes[is.Shape] || !strings.Contains(style, "."+is.Class+" { fill") || strings.Count(style, "--"+is.Class+":") != 2 {
			t.Errorf("%s has no shape or colour of its own", is.Name)
		}
		shapes[is.Shape] = true
	}
}

// Five thousand nodes of a storm make a page of five hundred, and the names of hostile ones are cut.
func TestThePageIsBounded(t *testing.T) {
	const most = 1 << 20
	for name, drains := range map[string]int{"500 drains": 500, "5,000 drains": 5000} {
		o, h := sample.Storm(now, drains, 500)
		html := render(t, o, h)
		t.Logf("%s and 500 episodes: %d bytes", name, len(html))
		if len(html) > most {
			t.Errorf("%s: %d bytes", name, len(html))
		}
		if lanes, dots := strings.Count(html, `<svg class="lane"`), strings.Count(html, `<use class="dot `); lanes != 500 || dots != 500 {
			t.Errorf("%s: %d lanes, %d dots", name, lanes, dots)
		}
	}
	contains(t, render(t, func() overview.Overview { o, _ := sample.Storm(now, 501, 0); return o }(), overview.History{}), "Not drawn: 1 node with later deadlines or none.")
}

// A time by itself says nothing: the page is compared with its data as JSON, which the leader serves too.
func TestThePageTakesNotMuchLongerThanItsJSON(t *testing.T) {
	const most = 40 // it is about ten, on a machine with nothing else to do
	o, h := sample.Storm(now, 500, 500)
	page := fastest(func() error { return Render(io.Discard, o, h, Options{Refresh: 5 * time.Second}) })
	data := fastest(func() error {
		return errors.Join(json.NewEncoder(io.Discard).Encode(o), json.NewEncoder(io.Discard).Encode(h))
	})
	allocations := testing.AllocsPerRun(3, func() {
		if err := Render(io.Discard, o, h, Options{Refresh: 5 * time.Second}); err != nil {
			t.Error(err)
		}
	})
	t.Logf("page %s, JSON %s, %v allocations", page, data, allocations)
	if allocations > 130_000 { // they say the same on any machine
		t.Errorf("%v allocations", allocations)
	}
	if page > most*data {
		t.Errorf("the page took %s, its data as JSON %s: more than %d times as long", page, data, most)
	}
}

// fastest is the least time of many runs: what else the machine does only adds to them.
func fastest(run func() error) time.Duration {
	least := time.Hour
	for range 15 {
		began := time.Now()
		if err := run(); err != nil {
			return time.Hour
		}
		least = min(least, time.Since(began))
	}
	return least
}

func BenchmarkRender(b *testing.B) {
	o, h := sample.Storm(now, 500, 500)
	var out bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		if err := Render(&out, o, h, Options{Refresh: 5 * time.Second}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(out.Len()), "bytes/page")
}

// A deadline can be as late as JSON can say: a kubelet writes the intent of its node.
func TestADeadlineOfAnyYearHasItsLane(t *testing.T) {
	for _, deadline := range []time.Time{
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), now.Add(1<<62 + 1), time.Unix(0, 0), time.Time{}.Add(time.Second),
	} {
		o := overview.Overview{At: now, Nodes: []overview.Node{{Name: "a", Deadline: deadline, Since: deadline}}}
		if got := section(t, render(t, o, overview.History{}), "progress"); !strings.Contains(got, "a unknown") {
			t.Errorf("%s: %s", deadline, got)
		}
	}
}
