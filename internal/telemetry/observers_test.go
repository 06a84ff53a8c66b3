package telemetry

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
)

// witness keeps what it is told.
type witness struct{ heard []any }

func (w *witness) Decided(d Decision) { w.heard = append(w.heard, d) }

func (w *witness) Node(ref cluster.Ref, step, why string, err error) {
	w.heard = append(w.heard, ref, step, why, err.Error())
}

func (w *witness) Drained(ref cluster.Ref, r drain.Result, took time.Duration, deadline time.Time) {
	w.heard = append(w.heard, ref, r, took, deadline)
}

func TestEveryObserverIsToldEverything(t *testing.T) {
	var a, b witness
	d, r := spot(), drain.Result{Evicted: 1}
	all := Observers{&a, &b}
	all.Decided(d)
	all.Node(d.Node, "cordon", d.Why, errors.New("no"))
	all.Drained(d.Node, r, time.Second, noon)
	want := []any{d, d.Node, "cordon", d.Why, "no", d.Node, r, time.Second, noon}
	for _, got := range [][]any{a.heard, b.heard} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
	}
}
