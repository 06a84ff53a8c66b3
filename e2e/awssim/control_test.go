package awssim_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// control calls the control API and returns its status and its answer.
func control(t *testing.T, server *awssim.Server, method, path, body string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, "/_awssim/"+path, strings.NewReader(body)))
	answer, err := io.ReadAll(recorder.Body)
	if err != nil {
		t.Fatal(err)
	}
	return recorder.Code, string(answer)
}

func TestTheControlAPISetsUpWhatItShows(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	for _, step := range []struct{ method, path, body string }{
		{"PUT", "queues/q", `{"attributes": {"VisibilityTimeout": "20"}, "duplicates": 0.5}`},
		{"PUT", "queues/bare", ``},
		{"PUT", "instances/" + idA, `{"privateDNSName": "ip-10-0-0-1.ec2.internal", "tags": {"managed": ""}, "launchTime": "2026-11-20T10:15:30Z"}`},
		{"PUT", "groups/workers", `{"desired": 1, "instances": ["` + idA + `"]}`},
		{"PUT", "groups/workers/hooks/drain", `{"transition": "autoscaling:EC2_INSTANCE_TERMINATING", "heartbeatTimeout": "2m"}`},
		{"PUT", "target-groups/web", `{"deregistrationDelay": "30s"}`},
		{"PUT", "keys/k-1", `{"alias": "alias/queues"}`},
		{"PUT", "rules/all", `{"queue": "q"}`},
		{"PUT", "rules/off", `{"queue": "q", "pattern": "{\"source\": [\"aws.ec2\"]}", "disabled": true, "deadLetters": "bare"}`},
		{"POST", "topics", `{"arn": "` + topic + `", "policy": "{}"}`},
		{"POST", "subscriptions", `{"topicARN": "` + topic + `", "queue": "q", "raw": true}`},
		{"PUT", "faults/slow", `{"service": "ec2", "latency": "800ms", "hangFor": "1s", "skew": "-5m"}`},
	} {
		if status, answer := control(t, server, step.method, step.path, step.body); status != http.StatusOK {
			t.Errorf("%s %s: status %d: %s", step.method, step.path, status, answer)
		}
	}
	want := awssim.State{
		Queues: []awssim.Queue{{Name: "bare", Attributes: map[string]string{}}, {Name: "q", Attributes: map[string]string{"VisibilityTimeout": "20"}, Duplicates: 0.5}},
		Instances: []awssim.Instance{{
			ID: idA, State: "running", PrivateDNSName: "ip-10-0-0-1.ec2.internal", Tags: map[string]string{"managed": ""},
			LaunchTime: time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC), Zone: "us-east-1a", Type: "m5.large",
		}},
		Groups:        []awssim.Group{{Name: "workers", Desired: 1, Instances: []string{idA}}},
		Hooks:         []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 2 * time.Minute, DefaultResult: "ABANDON"}},
		TargetGroups:  []awssim.TargetGroup{{Name: "web", DeregistrationDelay: 30 * time.Second, Port: 80}},
		Keys:          []awssim.Key{{ID: "k-1", Alias: "alias/queues", Manager: "CUSTOMER", State: "Enabled"}},
		Rules:         []awssim.Rule{{Name: "all", Queue: "q"}, {Name: "off", Queue: "q", Pattern: `{"source": ["aws.ec2"]}`, Disabled: true, DeadLetters: "bare"}},
		Topics:        []awssim.Topic{{ARN: topic, Policy: "{}"}},
		Subscriptions: []awssim.Subscription{{TopicARN: topic, Queue: "q", Raw: true}},
		Faults:        []awssim.Fault{{ID: "slow", Service: "ec2", Latency: 800 * time.Millisecond, HangFor: time.Second, Skew: -5 * time.Minute}},
	}
	if diff := cmp.Diff(want, server.State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}

	_, shown := control(t, server, "GET", "state", "")
	other := awssim.New(awssim.Options{})
	if status, answer := control(t, other, "PUT", "state", shown); status != http.StatusOK || answer != shown {
		t.Errorf("the state shown and put elsewhere: status %d (-shown +got):\n%s", status, cmp.Diff(shown, answer))
	}
}

func TestTheControlAPIDrivesATermination(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	err := server.Apply(awssim.State{
		Queues:    []awssim.Queue{{Name: "q"}},
		Instances: []awssim.Instance{{ID: idA}},
		Groups:    []awssim.Group{{Name: "workers", Instances: []string{idA}}},
		Hooks:     []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating}},
		Rules:     []awssim.Rule{{Name: "all", Queue: "q"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, answer := control(t, server, "POST", "lifecycle", `{"instanceID": "`+idA+`"}`)
	var started, shown []awssim.LifecycleAction
	decode(t, answer, &started)
	_, answer = control(t, server, "GET", "lifecycle", "")
	decode(t, answer, &shown)
	if diff := cmp.Diff(started, shown); diff != "" || len(shown) != 1 {
		t.Errorf("actions (-started +shown):\n%s", diff)
	}
	var messages []awssim.Message
	_, answer = control(t, server, "GET", "queues/q/messages", "")
	decode(t, answer, &messages)
	if len(messages) != 1 || !strings.Contains(messages[0].Body, started[0].Token) {
		t.Errorf("messages = %+v, want the event of the action", messages)
	}

	_, answer = control(t, server, "POST", "queues/q/messages", "not JSON")
	var sent struct{ ID string }
	decode(t, answer, &sent)
	if got := server.Messages("q"); len(got) != 2 || got[1].ID != sent.ID || got[1].Body != "not JSON" {
		t.Errorf("messages = %+v, want the one that was sent", got)
	}
	if status, _ := control(t, server, "POST", "queues/q/messages/"+sent.ID+"/redeliver", ""); status != http.StatusOK {
		t.Errorf("redeliver: status %d", status)
	}
	if status, _ := control(t, server, "PUT", "instances/"+idA+"/state/stopped", ""); status != http.StatusOK || server.Instances()[0].State != "stopped" {
		t.Errorf("state: status %d, instance %+v", status, server.Instances()[0])
	}
	for path, want := range map[string]string{"calls": "[]", "counts": "[]", "faults": "[]", "effects": "ActionStarted"} {
		if _, answer := control(t, server, "GET", path, ""); !strings.Contains(answer, want) {
			t.Errorf("GET %s = %s, want %s in it", path, answer, want)
		}
	}
}

func TestTheControlAPISaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		says               string
	}{
		"a field that does not exist":    {"PUT", "queues/q", `{"visibility": 5}`, 400, "unknown field"},
		"a hook's field, too":            {"PUT", "groups/workers/hooks/drain", `{"timeout": 5}`, 400, "unknown field"},
		"an attribute out of range":      {"PUT", "queues/q", `{"attributes": {"DelaySeconds": "901"}}`, 400, "DelaySeconds"},
		"a malformed instance id":        {"PUT", "instances/i-xyz", ``, 400, "malformed id"},
		"a group of unknown instances":   {"PUT", "groups/workers", `{"instances": ["` + idA + `"]}`, 400, "no instance"},
		"a hook of no group":             {"PUT", "groups/workers/hooks/drain", `{}`, 400, "no group"},
		"a message for no queue":         {"POST", "queues/q/messages", `hello`, 400, "no queue"},
		"a lifecycle of no instance":     {"POST", "lifecycle", `{"instanceID": "` + idA + `"}`, 400, "no such instance"},
		"an unknown transition":          {"POST", "lifecycle", `{"transition": "sideways"}`, 400, "unknown transition"},
		"a fault's time that is no time": {"PUT", "faults/x", `{"latency": "soon"}`, 400, "soon"},
		"removing a fault that is not":   {"DELETE", "faults/x", ``, 404, "not found"},
		"removing an instance likewise":  {"DELETE", "instances/" + idA, ``, 404, "not found"},
		"a path that is not":             {"GET", "nowhere", ``, 404, "not found"},
		"state with all kinds of faults": {"PUT", "state", `{"queues": [{"name": ""}], "rules": [{"name": "x", "detailType": "["}]}`, 400, "syntax error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, answer := control(t, awssim.New(awssim.Options{}), test.method, test.path, test.body)
			if status != test.status || !strings.Contains(answer, test.says) {
				t.Errorf("status %d: %s; want %d and %q in it", status, answer, test.status, test.says)
			}
		})
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(into); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
}

func TestCallsThatAreNoCallsOfAWS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header http.Header
		body   string
		code   string
	}{
		"nothing":                       {nil, "", "NoSuchVersion"},
		"another service":               {nil, "Action=ListMetrics&Version=2010-08-01", "NoSuchVersion"},
		"an action that does not exist": {nil, "Action=Fly&Version=2016-11-15", "InvalidAction"},
		"a form that is none":           {nil, "a=%zz", "MalformedQueryString"},
		"another JSON service":          {http.Header{"X-Amz-Target": {"DynamoDB_20120810.GetItem"}}, "{}", "InvalidAction"},
		"JSON that is none":             {http.Header{"X-Amz-Target": {"AmazonSQS.SendMessage"}}, "{", "SerializationException"},
		"JSON of another shape":         {http.Header{"X-Amz-Target": {"AmazonSQS.SendMessage"}}, `{"MessageBody": 5}`, "SerializationException"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := awssim.New(awssim.Options{})
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(test.body))
			request.Header = test.header
			recorder := httptest.NewRecorder()
			server.ServeHTTP(recorder, request)
			if code := server.Calls()[0].Code; code != test.code || recorder.Code != http.StatusBadRequest {
				t.Errorf("status %d, code %q, want 400 and %q", recorder.Code, code, test.code)
			}
		})
	}
}

func TestListenServesUntilClose(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	endpoint, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if url := server.QueueURL("q"); url != endpoint+"/123456789012/q" {
		t.Errorf("queue URL = %s at endpoint %s", url, endpoint)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/_awssim/state", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if _, err := server.Listen(t.Context(), strings.TrimPrefix(endpoint, "http://")); err == nil {
		t.Error("Listen took an address that is in use")
	}
	server.Close()
	server.Close()
	if _, err := server.Listen(t.Context(), "127.0.0.1:0"); err == nil {
		t.Error("Listen took a server that is closed")
	}
	if _, err := http.DefaultClient.Do(request); err == nil {
		t.Error("the server answers after Close")
	}
}
