package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// full is an episode with all that can be known of one.
func full() overview.Episode {
	slack := 82.5
	return overview.Episode{
		Node: "node-1", Instance: "i-0123456789abcdef0", Kind: "spot-interruption", Rule: "spot", Outcome: "missed", Known: overview.Everything,
		Notices: []overview.Notice{
			{Kind: "rebalance-recommendation", At: noon.Add(-time.Minute)},
			{Kind: "spot-interruption", At: noon, Deadline: noon.Add(2 * time.Minute)},
		},
		HeldBack: "too many", Began: noon.Add(-time.Minute), CordonedAt: noon, FirstAsked: noon.Add(time.Second),
		LastAsked: noon.Add(2 * time.Second), PodsGone: noon.Add(37 * time.Second), Ended: noon.Add(40 * time.Second),
		Deadline: noon.Add(2 * time.Minute), Slack: &slack,
		Pods: &overview.Counts{
			Evicted: 3, Forced: 1, Ended: 2, Missed: 1, Lost: 1, Unconfirmed: 1,
			ForcedPods: []string{"shop/db-0"}, Remaining: []string{"shop/a", "shop/b", "shop/c"},
			Stayed: 1, StayedPods: []string{"shop/never"},
		},
		Refused: []overview.Refusal{{Cause: overview.Budget, Name: "shop/db", Why: "PodDisruptionBudget shop/db needs 2", Pods: 1}},
		Targets: []string{"web"}, AwaitedBalancers: 12, Volumes: 1, AwaitedVolumes: 3,
		Hooks: []overview.Hook{{Group: "workers", Name: "drain"}}, UncompletedHooks: []overview.Hook{{Group: "workers", Name: "gone"}},
	}
}

// Users search for these keys: they are an interface.
func TestTheKeysOfTheLogLineAreStable(t *testing.T) {
	var log logtest.Log
	NewRecorder(log.Logger()).Add(full())
	got := strings.TrimSpace(log.String())
	want := `info episode node=node-1 instance=i-0123456789abcdef0 kind=spot-interruption rule=spot outcome=missed known=everything ` +
		`notices="[rebalance-recommendation 2026-11-20T11:59:00Z spot-interruption 2026-11-20T12:00:00Z]" heldBack="too many" ` +
		`began=2026-11-20T11:59:00Z cordonedAt=2026-11-20T12:00:00Z firstAsked=2026-11-20T12:00:01Z lastAsked=2026-11-20T12:00:02Z ` +
		`podsGone=2026-11-20T12:00:37Z deadline=2026-11-20T12:02:00Z slackSeconds=82.5 evicted=3 forced=1 ended=2 missed=1 lost=1 ` +
		`unconfirmed=1 forcedPods=[shop/db-0] remaining="[shop/a shop/b shop/c]" stayed=[shop/never] keptBy="[PodDisruptionBudget shop/db needs 2]" ` +
		`awaitedLoadBalancersSeconds=12 targets=[web] awaitedVolumesSeconds=3 volumes=1 hooks=[workers/drain] ` +
		`uncompletedHooks=[workers/gone]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEachKeyOfTheLogLineIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	e := full()
	e.Why, e.Pods.Cut, e.Pods.CutShort, e.Pods.Partial = "why", 1, []string{"shop/db-0 after 1m of 7d"}, true
	for pair := range slices.Chunk(values(e), 2) {
		if key := fmt.Sprint(pair[0]); !regexp.MustCompile("(?m)^\\|[^|]*`" + key + "`").Match(page) {
			t.Errorf("docs/status.md does not say what %s is", key)
		}
	}
}

func TestTheLatestEpisodesAreKeptTheNewestFirst(t *testing.T) {
	r := NewRecorder(logr.Discard())
	at := func(k int) overview.Episode {
		e := full()
		e.Node, e.Ended = fmt.Sprint("node-", k), noon.Add(time.Duration(k)*time.Minute)
		return e
	}
	for k := range Kept + 3 {
		r.Add(at(k))
	}
	h := r.History()
	if len(h.Episodes) != Kept || h.Episodes[0].Node != fmt.Sprint("node-", Kept+2) || h.Episodes[Kept-1].Node != "node-3" {
		t.Fatalf("%d episodes, from %s to %s", len(h.Episodes), h.Episodes[0].Node, h.Episodes[len(h.Episodes)-1].Node)
	}
	if diff := cmp.Diff(at(Kept+2), h.Episodes[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatANodeCarriesDoesNotReplaceWhatIsKnown(t *testing.T) {
	r := NewRecorder(logr.Discard())
	known, carried, other := full(), full(), full()
	carried.Known, carried.Pods, carried.Ended = overview.AsCarried, nil, known.Ended.Add(-time.Second)
	other.Known, other.Node, other.Ended = overview.AsCarried, "node-2", known.Ended.Add(-time.Hour)
	r.Add(known)
	r.Carried([]overview.Episode{carried, other})
	r.Carried([]overview.Episode{carried, other}) // by a second term of the same process
	if diff := cmp.Diff([]overview.Episode{known, other}, r.History().Episodes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The longest names that Kubernetes allows, in every place, take no more than two megabytes.
func TestTheHistoryIsBounded(t *testing.T) {
	long := strings.Repeat("x", 63) + "/" + strings.Repeat("y", 253)
	e := full()
	e.Node, e.Instance, e.Rule, e.HeldBack = long, long, strings.Repeat("r", 63), strings.Repeat("<", 400)
	e.Pods.ForcedPods, e.Pods.Remaining, e.Targets = []string{long, long, long, long, long}, []string{long, long, long, long, long}, []string{long, long, long, long, long}
	e.Refused, e.Notices, e.Hooks = nil, nil, nil
	for range 4 {
		e.Refused = append(e.Refused, overview.Refusal{Cause: overview.Webhook, Name: long, Why: strings.Repeat("\x00", 300), Pods: 100})
	}
	for range 16 {
		e.Notices = append(e.Notices, overview.Notice{Kind: "spot-interruption", At: noon, ID: long, Code: long, Rule: long})
		e.Hooks = append(e.Hooks, overview.Hook{Group: long, Name: long})
	}
	text := encode(e)
	var back overview.Episode
	if err := json.Unmarshal(text, &back); err != nil || len(text) > mostBytes || back.Node != long || back.Outcome != "missed" || back.Slack == nil {
		t.Errorf("%d bytes, %v: %.200s", len(text), err, text)
	}
	if most := Kept * mostBytes; most > 2<<20 {
		t.Errorf("%d bytes in all", most)
	}
}

// A replica watches the nodes before it leads too. They carry two episodes at most.
func TestTheHistoryIsKnownSinceTheNodesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder(logr.Discard())
		time.Sleep(time.Hour)
		r.Begin()
		began := time.Now()
		time.Sleep(48 * time.Hour)
		last, before := full(), full()
		last.Known, last.Node, last.Ended = overview.AsCarried, "node-2", time.Now()
		before.Known, before.Node, before.Ended, before.Notices = overview.AsCarried, "node-2", began.Add(-time.Minute), nil
		r.Carried([]overview.Episode{last, before})
		if h := r.History(); !h.Since.Equal(began) || len(h.Episodes) != 2 {
			t.Errorf("watched since %s, and known since %s: %d episodes", began, h.Since, len(h.Episodes))
		}
		last.Node, before.Node, before.Ended = "node-3", "node-3", began.Add(time.Hour)
		r.Carried([]overview.Episode{last, before})
		if h := r.History(); !h.Since.Equal(before.Ended) {
			t.Errorf("a node may have had an episode before the one at %s, and all are said to be known since %s", before.Ended, h.Since)
		}
	})
}

func TestAFullHistoryIsKnownSinceItsOldestEpisode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder(logr.Discard())
		began := time.Now()
		for k := range Kept + 2 {
			time.Sleep(time.Minute)
			r.Add(overview.Episode{Node: fmt.Sprint(k), Ended: time.Now()})
		}
		if got := r.History().Since.Sub(began); got != 3*time.Minute {
			t.Errorf("it is said to be known since %s after its beginning", got)
		}
	})
}

// A kubelet can give its node an id of an instance that is as long as a Node can be.
func TestAHostileInstanceDoesNotGrowTheHistory(t *testing.T) {
	e := full()
	e.Instance = "i-" + strings.Repeat("\x01é", 100_000)
	if text := encode(e); len(text) > mostBytes || !bytes.Contains(text, []byte("node-1")) {
		t.Errorf("%d bytes: %.200s", len(text), text)
	}
}
