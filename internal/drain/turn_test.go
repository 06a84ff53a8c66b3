package drain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// annotated gives a pod an annotation.
func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

// leaves gives a pod the annotation that says when it leaves.
func leaves(when string) func(*corev1.Pod) { return annotated(decision.LeaveAnnotation, when) }

// doing gives a pod a role, which the rules of roles select.
func doing(role string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "role", role) }
}

func graced(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

// roles are rules for pods that are doing something.
func roles() decision.Rules {
	rule := func(role string, leave decision.Departure, order int) decision.PodRule {
		return decision.PodRule{
			Name: role, Leave: leave, Order: order,
			Pods: []decision.Selector{{{Key: "role", Operator: decision.In, Values: []string{role}}}},
		}
	}
	shipper := rule("shipper", decision.LeaveEnd, 0)
	shipper.DaemonSets = true
	agents := rule("agents", decision.LeaveAfter, 20)
	agents.DaemonSets = true
	return decision.Rules{Pods: []decision.PodRule{
		shipper, agents, rule("singleton", decision.LeaveFirst, 0), rule("cache", decision.LeaveAfter, 5), rule("database", decision.LeaveAfter, 10),
		rule("job", decision.LeaveLast, 0), rule("plain", decision.LeaveNow, 0),
	}}
}

// edit changes a pod in the API server.
func (s *stage) edit(name string, edit func(*corev1.Pod)) {
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	obj, err := s.kube.Tracker().Get(gvr, "ns", name)
	if err != nil {
		s.Error(err)
		return
	}
	pod := obj.(*corev1.Pod).DeepCopy()
	edit(pod)
	if err := s.kube.Tracker().Update(gvr, pod, "ns"); err != nil {
		s.Error(err)
	}
}

// ends ends a pod by itself, after a time.
func (s *stage) ends(name string, after time.Duration) {
	go func() {
		if s.passes(after) {
			_ = s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", name)
		}
	}()
}

// changes sends terms, after a time.
func (s *stage) changes(after time.Duration, terms evacuation.Terms) <-chan evacuation.Terms {
	changed := make(chan evacuation.Terms)
	terms.CordonedAt = s.begin
	go func() {
		if s.passes(after) {
			select {
			case changed <- terms:
			case <-s.over:
			}
		}
	}()
	return changed
}

func TestPodsLeaveInTheOrderOfTheirTurns(t *testing.T) {
	play(t, func(s *stage) {
		s.rules = roles()
		for _, pod := range []struct {
			name  string
			edits []func(*corev1.Pod)
		}{
			{"web", nil},
			{"plain", []func(*corev1.Pod){doing("plain"), leaves("end")}},
			{"singleton", []func(*corev1.Pod){doing("singleton")}},
			{"eager", []func(*corev1.Pod){leaves("first")}},
			{"cache", []func(*corev1.Pod){doing("cache")}},
			{"database", []func(*corev1.Pod){doing("database")}},
			{"dns", []func(*corev1.Pod){systemCritical, leaves("first")}},
			{"job", []func(*corev1.Pod){doing("job"), graced(60)}},
			{"shipper", []func(*corev1.Pod){daemon, doing("shipper")}},
			{"agent", []func(*corev1.Pod){daemon, leaves("end")}},
			{"proxy", []func(*corev1.Pod){daemon}},
			{"exporter", []func(*corev1.Pod){daemon, doing("agents")}},
			{"csi", []func(*corev1.Pod){daemon, doing("agents"), systemCritical}},
		} {
			s.pod(pod.name, pod.edits...)
			s.stops[pod.name] = 10 * time.Second
		}
		s.drainer.Filter.IgnoreDaemonSets = true
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(300 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 12}, 255*time.Second)
		slices.Sort(s.events[:2])    // of pods with the same turn either may be first
		slices.Sort(s.events[2:4])   //
		slices.Sort(s.events[7:9])   //
		slices.Sort(s.events[10:12]) //
		s.want(0,
			"0s evicted eager with 30s", "0s evicted singleton with 30s",
			"10s evicted plain with 30s", "10s evicted web with 30s",
			"20s evicted cache with 30s", "30s evicted database with 30s", "40s evicted exporter with 30s",
			"50s evicted csi with 30s", "50s evicted dns with 30s",
			"3m55s evicted job with 1m0s",
			"4m5s evicted agent with 30s", "4m5s evicted shipper with 30s",
		)
	})
}

func TestAPodThatNeverLeavesIsNeitherAskedNorWaitedFor(t *testing.T) {
	for name, terms := range map[string]func(begin time.Time) evacuation.Terms{
		"with a deadline": func(begin time.Time) evacuation.Terms {
			return evacuation.Terms{Deadline: begin.Add(2 * time.Minute)}
		},
		"without one": func(time.Time) evacuation.Terms { return evacuation.Terms{} },
		"while the machine ends": func(begin time.Time) evacuation.Terms {
			return evacuation.Terms{Deadline: begin.Add(2 * time.Minute), IgnoreBudgets: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				skipped := func(p *corev1.Pod) { p.Labels = map[string]string{decision.DrainLabel: "skip"} }
				s.pod("never", leaves("never"))
				s.pod("skipped", skipped)
				s.pod("over", leaves("never"), succeeded)
				s.pod("later", leaves("last"), graced(90))
				s.pod("web")
				s.stops["web"] = 20 * time.Second
				if name != "while the machine ends" { // nobody waits for a turn then
					time.AfterFunc(10*time.Second, func() { s.edit("later", leaves("never")) })
				}
				result, err := s.drain(terms(s.begin), nil)
				asked := []string{"0s evicted web with 30s"}
				want := evacuation.Result{Evicted: 1, Stayed: []string{"ns/never", "ns/over", "ns/skipped"}}
				if name != "while the machine ends" {
					want.Stayed = []string{"ns/later", "ns/never", "ns/over", "ns/skipped"}
				} else {
					asked = []string{"0s deleted later with 1m30s", "0s deleted web with 30s"}
					want.Evicted, want.Forced = 0, 2
				}
				s.wantEnd(result, err, want, 20*time.Second)
				slices.Sort(s.events)
				s.want(0, asked...)
				if left, err := s.drainer.Remaining(s.Context(), "node", s.rules); err != nil || len(left) > 0 {
					t.Errorf("%q have to leave, %v", left, err)
				}
			})
		})
	}
}

func TestAHeadStartEndsWithARefusalOrAfterHalfAMinute(t *testing.T) {
	for name, tt := range map[string]struct {
		refuse func(pod string) *metav1.Status
		terms  evacuation.Terms
		want   []string
	}{
		"the pod is slow": {nil, evacuation.Terms{}, []string{"0s evicted eager with 10m0s", "30s evicted web with 30s"}},
		"the pod is kept": {func(pod string) *metav1.Status {
			if pod == "eager" {
				return budget(pod)
			}
			return nil
		}, evacuation.Terms{}, []string{"0s evicted web with 30s"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("eager", leaves("first"), graced(600))
				s.pod("web")
				s.stops["eager"] = 5 * time.Minute
				s.refuse = tt.refuse
				s.ends("eager", 5*time.Minute)
				result, err := s.drain(tt.terms, nil)
				if err != nil || result.Evicted+result.Ended != 2 {
					t.Errorf("Drain = %+v, %v", result, err)
				}
				s.events = slices.DeleteFunc(s.events, func(e string) bool { return strings.Contains(e, "refused") })
				s.want(0, tt.want...)
			})
		})
	}
}

func TestWhatLeavesLastIsAskedAtItsLastMoment(t *testing.T) {
	job := []func(*corev1.Pod){leaves("last"), graced(60)}
	for name, tt := range map[string]struct {
		refuse  func(string) *metav1.Status
		terms   time.Duration // to the deadline
		ignore  bool
		refused int
		want    []string
	}{
		"by an eviction":                           {nil, 300 * time.Second, false, 0, []string{"3m55s evicted job with 1m0s"}},
		"then by a deletion":                       {budget, 300 * time.Second, false, 1, []string{"3m55s deleted job with 1m0s"}},
		"with what is left of it":                  {nil, 40 * time.Second, false, 0, []string{"0s evicted job with 38s"}},
		"a machine that stops already leaves none": {budget, 300 * time.Second, true, 0, []string{"0s deleted job with 1m0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("job", job...)
				s.refuse = tt.refuse
				if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(tt.terms), IgnoreBudgets: tt.ignore}, nil); err != nil {
					t.Error(err)
				}
				s.want(tt.refused, tt.want...)
			})
		})
	}
}

func TestWithoutADeadlineADrainWaitsForWhatLeavesLastAndSaysSo(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("job", doing("job"))
		s.pod("dns", systemCritical)
		s.pod("shipper", daemon, doing("shipper"))
		s.rules = roles()
		told := s.told()
		var log logtest.Log
		time.AfterFunc(150*time.Second, func() {
			s.edit("job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		})
		result, err := s.drainer.Drain(s.Context(), &evacuation.Request{
			Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, Rules: s.rules, NodeState: s.look, Log: log.Logger(),
		})
		s.wantEnd(result, err, evacuation.Result{Evicted: 3}, 150*time.Second)
		s.want(0, "0s evicted dns with 30s", "2m30s evicted job with 30s", "2m30s evicted shipper with 30s")
		const why = "it leaves last (job), and there is no deadline so far"
		if diff := cmp.Diff([]string{"10s node job " + why + " first=true"}, *told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		waits := log.Said("waiting for pods to leave")
		if len(waits) != 2 || !strings.Contains(waits[0], "ns/job: "+why) || !strings.Contains(waits[0], "ns/shipper: it leaves at the end (shipper)") {
			t.Errorf("the log says %q", waits)
		}
	})
}

func TestADeadlineThatComesEndsTheWaitForWhatLeavesLast(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"of its owner's":             {leaves("last"), "3m5s evicted a with 30s"},
		"of Karpenter's":             {annotated(decision.DoNotDisruptAnnotation, "true"), "1m40s evicted a with 30s"},
		"of Karpenter's, for a time": {annotated(decision.DoNotDisruptAnnotation, "1h"), "1m40s evicted a with 30s"},
		"of the Autoscaler's":        {annotated(decision.SafeToEvictAnnotation, "false"), "1m40s evicted a with 30s"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a", tt.edit)
				var log logtest.Log
				_, err := s.drainer.Drain(s.Context(), &evacuation.Request{
					Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, Log: log.Logger(),
					Changed: s.changes(100*time.Second, evacuation.Terms{Deadline: s.begin.Add(220 * time.Second)}),
				})
				if err != nil {
					t.Error(err)
				}
				s.want(0, tt.want)
				for _, line := range log.Said("waiting for pods to leave") {
					if strings.Contains(line, "no deadline so far") != strings.Contains(line, `left="no deadline"`) {
						t.Error(line)
					}
				}
			})
		})
	}
}

func TestWhatKarpenterProtectsForATimeLeavesAfterIt(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", annotated(decision.DoNotDisruptAnnotation, "30m"), func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: s.begin.Add(-20 * time.Minute)}
		})
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 10*time.Minute)
	})
}

func TestAnAnnotationThatChangesCountsUntilThePodWasAsked(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("asked", graced(600))
		s.stops["asked"] = 10 * time.Minute
		s.pod("becomes-last")
		s.pod("was-last", leaves("last"))
		s.pod("agent", daemon, leaves("end"))
		s.drainer.Filter.IgnoreDaemonSets = true
		s.refuse = func(pod string) *metav1.Status {
			if pod == "becomes-last" && time.Since(s.begin) < time.Minute {
				s.edit("becomes-last", leaves("end")) // too late: it was asked
				return budget(pod)
			}
			return nil
		}
		time.AfterFunc(20*time.Second, func() {
			s.edit("was-last", leaves("now"))
			s.edit("asked", leaves("last"))
			s.edit("agent", leaves(""))
		})
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 3}, 10*time.Minute)
		for _, e := range s.events {
			if strings.Contains(e, "agent") || strings.Contains(e, "was-last") && !strings.HasPrefix(e, "20s") || strings.Contains(e, "evicted becomes-last") && !strings.HasPrefix(e, "1m") {
				t.Error(e)
			}
		}
	})
}

func TestAMistakeInAnAnnotationIsToldOnce(t *testing.T) {
	play(t, func(s *stage) {
		var log logtest.Log
		for k := range 20 {
			s.pod(fmt.Sprint("p", k), leaves("lst"))
		}
		s.pod("agent", daemon, leaves("first"))
		result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: "node", Terms: evacuation.Terms{CordonedAt: s.begin}, Log: log.Logger()})
		s.wantEnd(result, err, evacuation.Result{Evicted: 20, Stayed: []string{"ns/agent"}}, lateBindTime)
		lines := log.Said("a pod cannot leave as its owner wants")
		slices.Sort(lines)
		if len(lines) != 2 || !strings.Contains(lines[0], "ns/agent") || !strings.Contains(lines[1], `lst`) {
			t.Errorf("the log says %q", lines)
		}
	})
}

// The controller of a DaemonSet makes a pod in the place of each, at once, and on the same node.
func TestThePodOfADaemonSetIsAskedOnce(t *testing.T) {
	created := func(at time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at.Truncate(time.Second)) }
	}
	play(t, func(s *stage) {
		s.rules = roles()
		s.begin = s.begin.Add(-10 * time.Minute) // the node was cordoned a while ago
		s.pod("web")
		s.stops["web"] = 20 * time.Second
		s.pod("shipper-0", daemon, tolerant, doing("shipper"), created(s.begin.Add(-time.Hour)))
		s.pod("logs-0", daemon, tolerant, leaves("end"), withEmptyDir, created(s.begin.Add(-time.Hour)))
		s.pod("static-0", daemon, doing("shipper"), annotated(corev1.MirrorPodAnnotationKey, "x"))
		var made atomic.Int32 // pods may stop in the same moment
		s.stopped = func(gone *corev1.Pod) {
			if gone.Name != "web" {
				name, _, _ := strings.Cut(gone.Name, "-")
				s.pod(fmt.Sprintf("%s-%d", name, made.Add(1)), func(p *corev1.Pod) {
					p.OwnerReferences, p.Labels, p.Annotations, p.Spec = gone.OwnerReferences, gone.Labels, gone.Annotations, gone.Spec
				}, created(time.Now()))
			}
		}
		s.drainer.Filter.DeleteEmptyDir = true
		for leader := range 3 {
			result, err := s.drain(evacuation.Terms{}, nil)
			want := evacuation.Result{}
			if leader == 0 {
				want = evacuation.Result{Evicted: 3}
			}
			if diff := cmp.Diff(want, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" || err != nil {
				t.Errorf("leader %d (-want +got):\n%s%v", leader, diff, err)
			}
		}
		if diff := cmp.Diff(map[string]int{"web": 1, "shipper": 1, "logs": 1}, s.asked()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
	play(t, func(s *stage) { // whatever the API server's clock says
		s.begin = s.begin.Add(-10 * time.Minute)
		s.pod("logs-0", daemon, leaves("end"))
		s.stopped = func(*corev1.Pod) {
			s.pod(fmt.Sprint("logs-", s.asked()["logs"]), daemon, leaves("end"), created(s.begin.Add(-time.Hour)))
		}
		result, err := s.drain(evacuation.Terms{}, nil)
		if diff := cmp.Diff(evacuation.Result{Evicted: 1}, *result, cmpopts.IgnoreTypes(evacuation.Record{})); diff != "" || err != nil || len(s.events) != 1 {
			t.Errorf("%d requests (-want +got):\n%s%v", len(s.events), diff, err)
		}
	})
	play(t, func(s *stage) {
		s.pod("logs-0", daemon, leaves("end"), withEmptyDir)
		s.pod("own", daemon, leaves("end"))
		s.drainer.Filter.IgnoreDaemonSets = true
		s.drainer.Keep = types.NamespacedName{Namespace: "ns", Name: "own"}
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Stayed: []string{"ns/logs-0"}}, lateBindTime)
	})
}

func TestTheGraceOfTheTermsReplacesThatOfThePods(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("first", leaves("first"), graced(600))
		s.stops["first"] = 20 * time.Second
		s.pod("second")
		result, err := s.drain(evacuation.Terms{Grace: 40 * time.Second}, s.changes(10*time.Second, evacuation.Terms{Grace: 15 * time.Second}))
		s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 20*time.Second)
		s.want(0, "0s evicted first with 40s", "20s evicted second with 15s")
	})
	play(t, func(s *stage) { // that of the option as well, and it says when pods are forced
		s.drainer.Grace = 20 * time.Second
		s.pod("a", graced(600))
		s.refuse = budget
		_, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), Grace: 50 * time.Second}, nil)
		if err != nil {
			t.Error(err)
		}
		s.events = s.events[len(s.events)-1:]
		s.want(0, "1m5s deleted a with 50s")
	})
}

func TestTheMostGraceOfTheTermsOnlyCutsALongerOne(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("first", leaves("first"), graced(20))
		s.stops["first"] = 20 * time.Second
		s.pod("long", graced(600))
		s.pod("short", graced(10))
		result, err := s.drain(evacuation.Terms{MostGrace: 60 * time.Second}, s.changes(10*time.Second, evacuation.Terms{MostGrace: 45 * time.Second}))
		s.wantEnd(result, err, evacuation.Result{Evicted: 3}, 20*time.Second)
		slices.Sort(s.events)
		s.want(0, "0s evicted first with 20s", "20s evicted long with 45s", "20s evicted short with 10s")
	})
	play(t, func(s *stage) { // it says when pods are forced
		s.pod("a", graced(600))
		s.refuse = budget
		_, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), MostGrace: 50 * time.Second}, nil)
		if err != nil {
			t.Error(err)
		}
		s.events = s.events[len(s.events)-1:]
		s.want(0, "1m5s deleted a with 50s")
	})
}

func TestPatientTermsForceNothingAndTheDrainEndsAtTheDeadline(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("kept")
		s.pod("slow", graced(600))
		s.stops["slow"] = 10 * time.Minute
		s.pod("dns", systemCritical)
		s.pod("job", leaves("last"))
		s.refuse = func(pod string) *metav1.Status {
			if pod == "kept" {
				return budget(pod)
			}
			return nil
		}
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), Patient: true, IgnoreBudgets: true}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2, Missed: []string{"ns/kept", "ns/slow"}}, 120*time.Second)
		var asked []string
		for _, e := range s.events {
			if !strings.Contains(e, "refused") {
				asked = append(asked, e)
			}
		}
		slices.Sort(asked[1:])
		if diff := cmp.Diff([]string{"0s evicted slow with 10m0s", "1m25s evicted dns with 30s", "1m25s evicted job with 30s"}, asked); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestASimulationPlaysTheTurns(t *testing.T) {
	two := evacuation.Terms{Deadline: at(120)}
	with := func(s Simulation, edit func(*Simulation)) Simulation {
		s.Rules = roles()
		edit(&s)
		return s
	}
	same := func(*Simulation) {}
	for name, tt := range map[string]struct {
		r    Simulation
		want []string
	}{
		"in their order": {
			with(simulationOf(two, at(120), actor("dns", 5, systemCritical), actor("db", 5, doing("database")), actor("cache", 5, doing("cache")),
				actor("web", 5), actor("lone", 5, doing("singleton")), actor("job", 5, doing("job")), actor("logs", 5, daemon, doing("shipper"))), same),
			[]string{
				"lone evicted at 0s with 5s, gone at 5s", "web evicted at 5s with 5s, gone at 10s", "cache evicted at 10s with 5s, gone at 15s",
				"db evicted at 15s with 5s, gone at 20s", "dns evicted at 20s with 5s, gone at 25s",
				"job evicted at 1m50s with 5s, gone at 1m55s", "logs evicted at 1m50s with 5s, gone at 1m55s",
			},
		},
		"a head start is half a minute": {
			with(simulationOf(two, at(120), actor("lone", 60, doing("singleton")), actor("web", 5)), same),
			[]string{"lone evicted at 0s with 1m0s, gone at 1m0s", "web evicted at 30s with 5s, gone at 35s"},
		},
		"or ends with a refusal": {
			with(simulationOf(two, at(120), actor("lone", 60, doing("singleton"), under("none")), actor("web", 5)), same),
			[]string{"web evicted at 0s with 5s, gone at 5s", "lone deleted at 55s with 1m0s, blocked by none, gone at 1m55s"},
		},
		"without a deadline what leaves last is not asked": {
			with(simulationOf(evacuation.Terms{}, at(120), actor("job", 5, doing("job")), actor("web", 5)), same),
			[]string{"web evicted at 0s with 5s, gone at 5s", "job is never asked"},
		},
		"or until it has ended": {
			with(simulationOf(evacuation.Terms{}, at(120), actor("job", 5, doing("job"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })), same),
			[]string{"job evicted at 0s with 0s, gone at 0s"},
		},
		"a pod that stops already has its turn, too": {
			with(simulationOf(evacuation.Terms{}, at(120), actor("cache", 5, doing("cache")), actor("database", 60, doing("database"), func(p *corev1.Pod) {
				p.DeletionTimestamp = &metav1.Time{Time: at(60)}
			})), same),
			[]string{"cache evicted at 0s with 5s, gone at 5s", "database evicted at 0s with 1m0s, gone at 1m0s"},
		},
		"until its protection is over": {
			with(simulationOf(evacuation.Terms{}, at(120), actor("a", 5, annotated(decision.DoNotDisruptAnnotation, "10m"), func(p *corev1.Pod) {
				p.Status.StartTime = &metav1.Time{Time: at(-540)}
			})), same),
			[]string{"a evicted at 1m0s with 5s, gone at 1m5s"},
		},
		"patient terms force nothing": {
			with(simulationOf(two, at(120), actor("a", 5, under("none")), actor("b", 600)), func(s *Simulation) { s.Terms.Patient = true }),
			[]string{"b evicted at 0s with 10m0s", "a is never asked, blocked by none"},
		},
		"a longer grace is cut, a shorter one stays": {
			with(simulationOf(two, at(120), actor("a", 600), actor("b", 30)), func(s *Simulation) { s.Terms.MostGrace = 45 * time.Second }),
			[]string{"a evicted at 0s with 45s, gone at 45s", "b evicted at 0s with 30s, gone at 30s"},
		},
		"the grace is that of the terms": {
			with(simulationOf(two, at(120), actor("a", 600)), func(s *Simulation) { s.Terms.Grace = 45 * time.Second }),
			[]string{"a evicted at 0s with 45s, gone at 45s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, outcomes(tt.r.Run())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheOrderAmongThoseThatLeaveAfterHasBounds(t *testing.T) {
	for order, want := range map[int]tier{-1: 1, 0: 1, 1: 1, 50: 50, 100: 100, 101: 100, 1 << 20: 100} {
		if got := tierOf(&corev1.Pod{}, decision.Turn{Leave: decision.LeaveAfter, Order: order}); got != want || got <= workload || got >= critical {
			t.Errorf("order %d is tier %d, want %d", order, got, want)
		}
	}
}

// aNode draws the pods of a node, their budgets, and what rules and owners say of them.
func aNode(t *rapid.T) []*corev1.Pod {
	var pods []*corev1.Pod
	for k := range rapid.IntRange(1, 8).Draw(t, "pods") {
		p := actor(fmt.Sprint("p", k), rapid.Int64Range(0, 300).Draw(t, "grace"), doing(rapid.SampledFrom([]string{"", "", "singleton", "cache", "database", "job", "plain", "shipper"}).Draw(t, "role")))
		if rapid.Bool().Draw(t, "annotated") {
			leaves(rapid.SampledFrom([]string{"now", "first", "last", "end", "surged", "x"}).Draw(t, "leave"))(p)
		}
		if rapid.IntRange(0, 4).Draw(t, "of a DaemonSet") == 0 {
			daemon(p)
		}
		if rapid.IntRange(0, 4).Draw(t, "critical") == 0 {
			systemCritical(p)
		}
		under(rapid.SampledFrom([][]string{nil, nil, {"one"}, {"none"}}).Draw(t, "budgets")...)(p)
		pods = append(pods, p)
	}
	return pods
}

func TestWhateverTheTurnsADeadlineIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms := evacuation.Terms{Deadline: at(rapid.IntRange(5, 400).Draw(t, "deadline")), IgnoreBudgets: rapid.Bool().Draw(t, "ignore budgets")}
		if rapid.Bool().Draw(t, "a grace of the terms") {
			terms.Grace = time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second
		}
		simulation := simulationOf(terms, terms.Deadline, aNode(t)...)
		simulation.Rules = roles()
		for _, o := range simulation.Run() {
			forceAt := later(terms.Deadline.Add(-o.Own-margin), now)
			switch {
			case o.Stays:
			case o.Asked.IsZero():
				t.Fatalf("%s was never asked", o.Pod.Name)
			case o.Asked.After(forceAt):
				t.Fatalf("%s was asked at %s, which is later than %s", o.Pod.Name, o.Asked.Sub(now), forceAt.Sub(now))
			case o.Grace < o.Own && forceAt.After(now):
				t.Fatalf("%s got %s of %s", o.Pod.Name, o.Grace, o.Own)
			case o.Gone.After(later(terms.Deadline, now.Add(margin))):
				t.Fatalf("%s was gone at %s", o.Pod.Name, o.Gone.Sub(now))
			}
		}
	})
}

// An owner can delay the pods of others by a head start, and no more.
func TestNoOwnerCanHoldThePodsOfOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var terms evacuation.Terms
		end := at(3600)
		if rapid.Bool().Draw(t, "a deadline") {
			terms.Deadline = at(rapid.IntRange(60, 600).Draw(t, "deadline"))
			end = terms.Deadline
		}
		pods := aNode(t)
		plain := make([]*corev1.Pod, 0, len(pods))
		for _, p := range pods {
			p.Labels["role"], p.OwnerReferences = "", nil
			without := p.DeepCopy()
			without.Annotations = nil
			plain = append(plain, without)
		}
		asked := func(pods []*corev1.Pod) map[string]time.Time {
			at := map[string]time.Time{}
			for _, o := range simulationOf(terms, end, pods...).Run() {
				at[o.Pod.Name] = o.Asked
			}
			return at
		}
		before, after := asked(plain), asked(pods)
		guarded := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Labels["budgets"] != "" })
		for _, p := range pods {
			// What is critical waits for the others, and another order of these may be one that their budget holds.
			waits := guarded && p.Spec.Priority != nil
			if p.Annotations != nil || p.Labels["budgets"] != "" || waits || before[p.Name].IsZero() {
				continue
			}
			if late := after[p.Name].Sub(before[p.Name]); after[p.Name].IsZero() || late > headStart {
				t.Fatalf("%s is asked at %s, and without the annotations of others at %s", p.Name, after[p.Name].Sub(now), before[p.Name].Sub(now))
			}
		}
	})
}

// The drain itself keeps what the simulation promises, whatever kubelets and budgets do.
func TestADrainAsksEachPodInTimeWhateverItsTurn(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			play(t, func(s *stage) {
				random := rand.New(rand.NewPCG(seed, 1))
				one := func(of ...string) string { return of[random.IntN(len(of))] }
				s.rules = roles()
				s.drainer.Filter.IgnoreDaemonSets = true
				takes, err := time.Duration(random.IntN(60))*time.Second, []error{nil, errors.New("it cannot")}[random.IntN(2)]
				s.drainer.Surge = func(ctx context.Context, _ *corev1.Pod) error {
					select {
					case <-time.After(takes):
						return err
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				deadline := time.Duration(60+random.IntN(300))*time.Second + 700*time.Millisecond
				last, refused := map[string]time.Duration{}, map[string]bool{}
				for k := range 1 + random.IntN(8) {
					name := fmt.Sprint("p", k)
					grace := time.Duration(1+random.IntN(120)) * time.Second
					last[name] = max(0, deadline-grace-margin).Round(time.Second) // as events have it
					refused[name] = random.IntN(4) == 0
					s.stops[name] = time.Duration(random.IntN(200)) * time.Second
					s.pod(name, graced(int64(grace/time.Second)), leaves(one("now", "first", "last", "end", "surged")), doing(one("", "", "singleton", "cache", "database", "job", "plain")), func(p *corev1.Pod) {
						if random.IntN(4) == 0 {
							systemCritical(p)
						}
					})
				}
				s.refuse = func(pod string) *metav1.Status {
					if refused[pod] {
						return budget(pod)
					}
					return nil
				}
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(deadline)}, nil)
				if n := result.Evicted + result.Forced; n != len(last) || err != nil {
					t.Errorf("Drain = %+v, %v", result, err)
				}
				asked := map[string]bool{}
				for _, e := range s.events {
					fields := strings.Fields(e)
					when, err := time.ParseDuration(fields[0])
					if err != nil {
						t.Fatal(err)
					}
					name := fields[2]
					if !asked[name] && when > last[name] {
						t.Errorf("%s; its last moment was %s", e, last[name])
					}
					asked[name] = true
				}
			})
		})
	}
}

// A drain keeps the rules that it has begun with, and its watch brings pods after the file has changed.
func TestAPodIsKeptWithWhatEarlierRulesRead(t *testing.T) {
	trimmer, before, after := new(PodTrimmer), roles(), decision.Rules{}
	pod := actor("a", 30, doing("job"))
	trimmer.Trim(pod, &before)
	if small := trimmer.Trim(pod, &after); small.Labels["role"] != "job" {
		t.Errorf("the labels are %v", small.Labels)
	}
}

func TestAPodIsKeptWithWhatTheRulesReadAlone(t *testing.T) {
	pod := actor("a", 30, doing("job"), leaves("last"), annotated("note", strings.Repeat("x", 100)), annotated(decision.SafeToEvictAnnotation, strings.Repeat("y", 1<<18)))
	rules := roles()
	small := new(PodTrimmer).Trim(pod, &rules)
	got := fmt.Sprint(small.Labels, small.Annotations[decision.LeaveAnnotation], len(small.Annotations), len(small.Annotations[decision.SafeToEvictAnnotation]))
	if want := "map[role:job]last2253"; strings.ReplaceAll(got, " ", "") != want {
		t.Errorf("kept is %s, want %s", got, want)
	}
	if none := new(PodTrimmer).Trim(actor("b", 30, doing("job")), &decision.Rules{}); none.Labels != nil || none.Annotations != nil {
		t.Errorf("without rules %v is kept", none)
	}
}
