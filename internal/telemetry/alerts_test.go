package telemetry

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	deploy     = "../../deploy"
	rulesDir   = deploy + "/prometheus"
	runbookURL = "https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/alerts.md#"
)

type rule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func alertRules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(read(t, rulesDir+"/rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no rules")
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEveryAlertHasItsParagraphAndTestsForBothItsStates(t *testing.T) {
	runbook := string(read(t, "../../docs/alerts.md"))
	tests := string(read(t, rulesDir+"/rules_test.yaml"))
	var alerts []string
	for _, r := range alertRules(t) {
		alerts = append(alerts, r.Alert)
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s says nothing", r.Alert)
		}
		if got, want := r.Annotations["runbook_url"], runbookURL+strings.ToLower(r.Alert); got != want {
			t.Errorf("the runbook of %s is at %s, want %s", r.Alert, got, want)
		}
		if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("the severity of %s is %q", r.Alert, r.Labels["severity"])
		}
		_, paragraph, _ := strings.Cut(runbook, "\n## "+r.Alert+"\n")
		paragraph, _, _ = strings.Cut(paragraph, "\n## ")
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(paragraph)), r.Labels["severity"]+". ") || len(paragraph) < 200 {
			t.Errorf("the paragraph of %s has to begin with its severity and say what to do: %q", r.Alert, paragraph)
		}
		tested := regexp.QuoteMeta(`expr: ALERTS{alertname="`+r.Alert+`", alertstate="firing"}`) + `\s+eval_time: \w+\s+exp_samples:`
		for state, then := range map[string]string{"fires": `\n`, "does not fire": ` \[\]`} {
			if !regexp.MustCompile(tested + then).MatchString(tests) {
				t.Errorf("no test says when %s %s", r.Alert, state)
			}
		}
	}
	for _, heading := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(runbook, -1) {
		if !slices.Contains(alerts, heading[1]) {
			t.Errorf("%s has a paragraph and is no alert", heading[1])
		}
	}
}

// uses finds metrics with their matchers, and the matchers of each.
var (
	uses     = regexp.MustCompile(`\b((?:node_termination_handler|nth|actions|events_error)_\w+)(?:\{([^}]*)\})?`)
	matchers = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*\\?"([^"\\]*)`)
)

func TestEveryMetricInRulesAndDashboardIsOneOfOurs(t *testing.T) {
	labels := map[string][]label{}
	for _, s := range New().catalogue.sections {
		for _, m := range s.metrics {
			labels[m.name] = m.labels
			if m.kind == "histogram" {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					labels[m.name+suffix] = append([]label{{name: "le"}}, m.labels...)
				}
			}
		}
	}
	// What scrapes add.
	scraped := []string{"namespace", "job", "instance", "pod"}
	for _, path := range []string{rulesDir + "/rules.yaml", rulesDir + "/rules_test.yaml", deploy + "/grafana/dashboard.json"} {
		found := uses.FindAllStringSubmatch(string(read(t, path)), -1)
		if len(found) < 10 {
			t.Errorf("%s uses %d metrics", path, len(found))
		}
		for _, use := range found {
			known, ok := labels[use[1]]
			if !ok {
				t.Errorf("%s uses %s, which is no metric", path, use[1])
			}
			for _, m := range matchers.FindAllStringSubmatch(use[2], -1) {
				name, operator, value := m[1], m[2], m[3]
				at := slices.IndexFunc(known, func(l label) bool { return l.name == name })
				switch {
				case slices.Contains(scraped, name):
				case at < 0:
					t.Errorf("%s: %s has no label %s", path, use[1], name)
				case !strings.Contains(operator, "~") && len(known[at].values) > 0 && !slices.Contains(known[at].values, value):
					t.Errorf("%s: the label %s of %s is never %q", path, name, use[1], value)
				}
			}
		}
	}
}

func TestPrometheusAcceptsTheRulesAndTheyFireWhenTheyShould(t *testing.T) {
	promtool := prometheusTool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		command := exec.CommandContext(t.Context(), promtool, args...)
		command.Dir = filepath.FromSlash(rulesDir)
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// prometheusTool is the path of a program of Prometheus. Without it, and in the gate, which takes a minute less, the
// test is skipped, unless REQUIRE_PROMETHEUS is set, as make test-all does.
func prometheusTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch required := os.Getenv("REQUIRE_PROMETHEUS") != ""; {
	case os.Getenv("CI") != "" && !required:
		t.Skip("make test-all plays it")
	case err == nil:
		return path
	case required:
		t.Fatalf("%v: make prometheus fetches it", err)
	}
	t.Skipf("%v: make prometheus fetches it", err)
	return ""
}
