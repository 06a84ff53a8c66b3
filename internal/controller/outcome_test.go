package controller

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// sayings is what a story says: entries of the log, and what the observer is told.
type sayings struct {
	mu   sync.Mutex
	log  logtest.Log
	told []string
}

func (s *sayings) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

func (s *sayings) Decided(d report.Decision) {
	if d.Action != decision.Drop && !d.Repeated {
		s.add("%s: %s", d.Action, d.Why)
	}
}

func (s *sayings) Stepped(step report.Step) {
	s.add("%s: %s %v", step.Kind, step.Reason(), step.Err)
}

func (s *sayings) Recorded(intent.Entry) {}

func (s *sayings) Drained(d report.Drain) {
	if d.Outcome != intent.CalledOff {
		s.add("ended: %s", d.Outcome)
	}
}

// lines are the entries of the log from a level on: the level, the message, and what became of the pods.
func (s *sayings) lines(levels ...string) []string {
	var all []string
	for _, e := range s.log.Entries("") {
		if slices.Contains(levels, e.Level) {
			all = append(all, e.With("why", "evicted", "forced", "missed", "lost", "unconfirmed", "cutShort", "evictedPods", "forcedPods", "group"))
		}
	}
	return all
}

// listen makes the story's controllers log and tell to sayings.
func (s *story) listen() *sayings {
	var said sayings
	edit := s.edit
	s.edit = func(c *Config) {
		edit(c)
		c.Log, c.Observer = said.log.Logger(), report.Observers{c.Observer, &said}
	}
	return &said
}

func TestANormalDrainIsInformationAndOneThatIsNotWellAWarning(t *testing.T) {
	t.Parallel()
	const begin = "info decided why=spot-interruption"
	const cordoned = "info cordoned why=spot-interruption"
	for name, test := range map[string]struct {
		story func(s *story)
		want  []string
		state string
	}{
		"drained": {
			func(*story) {},
			[]string{begin, cordoned, "info drained evicted=1 forced=0"},
			"drained",
		},
		"missed": {
			func(*story) {},
			[]string{begin, cordoned, `error the drain has missed its deadline: pods are still on the node evicted=0 forced=0 missed=[ns/pod]`},
			"missed",
		},
		"gone": {
			func(s *story) {
				s.end(theID)
				s.send(s.body("state-change-terminated", theID))
			},
			[]string{begin, cordoned, "info decided why=instance-stopped", `warn the instance or its Node went away with pods on it evicted=0 forced=0 lost=[ns/pod]`},
			"gone",
		},
		"unconfirmed": {
			func(s *story) {
				s.drain.mu.Lock()
				defer s.drain.mu.Unlock()
				s.drain.result = &evacuation.Result{Evicted: 2, Unconfirmed: []string{"ns/pod"}}
			},
			[]string{begin, cordoned, `warn pods should have ended, but no kubelet confirms it evicted=2 forced=0 unconfirmed=[ns/pod]`},
			"unconfirmed",
		},
		"drained, and a pod was cut short": {
			func(s *story) {
				s.drain.mu.Lock()
				defer s.drain.mu.Unlock()
				s.drain.result = &evacuation.Result{Evicted: 1, Forced: 1, Record: evacuation.Record{
					EvictedPods: []string{"ns/pod"}, ForcedPods: []string{"ns/slow"}, CutShort: []string{"ns/slow (9 s of 60 s)"},
				}}
			},
			[]string{begin, cordoned, `warn drained, and pods were killed before the end of their grace periods evicted=1 forced=1 cutShort="[ns/slow (9 s of 60 s)]" evictedPods=[ns/pod] forcedPods=[ns/slow]`},
			"drained",
		},
		"only cordoned": {
			func(*story) {}, []string{begin, cordoned}, "cordoned",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.edit = func(c *Config) { c.CordonOnly = name == "only cordoned" }
				if name == "missed" {
					s.drain.takes = -1
				}
				said := s.listen()
				s.lead()
				s.send(s.body("spot-interruption", theID))
				s.after(time.Second)
				test.story(s)
				s.after(3 * time.Minute)
				if diff := cmp.Diff(test.want, said.lines("info", "warn", "error")); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
				if got := s.node().Labels[cluster.StateLabel]; got != test.state {
					t.Errorf("the node's state is %q, want %q", got, test.state)
				}
			})
		})
	}
}

func TestADrainThatIsCalledOffIsCountedAsThat(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		var seen counts
		s.edit = func(c *Config) { c.Observer = report.Observers{c.Observer, &seen} }
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Second)
		s.change(theNode, uncordon)
		s.after(time.Second)
		want := []string{"cordoned for RebalanceRecommendation", "ended for RebalanceRecommendation, called-off: 0 evicted, 0 lost, 0 missed"}
		if diff := cmp.Diff(want, seen.told); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestACordonIsToldOnceForEachEpisode(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		said := s.listen()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Second)
		warning := s.body("spot-interruption", theID)
		s.send(warning)
		s.after(time.Second)
		s.send(warning)
		s.after(time.Minute)
		s.send(warning) // its work is done
		s.after(time.Minute)
		want := []string{
			"drain: rebalance-recommendation", "cordon: rebalance-recommendation <nil>", "drain: spot-interruption", "ended: drained",
		}
		if diff := cmp.Diff(want, said.told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestAFailureThatPassesIsNoWarning(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]int{1: 0, 2: 0, 3: 1, 5: 3} {
		tell(t, func(s *story) {
			said := s.listen()
			left := failures
			s.kube.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				left--
				return left >= 0, nil, apierrors.NewInternalError(errors.New("away"))
			})
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(time.Minute)
			if lines := said.lines("warn", "error"); len(lines) != want {
				t.Errorf("%d failures are %d warnings, want %d: %q", failures, len(lines), want, lines)
			}
		})
	}
}
