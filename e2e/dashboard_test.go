package e2e

import (
	"cmp"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pictures are written by make pictures: they show what a storm on the sandbox has brought, so no two are equal.
var pictures = flag.String("pictures", "", "directory for pictures of the dashboard and of the page; empty: none is written")

// A drawnPanel is a panel of the dashboard with what its queries have given.
type drawnPanel struct {
	Title, Type, Unit string
	X, Y, W, H        int // in Grafana's grid
	Series            []drawnSeries
}

type drawnSeries struct {
	name    string
	samples []drawnSample
}

type drawnSample struct {
	at    time.Time
	value float64
}

const dashboardStyle = `<style>
.ground { fill: #ffffff } .panel { fill: #f6f8fa; stroke: #d0d7de } .axis { stroke: #d0d7de }
text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #1f2328 }
.row { font-size: 15px; font-weight: bold } .faint { fill: #59636e; font-size: 10px } .stat { font-size: 26px; font-weight: bold }
.line { fill: none; stroke-width: 1.5 } .s0 { stroke: #0969da } .s1 { stroke: #bc4c00 } .s2 { stroke: #1a7f37 } .s3 { stroke: #8250df }
.n0 { fill: #0969da } .n1 { fill: #bc4c00 } .n2 { fill: #1a7f37 } .n3 { fill: #8250df } .dot { fill: #0969da }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .panel { fill: #151b23; stroke: #3d444d } .axis { stroke: #3d444d }
text { fill: #f0f6fc } .faint { fill: #9198a1 } .s0 { stroke: #4493f8 } .s1 { stroke: #f0883e } .s2 { stroke: #3fb950 } .s3 { stroke: #ab7df8 }
.n0 { fill: #4493f8 } .n1 { fill: #f0883e } .n2 { fill: #3fb950 } .n3 { fill: #ab7df8 } .dot { fill: #4493f8 }
}
</style>
`

const (
	gridX, gridY = 44, 26 // of a cell of Grafana's grid, in pixels
	drawnNames   = 4      // series that have a colour and a name
)

// drawDashboard draws the panels as SVG, from begin to end.
func drawDashboard(title string, panels []drawnPanel, begin, end time.Time) string {
	var b strings.Builder
	height := 0
	for _, p := range panels {
		x, y, w, h := p.X*gridX, p.Y*gridY, p.W*gridX-6, p.H*gridY-6
		height = max(height, y+h+12)
		if p.Type == "row" {
			fmt.Fprintf(&b, "<text class=\"row\" x=\"%d\" y=\"%d\">%s</text>\n", x+4, y+18, escaped(p.Title))
			continue
		}
		fmt.Fprintf(&b, "<rect class=\"panel\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n", x, y, w, h)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\">%s</text>\n", x+8, y+18, escaped(p.Title))
		switch p.Type {
		case "stat":
			fmt.Fprintf(&b, "<text class=\"stat\" x=\"%d\" y=\"%d\">%s</text>\n", x+8, y+h-24, escaped(p.last()))
		case "heatmap":
			p.drawHeat(&b, x+8, y+30, w-16, h-40, begin, end)
		default:
			p.draw(&b, x+8, y+30, w-16, h-62, begin, end)
		}
	}
	const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>%[3]s</title>
<desc>The panels of the dashboard with the data of one storm on a control plane without machines.</desc>
%[4]s<rect class="ground" x="-8" y="0" width="%[1]d" height="%[2]d"/>
%[5]s</svg>
`
	return fmt.Sprintf(svg, 24*gridX+12, height, escaped(title), dashboardStyle, b.String())
}

// last is the last value of the first series, with its unit.
func (p drawnPanel) last() string {
	for _, s := range p.Series {
		if n := len(s.samples); n > 0 {
			return p.number(s.samples[n-1].value)
		}
	}
	return "none"
}

func (p drawnPanel) number(value float64) string {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return "none"
	case p.Unit == "percentunit":
		return fmt.Sprintf("%.0f %%", value*100)
	case p.Unit == "bytes":
		return fmt.Sprintf("%.0f MiB", value/(1<<20))
	case p.Unit == "s":
		return fmt.Sprintf("%.3g s", value)
	case p.Type == "stat":
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

// told are the series that are more than zero at some time; all if none is.
func (p drawnPanel) told() []drawnSeries {
	told := slices.DeleteFunc(slices.Clone(p.Series), func(s drawnSeries) bool {
		return !slices.ContainsFunc(s.samples, func(d drawnSample) bool {
			return !math.IsNaN(d.value) && !math.IsInf(d.value, 0) && d.value != 0
		})
	})
	if len(told) == 0 {
		return p.Series
	}
	return told
}

// drawHeat draws a histogram as a row of dots for each bucket, the lowest bound at the bottom.
func (p drawnPanel) drawHeat(b *strings.Builder, x, y, w, h int, begin, end time.Time) {
	bound := func(s drawnSeries) float64 {
		le, err := strconv.ParseFloat(s.name, 64)
		if err != nil {
			return math.Inf(1)
		}
		return le
	}
	buckets := slices.SortedFunc(slices.Values(p.Series), func(a, c drawnSeries) int { return cmp.Compare(bound(a), bound(c)) })
	below := map[time.Time]float64{}
	for k, s := range buckets {
		py := y + h - (2*k+1)*h/(2*len(buckets))
		fmt.Fprintf(b, "<text class=\"faint\" x=\"%d\" y=\"%d\">%s</text>\n", x, py+3, escaped(s.name))
		for _, sample := range s.samples {
			in := sample.value - below[sample.at] // Prometheus counts what is in lower buckets too
			below[sample.at] = sample.value
			if in > 0.01 {
				px := float64(x+32) + float64(w-32)*sample.at.Sub(begin).Seconds()/max(1, end.Sub(begin).Seconds())
				fmt.Fprintf(b, "<circle class=\"dot\" cx=\"%.0f\" cy=\"%d\" r=\"3\"/>\n", px, py)
			}
		}
	}
}

// draw draws the series as lines in a box, and names the first of them.
func (p drawnPanel) draw(b *strings.Builder, x, y, w, h int, begin, end time.Time) {
	low, high := 0.0, 0.0
	lines := p.told()
	for _, s := range lines {
		for _, sample := range s.samples {
			if !math.IsNaN(sample.value) && !math.IsInf(sample.value, 0) {
				low, high = min(low, sample.value), max(high, sample.value)
			}
		}
	}
	if high == low {
		high = low + 1
	}
	fmt.Fprintf(b, "<line class=\"axis\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%[2]d\"/>\n", x, y+h, x+w)
	fmt.Fprintf(b, "<text class=\"faint\" x=\"%d\" y=\"%d\">%s</text>\n", x, y+8, escaped(p.number(high)))
	left := x
	for k, s := range lines {
		var points []string
		for _, sample := range s.samples {
			if math.IsNaN(sample.value) || math.IsInf(sample.value, 0) {
				continue
			}
			px := float64(x) + float64(w)*sample.at.Sub(begin).Seconds()/max(1, end.Sub(begin).Seconds())
			points = append(points, fmt.Sprintf("%.0f,%.0f", px, float64(y+h)-float64(h)*(sample.value-low)/(high-low)))
		}
		if len(points) > 0 {
			fmt.Fprintf(b, "<polyline class=\"line s%d\" points=\"%s\"/>\n", k%drawnNames, strings.Join(points, " "))
		}
		if width := 7*len(s.name) + 14; k < drawnNames && s.name != "" && left+width < x+w {
			fmt.Fprintf(b, "<text class=\"faint n%d\" x=\"%d\" y=\"%d\">%s</text>\n", k, left, y+h+20, escaped(s.name))
			left += width
		}
	}
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder returns no error
	return b.String()
}

// savePicture draws the panels, checks that the drawing has each of them, and writes it if -pictures says where.
func (s *scenario) savePicture(panels []drawnPanel, begin time.Time) {
	s.Helper()
	svg := drawDashboard("The dashboard after a storm", panels, begin, time.Now())
	checkPicture(s.T, svg, panels)
	if *pictures != "" {
		s.must(os.MkdirAll(*pictures, 0o750))
		s.must(os.WriteFile(filepath.Join(*pictures, "dashboard.svg"), []byte(svg), 0o600))
	}
}

func checkPicture(t *testing.T, svg string, panels []drawnPanel) {
	t.Helper()
	texts := map[string]bool{}
	for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[string(text)] = true
		}
	}
	for _, p := range panels {
		if !texts[p.Title] {
			t.Errorf("the picture lacks the panel %s", p.Title)
		}
	}
}

func TestAPictureOfTheDashboardShowsWhatTheQueriesGive(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(second int, value float64) drawnSample {
		return drawnSample{begin.Add(time.Duration(second) * time.Second), value}
	}
	panels := []drawnPanel{
		{Title: "In time & all", Type: "row", W: 24, H: 1},
		{Title: "Share", Type: "stat", Unit: "percentunit", Y: 1, W: 4, H: 4, Series: []drawnSeries{{samples: []drawnSample{at(0, 0.5)}}}},
		{Title: "Nothing", Type: "stat", X: 4, Y: 1, W: 4, H: 4},
		{Title: "Lines", Type: "timeseries", Unit: "s", Y: 5, W: 8, H: 8, Series: []drawnSeries{
			{name: "<a>", samples: []drawnSample{at(0, 0), at(5, math.NaN()), at(10, 4)}},
		}},
		{Title: "Map", Type: "heatmap", X: 8, Y: 5, W: 8, H: 8, Series: []drawnSeries{{name: "0", samples: []drawnSample{at(5, 1)}}}},
	}
	svg := drawDashboard("A storm", panels, begin, begin.Add(10*time.Second))
	checkPicture(t, svg, panels)
	for _, want := range []string{">50 %<", ">none<", "points=\"8,300 338,160\"", "&lt;a&gt;", "<circle"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s:\n%s", want, svg)
		}
	}
}
