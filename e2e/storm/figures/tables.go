package figures

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Measured returns the tables of what storms took and cost, by their size. The runs can be compared; it needs one.
func Measured(runs []Run) string {
	times := table{{
		"nodes × pods", "runs", "last node cordoned", "times its floor", "last node empty", "times its floor", "missed",
	}}
	costs := table{{
		"nodes × pods", "Kubernetes requests a node", "SQS calls for 10 messages", "EC2 calls", "CPU of the handler",
		"memory at the peak",
	}}
	for _, g := range groups(runs, sizeOf, size.compare) {
		name := g.key.String()
		times = append(times, []string{
			name, strconv.Itoa(len(g.runs)),
			g.cell(func(r Run) float64 { return r.Cordoned.Max }, " s"), g.cell(cordonRatio, ""),
			g.cell(func(r Run) float64 { return r.Empty.Max }, " s"), g.cell(emptyRatio, ""),
			g.cell(func(r Run) float64 { return float64(r.Missed) }, ""),
		})
		costs = append(costs, []string{
			name,
			g.cell(Run.requestsPerNode, ""),
			g.cell(func(r Run) float64 { return 10 * float64(calls(r.AWS, "sqs ")) / float64(r.Messages) }, ""),
			g.cell(func(r Run) float64 { return float64(calls(r.AWS, "ec2 ")) }, ""),
			g.cell(func(r Run) float64 { return r.CPU }, " s"), g.cell(peak, " MiB"),
		})
	}
	return times.String() + "\n" + costs.String() + "\n" + source(runs)
}

// The values that pictures show too.
func cordonRatio(r Run) float64 { return r.Cordoned.Ratio() }
func emptyRatio(r Run) float64  { return r.Empty.Ratio() }
func peak(r Run) float64        { return float64(r.Memory.Peak) / mebibyte }

func (r Run) requestsPerNode() float64 { return float64(r.Requests()) / float64(r.Nodes) }

// source says what was measured, and where.
func source(runs []Run) string {
	days, cores, versions := map[string]bool{}, map[int]bool{}, map[string]bool{}
	for _, r := range runs {
		days[r.Day], cores[r.Cores], versions[r.Go] = true, true, true
	}
	of := slices.Sorted(maps.Keys(days))
	when := of[0]
	if last := of[len(of)-1]; last != when {
		when += " to " + last
	}
	var on []string
	for _, n := range slices.Sorted(maps.Keys(cores)) {
		on = append(on, strconv.Itoa(n))
	}
	return fmt.Sprintf("%d runs on %s cores, %s, compiled by %s.\n",
		len(runs), strings.Join(on, " and "), when, strings.Join(slices.Sorted(maps.Keys(versions)), " and "))
}

// clusters are the rows of the table of resources.
var clusters = []Cluster{{10, 100}, {100, 1000}, {500, 1000}, {500, 5000}, {1000, 5000}, {2000, 5000}, {5000, 5000}}

// Defaults is the row that the chart's default resources are for.
var Defaults = Cluster{Interrupted: 500, Nodes: 1000}

// Sizing returns the table of the resources to set, and how they follow from runs that can be compared. The chart sets
// what is given.
func Sizing(runs []Run, chart Resources) string {
	m := NewModel(runs)
	rows := table{{
		"nodes interrupted at once", "nodes in the cluster", "memory request", "memory limit", "CPU request", "figures are",
	}}
	for _, c := range clusters {
		r := m.Resources(c)
		basis := "interpolated"
		if c.Interrupted > m.measured.Interrupted {
			basis = "extrapolated"
		} else if c.Nodes > m.measured.Nodes {
			basis = "partly extrapolated"
		}
		rows = append(rows, []string{
			thousands(c.Interrupted), thousands(c.Nodes),
			memory(r.MemoryRequest), memory(r.MemoryLimit), cpu(r.CPURequest), basis,
		})
	}
	const (
		fits = `
The chart's defaults fit %s nodes interrupted at once in a cluster of %s: requests of %s and %s, and a limit of %s.

`
		how = `
What is in brackets are lines through the largest measured values, by least squares. With its CPU request the handler
does its work in a storm within %d s, even if no other CPU is free. The largest storm measured interrupted %s nodes, and
the largest cluster had %s.
`
	)
	return rows.String() +
		fmt.Sprintf(fits, thousands(Defaults.Interrupted), thousands(Defaults.Nodes),
			memory(chart.MemoryRequest), cpu(chart.CPURequest), memory(chart.MemoryLimit)) +
		m.formulas().String() +
		fmt.Sprintf(how, patience, thousands(m.measured.Interrupted), thousands(m.measured.Nodes))
}

// formulas are those of Resources.
func (m Model) formulas() table {
	atOnce := " for each 100 nodes interrupted at once"
	request := fmt.Sprintf("%s + %s for each 100 nodes in the cluster", zero(m.rest), hundred(m.rest))
	limit := fmt.Sprintf("%s + %s%s + %s for each 100 other nodes", zero(m.peak), hundred(m.peak), atOnce, hundred(m.rest))
	work := fmt.Sprintf("%.2f s + %.2f s%s", m.cpu.zero, 100*m.cpu.slope, atOnce)
	return table{
		{"", fmt.Sprintf("formula, rounded up to %s or %s", memory(memoryUnit), cpu(cpuUnit))},
		{"memory request", fmt.Sprintf("%g × (%s)", reserve, request)},
		{"memory limit", fmt.Sprintf("%g × (%s)", reserve, limit)},
		{"CPU request", fmt.Sprintf("(%s) / %d s", work, patience)},
	}
}

func zero(l line) string    { return figure(l.zero/mebibyte) + " MiB" }
func hundred(l line) string { return figure(100*l.slope/mebibyte) + " MiB" }

// memory and cpu are quantities as the chart takes them.
func memory(bytes int64) string  { return strconv.FormatInt(bytes/mebibyte, 10) + "Mi" }
func cpu(thousandths int) string { return strconv.Itoa(thousandths) + "m" }

// A table is its rows, the first of them the head.
type table [][]string

// String is the table in Markdown.
func (t table) String() string {
	var b strings.Builder
	for k, cells := range t {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		if k == 0 {
			b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	return b.String()
}
