package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A policyOf is a policy file that a story can change.
type policyOf struct {
	mu      sync.Mutex
	rules   decision.Rules
	changed chan struct{}
}

func (p *policyOf) Rules() *decision.Rules {
	p.mu.Lock()
	defer p.mu.Unlock()
	rules := p.rules
	return &rules
}

func (p *policyOf) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *policyOf) set(rules ...decision.NodeRule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed != nil {
		close(p.changed)
	}
	p.rules, p.changed = decision.Rules{Nodes: rules}, make(chan struct{})
}

// steps remembers the steps that are reported.
type steps struct {
	report.Observer
	mu  sync.Mutex
	all []report.Step
	// notified are the decisions only to tell people, without those that were made before.
	notified int
}

func (s *steps) Stepped(step report.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, step)
	s.Observer.Stepped(step)
}

// cordons counts how often it was said of a node that it is cordoned.
func (s *steps) cordons(node string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, step := range s.all {
		if step.Node.Name == node && step.Kind == report.Cordon && step.Err == nil && step.Why != "" {
			n++
		}
	}
	return n
}

func (s *steps) Decided(d report.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Why == decision.WhyNotifiedByRule && !d.Repeated {
		s.notified++
	}
	s.Observer.Decided(d)
}

func (s *steps) of(kind report.StepKind) (found []report.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, step := range s.all {
		if step.Kind == kind {
			found = append(found, step)
		}
	}
	return found
}

// A node that is held back is not cordoned: nobody is told that it is uncordoned.
func TestANodeThatIsLeftAloneWhileItWaitsIsToldSo(t *testing.T) {
	tellWithRules(t, func(s *story, _ *policyOf, told *steps) {
		var ended []overview.Episode
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.Ended = func(e overview.Episode) { ended = append(ended, e) }
		}
		s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(time.Minute)
		s.change(theNode, func(n *corev1.Node) { n.Labels[decision.LeaveAloneLabel] = "" })
		s.after(time.Second)
		if undone, uncordoned := told.of(report.Undo), told.of(report.Uncordon); len(undone) != 1 || len(uncordoned) > 0 {
			t.Errorf("told %+v, %+v", undone, uncordoned)
		}
		if len(ended) != 1 || !strings.Contains(ended[0].Why, decision.LeaveAloneLabel) {
			t.Errorf("episodes: %+v", ended)
		}
	}, aReboot)
}

// tellWithRules tells a story with a policy file.
func tellWithRules(t *testing.T, run func(s *story, p *policyOf, told *steps), rules ...decision.NodeRule) {
	t.Helper()
	tell(t, func(s *story) {
		p, told := &policyOf{}, &steps{}
		p.set(rules...)
		s.edit = func(c *Config) {
			c.PolicyFile, told.Observer = p, c.Observer
			c.Observer = told
		}
		run(s, p, told)
	})
}

var aReboot = decision.NodeRule{
	Name: "reboot-late", Kinds: []notice.Kind{notice.ScheduledChange}, Codes: []string{"*_REBOOT_*"},
	Do: decision.Draining, Before: 30 * time.Minute,
}

// reboot is a message about a reboot in so long.
func (s *story) reboot(in time.Duration) string {
	s.Helper()
	at := time.Now().Add(in).UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT")
	return s.body("health-reboot-scheduled", theID, "Fri, 27 Nov 2026 06:00:00 GMT", at)
}

func TestADrainWaitsForTheTimeOfItsRule(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, told *steps) {
		stop := s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(5 * time.Minute)
		i := s.intent()
		if !i.HeldBack || s.node().Spec.Unschedulable || s.left() != 0 || i.Entries[0].Rule != "reboot-late" {
			t.Fatalf("intent %+v, %d messages left; want it to wait by its rule, without the message", i, s.left())
		}
		if begin := i.Entries[0].NotBefore; begin.Sub(s.began.Add(9*time.Hour+30*time.Minute)).Abs() > time.Minute {
			t.Errorf("it begins at %s", begin)
		}
		if held := told.of(report.HoldBack); len(held) != 1 || held[0].Why != decision.WhyRuleTime {
			t.Errorf("told %+v", held)
		}
		// Nothing is asked of anybody meanwhile, and the next leader waits too.
		before := len(s.kube.Actions())
		s.after(4 * time.Hour)
		for _, call := range s.kube.Actions()[before:] {
			t.Errorf("a call to the API server: %s %s", call.GetVerb(), call.GetResource().Resource)
		}
		stop()
		s.lead()
		s.after(5 * time.Hour)
		if s.node().Spec.Unschedulable || len(s.drain.all()) != 0 {
			t.Fatal("it has begun too early")
		}
		s.after(25 * time.Minute)
		if !s.node().Spec.Unschedulable {
			t.Error("half an hour before the reboot the node is not cordoned")
		}
		s.after(time.Minute)
		if !s.intent().Finished() || len(s.drain.all()) != 1 {
			t.Errorf("intent %+v, drains %+v", s.intent(), s.drain.all())
		}
	}, aReboot)
}

func TestWhatWaitsIsTakenBackWhenItIsCalledOff(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(time.Hour)
		s.send(s.body("health-maintenance-completed", theID))
		s.after(2 * time.Second)
		s.wantUntouched()
		s.after(10 * time.Hour)
		s.wantUntouched()
	}, aReboot)
}

func TestAnUrgentNoticeDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(time.Hour)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
			t.Errorf("intent %+v", s.intent())
		}
	}, aReboot)
}

func TestOtherRulesCountForWhatWaits(t *testing.T) {
	t.Parallel()
	t.Run("an earlier time", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			sooner := aReboot
			sooner.Before = 9*time.Hour - time.Minute
			p.set(sooner)
			s.after(30 * time.Second)
			if i := s.intent(); !i.HeldBack || !i.Entries[0].NotBefore.Before(time.Now().Add(time.Minute)) {
				t.Errorf("intent %+v", i)
			}
			s.after(time.Minute)
			if !s.node().Spec.Unschedulable {
				t.Errorf("intent %+v", s.intent())
			}
		}, aReboot)
	})
	t.Run("none any more", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			p.set()
			s.after(time.Second)
			if i := s.intent(); i.HeldBack || !s.node().Spec.Unschedulable || i.Entries[0].Rule != "" {
				t.Errorf("intent %+v", i)
			}
		}, aReboot)
	})
	t.Run("to ignore it", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			ignoring := aReboot
			ignoring.Do, ignoring.Before = decision.Ignoring, -1
			p.set(ignoring)
			s.after(time.Second)
			s.wantUntouched()
		}, aReboot)
	})
	t.Run("for the label that leaves a node alone", func(t *testing.T) {
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			s.change(theNode, func(n *corev1.Node) {
				n.Labels = map[string]string{"example.com/other": "", cluster.StateLabel: n.Labels[cluster.StateLabel], cluster.KindLabel: n.Labels[cluster.KindLabel]}
			})
			s.after(time.Second)
			if !s.intent().HeldBack {
				t.Errorf("intent %+v", s.intent())
			}
			s.change(theNode, func(n *corev1.Node) { n.Labels[decision.LeaveAloneLabel] = "" })
			s.after(time.Second)
			s.send(s.body("spot-interruption", theID))
			s.after(time.Second)
			s.change(theNode, func(n *corev1.Node) { n.Labels = nil })
			s.wantUntouched()
		}, aReboot)
	})
	t.Run("for labels that are taken off while the node is written", func(t *testing.T) {
		early := decision.NodeRule{
			Name: "early", Do: decision.Draining, Before: 2 * time.Hour,
			Nodes: []decision.Selector{{{Key: "example.com/early", Operator: decision.Exists}}},
		}
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			begun, takenOff := make(chan struct{}), make(chan struct{})
			hold := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
				s.beforePatch.Store(nil)
				close(begun)
				<-takenOff
				return false, nil, nil
			})
			s.beforePatch.Store(&hold)
			label := func(set func(map[string]string)) {
				gvr := corev1.SchemeGroupVersion.WithResource("nodes")
				o, err := s.kube.Tracker().Get(gvr, "", theNode)
				s.must(err)
				n := o.(*corev1.Node).DeepCopy()
				set(n.Labels)
				s.must(s.kube.Tracker().Update(gvr, n, ""))
			}
			label(func(l map[string]string) { l["example.com/early"] = "" })
			<-begun
			label(func(l map[string]string) { delete(l, "example.com/early") })
			close(takenOff)
			s.after(time.Minute)
			if i := s.intent(); i.Entries[0].Rule != aReboot.Name {
				t.Errorf("intent %+v; want the rule by the labels of now", i)
			}
		}, early, aReboot)
	})
	t.Run("of the next leader", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			stop := s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			stop()
			ignoring := aReboot
			ignoring.Do, ignoring.Before = decision.Ignoring, -1
			p.set(ignoring)
			s.lead()
			s.after(time.Second)
			s.wantUntouched()
		}, aReboot)
	})
	t.Run("but not for what has begun", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.drain.takes = time.Hour
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(9*time.Hour + 45*time.Minute)
			ignoring := aReboot
			ignoring.Do, ignoring.Before = decision.Ignoring, -1
			p.set(ignoring)
			s.after(time.Minute)
			if !s.node().Spec.Unschedulable || s.intent().Finished() {
				t.Errorf("intent %+v", s.intent())
			}
		}, aReboot)
	})
}

// The drain for a recommendation has ended, and a reboot that joined it is ahead. An older notice about that begins
// another drain: rules that the file does not have any more neither let it begin nor give it its terms.
func TestOtherRulesCountForWhatADrainHasLeft(t *testing.T) {
	t.Parallel()
	patient := aReboot
	patient.Patient = true
	left := func(s *story, p *policyOf, before, now []decision.NodeRule) {
		p.set(before...)
		s.drain.takes = time.Minute
		s.lead()
		began := time.Now()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(30 * time.Second)
		s.send(s.reboot(10 * time.Hour))
		s.after(5 * time.Minute)
		if i := s.intent(); !i.Finished() || len(i.Entries) != 2 {
			t.Fatalf("intent %+v", i)
		}
		p.set(now...)
		s.after(time.Minute)
		s.send(s.body("health-reboot-scheduled", theID, "Fri, 27 Nov 2026 06:00:00 GMT", gmt(began.Add(5*time.Hour)),
			"2026-11-20T10:15:30Z", began.UTC().Format(time.RFC3339)))
		s.after(10 * time.Second)
	}
	t.Run("none any more", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			left(s, p, []decision.NodeRule{patient}, nil)
			drains, i := s.drain.all(), s.intent()
			if len(drains) != 2 || drains[1].terms.Patient || i.HeldBack || i.Entries[0].Rule != "" || !i.Entries[0].NotBefore.IsZero() {
				t.Errorf("drains %+v, intent %+v; want another one at once, by the options", drains, i)
			}
		})
	})
	t.Run("one that lets it begin later", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			left(s, p, nil, []decision.NodeRule{aReboot})
			if i := s.intent(); len(s.drain.all()) != 1 || !i.HeldBack || i.Entries[0].Rule != aReboot.Name {
				t.Fatalf("drains %+v, intent %+v; want it to wait", s.drain.all(), i)
			}
			s.after(9*time.Hour + 25*time.Minute)
			if i := s.intent(); len(s.drain.all()) != 2 || i.HeldBack {
				t.Errorf("drains %+v, intent %+v; want it to begin 30 minutes before the reboot", s.drain.all(), i)
			}
		})
	})
}

func TestARuleThatIgnoresOrTells(t *testing.T) {
	t.Parallel()
	for _, do := range []decision.Effort{decision.Ignoring, decision.Notifying} {
		t.Run(do.String(), func(t *testing.T) {
			tellWithRules(t, func(s *story, _ *policyOf, told *steps) {
				s.lead()
				body := s.body("rebalance-recommendation", theID)
				s.send(body)
				s.send(body)
				s.terminate(time.Hour)
				s.after(10 * time.Second)
				s.wantUntouched()
				s.wantHook(awssim.Completed)
				if want := map[decision.Effort]int{decision.Notifying: 2}[do]; told.notified != want {
					t.Errorf("told of %d notices, want %d: each event once", told.notified, want)
				}
			}, decision.NodeRule{Name: "hands-off", Kinds: []notice.Kind{notice.RebalanceRecommendation, notice.ASGTerminate}, Do: do, Before: -1})
		})
	}
}

func TestARuleCanCordonAloneAndBePatient(t *testing.T) {
	t.Parallel()
	cordons := decision.NodeRule{Name: "cordon", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Cordoning, Before: -1}
	patient := decision.NodeRule{
		Name: "patient", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Draining, Before: -1, Patient: true, Grace: 20 * time.Second,
	}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		if i := s.intent(); !s.node().Spec.Unschedulable || !i.Finished() || len(s.drain.all()) != 0 {
			t.Fatalf("intent %+v", i)
		}
		s.terminate(10 * time.Minute)
		s.after(10 * time.Second)
		if drains := s.drain.all(); len(drains) != 1 || !drains[0].terms.Patient || drains[0].terms.Grace != 20*time.Second || drains[0].terms.Deadline.IsZero() {
			t.Fatalf("drains %+v", drains)
		}
		s.send(s.body("spot-interruption", theID)) // what forces wins
		s.after(time.Second)
		if drains := s.drain.all(); drains[0].terms.Patient || drains[0].terms.Grace != 20*time.Second {
			t.Errorf("drains %+v", drains)
		}
	}, cordons, patient)
}

// zoned tells of ten nodes in two zones: those with even numbers, and the others.
func zoned(t *testing.T, run func(f *fleet, p *policyOf), rules ...decision.NodeRule) {
	t.Helper()
	tellOfFleet(t, "100%", func(f *fleet) {
		p := &policyOf{}
		p.set(rules...)
		edit := f.edit
		f.edit = func(c *Config) {
			edit(c)
			c.PolicyFile = p
		}
		for k := range f.ids {
			node, err := f.kube.CoreV1().Nodes().Get(f.Context(), fmt.Sprintf("n%d", k), metav1.GetOptions{})
			f.must(err)
			node.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", k%2)}
			_, err = f.kube.CoreV1().Nodes().Update(f.Context(), node, metav1.UpdateOptions{})
			f.must(err)
		}
		run(f, p)
	})
}

func (f *fleet) numbers(is func(*corev1.Node) bool, even bool) (n int) {
	for _, k := range f.nodes(is) {
		if (k%2 == 0) == even {
			n++
		}
	}
	return n
}

func TestALimitCountsTheNodesOfAGroup(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "two-per-zone", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "2", Per: corev1.LabelTopologyZone, Wait: 2 * time.Hour},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.lead()
		for _, id := range f.ids {
			f.send(f.body("rebalance-recommendation", id))
		}
		f.after(5 * time.Second)
		for _, even := range []bool{true, false} {
			if out, waiting := f.numbers(cordoned, even), f.numbers(waits, even); out != 2 || waiting != 3 {
				t.Fatalf("even %t: %d out of use, %d wait; want 2 and 3", even, out, waiting)
			}
		}
		if load := f.c.Load(); load.HeldBack != 6 || load.HeldByLimit != 6 {
			t.Errorf("%+v", load)
		}
		f.wantUsersNamed("rule two-per-zone limits the nodes with topology.kubernetes.io/zone=")
		f.after(5 * time.Minute)
		k := f.nodes(cordoned)[slices.IndexFunc(f.nodes(cordoned), func(k int) bool { return k%2 == 1 })]
		f.replace(k) // by one that is in no zone
		f.after(3 * time.Second)
		if out := f.numbers(cordoned, false); out != 2 || f.numbers(cordoned, true) != 2 {
			t.Errorf("%d of the other zone are out of use", out)
		}
		// What is urgent goes beyond the limit.
		one := f.nodes(waits)[0]
		f.send(f.body("spot-interruption", f.ids[one]))
		f.after(2 * time.Second)
		if !slices.Contains(f.nodes(cordoned), one) {
			t.Error("the node of a spot warning is not cordoned")
		}
		f.after(2 * time.Hour) // as long as they wait at most
		if waiting := f.nodes(waits); len(waiting) != 0 {
			t.Errorf("%v still wait", waiting)
		}
	}, limited)
}
