package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// dies is what EC2 tells of the end of the node's instance.
func (s *story) dies() {
	s.Helper()
	s.end(theID)
	s.send(s.body("state-change-stopping", theID, `"stopping"`, `"shutting-down"`))
	s.after(20 * time.Second)
	s.must(s.aws.SetInstanceState(theID, "terminated"))
	s.send(s.body("state-change-terminated", theID))
	s.after(time.Minute)
}

// A scale-in is one drain: it is cordoned, told, and counted once.
func TestWhatFollowsAFinishedDrainOpensNoSecondOne(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		story func(s *story)
		why   decision.Why
		hooks int
	}{
		"a spot interruption": {
			func(s *story) { s.send(s.body("spot-interruption", theID)) }, decision.WhySpotInterruption, 0,
		},
		"a termination hook": {
			func(s *story) { s.terminate(5 * time.Minute) }, decision.WhyScaleIn, 1,
		},
		"a stop that terminates in the end": {
			func(s *story) {
				s.must(s.aws.SetInstanceState(theID, "stopping"))
				s.send(s.body("state-change-stopping", theID))
			}, decision.WhyStopping, 0,
		},
		"a maintenance": {
			func(s *story) { s.send(s.maintenance(time.Hour)) }, decision.WhyScheduledReboot, 0,
		},
		"a spot interruption, whose group waits": {
			func(s *story) {
				s.send(s.body("spot-interruption", theID))
				s.after(time.Minute)
				s.terminate(5 * time.Minute)
				s.after(time.Second)
			}, decision.WhySpotInterruption, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				said := s.listen()
				s.lead()
				test.story(s)
				s.after(time.Minute)
				drained := len(said.lines("info", "warn", "error"))
				s.dies()
				var told []string
				for _, what := range said.told {
					if what != "complete: "+string(decision.WhyConsequence) && what != "finish: "+string(decision.WhyNothingRuns) {
						told = append(told, what)
					}
				}
				want := []string{"drain: " + string(test.why), "cordon: " + string(test.why) + " <nil>", "ended: drained"}
				if diff := cmp.Diff(want, told); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				wantLog := []string{"info decided why=" + string(decision.WhyNothingRuns)}
				if diff := cmp.Diff(wantLog, said.lines("info", "warn", "error")[drained:]); diff != "" {
					t.Errorf("log after the drain (-want +got):\n%s", diff)
				}
				if n := len(s.drain.all()); n != 1 || s.left() != 0 {
					t.Errorf("%d drains, %d messages left, want one and none", n, s.left())
				}
				if test.hooks > 0 {
					s.wantHook(awssim.Completed)
				}
				if i := s.intent(); !i.Finished() || i.Deadline().After(time.Now()) {
					t.Errorf("the node carries a deadline for the next life of its instance: %+v", i)
				}
			})
		})
	}
}

// Whatever may have changed since the drain is a reason for another one.
func TestANoticeAfterAFinishedDrainBeginsAnotherOneWhere(t *testing.T) {
	t.Parallel()
	stops := func(s *story) {
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.send(s.body("state-change-stopping", theID))
	}
	warns := func(s *story) { s.send(s.body("spot-interruption", theID)) }
	for name, test := range map[string]struct {
		first, between, second func(s *story)
	}{
		"a pod is on the node": {warns, func(s *story) { s.drain.remaining = []string{"ns/late"} }, stops},
		"pods missed the first one's deadline": {
			func(s *story) {
				s.drain.takes = -1
				warns(s)
			}, func(s *story) { s.drain.takes = 0 }, stops,
		},
		"somebody uncordoned the node": {warns, func(s *story) { s.change(theNode, uncordon) }, stops},
		"somebody uncordoned and cordoned it": {warns, func(s *story) {
			s.change(theNode, uncordon)
			s.after(time.Second)
			s.change(theNode, recordon)
		}, stops},
		"the instance was started again": {warns, (*story).restart, stops},
		"only a recommendation was before": {
			func(s *story) { s.send(s.body("rebalance-recommendation", theID)) }, func(*story) {}, stops,
		},
		"it is a danger of its own": {
			func(s *story) { s.send(s.maintenance(time.Hour)) }, func(*story) {}, warns,
		},
		"the intent is one of a version that knew no outcomes": {warns, func(s *story) {
			s.change(theNode, func(n *corev1.Node) { n.Annotations = withoutOutcome(n.Annotations) })
		}, stops},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.lead()
				test.first(s)
				s.after(150 * time.Second)
				test.between(s)
				s.after(2 * time.Second)
				test.second(s)
				s.after(time.Second)
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains, want two", n)
				}
			})
		})
	}
}

func withoutOutcome(annotations map[string]string) map[string]string {
	changed := map[string]string{}
	for key, value := range annotations {
		changed[key] = strings.ReplaceAll(value, `,"outcome":"drained"`, "")
	}
	return changed
}

// What a node was drained for is called off, and its instance ends all the same, as
// another notice has said that needed no second drain.
func TestAConsequenceOutlivesTheChangeThatWasDrainedFor(t *testing.T) {
	t.Parallel()
	t.Run("a stop", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.send(s.maintenance(time.Hour))
			s.after(time.Minute)
			s.must(s.aws.SetInstanceState(theID, "stopping"))
			s.send(s.body("state-change-stopping", theID))
			s.after(5 * time.Second)
			s.send(s.body("health-maintenance-completed", theID))
			s.after(5 * time.Second)
			if !s.isCordoned(theNode) {
				t.Errorf("the node of a stopping instance was uncordoned; %d messages left, intent %+v", s.left(), s.intent())
			}
		})
	})
	t.Run("a scale-in", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.send(s.maintenance(time.Hour))
			s.after(time.Minute)
			s.terminate(5 * time.Minute)
			s.after(45 * time.Second)
			s.wantHook(awssim.Completed)
			s.end(theID)
			s.send(s.body("health-maintenance-completed", theID))
			s.after(5 * time.Second)
			if !s.isCordoned(theNode) {
				t.Errorf("the node of an instance that shuts down was uncordoned; %d messages left, intent %+v", s.left(), s.intent())
			}
		})
	})
}

// The next Node of the machine, which a kubelet registers again, is not told of the stop.
func TestTheNextNodeIsToldOfAConsequence(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.maintenance(-time.Hour)) // began already: no deadline ahead
		s.after(time.Minute)
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.send(s.body("state-change-stopping", theID))
		s.after(5 * time.Second)
		s.remove(theNode)
		s.after(time.Second)
		s.register(theNode, "next")
		s.after(5 * time.Second)
		if !s.isCordoned(theNode) {
			t.Errorf("the next Node of a stopping machine is not cordoned; %d messages left", s.left())
		}
	})
}
