package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

const (
	// largest is what SQS takes, and read about what the handler reads.
	largest, read = 1 << 20, 500 << 10
	// steering ends a line, clears a screen and sets a window's title, in JSON.
	steering = `\n\r\u001b[2J\u001b]0;owned\u0007\u009b31m\u2028\u202e`
)

// hostileBodies are about a node, which readable ones make drain; unreadable ones name it too,
// and strange ones are about an id that is like its own.
func (s *scenario) hostileBodies(n node) (readable, unreadable, strange []string) {
	s.Helper()
	spot := s.body("spot-interruption", n.instance)
	health := s.body("health-reboot-scheduled", n.instance, startTime, ahead())
	entities := func(id func(k int) string) string {
		var all strings.Builder
		for k := range 10_000 {
			fmt.Fprintf(&all, `{"entityValue": %q}, `, id(k))
		}
		return strings.Replace(health, `"affectedEntities": [`, `"affectedEntities": [`+all.String(), 1)
	}
	spotWith := func(field string) string { return strings.Replace(spot, `"id":`, field+`, "id":`, 1) }
	readable = []string{
		strings.Replace(spot, `"id": "`, `"id": "`+steering, 1),
		strings.Replace(health, `"eventTypeCode": "`, `"eventTypeCode": "`+steering, 1),
		spotWith(`"more": "` + strings.Repeat("x", read) + `"`),
		spotWith(`"more": ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000)),
		spotWith(`"detail": {"instance-id": "i-00000000"}, "source": "aws.health"`), // the last of each counts
		entities(func(int) string { return "../" + n.instance }),
		entities(func(int) string { return n.instance }),
		entities(func(int) string { return "vol-0123456789abcdef0" }),
	}
	id := func(id string) string { return s.body("spot-interruption", id) }
	unreadable = []string{
		spotWith(`"more": "` + strings.Repeat("x", largest-len(spot)-64) + `"`),
		strings.Repeat("[", largest), strings.Repeat("\x1b[31m\n", largest/6),
		"\xff\xfe\x00" + spot, spot + spot,
		spotWith(`"more": ` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)),
		spotWith(`"more": "` + "\x1b" + `[2J"`),
		s.body("asg-terminate-direct-to-sqs", n.instance, `"LifecycleHookName": "`, `"LifecycleHookName": "`+steering),
	}
	strange = []string{
		id("i-*"), id("../" + n.instance), id(n.instance + "/../nodes"), id(n.instance + ",a=b"), id("!" + n.instance), id(n.instance + `\n`), id(steering),
	}
	return readable, unreadable, strange
}

func TestHostileBodiesNeitherStopTheHandlerNorSteerWhatReadsItsLog(t *testing.T) {
	t.Parallel()
	const hush = "hush-webhook"
	for name, tt := range map[string]struct {
		args  []string
		entry func(line string) bool
	}{
		"on a console": {
			[]string{"--webhook-url=http://127.0.0.1:1/services/" + hush, `--webhook-headers={"X-Token":"` + hush + `"}`},
			regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+\t(DEBUG|INFO|WARN|ERROR)\t`).MatchString,
		},
		"in JSON": {
			[]string{"--json-logging", "--webhook-url=http://webhook.invalid/" + hush, "--webhook-proxy=http://user:" + hush + "@127.0.0.1:1"},
			func(line string) bool {
				var entry struct{ Level, Time, Msg string }
				return json.Unmarshal([]byte(line), &entry) == nil && entry.Level != "" && entry.Time != "" && entry.Msg != ""
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(2)
			s.deployment("web", 2)
			h := s.alone(append(tt.args, "--log-level=debug", "--delete-sqs-msg-if-node-not-found", short)...)
			before := s.placement()
			readable, unreadable, strange := s.hostileBodies(nodes[0])
			var messages []string
			for _, body := range slices.Concat(readable, unreadable) {
				messages = append(messages, s.send(body))
			}
			for _, body := range strange {
				s.send(body)
			}
			s.awaitDeleted(soon, messages...)
			s.drainedExactly(before, nodes[0])
			if got := h.decisions("Ignored", "reject", "undecodable"); got != len(unreadable) {
				t.Errorf("%d messages were rejected, want %d", got, len(unreadable))
			}
			s.eventually("the messages about no instance are left", func() bool {
				return h.decisions("Ignored", "leave", "no-instance-id") >= len(strange) // each time that they are received
			})
			s.eventually("the webhook has failed", func() bool { return strings.Contains(h.log.String(), "the webhook has not taken a message") })
			told := []string{h.body(h.metrics, "/metrics"), h.body(h.probes, "/readyz"), h.body(h.probes, "/healthz")}
			if status := h.stop(); status != 0 {
				t.Errorf("exit status %d", status)
			}
			log := h.log.String()
			for line := range strings.Lines(log) {
				if line = strings.TrimSuffix(line, "\n"); !tt.entry(line) || strings.ContainsAny(line, "\r\x1b\x07\u009b\u2028\u202e") || len(line) > 8192 {
					t.Errorf("no line of a log: %.400q", line)
				}
			}
			for _, text := range append(told, log) {
				for _, secret := range []string{hush, url.QueryEscape(hush), release.SecretAccessKey} {
					if strings.Contains(text, secret) {
						t.Errorf("%s is told: %.1000s", secret, text[max(0, strings.Index(text, secret)-500):])
					}
				}
			}
			for _, e := range s.told("default", "Node", nodes[0].name) {
				if strings.ContainsAny(e.Message, "\n\r\x1b\x07\u009b\u2028\u202e") {
					t.Errorf("an Event that steers a terminal: %q", e.Message)
				}
			}
		})
	}
}

func TestHooksThatAreNotOnTheListAreLeftToWhomTheyBelongTo(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 2)
	s.must(s.aws.Apply(awssim.State{
		Groups: []awssim.Group{{Name: "workers", Desired: 2, Instances: []string{nodes[0].instance, nodes[1].instance}}},
		Hooks: []awssim.Hook{
			{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 10 * time.Minute},
			{Group: "workers", Name: "backup", Transition: awssim.Terminating, HeartbeatTimeout: 10 * time.Minute},
		},
		Rules: []awssim.Rule{{Name: "lifecycle", DetailType: "EC2 Instance-* Lifecycle Action", Queue: queueName}},
	}))
	h := s.alone("--lifecycle-hook-names=drain", "--heartbeat-interval=30", "--node-termination-grace-period=5")
	before := s.placement()
	actions, err := s.aws.StartTransition(nodes[0].instance, awssim.Terminating)
	s.must(err)
	if len(actions) != 2 {
		t.Fatalf("actions %+v, want two", actions)
	}
	s.awaitDeleted(soon, s.sent()...)
	s.drainedExactly(before, nodes[0])
	for _, a := range actions {
		if a.Hook == "drain" {
			s.completedOnce(a.Token)
		} else if now := s.action(a.Token); now.Outcome != awssim.Active || now.Heartbeats > 0 {
			t.Errorf("somebody else's action is %+v", now)
		}
	}
	for _, c := range s.aws.Calls() {
		if c.Service == "autoscaling" && fmt.Sprint(c.Params["hook"]) != "[drain]" {
			t.Errorf("a call about another hook: %+v", c)
		}
	}
	if n := h.decisions("ASGTerminate", "drain", "lifecycle-hook-terminating"); n != 2 {
		t.Errorf("%d decisions to drain, want one for each hook", n)
	}
}
