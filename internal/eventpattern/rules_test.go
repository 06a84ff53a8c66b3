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
// SNS wraps is taken out of it: EventBridge has seen it before that.
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
		if n.Kind != notice.Ignored && strings.Contains(body, `"detail-type"`) { // else Auto Scaling sends it by itself
			want = []string{ruleOf(n.Kind)}
			tried[n.Kind] = true
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
		if !tried[k] {
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
