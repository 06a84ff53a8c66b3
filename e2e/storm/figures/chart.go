package figures

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/e2e/picture"
)

// A chart shows values against the number of nodes that were interrupted at once.
type chart struct {
	title, unit string
	logarithmic bool // in the nodes
	series      []series
}

// A series is a value of several storms: a dot for each of them, and a line with its name at the end.
type series struct {
	name, class string
	dots, line  []point
}

// The part of a picture that has the points, in pixels.
const (
	chartWidth = 760
	plotLeft   = 56.0
	plotRight  = 590.0 // names of series are to its right
	plotTop    = 76.0
	plotBottom = 336.0
	plotMargin = 12.0 // between the axis and the first point
	nameHeight = 17.0
)

// svg draws the chart. A series without points is left out.
func (c chart) svg() string {
	c.series = slices.DeleteFunc(c.series, func(s series) bool { return len(s.line) == 0 })
	var xs, ys []float64
	for _, s := range c.series {
		for _, p := range slices.Concat(s.dots, s.line) {
			xs, ys = append(xs, p.x), append(ys, p.y)
		}
	}
	x := linear(slices.Max(xs), plotLeft, plotRight-plotMargin, false)
	if c.logarithmic {
		x = logarithmic(slices.Min(xs), slices.Max(xs), plotLeft+plotMargin, plotRight-plotMargin)
	}
	y := linear(slices.Max(ys), plotBottom, plotTop, true)
	place := func(p point) picture.Point { return picture.Point{X: x.place(p.x), Y: y.place(p.y)} }

	p := picture.New(chartWidth)
	p.Label("strong", picture.Point{X: 20, Y: 30}, c.title)
	p.Label("faint", picture.Point{X: 20, Y: 52}, c.unit)
	for _, t := range y.ticks {
		at := y.place(t)
		p.Line("tick", picture.Point{X: plotLeft, Y: at}, picture.Point{X: plotRight, Y: at})
		p.Label("faint end", picture.Point{X: plotLeft - 8, Y: at + 4}, strconv.FormatFloat(t, 'g', 4, 64))
	}
	for _, t := range x.ticks {
		at := x.place(t)
		p.Line("tick", picture.Point{X: at, Y: plotBottom}, picture.Point{X: at, Y: plotBottom + 5})
		p.Label("faint middle", picture.Point{X: at, Y: plotBottom + 20}, thousands(int(t)))
	}
	axis := "nodes interrupted at once"
	if c.logarithmic {
		axis += ", logarithmic"
	}
	p.Label("faint end", picture.Point{X: plotRight, Y: plotBottom + 42}, axis)

	// Names are where their lines end, apart from one another.
	slices.SortStableFunc(c.series, func(a, b series) int { return -cmp.Compare(a.end().y, b.end().y) })
	free := plotTop
	for _, s := range c.series {
		for _, dot := range s.dots {
			p.Dot(s.class, place(dot))
		}
		points := make([]picture.Point, len(s.line))
		for k, at := range s.line {
			points[k] = place(at)
		}
		p.Line(s.class, points...)
		name := max(place(s.end()).Y+4, free)
		free = name + nameHeight
		p.Label(s.class, picture.Point{X: plotRight + 8, Y: name}, s.name)
	}
	return p.SVG(c.title, c.describe())
}

func (s series) end() point { return s.line[len(s.line)-1] }

// describe has the points of the lines, for those who cannot see them.
func (c chart) describe() string {
	var all []string
	for _, s := range c.series {
		var values []string
		for _, p := range s.line {
			values = append(values, figure(p.y)+" with "+thousands(int(p.x)))
		}
		all = append(all, s.name+": "+strings.Join(values, ", "))
	}
	return c.unit + ", by the nodes interrupted at once. " + strings.Join(all, ". ") + "."
}

// A scale places values in a picture.
type scale struct {
	place func(float64) float64
	ticks []float64
}

// linear is a scale from zero to high, with some five round numbers as ticks. Whole is a scale that ends with a tick.
func linear(high, from, to float64, whole bool) scale {
	step := math.Pow(10, math.Floor(math.Log10(high/5)))
	for _, times := range []float64{2, 2.5, 2} { // 2, 5 and 10 times that power of ten
		if high/step > 6 {
			step *= times
		}
	}
	if whole {
		high = up(high, step)
	}
	s := scale{place: func(v float64) float64 { return from + (to-from)*v/high }}
	for k := range int(high/step+0.001) + 1 {
		s.ticks = append(s.ticks, float64(k)*step)
	}
	return s
}

// logarithmic is a scale from low to high, with the ticks 1, 2, 5, 10, 20 and so on.
func logarithmic(low, high, from, to float64) scale {
	s := scale{place: func(v float64) float64 {
		if low == high {
			return (from + to) / 2
		}
		return from + (to-from)*math.Log(v/low)/math.Log(high/low)
	}}
	for power := 1.0; power <= high; power *= 10 {
		for _, v := range []float64{power, 2 * power, 5 * power} {
			if low <= v && v <= high {
				s.ticks = append(s.ticks, v)
			}
		}
	}
	return s
}
