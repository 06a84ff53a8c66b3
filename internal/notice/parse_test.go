package notice

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestEveryBodyGivesItsNotice(t *testing.T) {
	got := map[string]Notice{}
	for name, body := range bodies(t) {
		n, err := Parse(body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got[name] = n
	}
	text, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "notices.golden.json")
	if *update {
		if err := os.WriteFile(golden, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)+"\n"); diff != "" {
		t.Errorf("notices (-want +got); go test -update writes them anew:\n%s", diff)
	}
}

func TestWhatCannotBeActedOnIsAnErrorThatSaysWhatIsWrong(t *testing.T) {
	event := func(detailType, detail string) string {
		return `{"source":"aws.ec2","detail-type":"` + detailType + `","time":"2026-11-20T10:15:30Z","detail":` + detail + `}`
	}
	for name, tt := range map[string]struct{ body, want string }{
		"empty":              {"", "the body is empty"},
		"blank":              {" \n", "the body is empty"},
		"not JSON":           {"hello", "not the JSON of an event"},
		"an array":           {"[]", "not the JSON of an event"},
		"JSON of no event":   {`{"a":1}`, "neither an EventBridge event nor an Auto Scaling notification"},
		"no detail":          {`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning"}`, "detail is missing"},
		"id is a path":       {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-../../nodes"}`), `detail.instance-id is "i-../../nodes", not an instance id`},
		"id in upper case":   {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789ABCDEF0"}`), "not an instance id"},
		"id too long":        {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789abcdef01"}`), "not an instance id"},
		"id with a newline":  {event("EC2 Instance Rebalance Recommendation", `{"instance-id":"i-0123456789abcdef\n"}`), "not an instance id"},
		"stopping whom":      {event("EC2 Instance State-change Notification", `{"state":"stopping"}`), `detail.instance-id is ""`},
		"id is a number":     {event("EC2 Instance Rebalance Recommendation", `{"instance-id":7}`), "detail: json"},
		"a hook of no group": {`{"LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING","EC2InstanceId":"i-0123456789abcdef0"}`, "AutoScalingGroupName or LifecycleHookName is missing"},
		"a very long hook": {`{"LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING","EC2InstanceId":"i-0123456789abcdef0","AutoScalingGroupName":"g","LifecycleHookName":"` +
			strings.Repeat("h", 300) + `"}`, "longer than 256 bytes"},
		"SNS around nothing": {`{"Type":"Notification","Message":"hello"}`, "the SNS notification's Message: the body is not the JSON"},
		"id is a selector":   {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-0123456789abcdef0,kubernetes.io/os=linux"}`), "not an instance id"},
		"id is a wildcard":   {event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-*"}`), "not an instance id"},
		"a hook that steers a terminal": {
			`{"LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING","EC2InstanceId":"i-0123456789abcdef0","AutoScalingGroupName":"g","LifecycleHookName":"\u001b[2J"}`,
			"has a control character",
		},
		"deeply nested": {event("EC2 Instance Rebalance Recommendation", strings.Repeat("[", 20000)+strings.Repeat("]", 20000)), "not the JSON of an event"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse = %+v, %v; want an error with %q", n, err, tt.want)
			}
		})
	}
}

func TestStatesAreNeverMatchedBySubstring(t *testing.T) {
	for _, state := range []string{"", "stop", "stoppingX", "Stopping", "pending", "running", "rebooting"} {
		n, err := Parse(`{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","detail":{"instance-id":"i-0123456789abcdef0","state":"` + state + `"}}`)
		if err != nil || n.Kind != Ignored || n.Ignored != OtherState {
			t.Errorf("state %q: %+v, %v; want it ignored", state, n, err)
		}
	}
}

func TestHibernationBeginsWithItsWarning(t *testing.T) {
	body := strings.Replace(bodies(t)["spot-interruption"], `"terminate"`, `"hibernate"`, 1)
	n, err := Parse(body)
	if err != nil || !n.Deadline.Equal(n.Time) || n.Time.IsZero() {
		t.Errorf("Parse = %+v, %v; want a deadline at %s", n, err, n.Time)
	}
}

func TestANoticeWithoutATimeIsStillANotice(t *testing.T) {
	for _, when := range []string{"", "yesterday", "2026-11-20", "0000-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"} {
		n, err := Parse(strings.Replace(bodies(t)["spot-interruption"], "2026-11-20T10:15:30Z", when, 1))
		if err != nil || n.Kind != SpotInterruption || !n.Time.IsZero() || !n.Deadline.IsZero() {
			t.Errorf("time %q: %+v, %v", when, n, err)
		}
	}
}

func TestOfTwoFieldsOfOneNameTheLastCounts(t *testing.T) {
	const first, last = "i-00000000000000001", "i-00000000000000002"
	n, err := Parse(`{"source":"aws.ec2","detail-type":"EC2 Instance Rebalance Recommendation","detail":{"instance-id":"` + first + `"},"detail":{"instance-id":"` + first + `","instance-id":"` + last + `"}}`)
	if err != nil || !slices.Equal(n.Instances, []string{last}) {
		t.Errorf("Parse = %+v, %v", n, err)
	}
}

// An event's texts end up on terminals, in labels and in Events.
func TestWhatCannotBePrintedIsDropped(t *testing.T) {
	body := strings.NewReplacer(`"id": "`, `"id": "\u001b]0;\n\u009b\u2028\u202e\ud800`, `"terminate"`, `"term\u0000inate\r\n"`).Replace(bodies(t)["spot-interruption"])
	n, err := Parse(body)
	if want := "]0;7d5a1d4c-7f2b-4f3e-9d1a-000000000001"; err != nil || n.ID != want || n.Detail != "terminate" {
		t.Errorf("Parse = %+v, %v; want the id %q", n, err, want)
	}
}

// The largest body that SQS takes is read in time and in memory of its order.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
func TestTheLargestBodiesAreReadQuickly(t *testing.T) {
	const size = 1 << 20
	var entities strings.Builder
	for k := range 10_000 {
		fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},{"entityValue":"i-%017x"},`, k, k/2)
	}
	health := strings.Replace(bodies(t)["health-retirement-two-instances"], `"affectedEntities": [`, `"affectedEntities": [`+entities.String(), 1)
	spot := bodies(t)["spot-interruption"]
	fill := func(text string) string { return strings.Repeat(text, size/len(text)) }
	for name, tt := range map[string]struct {
		body      string
		instances int // 0: an error
	}{
		"ten thousand instances, each twice": {health, 10_002},
		"a long text":                        {strings.Replace(spot, `"id":`, `"more":"`+fill("x")+`","id":`, 1), 1},
		"one field again and again":          {strings.Replace(spot, `"id":`, fill(`"id":"x",`)+`"id":`, 1), 1},
		"ten thousand fields":                {strings.Replace(spot, `"id":`, fill(`"x":[{"y":[null]}],`)+`"id":`, 1), 1},
		"nothing but brackets":               {fill("["), 0},
		"a string within a string":           {`{"Type":"Notification","Message":"` + fill(`\"`) + `"}`, 0},
		"blanks":                             {fill(" \n"), 0},
		"no text":                            {fill("\xff\x00\x1b"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			n, err := Parse(tt.body)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if len(n.Instances) != tt.instances || (err == nil) != (tt.instances > 0) {
				t.Errorf("%d instances, %v; want %d", len(n.Instances), err, tt.instances)
			}
			memory := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes: %s, %d bytes allocated", len(tt.body), took, memory)
			if memory > 10*size || took > 5*time.Second { // on a busy machine, with the race detector
				t.Errorf("it took %s and %d bytes, want 5 s and %d at most", took, memory, 10*size)
			}
		})
	}
}

func TestKindsAreReadAsTheyAreWritten(t *testing.T) {
	for _, k := range append(Kinds, Ignored) {
		if got := KindOf(k.String()); got != k {
			t.Errorf("KindOf(%q) = %v", k, got)
		}
	}
}

// FuzzParse checks what must hold for every body.
func FuzzParse(f *testing.F) {
	for _, body := range bodies(f) {
		f.Add(body)
	}
	f.Add("")
	f.Add(`{"Type":"Notification","Message":"{\"Type\":\"Notification\",\"Message\":\"{}\"}"}`)
	f.Add(`{"source":"aws.ec2","source":"aws.health","detail":null}`)
	f.Add(`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","id":"\u001b]0;x\u0007","time":"0000-01-01T00:00:00+12:00","detail":{"instance-id":"i-0123456789abcdef0"}}`)
	id := regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	f.Fuzz(func(t *testing.T, body string) {
		n, err := Parse(body)
		if again, errAgain := Parse(body); !cmp.Equal(n, again) || (err == nil) != (errAgain == nil) {
			t.Errorf("the second Parse of one body gives %+v, %v, not %+v, %v", again, errAgain, n, err)
		}
		if err != nil {
			if len(n.Instances) > 0 {
				t.Errorf("an error with instances to act on: %+v, %v", n, err)
			}
			if text := err.Error(); text == "" || len(text) > 1024 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("an error that is no line of a log: %q", text)
			}
			return
		}
		reasons := []Reason{OtherService, OtherState, NotScheduled, NoInstance, TestNotification, Confirmation}
		switch {
		case n.Kind == Ignored && !cmp.Equal(n, Notice{Ignored: n.Ignored}):
			t.Errorf("ignored, and yet there is %+v", n)
		case n.Kind == Ignored && !slices.Contains(reasons, n.Ignored):
			t.Errorf("ignored for %q", n.Ignored)
		case n.Kind == Ignored:
			return
		}
		if n.Ignored != "" || len(n.Instances) == 0 || len(n.Instances) > 1 && n.Kind != ScheduledChange {
			t.Errorf("a %v with %d instances, ignored for %q", n.Kind, len(n.Instances), n.Ignored)
		}
		for k, one := range n.Instances {
			if !id.MatchString(one) || slices.Contains(n.Instances[:k], one) {
				t.Errorf("instance %q is malformed or twice in %v", one, n.Instances)
			}
		}
		if hooked := n.Kind == ASGTerminate || n.Kind == ASGLaunch; hooked != (n.Hook.Group != "" && n.Hook.Name != "") || !hooked && n.Hook != (Hook{}) {
			t.Errorf("a %v with the hook %+v", n.Kind, n.Hook)
		}
		if n.Ended && n.Kind != ScheduledChange || n.Gone && n.Kind != StateChange || n.Change != "" && n.Kind != ScheduledChange {
			t.Errorf("ended %t, gone %t, change %q of a %v", n.Ended, n.Gone, n.Change, n.Kind)
		}
		if n.Kind == SpotInterruption && (n.Deadline.IsZero() != n.Time.IsZero() || n.Deadline.Sub(n.Time) > spotNotice) {
			t.Errorf("a spot warning of %s at %s", n.Deadline.Sub(n.Time), n.Time)
		}
		for _, text := range []string{n.ID, n.Account, n.Region, n.Change, n.Detail, n.Hook.Group, n.Hook.Name, n.Hook.Token} {
			if len(text) > nameLimit || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%q is not fit for a log, a label or an Event", text)
			}
		}
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatalf("%+v cannot be written down: %v", n, err)
		}
		var read Notice
		if err := json.Unmarshal(text, &read); err != nil || !cmp.Equal(n, read) {
			t.Errorf("written down and read it is %+v, %v, not %+v", read, err, n)
		}
		// What AWS adds one day changes nothing.
		if more := strings.TrimRight(body, " \t\r\n"); strings.HasSuffix(more, "}") {
			more = more[:len(more)-1] + `,"new":{"instance-id":"i-0fedcba9876543210"}}`
			if wider, err := Parse(more); err != nil || !cmp.Equal(wider, n) {
				t.Errorf("with another field it is %+v, %v, not %+v", wider, err, n)
			}
		}
		wrapped, err := json.Marshal(map[string]string{"Type": "Notification", "Message": body})
		if err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(body) && !strings.Contains(strings.ToLower(body), `type"`) {
			if inner, err := Parse(string(wrapped)); err != nil || !cmp.Equal(inner, n) {
				t.Errorf("through SNS it is %+v, %v, not %+v", inner, err, n)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, body := range bodies(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bodies are the example bodies of testdata/events by name.
func bodies(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "events", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no example bodies: %v", err)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = string(text)
	}
	return all
}

func TestASimulatedNoticeIsReadAsTheRealOne(t *testing.T) {
	source := regexp.MustCompile(`"source": "aws\.[a-z0-9]+"`)
	for name, body := range bodies(t) {
		want, err := Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(source.ReplaceAllString(body, `"source": "`+SimulatedSource+`"`))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-real +simulated):\n%s", name, err, diff)
		}
	}
}
