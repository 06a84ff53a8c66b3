package tool

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// mostDown is how many workloads are named that would be down.
const mostDown = 10

// write writes the forecast of one node.
func (f forecast) write(out io.Writer) error {
	if err := f.origin.writeWith(out, f.identity); err != nil {
		return err
	}
	return f.writeFate(out)
}

// writeFate writes what would become of the node and its pods.
func (f forecast) writeFate(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s: ", f.node.Name, f.kind.Dashed())
	if idle := f.whyNotDrained(); idle != "" {
		b.WriteString(idle + "\n")
		if _, remedy := f.whyIgnored(f.outcome); remedy != "" {
			b.WriteString("    " + remedy + "\n")
		}
		if lost := f.lost(); len(lost) > 0 {
			b.WriteString("would be lost with the instance: " + strings.Join(lost, ", ") + "\n")
		}
		_, err := io.WriteString(out, b.String())
		return err
	}
	b.WriteString(deadlineText(f.Terms.Deadline, f.at))
	if f.Terms.IgnoreBudgets {
		b.WriteString("; PodDisruptionBudgets do not count: the instance is stopping already")
	}
	b.WriteString("\n")
	if begin := f.begin(); !begin.IsZero() {
		fmt.Fprintf(&b, "the drain would begin at %s, by rule %s; the times below count from then\n",
			begin.UTC().Format(time.RFC3339), f.Rule)
	}
	if f.By == intent.ByKarpenter {
		until := "and takes the time that it needs"
		if by := decision.KarpenterDeadline(f.Intent); !by.IsZero() {
			until = fmt.Sprintf("and is told to be done %s after the notice", overview.Length(by.Sub(f.at)))
		}
		fmt.Fprintf(&b, "Karpenter would be asked to replace and drain the node, %s; below is what the handler "+
			"does if Karpenter does not\n", until)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	return f.Print(out)
}

// printForecasts writes a line for each node, and a summary.
func printForecasts(out io.Writer, s *Session, kind notice.Kind, all []forecast) error {
	if err := s.origin.writeWith(out, s.identity); err != nil {
		return err
	}
	width := len("node")
	for _, f := range all {
		width = max(width, len(f.node.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s for each node separately, the worst first:\n\n", kind.Dashed())
	fmt.Fprintf(&b, "  %-*s  %4s  %4s  %7s  %7s\n", width, "node", "pods", "lost", "blocked", "deleted")
	nodes, pods := 0, 0
	down := map[string]bool{} // workloads
	for _, f := range all {
		sum, lost := f.Summary(), f.lost()
		if len(lost) > 0 {
			nodes++
			pods += len(lost)
		}
		blocked := fmt.Sprint(sum.Blocked)
		if f.BudgetsUnread != nil {
			blocked = "?"
		}
		remark := f.whyNotDrained()
		if _, remedy := f.whyIgnored(f.outcome); f.Why == decision.WhyNotSpot {
			remark = "no spot instance: it gets no such notice"
		} else if remedy != "" {
			remark += "; " + remedy
		}
		if remark == "" && len(lost) > 0 {
			remark = "lost: " + strings.Join(lost, ", ")
		}
		line := fmt.Sprintf("  %-*s  %4d  %4d  %7s  %7d  %s",
			width, f.node.Name, sum.Pods, len(lost), blocked, sum.Forced, remark)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		for _, d := range f.down() {
			down[d] = true
		}
	}
	fmt.Fprintf(&b, "\n%d of %s would lose pods, %d in all; %s would be down during the drain",
		nodes, overview.Count(len(all), "node"), pods, overview.Count(len(down), "workload"))
	if len(down) > 0 {
		b.WriteString(": " + strings.Join(evacuation.Names(slices.Sorted(maps.Keys(down)), mostDown), ", "))
	}
	b.WriteString("\n")
	if all[0].BudgetsUnread != nil {
		fmt.Fprintf(&b, "PodDisruptionBudgets could not be read: %v\n", all[0].BudgetsUnread)
	}
	b.WriteString("what-if --node NAME shows one node pod by pod. This is the worst case: every pod uses its whole " +
		"grace period.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// A nodeReport is a forecast for programs.
type nodeReport struct {
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	// Ignored says why the handler would not drain the node; absent if it would.
	Ignored string `json:"ignored,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Why     string `json:"why"`
	// Rule is the one that decides; absent if none is asked. Begin is when the drain begins; absent: at once.
	Rule  string     `json:"rule,omitempty"`
	Begin *time.Time `json:"begin,omitempty"`
	// By is karpenter if Karpenter would be asked to drain the node, and else absent.
	By string `json:"by,omitempty"`
	// Deadline is in seconds after the notice; absent if nothing is forced.
	Deadline *float64              `json:"deadlineSeconds,omitempty"`
	Pods     []rehearsal.PodReport `json:"pods"`
	Lost     []string              `json:"lost"`
	Left     []string              `json:"left"`
	Down     []string              `json:"down"` // workloads
	// BudgetsUnread says why PodDisruptionBudgets could not be read.
	BudgetsUnread string `json:"budgetsUnread,omitempty"`
}

func (f forecast) report() nodeReport {
	_, remedy := f.whyIgnored(f.outcome)
	r := nodeReport{
		Node: f.node.Name, Instance: f.notice.Instance,
		Ignored: f.whyNotDrained(), Remedy: remedy, Why: string(f.Why), Rule: f.Rule, Pods: []rehearsal.PodReport{},
		Lost: orEmpty(f.lost()), Left: orEmpty(f.Summary().Left), Down: orEmpty(f.down()),
	}
	if r.Ignored == "" {
		r.Pods = f.PodReports()
	}
	if !f.Terms.Deadline.IsZero() {
		r.Deadline = new(f.Terms.Deadline.Sub(f.at).Seconds())
	}
	if begin := f.begin(); !begin.IsZero() {
		r.Begin = &begin
	}
	if f.By == intent.ByKarpenter && r.Ignored == "" {
		r.By = string(f.By)
	}
	if f.BudgetsUnread != nil {
		r.BudgetsUnread = f.BudgetsUnread.Error()
	}
	return r
}

// orEmpty returns a list that is never null in JSON.
func orEmpty(list []string) []string { return append([]string{}, list...) }

// down are the workloads that are down during the drain, if there is one.
func (f forecast) down() (names []string) {
	if f.whyNotDrained() != "" {
		return nil
	}
	for _, d := range f.Down {
		names = append(names, d.Name)
	}
	return names
}

// writeForecasts writes them for programs.
func writeForecasts(out io.Writer, s *Session, kind notice.Kind, all []forecast) error {
	report := struct {
		originReport
		Kind  string       `json:"kind"`
		Lost  int          `json:"lost"`
		Nodes []nodeReport `json:"nodes"`
	}{originReport: s.originReport(), Kind: kind.Dashed(), Nodes: []nodeReport{}}
	for _, f := range all {
		report.Lost += len(f.lost())
		report.Nodes = append(report.Nodes, f.report())
	}
	return WriteJSON(out, report)
}

// WriteJSON writes a report for programs.
func WriteJSON(out io.Writer, report any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
