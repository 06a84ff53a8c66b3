package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var noon = time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)

const (
	testInstance = "i-0123456789abcdef0"
	// nthTemplate is the default of AWS Node Termination Handler, as it stands in
	// the values of its users.
	nthTemplate = `{"text":"[NTH][Instance Interruption] EventID: {{ .EventID }} - Kind: {{ .Kind }} - Instance: {{ .InstanceID }} - Node: {{ .NodeName }} - Description: {{ .Description }} - Start Time: {{ .StartTime }}"}`
)

// spot is the decision to drain a node because of a spot warning.
func spot() Decision {
	return Decision{
		Notice: notice.Notice{
			Kind: notice.SpotInterruption, ID: "event-1", Account: "123456789012", Region: "us-east-1", Time: noon,
			Deadline: noon.Add(2 * time.Minute), Instances: []string{testInstance}, Detail: "terminate",
		},
		Instance: testInstance, Node: cluster.Ref{Name: "node-1", UID: "uid-1", Instance: testInstance},
		Action: "drain", Why: "spot-interruption", Deadline: noon.Add(2 * time.Minute),
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
	body, err := mustParse(t, text).render(t.Context(), i, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestTheDefaultTemplateSaysWhatThatOfNTHSays(t *testing.T) {
	got := render(t, DefaultTemplate, interruptionOf(spot(), machine{}))
	want := `{"text":"[NTH][Instance Interruption] EventID: event-1 - Kind: SPOT_ITN - Instance: i-0123456789abcdef0 - Node: node-1 - ` +
		`Description: Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T12:02:00Z - Start Time: 2026-11-20 12:00:00 +0000 UTC"}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(render(t, nthTemplate, interruptionOf(spot(), machine{})), got); diff != "" {
		t.Errorf("body (-by NTH's template +by ours):\n%s", diff)
	}
}

func TestTheDefaultBodyIsJSONWhateverTheNoticeHolds(t *testing.T) {
	parsed := mustParse(t, DefaultTemplate)
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return rapid.String().Draw(t, name) + rapid.SampledFrom([]string{"", "\n", `"`, `\`, "\x00", "\xff", "</script>"}).Draw(t, name)
		}
		d := spot()
		d.Notice.Kind = rapid.SampledFrom(notice.Kinds).Draw(t, "kind")
		d.Notice.ID, d.Notice.Detail, d.Instance, d.Node.Name = text("id"), text("detail"), text("instance"), text("node")
		d.Notice.Hook = notice.Hook{Group: text("group"), Name: text("hook")}
		body, err := parsed.render(ctx, interruptionOf(d, machine{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		var message struct{ Text string }
		if err := json.Unmarshal(body, &message); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if !strings.Contains(message.Text, strings.ToValidUTF8(d.Notice.ID, "\uFFFD")) {
			t.Fatalf("%q lacks the id %q", message.Text, d.Notice.ID)
		}
	})
}

func TestAnInterruptionHasTheFieldsOfNTH(t *testing.T) {
	const all = `{{ .EventID }}|{{ .Kind }}|{{ .Monitor }}|{{ .State }}|{{ .AutoScalingGroupName }}|{{ .NodeName }}|{{ .NodeLabels.pool }}|{{ .Pods }}|` +
		`{{ .InstanceID }}|{{ .InstanceType }}|{{ .ProviderID }}|{{ .IsManaged }}|{{ .StartTime | date "15:04" }}|{{ .EndTime.IsZero }}|{{ .NodeProcessed }}|{{ .InProgress }}|` +
		`{{ .AccountId }}|{{ .InstanceLifeCycle }}|{{ .PublicHostname }}{{ .PublicIP }}{{ .LocalHostname }}{{ .LocalIP }}|{{ .AvailabilityZone }}|{{ .Region }}`
	m := machine{
		providerID: "aws:///us-east-1a/" + testInstance, instanceType: "m7g.large", zone: "us-east-1a", labels: map[string]string{"pool": "blue"},
		addresses: map[corev1.NodeAddressType]string{
			corev1.NodeExternalDNS: "public.", corev1.NodeExternalIP: "192.0.2.1 ", corev1.NodeInternalDNS: "local.", corev1.NodeInternalIP: "10.0.0.1",
		},
	}
	start := noon.Add(48 * time.Hour)
	tests := []struct {
		name string
		edit func(*Decision)
		want string
	}{
		{
			"spot", func(*Decision) {},
			"event-1|SPOT_ITN|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012|spot|public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"rebalance", func(d *Decision) { d.Notice.Kind, d.Deadline = notice.RebalanceRecommendation, time.Time{} },
			"event-1|REBALANCE_RECOMMENDATION|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|true|false|true|123456789012|spot|public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"state", func(d *Decision) { d.Notice.Kind, d.Notice.Detail = notice.StateChange, "stopping" },
			"event-1|STATE_CHANGE|SQS_MONITOR|stopping||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"scheduled change", func(d *Decision) {
				d.Notice.Kind, d.Notice.Deadline, d.Deadline = notice.ScheduledChange, start.Add(time.Minute), start.Add(time.Minute)
			},
			"event-1|SCHEDULED_EVENT|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:01|true|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"hook", func(d *Decision) { d.Notice.Kind, d.Notice.Hook.Group = notice.ASGTerminate, "group-1" },
			"event-1|ASG_LIFECYCLE|SQS_MONITOR||group-1|node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
	}
	t.Setenv("TZ", "UTC")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := spot()
			test.edit(&d)
			if diff := cmp.Diff(test.want, render(t, all, interruptionOf(d, m))); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsAreListedOnlyForATemplateThatAsks(t *testing.T) {
	lists := 0
	list := func(_ context.Context, node string) []string {
		lists++
		return []string{node + "-pod"}
	}
	for _, test := range []struct {
		text, want string
		lists      int
	}{
		{`{{ .NodeName }}`, "node-1", 0},
		{`{{ toJson .Pods }}`, `["node-1-pod"]`, 1},
	} {
		lists = 0
		body, err := mustParse(t, test.text).render(t.Context(), interruptionOf(spot(), machine{}), list)
		if err != nil {
			t.Fatal(err)
		}
		if string(body) != test.want || lists != test.lists {
			t.Errorf("%s gives %s after %d lists, want %s after %d", test.text, body, lists, test.want, test.lists)
		}
	}
}

func TestATemplateErrorIsToldWithLineAndColumn(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{{ .Kind }`, `line 1, column 10: unexpected "}" in operand`},
		{`{{ .Kind`, `line 1, column 5: unclosed action`},
		{`ok {{ .Kind }} ok {{ .Node`, `line 1, column 23: unclosed action`},
		{"{\n  \"a\": \"{{ .Kind | | }}\"\n}", `line 2, column 20: unexpected "|" in command`},
		{"é{{ nosuch .Kind }}", `line 1, column 10: function "nosuch" not defined`},
		{"{{ if .Kind }}\nyes\n", `line 1, column 14: unexpected EOF`},
		{"a\n{{ end }}", `line 2, column 9: unexpected {{end}}`},
		{`{{ env "HOME" }}`, `line 1, column 6: function "env" not defined`},
		{`{{ expandenv "$HOME" }}`, `line 1, column 12: function "expandenv" not defined`},
		{`{{ getHostByName "localhost" }}`, `line 1, column 16: function "getHostByName" not defined`},
		// Only an execution shows these.
		{"{{ .Kind }}\n  {{ .Nodename }}", `line 2, column 6: at <.Nodename>: can't evaluate field Nodename in type telemetry.Interruption`},
		{`{{ .StartTime.Foo }}`, `line 1, column 14: at <.StartTime.Foo>: can't evaluate field Foo in type time.Time`},
		{`{{ fail "no" }}`, `line 1, column 4: at <fail "no">: error calling fail: no`},
		{`{{ define "x" }}{{ .Foo }}{{ end }}{{ template "x" . }}`, `line 1, column 20: at <.Foo>: can't evaluate field Foo in type telemetry.Interruption`},
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

// FuzzParseTemplate: a template that is refused is refused with a position in it,
// and one that is accepted takes whatever a notice holds, and says nothing else.
func FuzzParseTemplate(f *testing.F) {
	for _, text := range []string{DefaultTemplate, nthTemplate, "", "{{", "}}", "a\n{{ if }}", "{{/*", "{{`", "\xff{{ .Foo }}", "%d{{ nosuch }}", "{{ range .Pods }}{{ . }}{{ end }}", "{{ .NodeLabels.a | upper }}"} {
		f.Add(text, "a\n\"")
	}
	f.Setenv("WEBHOOK_URL", secret)
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.ContainsAny(text, "0123456789") { // no huge repetitions, no expensive keys
			return
		}
		parsed, err := ParseTemplate(text)
		if err != nil {
			var line, column int
			if _, scanErr := fmt.Sscanf(err.Error(), "line %d, column %d: ", &line, &column); scanErr != nil {
				t.Errorf("%q: %v", text, err)
			}
			if lines := strings.Split(text, "\n"); line < 1 || line > len(lines) || column < 1 || column > 1+len(lines[line-1]) {
				t.Errorf("%q: %v is not in it", text, err)
			}
			return
		}
		d := spot()
		d.Notice.ID, d.Notice.Detail, d.Notice.Hook.Group, d.Node.Name = value, value, value, value
		for _, m := range []machine{{}, {providerID: value, zone: value, labels: map[string]string{"a": value}}} {
			body, err := parsed.render(t.Context(), interruptionOf(d, m), func(context.Context, string) []string { return []string{value} })
			if err != nil && !strings.HasPrefix(err.Error(), "line ") {
				t.Errorf("%q with %q: %v", text, value, err)
			}
			if strings.Contains(string(body), secret) && !strings.Contains(text+value, secret) {
				t.Errorf("%q gives the environment away: %q", text, body)
			}
			if !strings.Contains(text, "{{") && err == nil && string(body) != text {
				t.Errorf("%q becomes %q", text, body)
			}
			if text == DefaultTemplate && !json.Valid(body) {
				t.Errorf("the default with %q is no JSON: %q", value, body)
			}
		}
	})
}
