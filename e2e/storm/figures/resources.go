package figures

import (
	"cmp"
	"math"
)

const (
	reserve    = 1.5           // times what was measured: pods and webhooks differ
	memoryUnit = 64 * mebibyte // memory is rounded up to
	cpuUnit    = 50            // thousandths of a core that CPU is rounded up to
	// patience is how many seconds the handler's own work in a storm may take when it gets no more CPU than its
	// request: a spot interruption gives two minutes, of which the last pods need the usual 30 s to stop.
	patience = 90
)

// A Cluster is what resources are set for.
type Cluster struct {
	Interrupted int // nodes at once
	Nodes       int // all of them
}

// Resources are those of the handler's container: memory in bytes, CPU in thousandths of a core. It needs no limit
// of the CPU.
type Resources struct {
	MemoryRequest, MemoryLimit int64
	CPURequest                 int
}

// fit reports whether r is enough for what needs other.
func (r Resources) fit(other Resources) bool {
	return r.MemoryRequest >= other.MemoryRequest && r.MemoryLimit >= other.MemoryLimit && r.CPURequest >= other.CPURequest
}

// A Model is how memory and CPU time grow.
type Model struct {
	rest line // bytes at rest, with the nodes of the cluster
	peak line // bytes at the peak, with the nodes that are interrupted, if there are no others
	cpu  line // seconds, with the nodes that are interrupted

	measured Cluster // the largest
}

// NewModel fits a model to the largest values of runs that can be compared.
func NewModel(runs []Run) Model {
	var m Model
	var files int64 // at rest
	for _, r := range runs {
		m.measured.Interrupted = max(m.measured.Interrupted, r.Nodes)
		m.measured.Nodes = max(m.measured.Nodes, r.Nodes+r.Idle)
		files = max(files, r.Memory.Rest-r.Memory.Anonymous)
	}
	largest := func(nodes func(Run) int, v value) line {
		var points []point
		for _, g := range groups(runs, nodes, cmp.Compare[int]) {
			_, _, y := g.of(v)
			points = append(points, point{float64(g.key), y})
		}
		return fit(points)
	}
	// Pages of files do not grow with the nodes, and differ more from run to run than what does.
	all := func(r Run) int { return r.Nodes + r.Idle }
	m.rest = largest(all, func(r Run) float64 { return float64(r.Memory.Anonymous) })
	m.rest.zero += float64(files)
	m.peak = largest(interrupted, func(r Run) float64 { return float64(r.Memory.Peak) - m.rest.slope*float64(r.Idle) })
	m.cpu = largest(interrupted, func(r Run) float64 { return r.CPU })
	return m
}

// Resources are what to set for a cluster.
func (m Model) Resources(c Cluster) Resources {
	peak := m.peak.at(c.Interrupted) + m.rest.slope*float64(c.Nodes-c.Interrupted)
	return Resources{
		MemoryRequest: int64(up(reserve*m.rest.at(c.Nodes), memoryUnit)),
		MemoryLimit:   int64(up(reserve*peak, memoryUnit)),
		CPURequest:    int(up(1000*m.cpu.at(c.Interrupted)/patience, cpuUnit)),
	}
}

// up rounds up to a multiple of the unit.
func up(v, unit float64) float64 { return unit * math.Ceil(v/unit) }

// A point is a value y at x.
type point struct{ x, y float64 }

// A line is a value that grows with a number of nodes, or does not.
type line struct{ zero, slope float64 }

func (l line) at(nodes int) float64 { return l.zero + l.slope*float64(nodes) }

// fit is the line through the points by least squares. It does not fall: where the points do, more nodes need no
// more, and the highest point counts.
func fit(points []point) line {
	var x, y, xx, xy, highest float64
	n := float64(len(points))
	for _, p := range points {
		x, y, xx, xy = x+p.x, y+p.y, xx+p.x*p.x, xy+p.x*p.y
		highest = max(highest, p.y)
	}
	slope := (n*xy - x*y) / (n*xx - x*x)
	if math.IsNaN(slope) || slope <= 0 { // it is no number if all are at one x
		return line{zero: highest}
	}
	return line{zero: (y - slope*x) / n, slope: slope}
}
