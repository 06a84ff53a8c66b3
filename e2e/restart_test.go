package e2e

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// A machine that comes back takes pods again within seconds after its kubelet says so, unless
// somebody else has cordoned its node.
func TestAMachineThatComesBackTakesPodsAgain(t *testing.T) {
	t.Parallel()
	const boot = 3 * time.Second // what a boot takes, at least: it changes nothing
	replaceRoot := func(s *scenario, nodes []node) {
		s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
		s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Desired: 2, Instances: []string{nodes[0].instance, nodes[1].instance}}))
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: 10 * time.Minute}))
		for _, n := range nodes {
			_, err := s.aws.ReplaceRootVolume(n.instance)
			s.must(err)
		}
		for _, n := range nodes {
			s.eventually("the termination hook is completed", func() bool {
				return s.aws.LifecycleState(n.instance) == awssim.ReplacingRootVolumeProceed
			})
			_, err := s.aws.RootVolumeReplaced(n.instance)
			s.must(err)
		}
	}
	for name, tt := range map[string]struct {
		goes  func(*scenario, []node)
		comes func(*scenario, node)
		hooks int    // are completed
		full  string // why it is left to the full run; empty: the gate plays it
	}{
		"rebooted for a scheduled change": {
			goes: func(s *scenario, nodes []node) {
				for _, n := range nodes {
					s.send(s.body("health-reboot-scheduled", n.instance, startTime, startIn(90*time.Second)))
				}
			},
			comes: func(s *scenario, n node) {
				s.eventually("the change begins", func() bool { return time.Now().After(s.intent(n).Deadline()) })
				s.must(shared.SetBootID(s.ctx, n.name, "second"))
			},
			full: "it waits for its change to begin, and has to be drained before",
		},
		"stopped and started": {
			goes: func(s *scenario, nodes []node) {
				for _, n := range nodes {
					s.send(s.body("spot-interruption", n.instance))
				}
			},
			comes: func(s *scenario, n node) {
				s.must(shared.SetReady(s.ctx, n.name, false))
				s.must(s.aws.SetInstanceState(n.instance, "stopped"))
				s.must(s.aws.SetInstanceState(n.instance, "pending"))
				s.must(s.aws.SetInstanceState(n.instance, "running"))
				s.must(shared.SetBootID(s.ctx, n.name, "second"))
				s.must(shared.SetReady(s.ctx, n.name, true))
			},
		},
		"given another root volume": {
			goes:  replaceRoot,
			comes: func(s *scenario, n node) { s.must(shared.SetBootID(s.ctx, n.name, "second")) },
			hooks: 4,
			full:  "internal/controller plays it in virtual time",
		},
		"back from a warm pool": {
			goes: func(s *scenario, nodes []node) {
				s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
				s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Desired: 2, Instances: []string{nodes[0].instance, nodes[1].instance}}))
				s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: 10 * time.Minute}))
				for _, n := range nodes {
					_, err := s.aws.ReturnToWarmPool(n.instance, awssim.WarmedStopped)
					s.must(err)
				}
			},
			comes: func(s *scenario, n node) {
				s.eventually("the machine is stopped", func() bool { return s.aws.LifecycleState(n.instance) == awssim.WarmedStopped })
				s.must(shared.SetReady(s.ctx, n.name, false))
				s.must(s.aws.SetInstanceState(n.instance, "stopped"))
				_, err := s.aws.LaunchFromWarmPool(n.instance)
				s.must(err)
				s.must(shared.SetBootID(s.ctx, n.name, "second"))
				s.must(shared.SetReady(s.ctx, n.name, true))
			},
			hooks: 4,
			full:  "internal/controller plays it in virtual time",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.full != "" {
				tier.Full(t, tt.full)
			}
			s := newScenario(t)
			nodes := s.nodes(2)
			ours, theirs := nodes[0], nodes[1]
			for _, n := range nodes {
				s.must(shared.SetBootID(s.ctx, n.name, "first"))
				s.pod("on-"+n.name, n.name)
			}
			s.patchNode(theirs.name, map[string]any{"spec": map[string]any{"unschedulable": true}})
			s.alone("--taint-node", "--delete-local-data")
			tt.goes(s, nodes)
			for _, n := range nodes {
				s.eventually("node "+n.name+" is drained", func() bool { return s.state(n) == "drained" })
			}
			s.throughout(boot, "the nodes wait for their machines", func() bool { return s.cordoned(ours.name) && s.cordoned(theirs.name) })
			for _, n := range nodes {
				tt.comes(s, n)
				began := time.Now()
				s.eventually("node "+n.name+" carries nothing of ours", func() bool {
					now := s.getNode(n.name)
					return len(now.Spec.Taints) == 0 == (n == ours) && now.Spec.Unschedulable == (n == theirs) && s.state(n) == ""
				})
				t.Logf("node %s is as it was, %s after it came back", n.name, time.Since(began).Round(10*time.Millisecond))
			}
			s.eventually("all messages are deleted", func() bool { return len(s.aws.Messages(queueName)) == 0 })
			completed := 0
			for _, a := range s.aws.LifecycleActions() {
				if a.Outcome == awssim.Completed {
					completed++
				}
			}
			if completed != tt.hooks {
				t.Errorf("%d hooks were completed, want %d", completed, tt.hooks)
			}
			s.throughout(boot, "the cordon of somebody else stays", func() bool { return s.cordoned(theirs.name) && !s.cordoned(ours.name) })
		})
	}
}
