package telemetry

import (
	"encoding/json"
	"strings"
	"testing"
)

// What Grafana does with the queries is seen in e2e; this is about the rest.
func TestEveryPanelOfTheDashboardSaysWhatItShowsAndHasItsPlace(t *testing.T) {
	type source struct{ UID string }
	var dashboard struct {
		UID, Title string
		Panels     []struct {
			ID                       int
			Type, Title, Description string
			Datasource               source
			GridPos                  struct{ X, Y, W, H int }
			FieldConfig              struct{ Defaults struct{ Unit string } }
			Targets                  []struct {
				Datasource  source
				Expr, RefID string
			}
		}
	}
	if err := json.Unmarshal(read(t, deploy+"/grafana/dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" {
		t.Error("the dashboard has no name")
	}
	const columns, chosen, selected = 24, "${datasource}", `{namespace=~"$namespace", job=~"$job"`
	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is another panel's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= columns {
					t.Fatalf("%s lies on %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || titles[p.Title] || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != chosen {
			t.Errorf("panel %d, %q, lacks a title of its own, a description, a unit or its data source", p.ID, p.Title)
		}
		titles[p.Title] = true
		for _, target := range p.Targets {
			if target.Datasource.UID != chosen || !strings.Contains(target.Expr, selected) {
				t.Errorf("%s: %s does not look at what is chosen", p.Title, target.Expr)
			}
		}
	}
}
