package decision

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
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
	limits := notice.HookLimits{Timeout: 300 * time.Second, Global: 30000 * time.Second}
	for name, tt := range map[string]struct {
		n         notice.Notice
		limits    notice.HookLimits
		calledOff bool
		drained   bool
		policy    Policy
		want      Decision
	}{
		"an instance that stops, as was announced, and was drained for that": {
			n:       notice.Notice{Kind: notice.StateChange, Time: at(-3)},
			drained: true,
			want:    Decision{Action: Drop, Why: WhyConsequence, Deadline: at(117)},
		},
		"its hook is completed": {
			n:       notice.Notice{Kind: notice.ASGTerminate, Time: at(-3), Hook: notice.Hook{Name: "h"}},
			drained: true, limits: limits,
			want: Decision{Action: Complete, Why: WhyConsequence, Deadline: at(292)},
		},
		"somebody else's is not": {
			n:       notice.Notice{Kind: notice.ASGTerminate, Time: at(-3), Hook: notice.Hook{Name: "h"}},
			drained: true, limits: limits, policy: Policy{NodeGracePeriod: time.Minute, HookNames: []string{"another"}},
			want: Decision{Action: Drop, Why: WhyConsequence, HoldUntil: at(60)},
		},
		"one that has stopped is done with as ever": {
			n:       notice.Notice{Kind: notice.StateChange, Gone: true, Time: at(-3)},
			drained: true,
			want:    Decision{Action: Finish, Why: WhyNothingRuns},
		},
		"a spot warning": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-3), Deadline: at(117)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(117)},
		},
		"a spot warning without a time counts from now": {
			n:    notice.Notice{Kind: notice.SpotInterruption},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(120)},
		},
		"a spot warning of the future counts from now": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(3600), Deadline: at(3720)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(120)},
		},
		"an action that the metadata announces for later": {
			n:    notice.Notice{Kind: notice.SpotInterruption, ID: "imds-spot-terminate-20261120T111530Z", Time: at(3480), Deadline: at(3600)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(3600)},
		},
		"a hibernation that the metadata announces for later": {
			n:    notice.Notice{ID: "imds-spot-hibernate-20261120T101730Z", Kind: notice.SpotInterruption, Detail: notice.Hibernate, Time: at(120), Deadline: at(120)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(0)},
		},
		"a spot warning that comes late": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-900), Deadline: at(-780)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Deadline: at(-780)},
		},
		"an hour-old spot warning tells no deadline any more: its machine is there still": {
			n:    notice.Notice{Kind: notice.SpotInterruption, Time: at(-3600), Deadline: at(-3480)},
			want: Decision{Action: Drain, Why: WhySpotInterruption, HoldUntil: at(120)},
		},
		"an interrupted reservation says when the instance goes": {
			n:    notice.Notice{Kind: notice.CapacityReservationInterruption, Time: at(-3), Deadline: at(100)},
			want: Decision{Action: Drain, Why: WhyReservation, Deadline: at(100)},
		},
		"one that does not say it counts from the event": {
			n:    notice.Notice{Kind: notice.CapacityReservationInterruption, Time: at(-3)},
			want: Decision{Action: Drain, Why: WhyReservation, Deadline: at(117)},
		},
		"or from now, without a time or with one of the future": {
			n:    notice.Notice{Kind: notice.CapacityReservationInterruption, Time: at(3600)},
			want: Decision{Action: Drain, Why: WhyReservation, Deadline: at(120)},
		},
		"a Capacity Block that expires": {
			n:    notice.Notice{Kind: notice.CapacityBlockExpiration, Time: at(-3), Deadline: at(597)},
			want: Decision{Action: Drain, Why: WhyBlockExpires, Deadline: at(597)},
		},
		"a Capacity Block of which nobody knows when it expires": {
			n:    notice.Notice{Kind: notice.CapacityBlockExpiration, Time: at(-3)},
			want: Decision{Action: Drain, Why: WhyBlockExpires, Deadline: at(597)},
		},
		"a Capacity Block that should be gone for an hour": {
			n:    notice.Notice{Kind: notice.CapacityBlockExpiration, Time: at(-4200), Deadline: at(-3600)},
			want: Decision{Action: Drain, Why: WhyBlockExpires, HoldUntil: at(120)},
		},
		"a rebalance recommendation forces nothing and keeps its message for the grace period": {
			n:    notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3)},
			want: Decision{Action: Drain, Why: WhyRebalance, HoldUntil: at(120)},
		},
		"an instance that is stopping": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3)},
			want: Decision{Action: Drain, Why: WhyStopping, Deadline: at(117)},
		},
		"an instance that was stopping an hour ago may have been started again": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3600)},
			want: Decision{Action: Drain, Why: WhyStopping, HoldUntil: at(120)},
		},
		"an instance that will be stopping in an hour, by its clock, is stopping now": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(3600)},
			want: Decision{Action: Drain, Why: WhyStopping, Deadline: at(120)},
		},
		"an hour-old rebalance recommendation still holds": {
			n:    notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3600)},
			want: Decision{Action: Drain, Why: WhyRebalance, HoldUntil: at(120)},
		},
		"an instance that has stopped": {
			n:    notice.Notice{Kind: notice.StateChange, Time: at(-3), Gone: true},
			want: Decision{Action: Finish, Why: WhyNothingRuns},
		},
		"a scheduled change ahead": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Deadline: at(86400)},
			want: Decision{Action: Drain, Why: WhyScheduledChange, Deadline: at(86400), HoldUntil: at(120)},
		},
		"a retirement": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Detail: "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", Deadline: at(86400)},
			want: Decision{Action: Drain, Why: WhyScheduledStop, Deadline: at(86400), HoldUntil: at(120)},
		},
		"a reboot": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Detail: "system-reboot", Deadline: at(86400)},
			want: Decision{Action: Drain, Why: WhyScheduledReboot, Deadline: at(86400), HoldUntil: at(120)},
		},
		"maintenance of the network": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Detail: "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED", Deadline: at(86400)},
			want: Decision{Action: Drain, Why: WhyScheduledNetwork, Deadline: at(86400), HoldUntil: at(120)},
		},
		"a scheduled change that has begun forces nothing": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Deadline: at(-60)},
			want: Decision{Action: Drain, Why: WhyScheduledChange, HoldUntil: at(120)},
		},
		"a scheduled change that a message which came first has called off": {
			n: notice.Notice{Kind: notice.ScheduledChange, Deadline: at(86400)}, calledOff: true,
			want: Decision{Action: Drop, Why: WhyChangeEnded},
		},
		"a scheduled change that is over": {
			n:    notice.Notice{Kind: notice.ScheduledChange, Ended: true},
			want: Decision{Action: Undo, Why: WhyChangeEnded},
		},
		"an impaired instance is drained within the grace period": {
			n:    notice.Notice{Kind: notice.InstanceImpaired, Time: at(-3)},
			want: Decision{Action: Drain, Why: WhyImpaired, Deadline: at(117)},
		},
		"an instance that is not impaired any more": {
			n:    notice.Notice{Kind: notice.InstanceImpaired, Time: at(-3), Ended: true},
			want: Decision{Action: Undo, Why: WhyRecovered},
		},
		"a termination hook lasts its timeout, less the time to complete it": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			want: Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(285)},
		},
		"with heartbeats as long as they are sent": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HeartbeatUntil: 2 * time.Hour},
			want:   Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(7185)},
		},
		"with heartbeats at most the hook's global limit": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HeartbeatUntil: 48 * time.Hour},
			want:   Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(29985)},
		},
		"a termination hook that cannot be read lasts the grace period": {
			n:    notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook},
			want: Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(110), Assumed: true},
		},
		"a termination hook that was to end long ago tells no deadline any more": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-3600), Hook: hook}, limits: limits,
			want: Decision{Action: Drain, Why: WhyScaleIn, HoldUntil: at(120)},
		},
		"a termination hook of the future begins now": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(3600), Hook: hook}, limits: limits,
			want: Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(295)},
		},
		"a termination hook by a name of ours": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other", "drain"}},
			want:   Decision{Action: Drain, Why: WhyScaleIn, Deadline: at(285)},
		},
		"somebody else's termination hook drains, and its time is no deadline": {
			n: notice.Notice{Kind: notice.ASGTerminate, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want:   Decision{Action: Drain, Why: WhyScaleIn, HoldUntil: at(120)},
		},
		"somebody else's launch hook": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-10), Hook: hook}, limits: limits,
			policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want:   Decision{Action: Drop, Why: WhyOthersHook},
		},
		"a launch hook": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-10), Hook: hook}, limits: limits,
			want: Decision{Action: Launch, Why: WhyLaunch, Deadline: at(285)},
		},
		"cordon-only": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation}, policy: Policy{CordonOnly: true, NodeGracePeriod: time.Minute},
			want: Decision{Action: Cordon, Why: WhyRebalance, HoldUntil: at(60)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.policy.NodeGracePeriod == 0 {
				tt.policy = policy
			}
			diffDecision(t, tt.want, Decide(tt.n, Facts{Ownership: Ours, Limits: tt.limits, CalledOff: tt.calledOff, Drained: tt.drained, Now: now}, tt.policy))
		})
	}
}

func TestDecideAboutAnInstanceWithoutANode(t *testing.T) {
	spot := notice.Notice{Kind: notice.SpotInterruption, Time: at(-3), Deadline: at(117)}
	terminate := notice.Notice{Kind: notice.ASGTerminate, Time: at(-3), Hook: hook}
	limits := notice.HookLimits{Timeout: time.Hour, Global: 48 * time.Hour}
	for name, tt := range map[string]struct {
		n      notice.Notice
		w      Ownership
		policy Policy
		want   Decision
	}{
		"foreign": {
			n: spot, w: Foreign,
			want: Decision{Action: Leave, Why: WhyForeign},
		},
		"foreign, to be deleted": {
			n: spot, w: Foreign, policy: Policy{DeleteForeign: true, NodeGracePeriod: time.Minute},
			want: Decision{Action: Drop, Why: WhyForeign},
		},
		"without the managed tag": {
			n: spot, w: Unmanaged,
			want: Decision{Action: Leave, Why: WhyUnmanaged},
		},
		"unknown, and never deleted": {
			n: spot, w: Unknown, policy: Policy{DeleteForeign: true, NodeGracePeriod: time.Minute},
			want: Decision{Action: Leave, Why: WhyUnknown},
		},
		"the end of a foreign change": {
			n: notice.Notice{Kind: notice.ScheduledChange, Ended: true}, w: Foreign,
			want: Decision{Action: Leave, Why: WhyForeign},
		},
		"a node that will come is waited for until the deadline": {
			n: spot, w: Pending,
			want: Decision{Action: Hold, Why: WhyNoNodeYet, Deadline: at(117), HoldUntil: at(117)},
		},
		"or, without one, while a node is to be expected": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation, Time: at(-3)}, w: Pending,
			want: Decision{Action: Hold, Why: WhyNoNodeYet, HoldUntil: at(897)},
		},
		"a node that will come learns that a change is over": {
			n: notice.Notice{Kind: notice.ScheduledChange, Ended: true, Time: at(-3)}, w: Pending,
			want: Decision{Action: Hold, Why: WhyNoNodeYet, HoldUntil: at(897)},
		},
		"a node that never joined does not keep its group from scaling in": {
			n: terminate, w: Pending,
			want: Decision{Action: Hold, Why: WhyNoNodeYet, Deadline: at(3592), HoldUntil: at(117)},
		},
		"a launch hook waits for the node": {
			n: notice.Notice{Kind: notice.ASGLaunch, Time: at(-3), Hook: hook}, w: Pending,
			want: Decision{Action: Launch, Why: WhyLaunch, Deadline: at(3592)},
		},
		"nothing runs on an instance that never had a node": {
			n: notice.Notice{Kind: notice.StateChange, Gone: true}, w: Pending,
			want: Decision{Action: Drop, Why: WhyNothingRuns},
		},
		"gone":                    {n: spot, w: Departed, want: Decision{Action: Drop, Why: WhyGone}},
		"gone, and its hook open": {n: terminate, w: Departed, want: Decision{Action: Complete, Why: WhyGone}},
		"gone, and somebody else's hook open": {
			n: terminate, w: Departed, policy: Policy{NodeGracePeriod: time.Minute, HookNames: []string{"other"}},
			want: Decision{Action: Drop, Why: WhyGone},
		},
		"a node that will come is waited for, for somebody else's hook too": {
			n: terminate, w: Pending, policy: Policy{NodeGracePeriod: 2 * time.Minute, HookNames: []string{"other"}},
			want: Decision{Action: Hold, Why: WhyNoNodeYet, HoldUntil: at(117)},
		},
		"a node that was expected an hour ago is not waited for": {
			n: notice.Notice{Kind: notice.SpotInterruption, Time: at(-3600), Deadline: at(-3480)}, w: Pending,
			want: Decision{Action: Hold, Why: WhyNoNodeYet, HoldUntil: at(-2700)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.policy.NodeGracePeriod == 0 {
				tt.policy = policy
			}
			diffDecision(t, tt.want, Decide(tt.n, Facts{Ownership: tt.w, Limits: limits, Now: now}, tt.policy))
		})
	}
}

func TestANoticeIsAboutALifeOfItsInstanceUnlessItIsAboutItsCapacityBlock(t *testing.T) {
	for kind, want := range map[notice.Kind]Decision{
		notice.SpotInterruption:                {Action: Drop, Why: WhyEarlierLife},
		notice.CapacityReservationInterruption: {Action: Drop, Why: WhyEarlierLife},
		notice.CapacityBlockExpiration:         {Action: Drain, Why: WhyBlockExpires, Deadline: at(500)},
	} {
		n := notice.Notice{Kind: kind, Time: at(-100), Deadline: at(500)}
		diffDecision(t, want, Decide(n, Facts{Ownership: Ours, State: Running, Launched: at(-50), Now: now}, policy))
	}
}

// Whoever can send a message could drain any node by a notice that only spot instances get.
func TestANoticeAboutSpotInstancesIsVoidForOthers(t *testing.T) {
	for _, kind := range notice.Kinds {
		n := notice.Notice{Kind: kind, Time: at(-1), Deadline: at(100)}
		for _, ownership := range []Ownership{Ours, Pending} {
			got := Decide(n, Facts{Ownership: ownership, State: Running, NotSpot: true, Now: now}, policy)
			if void := kind == notice.SpotInterruption || kind == notice.RebalanceRecommendation; void != (got.Why == WhyNotSpot) || void && got.Action != Drop {
				t.Errorf("%s: %+v", kind, got)
			}
		}
	}
}

// EC2 checks only instances that run: one that has stopped is not impaired, and not well either.
func TestAnImpairmentIsOverOnlyIfTheInstanceRuns(t *testing.T) {
	for state, want := range map[InstanceState]Decision{
		NotKnown: {Action: Undo, Why: WhyRecovered},
		Running:  {Action: Undo, Why: WhyRecovered},
		Stopping: {Action: Drop, Why: WhyNothingRuns},
		Gone:     {Action: Drop, Why: WhyNothingRuns},
	} {
		n := notice.Notice{Kind: notice.InstanceImpaired, Time: at(-3), Ended: true}
		diffDecision(t, want, Decide(n, Facts{Ownership: Ours, State: state, Now: now}, policy))
	}
}

func TestWhoeverUncordonsANodeThatIsOnlyImpairedIsHeeded(t *testing.T) {
	impaired := intent.Intent{}.With(intent.Entry{Kind: notice.InstanceImpaired, Deadline: at(120)}, nil, now)
	spot := impaired.With(intent.Entry{Kind: notice.SpotInterruption, Deadline: at(120)}, nil, now)
	if MachineGoes(impaired, now, policy) || !MachineGoes(spot, now, policy) || CanWait(impaired, now, policy) {
		t.Errorf("the machine goes: %t, with a spot warning %t; the drain can wait: %t",
			MachineGoes(impaired, now, policy), MachineGoes(spot, now, policy), CanWait(impaired, now, policy))
	}
}

// Whatever comes, a decision has a reason, and its deadline is none of the future's making.
func TestEveryDecisionHasAReason(t *testing.T) {
	for _, kind := range notice.Kinds {
		for _, w := range []Ownership{Foreign, Unmanaged, Unknown, Pending, Departed, Ours} {
			for _, ended := range []bool{false, true} {
				n := notice.Notice{Kind: kind, Time: now, Deadline: at(120), Ended: ended && kind.CanEnd(), Gone: ended && kind == notice.StateChange}
				d := Decide(n, Facts{Ownership: w, Limits: notice.HookLimits{Timeout: time.Hour, Global: time.Hour}, Now: now}, policy)
				if d.Why == "" || d.Action.String() == "" {
					t.Errorf("%v, whose %d: %+v", kind, w, d)
				}
				if writes := d.Action != Leave && d.Action != Drop; writes && (w == Foreign || w == Unmanaged || w == Unknown) {
					t.Errorf("%v of a foreign instance: %v", kind, d.Action)
				}
			}
		}
	}
}

func TestADrainCanWaitUntilItsDeadlineIsNear(t *testing.T) {
	carried := func(kind notice.Kind, deadline time.Time) intent.Intent {
		return intent.Intent{}.With(intent.Entry{Kind: kind, Deadline: deadline}, nil, now)
	}
	for name, tt := range map[string]struct {
		i    intent.Intent
		want bool
	}{
		"a spot warning cannot":                        {carried(notice.SpotInterruption, at(120)), false},
		"nor can an instance that is stopping":         {carried(notice.StateChange, at(3600)), false},
		"nor can an interrupted reservation":           {carried(notice.CapacityReservationInterruption, at(120)), false},
		"nor can a Capacity Block that expires":        {carried(notice.CapacityBlockExpiration, at(600)), false},
		"a spot warning of hours ago can":              {carried(notice.SpotInterruption, time.Time{}), true},
		"a rebalance recommendation can":               {carried(notice.RebalanceRecommendation, time.Time{}), true},
		"but not one that a spot warning has joined":   {carried(notice.RebalanceRecommendation, time.Time{}).With(intent.Entry{Kind: notice.SpotInterruption, Deadline: at(120)}, nil, now), false},
		"a scheduled change of tomorrow can":           {carried(notice.ScheduledChange, at(86400)), true},
		"a termination hook can, with time left":       {carried(notice.ASGTerminate, at(121)), true},
		"but not with no more than the grace period's": {carried(notice.ASGTerminate, at(120)), false},
		"nor a termination without a deadline":         {carried(notice.ASGTerminate, time.Time{}), false},
		"nor with a hook that ran out long ago": {intent.Intent{}.With(
			intent.Entry{Kind: notice.ASGTerminate, Deadline: at(-3600)}, &intent.Hook{Name: "drain", Deadline: at(-3600)}, now,
		), false},
	} {
		if got := CanWait(tt.i, now, policy); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func diffDecision(t *testing.T, want, got Decision) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Decision{}, "Rule")); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

func BenchmarkDecide(b *testing.B) {
	n := notice.Notice{Kind: notice.ASGTerminate, Time: now}
	limits := notice.HookLimits{Timeout: time.Hour, Global: 48 * time.Hour}
	for b.Loop() {
		Decide(n, Facts{Ownership: Ours, Limits: limits, Now: now}, policy)
	}
}
