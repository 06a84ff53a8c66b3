package notice

import "testing"

func TestAKindGoesByEveryNameThatItHasAnywhere(t *testing.T) {
	for name, want := range map[string]Kind{
		"SpotInterruption": SpotInterruption, "spotinterruption": SpotInterruption, "spot": SpotInterruption, "SPOT": SpotInterruption,
		"spot-interruption": SpotInterruption, "SPOT_ITN": SpotInterruption, "EC2 Spot Instance Interruption Warning": SpotInterruption,
		"RebalanceRecommendation": RebalanceRecommendation, "rebalance": RebalanceRecommendation, "REBALANCE_RECOMMENDATION": RebalanceRecommendation,
		"rebalance-recommendation": RebalanceRecommendation,
		"StateChange":              StateChange, "state-change": StateChange, "STATE_CHANGE": StateChange, "instance-stopping": StateChange,
		"ScheduledChange": ScheduledChange, "health": ScheduledChange, "scheduled-change": ScheduledChange, "SCHEDULED_EVENT": ScheduledChange,
		"ASGTerminate": ASGTerminate, "asg-terminate": ASGTerminate, "asg": ASGTerminate, "ASG_LIFECYCLE": ASGTerminate,
		"lifecycle-hook-terminating": ASGTerminate,
		"ASGLaunch":                  ASGLaunch, "ASG_LAUNCH_LIFECYCLE": ASGLaunch,
		"capacity-reservation": CapacityReservationInterruption, "CAPACITY_RESERVATION_INTERRUPTION": CapacityReservationInterruption,
		"EC2 Capacity Reservation Instance Interruption Warning": CapacityReservationInterruption,
		"capacity-block": CapacityBlockExpiration, "CAPACITY_BLOCK_EXPIRATION": CapacityBlockExpiration, "Capacity Block Expiration Warning": CapacityBlockExpiration,
		"storm": Ignored, "": Ignored, "Ignored": Ignored,
	} {
		if got := KindNamed(name); got != want {
			t.Errorf("%q is %s, want %s", name, got, want)
		}
	}
}

func TestNoNameIsThatOfTwoKinds(t *testing.T) {
	seen := map[string]Kind{}
	for _, k := range Kinds {
		for _, name := range k.Names() {
			if other, ok := seen[spelling(name)]; ok && other != k {
				t.Errorf("%q is %s and %s", name, other, k)
			}
			seen[spelling(name)] = k
		}
	}
}
