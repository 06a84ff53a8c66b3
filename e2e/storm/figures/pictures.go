package figures

import (
	"cmp"
	"math"
)

// Pictures returns the SVG pictures of docs/performance.md, by name. Each run is a dot, and a line goes through the
// medians. The runs can be compared; it needs one without a simulated API server.
func Pictures(runs []Run) map[string]string {
	var sandboxed, simulated []Run
	least, most := math.Inf(1), 0.0
	for _, r := range runs {
		if r.Simulate != "" {
			simulated = append(simulated, r)
			continue
		}
		sandboxed = append(sandboxed, r)
		least, most = min(least, float64(r.Nodes)), max(most, float64(r.Nodes))
	}
	model := NewModel(runs)
	limit := func(nodes int) point {
		return point{float64(nodes), reserve * model.peak.at(nodes) / mebibyte}
	}
	perNode := func(prefix string) value {
		return func(r Run) float64 { return float64(calls(r.Kubernetes, prefix)) / float64(r.Nodes) }
	}
	lists, watches := perNode("list pods"), perNode("watch pods")
	charts := map[string]chart{
		"storm-times": {
			title: "Time until the last node is cordoned, and until it is empty", unit: "times the floor", logarithmic: true,
			series: []series{
				medians("cordoned", "s0", sandboxed, cordonRatio), medians("empty", "s1", sandboxed, emptyRatio),
				{name: "the floor", class: "faint dashed", line: []point{{least, 1}, {most, 1}}},
			},
		},
		"storm-memory": {
			title: "Memory of the handler at the peak", unit: "MiB resident",
			series: []series{
				medians("measured", "s0", sandboxed, peak), medians("simulated API server", "s1", simulated, peak),
				{name: "limit to set", class: "faint dashed", line: []point{limit(0), limit(model.measured.Interrupted)}},
			},
		},
		"storm-requests": {
			title: "Requests to the API server", unit: "a node, beside one eviction for each pod", logarithmic: true,
			series: []series{
				medians("all", "s0", sandboxed, func(r Run) float64 { return r.requestsPerNode() - float64(r.Pods) }),
				medians("patches of Nodes", "s1", sandboxed, perNode("patch nodes")),
				medians("lists, watches of pods", "s2", sandboxed, func(r Run) float64 { return lists(r) + watches(r) }),
			},
		},
	}
	pictures := map[string]string{}
	for name, c := range charts {
		pictures[name] = c.svg()
	}
	return pictures
}

// medians are a value of all runs, and its medians by the nodes.
func medians(name, class string, runs []Run, v value) series {
	s := series{name: name, class: class}
	for _, r := range runs {
		s.dots = append(s.dots, point{float64(r.Nodes), v(r)})
	}
	for _, g := range groups(runs, interrupted, cmp.Compare[int]) {
		_, median, _ := g.of(v)
		s.line = append(s.line, point{float64(g.key), median})
	}
	return s
}
