package webhook

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestATemplateErrorIsToldWithItsLine(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{{ .Kind }`, `template: webhook:1: unexpected "}" in operand`},
		{`{{ .Kind`, `template: webhook:1: unclosed action`},
		{`ok {{ .Kind }} ok {{ .Node`, `template: webhook:1: unclosed action`},
		{"{\n  \"a\": \"{{ .Kind | | }}\"\n}", `template: webhook:2: unexpected "|" in command`},
		{"é{{ nosuch .Kind }}", `template: webhook:1: function "nosuch" not defined`},
		{"{{ if .Kind }}\nyes\n", `template: webhook:3: unexpected EOF`},
		{"a\n{{ end }}", `template: webhook:2: unexpected {{end}}`},
		{`{{ env "HOME" }}`, `template: webhook:1: function "env" not defined`},
		{`{{ expandenv "$HOME" }}`, `template: webhook:1: function "expandenv" not defined`},
		{`{{ getHostByName "localhost" }}`, `template: webhook:1: function "getHostByName" not defined`},
		// Only an execution shows these.
		{"{{ .Kind }}\n  {{ .Nodename }}", `template: webhook:2:5: executing "webhook" at <.Nodename>: can't evaluate field Nodename in type webhook.Interruption`},
		{`{{ .StartTime.Foo }}`, `template: webhook:1:13: executing "webhook" at <.StartTime.Foo>: can't evaluate field Foo in type time.Time`},
		{`{{ fail "no" }}`, `template: webhook:1:3: executing "webhook" at <fail "no">: error calling fail: no`},
		{`{{ define "x" }}{{ .Foo }}{{ end }}{{ template "x" . }}`, `template: webhook:1:19: executing "x" at <.Foo>: can't evaluate field Foo in type webhook.Interruption`},
	}
	for _, test := range tests {
		_, err := ParseTemplate(test.text)
		if err == nil {
			t.Errorf("%s: no error", test.text)
			continue
		}
		if diff := cmp.Diff(test.want, err.Error()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.text, diff)
		}
	}
}

func mustParse(t *testing.T, text string) Template {
	t.Helper()
	parsed, err := ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func render(t *testing.T, text string, i Interruption) string {
	t.Helper()
	body, err := mustParse(t, text).Render(t.Context(), i, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestABodyThatIsNoJSONIsToldWithLineAndColumn(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"the default", DefaultTemplate, ""},
		{"a number alone", `{{ .Evicted }}`, ""},
		{
			"a line break in a string", "{\n  \"text\": \"*{{ .Kind }}*\nof {{ .NodeName }}\"\n}",
			`phase received: line 2, column 22: invalid character '\n' in string literal:   "text": "*SPOT_ITN*`,
		},
		{
			"quotation marks of a word processor", `{“text”: "{{ .Kind }}"}`,
			`phase received: line 1, column 2: invalid character 'â' looking for beginning of object key string: ` +
				`{“text”: "SPOT_ITN"}`,
		},
		{"no end", `{"text": "é{{ .Kind }}`, `phase received: line 1, column 19: unexpected end of JSON input: {"text": "éSPOT_ITN`},
		{"nothing", `{{ "" }}`, `phase received: line 1, column 1: unexpected end of JSON input: `},
		{
			"one phase alone", `{{ if eq (toString .Phase) "missed" }}{ {{ end }}{"kind": "{{ .Kind }}"}`,
			`phase missed: line 1, column 3: invalid character '{' looking for beginning of object key string: { {"kind": "SPOT_ITN"}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := mustParse(t, test.text).CheckJSON(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
