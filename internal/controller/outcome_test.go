package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

func TestADrainHasOneOutcome(t *testing.T) {
	some := []string{"ns/pod"}
	for name, test := range map[string]struct {
		result drain.Result
		err    error
		want   intent.Outcome
	}{
		"all have left":                           {drain.Result{Evicted: 3, Forced: 1, Ended: 1}, nil, intent.Drained},
		"there was none":                          {drain.Result{}, nil, intent.Drained},
		"an option keeps some":                    {drain.Result{Stayed: some}, nil, intent.Drained},
		"some came, and stay":                     {drain.Result{Returned: some}, nil, intent.Drained},
		"their volumes are still attached":        {drain.Result{Volumes: 2}, nil, intent.Drained},
		"some are there at the deadline":          {drain.Result{Evicted: 3, Missed: some}, nil, intent.Missed},
		"and of some nobody knows":                {drain.Result{Missed: some, Unconfirmed: some}, nil, intent.Missed},
		"some are there when the machine is gone": {drain.Result{Evicted: 3, Lost: some}, nil, intent.Gone},
		"and of some nobody knew":                 {drain.Result{Lost: some, Unconfirmed: some}, nil, intent.Gone},
		"no kubelet says that they have ended":    {drain.Result{Unconfirmed: some}, nil, intent.Unconfirmed},
		"only our own pod is left":                {drain.Result{Self: true}, nil, ""},
		"the leader ends":                         {drain.Result{Evicted: 3}, errors.New("the lease is lost"), ""},
		"somebody has uncordoned the node":        {drain.Result{Evicted: 3}, errUncordoned, intent.CalledOff},
		"the machine was started again":           {drain.Result{}, fmt.Errorf("drain: %w", errRestarted), intent.CalledOff},
		"what asked for it is over":               {drain.Result{}, errUndone, intent.CalledOff},
	} {
		t.Run(name, func(t *testing.T) {
			if got := outcomeOf(test.result, test.err); got != test.want {
				t.Errorf("the outcome is %q, want %q", got, test.want)
			}
		})
	}
}

// sayings is what a story says: lines of the log from a level on, and what the observer is told.
type sayings struct {
	mu   sync.Mutex
	text strings.Builder
	told []string
}

func (s *sayings) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
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

// lines are those of the log, without the keys that change.
func (s *sayings) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for line := range strings.Lines(s.text.String()) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// listen makes the story's controllers log and tell to sayings. A line has its level,
// its message, and what became of the pods.
func (s *story) listen(level slog.Level) *sayings {
	var said sayings
	kept := map[string]bool{
		slog.LevelKey: true, slog.MessageKey: true, "why": true, "evicted": true, "forced": true, "missed": true, "lost": true, "unconfirmed": true, "group": true,
	}
	log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if !kept[a.Key] {
			return slog.Attr{}
		}
		return a
	}}))
	edit := s.edit
	s.edit = func(c *Config) {
		edit(c)
		c.Log, c.Observer = log, report.Observers{c.Observer, &said}
	}
	return &said
}

func TestANormalDrainIsInformationAndOneThatIsNotWellAWarning(t *testing.T) {
	const begin = "level=INFO msg=decided why=spot-interruption"
	const cordoned = "level=INFO msg=cordoned why=spot-interruption"
	for name, test := range map[string]struct {
		story func(s *story)
		want  []string
		state string
	}{
		"drained": {
			func(*story) {},
			[]string{begin, cordoned, "level=INFO msg=drained evicted=1 forced=0"},
			"drained",
		},
		"missed": {
			func(*story) {},
			[]string{begin, cordoned, `level=ERROR msg="the drain has missed its deadline: pods are still on the node" evicted=0 forced=0 missed=[ns/pod]`},
			"missed",
		},
		"gone": {
			func(s *story) {
				s.end(theID)
				s.send(s.body("state-change-terminated", theID))
			},
			[]string{begin, cordoned, "level=INFO msg=decided why=instance-stopped", `level=WARN msg="the instance or its Node went away with pods on it" evicted=0 forced=0 lost=[ns/pod]`},
			"gone",
		},
		"unconfirmed": {
			func(s *story) {
				s.drain.mu.Lock()
				defer s.drain.mu.Unlock()
				s.drain.result = &drain.Result{Evicted: 2, Unconfirmed: []string{"ns/pod"}}
			},
			[]string{begin, cordoned, `level=WARN msg="pods should have ended, and no kubelet is there to say so" evicted=2 forced=0 unconfirmed=[ns/pod]`},
			"unconfirmed",
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
				said := s.listen(slog.LevelInfo)
				s.lead()
				s.send(s.body("spot-interruption", theID))
				s.after(time.Second)
				test.story(s)
				s.after(3 * time.Minute)
				if diff := cmp.Diff(test.want, said.lines()); diff != "" {
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
	tell(t, func(s *story) {
		said := s.listen(slog.LevelError)
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
	for failures, want := range map[int]int{1: 0, 2: 0, 3: 1, 5: 3} {
		tell(t, func(s *story) {
			said := s.listen(slog.LevelWarn)
			left := failures
			s.kube.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				left--
				return left >= 0, nil, apierrors.NewInternalError(errors.New("away"))
			})
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(time.Minute)
			if lines := said.lines(); len(lines) != want {
				t.Errorf("%d failures are %d warnings, want %d: %q", failures, len(lines), want, lines)
			}
		})
	}
}
