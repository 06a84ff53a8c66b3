package notice

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		"deeply nested":      {event("EC2 Instance Rebalance Recommendation", strings.Repeat("[", 20000)+strings.Repeat("]", 20000)), "not the JSON of an event"},
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
	for _, when := range []string{"", "yesterday", "2026-11-20"} {
		n, err := Parse(strings.Replace(bodies(t)["spot-interruption"], "2026-11-20T10:15:30Z", when, 1))
		if err != nil || n.Kind != SpotInterruption || !n.Time.IsZero() || !n.Deadline.IsZero() {
			t.Errorf("time %q: %+v, %v", when, n, err)
		}
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
	f.Fuzz(func(t *testing.T, body string) {
		n, err := Parse(body)
		if again, errAgain := Parse(body); !cmp.Equal(n, again) || (err == nil) != (errAgain == nil) {
			t.Errorf("the second Parse of one body gives %+v, %v, not %+v, %v", again, errAgain, n, err)
		}
		if err != nil {
			if !cmp.Equal(n, Notice{}) && n.Kind != Ignored && len(n.Instances) > 0 {
				t.Errorf("an error with a notice to act on: %+v, %v", n, err)
			}
			return
		}
		if (n.Kind == Ignored) != (n.Ignored != "") {
			t.Errorf("kind %v with the reason %q to ignore it", n.Kind, n.Ignored)
		}
		if (n.Kind == Ignored) != (len(n.Instances) == 0) {
			t.Errorf("kind %v with %d instances", n.Kind, len(n.Instances))
		}
		seen := map[string]bool{}
		for _, id := range n.Instances {
			if !isInstanceID(id) || seen[id] {
				t.Errorf("instance %q is malformed or twice in %v", id, n.Instances)
			}
			seen[id] = true
		}
		if hooked := n.Kind == ASGTerminate || n.Kind == ASGLaunch; hooked != (n.Hook != Hook{}) {
			t.Errorf("kind %v with the hook %+v", n.Kind, n.Hook)
		}
		if n.Kind == SpotInterruption && n.Deadline.Sub(n.Time) > spotNotice {
			t.Errorf("a spot warning of %s", n.Deadline.Sub(n.Time))
		}
		wrapped, err := json.Marshal(map[string]string{"Type": "Notification", "Message": body})
		if err != nil {
			t.Fatal(err)
		}
		if json.Valid([]byte(body)) && !strings.Contains(strings.ToLower(body), `type"`) {
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
