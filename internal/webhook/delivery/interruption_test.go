package delivery

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/e2e/reporttest"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/report/describe"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

func TestTheDefaultTemplateSaysWhatThatOfNTHSays(t *testing.T) {
	got := render(t, webhook.DefaultTemplate, interruptionOf(reporttest.Spot(), describe.Machine{}))
	want := `{"text":"[NTH][Instance Interruption] EventID: event-1 - Kind: SPOT_ITN - Instance: i-0123456789abcdef0 - Node: node-1 - ` +
		`Description: Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T12:02:00Z - Start Time: 2026-11-20 12:00:00 +0000 UTC"}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(render(t, nthTemplate, interruptionOf(reporttest.Spot(), describe.Machine{})), got); diff != "" {
		t.Errorf("body (-by NTH's template +by ours):\n%s", diff)
	}
}

func TestTheDefaultBodyIsJSONWhateverTheNoticeHolds(t *testing.T) {
	parsed := mustParse(t, webhook.DefaultTemplate)
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return rapid.String().Draw(t, name) + rapid.SampledFrom([]string{"", "\n", `"`, `\`, "\x00", "\xff", "</script>"}).Draw(t, name)
		}
		d := reporttest.Spot()
		d.Notice.Kind = rapid.SampledFrom(notice.Kinds).Draw(t, "kind")
		d.Notice.ID, d.Notice.Detail, d.Instance, d.Node.Name = text("id"), text("detail"), text("instance"), text("node")
		d.Notice.Hook = notice.Hook{Group: text("group"), Name: text("hook")}
		body, err := parsed.Render(ctx, interruptionOf(d, describe.Machine{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		var message struct{ Text string }
		if err := json.Unmarshal(body, &message); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if !strings.Contains(message.Text, standIns(d.Notice.ID)) {
			t.Fatalf("%q lacks the id %q", message.Text, d.Notice.ID)
		}
	})
}

// The values of those who come from AWS Node Termination Handler have templates that
// write fields between quotes as they are.
func TestNoFieldBreaksOutOfATemplateThatDoesNotQuote(t *testing.T) {
	const every = `{"text":"{{ .EventID }} {{ .Kind }} {{ .Monitor }} {{ .Description }} {{ .State }} {{ .AutoScalingGroupName }} {{ .NodeName }} {{ .InstanceID }} {{ .InstanceType }} {{ .ProviderID }} ` +
		`{{ .AccountId }} {{ .InstanceLifeCycle }} {{ .PublicHostname }} {{ .PublicIP }} {{ .LocalHostname }} {{ .LocalIP }} {{ .AvailabilityZone }} {{ .Region }} {{ .Phase }} {{ .Missed }}"}`
	templates := map[string]webhook.Template{"NTH's": mustParse(t, nthTemplate), "one of all fields": mustParse(t, every), "ours": mustParse(t, webhook.DefaultTemplate)}
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return rapid.SampledFrom([]string{"", `x","channel":"#all`, `\`, "`", "\n", "\x1b[2J", "<!channel>", "\u2028", "\u202e", "\xff"}).Draw(t, name) + rapid.String().Draw(t, name)
		}
		d := reporttest.Spot()
		d.Notice.Kind = rapid.SampledFrom(notice.Kinds).Draw(t, "kind")
		d.Notice.ID, d.Notice.Detail, d.Notice.Account, d.Notice.Region = text("id"), text("detail"), text("account"), text("region")
		d.Notice.Hook = notice.Hook{Group: text("group"), Name: text("hook")}
		d.Instance, d.Node.Name = text("instance"), text("node")
		m := describe.Machine{ProviderID: text("provider id"), Type: text("type"), Zone: text("zone"), Addresses: map[corev1.NodeAddressType]string{
			corev1.NodeExternalDNS: text("public name"), corev1.NodeInternalIP: text("address"),
		}}
		received := interruptionOf(d, m)
		for name, parsed := range templates {
			for _, i := range []webhook.Interruption{received, ended(received, endOfDrain(intent.Missed, evacuation.Result{Missed: []string{"default/web-0"}}, time.Minute, reporttest.Noon))} {
				body, err := parsed.Render(t.Context(), i, nil)
				if err != nil {
					t.Fatal(err)
				}
				var message map[string]any
				if err := json.Unmarshal(body, &message); err != nil || len(message) != 1 || strings.ContainsAny(string(body), "<>\u2028\u202e") {
					t.Fatalf("%s: %v: %s", name, err, body)
				}
			}
		}
	})
}

func TestWhatAWSNamesThingsIsPrintedAsItIs(t *testing.T) {
	d := reporttest.Spot()
	d.Notice.Kind = notice.ASGTerminate
	d.Notice.Hook = notice.Hook{Group: "nodes.my-cluster_1/a (blue) 界 {x} 'y' @#$%&*=+[];,.?!~|^", Name: "drain/it_now-2"}
	m := describe.Machine{ProviderID: "aws:///us-east-1a/" + reporttest.Instance, Addresses: map[corev1.NodeAddressType]string{corev1.NodeInternalDNS: "ip-10-0-0-1.ec2.internal", corev1.NodeExternalIP: "2001:db8::1"}}
	got := render(t, `{{ .AutoScalingGroupName }}|{{ .ProviderID }}|{{ .LocalHostname }}|{{ .PublicIP }}|{{ .Description }}`, interruptionOf(d, m))
	want := d.Notice.Hook.Group + "|" + m.ProviderID + "|ip-10-0-0-1.ec2.internal|2001:db8::1|Auto Scaling group " + d.Notice.Hook.Group + " terminates instance " + reporttest.Instance +
		": lifecycle hook drain/it_now-2 waits until 2026-11-20T12:02:00Z"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnInterruptionHasTheFieldsOfNTH(t *testing.T) {
	const all = `{{ .EventID }}|{{ .Kind }}|{{ .Monitor }}|{{ .State }}|{{ .AutoScalingGroupName }}|{{ .NodeName }}|{{ .NodeLabels.pool }}|{{ .Pods }}|` +
		`{{ .InstanceID }}|{{ .InstanceType }}|{{ .ProviderID }}|{{ .IsManaged }}|{{ .StartTime | date "15:04" }}|{{ .EndTime.IsZero }}|{{ .NodeProcessed }}|{{ .InProgress }}|` +
		`{{ .AccountId }}|{{ .InstanceLifeCycle }}|{{ .PublicHostname }}{{ .PublicIP }}{{ .LocalHostname }}{{ .LocalIP }}|{{ .AvailabilityZone }}|{{ .Region }}`
	m := describe.Machine{
		ProviderID: "aws:///us-east-1a/" + reporttest.Instance, Type: "m7g.large", Zone: "us-east-1a", Labels: map[string]string{"pool": "blue"},
		Addresses: map[corev1.NodeAddressType]string{
			corev1.NodeExternalDNS: "public.", corev1.NodeExternalIP: "192.0.2.1 ", corev1.NodeInternalDNS: "local.", corev1.NodeInternalIP: "10.0.0.1",
		},
	}
	start := reporttest.Noon.Add(48 * time.Hour)
	tests := []struct {
		name string
		edit func(*report.Decision)
		want string
	}{
		{
			"spot", func(*report.Decision) {},
			"event-1|SPOT_ITN|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012|spot|public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"rebalance", func(d *report.Decision) { d.Notice.Kind, d.Deadline = notice.RebalanceRecommendation, time.Time{} },
			"event-1|REBALANCE_RECOMMENDATION|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|true|false|true|123456789012|spot|public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"state", func(d *report.Decision) { d.Notice.Kind, d.Notice.Detail = notice.StateChange, "stopping" },
			"event-1|STATE_CHANGE|SQS_MONITOR|stopping||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"scheduled change", func(d *report.Decision) {
				d.Notice.Kind, d.Notice.Deadline, d.Deadline = notice.ScheduledChange, start.Add(time.Minute), start.Add(time.Minute)
			},
			"event-1|SCHEDULED_EVENT|SQS_MONITOR|||node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:01|true|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
		{
			"hook", func(d *report.Decision) { d.Notice.Kind, d.Notice.Hook.Group = notice.ASGTerminate, "group-1" },
			"event-1|ASG_LIFECYCLE|SQS_MONITOR||group-1|node-1|blue|[]|i-0123456789abcdef0|m7g.large|aws:///us-east-1a/i-0123456789abcdef0|true|12:00|false|false|true|123456789012||public.192.0.2.1 local.10.0.0.1|us-east-1a|us-east-1",
		},
	}
	t.Setenv("TZ", "UTC")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := reporttest.Spot()
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
		body, err := mustParse(t, test.text).Render(t.Context(), interruptionOf(reporttest.Spot(), describe.Machine{}), list)
		if err != nil {
			t.Fatal(err)
		}
		if string(body) != test.want || lists != test.lists {
			t.Errorf("%s gives %s after %d lists, want %s after %d", test.text, body, lists, test.want, test.lists)
		}
	}
}

// FuzzParseTemplate: a template that is refused is refused with its line,
// and one that is accepted takes whatever a notice holds, and says nothing else.
func FuzzParseTemplate(f *testing.F) {
	for _, text := range []string{webhook.DefaultTemplate, nthTemplate, "", "{{", "}}", "a\n{{ if }}", "{{/*", "{{`", "\xff{{ .Foo }}", "%d{{ nosuch }}", "{{ range .Pods }}{{ . }}{{ end }}", "{{ .NodeLabels.a | upper }}"} {
		f.Add(text, "a\n\"")
	}
	f.Setenv("WEBHOOK_URL", reporttest.Secret)
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.ContainsAny(text, "0123456789") { // no huge repetitions, no expensive keys
			return
		}
		parsed, err := webhook.ParseTemplate(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "template: webhook:") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		d := reporttest.Spot()
		d.Notice.ID, d.Notice.Detail, d.Notice.Hook.Group, d.Node.Name = value, value, value, value
		for _, m := range []describe.Machine{{}, {ProviderID: value, Zone: value, Labels: map[string]string{"a": value}}} {
			body, err := parsed.Render(t.Context(), interruptionOf(d, m), func(context.Context, string) []string { return []string{value} })
			if err != nil && !strings.HasPrefix(err.Error(), "template: ") {
				t.Errorf("%q with %q: %v", text, value, err)
			}
			if strings.Contains(string(body), reporttest.Secret) && !strings.Contains(text+value, reporttest.Secret) {
				t.Errorf("%q gives the environment away: %q", text, body)
			}
			if !strings.Contains(text, "{{") && err == nil && string(body) != text {
				t.Errorf("%q becomes %q", text, body)
			}
			if text == webhook.DefaultTemplate && !json.Valid(body) {
				t.Errorf("the default with %q is no JSON: %q", value, body)
			}
		}
	})
}

func TestTheSamplesOfTemplatesAreWhatIsSent(t *testing.T) {
	now := time.Date(2026, time.November, 20, 10, 15, 30, 0, time.UTC)
	deadline := now.Add(2 * time.Minute)
	received := interruptionOf(report.Decision{
		Notice: notice.Notice{
			Kind: notice.SpotInterruption, ID: "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Account: "123456789012", Region: "us-east-1",
			Time: now, Instances: []string{reporttest.Instance}, Detail: "terminate",
		},
		Instance: reporttest.Instance,
		Node:     cluster.Ref{Name: "ip-10-0-0-1.ec2.internal", Instance: reporttest.Instance},
		Deadline: deadline,
	}, describe.Machine{
		ProviderID: "aws:///us-east-1a/" + reporttest.Instance, Type: "m7g.large", Zone: "us-east-1a",
		Labels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a"},
	})
	want := []webhook.Interruption{received}
	for _, end := range []struct {
		outcome intent.Outcome
		result  evacuation.Result
	}{
		{intent.Drained, evacuation.Result{Evicted: 9, Forced: 1}},
		{intent.Missed, evacuation.Result{Evicted: 9, Missed: []string{"default/web-0"}}},
		{intent.Gone, evacuation.Result{Evicted: 9, Lost: []string{"default/web-0"}}},
		{intent.Unconfirmed, evacuation.Result{Evicted: 9, Unconfirmed: []string{"default/web-0"}}},
	} {
		want = append(want, ended(received, endOfDrain(end.outcome, end.result, 2*time.Minute, deadline)))
	}
	if diff := cmp.Diff(want, webhook.Samples(), cmpopts.IgnoreUnexported(webhook.Interruption{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-sent +samples):\n%s", diff)
	}
}
