package drain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// surging is a pod whose owner wants its replacement first.
var surging = leaves("surged")

// rollsOut answers requests for a rollout with err, after a while. If err is nil, the Deployment controller
// takes the pod away when its replacement is ready; a negative time is never.
func (s *stage) rollsOut(after, ready time.Duration, err error) {
	s.drainer.Surge = func(ctx context.Context, pod *corev1.Pod) error {
		select {
		case <-time.After(after):
		case <-ctx.Done():
			s.happened("gave up %s", pod.Name)
			return context.Cause(ctx)
		}
		s.happened("surged %s", pod.Name)
		if err == nil && ready >= 0 {
			s.ends(pod.Name, ready)
		}
		return err
	}
}

// surgeLog drains and returns the result and what the log says of replacements.
func (s *stage) surgeLog(terms evacuation.Terms, changed <-chan evacuation.Terms) (*evacuation.Result, *logtest.Log) {
	s.Helper()
	var log logtest.Log
	terms.CordonedAt = s.begin
	result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
		Node: "node", Terms: terms, Rules: s.rules, Changed: changed, NodeState: s.look, Log: log.Logger(),
	})
	if err != nil {
		s.Error(err)
	}
	return result, &log
}

func TestAPodIsReplacedBeforeItLeaves(t *testing.T) {
	for name, terms := range map[string]evacuation.Terms{
		"with a deadline":       {Deadline: time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC)}, // virtual time begins in 2000
		"without one":           {},
		"with patience as well": {Deadline: time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC), Patient: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("db", surging)
				s.pod("web")
				s.stops["web"] = 10 * time.Second
				s.pod("logs", daemon, leaves("end"))
				s.rollsOut(2*time.Second, 40*time.Second, nil)
				told := s.told()
				result, log := s.surgeLog(terms, nil)
				s.wantEnd(result, nil, evacuation.Result{Evicted: 2, Ended: 1, Surged: []string{"ns/db"}}, 42*time.Second)
				s.want(0, "0s evicted web with 30s", "2s surged db", "42s evicted logs with 30s")
				if diff := cmp.Diff([]string{"12s node db its Deployment is rolling out a replacement first=true"}, *told); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if !log.Has("a rollout brings the replacement of a pod first", "pod", "ns/db") {
					t.Errorf("the log says\n%s", log)
				}
			})
		})
	}
}

func TestWithoutAReplacementInTimeAPodLeavesAtItsLastMoment(t *testing.T) {
	denied := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "db", errors.New("no"))
	const says = `no rollout brings the replacement of a pod first: it leaves last pod=ns/db why=`
	for name, tt := range map[string]struct {
		edit        []func(*corev1.Pod)
		after       time.Duration
		err         error
		never       bool // the option is off
		uncordoned  bool
		rule        bool // a rule alone says it
		left        time.Duration
		refuse, now bool // its budget refuses; the machine stops already
		want        []string
		refused     int
		log         string
	}{
		"it is not ready":                {left: 120 * time.Second, want: []string{"0s surged db", "1m25s evicted db with 30s"}},
		"and a budget refuses":           {left: 120 * time.Second, refuse: true, want: []string{"0s surged db", "1m25s deleted db with 30s"}, refused: 1},
		"its workload cannot":            {err: errors.New("Deployment db is paused"), left: 120 * time.Second, want: []string{"0s surged db", "1m25s evicted db with 30s"}, log: "info " + says + `"Deployment db is paused"`},
		"a permission is missing":        {err: denied, left: 120 * time.Second, want: []string{"0s surged db", "1m25s evicted db with 30s"}, log: "warn " + says},
		"the API server does not answer": {after: 5 * time.Minute, left: 120 * time.Second, want: []string{"1m15s gave up db", "1m25s evicted db with 30s"}, log: says + `"context deadline exceeded"`},
		"there is too little time":       {left: 44 * time.Second, want: []string{"9s evicted db with 30s"}, log: says + `"there is no time for one"`},
		"there is just enough":           {left: 46 * time.Second, want: []string{"0s surged db", "11s evicted db with 30s"}},
		"the option is off":              {never: true, left: 120 * time.Second, want: []string{"1m25s evicted db with 30s"}, log: says + `"the option surge-singletons is off"`},
		"a rule alone asks nobody":       {rule: true, edit: []func(*corev1.Pod){doing("db"), leaves("")}, left: 120 * time.Second, want: []string{"1m25s evicted db with 30s"}, log: says + `"its annotation node-termination-handler/leave: surged is missing"`},
		"it could come back here":        {edit: []func(*corev1.Pod){tolerant}, left: 120 * time.Second, want: []string{"1m25s evicted db with 30s"}, log: says + `"it tolerates the cordon`},
		"or does, without a cordon":      {uncordoned: true, left: 120 * time.Second, want: []string{"1m25s evicted db with 30s"}, log: says + `"there is no time for one"`},
		"its machine stops already":      {left: 120 * time.Second, now: true, want: []string{"0s deleted db with 30s"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("db", append([]func(*corev1.Pod){surging}, tt.edit...)...)
				s.rollsOut(tt.after, -1, tt.err)
				if tt.never {
					s.drainer.Surge = nil
				}
				s.node.Cordoned = !tt.uncordoned
				if tt.rule {
					s.rules = decision.Rules{Pods: []decision.PodRule{{Name: "db", Leave: decision.LeaveSurged}}}
				}
				if tt.refuse {
					s.refuse = budget
				}
				result, log := s.surgeLog(evacuation.Terms{Deadline: s.begin.Add(tt.left), IgnoreBudgets: tt.now}, nil)
				if result.Surged != nil || result.Evicted+result.Forced != 1 {
					t.Errorf("Drain = %+v", result)
				}
				s.want(tt.refused, tt.want...)
				switch about := strings.Contains(log.String(), "replacement"); {
				case tt.log != "" && !strings.Contains(log.String(), tt.log):
					t.Errorf("the log says\n%swant %s", log, tt.log)
				case tt.log == "" && about != (len(tt.want) > 1):
					t.Errorf("the log says of a replacement\n%s", log)
				}
			})
		})
	}
}

func TestAWorkloadIsAskedOnceADrainWhateverChanges(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db", surging)
		s.rollsOut(time.Second, -1, errors.New("Deployment db has 3 replicas, not 1"))
		s.node.Cordoned = false
		s.after(20500*time.Millisecond, func(n *evacuation.NodeState) { n.Cordoned = true }) // which no pod tells
		time.AfterFunc(30*time.Second, func() { s.edit("db", annotated("x", "y")) })
		told := s.told()
		result, log := s.surgeLog(evacuation.Terms{}, s.changes(70*time.Second, evacuation.Terms{Deadline: s.begin.Add(140 * time.Second)}))
		s.wantEnd(result, nil, evacuation.Result{Evicted: 1}, 105*time.Second)
		s.want(0, "22s surged db", "1m45s evicted db with 30s")
		const why = "it leaves last (node-termination-handler/leave), without a replacement first: Deployment db has 3 replicas, not 1"
		if waits := log.Said("waiting for pods to leave"); len(waits) != 1 || !strings.Contains(waits[0], why) {
			t.Errorf("the log says\n%s", log)
		}
		if len(*told) != 1 || !strings.Contains((*told)[0], "there is no deadline so far") {
			t.Errorf("told %q", *told)
		}
	})
}

func TestTheWaitForAReplacementIsToldWithItsEnd(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db", surging)
		s.rollsOut(0, -1, nil)
		_, log := s.surgeLog(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		want := "ns/db: its Deployment is rolling out a replacement; it leaves at 00:01:25Z at the latest"
		if waits := log.Said("waiting for pods to leave"); len(waits) != 1 || !strings.Contains(waits[0], want) {
			t.Errorf("the log says\n%s", log)
		}
	})
}

// A rollout that begins when the pod was asked already would be of no use.
func TestNoRolloutBeginsOnceThePodIsAskedOrGone(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db", surging)
		s.rollsOut(time.Minute, -1, nil)
		changed := s.changes(20*time.Second, evacuation.Terms{Deadline: s.begin.Add(50 * time.Second)})
		result, log := s.surgeLog(evacuation.Terms{}, changed)
		s.wantEnd(result, nil, evacuation.Result{Evicted: 1}, 20*time.Second)
		slices.Sort(s.events) // both at once
		s.want(0, "20s evicted db with 28s", "20s gave up db")
		if strings.Contains(log.String(), "replacement") {
			t.Errorf("the log says\n%s", log)
		}
	})
	play(t, func(s *stage) {
		s.pod("db", surging)
		s.pod("web")
		s.stops["web"] = 30 * time.Second
		s.rollsOut(time.Minute, -1, nil)
		s.ends("db", 20*time.Second)
		result, _ := s.surgeLog(evacuation.Terms{}, nil)
		s.wantEnd(result, nil, evacuation.Result{Evicted: 1, Ended: 1}, 30*time.Second)
		s.want(0, "0s evicted web with 30s", "20s gave up db")
	})
	play(t, func(s *stage) {
		s.pod("db", surging)
		s.rollsOut(time.Minute, -1, nil)
		ctx, stop := context.WithTimeout(s.Context(), 20*time.Second)
		defer stop()
		result, err := s.drainIn(ctx, evacuation.Terms{}, nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain = %v", err)
		}
		s.wantEnd(result, nil, evacuation.Result{}, 21*time.Second)
		s.want(0, "21s gave up db")
	})
}
