package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/storm/figures"
)

// report prints what was measured, and records it if that is wanted.
func (s *storm) report(ctx context.Context, ours *record, h *handler, before, after *record) error {
	r, err := s.measured(ctx, ours, h, before, after)
	if err != nil {
		return err
	}
	if s.record != "" {
		if err := figures.Append(s.record, r); err != nil {
			return fmt.Errorf("record the run: %w", err)
		}
	}
	return printRun(s.out, r)
}

// measured puts together what was measured.
func (s *storm) measured(ctx context.Context, ours *record, h *handler, before, after *record) (figures.Run, error) {
	kubernetes, err := s.cluster.calls(ours.start, h.ended)
	if err != nil {
		return figures.Run{}, err
	}
	version, err := exec.CommandContext(ctx, s.program, "version").Output()
	if err != nil {
		return figures.Run{}, fmt.Errorf("ask the handler for its version: %w", err)
	}
	var deletions spread
	for _, at := range h.deleted() {
		deletions = append(deletions, at.Sub(ours.start))
	}
	slices.Sort(deletions)
	missed := 0
	if s.kind == "spot" {
		missed = s.nodes - len(ours.gone())
		for _, d := range ours.gone() {
			if d > 2*time.Minute {
				missed++
			}
		}
	}
	r := figures.Run{
		Day: time.Now().UTC().Format(time.DateOnly), Cores: runtime.GOMAXPROCS(0),
		Commit: lineAfter(version, "commit: "), Go: lineAfter(version, "built with: "),
		Simulate: s.simulate, Nodes: s.nodes, Pods: s.pods, Idle: s.idle, Kind: s.kind, Options: s.others, Args: s.args,
		Cordoned: timesOf(ours.cordoned(), before.cordoned(), after.cordoned()),
		Evicted:  timesOf(ours.evicted(), before.evicted(), after.evicted()),
		Empty:    timesOf(ours.gone(), before.gone(), after.gone()),
		Deleted:  timesOf(deletions, nil, nil),
		Missed:   missed,
		Memory:   figures.Memory{Rest: h.idleMemory, Anonymous: h.idleAnonymous, Peak: h.peakMemory},
		CPU:      seconds(h.cpu), CPUToEmpty: seconds(h.cpuToEmpty), Goroutines: h.goroutines, Series: h.series,
		Received: math.Round(h.received(ours.start)), Leading: seconds(h.firstReceive),
		Rest: seconds(s.keep), AWSAtRest: awsCalls(h.leading, h.before),
		Messages: len(h.sent) + h.foreignSent, AWS: awsCalls(h.before, h.after), Kubernetes: kubernetes,
		Peaks: ours.peaks,
	}
	if made := ours.replaced; made.count > 0 {
		r.Replaced, r.Replacements = seconds(made.last.Sub(ours.start)), made.count
	}
	return r, nil
}

// lineAfter is what follows a prefix of a line.
func lineAfter(text []byte, prefix string) string {
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func timesOf(ours, before, after spread) figures.Times {
	return figures.Times{
		P50: seconds(ours.at(.5)), P95: seconds(ours.at(.95)), P99: seconds(ours.at(.99)), Max: seconds(ours.max()),
		FloorBefore: seconds(before.max()), FloorAfter: seconds(after.max()),
	}
}

func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}

// awsCalls are those that were made between two counts.
func awsCalls(before, after map[awssim.CallKey]int) map[string]int {
	calls := map[string]int{}
	for key, n := range after {
		if n -= before[key]; n > 0 {
			calls[strings.TrimSpace(key.Service+" "+key.Action+" "+key.Code)] = n
		}
	}
	return calls
}

// settings are the options that are not at their defaults, but for those that a run has a field for, or that say
// nothing about the storm.
func settings(flags *flag.FlagSet) map[string]string {
	all := map[string]string{}
	flags.VisitAll(func(f *flag.Flag) {
		switch f.Name {
		case "handler", "manifests", "record", "log", "nodes", "pods", "idle", "kind", "simulate":
		default:
			if f.Value.String() != f.DefValue {
				all[f.Name] = f.Value.String()
			}
		}
	})
	return all
}

// printRun prints the table of a run.
func printRun(out io.Writer, r figures.Run) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for k, c := range cells {
			if k > 0 {
				fmt.Fprint(w, "\t")
			}
			if t, ok := c.(float64); ok {
				c = fmt.Sprintf("%.2f s", t)
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	row("from the notice to", "p50", "p95", "p99", "max", "floor", "ratio", "floor before", "after")
	rowOf := func(name string, t figures.Times) {
		row(name, t.P50, t.P95, t.P99, t.Max, t.Floor(), fmt.Sprintf("%.2f", t.Ratio()), t.FloorBefore, t.FloorAfter)
	}
	rowOf("cordoned", r.Cordoned)
	rowOf("first eviction", r.Evicted)
	rowOf("empty", r.Empty)
	row("message deleted", r.Deleted.P50, r.Deleted.P95, r.Deleted.P99, r.Deleted.Max)
	if r.Replacements > 0 {
		row("replacement scheduled", "", "", "", r.Replaced, fmt.Sprintf("%d pods", r.Replacements))
	}
	fmt.Fprintln(w)

	row("nodes that missed their deadline", r.Missed)
	row("memory at rest, peak; of it not the binary",
		mebibytes(r.Memory.Rest), mebibytes(r.Memory.Peak), mebibytes(r.Memory.Anonymous)+" at rest")
	row("CPU of the handler", r.CPU, fmt.Sprintf("%.2f cores until the last node is empty", r.CPUToEmpty/r.Empty.Max))
	row("goroutines before, after", r.Goroutines[0], r.Goroutines[1])
	row("messages received a second", fmt.Sprintf("%.0f", r.Received))
	row("metric series before, after", r.Series[0], r.Series[1])
	row("start to leading", r.Leading)
	calls := func(prefix string, calls map[string]int, per string, units float64) {
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			row(prefix+name, calls[name], fmt.Sprintf("%.2f %s", float64(calls[name])/units, per))
		}
	}
	calls("AWS ", r.AWSAtRest, "in 20 s at rest", r.Rest/20)
	calls("AWS ", r.AWS, "for 10 messages", float64(r.Messages)/10)
	calls("Kubernetes ", r.Kubernetes, "a node", float64(r.Nodes))
	calls("Kubernetes, ", map[string]int{"without Events and Lease": r.Requests()}, "a node", float64(r.Nodes))
	row("Kubernetes requests a second until the last node is empty",
		fmt.Sprintf("%.0f", float64(r.Requests())/r.Empty.Max))
	for _, worst := range r.Peaks {
		row("at the API server", worst)
	}
	return w.Flush()
}

func mebibytes(b int64) string { return fmt.Sprintf("%.0f MiB", float64(b)/(1<<20)) }
