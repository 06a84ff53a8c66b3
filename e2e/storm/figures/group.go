package figures

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

const mebibyte = 1 << 20

// A size is what storms differ in that are compared with one another.
type size struct {
	simulate           string
	nodes, pods, other int // other nodes are not interrupted
}

func sizeOf(r Run) size { return size{r.Simulate, r.Nodes, r.Pods, r.Idle} }

// compare puts storms with a real API server first.
func (s size) compare(other size) int {
	return cmp.Or(strings.Compare(s.simulate, other.simulate), s.nodes-other.nodes, s.pods-other.pods, s.other-other.other)
}

func (s size) String() string {
	name := thousands(s.nodes) + " × " + strconv.Itoa(s.pods)
	if s.other > 0 {
		name += " of " + thousands(s.nodes+s.other) + " nodes"
	}
	if s.simulate != "" {
		name += ", simulated: " + s.simulate
	}
	return name
}

// Plain returns the runs that can be compared: those of spot interruptions with all options at their defaults, but for
// how many nodes and pods there were, and which API server. A run is left out if its floor has more than doubled or
// halved meanwhile, because something else used the machine.
func Plain(runs []Run) []Run {
	return slices.DeleteFunc(slices.Clone(runs), func(r Run) bool {
		before, after := r.Empty.FloorBefore, r.Empty.FloorAfter
		return r.Kind != "spot" || len(r.Options) > 0 || len(r.Args) > 0 || before > 2*after || after > 2*before
	})
}

// A group are the runs that have a key in common.
type group[K any] struct {
	key  K
	runs []Run
}

// groups are all runs, in the order of their keys.
func groups[K any](runs []Run, key func(Run) K, compare func(a, b K) int) []group[K] {
	var all []group[K]
	for _, r := range runs {
		at, found := slices.BinarySearchFunc(all, key(r), func(g group[K], k K) int { return compare(g.key, k) })
		if !found {
			all = slices.Insert(all, at, group[K]{key: key(r)})
		}
		all[at].runs = append(all[at].runs, r)
	}
	return all
}

// interrupted are the nodes of a run that were.
func interrupted(r Run) int { return r.Nodes }

// A value is a figure of a run.
type value func(Run) float64

// of are a figure's least value, median and largest value in the group.
func (g group[K]) of(v value) (least, median, largest float64) {
	var all []float64
	for _, r := range g.runs {
		all = append(all, v(r))
	}
	slices.Sort(all)
	n := len(all)
	return all[0], (all[(n-1)/2] + all[n/2]) / 2, all[n-1]
}

// cell is a figure's median, and its range if it has one.
func (g group[K]) cell(v value, unit string) string {
	least, median, largest := g.of(v)
	text := figure(median) + unit
	if from, to := figure(least), figure(largest); from != to {
		text += fmt.Sprintf(" (%s to %s)", from, to)
	}
	return text
}

// figure is a number that is not negative, with three digits at most, or as an integer if it is large.
func figure(v float64) string {
	if v == math.Trunc(v) || v >= 100 {
		return thousands(int(math.Round(v)))
	}
	decimals := 2
	if v >= 10 {
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// thousands is a number with a comma after its thousands.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
