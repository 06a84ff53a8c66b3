package eventpattern_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// rules are the patterns of deploy/eventbridge, which the templates have too,
// as hack/iac sees to.
func rules(t *testing.T) map[string]map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../deploy/eventbridge/patterns.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// ruleOf is the rule that brings the notices of a kind.
func ruleOf(k notice.Kind) string {
	if k == notice.ASGTerminate || k == notice.ASGLaunch {
		return "LifecycleAction"
	}
	return k.String()
}

// events are the bodies that the queue may hold, by the names of their files. What
// SNS or a custom event bus wraps is taken out of it: a rule sees it before that.
func events(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../notice/testdata/events/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	bodies := map[string]string{}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var sns struct{ Type, Message string }
		if err := json.Unmarshal(body, &sns); err != nil {
			t.Fatal(err)
		}
		if sns.Type == "Notification" {
			body = []byte(sns.Message)
		}
		var bus struct{ Data json.RawMessage }
		if err := json.Unmarshal(body, &bus); err != nil {
			t.Fatal(err)
		}
		if bus.Data != nil {
			body = bus.Data
		}
		bodies[strings.TrimSuffix(filepath.Base(path), ".json")] = string(body)
	}
	return bodies
}

func matches(t *testing.T, pattern map[string]any, event string) bool {
	t.Helper()
	text, err := json.Marshal(pattern)
	if err != nil {
		t.Fatal(err)
	}
	p, err := eventpattern.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	yes, err := p.Match(event)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}

func TestOurRulesTakeEveryEventThatIsActedOnAndNoOther(t *testing.T) {
	tried := map[notice.Kind]bool{}
	for name, body := range events(t) {
		n, err := notice.Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		// Without a detail-type Auto Scaling sends it by itself, or it is an example as AWS prints it.
		// That an instance runs its node tells: each launch would be a message.
		if n.Kind != notice.Ignored && !n.Runs && strings.Contains(body, `"detail-type"`) {
			tried[n.Kind] = true
			want = []string{ruleOf(n.Kind)}
		}
		for rule, pattern := range rules(t) {
			if matches(t, pattern, body) {
				got = append(got, rule)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is taken by %v, want %v", name, got, want)
		}
	}
	for _, k := range notice.Kinds {
		if !tried[k] && k != notice.InstanceImpaired { // of that no event tells
			t.Errorf("no event of the kind %s was tried", k)
		}
	}
}

func TestLifecycleEventsCanBeFilteredByGroup(t *testing.T) {
	pattern := rules(t)["LifecycleAction"]
	for group, want := range map[string]bool{"workers": true, "others": false} {
		pattern["detail"] = map[string]any{"AutoScalingGroupName": []string{group}}
		for _, name := range []string{"asg-terminate-lifecycle", "asg-launch-lifecycle"} {
			if got := matches(t, pattern, events(t)[name]); got != want {
				t.Errorf("%s of the group workers is taken by the rule for %s: %v, want %v", name, group, got, want)
			}
		}
	}
}

// TestTheRulesForCapacityReservationsTakeEitherName: AWS renamed both events.
func TestTheRulesForCapacityReservationsTakeEitherName(t *testing.T) {
	for detailType, want := range map[string]string{
		"EC2 Capacity Reservation Instance Interruption Warning":               "CapacityReservationInterruption",
		"EC2 Interruptible Capacity Reservation Instance Interruption Warning": "CapacityReservationInterruption",
		"Capacity Block Expiration Warning":                                    "CapacityBlockExpiration",
		"Capacity Block Reservation Expiration Warning":                        "CapacityBlockExpiration",
		"Capacity Block Delivered":                                             "",
	} {
		event := `{"source":"aws.ec2","detail-type":"` + detailType + `","detail":{}}`
		got := ""
		for rule, pattern := range rules(t) {
			if matches(t, pattern, event) {
				got += rule
			}
		}
		if got != want {
			t.Errorf("%s is taken by %q, want %q", detailType, got, want)
		}
		if taken := matches(t, single(t), event); taken != (want != "") {
			t.Errorf("%s is taken by the single rule: %v", detailType, taken)
		}
	}
}

// single is the pattern of the rule that takes all kinds.
func single(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../deploy/eventbridge/single.json")
	if err != nil {
		t.Fatal(err)
	}
	var pattern map[string]any
	if err := json.Unmarshal(text, &pattern); err != nil {
		t.Fatal(err)
	}
	return pattern
}

func TestASingleRuleTakesWhatTheOthersTake(t *testing.T) {
	for name, body := range events(t) {
		want := false
		for _, pattern := range rules(t) {
			want = want || matches(t, pattern, body)
		}
		if got := matches(t, single(t), body); got != want {
			t.Errorf("%s is taken by the single rule: %v, by the others: %v", name, got, want)
		}
	}
}

func TestASingleRuleCanFilterLifecycleEventsByGroup(t *testing.T) {
	pattern := single(t)
	for group, want := range map[string]bool{"workers": true, "others": false} {
		pattern["detail"].(map[string]any)["$or"] = []any{
			map[string]any{"AutoScalingGroupName": []string{group}},
			map[string]any{"AutoScalingGroupName": []any{map[string]any{"exists": false}}},
		}
		for name, body := range events(t) {
			taken := matches(t, single(t), body)
			if strings.Contains(body, `"AutoScalingGroupName"`) {
				taken = taken && want
			}
			if got := matches(t, pattern, body); got != taken {
				t.Errorf("%s is taken by the single rule for the group %s: %v", name, group, got)
			}
		}
	}
}
