package decision

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestAPreviewIsWhatTheNodeWouldBeDrainedBy(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)
	after := func(d time.Duration) time.Time { return at.Add(d) }
	p := Policy{NodeGracePeriod: 2 * time.Minute, Accounts: []string{"123456789012"}, Region: "us-east-1", ManagedTag: "managed"}
	sooner := intent.Intent{}.With(intent.Entry{Kind: notice.SpotInterruption, Deadline: after(time.Minute)}, nil, at)
	drained := sooner
	drained.FinishedAt, drained.Outcome = at, intent.Drained
	for name, tt := range map[string]struct {
		notice  notice.Notice
		tags    map[string]string
		limits  notice.HookLimits
		carried intent.Intent
		labels  map[string]string
		open    bool // the node is not cordoned
		want    Preview
		gone    time.Time // when the machine goes away
	}{
		"a spot warning": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)},
			want:   Preview{Why: WhySpotInterruption, Rule: RuleDrain}, gone: after(2 * time.Minute),
		},
		"that a rule ignores": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, labels: map[string]string{"team": "batch"},
			want: Preview{Why: WhyIgnoredByRule, Ignored: true, Rule: "batch"},
		},
		"of an instance with the tag": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, tags: map[string]string{"managed": ""},
			want: Preview{Why: WhySpotInterruption, Rule: RuleDrain}, gone: after(2 * time.Minute),
		},
		"of an instance without the tag": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, tags: map[string]string{"Name": "a"},
			want: Preview{Why: WhyUnmanaged, Ignored: true},
		},
		"of another account": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Account: "210987654321"},
			want:   Preview{Why: WhyElsewhere, Ignored: true},
		},
		"of no account": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Account: notice.NoAccount, Region: "us-east-1"},
			want:   Preview{Why: WhyElsewhere, Ignored: true},
		},
		"of another region": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Account: "123456789012", Region: "eu-west-1"},
			want:   Preview{Why: WhyElsewhere, Ignored: true},
		},
		"of a node that has to be empty sooner": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, carried: sooner,
			want: Preview{Why: WhySpotInterruption, Rule: RuleDrain}, gone: after(time.Minute),
		},
		"a recommendation": {
			notice: notice.Notice{Kind: notice.RebalanceRecommendation, Time: at},
			want:   Preview{Why: WhyRebalance, Rule: RuleDrain},
		},
		"an instance that stops": {
			notice: notice.Notice{Kind: notice.StateChange, Time: at},
			want:   Preview{Why: WhyStopping, Rule: RuleDrain}, gone: after(2 * time.Minute),
		},
		"an instance that stops after the drain for that": {
			notice: notice.Notice{Kind: notice.StateChange, Time: after(time.Minute)}, carried: drained,
			want: Preview{Why: WhyStopping, Rule: RuleDrain, Follows: true}, gone: after(time.Minute),
		},
		"the same, uncordoned": {
			notice: notice.Notice{Kind: notice.StateChange, Time: after(time.Minute)}, carried: drained, open: true,
			want: Preview{Why: WhyStopping, Rule: RuleDrain}, gone: after(time.Minute),
		},
		"another warning after a drain": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, carried: drained,
			want: Preview{Why: WhySpotInterruption, Rule: RuleDrain}, gone: after(time.Minute),
		},
		"a hook": {
			notice: notice.Notice{Kind: notice.ASGTerminate, Time: at, Hook: notice.Hook{Group: "workers", Name: "drain"}}, limits: notice.HookLimits{Timeout: 5 * time.Minute},
			want: Preview{Why: WhyScaleIn, Rule: RuleDrain}, gone: after(5*time.Minute - 5*time.Second),
		},
	} {
		p := p
		p.Rules = Rules{Nodes: []NodeRule{{Name: "batch", Nodes: []Selector{{{Key: "team", Values: []string{"batch"}}}}, Do: Ignoring, Before: -1}}}
		got := p.Preview(tt.notice, Subject{Labels: tt.labels, Tags: tt.tags, Limits: tt.limits, Carried: tt.carried, Cordoned: !tt.open}, at)
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Preview{}, "Intent")); diff != "" || !got.Intent.Deadline().Equal(tt.gone) {
			t.Errorf("%s, gone at %s (-want +got):\n%s", name, got.Intent.Deadline(), diff)
		}
	}
}
