package golden

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// A Picture is an SVG of boxes and texts for the docs. It has a background of its own, and
// other colours where the reader prefers dark ones, so that it can be read on any page. The
// classes of what it shows are those of its style: panel, edge, strong, text, faint, code, bad.
type Picture struct {
	width, bottom int
	body          strings.Builder
}

const pictureStyle = `<style>
.ground { fill: #ffffff; stroke: #d0d7de } .panel { fill: #f6f8fa; stroke: #d0d7de } .edge { fill: #2f6fd0 }
text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #1f2328 }
.strong { font-weight: bold } .faint { fill: #59636e; font-size: 11px } .bad { fill: #c4212b; font-weight: bold }
.code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #3d444d } .panel { fill: #151b23; stroke: #3d444d } .edge { fill: #4493f8 }
text { fill: #f0f6fc } .faint { fill: #9198a1 } .bad { fill: #ff7b72 }
}
</style>
`

// NewPicture returns an empty picture of that width. Its height follows from what it shows.
func NewPicture(width int) *Picture { return &Picture{width: width} }

// Box draws a box with rounded corners.
func (p *Picture) Box(class string, x, y, width, height int) {
	p.bottom = max(p.bottom, y+height)
	const box = `<rect class=%q x="%d" y="%d" width="%d" height="%d" rx="4"/>` + "\n"
	fmt.Fprintf(&p.body, box, class, x, y, width, height)
}

// LineHeight is the distance of lines of text.
const LineHeight = 18

// Lines returns how many lines of at most columns characters the text has.
func Lines(columns int, text string) int { return len(wrap(text, columns)) }

// Text writes text in lines of at most columns characters, the first of them at y, and
// returns the y of the next line.
func (p *Picture) Text(class string, x, y, columns int, text string) int {
	for _, line := range wrap(text, columns) {
		fmt.Fprintf(&p.body, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, escape(line))
		p.bottom = max(p.bottom, y)
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
		p.width, height, escape(title), escape(description), pictureStyle, p.width-1, height-1, p.body.String())
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
