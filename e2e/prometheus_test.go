package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// A drain that cannot end in time, beside two that can, as the person on call
// sees them: by the alerts, and on the dashboard.
func TestAMissedDeadlineFiresItsAlertAndEveryPanelOfTheDashboardHasData(t *testing.T) {
	tier.Full(t, "Prometheus and a minute; internal/telemetry reads rules and panels")
	program := prometheusProgram(t)
	s := newScenario(t)
	nodes := s.nodes(5)
	s.deployment("web", 4)
	s.pod("slow", nodes[1].name, stopping(time.Minute, 25*time.Second)) // past the first heartbeat, after 20 s
	s.pod("stuck", nodes[0].name, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} })
	s.hook(awssim.Terminating, time.Minute, nodes[1])
	h := s.leader("--heartbeat-interval=30", "--heartbeat-until=90")
	p := s.prometheus(program, h.metrics)
	begin := time.Now()
	s.eventually("the controller is scraped", func() bool { return p.value(`node_termination_handler_leading`) == 1 })

	recommended := s.send(s.body("rebalance-recommendation", nodes[3].instance))
	s.awaitDeleted(soon, recommended)
	s.eventually("its drain is scraped", func() bool { return p.value(`sum(node_termination_handler_drains_total{outcome="in-time"})`) == 1 })
	if alerts := p.firing(); len(alerts) > 0 {
		t.Errorf("after a drain that has ended well fire %v", alerts)
	}
	followed := s.send(s.body("spot-interruption", nodes[3].instance))
	_, terminated := s.transition(nodes[1], awssim.Terminating)
	warned := s.send(s.body("spot-interruption", nodes[2].instance))
	late := s.send(s.bodyAt(time.Now().Add(-108*time.Second), "spot-interruption", nodes[0].instance))
	s.send("nothing that can be read")

	const alert = "NodeTerminationHandler"
	for _, name := range []string{"DeadlineMissed", "NoticeLate", "Undecodable"} {
		s.eventually("the alert "+name+" fires", func() bool { return slices.Contains(p.firing(), alert+name) })
	}
	s.awaitDeleted(soon, terminated, warned, late, followed)
	for query, want := range map[string]float64{
		`sum(node_termination_handler_drains_total{outcome="missed"})`:                                                  1,
		`sum(node_termination_handler_drains_total{outcome="missed",kind="SpotInterruption"})`:                          1,
		`sum(node_termination_handler_drains_total{outcome="in-time"})`:                                                 4,
		`sum(node_termination_handler_pods_total{how="missed"})`:                                                        1,
		`node_termination_handler_deadline_slack_seconds_bucket{kind="SpotInterruption",le=~"0([.]0)?"}`:                1,
		`node_termination_handler_lifecycle_calls_total{call="complete",result="ok"}`:                                   1,
		`node_termination_handler_lifecycle_hook_slack_seconds_count`:                                                   1,
		`node_termination_handler_messages_settled_total{outcome="deleted",why="done"}`:                                 5,
		`node_termination_handler_aws_requests_total{service="autoscaling",action="CompleteLifecycleAction",code="ok"}`: 1,
		`actions_total{node_action="cordon-and-drain",node_status="error"}`:                                             1,
		`sum(node_termination_handler_kubernetes_requests_total{resource="nodes/status",code="200"}) > bool 3`:          1,
		`nth_tagged_instances`: 5,
		`nth_tagged_nodes`:     5,
		`sum(node_termination_handler_kubernetes_requests_total{resource="other"}) or vector(0)`: 0,
	} {
		s.eventually(fmt.Sprintf("%s is %v", query, want), func() bool { return p.value(query) == want })
	}
	if wrong := slices.DeleteFunc(p.firing(), func(name string) bool {
		return slices.Contains([]string{"DeadlineMissed", "NoticeLate", "Undecodable"}, strings.TrimPrefix(name, alert))
	}); len(wrong) > 0 {
		t.Errorf("%v fire too", wrong)
	}
	s.fillDashboard(p, begin)
}

// fillDashboard runs every query of the dashboard, and draws what they give.
func (s *scenario) fillDashboard(p *prometheusServer, begin time.Time) {
	s.Helper()
	var dashboard struct {
		Panels []struct {
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			FieldConfig struct{ Defaults struct{ Unit string } }
			Targets     []struct {
				Expr, LegendFormat string
				Instant            bool
			}
		}
		Templating struct {
			List []struct {
				Name, Type string
				Definition string
			}
		}
		Annotations struct{ List []struct{ Expr string } }
	}
	text, err := os.ReadFile(filepath.Join("..", "deploy", "grafana", "dashboard.json"))
	s.must(err)
	s.must(json.Unmarshal(text, &dashboard))
	// What Grafana puts in their places, with All chosen.
	variables := strings.NewReplacer("$namespace", ".*", "$job", ".*", "$__rate_interval", "5m", "$__range", "10m")
	queries := 0
	run := func(title, expr string, instant bool) []series {
		queries++
		expr = variables.Replace(expr)
		if strings.Contains(expr, "$") {
			s.Errorf("%s: a variable is left in %s", title, expr)
		}
		data := p.query(expr, instant, begin)
		if !slices.ContainsFunc(data, series.hasNumber) {
			s.Errorf("%s: no data for %s", title, expr)
		}
		return data
	}
	var drawn []drawnPanel
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			s.Errorf("%s: no query", panel.Title)
		}
		at := panel.GridPos
		d := drawnPanel{
			Title: panel.Title, Type: panel.Type, Unit: panel.FieldConfig.Defaults.Unit, X: at.X, Y: at.Y, W: at.W, H: at.H,
		}
		for _, target := range panel.Targets {
			for _, data := range run(panel.Title, target.Expr, target.Instant) {
				d.Series = append(d.Series, data.drawn(target.LegendFormat))
			}
		}
		drawn = append(drawn, d)
	}
	for _, a := range dashboard.Annotations.List {
		run("annotations", a.Expr, false)
	}
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		ask := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		if ask == nil {
			s.Fatalf("variable %s asks for %s", v.Name, v.Definition)
		}
		var values []string
		p.get("/api/v1/label/"+ask[2]+"/values", url.Values{"match[]": {variables.Replace(ask[1])}}, &values)
		if len(values) == 0 {
			s.Errorf("variable %s has no values", v.Name)
		}
	}
	if queries < 55 {
		s.Errorf("the dashboard has %d queries", queries)
	}
	s.savePicture(drawn, begin)
}

// prometheusProgram is the path of Prometheus. Without it the test is skipped,
// unless REQUIRE_PROMETHEUS is set, as make test-all does.
func prometheusProgram(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	switch {
	case err == nil:
		return path
	case os.Getenv("REQUIRE_PROMETHEUS") != "":
		t.Fatalf("%v: make prometheus fetches it", err)
	}
	t.Skipf("%v: make prometheus fetches it", err)
	return ""
}

type prometheusServer struct {
	s    *scenario
	base string
}

// prometheus starts a Prometheus that scrapes a port and evaluates our alert
// rules, both every second. It is stopped at the end of the test.
func (s *scenario) prometheus(program string, scrape int) *prometheusServer {
	s.Helper()
	rules, err := filepath.Abs(filepath.Join("..", "deploy", "prometheus", "rules.yaml"))
	s.must(err)
	dir := s.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	s.must(os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: %s
    static_configs: [{targets: ["127.0.0.1:%d"], labels: {namespace: %s, pod: %s-0}}]
`, rules, release.Name, scrape, s.name, release.Name), 0o600))
	port := freePort(s)
	log := &release.Log{}
	command := exec.CommandContext(s.ctx, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port), "--log.level=warn")
	command.Stdout, command.Stderr = log, log
	s.must(command.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = command.Wait() // it is killed
	}()
	s.Cleanup(func() {
		_ = command.Process.Kill() // it may have exited
		<-exited
		if s.Failed() {
			s.Logf("the log of Prometheus:\n%s", log.String())
		}
	})
	p := &prometheusServer{s, fmt.Sprintf("http://127.0.0.1:%d", port)}
	s.eventually("Prometheus is ready", func() bool {
		response, err := http.Get(p.base + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// get asks the HTTP API, and fails the test if that fails.
func (p *prometheusServer) get(path string, values url.Values, data any) {
	p.s.Helper()
	request, err := http.NewRequestWithContext(p.s.ctx, http.MethodGet, p.base+path+"?"+values.Encode(), nil)
	p.s.must(err)
	response, err := http.DefaultClient.Do(request)
	p.s.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	p.s.must(err)
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.s.Fatalf("%s %s: %v %s\n%s", path, values, err, answer.Error, body)
	}
}

// firing are the names of the alerts that fire.
func (p *prometheusServer) firing() []string {
	p.s.Helper()
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	p.get("/api/v1/alerts", nil, &data)
	var names []string
	for _, a := range data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	return names
}

// value is that of the one series that an expression gives; -1 if there is none.
func (p *prometheusServer) value(expr string) float64 {
	p.s.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	p.get("/api/v1/query", url.Values{"query": {expr}}, &data)
	switch len(data.Result) {
	case 0:
		return -1
	case 1:
		value, err := strconv.ParseFloat(fmt.Sprint(data.Result[0].Value[1]), 64)
		p.s.must(err)
		return value
	}
	p.s.Fatalf("%s gives %d series", expr, len(data.Result))
	return 0
}

// A series is what an expression gives for one set of labels.
type series struct {
	Metric map[string]string
	Value  [2]any
	Values [][2]any
}

// samples are its values in their order.
func (s series) samples() (all []drawnSample) {
	for _, sample := range append(s.Values, s.Value) {
		at, isTime := sample[0].(float64)
		text, isText := sample[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if isTime && isText && err == nil {
			all = append(all, drawnSample{time.UnixMilli(int64(at * 1000)), value})
		}
	}
	return all
}

// hasNumber reports whether there is a value that is a number, at any time.
func (s series) hasNumber() bool {
	return slices.ContainsFunc(s.samples(), func(d drawnSample) bool { return !math.IsNaN(d.value) && !math.IsInf(d.value, 0) })
}

// drawn is the series with the name that its legend says.
func (s series) drawn(legend string) drawnSeries {
	for label, value := range s.Metric {
		legend = strings.ReplaceAll(legend, "{{"+label+"}}", value)
	}
	return drawnSeries{name: strings.TrimPrefix(legend, "__auto"), samples: s.samples()}
}

// query is what an expression gives, now or at all times since begin.
func (p *prometheusServer) query(expr string, instant bool, begin time.Time) []series {
	p.s.Helper()
	path, values := "/api/v1/query", url.Values{"query": {expr}}
	if !instant {
		path = "/api/v1/query_range"
		values.Set("start", fmt.Sprint(begin.Unix()))
		values.Set("end", fmt.Sprint(time.Now().Unix()+1)) // what was scraped in this second counts
		values.Set("step", "1")
	}
	var data struct{ Result []series }
	p.get(path, values, &data)
	return data.Result
}
