package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeobject "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/imds"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/onnode"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// A podOnNode is a pod in IMDS mode on the story's node, with the metadata of its instance.
type podOnNode struct {
	patchTakes atomic.Int64 // as of the story, for this pod
	s          *story
	nodes      *cluster.Cluster
	metadata   *awssim.Metadata
	drain      *slowDrainer
	state      atomic.Int32 // what the Lease says, a lease.State
	alone      atomic.Bool  // it drains, and does not only report
	reports    bool         // it never drains
	poller     atomic.Pointer[imds.Poller]
	stop       func()
}

// Leadership implements onnode.Leader.
func (p *podOnNode) Leadership(context.Context) lease.State { return lease.State(p.state.Load()) }

func (p *podOnNode) says(state lease.State) { p.state.Store(int32(state)) }

// onNode starts a pod whose drains take a time. The Lease says that somebody leads.
func (s *story) onNode(takes time.Duration) *podOnNode {
	s.Helper()
	p := &podOnNode{
		s: s, drain: &slowDrainer{takes: takes},
		metadata: awssim.NewMetadata(awssim.MetadataOptions{Instance: theID, Started: s.began.Add(-time.Hour)}),
	}
	p.poller.Store(&imds.Poller{})
	p.says(lease.Held)
	p.restart()
	s.Cleanup(func() { p.stop() })
	return p
}

// restart starts the pod's process again.
func (p *podOnNode) restart() {
	s := p.s
	s.Helper()
	if p.stop != nil {
		p.stop()
	}
	var err error
	p.nodes, err = cluster.NewOfNode(slowPatches{s.kube, &p.patchTakes}, nil, "imds", cluster.CordonOptions{}, theNode)
	s.must(err)
	ctx, cancel := context.WithCancelCause(s.ctx)
	var all sync.WaitGroup
	all.Go(func() { p.nodes.Run(ctx) })
	s.must(p.nodes.WaitForSync(ctx))
	server := onnode.Server{
		Cluster: p.nodes, Node: theNode, Leader: p, Lease: theLease, Policy: decision.Policy{NodeGracePeriod: 2 * time.Minute},
		Log: logtest.To(s.Output()).WithValues("on", "node"), Term: p.term, ReportOnly: p.reports,
		LastAnswer: func() time.Time { return p.poller.Load().LastAnswer() },
	}
	all.Go(func() { _ = server.Run(ctx) }) // the cause of ctx
	p.stop = sync.OnceFunc(func() {
		cancel(errors.New("the story stops the pod on the node"))
		all.Wait()
	})
}

// term is a Term of an onnode.Server.
func (p *podOnNode) term(ctx context.Context, drains bool, with func(onnode.Controller) imds.Handler) error {
	p.alone.Store(drains)
	log, metrics := logtest.To(p.s.Output()).WithValues("on", "node"), telemetry.New()
	c := New(Config{Instances: instance.NewDirectory(ec2.NewFromConfig(p.s.aws.Config()).DescribeInstances), Config: nodedrain.Config{
		Cluster: p.nodes, Hooks: nodedrain.NoHooks{},
		Drainer: p.drain, Observer: metrics, Log: log, Policy: decision.Policy{NodeGracePeriod: 2 * time.Minute}, OnNode: true,
	}})
	poller := &imds.Poller{
		Metadata: imds.New("http://169.254.169.254", p.metadata.Transport()), Handler: with(c.Unannounced()), Identity: imds.Identity{Instance: theID},
		Kinds: imds.Kinds{Spot: true, Scheduled: true, Rebalance: true, Lifecycle: true}, Log: log, Metrics: metrics,
	}
	p.poller.Store(poller)
	var all sync.WaitGroup
	defer all.Wait()
	if drains {
		all.Go(func() { _ = c.Run(ctx) }) // the cause of ctx
		select {
		case <-c.Registry.Resumed():
		case <-ctx.Done():
		}
	}
	poller.Run(ctx)
	return context.Cause(ctx)
}

func TestThePodTellsTheLeaderThatTheMetadataIsSilent(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		p := s.onNode(time.Second)
		s.after(5 * time.Minute)
		if text := s.node().Annotations[cluster.ReportAnnotation]; text != "" {
			t.Errorf("it reports %s", text)
		}
		p.metadata.SetFault(awssim.MetadataFault{Status: http.StatusServiceUnavailable})
		silent := time.Now()
		s.after(3 * time.Minute)
		r, err := cluster.ReadReport(s.node())
		if err != nil || silent.Sub(r.Deaf).Abs() > imds.Interval || r.To != theLease {
			t.Errorf("report %+v, %v; want one that the metadata is silent since %s", r, err, silent)
		}
		p.metadata.SetFault(awssim.MetadataFault{})
		s.after(time.Minute)
		if text := s.node().Annotations[cluster.ReportAnnotation]; text != "" {
			t.Errorf("it still reports %s", text)
		}
	})
}

// The gauge and the page of the pod say whether it drains.
func TestThePodDrainsItsNodeWhereNoLeaseHasComeThoughThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	for state, want := range map[lease.State]bool{
		lease.Absent: true, lease.Held: false, lease.Vacant: false, lease.Stopped: false, lease.Unknown: false,
	} {
		tell(t, func(s *story) {
			p := s.onNode(time.Second)
			p.says(state)
			p.restart()
			s.after(25 * time.Second)
			if p.alone.Load() {
				t.Errorf("state %v: a Lease may be about to come", state)
			}
			s.after(15 * time.Second)
			if got := p.alone.Load(); got != want {
				t.Errorf("state %v: the pod drains: %t", state, got)
			}
			p.says(lease.Held)
			s.after(6 * time.Minute)
			if p.alone.Load() {
				t.Errorf("state %v: a leader has come, and the pod drains on", state)
			}
		})
	}
}

func (p *podOnNode) interrupts() {
	p.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute).Truncate(time.Second))
}

func (p *podOnNode) schedules(in time.Duration, state string) {
	p.metadata.Schedule(awssim.MaintenanceEvent{
		ID: "instance-event-00000000000000001", Code: "system-reboot", State: state, NotBefore: time.Now().Add(in),
	})
}

// wantDrains checks who has drained the node how often.
func (p *podOnNode) wantDrains(leader, pod int) {
	p.s.Helper()
	if l, n := len(p.s.drain.all()), len(p.drain.all()); l != leader || n != pod {
		p.s.Errorf("%d drains by the leader and %d by the pod on the node, want %d and %d", l, n, leader, pod)
	}
}

// wantEnded checks that the node was drained for one notice, and that no message is left.
func (p *podOnNode) wantEnded() {
	p.s.Helper()
	if i := p.s.intent(); i.Outcome != intent.Drained || p.s.left() != 0 || len(i.Entries) != 1 {
		p.s.Errorf("the node carries %+v, %d messages are left", i, p.s.left())
	}
}

func TestTheLeaderDrainsForWhatTheMetadataTells(t *testing.T) {
	t.Parallel()
	for name, tells := range map[string]func(s *story, p *podOnNode){
		"EventBridge is silent":  func(_ *story, p *podOnNode) { p.interrupts() },
		"the metadata is silent": func(s *story, _ *podOnNode) { s.send(s.body("spot-interruption", theID)) },
		"the metadata tells first": func(s *story, p *podOnNode) {
			p.interrupts()
			s.after(5 * time.Second)
			s.send(s.body("spot-interruption", theID))
		},
		"the message tells first": func(s *story, p *podOnNode) {
			s.send(s.body("spot-interruption", theID))
			s.after(5 * time.Second)
			p.interrupts()
		},
		"both at once": func(s *story, p *podOnNode) { p.interrupts(); s.send(s.body("spot-interruption", theID)) },
		"the pod on the node starts again": func(s *story, p *podOnNode) {
			p.interrupts()
			s.after(5 * time.Second)
			p.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.lead()
				p := s.onNode(time.Second)
				tells(s, p)
				s.after(2 * time.Minute)
				p.wantDrains(1, 0)
				p.wantEnded()
			})
		})
	}
}

func TestAPodThatOnlyReportsLeavesItsNodeToTheNextLeader(t *testing.T) {
	t.Parallel()
	for _, state := range []lease.State{lease.Absent, lease.Vacant, lease.Unknown, lease.Held} {
		tell(t, func(s *story) {
			p := s.onNode(time.Second)
			p.reports = true
			p.says(state)
			p.restart()
			p.schedules(time.Hour, "active")
			s.after(10 * time.Minute)
			p.wantDrains(0, 0)
			if r, err := cluster.ReadReport(s.node()); err != nil || len(r.Notices) != 1 || p.alone.Load() {
				t.Errorf("state %v: it reports %+v, %v; it drains: %t", state, r, err, p.alone.Load())
			}
			s.lead()
			p.says(lease.Held)
			s.after(2 * time.Minute)
			p.wantDrains(1, 0)
		})
	}
}

func TestThePodOnTheNodeDrainsItWhereNobodyLeads(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]lease.State{"there is no Lease": lease.Absent, "nobody holds it": lease.Vacant} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				p := s.onNode(10 * time.Second)
				p.says(state)
				p.restart()
				p.interrupts()
				s.after(10 * time.Second)
				p.wantDrains(0, 1)
				s.after(time.Minute)
				p.wantEnded()
				p.says(lease.Held)
				s.lead()
				s.send(s.ago(70*time.Second, "spot-interruption"))
				s.after(time.Minute)
				p.wantDrains(0, 1)
				p.wantEnded()
			})
		})
	}
}

// A pod on the node knows no limits of hooks: the next leader still has to read them.
func TestThePodOnTheNodeMakesNoGuessedDeadlineARealOne(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.SetFault(awssim.Fault{ID: "asg", Service: "autoscaling", Action: "DescribeLifecycleHooks", Status: 400, Code: "Throttling"}))
		s.drain.takes = -1
		stop := s.lead()
		s.terminate(time.Hour)
		s.after(15 * time.Second)
		stop()
		p := s.onNode(10 * time.Second)
		p.says(lease.Vacant)
		p.restart()
		p.interrupts()
		s.after(20 * time.Second)
		if hooks := s.intent().Hooks; len(p.drain.all()) != 1 || len(hooks) != 1 || !hooks[0].Assumed {
			t.Errorf("%d drains by the pod on the node, hooks %+v", len(p.drain.all()), hooks)
		}
	})
}

func TestThePodOnTheNodeStopsWhereTheHandlerIsPaused(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]lease.State{"nobody led": lease.Vacant, "the leader did not take it": lease.Held} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				p := s.onNode(time.Minute)
				p.says(state)
				p.interrupts()
				s.after(30 * time.Second)
				p.wantDrains(0, 1)
				p.says(lease.Stopped)
				s.after(10 * time.Minute)
				p.wantDrains(0, 1)
				if i := s.intent(); i.Finished() {
					t.Errorf("the drain goes on: %+v", i)
				}
				p.says(lease.Held)
				s.lead()
				s.after(5 * time.Minute)
				p.wantDrains(1, 1)
				if i := s.intent(); i.Outcome != intent.Missed { // the machine has gone on meanwhile
					t.Errorf("the leader has not taken it: %+v", i)
				}
			})
		})
	}
}

// The cluster has put a pod of ours on it: that says more than a tag.
func TestWhatAPodReportsOfAnInstanceWithoutTheTagIsActedOn(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
		s.lead()
		p := s.onNode(time.Minute)
		p.interrupts()
		s.after(10 * time.Second)
		p.wantDrains(1, 0)
	})
}

func TestAfterAPauseTheLeaderHasItsTimeToTakeWhatWasReported(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		p := s.onNode(time.Minute)
		p.says(lease.Stopped)
		p.interrupts()
		s.after(time.Minute)
		p.says(lease.Held)
		s.after(10 * time.Second) // it resumes what others carry first
		p.wantDrains(0, 0)
		s.lead()
		s.after(5 * time.Second)
		p.wantDrains(1, 0)
	})
}

func TestTheNextLeaderGoesOnWithTheDrainOfThePodOnTheNode(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"when the pods have left": 10 * time.Second, "in the middle": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = time.Hour
				stop := s.lead()
				p := s.onNode(takes)
				s.terminate(30 * time.Minute)
				p.interrupts()
				s.after(10 * time.Second)
				p.wantDrains(1, 0)
				stop()
				p.says(lease.Vacant)
				s.after(30 * time.Second)
				p.wantDrains(1, 1)
				if i := s.intent(); i.Finished() || len(i.Hooks) != 1 {
					t.Errorf("the node carries %+v", i)
				}
				s.drain.take(time.Second)
				p.says(lease.Held)
				s.lead()
				s.after(2 * time.Minute)
				p.wantDrains(2, 1)
				s.wantHook(awssim.Completed)
				if i := s.intent(); i.Outcome != intent.Drained || s.left() != 0 || p.drain.going() != 0 {
					t.Errorf("the node carries %+v, %d messages are left", i, s.left())
				}
			})
		})
	}
}

// A leader has its time from when it has come, however long the pod has drained by then.
func TestTheLeaderTakesWhatThePodOnTheNodeHasBegun(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{10 * time.Second, 30 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				p := s.onNode(time.Hour)
				p.says(lease.Vacant)
				p.interrupts()
				s.after(after)
				p.wantDrains(0, 1)
				p.says(lease.Held)
				s.after(8 * time.Second) // it resumes
				s.lead()
				s.after(time.Minute)
				p.wantDrains(1, 1)
				if p.drain.going() != 0 {
					t.Error("both drain the node")
				}
				p.wantEnded()
			})
		})
	}
}

// An answer of the API server that fails, or comes late, is no end of the leader.
func TestALeaderThatHasTakenANoticeIsNotMissedAtOnce(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		p := s.onNode(time.Hour)
		p.interrupts()
		s.after(12 * time.Second)
		p.wantDrains(1, 0)
		p.says(lease.Vacant)
		s.after(4 * time.Second)
		p.says(lease.Held)
		s.after(20 * time.Second)
		p.wantDrains(1, 0)
		p.says(lease.Vacant)
		s.after(15 * time.Second)
		p.wantDrains(1, 1)
	})
}

// What the earlier leader was draining counts for limits before anything new begins.
func TestANewLeaderResumesBeforeItTakesReports(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const slow = 5 * time.Second
		s.kube.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtimeobject.Object, error) {
			if !a.(clienttesting.ListAction).GetListRestrictions().Labels.Empty() {
				time.Sleep(slow)
			}
			return false, nil, nil
		})
		p := s.onNode(time.Hour)
		p.interrupts()
		s.after(2 * time.Second)
		began := time.Now()
		s.lead()
		s.after(2 * time.Second)
		p.wantDrains(1, 0)
		if after := s.intent().CordonedAt.Sub(began); after < slow {
			t.Errorf("it has cordoned the node after %s, before the answer that says what resumes", after)
		}
	})
}

// EC2 lists events later than the metadata, and those of one account alone.
func TestAnEventThatEC2DoesNotListIsNoneThatIsOver(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		s.lead()
		p := s.onNode(time.Second)
		p.schedules(100*time.Hour, "active")
		s.after(10 * time.Minute)
		p.wantDrains(1, 0)
		s.wantDrained()
		p.schedules(100*time.Hour, "canceled")
		s.after(5 * time.Minute)
		s.wantLeft(1)
	})
}

func TestWhatTheLeaderDoesNotTakeThePodOnTheNodeDoes(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		p := s.onNode(10 * time.Second)
		p.interrupts()
		s.after(14 * time.Second)
		p.wantDrains(0, 0)
		s.after(5 * time.Second)
		p.wantDrains(0, 1)
		s.after(time.Minute)
		p.wantEnded()
	})
}

func TestWhatCanWaitWaitsForALeader(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		p := s.onNode(10 * time.Second)
		p.schedules(200*time.Hour, "active")
		s.after(time.Hour)
		p.wantDrains(0, 0)
		p.says(lease.Vacant)
		s.after(25 * time.Second)
		p.wantDrains(0, 0)
		s.after(15 * time.Second)
		p.wantDrains(0, 1)
	})
}

// hasNoRoom has another node out of use, and a limit of one.
func (s *story) hasNoRoom() {
	s.Helper()
	s.edits(func(c *Config) { c.MaxUnready = intstr.Parse("1") })
	other := aNode("other", "i-0fedcba9876543210")
	other.Status.Conditions[0].Status = corev1.ConditionUnknown
	_, err := s.kube.CoreV1().Nodes().Create(s.Context(), other, metav1.CreateOptions{})
	s.must(err)
}

func TestThePodOnTheNodeReleasesNothingThatTheLeaderHoldsBack(t *testing.T) {
	race.Long(t)
	t.Parallel()
	for name, dies := range map[string]bool{"the leader leads": false, "nobody leads any more": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				s.hasNoRoom()
				stop := s.lead()
				p := s.onNode(time.Minute)
				p.schedules(5*time.Hour, "active")
				s.after(10 * time.Second)
				if dies {
					stop()
					p.says(lease.Vacant)
				}
				s.after(10 * time.Minute)
				if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable {
					t.Errorf("max-unready-nodes is 1, another node is not ready, and the pod on the node drains it: %+v", i)
				}
				p.wantDrains(0, 0)
				s.after(time.Until(s.began.Add(5*time.Hour - time.Minute)))
				if n := len(s.drain.all()) + len(p.drain.all()); n != 1 {
					t.Errorf("%d drains when it cannot wait any more, want 1", n)
				}
			})
		})
	}
}

func TestThePodOnTheNodeDoesNotDrainForWhatARuleIgnores(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		p := s.onNode(time.Second)
		p.interrupts()
		s.after(3 * time.Minute)
		p.wantDrains(0, 0)
		if r, err := cluster.ReadReport(s.node()); err != nil || len(r.Notices) != 1 || len(r.Answered) != 1 {
			t.Errorf("the report is %+v, %v", r, err)
		}
	}, decision.NodeRule{Name: "never", Kinds: []notice.Kind{notice.SpotInterruption}, Do: decision.Ignoring})
}

// The leader was away when the pod drained its node for a change that a rule ignores by now. The next notice of the
// node makes the leader drop that change, and the pod is told so.
func TestThePodOnTheNodeIsToldOfWhatTheLeaderDrops(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		p := s.onNode(time.Second)
		p.says(lease.Vacant)
		p.schedules(2*time.Hour, "active")
		s.after(5 * time.Minute)
		p.wantDrains(0, 1)
		p.says(lease.Held)
		s.lead()
		s.after(10 * time.Minute)
		p.metadata.Recommend(time.Now())
		s.after(10 * time.Minute)
		p.wantDrains(1, 1)
		s.after(time.Until(s.began.Add(2*time.Hour - 10*time.Second)))
		p.wantDrains(1, 1)
	}, decision.NodeRule{Name: "never", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Ignoring},
		decision.NodeRule{Name: "later", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1, Limit: decision.Limit{Nodes: "1"}})
}

func TestTheLeaderTakesBackWhatTheMetadataTakesBack(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		p := s.onNode(time.Hour)
		p.schedules(2*time.Hour, "active")
		s.after(15 * time.Second)
		p.wantDrains(1, 0)
		p.schedules(2*time.Hour, "canceled")
		s.after(15 * time.Second)
		if i := s.intent(); i.Has(notice.ScheduledChange) || s.node().Spec.Unschedulable || s.drain.going() != 0 {
			t.Errorf("cordoned: %v; %d drains of the leader; the node carries %+v", s.node().Spec.Unschedulable, s.drain.going(), i)
		}
	})
}

func TestWhatAnEarlierProcessHasReportedIsTakenBack(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, func(n *corev1.Node) {
			n.Annotations = map[string]string{cluster.ReportAnnotation: `{"to":"ns/lease","notices":[{"kind":"ASGTerminate","id":"imds-asg-terminated"}]}`}
		})
		p := s.onNode(time.Second)
		s.after(5 * time.Second)
		s.lead()
		s.after(time.Minute)
		p.wantDrains(0, 0)
	})
}

// A leader without a queue learns of the hook by its sweep, perhaps after the drain for what the pod on the node has
// reported.
func TestTheHookOfAReportedTerminationIsCompleted(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{2 * time.Second, 2 * time.Minute} {
		t.Run(takes.String(), func(t *testing.T) {
			tell(t, func(s *story) {
				s.sweeps, s.noQueue, s.drain.takes = true, true, takes
				s.edit = func(c *Config) { c.Instances, c.ManagedTag = lookup.NoEC2{}, "" }
				s.lead()
				began := s.quietly(awssim.Terminating, "drain", 10*time.Minute).Started
				s.change(theNode, func(n *corev1.Node) {
					const text = `{"to":"ns/lease","notices":[{"kind":"ASGTerminate","id":"imds-asg-terminated"}]}`
					metav1.SetMetaDataAnnotation(&n.ObjectMeta, cluster.ReportAnnotation, text)
				})
				s.after(takes - time.Second)
				s.wantHook(awssim.Active)
				s.after(100 * time.Second)
				took := s.wantHook(awssim.Completed).Ended.Sub(began)
				if took < takes || took > max(takes, time.Minute)+5*time.Second || len(s.drain.all()) != 1 || !s.isCordoned(theNode) {
					t.Errorf("completed after %s and %d drains", took, len(s.drain.all()))
				}
				if calls := s.calls("CompleteLifecycleAction"); calls != 1 {
					t.Errorf("%d completions", calls)
				}
			})
		})
	}
}

// reports writes the report of a scheduled change to the story's node, as a kubelet can.
func (s *story) reports(change int) {
	s.Helper()
	const text = `{"to":"ns/lease","notices":[{"kind":"ScheduledChange","id":"imds-%d","change":"instance-event-%017[1]d"}]}`
	s.change(theNode, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, cluster.ReportAnnotation, fmt.Sprintf(text, change))
	})
	s.after(time.Second)
}

// A kubelet can write ever new notices, and the drain of its node take hours.
func TestReportsThatNeverEndHoldBoundedMemory(t *testing.T) {
	tell(t, func(s *story) {
		s.drain.takes = 24 * time.Hour
		s.lead()
		s.after(time.Second)
		before := runtime.NumGoroutine()
		for k := range 200 {
			s.reports(k)
		}
		if more := runtime.NumGoroutine() - before; more > 4*notice.MostReported {
			t.Errorf("%d more goroutines", more)
		}
	})
}

// The last of too many reports has its turn when one before it ends.
func TestAReportWaitsForThoseBeforeIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		for k := range notice.MostReported + 1 {
			s.reports(k)
		}
		s.after(5 * time.Minute)
		if drains := len(s.drain.all()); drains != 2 {
			t.Errorf("%d drains, want one for the first reports and one for the last", drains)
		}
	})
}

// The pod has drained for a while because it could not read the Lease, and has recorded its warning in the intent of the
// leader's drain, which is held back and does not look there.
func TestTheLeaderDrainsForWhatThePodHasRecordedInItsIntent(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.hasNoRoom()
		s.lead()
		s.reports(1)
		if !s.intent().HeldBack {
			t.Fatalf("the node carries %+v", s.intent())
		}
		now := time.Now().UTC()
		spot := intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"imds-spot-x"}, Time: now, Deadline: now.Add(2 * time.Minute)}
		s.change(theNode, func(n *corev1.Node) {
			i, _, err := cluster.ReadIntent(n)
			s.must(err)
			text, err := i.With(spot, nil, now).Encode()
			s.must(err)
			n.Annotations[cluster.IntentAnnotation] = text
			n.Annotations[cluster.ReportAnnotation] = fmt.Sprintf(
				`{"to":"ns/lease","notices":[{"kind":"SpotInterruption","id":"imds-spot-x","time":%q,"deadline":%q}]}`,
				now.Format(time.RFC3339), spot.Deadline.Format(time.RFC3339))
		})
		s.after(30 * time.Second)
		if drains := len(s.drain.all()); drains != 1 {
			t.Errorf("%d drains, want one; the node carries %+v", drains, s.intent())
		}
	})
}

// What a kubelet writes speaks of its own instance alone, and of nothing that the metadata does not have.
func TestAReportSpeaksOfItsOwnInstance(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no report":         "{",
		"to another leader": `{"to":"other/lease","notices":[{"kind":"SpotInterruption","id":"imds-spot-x"}]}`,
		"another instance":  `{"to":"ns/lease","notices":[{"kind":"SpotInterruption","id":"imds-spot-x","instances":["i-0fedcba9876543210"],"deadline":"2000-01-01T00:02:00Z"}]}`,
		"a state change":    `{"to":"ns/lease","notices":[{"kind":"StateChange","id":"imds-x"}]}`,
		"an id of an event": `{"to":"ns/lease","notices":[{"kind":"SpotInterruption","id":"7d5a1d4c-7f2b-4f3e-9d1a-000000000425"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("other", "i-0fedcba9876543210"), metav1.CreateOptions{})
				s.must(err)
				s.lead()
				s.change(theNode, func(n *corev1.Node) { n.Annotations = map[string]string{cluster.ReportAnnotation: text} })
				s.after(time.Minute)
				if s.isCordoned("other") {
					t.Error("the report of one node cordons another")
				}
				if own := s.isCordoned(theNode); own != (name == "another instance") {
					t.Errorf("its own node is cordoned: %v", own)
				}
			})
		})
	}
}

// The API server takes seconds for the report, and for what the leader records.
func TestALeaderHasItsTimeFromTheReportOn(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		p := s.onNode(time.Second)
		s.after(time.Second)
		s.patchTakes.Store(int64(9 * time.Second))
		p.patchTakes.Store(int64(9 * time.Second))
		p.interrupts()
		s.after(10 * time.Second)
		p.patchTakes.Store(0)
		s.after(time.Minute)
		p.wantDrains(1, 0)
	})
}

// The Node is made again, with a report that is as slow as the first.
func TestALeaderHasItsTimeFromTheReportOnTheNextNodeOn(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		p := s.onNode(time.Second)
		p.interrupts()
		s.after(5 * time.Second)
		s.patchTakes.Store(int64(9 * time.Second))
		p.patchTakes.Store(int64(9 * time.Second))
		s.makeAnew("uid 2")
		s.lead()
		s.after(10 * time.Second)
		p.patchTakes.Store(0)
		s.after(time.Minute)
		p.wantDrains(1, 0)
	})
}

func TestAnUrgentNoticeThatCannotBeReportedIsDrainedFor(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]lease.State{"somebody leads": lease.Held, "nobody leads": lease.Vacant} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				p := s.onNode(time.Second)
				p.says(state)
				refuse := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtimeobject.Object, error) {
					return true, nil, apierrors.NewInternalError(errors.New("a webhook fails"))
				})
				s.beforePatch.Store(&refuse)
				p.interrupts()
				s.after(119 * time.Second)
				p.wantDrains(0, 1)
			})
		})
	}
}

func TestALeaseThatCannotBeReadForAWhilePassesNoLimit(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.hasNoRoom()
		s.lead()
		p := s.onNode(time.Minute)
		p.schedules(5*time.Hour, "active")
		s.after(time.Minute)
		p.says(lease.Absent)
		s.after(6 * time.Second)
		p.says(lease.Held)
		s.after(time.Minute)
		if i := s.intent(); !i.HeldBack || s.isCordoned(theNode) {
			t.Errorf("held back %t, cordoned %t", i.HeldBack, s.isCordoned(theNode))
		}
		p.wantDrains(0, 0)
	})
}

func TestAReportIsTakenWhenTheNodeGetsItsProviderID(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		id := s.node().Spec.ProviderID
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.lead()
		p := s.onNode(time.Second)
		p.metadata.Recommend(time.Now())
		s.after(time.Minute)
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = id })
		s.after(time.Minute)
		p.wantDrains(1, 0)
	})
}

// k3s and kubeadm without a cloud controller manager have such nodes.
func TestANodeThatNamesNoInstanceIsDrainedByThePodOnIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		id := s.node().Spec.ProviderID
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		// By its name the pod knows its Node.
		s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Lifecycle: "spot", PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.lead()
		p := s.onNode(time.Second)
		p.schedules(200*time.Hour, "active")
		s.after(time.Minute)
		p.wantDrains(0, 0)
		s.after(2 * time.Minute)
		p.wantDrains(0, 1)
		p.restart()
		s.after(3 * time.Minute)
		p.wantDrains(0, 1)
		p.schedules(200*time.Hour, "completed")
		s.after(time.Minute)
		if s.node().Spec.Unschedulable {
			t.Error("the change is over, and the node is still cordoned")
		}
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = id })
		p.interrupts()
		s.after(time.Minute)
		p.wantDrains(1, 1)
	})
}

// A Node that is made anew is named as it joins, however long ago its instance was told of the change.
func TestANodeThatIsMadeAnewHasItsTimeToNameItsInstance(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		id := s.node().Spec.ProviderID
		s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Lifecycle: "spot", PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.hasNoRoom()
		s.lead()
		p := s.onNode(time.Second)
		p.schedules(5*time.Hour, "active")
		s.after(10 * time.Minute)
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		anew := aNode(theNode, theID)
		anew.UID, anew.CreationTimestamp, anew.Spec.ProviderID = "uid 2", metav1.Now(), ""
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), anew, metav1.CreateOptions{})
		s.must(err)
		s.after(90 * time.Second)
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = id })
		s.after(10 * time.Minute)
		if i := s.intent(); !i.HeldBack || s.isCordoned(theNode) {
			t.Errorf("max-unready-nodes is 1, another node is not ready, and the drain begins: %+v", i)
		}
		if n := len(p.drain.all()); n > 0 {
			t.Errorf("%d drains by the pod on the node", n)
		}
	})
}

// Of a notice with a message the leader asks EC2 whose instance it is about.
func TestWhatALeaderHoldsBackIsItsOwnThoughTheNodeNamesNoInstance(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Lifecycle: "spot", PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.hasNoRoom()
		s.lead()
		p := s.onNode(time.Second)
		p.metadata.Recommend(time.Now())
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Minute)
		if i := s.intent(); !i.HeldBack || s.isCordoned(theNode) {
			t.Errorf("max-unready-nodes is 1, another node is not ready, and the drain begins: %+v", i)
		}
		p.wantDrains(0, 0)
	})
}

func TestWhatTheLeadersRulesIgnoreIsIgnoredWithoutIt(t *testing.T) {
	t.Parallel()
	never := func(kind notice.Kind) decision.NodeRule {
		return decision.NodeRule{Name: "never", Kinds: []notice.Kind{kind}, Do: decision.Ignoring}
	}
	t.Run("by the next process of the pod", func(t *testing.T) {
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			stop := s.lead()
			p := s.onNode(time.Second)
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			stop()
			p.says(lease.Vacant)
			p.restart()
			s.after(2 * time.Minute)
			p.wantDrains(0, 0)
		}, never(notice.ScheduledChange))
	})
	t.Run("while it does something else", func(t *testing.T) {
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			stop := s.lead()
			p := s.onNode(time.Second)
			p.metadata.Recommend(time.Now())
			s.after(time.Minute)
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			stop()
			p.says(lease.Vacant)
			s.after(10 * time.Second)
			p.schedules(100*time.Hour, "canceled")
			s.after(5 * time.Minute)
			p.wantDrains(1, 0)
			s.wantUntouched()
		}, never(notice.RebalanceRecommendation))
	})
	t.Run("but what has begun without it goes on", func(t *testing.T) {
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			p := s.onNode(time.Hour)
			p.says(lease.Vacant)
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			p.wantDrains(0, 1)
			p.drain.take(time.Second)
			p.says(lease.Held)
			s.lead()
			s.after(time.Minute)
			p.wantDrains(0, 2)
			p.wantEnded()
		}, never(notice.ScheduledChange))
	})
}

// A Node that is made anew before anybody has acted.
func TestAWarningIsActedOnThoughTheNodeIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(s *story, p *podOnNode){
		"the leader takes nothing": func(s *story, p *podOnNode) {
			p.interrupts()
			s.after(5 * time.Second)
		},
		"nobody leads any more": func(s *story, p *podOnNode) {
			stop := s.lead()
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			stop()
			p.says(lease.Vacant)
		},
		"the leader has recorded a change, and is followed by another": func(s *story, p *podOnNode) {
			stop := s.lead()
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				p := s.onNode(time.Second)
				play(s, p)
				before := len(s.drain.all())
				s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
				s.after(3 * time.Second)
				s.register(theNode, "uid 2")
				if strings.HasPrefix(name, "the leader has") {
					s.after(5 * time.Second)
					s.lead()
				}
				s.after(100 * time.Second)
				if name != "the leader takes nothing" {
					s.after(5 * time.Hour)
				}
				if len(p.drain.all())+len(s.drain.all()) == before {
					t.Errorf("nobody drains the Node; cordoned %t, annotations %v", s.isCordoned(theNode), s.node().Annotations)
				}
			})
		})
	}
}

// What the pod has drained while nobody led is reverted when the machine comes back, though a leader leads by then.
func TestWhatThePodHasDrainedIsReverted(t *testing.T) {
	t.Parallel()
	comes := func(s *story, p *podOnNode) {
		p.stop()
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.change(theNode, notReady)
		s.after(10 * time.Minute)
		s.must(s.aws.SetInstanceState(theID, "pending"))
		s.after(20 * time.Second)
		s.must(s.aws.SetInstanceState(theID, "running"))
		p.metadata = awssim.NewMetadata(awssim.MetadataOptions{Instance: theID, Started: time.Now()})
		s.change(theNode, boots("second"))
		p.restart()
	}
	for name, leads := range map[string]bool{"a leader leads": true, "nobody leads": false, "there is no Lease": false} {
		for what, play := range map[string]func(s *story, p *podOnNode){
			"spot, stopped and started": func(s *story, p *podOnNode) { comes(s, p) },
			"uncordoned by a person":    func(s *story, _ *podOnNode) { s.change(theNode, uncordon) },
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				tell(t, func(s *story) {
					s.change(theNode, boots("first"))
					p := s.onNode(time.Second)
					p.says(lease.Vacant)
					if name == "there is no Lease" {
						p.says(lease.Absent)
						p.restart()
					}
					p.interrupts()
					s.after(time.Minute)
					p.wantDrains(0, 1)
					if leads {
						p.says(lease.Held)
						s.lead()
					}
					s.after(time.Minute)
					play(s, p)
					s.after(time.Hour)
					if i := s.intent(); s.isCordoned(theNode) || len(i.Entries) > 0 || i.Cordoned || len(s.node().Labels) > 0 {
						t.Errorf("cordoned %t, labels %v, intent %+v", s.isCordoned(theNode), s.node().Labels, i)
					}
				})
			})
		}
	}
	t.Run("a leader leads, rebooted for a change", func(t *testing.T) {
		tell(t, func(s *story) {
			s.change(theNode, boots("first"))
			p := s.onNode(time.Second)
			p.says(lease.Vacant)
			p.schedules(10*time.Minute, "active")
			s.after(time.Minute)
			p.wantDrains(0, 1)
			p.says(lease.Held)
			s.lead()
			s.after(10 * time.Minute)
			p.stop()
			p.metadata = awssim.NewMetadata(awssim.MetadataOptions{Instance: theID, Started: s.began.Add(-time.Hour)})
			s.change(theNode, reboots("second"))
			p.restart()
			s.after(time.Hour)
			if s.isCordoned(theNode) {
				t.Errorf("cordoned, intent %+v", s.intent())
			}
		})
	})
}

// A change that is moved, and moved back.
func TestAChangeThatIsMovedBackIsDrainedForInTime(t *testing.T) {
	t.Parallel()
	rule := decision.NodeRule{Name: "late", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Draining, Before: 30 * time.Minute}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		p := s.onNode(time.Second)
		at := time.Now().Add(10 * time.Hour).Truncate(time.Second)
		for _, later := range []time.Duration{0, 48 * time.Hour, 0} {
			p.metadata.Schedule(awssim.MaintenanceEvent{ID: "instance-event-00000000000000001", Code: "system-reboot", State: "active", NotBefore: at.Add(later)})
			s.after(time.Minute)
		}
		if d := s.intent().Deadline(); !d.Equal(at) {
			t.Errorf("the machine reboots at %s, and the node carries %s", at, d)
		}
		s.after(time.Until(at))
		if n := len(s.drain.all()) + len(p.drain.all()); n != 1 {
			t.Errorf("the machine reboots, and its node was drained %d times", n)
		}
	}, rule)
}

// Ends that come again do not make the controller forget others.
func TestAnEndThatComesAgainForgetsNoOther(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		late := s.body("health-reboot-scheduled", theID)
		s.after(10 * time.Second)
		s.send(s.body("health-maintenance-completed", theID))
		s.after(5 * time.Second)
		other := s.body("health-maintenance-completed", theID)
		for range 16 {
			s.send(secondChange(other))
			s.after(time.Second)
		}
		s.send(late)
		s.after(10 * time.Second)
		s.wantUntouched()
	})
}

// secondChange is an event of AWS Health about another change.
func secondChange(body string) string {
	return strings.ReplaceAll(body, "event/EC2/", "event/EC2/second-")
}

// A recommendation that a message and the metadata tell of is one: who uncordons its node means it.
func TestARecommendationIsDrainedForOnce(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(s *story, p *podOnNode, stop func()){
		"another leader":    func(s *story, _ *podOnNode, stop func()) { stop(); s.lead() },
		"the pod restarts":  func(_ *story, p *podOnNode, _ func()) { p.restart() },
		"nobody leads more": func(s *story, p *podOnNode, stop func()) { stop(); p.says(lease.Vacant); p.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 30 * time.Second
				stop := s.lead()
				p := s.onNode(time.Second)
				s.send(s.body("rebalance-recommendation", theID))
				at := time.Now()
				s.after(3 * time.Second)
				p.metadata.Recommend(at)
				s.after(3 * time.Minute)
				p.wantDrains(1, 0)
				s.change(theNode, uncordon)
				s.after(time.Hour)
				again(s, p, stop)
				s.after(5 * time.Minute)
				p.wantDrains(1, 0)
				if s.isCordoned(theNode) {
					t.Errorf("it is cordoned again: %+v", s.intent())
				}
			})
		})
	}
}

// A leader that takes a report late.
func TestOneProcessDrainsAfterALateLeader(t *testing.T) {
	t.Parallel()
	t.Run("missed", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Hour
			p := s.onNode(time.Hour)
			p.interrupts()
			s.after(20 * time.Second)
			p.wantDrains(0, 1)
			s.lead()
			s.after(30 * time.Second)
			if s.drain.going()+p.drain.going() > 1 {
				t.Errorf("%d drains by the leader and %d by the pod at once", s.drain.going(), p.drain.going())
			}
			s.after(3 * time.Minute)
		})
	})
	t.Run("begun", func(t *testing.T) {
		tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
			s.drain.takes = time.Hour
			p := s.onNode(time.Hour)
			p.says(lease.Vacant)
			p.schedules(100*time.Hour, "active")
			s.after(time.Minute)
			p.wantDrains(0, 1)
			p.says(lease.Held)
			s.lead()
			s.after(time.Minute)
			s.send(s.body("spot-interruption", theID))
			p.interrupts()
			s.after(40 * time.Second)
			if s.drain.going()+p.drain.going() > 1 {
				t.Errorf("%d drains by the leader and %d by the pod at once", s.drain.going(), p.drain.going())
			}
			s.after(3 * time.Minute)
		}, decision.NodeRule{Name: "never", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Ignoring})
	})
}
