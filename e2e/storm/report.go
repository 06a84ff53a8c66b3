package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

// report prints the table. The floor in it is the mean of the two that were measured.
func (s *storm) report(ours *record, h *handler, before, after *record) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for k, c := range cells {
			if k > 0 {
				fmt.Fprint(w, "\t")
			}
			if d, ok := c.(time.Duration); ok {
				c = fmt.Sprintf("%.2f s", d.Seconds())
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	deleted := h.deleted()
	var deletions spread
	for _, at := range deleted {
		deletions = append(deletions, at.Sub(ours.start))
	}
	slices.Sort(deletions)

	fmt.Fprintln(w)
	row("from the notice to", "p50", "p95", "p99", "max", "floor", "ratio", "floor before", "after")
	times := func(name string, ours spread, before, after time.Duration) {
		floor := (before + after) / 2
		row(name, ours.at(.5), ours.at(.95), ours.at(.99), ours.max(), floor,
			fmt.Sprintf("%.2f", ours.max().Seconds()/floor.Seconds()), before, after)
	}
	times("cordoned", ours.cordoned(), before.cordoned().max(), after.cordoned().max())
	times("first eviction", ours.evicted(), before.evicted().max(), after.evicted().max())
	times("empty", ours.gone(), before.gone().max(), after.gone().max())
	row("message deleted", deletions.at(.5), deletions.at(.95), deletions.at(.99), deletions.max())
	fmt.Fprintln(w)

	missed := 0
	if h.kind == "spot" {
		for _, d := range ours.gone() {
			if d > 2*time.Minute {
				missed++
			}
		}
		missed += s.nodes - len(ours.gone())
	}
	row("nodes that missed their deadline", missed)
	row("memory at rest, peak; of it not the binary",
		fmt.Sprintf("%.0f MiB", mebibytes(h.idleMemory)), fmt.Sprintf("%.0f MiB", mebibytes(h.peakMemory)),
		fmt.Sprintf("%.0f MiB at rest", mebibytes(h.idleAnonymous)))
	row("CPU of the handler", h.cpu)
	row("goroutines before, after", h.goroutines[0], h.goroutines[1])
	row("messages received a second", fmt.Sprintf("%.0f", h.received(ours.start)))
	row("metric series before, after", h.series[0], h.series[1])
	row("start to leading", h.firstReceive)
	aws := func(before, after map[awssim.CallKey]int, per string, units float64) {
		for _, key := range slices.SortedFunc(maps.Keys(after), func(a, b awssim.CallKey) int {
			return cmp.Compare(a.Service+a.Action+a.Code, b.Service+b.Action+b.Code)
		}) {
			if n := after[key] - before[key]; n > 0 {
				row(strings.TrimSpace("AWS "+key.Service+" "+key.Action+" "+key.Code), n,
					fmt.Sprintf("%.2f %s", float64(n)/units, per))
			}
		}
	}
	aws(h.leading, h.before, "in 20 s at rest", h.keep.Seconds()/20)
	aws(h.before, h.after, "for 10 messages", float64(len(h.sent)+h.foreignSent)/10)
	calls, err := s.kubernetesCalls(ours.start, h.ended)
	if err != nil {
		return err
	}
	sum := 0
	for _, verb := range slices.Sorted(maps.Keys(calls)) {
		row("Kubernetes "+verb, calls[verb], fmt.Sprintf("%.2f a node", float64(calls[verb])/float64(s.nodes)))
		if !strings.Contains(verb, " events") && !strings.HasSuffix(verb, " leases") {
			sum += calls[verb]
		}
	}
	row("Kubernetes, without Events and Lease", sum, fmt.Sprintf("%.2f a node", float64(sum)/float64(s.nodes)))
	return w.Flush()
}

// kubernetesCalls are the requests of the handler's user in a span of time, by verb and resource.
func (s *storm) kubernetesCalls(from, to time.Time) (map[string]int, error) {
	user := "system:serviceaccount:" + release.Name + ":" + release.Name
	events, err := s.cluster.Audit(func(e sandbox.AuditEvent) bool {
		return e.User == user && e.Received.After(from) && e.Received.Before(to)
	})
	if err != nil {
		return nil, err
	}
	calls := map[string]int{}
	for _, e := range events {
		name := e.Verb + " " + e.Resource
		if e.Subresource != "" {
			name += "/" + e.Subresource
		}
		if e.Code >= 400 {
			name += fmt.Sprintf(" %d", e.Code)
		}
		calls[name]++
	}
	return calls, nil
}

func mebibytes(b int64) float64 { return float64(b) / (1 << 20) }
