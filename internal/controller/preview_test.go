package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestAPreviewIsWhatTheNodeWouldBeDrainedBy(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)
	after := func(d time.Duration) time.Time { return at.Add(d) }
	policy := Policy{NodeGracePeriod: 2 * time.Minute}
	sooner := cluster.Intent{}.With(cluster.Entry{Kind: notice.SpotInterruption, Deadline: after(time.Minute)}, nil, at)
	for name, tt := range map[string]struct {
		notice  notice.Notice
		limits  asg.Limits
		carried cluster.Intent
		want    Outcome
	}{
		"a spot warning": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)},
			want:   Outcome{Why: WhySpotInterruption, Terms: pods.Terms{Deadline: after(2 * time.Minute)}},
		},
		"of a node that has to be empty sooner": {
			notice: notice.Notice{Kind: notice.SpotInterruption, Time: at, Deadline: after(2 * time.Minute)}, carried: sooner,
			want: Outcome{Why: WhySpotInterruption, Terms: pods.Terms{Deadline: after(time.Minute)}},
		},
		"a recommendation": {
			notice: notice.Notice{Kind: notice.RebalanceRecommendation, Time: at},
			want:   Outcome{Why: WhyRebalance, Patience: after(2 * time.Minute)},
		},
		"an instance that stops": {
			notice: notice.Notice{Kind: notice.StateChange, Time: at},
			want:   Outcome{Why: WhyStopping, Terms: pods.Terms{Deadline: after(2 * time.Minute), IgnoreBudgets: true}},
		},
		"a hook": {
			notice: notice.Notice{Kind: notice.ASGTerminate, Time: at, Hook: notice.Hook{Group: "workers", Name: "drain"}}, limits: asg.Limits{Timeout: 5 * time.Minute},
			want: Outcome{Why: WhyScaleIn, Terms: pods.Terms{Deadline: after(5*time.Minute - 5*time.Second)}},
		},
	} {
		if diff := cmp.Diff(tt.want, Preview(tt.notice, tt.limits, policy, tt.carried, at)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
