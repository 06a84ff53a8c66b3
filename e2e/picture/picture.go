// Package picture draws the SVG pictures of the docs. A picture has a background of its own, and other colours
// where the reader prefers dark ones, so that it can be read on any page.
package picture

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Picture is an SVG of boxes, lines, dots and texts, which [New] makes. Its unit is the pixel, and its origin the
// upper left corner. The classes of what it shows are those of its style: panel and edge for boxes, tick and dashed
// for lines, strong, faint, code and bad for texts, and s0 to s3 for lines, dots and texts in the colours of series.
type Picture struct {
	width, bottom int
	body          strings.Builder
}

const style = `<style>
.ground { fill: #ffffff; stroke: #d0d7de } .panel { fill: #f6f8fa; stroke: #d0d7de } .edge { fill: #2f6fd0 }
text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif }
text { fill: currentColor; color: #1f2328 }
.strong { font-weight: bold } .faint { color: #59636e; font-size: 11px } .bad { color: #c4212b; font-weight: bold }
.code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px }
polyline { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round }
circle { fill: currentColor; fill-opacity: 0.5 }
.middle { text-anchor: middle } .end { text-anchor: end }
.tick { color: #d0d7de; stroke-width: 1 } .dashed { stroke-dasharray: 6 4 }
.s0 { color: #0969da } .s1 { color: #bc4c00 } .s2 { color: #1a7f37 } .s3 { color: #8250df }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #3d444d } .panel { fill: #151b23; stroke: #3d444d } .edge { fill: #4493f8 }
text { color: #f0f6fc } .faint { color: #9198a1 } .bad { color: #ff7b72 } .tick { color: #3d444d }
.s0 { color: #4493f8 } .s1 { color: #f0883e } .s2 { color: #3fb950 } .s3 { color: #ab7df8 }
}
</style>
`

// New returns an empty picture of that width. Its height follows from what it shows.
func New(width int) *Picture { return &Picture{width: width} }

// Box draws a box with rounded corners.
func (p *Picture) Box(class string, x, y, width, height int) {
	p.bottom = max(p.bottom, y+height)
	const box = `<rect class=%q x="%d" y="%d" width="%d" height="%d" rx="4"/>` + "\n"
	fmt.Fprintf(&p.body, box, class, x, y, width, height)
}

// A Point is a place in a picture.
type Point struct{ X, Y float64 }

// Line draws a line through the points.
func (p *Picture) Line(class string, points ...Point) {
	places := make([]string, len(points))
	for k, at := range points {
		p.bottom = max(p.bottom, int(at.Y))
		places[k] = pixels(at.X) + "," + pixels(at.Y)
	}
	fmt.Fprintf(&p.body, "<polyline class=%q points=%q/>\n", class, strings.Join(places, " "))
}

// Dot draws a dot around a point.
func (p *Picture) Dot(class string, at Point) {
	const radius = 4
	p.bottom = max(p.bottom, int(at.Y)+radius)
	fmt.Fprintf(&p.body, "<circle class=%q cx=%q cy=%q r=\"%d\"/>\n", class, pixels(at.X), pixels(at.Y), radius)
}

// Label writes text in one line, which begins at the point. With the class middle or end, that part of it is there.
func (p *Picture) Label(class string, at Point, text string) {
	p.bottom = max(p.bottom, int(at.Y))
	fmt.Fprintf(&p.body, "<text class=%q x=%q y=%q>%s</text>\n", class, pixels(at.X), pixels(at.Y), escape(text))
}

// LineHeight is the distance of lines of text.
const LineHeight = 18

// Lines returns how many lines of at most columns characters the text has.
func Lines(columns int, text string) int { return len(wrap(text, columns)) }

// Text writes text in lines of at most columns characters, the first of them at y, and
// returns the y of the next line.
func (p *Picture) Text(class string, x, y, columns int, text string) int {
	for _, line := range wrap(text, columns) {
		p.Label(class, Point{float64(x), float64(y)}, line)
		y += LineHeight
	}
	return y
}

// SVG returns the picture. Title and description are for those who cannot see it.
func (p *Picture) SVG(title, description string) string {
	const margin = 16
	height := p.bottom + margin
	const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img">
<title>%s</title>
<desc>%s</desc>
%s<rect class="ground" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>
%s</svg>
`
	return fmt.Sprintf(svg,
		p.width, height, escape(title), escape(description), style, p.width-1, height-1, p.body.String())
}

func wrap(text string, columns int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= columns {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder returns no error
	return b.String()
}

// pixels is a length to a tenth of a pixel.
func pixels(length float64) string {
	return strconv.FormatFloat(math.Round(length*10)/10, 'f', -1, 64)
}
