package policyfile

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

func TestSchemaIsWhatTheFieldsSay(t *testing.T) {
	golden.Compare(t, "../../docs/policy.schema.json", string(Schema()))
}

func TestTheDocHasTheKeysOfTheSchema(t *testing.T) {
	golden.ComparePage(t, "../../docs/policy.md", map[string]string{
		"nodes": keyTable(nodeRule(new(decision.NodeRule))), "pods": keyTable(podRule(new(decision.PodRule))),
	})
}

var inMarkdown = strings.NewReplacer("|", `\|`, "*", `\*`)

// keyTable is a table in Markdown of the keys of a rule, in the order of the fields.
func keyTable(rule value) string {
	var b strings.Builder
	b.WriteString("| key | what it says |\n|---|---|\n")
	for _, f := range rule.fields {
		words := f.words
		if f.required {
			words += " Required."
		}
		b.WriteString("| `" + f.key + "` | " + inMarkdown.Replace(words) + " |\n")
	}
	return b.String()
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("policy.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, file []byte) error {
	t.Helper()
	text, err := yaml.YAMLToJSON(file)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(value)
}

func TestAGoodFileIsGoodForTheSchema(t *testing.T) {
	text, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := compiled(t)
	for _, file := range []string{string(text), "version: 1", "version: 1\nnodes:\npods:\ntests:\nwindows:\n"} {
		if _, err := Parse([]byte(file)); err != nil {
			t.Errorf("the parser refuses it: %v", err)
		}
		if err := validate(t, s, []byte(file)); err != nil {
			t.Errorf("the schema refuses it: %v", err)
		}
	}
}

// What a value looks like, the schema says as the parser does. Only the parser knows more than one
// value.
func TestTheSchemaRefusesWhatTheParserRefuses(t *testing.T) {
	s := compiled(t)
	rule := func(more string) string { return "nodes: [{name: a, kinds: health, do: drain, " + more + "}]" }
	for _, file := range []string{
		"version: 2", "nodes: []", "version: 1\nrules: []", "version: 1\nnodes: {}",
		"nodes: [{do: drain}]", "nodes: [{name: a}]", "nodes: [{name: A, do: drain}]", "nodes: [{name: a, do: drian}]",
		"nodes: [{name: " + strings.Repeat("a", 41) + ", do: drain}]",
		rule("kind: spot"), rule("kinds: []"), rule("codes: []"), rule("nodes: ''"), rule("nodes: {a: b}"), rule("at: 30m"), rule("at: start-30"),
		rule("force: sometimes"), rule("grace: 60"), rule("grace-at-most: 60"), rule("budgets: 101%"), rule("budgets: 50"), rule("grace: 5 minutes"), rule("limit: 2"), rule("by: somebody"), rule("limit: {per: a}"),
		rule("limit: {nodes: 0}"), rule("limit: {nodes: 101%}"), rule("limit: {nodes: 1, wait: 2h}"),
		"windows: {n: {from: '22:00'}}", "windows: {n: {from: '24:00', to: '24:00'}}", "windows: {Night: {from: '22:00', to: '24:00'}}",
		"windows: {n: {from: '2:00', to: '24:00'}}", "windows: {n: {from: '22:00', to: '24:00', days: [monday]}}",
		"pods: [{name: a}]", "pods: [{name: a, leave: late}]", "pods: [{name: a, leave: after, order: 0}]", "pods: [{name: a, leave: after, daemonsets: 'yes'}]",
		"tests: [{name: a, kind: spot}]", "tests: [{name: a, kind: launch, expect: {do: drain}}]",
		"tests: [{name: a, kind: spot, now: soon, expect: {do: drain}}]", "tests: [{name: a, pod: {daemonset: 1}, expect: {leave: last}}]",
		"tests: [{name: a, pod: {labels: {a: 1}}, expect: {leave: last}}]", "tests: [{name: a, pod: {}, expect: {leave: late}}]",
	} {
		if !strings.Contains(file, "version") && file != "nodes: []" {
			file = "version: 1\n" + file
		}
		if _, err := Parse([]byte(file)); err == nil {
			t.Errorf("the parser takes %s", file)
		}
		if err := validate(t, s, []byte(file)); err == nil {
			t.Errorf("the schema takes %s", file)
		}
	}
}
