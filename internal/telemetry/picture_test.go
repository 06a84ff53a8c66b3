package telemetry

import (
	"encoding/json"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/e2e/picture"
)

// The picture has the rows, the panels and what each is about, as the dashboard has them.
func TestThePictureOfTheDocHasThePanelsOfTheDashboard(t *testing.T) {
	type panel struct {
		Type, Title, Description string
		GridPos                  struct{ X, Y, W int }
	}
	var dashboard struct {
		Title  string
		Panels []panel
	}
	if err := json.Unmarshal(read(t, deploy+"/grafana/dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	const (
		unit   = 40 // width of a column of Grafana's grid
		left   = 20
		gap    = 6
		letter = 6.6 // width of a character, roughly
	)
	columns := func(p panel) int { return int(float64(p.GridPos.W*unit-gap-16) / letter) }
	p := picture.New(2*left + 24*unit)
	y := p.Text("strong", left, 32, 80, dashboard.Title)
	for k := 0; k < len(dashboard.Panels); {
		first := dashboard.Panels[k]
		if first.Type == "row" {
			y = p.Text("strong", left, y+16, 80, first.Title) - 8
			k++
			continue
		}
		next := k // the first panel that is not beside this one
		lines := 0
		for ; next < len(dashboard.Panels) && dashboard.Panels[next].GridPos.Y == first.GridPos.Y; next++ {
			q := dashboard.Panels[next]
			lines = max(lines, picture.Lines(columns(q), q.Title)+picture.Lines(columns(q), q.Description))
		}
		height := lines*picture.LineHeight + 14
		for ; k < next; k++ {
			q := dashboard.Panels[k]
			x := left + q.GridPos.X*unit
			p.Box("panel", x, y, q.GridPos.W*unit-gap, height)
			below := p.Text("text", x+8, y+20, columns(q), q.Title)
			p.Text("faint", x+8, below, columns(q), q.Description)
		}
		y += height + gap
	}
	golden.Compare(t, "../../docs/dashboard.svg", p.SVG("The dashboard of "+dashboard.Title,
		"The rows of the dashboard and their panels, each with what it shows, drawn from deploy/grafana/dashboard.json. It has no data."))
}
