package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

func TestMetricsDocIsWhatTheCodeSays(t *testing.T) {
	var doc bytes.Buffer
	New().catalogue.writeDoc(&doc)
	golden.Compare(t, "../../docs/metrics.md", doc.String())
}

// writeDoc writes docs/metrics.md.
func (c *catalogue) writeDoc(w io.Writer) {
	fmt.Fprint(w, `# Metrics

<!-- Generated from internal/telemetry by make generate -->

The metrics are served at `+"`/metrics`"+` on port 9092, with those of Go and of the process. Times are in seconds. Names that end in
`+"`_total`"+` are counters; other metrics are gauges, unless they are called histograms. No label has the name of a node, a pod or an
instance, so the number of series does not grow with the cluster. Series start at zero, except those of rules, of Karpenter and of
requests. Most gauges tell what the leader sees; on other replicas they are 0, +Inf or missing. Each process counts for itself: a drain
whose end a leader cannot write to the Node counts again where another process ends it.

`+"`deploy/prometheus/rules.yaml`"+` has [alerts](alerts.md) on these metrics, `+"`deploy/grafana/dashboard.json`"+` is a dashboard.

The label **kind** has the values `)
	common := kinds(notice.ASGLaunch)
	fmt.Fprintf(w, "%s.\n", codes(common))
	for _, s := range c.sections {
		fmt.Fprintf(w, "\n## %s\n\n| Metric | Labels | Meaning |\n|---|---|---|\n", s.question)
		for _, m := range s.metrics {
			var labels []string
			for _, l := range m.labels {
				switch words := l.words; {
				case words != "":
					labels = append(labels, fmt.Sprintf("**%s**: %s", l.name, words))
				case l.name == "kind":
					labels = append(labels, "**kind**"+unlike(l.values, common))
				default:
					labels = append(labels, fmt.Sprintf("**%s**: %s", l.name, codes(l.values)))
				}
			}
			help := m.help
			if m.kind == "histogram" {
				help = "Histogram. " + help
			}
			fmt.Fprintf(w, "| `%s` | %s | %s |\n", m.name, strings.Join(labels, "<br>"), help)
		}
	}
}

// unlike says what is different from the values that are common.
func unlike(values, common []string) string {
	var words string
	for _, v := range values {
		if !slices.Contains(common, v) {
			words += ", also `" + v + "`"
		}
	}
	for _, v := range common {
		if !slices.Contains(values, v) {
			words += ", not `" + v + "`"
		}
	}
	return words
}

func codes(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }

// series are all series but those of Go and the process, with their values. Of a
// histogram it is the number of its observations, and the sum after a slash.
func (m *Metrics) series(t *testing.T) map[string]string {
	t.Helper()
	families, err := m.catalogue.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue
		}
		for _, s := range f.GetMetric() {
			var values []string
			for _, l := range s.GetLabel() {
				values = append(values, l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), namespace) // labels are sorted by their names
			if len(values) > 0 {
				name += "{" + strings.Join(values, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				all[name] = fmt.Sprintf("%d/%g", s.GetHistogram().GetSampleCount(), s.GetHistogram().GetSampleSum())
			case dto.MetricType_COUNTER:
				all[name] = fmt.Sprint(s.GetCounter().GetValue())
			default:
				all[name] = fmt.Sprint(s.GetGauge().GetValue())
			}
		}
	}
	return all
}

// counted runs a story in virtual time, which begins at midnight of 2000-01-01,
// and returns the series that it changes.
func counted(t *testing.T, story func(t *testing.T, m *Metrics)) (changed map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := New()
		before := m.series(t)
		story(t, m)
		changed = map[string]string{}
		for name, value := range m.series(t) {
			if before[name] != value {
				changed[name] = value
			}
		}
	})
	return changed
}

func TestEverySeriesIsThereBeforeAnythingHappens(t *testing.T) {
	m := New()
	series := m.series(t)
	for _, name := range []string{
		"drains_total{SpotInterruption,missed}", "pods_total{lost,ASGTerminate}", "messages_settled_total{rejected,undecodable}",
		"messages_settled_total{left,instance-not-in-cluster}", "messages_settled_total{left,other-account-or-region}", "messages_settled_total{left,instance-unknown}", "aws_requests_total{ReceiveMessage,throttled,sqs}", "lifecycle_calls_total{heartbeat,denied}",
		"permission_denied_total{sqs:ReceiveMessage}", "permission_denied_total{autoscaling:CompleteLifecycleAction}", "actions_total{cordon-and-drain,error}",
		"actions_total{pre-drain,success}", "actions_total{post-drain,success}", "events_error_total{SQS_MONITOR}", "evictions_refused_total{two-budgets}",
	} {
		if series[name] != "0" {
			t.Errorf("%s is %q, want 0", name, series[name])
		}
	}
	for name := range series {
		if strings.HasPrefix(name, "nth_") {
			t.Errorf("%s is there without a tag check", name)
		}
	}
	// What a scrape brings, histograms' buckets included. More is no mistake by
	// itself: it is to be decided upon, with its cost.
	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	lines := 0
	for line := range strings.Lines(page.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines++
		}
	}
	const most = 734 // nine kinds of notice, each with 35 to 40 series
	if lines > most {
		t.Errorf("%d series at rest, want %d at most", lines, most)
	}
	t.Logf("%d series, %d bytes", lines, page.Body.Len())
}

func TestAPolicyFileIsRightOrWrong(t *testing.T) {
	m := New()
	for _, tt := range []struct {
		tell func()
		want string
	}{
		{func() {}, ""}, // there is no file
		{func() { m.PolicyValid(true) }, "1"},
		{func() { m.PolicyValid(false) }, "0"},
	} {
		tt.tell()
		if got := m.series(t)["policy_valid"]; got != tt.want {
			t.Errorf("policy_valid is %q, want %q", got, tt.want)
		}
	}
}

func TestADrainIsCountedByTheNoticeThatBoundIt(t *testing.T) {
	// The time of the stories is start.
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	rebalance := intent.Entry{Kind: notice.RebalanceRecommendation, Time: start.Add(-time.Hour)}
	spot := intent.Entry{Kind: notice.SpotInterruption, Time: start.Add(-30 * time.Second), Deadline: start.Add(90 * time.Second)}
	over := intent.Entry{Kind: notice.SpotInterruption, Time: start.Add(-130 * time.Second), Deadline: start.Add(-10 * time.Second)}
	tests := []struct {
		name    string
		entries []intent.Entry
		result  evacuation.Result
		outcome intent.Outcome
		want    map[string]string
	}{
		{
			"in time",
			[]intent.Entry{rebalance, spot},
			evacuation.Result{Evicted: 3, Forced: 1, Ended: 1},
			intent.Drained,
			map[string]string{
				"drains_total{SpotInterruption,in-time}": "1", "pods_total{evicted,SpotInterruption}": "3", "pods_total{forced,SpotInterruption}": "1", "pods_total{ended,SpotInterruption}": "1",
				"deadline_slack_seconds{SpotInterruption}": "1/90", "notice_to_empty_seconds{SpotInterruption}": "1/30",
				"actions_total{cordon-and-drain,success}": "1",
			},
		},
		{
			"without a deadline",
			[]intent.Entry{rebalance},
			evacuation.Result{Evicted: 3},
			intent.Drained,
			map[string]string{
				"drains_total{RebalanceRecommendation,in-time}": "1", "pods_total{evicted,RebalanceRecommendation}": "3",
				"notice_to_empty_seconds{RebalanceRecommendation}": "1/3600",
				"actions_total{cordon-and-drain,success}":          "1",
			},
		},
		{
			"missed, seen late",
			[]intent.Entry{over},
			evacuation.Result{Missed: []string{"a", "b"}, Volumes: 2},
			intent.Missed,
			map[string]string{
				"drains_total{SpotInterruption,missed}": "1", "pods_total{missed,SpotInterruption}": "2", "volumes_missed_total": "2",
				"deadline_slack_seconds{SpotInterruption}": "1/-10", "notice_to_empty_seconds{SpotInterruption}": "1/130",
				"actions_total{cordon-and-drain,error}": "1",
			},
		},
		{
			"the machine was gone",
			[]intent.Entry{spot},
			evacuation.Result{Evicted: 1, Lost: []string{"a", "b"}},
			intent.Gone,
			map[string]string{
				"drains_total{SpotInterruption,gone}": "1", "pods_total{evicted,SpotInterruption}": "1", "pods_total{lost,SpotInterruption}": "2",
				"deadline_slack_seconds{SpotInterruption}": "1/0", "notice_to_empty_seconds{SpotInterruption}": "1/30",
				"actions_total{cordon-and-drain,error}": "1",
			},
		},
		{
			"no kubelet",
			[]intent.Entry{spot},
			evacuation.Result{Evicted: 1, Unconfirmed: []string{"a"}},
			intent.Unconfirmed,
			map[string]string{
				"drains_total{SpotInterruption,unconfirmed}": "1", "pods_total{evicted,SpotInterruption}": "1", "pods_total{unconfirmed,SpotInterruption}": "1",
				"actions_total{cordon-and-drain,error}": "1",
			},
		},
		{
			"in time, though its volumes took a minute more, and a pod was killed early",
			[]intent.Entry{{Kind: notice.SpotInterruption, Time: start.Add(-90 * time.Second), Deadline: start.Add(30 * time.Second)}},
			evacuation.Result{Evicted: 1, Record: evacuation.Record{PodsGone: start.Add(-time.Minute), CutShort: []string{"a after 2s of 30s"}}},
			intent.Drained,
			map[string]string{
				"drains_total{SpotInterruption,in-time}": "1", "pods_total{evicted,SpotInterruption}": "1", "pods_cut_short_total{SpotInterruption}": "1",
				"deadline_slack_seconds{SpotInterruption}": "1/90", "notice_to_empty_seconds{SpotInterruption}": "1/30",
				"actions_total{cordon-and-drain,success}": "1",
			},
		},
		{
			"the machine was gone before its pods were listed",
			[]intent.Entry{spot},
			evacuation.Result{Lost: []string{"a"}},
			intent.Gone,
			map[string]string{
				"drains_total{SpotInterruption,gone}": "1", "pods_total{lost,SpotInterruption}": "1",
				"deadline_slack_seconds{SpotInterruption}": "1/0", "actions_total{cordon-and-drain,error}": "1",
			},
		},
		{
			"called off",
			[]intent.Entry{rebalance},
			evacuation.Result{Evicted: 1},
			intent.CalledOff,
			map[string]string{"drains_total{RebalanceRecommendation,called-off}": "1", "pods_total{evicted,RebalanceRecommendation}": "1"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := counted(t, func(_ *testing.T, m *Metrics) {
				if len(test.result.Lost) != 1 && test.result.Record.PodsGone.IsZero() {
					test.result.Record.PodsGone = start
				}
				m.Drained(report.Drain{Intent: intent.Intent{Entries: test.entries}, Outcome: test.outcome, Result: test.result})
			})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestANoticeIsLateByItsFirstDecisionAlone(t *testing.T) {
	got := counted(t, func(_ *testing.T, m *Metrics) {
		d := report.Decision{Notice: notice.Notice{Kind: notice.SpotInterruption, Time: time.Now().Add(-7 * time.Second)}, Node: cluster.Ref{Name: "n"}, Action: decision.Drain, Why: "w"}
		m.Decided(d)
		d.Repeated = true
		m.Decided(d)
		d.Repeated, d.Waited = false, true
		m.Decided(d)
		d.Waited, d.Node = false, cluster.Ref{} // not ours
		m.Decided(d)
		m.Recorded(intent.Entry{Kind: notice.SpotInterruption, Time: time.Now().Add(-8 * time.Second)})
	})
	want := map[string]string{
		"decisions_total{drain,SpotInterruption,w}": "4", "notice_delay_seconds{SpotInterruption}": "1/7", "notice_to_cordon_seconds{SpotInterruption}": "1/8",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// leftError stands for that of the controller.
type leftError string

func (e leftError) Error() string  { return string(e) }
func (e leftError) Reason() string { return string(e) }

func TestMessagesAreCountedByOutcomeAndReason(t *testing.T) {
	tests := []struct {
		outcome queue.Outcome
		why     error
		want    string
	}{
		{queue.Deleted, nil, "messages_settled_total{deleted,done}"},
		{queue.Left, queue.Leave(leftError("instance-not-in-cluster")), "messages_settled_total{left,instance-not-in-cluster}"},
		{queue.Left, queue.Leave(leftError("no-instance-id")), "messages_settled_total{left,no-instance-id}"},
		{queue.Rejected, queue.Reject(errors.New("not JSON")), "messages_settled_total{rejected,undecodable}"},
		{queue.GivenBack, fmt.Errorf("patch: %w", queue.ErrStopping), "messages_settled_total{given-back,stopping}"},
		{queue.GivenBack, errors.New("patch"), "messages_settled_total{given-back,error}"},
		{queue.Unsettled, errors.New("no answer"), "messages_settled_total{unsettled,error}"},
	}
	for _, test := range tests {
		want := map[string]string{test.want: "1"}
		if test.outcome == queue.Rejected {
			want["events_error_total{SQS_MONITOR}"] = "1"
		}
		got := counted(t, func(_ *testing.T, m *Metrics) { m.Settled(test.outcome, test.why) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, %v (-want +got):\n%s", test.outcome, test.why, diff)
		}
	}
}

func TestHooksAreCountedWithTheTimeThatWasLeft(t *testing.T) {
	got := counted(t, func(_ *testing.T, m *Metrics) {
		m.Completed(time.Now().Add(40*time.Second), nil)
		m.Completed(time.Now().Add(-10*time.Second), nil)
		m.Completed(time.Time{}, nil)
		m.Completed(time.Now(), errors.New("throttled"))
		m.Completed(time.Now().Add(-time.Minute), asg.ErrGone)
		m.Completed(time.Now().Add(time.Minute), asg.ErrGone) // somebody else has completed it
		m.Completed(time.Time{}, asg.ErrGone)
		m.Completed(time.Now().Add(time.Minute), fmt.Errorf("%w: no such group", asg.ErrRefused))
		m.Heartbeat(asg.ErrGone)
		m.Heartbeat(&asg.PermissionError{Action: "autoscaling:RecordLifecycleActionHeartbeat", Err: errors.New("no")})
		m.Heartbeat(&asg.PermissionError{Action: "autoscaling:RecordLifecycleActionHeartbeat", Err: &smithy.GenericAPIError{Code: "InvalidAction"}})
		m.Described(nil)
	})
	want := map[string]string{
		"lifecycle_calls_total{complete,ok}": "3", "lifecycle_calls_total{complete,error}": "2", "lifecycle_calls_total{heartbeat,denied}": "1", "lifecycle_calls_total{heartbeat,error}": "1",
		"lifecycle_calls_total{complete,gone}": "3", "lifecycle_hooks_ran_out_total": "2", "lifecycle_calls_total{heartbeat,gone}": "1",
		"lifecycle_calls_total{describe,ok}": "1", "permission_denied_total{autoscaling:RecordLifecycleActionHeartbeat}": "1",
		"lifecycle_hook_slack_seconds": "2/30", "actions_total{post-drain,success}": "3", "actions_total{post-drain,error}": "2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStepsCountUnderTheNamesOfNTH(t *testing.T) {
	got := counted(t, func(_ *testing.T, m *Metrics) {
		m.Stepped(report.Step{Kind: report.Cordon})
		m.Stepped(report.Step{Kind: report.Cordon, Err: errors.New("no")})
		m.Stepped(report.Step{Kind: report.Uncordon})
		m.ReceiveFailed()
	})
	want := map[string]string{
		"actions_total{cordon,success}": "1", "actions_total{cordon,error}": "1", "actions_total{pre-drain,success}": "1", "actions_total{pre-drain,error}": "1",
		"actions_total{uncordon,success}": "1",
		"events_error_total{SQS_MONITOR}": "1", "receive_errors_total": "1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhoDrainsKarpentersNodesIsCounted(t *testing.T) {
	got := counted(t, func(_ *testing.T, m *Metrics) {
		m.Stepped(report.Step{Kind: report.Delegate, Why: decision.WhyDelegated})
		m.Stepped(report.Step{Kind: report.TakeOver, Why: decision.WhyKarpenterAway})
	})
	want := map[string]string{
		"karpenter_drains_total{karpenter,drained-by-karpenter}": "1", "karpenter_drains_total{handler,karpenter-does-not-act}": "1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatIsUnderWayIsAskedOfTheTermThatLasts(t *testing.T) {
	got := counted(t, func(t *testing.T, m *Metrics) {
		stop := m.Lead(Term{Load: func() report.Load { return report.Load{} }, Held: func() (int, time.Time) { return 0, time.Time{} }, Reports: true})
		if got := m.series(t)["leading"]; got != "0" {
			t.Errorf("of a pod that reports to another leader: %s", got)
		}
		stop()
		start := time.Now()
		var received time.Time
		end := m.Lead(Term{
			Load: func() report.Load {
				return report.Load{Drains: 2, Oldest: start.Add(-time.Minute), Deadline: start.Add(30 * time.Second), Hooks: 1}
			},
			Held:        func() (int, time.Time) { return 3, start.Add(-time.Hour) },
			LastReceive: func() time.Time { return received },
		})
		if got, want := m.series(t)["last_receive_timestamp_seconds"], fmt.Sprint(float64(start.Unix())); got != want {
			t.Errorf("before the first receive it was at %s, want the beginning of the term, %s", got, want)
		}
		received = start.Add(time.Second)
		m.Tagged(2, 3, 1)
		want := map[string]string{
			"leading": "1", "drains_in_progress": "2", "oldest_drain_age_seconds": "60", "drain_deadline_left_seconds": "30", "messages_held": "3",
			"oldest_message_age_seconds": "3600", "lifecycle_hooks_open": "1", "lifecycle_hook_left_seconds": fmt.Sprint(math.Inf(1)),
			"last_receive_timestamp_seconds": fmt.Sprint(float64(received.Unix())), "nth_tagged_nodes": "2", "nth_tagged_instances": "3",
		}
		series := m.series(t)
		for name, value := range want {
			if series[name] != value {
				t.Errorf("%s is %s, want %s", name, series[name], value)
			}
		}
		end()
		m.Tagged(2, 3, 1) // it took too long
	})
	if len(got) > 0 {
		t.Errorf("after the term: %v", got)
	}
}

func TestRequestsToAWSAreCountedByActionAndAnswer(t *testing.T) {
	m := New()
	aws := awssim.New(awssim.Options{})
	t.Cleanup(aws.Close)
	config := aws.Config()
	config.APIOptions = append(config.APIOptions, m.AWS)
	config.RetryMaxAttempts = 1
	describe := func(ctx context.Context) {
		_, _ = ec2.NewFromConfig(config).DescribeInstances(ctx, &ec2.DescribeInstancesInput{})
	}
	before := m.series(t)
	describe(t.Context())
	for _, f := range []awssim.Fault{
		{ID: "f", Action: "DescribeInstances", Code: "RequestLimitExceeded", Status: 503, Count: 1},
		{ID: "f", Action: "DescribeInstances", Code: "UnauthorizedOperation", Status: 403, Count: 1},
		{ID: "f", Action: "DescribeInstances", Code: "InternalError", Status: 500, Count: 1},
		{ID: "f", Action: "DescribeInstances", Code: "InvalidParameterValue", Status: 400, Count: 1},
		{ID: "f", Action: "DescribeInstances", Code: "InvalidAction", Status: 400, Count: 1},
	} {
		if err := aws.SetFault(f); err != nil {
			t.Fatal(err)
		}
		describe(t.Context())
	}
	_, _ = sqs.NewFromConfig(config).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: new("http://127.0.0.1/123456789012/none")})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	describe(gone)
	want := map[string]string{
		"aws_requests_total{DescribeInstances,ok,ec2}": "1", "aws_requests_total{DescribeInstances,throttled,ec2}": "1", "aws_requests_total{DescribeInstances,denied,ec2}": "1",
		"aws_requests_total{DescribeInstances,fault,ec2}": "1", "aws_requests_total{DescribeInstances,refused,ec2}": "2", "aws_requests_total{ReceiveMessage,refused,sqs}": "1",
	}
	got := map[string]string{}
	for name, value := range m.series(t) {
		if strings.HasPrefix(name, "aws_") && before[name] != value {
			got[name] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRequestsToTheAPIServerAreNamedAsInRBAC(t *testing.T) {
	tests := []struct{ method, path, want string }{
		{"GET", "/api/v1/nodes?limit=1", "list nodes"},
		{"GET", "/api/v1/nodes?watch=true&x=y", "watch nodes"},
		{"GET", "/api/v1/nodes?watch=1", "watch nodes"},
		{"GET", "/api/v1/nodes/n1", "get nodes"},
		{"PATCH", "/api/v1/nodes/n1", "patch nodes"},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "list pods"},
		{"POST", "/api/v1/namespaces/shop/pods/p1/eviction", "create pods/eviction"},
		{"DELETE", "/api/v1/namespaces/shop/pods/p1", "delete pods"},
		{"GET", "/apis/storage.k8s.io/v1/volumeattachments", "list volumeattachments"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "update leases"},
		{"POST", "/api/v1/namespaces/default/events", "create events"},
		{"GET", "/api/v1/namespaces/shop", "get other"},
		{"GET", "/apis/example.com/v1/things", "list other"},
		{"GET", "/version", "list other"},
		{"GET", "/", "list other"},
		{"OPTIONS", "/api", "other other"},
	}
	for _, test := range tests {
		verb, resource := kubernetesAction(httptest.NewRequest(test.method, test.path, nil))
		if got := verb + " " + resource; got != test.want {
			t.Errorf("%s %s is %q, want %q", test.method, test.path, got, test.want)
		}
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequestsToTheAPIServerAreCountedByCode(t *testing.T) {
	got := counted(t, func(t *testing.T, m *Metrics) {
		for _, code := range []int{200, 429, 0} {
			counting := m.Kubernetes(transport(func(*http.Request) (*http.Response, error) {
				time.Sleep(2 * time.Second)
				if code == 0 {
					return nil, errors.New("connection refused")
				}
				return &http.Response{StatusCode: code, Body: http.NoBody}, nil
			}))
			for _, path := range []string{"/api/v1/nodes", "/api/v1/nodes?watch=true"} {
				_, _ = counting.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			}
		}
	})
	want := map[string]string{
		"kubernetes_requests_total{200,nodes,list}": "1", "kubernetes_requests_total{429,nodes,list}": "1", "kubernetes_requests_total{no-answer,nodes,list}": "1",
		"kubernetes_requests_total{200,nodes,watch}": "1", "kubernetes_requests_total{429,nodes,watch}": "1", "kubernetes_requests_total{no-answer,nodes,watch}": "1",
		"api_request_duration_seconds{kubernetes}": "3/6",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMessagesOfTheWebhookAreCountedByWhatBecameOfThem(t *testing.T) {
	m := New()
	for n, d := range []report.Delivery{report.Sent, report.Failed, report.Dropped} {
		for range n + 1 {
			m.Delivered(d)
		}
		if got := m.value("node_termination_handler_webhook_messages_total", string(d)); got != n+1 {
			t.Errorf("%s: %d messages, want %d", d, got, n+1)
		}
	}
}
