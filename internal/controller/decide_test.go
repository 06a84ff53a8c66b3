package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var (
	now    = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)
	policy = Policy{NodeGracePeriod: 2 * time.Minute}
	hook   = notice.Hook{Group: "workers", Name: "drain"}
)

// A second is what the tables count times in, from now.
func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

func TestDecideAboutANodeOfOurs(t *testing.T) {
	limits := asg.Limits{Timeout: 300 * time.Second, Global: 30000 * time.Second}
	for name, tt := range map[string]struct {
		n         notice.Notice
		limits    asg.Limits
		calledOff bool
		policy    Policy
		want      decision
	}{
		"a spot warning": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-3), Deadline: at(117)},
			want: decision{action: drain, why: WhySpotInterruption, deadline: at(117)},
		},
		"a spot warning without a time counts from now": {
			n:    notice.Notice{Kind: notice.SpotInterruption},
			want: decision{action: drain, why: WhySpotInterruption, deadline: at(120)},
		},
		"a spot warning of the future counts from now": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(3600), Deadline: at(3720)},
			want: decision{action: drain, why: WhySpotInterruption, deadline: at(120)},
		},
		"a spot warning that comes late": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-900), Deadline: at(-780)},
			want: decision{action: drain, why: WhySpotInterruption, deadline: at(-780)},
		},
		"an hour-old spot warning tells no deadline any more: its machine is there still": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-3600), Deadline: at(-3480)},
			want: decision{action: drain, why: WhySpotInterruption, patience: at(120)},
		},
		"a rebalance recommendation forces nothing and keeps its message for the grace period": {
			n:    notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3)},
			want: decision{action: drain, why: WhyRebalance, patience: at(120)},
		},
		"an instance that is stopping": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3)},
			want: decision{action: drain, why: WhyStopping, deadline: at(117)},
		},
		"an instance that was stopping an hour ago may have been started again": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3600)},
			want: decision{action: drain, why: WhyStopping, patience: at(120)},
		},
		"an instance that will be stopping in an hour, by its clock, is stopping now": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(3600)},
			want: decision{action: drain, why: WhyStopping, deadline: at(120)},
		},
		"an hour-old rebalance recommendation still holds": {
			n:    notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3600)},
			want: decision{action: drain, why: WhyRebalance, patience: at(120)},
		},
		"an instance that has stopped": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3), Gone: true},
			want: decision{action: finish, why: WhyNothingRuns},
		},
		"a scheduled change ahead": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Deadline: at(86400)},
			want: decision{action: drain, why: WhyScheduledChange, deadline: at(86400)},
		},
		"a scheduled change that has begun forces nothing": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Deadline: at(-60)},
			want: decision{action: drain, why: WhyScheduledChange, patience: at(120)},
		},
		"a scheduled change that a message which came first has called off": {
			n: notice.Notice{Kind: notice.ScheduledChange, Deadline: at(86400)}, calledOff: true,
			want: decision{action: drop, why: WhyChangeEnded},
		},
		"a scheduled change that is over": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Ended: true},
			want: decision{action: undo, why: WhyChangeEnded},
		},
		"a termination hook lasts its timeout, less the time to complete it": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			want: decision{action: drain, why: WhyScaleIn, deadline: at(285)},
		},
		"with heartbeats as long as they are sent": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HeartbeatUntil: 2 * time.Hour},
			want:   decision{action: drain, why: WhyScaleIn, deadline: at(7185)},
		},
		"with heartbeats at most the hook's global limit": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HeartbeatUntil: 48 * time.Hour},
			want:   decision{action: drain, why: WhyScaleIn, deadline: at(29985)},
		},
		"a termination hook that cannot be read lasts the grace period": {
			n:    notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook},
			want: decision{action: drain, why: WhyScaleIn, deadline: at(110)},
		},
		"a termination hook that was to end long ago tells no deadline any more": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-3600), Hook: hook}, limits: limits,
			want: decision{action: drain, why: WhyScaleIn, patience: at(120)},
		},
		"a termination hook of the future begins now": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(3600), Hook: hook}, limits: limits,
			want: decision{action: drain, why: WhyScaleIn, deadline: at(295)},
		},
		"a termination hook by a name of ours": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other", "drain"}},
			want:   decision{action: drain, why: WhyScaleIn, deadline: at(285)},
		},
		"somebody else's termination hook drains, and its time is no deadline": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want:   decision{action: drain, why: WhyScaleIn, patience: at(120)},
		},
		"somebody else's launch hook": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want:   decision{action: drop, why: WhyOthersHook},
		},
		"a launch hook": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-10), Hook: hook}, limits: limits,
			want: decision{action: launch, why: WhyLaunch, deadline: at(285)},
		},
		"cordon-only": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation}, policy: Policy{CordonOnly: true, NodeGracePeriod: time.Minute},
			want: decision{action: cordon, why: WhyRebalance, patience: at(60)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.policy.NodeGracePeriod == 0 {
				tt.policy = policy
			}
			diffDecision(t, tt.want, decide(tt.n, facts{whose: ours, limits: tt.limits, calledOff: tt.calledOff, now: now}, tt.policy))
		})
	}
}

func TestDecideAboutAnInstanceWithoutANode(t *testing.T) {
	spot := notice.Notice{Kind: notice.SpotInterruption, Time: at(-3), Deadline: at(117)}
	terminate := notice.Notice{Kind: notice.ASGTerminate, Time: at(-3), Hook: hook}
	limits := asg.Limits{Timeout: time.Hour, Global: 48 * time.Hour}
	for name, tt := range map[string]struct {
		n      notice.Notice
		w      whose
		policy Policy
		want   decision
	}{
		"foreign": {
			n: spot, w: foreign,
			want: decision{action: leave, why: WhyForeign},
		},
		"foreign, to be deleted": {
			n: spot, w: foreign, policy: Policy{DeleteForeign: true, NodeGracePeriod: time.Minute},
			want: decision{action: drop, why: WhyForeign},
		},
		"without the managed tag": {
			n: spot, w: unmanaged,
			want: decision{action: leave, why: WhyUnmanaged},
		},
		"unknown, and never deleted": {
			n: spot, w: unknown, policy: Policy{DeleteForeign: true, NodeGracePeriod: time.Minute},
			want: decision{action: leave, why: WhyUnknown},
		},
		"the end of a foreign change": {
			n: notice.Notice{Kind: notice.ScheduledChange, Ended: true}, w: foreign,
			want: decision{action: leave, why: WhyForeign},
		},
		"a node that will come is waited for until the deadline": {
			n: spot, w: pending,
			want: decision{action: hold, why: WhyNoNodeYet, deadline: at(117), patience: at(117)},
		},
		"or, without one, while a node is to be expected": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3)}, w: pending,
			want: decision{action: hold, why: WhyNoNodeYet, patience: at(897)},
		},
		"a node that never joined does not keep its group from scaling in": {
			n: terminate, w: pending,
			want: decision{action: hold, why: WhyNoNodeYet, deadline: at(3592), patience: at(117)},
		},
		"a launch hook waits for the node": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-3), Hook: hook}, w: pending,
			want: decision{action: launch, why: WhyLaunch, deadline: at(3592)},
		},
		"nothing runs on an instance that never had a node": {
			n: notice.Notice{Kind: notice.StateChange, Gone: true}, w: pending,
			want: decision{action: drop, why: WhyNothingRuns},
		},
		"gone":                    {n: spot, w: departed, want: decision{action: drop, why: WhyGone}},
		"gone, and its hook open": {n: terminate, w: departed, want: decision{action: complete, why: WhyGone}},
		"gone, and somebody else's hook open": {
			n: terminate, w: departed, policy: Policy{NodeGracePeriod: time.Minute, HookNames: []string{"other"}},
			want: decision{action: drop, why: WhyGone},
		},
		"a node that will come is waited for, for somebody else's hook too": {
			n: terminate, w: pending, policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want: decision{action: hold, why: WhyNoNodeYet, patience: at(117)},
		},
		"a node that was expected an hour ago is not waited for": {
			n: notice.Notice{Kind: notice.SpotInterruption, Time: at(-3600), Deadline: at(-3480)}, w: pending,
			want: decision{action: hold, why: WhyNoNodeYet, patience: at(-2700)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.policy.NodeGracePeriod == 0 {
				tt.policy = policy
			}
			diffDecision(t, tt.want, decide(tt.n, facts{whose: tt.w, limits: limits, now: now}, tt.policy))
		})
	}
}

// Whatever comes, a decision has a reason, and its deadline is none of the future's making.
func TestEveryDecisionHasAReason(t *testing.T) {
	for _, kind := range notice.Kinds {
		for _, w := range []whose{foreign, unmanaged, unknown, pending, departed, ours} {
			for _, ended := range []bool{false, true} {
				n := notice.Notice{Kind: kind, Time: now, Deadline: at(120), Ended: ended && kind == notice.ScheduledChange, Gone: ended && kind == notice.StateChange}
				d := decide(n, facts{whose: w, limits: asg.Limits{Timeout: time.Hour, Global: time.Hour}, now: now}, policy)
				if d.why == "" || d.action.String() == "" {
					t.Errorf("%v, whose %d: %+v", kind, w, d)
				}
				if writes := d.action != leave && d.action != drop; writes && (w == foreign || w == unmanaged || w == unknown) {
					t.Errorf("%v of a foreign instance: %v", kind, d.action)
				}
			}
		}
	}
}

func TestADrainCanWaitUntilItsDeadlineIsNear(t *testing.T) {
	intent := func(kind notice.Kind, deadline time.Time) cluster.Intent {
		return cluster.Intent{}.With(cluster.Entry{Kind: kind, Deadline: deadline}, nil, now)
	}
	for name, tt := range map[string]struct {
		i    cluster.Intent
		want bool
	}{
		"a spot warning cannot":                        {intent(notice.SpotInterruption, at(120)), false},
		"nor can an instance that is stopping":         {intent(notice.StateChange, at(3600)), false},
		"a spot warning of hours ago can":              {intent(notice.SpotInterruption, time.Time{}), true},
		"a rebalance recommendation can":               {intent(notice.RebalanceRecommendation, time.Time{}), true},
		"but not one that a spot warning has joined":   {intent(notice.RebalanceRecommendation, time.Time{}).With(cluster.Entry{Kind: notice.SpotInterruption, Deadline: at(120)}, nil, now), false},
		"a scheduled change of tomorrow can":           {intent(notice.ScheduledChange, at(86400)), true},
		"a termination hook can, with time left":       {intent(notice.ASGTerminate, at(121)), true},
		"but not with no more than the grace period's": {intent(notice.ASGTerminate, at(120)), false},
	} {
		if got := canWait(tt.i, now, policy); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestTheBoundOfUnreadyNodesIsANumberOrAPercentage(t *testing.T) {
	for _, tt := range []struct {
		max         string
		nodes, want int
	}{
		{"3", 100, 3}, {"3", 2, 3}, {"10%", 100, 10}, {"10%", 99, 9}, {"10%", 5, 1}, {"10%", 0, 1}, {"100%", 7, 7},
	} {
		if got := (Policy{MaxUnready: intstr.Parse(tt.max)}).mostUnready(tt.nodes); got != tt.want {
			t.Errorf("%s of %d nodes: %d, want %d", tt.max, tt.nodes, got, tt.want)
		}
	}
}

func diffDecision(t *testing.T, want, got decision) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(decision{})); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

func BenchmarkDecide(b *testing.B) {
	n := notice.Notice{Kind: notice.ASGTerminate, Time: now}
	limits := asg.Limits{Timeout: time.Hour, Global: 48 * time.Hour}
	for b.Loop() {
		decide(n, facts{whose: ours, limits: limits, now: now}, policy)
	}
}
