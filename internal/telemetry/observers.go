package telemetry

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
)

// Observers are told the same, one after the other. They are a
// controller.Observer if each of them is one.
type Observers []interface {
	Decided(d Decision)
	Node(ref cluster.Ref, step, why string, err error)
	Drained(ref cluster.Ref, r drain.Result, took time.Duration, deadline time.Time)
}

// Decided implements controller.Observer.
func (os Observers) Decided(d Decision) {
	for _, o := range os {
		o.Decided(d)
	}
}

// Node implements controller.Observer.
func (os Observers) Node(ref cluster.Ref, step, why string, err error) {
	for _, o := range os {
		o.Node(ref, step, why, err)
	}
}

// Drained implements controller.Observer.
func (os Observers) Drained(ref cluster.Ref, r drain.Result, took time.Duration, deadline time.Time) {
	for _, o := range os {
		o.Drained(ref, r, took, deadline)
	}
}
