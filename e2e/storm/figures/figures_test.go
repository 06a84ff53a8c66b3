package figures

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
)

const docs = "../../../docs/"

// recorded are the runs of the docs that can be compared.
func recorded(t *testing.T) []Run {
	t.Helper()
	runs, err := Read(docs + "performance/storms.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return Plain(runs)
}

// chartResources are the resources that the chart sets.
func chartResources(t *testing.T) Resources {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/helm/node-termination-handler/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct{ Resources corev1.ResourceRequirements }
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	r := values.Resources
	if !r.Limits.Cpu().IsZero() {
		t.Errorf("the chart limits the CPU to %s", r.Limits.Cpu())
	}
	return Resources{r.Requests.Memory().Value(), r.Limits.Memory().Value(), int(r.Requests.Cpu().MilliValue())}
}

func TestTheDocHasTheRuns(t *testing.T) {
	runs := recorded(t)
	golden.ComparePage(t, docs+"performance.md", map[string]string{"storms": Measured(runs), "resources": Sizing(runs, chartResources(t))})
	for name, svg := range Pictures(runs) {
		golden.Compare(t, docs+"pictures/"+name+".svg", svg)
	}
}

// Who changes the chart's defaults, or records larger runs, may have to promise less.
func TestTheDefaultsOfTheChartFitTheClusterThatTheDocSays(t *testing.T) {
	if !slices.Contains(clusters, Defaults) {
		t.Errorf("the doc has no row for %+v", Defaults)
	}
	if has, needs := chartResources(t), NewModel(recorded(t)).Resources(Defaults); !has.fit(needs) {
		t.Errorf("the chart's resources %+v are less than %+v, what %+v needs", has, needs, Defaults)
	}
}

// A line is no bound: a run can be above it.
func TestEveryRunKeepsAwayFromTheLimitOfItsCluster(t *testing.T) {
	runs := recorded(t)
	m := NewModel(runs)
	for _, r := range runs {
		limit := m.Resources(Cluster{r.Nodes, r.Nodes + r.Idle}).MemoryLimit
		// Go's memory limit is 80 % of the container's: above it garbage is collected more often.
		if float64(r.Memory.Peak) > 0.8*float64(limit) {
			t.Errorf("%s, %s: %d × %d had %s of %s", r.Day, r.Commit, r.Nodes, r.Pods, memory(r.Memory.Peak), memory(limit))
		}
	}
}

func TestAFileKeepsRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	want := []Run{storm(10, 5, 60), storm(30, 5, 70)}
	want[1].Options, want[1].Args = map[string]string{"stop": "1s"}, []string{"--workers=1"}
	for _, r := range want {
		if err := Append(file, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(file)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if err := os.WriteFile(file, []byte(`{"day":"2026-11-23"}`+"\n"+`{"dya":"2026-11-23"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(file); err == nil || !strings.Contains(err.Error(), "run 2") {
		t.Errorf("an unknown field: %v, %v", got, err)
	}
}

func TestATableHasMediansAndRangesOfEachSize(t *testing.T) {
	others := slices.Repeat([]Run{storm(100, 3, 999)}, 6)
	others[0].Kind = "rebalance"
	others[1].Options = map[string]string{"stop": "1s"}
	others[2].Args = []string{"--workers=1"}
	others[3].Empty.FloorBefore *= 3
	others[4].Empty.FloorAfter *= 3
	others[5].Idle = 100
	simulated := storm(50, 3, 75)
	simulated.Simulate = "xl"
	runs := append(others, simulated, storm(2000, 3, 218), storm(100, 3, 80), storm(100, 3, 90), storm(100, 3, 82.04), storm(10, 5, 60))
	var rows []string
	for line := range strings.Lines(Measured(Plain(runs))) {
		if strings.Contains(line, "MiB") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	want := []string{
		"| 10 × 5 | 11 | 2 | 1 | 0.50 s | 60 MiB |",
		"| 100 × 3 | 9 | 2 | 1 | 5 s | 82.0 MiB (80 to 90) |",
		"| 100 × 3 of 200 nodes | 9 | 2 | 1 | 5 s | 999 MiB |",
		"| 2,000 × 3 | 9 | 2 | 1 | 100 s | 218 MiB |",
		"| 50 × 3, simulated: xl | 9 | 2 | 1 | 2.50 s | 75 MiB |",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResourcesGrowWithTheNodes(t *testing.T) {
	beside := storm(100, 3, 80)
	beside.Idle, beside.Memory.Anonymous, beside.Memory.Peak = 900, 20*mebibyte, 89*mebibyte
	small, large := storm(100, 3, 80), storm(1000, 3, 170) // 70 MiB and 0.1 MiB a node, 50 ms a node
	small.Memory.Anonymous, large.Memory.Anonymous, large.Memory.Rest = 11*mebibyte, 20*mebibyte, 28*mebibyte
	m := NewModel([]Run{small, storm(100, 3, 40), large, beside}) // of a size the largest counts
	for c, want := range map[Cluster]Resources{
		{100, 100}:   {64 * mebibyte, 128 * mebibyte, 100},   // 31.5 and 120 MiB, 56 thousandths
		{100, 1000}:  {64 * mebibyte, 192 * mebibyte, 100},   // 9 MiB more, half as much again: 133.5
		{1000, 1000}: {64 * mebibyte, 256 * mebibyte, 600},   // 45 and 255, 556 thousandths
		{5000, 5000}: {128 * mebibyte, 896 * mebibyte, 2800}, // 105 and 855, 2778 thousandths
	} {
		if got := m.Resources(c); got != want {
			t.Errorf("%+v: %+v, want %+v", c, got, want)
		}
	}
	for _, less := range []Resources{{0, 2, 3}, {1, 1, 3}, {1, 2, 2}} {
		if needs := (Resources{1, 2, 3}); less.fit(needs) || !needs.fit(less) {
			t.Errorf("%+v and %+v", less, needs)
		}
	}
}

func TestALineIsFitted(t *testing.T) {
	for name, c := range map[string]struct {
		points []point
		want   line
	}{
		"through two":            {[]point{{1, 3}, {3, 7}}, line{1, 2}},
		"between three":          {[]point{{0, 0}, {1, 3}, {2, 3}}, line{0.5, 1.5}},
		"does not fall":          {[]point{{1, 3}, {2, 2}}, line{3, 0}},
		"through one":            {[]point{{1, 3}}, line{3, 0}},
		"through two at one x":   {[]point{{1, 3}, {1, 4}}, line{4, 0}},
		"through nothing at all": {nil, line{}},
	} {
		if diff := cmp.Diff(c.want, fit(c.points), cmp.AllowUnexported(line{}), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFiguresAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.064: "0.06", 2: "2", 2.345: "2.35", 12.34: "12.3", 218.4: "218", 1234567.8: "1,234,568", 2005: "2,005"} {
		if got := figure(v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
}

func TestScalesHaveRoundTicks(t *testing.T) {
	for high, want := range map[float64][]float64{
		2.3:  {0, 0.5, 1, 1.5, 2, 2.5},
		6:    {0, 1, 2, 3, 4, 5, 6},
		0.07: {0, 0.02, 0.04, 0.06, 0.08},
		348:  {0, 100, 200, 300, 400},
		1e4:  {0, 2000, 4000, 6000, 8000, 1e4},
	} {
		s := linear(high, 300, 100, true)
		if diff := cmp.Diff(want, s.ticks, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("up to %g (-want +got):\n%s", high, diff)
		}
		if bottom, top := s.place(0), s.place(s.ticks[len(s.ticks)-1]); bottom != 300 || math.Abs(top-100) > 1e-9 {
			t.Errorf("up to %g: from %g to %g", high, bottom, top)
		}
	}
	s := logarithmic(10, 1000, 100, 300)
	if diff := cmp.Diff([]float64{10, 20, 50, 100, 200, 500, 1000}, s.ticks); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if at := s.place(100); math.Abs(at-200) > 1e-9 {
		t.Errorf("100 is at %g", at)
	}
	if at := logarithmic(7, 7, 100, 300).place(7); at != 200 {
		t.Errorf("all there is, is at %g", at)
	}
}

// Names at the end of lines are read, also where the lines end together. Each run has its dot.
func TestAPictureHasAllRunsAndNamesApart(t *testing.T) {
	simulated := storm(5000, 3, 400)
	simulated.Simulate = "xl"
	runs := []Run{storm(10, 5, 60), storm(10, 5, 61), storm(2000, 3, 218), simulated}
	for name, want := range map[string]struct{ dots, names int }{
		"storm-times": {6, 3}, "storm-memory": {4, 3}, "storm-requests": {9, 3},
	} {
		svg := Pictures(runs)[name]
		dots, names := 0, []float64{}
		for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s is no XML: %v", name, err)
			}
			e, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			var at struct {
				X float64 `xml:"x,attr"`
				Y float64 `xml:"y,attr"`
			}
			switch e.Name.Local {
			case "circle":
				dots++
			case "text":
				if err := decoder.DecodeElement(&at, &e); err != nil {
					t.Fatal(err)
				}
				if at.X > plotRight {
					names = append(names, at.Y)
				}
			}
		}
		if dots != want.dots || len(names) != want.names {
			t.Errorf("%s has %d dots and the names at %g, want %+v", name, dots, names, want)
		}
		for k := range names {
			if k > 0 && names[k]-names[k-1] < nameHeight {
				t.Errorf("%s: names are on one another, at %g", name, names)
			}
		}
	}
	if svg := Pictures(runs[:3])["storm-memory"]; strings.Contains(svg, "simulated") {
		t.Error("no run was simulated, but the picture says so")
	}
}

// storm is a plain run of a size, with that many MiB at its peak.
func storm(nodes, pods int, peak float64) Run {
	took := func(floor, ratio float64) Times {
		return Times{P50: floor, P95: floor, P99: floor, Max: ratio * floor, FloorBefore: 0.9 * floor, FloorAfter: 1.1 * floor}
	}
	n := float64(nodes)
	return Run{
		Day: "2026-11-23", Commit: "8ed45c2040cf", Go: "go1.26.8 for linux/amd64", Cores: 2,
		Nodes: nodes, Pods: pods, Kind: "spot",
		Cordoned: took(n/100, 1.5), Evicted: took(n/100, 1.5), Empty: took(n/10, 1.25),
		Memory: Memory{Rest: 21 * mebibyte, Anonymous: 11 * mebibyte, Peak: int64(peak * mebibyte)}, CPU: n / 20,
		Messages: nodes, AWS: map[string]int{"sqs ReceiveMessage": nodes / 10, "sqs DeleteMessageBatch": nodes / 10, "ec2 DescribeInstances": 1},
		Kubernetes: map[string]int{
			"create pods/eviction": nodes * pods, "patch nodes": 2 * nodes, "patch nodes/status": 2 * nodes,
			"list pods": nodes, "watch pods": nodes, "create events": 8 * nodes, "update leases": 40,
		},
	}
}
