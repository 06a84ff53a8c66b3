package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// scrape reads the metrics as Prometheus does.
func (m *Metrics) scrape(t *testing.T) {
	t.Helper()
	m.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
}

func (m *Metrics) followedBySpot(t *testing.T) map[string]int {
	t.Helper()
	m.scrape(t)
	all := map[string]int{}
	for _, within := range followedLabels() {
		if n := m.value(namespace+"rebalance_followed_by_spot_total", within); n > 0 {
			all[within] = n
		}
	}
	return all
}

// idle is the term of a leader without work.
var idle = Term{
	Load: func() report.Load { return report.Load{} }, Held: func() (int, time.Time) { return 0, time.Time{} }, LastReceive: time.Now,
}

func TestRecommendationsAreCountedByTheWarningThatFollows(t *testing.T) {
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	hear := func(m *Metrics, kind notice.Kind, sent time.Duration, edit ...func(*report.Decision)) {
		d := report.Decision{
			Instance: "i-1", Node: cluster.Ref{Name: "a"}, Action: decision.Drain,
			Notice: notice.Notice{Kind: kind, Time: begin.Add(sent)},
		}
		for _, e := range edit {
			e(&d)
		}
		m.Decided(d)
	}
	of := func(a decision.Action, node string) func(*report.Decision) {
		return func(d *report.Decision) { d.Action, d.Node.Name = a, node }
	}
	const recommended, warned = notice.RebalanceRecommendation, notice.SpotInterruption
	tests := []struct {
		name string
		play func(m *Metrics)
		want map[string]int
	}{
		{"nothing", func(*Metrics) {}, nil},
		{"both at once", func(m *Metrics) { hear(m, recommended, 0); hear(m, warned, 0) }, map[string]int{"10m": 1}},
		{"both at once, the warning first", func(m *Metrics) { hear(m, warned, 0); hear(m, recommended, 0) }, map[string]int{"10m": 1}},
		{"ten minutes", func(m *Metrics) { hear(m, recommended, 0); hear(m, warned, 10*time.Minute) }, map[string]int{"10m": 1}},
		{"more", func(m *Metrics) { hear(m, recommended, 0); hear(m, warned, 10*time.Minute+1) }, map[string]int{"30m": 1}},
		{"two hours", func(m *Metrics) { hear(m, recommended, 0); hear(m, warned, 2*time.Hour) }, map[string]int{"2h": 1}},
		{"too late", func(m *Metrics) {
			hear(m, recommended, 0)
			time.Sleep(2*time.Hour + 1)
			m.scrape(t)
			hear(m, warned, 2*time.Hour+1)
		}, map[string]int{"never": 1}},
		{"too late, and nobody scrapes", func(m *Metrics) {
			hear(m, recommended, 0)
			time.Sleep(2*time.Hour + 1)
			hear(m, warned, 2*time.Hour+1)
		}, map[string]int{"never": 1}},
		{"never", func(m *Metrics) { hear(m, recommended, 0); time.Sleep(3 * time.Hour) }, map[string]int{"never": 1}},
		{"a warning alone", func(m *Metrics) { hear(m, warned, 0); time.Sleep(3 * time.Hour) }, nil},
		{"not yet", func(m *Metrics) { hear(m, recommended, 0); time.Sleep(time.Hour) }, nil},
		{"all of it again and again", func(m *Metrics) {
			for range 3 {
				hear(m, recommended, 0)
				hear(m, recommended, time.Minute)
				hear(m, warned, 20*time.Minute)
				hear(m, warned, 21*time.Minute)
			}
			time.Sleep(3 * time.Hour)
			hear(m, recommended, 0)
			time.Sleep(3 * time.Hour)
		}, map[string]int{"30m": 1}},
		{"one that a rule ignores", func(m *Metrics) { hear(m, recommended, 0, of(decision.Drop, "a")); hear(m, warned, 0) }, map[string]int{"10m": 1}},
		{"a machine without a Node by then", func(m *Metrics) { hear(m, recommended, 0); hear(m, warned, 0, of(decision.Drop, "")) }, map[string]int{"10m": 1}},
		{"machines without Nodes", func(m *Metrics) {
			hear(m, recommended, 0, of(decision.Drop, ""))
			hear(m, warned, 0, of(decision.Drop, ""))
		}, nil},
		{"another cluster's", func(m *Metrics) {
			hear(m, recommended, 0, of(decision.Leave, "a"))
			time.Sleep(3 * time.Hour)
		}, nil},
		{"other kinds", func(m *Metrics) {
			hear(m, recommended, 0)
			hear(m, notice.StateChange, 0)
			hear(m, notice.ASGTerminate, 0)
		}, nil},
		{"another replica leads", func(m *Metrics) {
			end := m.Lead(idle)
			hear(m, recommended, 0)
			end()
			hear(m, warned, time.Minute)
			time.Sleep(3 * time.Hour)
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := New()
				tt.play(m)
				if diff := cmp.Diff(tt.want, m.followedBySpot(t), cmp.Transformer("", func(m map[string]int) string { return fmt.Sprint(m) })); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What a node carries tells the next leader of a recommendation, and of what the one before has counted.
func TestTheNextLeaderCountsOnWithWhatNodesCarry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		entry := func(k notice.Kind, at time.Duration) intent.Entry { return intent.Entry{Kind: k, Time: begin.Add(at)} }
		recommended, warned := entry(notice.RebalanceRecommendation, 0), entry(notice.SpotInterruption, 5*time.Minute)
		carry := map[string]intent.Intent{
			"i-open":    {Entries: []intent.Entry{recommended}},
			"i-silent":  {Entries: []intent.Entry{recommended}},
			"i-counted": {Entries: []intent.Entry{recommended, warned}},
			"i-past":    {Entries: []intent.Entry{warned}, Past: []intent.Past{{Kind: notice.RebalanceRecommendation}}},
			"i-old":     {Entries: []intent.Entry{entry(notice.RebalanceRecommendation, -3*time.Hour)}},
			"i-other":   {Entries: []intent.Entry{entry(notice.ASGTerminate, 0)}},
			"":          {Entries: []intent.Entry{recommended}},
		}
		m := New()
		term := idle
		term.Intents = func(visit func(string, intent.Intent)) {
			for instance, i := range carry {
				visit(instance, i)
			}
		}
		defer m.Lead(term)()
		time.Sleep(15 * time.Minute)
		for instance := range carry {
			if instance == "i-silent" {
				continue
			}
			m.Decided(report.Decision{
				Instance: instance, Node: cluster.Ref{Name: "n"}, Action: decision.Drain,
				Notice: notice.Notice{Kind: notice.SpotInterruption, Time: time.Now()},
			})
		}
		time.Sleep(3 * time.Hour)
		if got := m.followedBySpot(t); got["30m"] != 1 || got["never"] != 1 || got["10m"] != 0 {
			t.Errorf("counted: %v", got)
		}
		if n := len(m.followed.instances); n > 0 {
			t.Errorf("%d instances are remembered", n)
		}
	})
}

func TestRecommendationsThatAreRememberedAreBounded(t *testing.T) {
	m := New()
	for n := range 2 * mostFollowed {
		m.Decided(report.Decision{
			Instance: fmt.Sprint(n), Node: cluster.Ref{Name: "n"}, Action: decision.Cordon,
			Notice: notice.Notice{Kind: notice.RebalanceRecommendation, Time: time.Now()},
		})
	}
	if n := len(m.followed.instances); n != mostFollowed {
		t.Errorf("%d instances are remembered", n)
	}
}

// A clock that is wrong, or a forged message, dates a notice years ahead. Its place would not be free again in the term.
func TestARecommendationOfTheFutureTakesNoPlace(t *testing.T) {
	m := New()
	ahead := time.Now().AddDate(1000, 0, 0)
	m.Decided(report.Decision{
		Instance: "i-1", Node: cluster.Ref{Name: "n"}, Action: decision.Cordon,
		Notice: notice.Notice{Kind: notice.RebalanceRecommendation, Time: ahead},
	})
	m.followed.carried("i-2", intent.Intent{Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation, Time: ahead}}}, time.Now())
	if n := len(m.followed.instances); n > 0 {
		t.Errorf("%d instances are remembered", n)
	}
}
