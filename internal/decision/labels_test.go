package decision

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestEveryDecisionIsAmongThoseThatAreExpected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			CordonOnly: rapid.Bool().Draw(t, "cordon only"), DeleteForeign: rapid.Bool().Draw(t, "delete foreign"), NodeGracePeriod: 2 * time.Minute,
			HookNames: rapid.SampledFrom([][]string{nil, {"a"}, {"b"}}).Draw(t, "hook names"),
		}
		expected := map[Labels]bool{}
		for _, key := range p.Possible() {
			if expected[key] {
				t.Fatalf("%v is there twice", key)
			}
			expected[key] = true
		}
		now := time.Now()
		n := notice.Notice{Kind: rapid.SampledFrom(notice.Kinds).Draw(t, "kind")}
		f := Facts{Ownership: Ownership(rapid.IntRange(int(Foreign), int(Ours)).Draw(t, "whose")), Now: now}
		if rapid.Bool().Draw(t, "has a time") {
			n.Time = now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "age")) * time.Second)
		}
		if rapid.Bool().Draw(t, "has a deadline") {
			n.Deadline = now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "left")) * time.Second)
		}
		switch n.Kind {
		case notice.StateChange:
			n.Gone = rapid.Bool().Draw(t, "gone")
		case notice.ScheduledChange:
			n.Ended = rapid.Bool().Draw(t, "ended")
			n.Detail = rapid.SampledFrom([]string{
				"", "instance-stop", "instance-reboot", "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED",
			}).Draw(t, "code")
			f.CalledOff = !n.Ended && rapid.Bool().Draw(t, "called off")
		case notice.ASGTerminate, notice.ASGLaunch:
			n.Hook.Name = rapid.SampledFrom([]string{"a", "c"}).Draw(t, "hook")
			f.Limits = notice.HookLimits{Timeout: time.Duration(rapid.IntRange(0, 7200).Draw(t, "timeout")) * time.Second}
		}
		f.Drained = CanFollow(n) && rapid.Bool().Draw(t, "drained")
		d := Decide(n, f, p)
		if key := (Labels{n.Kind, d.Action, d.Why}); !expected[key] {
			t.Errorf("%v is not expected", key)
		}
	})
}
