package webhook

import "time"

// Samples are an interruption in each of its phases, to try a template with.
func Samples() []Interruption {
	now := time.Date(2026, time.November, 20, 10, 15, 30, 0, time.UTC)
	deadline := now.Add(2 * time.Minute)
	received := Interruption{
		EventID: "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Kind: "SPOT_ITN", Monitor: SQSMonitor,
		Description: "Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T10:17:30Z",
		NodeName:    "ip-10-0-0-1.ec2.internal", NodeLabels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a"},
		InstanceID: "i-0123456789abcdef0", InstanceType: "m7g.large", ProviderID: "aws:///us-east-1a/i-0123456789abcdef0",
		AccountId: "123456789012", InstanceLifeCycle: "spot", AvailabilityZone: "us-east-1a", Region: "us-east-1",
		IsManaged: true, StartTime: now, EndTime: deadline, Deadline: deadline, InProgress: true, Phase: PhaseReceived,
		pods: func() []string { return []string{"web-0"} },
	}
	ended := func(phase Phase, description string, edit func(*Interruption)) Interruption {
		i := received
		i.Phase, i.Description, i.NodeProcessed, i.InProgress = phase, description, true, false
		i.Took, i.Evicted = 2*time.Minute, 9
		edit(&i)
		return i
	}
	pods := []string{"default/web-0"}
	return []Interruption{
		received,
		ended(PhaseDrained,
			"The node is drained: 9 evicted, 1 deleted, in 2m0s; the instance goes away at 2026-11-20T10:17:30Z",
			func(i *Interruption) { i.Forced = 1 }),
		ended(PhaseMissed,
			"Pods were still there at the deadline, 2026-11-20T10:17:30Z: default/web-0 (1 missed, 9 evicted, 0 deleted, in "+
				"2m0s)",
			func(i *Interruption) { i.Missed = pods }),
		ended(PhaseGone,
			"The instance or its Node went away with pods on it: default/web-0 (1 lost, 9 evicted, 0 deleted, in 2m0s)",
			func(i *Interruption) { i.Lost = pods }),
		ended(PhaseUnconfirmed,
			"Pods should have ended, but no kubelet confirms it: default/web-0 (1 unconfirmed, 9 evicted, 0 deleted, in "+
				"2m0s)",
			func(i *Interruption) { i.Unconfirmed = pods }),
	}
}
