package helm

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// Who has an empty file gets what NTH's chart gives them, or the migration page names the value.
func TestADefaultOfNTHIsOursOrThePageNamesIt(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it renders the chart for each value of NTH; the gate renders all of them together")
	h, root := program(t)
	text, err := os.ReadFile(nthValues)
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	delete(defaults, "queueURL")
	delete(defaults, "enableSqsTerminationDraining")
	defaults["image"] = map[string]any{"tag": "", "pullPolicy": "IfNotPresent", "pullSecrets": []string{}}
	for _, mode := range []struct{ name, set, section string }{
		{"queue", queue, "## Values"},
		{"IMDS", "--set=enableSqsTerminationDraining=false", "## From IMDS mode"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			named := namedIn(t, root, mode.section)
			ours, err := render(t, h, Chart(root), Image, mode.set)
			if err != nil {
				t.Fatal(err)
			}
			for key, value := range defaults {
				file := filepath.Join(t.TempDir(), "values.yaml")
				one, err := yaml.Marshal(map[string]any{key: value})
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, one, 0o600); err != nil {
					t.Fatal(err)
				}
				theirs, err := render(t, h, Chart(root), Image, mode.set, "--values", file)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					continue
				}
				if !reflect.DeepEqual(ours.meaning(t), theirs.meaning(t)) && !named(key) {
					t.Errorf("%s: NTH's default, %v, is not ours, and %q of the page does not name it", key, value, mode.section)
				}
			}
		})
	}
}

// A meaning is what a release asks of Kubernetes and of the program.
type meaning struct {
	kinds   map[string]int
	changed map[string]string // options that do not have their defaults
	pods    []corev1.PodTemplateSpec
	replica *int32
}

func (r *rendered) meaning(t *testing.T) meaning {
	t.Helper()
	var environ []string
	for name, value := range r.environment() {
		environ = append(environ, name+"="+value)
	}
	o, err := options.Parse(nil, environ)
	if err != nil {
		t.Fatal(err)
	}
	m := meaning{kinds: r.kinds, changed: o.Changed, replica: r.deployment.Spec.Replicas}
	for _, template := range []corev1.PodTemplateSpec{r.deployment.Spec.Template, r.daemonSet.Spec.Template, r.windows.Spec.Template} {
		template = *template.DeepCopy()
		template.Annotations = nil // they have sums of the environment
		for k := range template.Spec.Containers {
			template.Spec.Containers[k].Env = nil
		}
		m.pods = append(m.pods, template)
	}
	return m
}

// namedIn reports whether a section of the migration page names a value: by its key, or by the beginning of its key.
func namedIn(t *testing.T, root, heading string) func(key string) bool {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "migrate-from-nth.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no %s", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	codes := strings.Split(section, "`")
	return func(key string) bool {
		return slices.ContainsFunc(codes, func(code string) bool {
			begin, isBegin := strings.CutSuffix(code, "…")
			return code == key || isBegin && strings.HasPrefix(key, begin)
		})
	}
}
