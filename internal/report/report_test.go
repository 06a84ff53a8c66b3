package report

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// witness keeps what it is told.
type witness struct{ heard []any }

func (w *witness) Decided(d Decision)      { w.heard = append(w.heard, d) }
func (w *witness) Recorded(e intent.Entry) { w.heard = append(w.heard, e) }
func (w *witness) Stepped(s Step)          { w.heard = append(w.heard, s) }
func (w *witness) Drained(d Drain)         { w.heard = append(w.heard, d) }

func TestEveryObserverIsToldEverything(t *testing.T) {
	var a, b witness
	node := cluster.Ref{Name: "node-1"}
	want := []any{
		Decision{Node: node, Action: decision.Drain, Why: decision.WhyRebalance},
		intent.Entry{Kind: notice.RebalanceRecommendation},
		Step{Node: node, Kind: Cordon, Why: decision.WhyRebalance, Err: errors.New("no")},
		Drain{Node: node, Outcome: intent.Drained},
	}
	all := Observers{&a, &b}
	all.Decided(want[0].(Decision))
	all.Recorded(want[1].(intent.Entry))
	all.Stepped(want[2].(Step))
	all.Drained(want[3].(Drain))
	for _, got := range [][]any{a.heard, b.heard} {
		if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
	}
}
