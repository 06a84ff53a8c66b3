package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/status"
	"github.com/node-termination-handler/node-termination-handler/internal/sweep"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// A story is a controller in virtual time: the real queue server, EC2 and Auto
// Scaling clients against the simulator, a fake API server, and a drain that
// takes as long as the story wants.
type story struct {
	*testing.T
	ctx   context.Context // of the leaders
	aws   *awssim.Server
	kube  *fake.Clientset
	drain *slowDrainer
	began time.Time
	gate  *pace.Gate // of the API server; nil: all requests enter
	// edit changes the configuration of each controller before it starts.
	edit func(*Config)
	c    *Controller // the last one that was started
	// interval is the heartbeat interval of the hooks; zero: none are sent.
	interval time.Duration
	// sweeps: leaders look for hooks that wait without a notice.
	sweeps bool
	// noQueue: they are those of a leader that has its notices from pods.
	noQueue bool
	// poll: leaders ask EC2 each minute for scheduled events and failed status checks, as poll says.
	poll       func(*status.Poll)
	stop       func()                                  // the leader, where a story needs that
	killLeader atomic.Pointer[context.CancelCauseFunc] // of the last leader
	// beforePatch, if there is one, answers a patch of a node in the API server's place, or does something before it.
	beforePatch atomic.Pointer[clienttesting.ReactionFunc]
	patchTakes  atomic.Int64 // nanoseconds until a patch of a node is answered; negative: it never is
}

const (
	queueName = "nth"
	theNode   = "node-a"
	theLease  = "ns/lease"
	theID     = "i-0123456789abcdef0"
)

// tell runs a story in virtual time with one node, tagged and ready.
func tell(t *testing.T, run func(s *story)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &story{T: t, ctx: t.Context(), began: time.Now(), aws: awssim.New(awssim.Options{ShutdownTime: time.Minute}), drain: &slowDrainer{takes: 30 * time.Second}, edit: func(*Config) {}}
		t.Cleanup(s.aws.Close)
		s.kube = fake.NewSimpleClientset(aNode(theNode, theID)) // managed fields are half the work of a test
		s.kube.PrependReactor("patch", "nodes", s.patchNode)
		s.must(s.aws.CreateQueue(awssim.Queue{Name: queueName}))
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: map[string]string{"managed": ""}}))
		run(s)
	})
}

func aNode(name, id string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name), ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + id},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// patchNode patches as the API server does, and the fake does not: a patch that
// was made from another resourceVersion is a conflict.
func (s *story) patchNode(action clienttesting.Action) (bool, runtime.Object, error) {
	if before := s.beforePatch.Load(); before != nil {
		if answered, node, err := (*before)(action); answered {
			return true, node, err
		}
	}
	return s.applyPatch(action)
}

// applyPatch is patchNode without what may come before it.
func (s *story) applyPatch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	gvr := corev1.SchemeGroupVersion.WithResource("nodes")
	obj, err := s.kube.Tracker().Get(gvr, "", patch.GetName())
	if err != nil {
		return true, nil, err
	}
	node := obj.(*corev1.Node)
	var made struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(patch.GetPatch(), &made); err != nil {
		return true, nil, err
	}
	if made.Metadata.ResourceVersion != node.ResourceVersion {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), node.Name, errors.New("made from "+made.Metadata.ResourceVersion))
	}
	before, err := json.Marshal(node)
	if err != nil {
		return true, nil, err
	}
	after, err := jsonpatch.MergePatch(before, patch.GetPatch())
	if err != nil {
		return true, nil, err
	}
	node = &corev1.Node{}
	if err := json.Unmarshal(after, node); err != nil {
		return true, nil, err
	}
	version, _ := strconv.Atoi(node.ResourceVersion)
	node.ResourceVersion = strconv.Itoa(version + 1)
	return true, node, s.kube.Tracker().Update(gvr, node, "")
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// lead starts a leader. stop ends it as SIGTERM or the loss of the lease does.
func (s *story) lead() (stop func()) {
	s.Helper()
	nodes, err := cluster.New(slowPatches{s.kube, &s.patchTakes}, s.gate, s.aws.QueueURL(queueName), cluster.CordonOptions{})
	s.must(err)
	ctx, cancel := context.WithCancelCause(s.ctx)
	s.killLeader.Store(&cancel)
	metrics := telemetry.New()
	cfg := Config{Instances: instance.NewDirectory(ec2.NewFromConfig(s.aws.Config()).DescribeInstances), Lease: theLease, Config: nodedrain.Config{
		Cluster:  nodes,
		Hooks:    &asg.Hooks{Client: asg.Of(autoscaling.NewFromConfig(s.aws.Config())), HeartbeatInterval: s.interval, Metrics: metrics},
		Drainer:  s.drain,
		Observer: metrics,
		Log:      logtest.To(s.Output()),
		Policy:   decision.Policy{NodeGracePeriod: 2 * time.Minute, Accounts: []string{"123456789012"}, Region: "us-east-1", ManagedTag: "managed"},
	}}
	if s.interval > 0 {
		cfg.HeartbeatUntil = 48 * time.Hour
	}
	s.edit(&cfg)
	c := New(cfg)
	s.c = c
	server := &queue.Server{Client: sqs.NewFromConfig(s.aws.Config()), URL: s.aws.QueueURL(queueName), Handler: c}
	var all sync.WaitGroup
	all.Go(func() { nodes.Run(ctx) })
	s.must(nodes.WaitForSync(ctx))
	all.Go(func() { _ = c.Run(ctx) }) // the cause of ctx
	select {
	case <-c.Registry.Resumed():
	case <-ctx.Done():
	}
	all.Go(func() { s.must(server.Serve(ctx)) })
	if s.sweeps {
		swept := &sweep.Sweep{
			Groups: cfg.Hooks.(*asg.Hooks), Handler: c.Unannounced(), HookNames: cfg.HookNames, NoQueue: s.noQueue,
			Interval: 30 * time.Second, Log: cfg.Log, Metrics: metrics,
		}
		all.Go(func() { swept.Run(ctx) })
	}
	if s.poll != nil {
		poll := &status.Poll{
			Source: instance.Statuses{Client: ec2.NewFromConfig(s.aws.Config()).DescribeInstanceStatus}, Handler: c.Unannounced(), Interval: time.Minute, Log: cfg.Log, Metrics: metrics,
		}
		s.poll(poll)
		all.Go(func() { poll.Run(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel(errors.New("the story stops the leader"))
		all.Wait()
	})
	s.Cleanup(stop)
	return stop
}

// kill ends the last leader, and does not wait for its end.
func (s *story) kill() { (*s.killLeader.Load())(errors.New("the story kills the leader")) }

// body is an example about an instance, of this moment of virtual time.
func (s *story) body(name, id string, edits ...string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("..", "notice", "testdata", "events", name+".json"))
	s.must(err)
	replace := append(slices.Clone(edits), "i-0123456789abcdef0", id, "2026-11-20T10:15:30Z", time.Now().UTC().Format(time.RFC3339),
		"000000000001", fmt.Sprintf("%012d", time.Now().UnixNano()%1e12))
	return strings.NewReplacer(replace...).Replace(string(text))
}

func (s *story) send(body string) (message string) {
	s.Helper()
	id, err := s.aws.SendMessage(queueName, body)
	s.must(err)
	return id
}

// after lets virtual time pass.
func (s *story) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// end makes EC2 say that an instance is on its way out.
func (s *story) end(id string) {
	s.Helper()
	s.must(s.aws.SetInstanceState(id, "shutting-down"))
}

func (s *story) left() int { return len(s.aws.Messages(queueName)) }

func (s *story) node() *corev1.Node {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.Context(), theNode, metav1.GetOptions{})
	s.must(err)
	return n
}

func (s *story) intent() intent.Intent {
	s.Helper()
	i, _, err := cluster.ReadIntent(s.node())
	s.must(err)
	return i
}

// terminate begins a scale-in of the node's instance, held by a hook.
func (s *story) terminate(timeout time.Duration) {
	s.Helper()
	s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: timeout}))
	s.must(s.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
	_, err := s.aws.StartTransition(theID, awssim.Terminating)
	s.must(err)
}

// denyLimits has nobody be able to read how long a hook waits, as with the role of NTH.
func (s *story) denyLimits() {
	s.Helper()
	s.must(s.aws.SetFault(awssim.Fault{ID: "limits", Service: "autoscaling", Action: "DescribeLifecycleHooks", Status: 403, Code: "AccessDenied"}))
}

func (s *story) calls(action string) (n int) {
	for key, count := range s.aws.Counts() {
		if key.Action == action {
			n += count
		}
	}
	return n
}

// wantHook checks how the lifecycle action ended.
func (s *story) wantHook(outcome awssim.Outcome) awssim.LifecycleAction {
	s.Helper()
	actions := s.aws.LifecycleActions()
	if len(actions) != 1 || actions[0].Outcome != outcome {
		s.Fatalf("lifecycle actions %+v, want one that is %q", actions, outcome)
	}
	return actions[0]
}

// slowDrainer drains in a fixed time, or at the deadline, or never.
type slowDrainer struct {
	takes  time.Duration            // negative: until the deadline
	byNode map[string]time.Duration // for some of the nodes
	panics bool

	mu     sync.Mutex
	drains []drained
	now    int // under way
	most   int
	result *evacuation.Result // of a drain that ends in its time; nil: one pod is evicted
	// remaining are on the node after its drain.
	remaining []string
}

type drained struct {
	node  string
	terms evacuation.Terms // the last ones
}

// going is how many drains go on.
func (d *slowDrainer) going() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *slowDrainer) Drain(ctx context.Context, o *evacuation.Request) (*evacuation.Result, error) {
	d.mu.Lock()
	at := len(d.drains)
	d.drains = append(d.drains, drained{o.Node, o.Terms})
	d.now++
	d.most = max(d.most, d.now)
	takes := d.takes
	if t, ok := d.byNode[o.Node]; ok {
		takes = t
	}
	panics := d.panics
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.now--
	}()
	if panics {
		panic("a test of panics")
	}
	end := make(<-chan time.Time)
	if takes >= 0 {
		end = time.After(takes)
	}
	for {
		d.mu.Lock()
		deadline := d.drains[at].terms.Deadline
		d.mu.Unlock()
		var missed <-chan time.Time
		if !deadline.IsZero() {
			missed = time.After(time.Until(deadline))
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), evacuation.ErrMachineGone) {
				return &evacuation.Result{Lost: []string{"ns/pod"}}, nil
			}
			return &evacuation.Result{}, context.Cause(ctx)
		case <-end:
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.result != nil {
				return d.result, nil
			}
			return &evacuation.Result{Evicted: 1}, nil
		case <-missed:
			return &evacuation.Result{Missed: []string{"ns/pod"}, Record: evacuation.Record{PodsGone: time.Now()}}, nil
		case t := <-o.Changed:
			d.mu.Lock()
			d.drains[at].terms = t
			d.mu.Unlock()
		}
	}
}

// take changes how long the next drains take, while a leader is there.
func (d *slowDrainer) take(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takes = t
}

// Remaining are the pods that came to the node, or stayed there.
func (d *slowDrainer) Remaining(context.Context, string, decision.Rules) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remaining, nil
}

func (d *slowDrainer) all() []drained {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.drains)
}

func TestASpotWarningIsHeldUntilItsNodeIsDrained(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(29 * time.Second)
		if !s.node().Spec.Unschedulable || s.left() != 1 {
			t.Errorf("cordoned %t, %d messages; want it cordoned and its message there", s.node().Spec.Unschedulable, s.left())
		}
		s.after(3 * time.Second)
		if i := s.intent(); s.left() != 0 || !i.Finished() || s.node().Labels[cluster.StateLabel] != cluster.StateDrained {
			t.Errorf("%d messages left, intent %+v", s.left(), i)
		}
	})
}

func TestAllNoticesOfANodeJoinOneDrainWithTheEarliestDeadline(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 90 * time.Second
		s.lead()
		begin := time.Now()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.terminate(time.Hour)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.send(s.body("state-change-stopping", theID))
		s.after(time.Second)
		drains := s.drain.all()
		if len(drains) != 1 || !drains[0].terms.Deadline.Equal(begin.Truncate(time.Second).Add(130*time.Second)) || !drains[0].terms.IgnoreBudgets {
			t.Errorf("drains %+v, want one with the deadline of the spot warning", drains)
		}
		s.after(85 * time.Second)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
		s.wantHook(awssim.Completed)
		if n := s.calls("CompleteLifecycleAction"); n != 1 {
			t.Errorf("%d completions", n)
		}
	})
}

func TestADeadlineThatComesFirstEndsTheDrain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = -1
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.terminate(time.Hour)
		s.after(2*time.Minute + 2*time.Second)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

func TestAPatientDrainGoesOnWithoutItsMessage(t *testing.T) {
	for name, body := range patientNotices {
		t.Run(name, func(t *testing.T) { testAPatientDrainGoesOnWithoutItsMessage(t, body) })
	}
}

// patientNotices are those that a Node carries on without their messages.
var patientNotices = map[string]func(*story) string{
	"a recommendation":     func(s *story) string { return s.body("rebalance-recommendation", theID) },
	"a reboot of tomorrow": func(s *story) string { return s.reboot(24 * time.Hour) },
}

func testAPatientDrainGoesOnWithoutItsMessage(t *testing.T, body func(*story) string) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(body(s))
		s.after(119 * time.Second)
		if s.left() != 1 {
			t.Error("the message went before the grace period")
		}
		s.after(3 * time.Second)
		if s.left() != 0 || s.intent().Finished() {
			t.Errorf("%d messages, finished %t; want the drain alone to go on", s.left(), s.intent().Finished())
		}
		s.after(time.Hour)
		if !s.intent().Finished() || len(s.drain.all()) != 1 {
			t.Errorf("intent %+v after %d drains", s.intent(), len(s.drain.all()))
		}
	})
}

func TestTheNextLeaderGoesOnWithWhatTheNodeCarries(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 60 * time.Second
		stop := s.lead()
		s.terminate(time.Hour)
		message := s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		deadline := s.intent().Deadline()
		stop()
		s.wantHook(awssim.Active)
		s.lead()
		s.after(time.Second)
		if drains := s.drain.all(); len(drains) != 2 || !drains[1].terms.Deadline.Equal(deadline) {
			t.Fatalf("drains %+v, want a second one with the deadline %s", drains, deadline)
		}
		s.after(62 * time.Second)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left, among them %s", s.left(), message)
		}
	})
}

func TestTheNextLeaderNeedsNoMessage(t *testing.T) {
	for name, body := range patientNotices {
		t.Run(name, func(t *testing.T) { testTheNextLeaderNeedsNoMessage(t, body) })
	}
}

func testTheNextLeaderNeedsNoMessage(t *testing.T, body func(*story) string) {
	t.Parallel()
	tell(t, func(s *story) {
		stop := s.lead()
		s.drain.takes = time.Hour
		s.send(body(s))
		s.after(3 * time.Minute)
		stop()
		if s.left() != 0 {
			t.Fatal("the message is still there")
		}
		s.drain.takes = time.Second
		s.lead()
		s.after(2 * time.Second)
		if !s.intent().Finished() {
			t.Errorf("intent %+v", s.intent())
		}
	})
}

// What comes again brings no second decision, nor does it in the next term: that its drain is resumed is told there.
func TestADecisionIsLoggedOnceThoughItsMessageComesAgain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		var log logtest.Log
		s.edit = func(c *Config) { c.Log = log.Logger() }
		want := func(when string, told, repeated int) {
			s.Helper()
			info, debug := log.Entries("decided", "level", "info"), log.Entries("decided", "level", "debug")
			if len(info) != told || len(debug) != repeated {
				s.Errorf("%s: decided %d times, and %d times again, want %d and %d:\n%s", when, len(info), len(debug), told, repeated, log.String())
			}
		}
		s.drain.takes = time.Hour
		stop := s.lead()
		body := s.body("rebalance-recommendation", theID)
		message := s.send(body)
		s.after(10 * time.Second)
		s.must(s.aws.Redeliver(queueName, message)) // it is in flight yet
		s.after(3 * time.Minute)
		want("delivered twice", 1, 0)
		s.must(s.aws.Redeliver(queueName, message)) // it is deleted
		s.after(3 * time.Minute)
		want("delivered after its end", 1, 1)
		s.send(body) // by EventBridge, as another message
		s.after(3 * time.Minute)
		want("sent twice", 1, 2)
		stop()
		log.Reset()
		s.lead()
		s.must(s.aws.Redeliver(queueName, message))
		s.after(3 * time.Minute)
		want("in the next term", 0, 1)
		if resumed := log.Entries("going on with the drain that the node carries", "level", "info", "node", theNode); len(resumed) != 1 {
			s.Errorf("the next leader says %d times that it goes on with the drain:\n%s", len(resumed), log.String())
		} else if deadline, has := resumed[0].Values["deadline"]; has {
			s.Errorf("the drain goes on until %v: a recommendation has no deadline", deadline)
		}
	})
}

func TestHeartbeatsHoldAHookAndEndWithIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.interval = time.Minute
		s.drain.takes = 25 * time.Minute
		s.lead()
		s.terminate(2 * time.Minute)
		s.after(26 * time.Minute)
		action := s.wantHook(awssim.Completed)
		if action.Heartbeats < 20 {
			t.Errorf("%d heartbeats in 25 minutes", action.Heartbeats)
		}
		before := s.calls("RecordLifecycleActionHeartbeat")
		s.after(time.Hour)
		if n := s.calls("RecordLifecycleActionHeartbeat"); n != before {
			t.Errorf("%d heartbeats after the completion", n-before)
		}
	})
}

func TestTheCompletionDelaySurvivesAFailover(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 10 * time.Second
		s.edit = func(c *Config) { c.CompletionDelay = 60 * time.Second }
		stop := s.lead()
		s.terminate(time.Hour)
		begin := time.Now()
		s.after(40 * time.Second) // drained after 10 s, so 30 s into the delay
		stop()
		s.drain.takes = 0
		s.lead()
		s.after(45 * time.Second)
		action := s.wantHook(awssim.Completed)
		if took := action.Ended.Sub(begin); took < 70*time.Second || took > 72*time.Second {
			t.Errorf("completed after %s, want 70 s: 10 s of draining and 60 s of delay", took)
		}
	})
}

func TestTheCompletionDelayEndsThoughItsNodeCannotBeWritten(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 10 * time.Second
		s.edit = func(c *Config) { c.CompletionDelay = 15 * time.Second }
		s.lead()
		s.terminate(4 * time.Minute)
		begin := time.Now()
		s.after(5 * time.Second)
		heal := s.failPatches()
		defer heal()
		s.after(time.Minute)
		action := s.wantHook(awssim.Completed)
		if took := action.Ended.Sub(begin); took < 24*time.Second || took > 27*time.Second {
			t.Errorf("completed after %s, want 25 s: 10 s of draining and 15 s of delay", took)
		}
	})
}

// With the role of NTH nobody can read how long the hook waits. A guess does not cut short what somebody has asked for, for as
// long as a hook can be open.
func TestTheCompletionDelayIsNotCutByAGuess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		denied   []string
		interval time.Duration // of heartbeats; 0: none are sent
		until    time.Duration
		fails    time.Duration // when another leader takes over; 0: none does
		want     time.Duration
		delay    time.Duration
		timeout  time.Duration // of the hook
	}{
		"heartbeats are needed":                {denied: []string{"DescribeLifecycleHooks"}, interval: 30 * time.Second, until: 48 * time.Hour, want: 5*time.Minute + 10*time.Second, delay: 5 * time.Minute, timeout: 90 * time.Second},
		"a long delay, and heartbeats":         {denied: []string{"DescribeLifecycleHooks"}, interval: 30 * time.Second, until: 48 * time.Hour, want: time.Hour + 10*time.Second, delay: time.Hour, timeout: time.Hour},
		"heartbeats hold the hook":             {[]string{"DescribeLifecycleHooks"}, 30 * time.Second, 48 * time.Hour, 0, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
		"for as long as they are sent":         {[]string{"DescribeLifecycleHooks"}, 30 * time.Second, 3 * time.Minute, 0, 3*time.Minute - 5*time.Second, 5 * time.Minute, time.Hour},
		"their end comes before the guess":     {[]string{"DescribeLifecycleHooks"}, 30 * time.Second, time.Minute, 0, 2 * time.Minute, 5 * time.Minute, time.Hour},
		"they are refused":                     {[]string{"DescribeLifecycleHooks", "RecordLifecycleActionHeartbeat"}, 30 * time.Second, 48 * time.Hour, 0, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
		"none are sent":                        {[]string{"DescribeLifecycleHooks"}, 0, 0, 0, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
		"another leader, after the guess":      {[]string{"DescribeLifecycleHooks"}, 30 * time.Second, 48 * time.Hour, 150 * time.Second, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
		"another leader, and none are sent":    {[]string{"DescribeLifecycleHooks"}, 0, 0, 150 * time.Second, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
		"another leader, and they are refused": {[]string{"DescribeLifecycleHooks", "RecordLifecycleActionHeartbeat"}, 30 * time.Second, 48 * time.Hour, 150 * time.Second, 5*time.Minute + 10*time.Second, 5 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				for _, action := range tt.denied {
					s.must(s.aws.SetFault(awssim.Fault{ID: action, Service: "autoscaling", Action: action, Status: 403, Code: "AccessDenied"}))
				}
				s.interval, s.drain.takes = tt.interval, 10*time.Second
				s.edit = func(c *Config) { c.CompletionDelay, c.HeartbeatUntil = tt.delay, tt.until }
				stop := s.lead()
				begin := time.Now()
				s.terminate(tt.timeout)
				s.after(tt.fails)
				if tt.fails > 0 {
					stop()
					s.lead()
				}
				s.after(tt.delay + time.Minute - tt.fails)
				if took := s.wantHook(awssim.Completed).Ended.Sub(begin); took < tt.want-2*time.Second || took > tt.want+2*time.Second {
					t.Errorf("completed after %s, want %s", took, tt.want)
				}
			})
		})
	}
}

// The script asg-lifecycle-sqs-heartbeat of AWS Node Termination Handler has these times.
func TestTheCompletionDelayOutlastsTheHeartbeats(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.interval, s.drain.takes = 30*time.Second, 10*time.Second
		s.edit = func(c *Config) {
			c.CompletionDelay, c.HeartbeatUntil = 2*time.Minute, 100*time.Second
			c.Hooks.(*asg.Hooks).HeartbeatUntil = 100 * time.Second
		}
		s.lead()
		begin := time.Now()
		s.terminate(time.Hour)
		s.after(3 * time.Minute)
		action := s.wantHook(awssim.Completed)
		if took := action.Ended.Sub(begin); action.Heartbeats != 3 || took < 128*time.Second || took > 133*time.Second {
			t.Errorf("completed after %s and %d heartbeats", took, action.Heartbeats)
		}
	})
}

func TestAChangeThatIsCalledOffIsUndone(t *testing.T) {
	t.Parallel()
	opening := func(s *story) string { return s.body("health-reboot-scheduled", theID) }
	closing := func(s *story) string { return s.body("health-maintenance-completed", theID) }
	t.Run("during its drain", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Hour
			s.lead()
			s.send(opening(s))
			s.after(10 * time.Second)
			s.send(closing(s))
			s.after(2 * time.Second)
			s.wantUntouched()
		})
	})
	t.Run("after its drain", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.send(opening(s))
			s.after(time.Minute)
			s.send(closing(s))
			s.after(2 * time.Second)
			s.wantUntouched()
		})
	})
	t.Run("before its announcement arrives", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			late := opening(s)
			s.after(10 * time.Second)
			s.send(closing(s))
			s.after(time.Second)
			s.send(late)
			s.after(2 * time.Second)
			s.wantUntouched()
			if len(s.drain.all()) != 0 {
				t.Error("drained")
			}
		})
	})
	t.Run("but not what a spot warning wants", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.send(opening(s))
			s.send(s.body("spot-interruption", theID))
			s.after(10 * time.Second)
			s.send(closing(s))
			s.after(time.Minute)
			if i := s.intent(); !s.node().Spec.Unschedulable || !i.Finished() || s.left() != 0 || len(i.Entries) != 1 {
				t.Errorf("intent %+v, %d messages", i, s.left())
			}
		})
	})
}

// asBefore reports whether nothing was done to a node, or all was undone: what is left
// is at most the memory of events that are over.
func asBefore(n *corev1.Node) bool {
	i, _, err := cluster.ReadIntent(n)
	remembers := intent.Intent{Version: i.Version, Queue: i.Queue, Past: i.Past, FinishedAt: i.FinishedAt, Last: i.Last}
	return err == nil && cmp.Equal(remembers, i) && !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 && len(n.Labels) == 0
}

func (s *story) wantUntouched() {
	s.Helper()
	if n := s.node(); !asBefore(n) {
		s.Errorf("the node is %+v, %v, %v", n.Spec, n.Annotations, n.Labels)
	}
	if s.left() != 0 {
		s.Errorf("%d messages left", s.left())
	}
}

func TestAFailedLookUpLosesNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(20 * time.Second)
		if s.left() != 1 || s.node().Spec.Unschedulable {
			t.Fatal("decided without knowing whose the instance is")
		}
		s.aws.RemoveFault("ec2")
		s.after(45 * time.Second)
		if s.left() != 0 || !s.node().Spec.Unschedulable {
			t.Errorf("%d messages, cordoned %t", s.left(), s.node().Spec.Unschedulable)
		}
	})
}

func TestWithoutThePermissionForLookUpsAndTheTagCheckKnownNodesAreDrainedAndTheRestIsLeft(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
		s.edit = func(c *Config) { c.ManagedTag, c.DeleteForeign = "", true }
		s.lead()
		s.send(s.body("spot-interruption", "i-0fedcba9876543210"))
		s.send(s.body("spot-interruption", theID))
		s.after(2 * time.Minute)
		if s.left() != 1 || !s.node().Spec.Unschedulable {
			t.Errorf("%d messages, cordoned %t; want one left, and the node drained", s.left(), s.node().Spec.Unschedulable)
		}
		if n := s.calls("DescribeInstances"); n != 1 {
			t.Errorf("%d look-ups, want 1", n)
		}
		s.aws.RemoveFault("ec2") // the permission is there now
		s.after(10 * time.Minute)
		if s.left() != 0 {
			t.Errorf("%d messages left, want none: the instance is known to be another's", s.left())
		}
	})
}

func TestAMessageAboutAnIDThatIsNoInstancesIsLeftAndToldOnce(t *testing.T) {
	t.Parallel()
	for _, foreign := range []bool{false, true} {
		tell(t, func(s *story) {
			var log logtest.Log
			watch := &whys{}
			s.edit = func(c *Config) {
				c.DeleteForeign, c.Log = foreign, log.Logger()
				watch.Observer, c.Observer = c.Observer, watch
			}
			s.lead()
			s.send(s.body("spot-interruption", "mi-0123456789abcdef0")) // of Systems Manager, or of a time to come
			s.after(10 * time.Minute)
			if left := s.left(); left != 1 {
				t.Errorf("delete-sqs-msg-if-node-not-found is %t, %d messages are left, want 1", foreign, left)
			}
			if why := watch.all(); !slices.Contains(why, "no-instance-id") {
				t.Errorf("counted as %q", why)
			}
			said := log.Said("a message is about an id that is no instance's: it is left in the queue (logged once)")
			if len(said) != 1 || !strings.Contains(said[0], `detail.instance-id is \"mi-0123456789abcdef0\", not an instance id`) {
				t.Errorf("it says %q", said)
			}
		})
	}
}

func TestAnInstanceThatIsGoneEndsItsDrain(t *testing.T) {
	t.Parallel()
	t.Run("by its state", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = -1
			s.lead()
			s.terminate(time.Hour)
			s.after(10 * time.Second)
			s.end(theID)
			s.send(s.body("state-change-terminated", theID))
			s.after(2 * time.Second)
			s.wantHook(awssim.Completed)
			if s.left() != 0 {
				t.Errorf("%d messages left", s.left())
			}
		})
	})
	t.Run("by its Node, where EC2 says the same", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = -1
			s.lead()
			s.terminate(time.Hour)
			s.after(10 * time.Second)
			s.end(theID)
			s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
			s.after(2 * time.Second)
			s.wantHook(awssim.Completed)
			if s.left() != 0 {
				t.Errorf("%d messages left", s.left())
			}
		})
	})
}

func TestANodeThatGoesWhileItIsCordonedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.kube.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(5 * time.Second)
			_ = s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", theNode) // once
			return true, nil, apierrors.NewNotFound(corev1.Resource("nodes"), theNode)
		})
		s.lead()
		s.terminate(time.Hour)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		s.end(theID)
		s.send(s.body("state-change-terminated", theID)) // waits for a work that will never start
		s.after(30 * time.Second)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

func TestANodeThatComesLaterIsCordonedWhenItComes(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const id = "i-0fedcba9876543210"
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: id, Tags: map[string]string{"managed": ""}}))
		s.lead()
		s.send(s.body("spot-interruption", id))
		s.after(20 * time.Second)
		if s.left() != 1 {
			t.Fatal("the message was not held")
		}
		node := aNode("late", id)
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{})
		s.must(err)
		s.after(time.Second)
		n, err := s.kube.CoreV1().Nodes().Get(s.Context(), "late", metav1.GetOptions{})
		s.must(err)
		if !n.Spec.Unschedulable {
			t.Error("the node is not cordoned")
		}
		s.after(time.Minute)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

func TestANodeThatNeverComesDoesNotHoldItsHook(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		s.interval = time.Minute
		s.lead()
		s.terminate(time.Hour)
		s.after(time.Minute)
		s.wantHook(awssim.Active)
		s.after(time.Minute + 5*time.Second)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

func TestWorkersBoundWhatIsNotUrgent(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.Workers = 2 }
		var ids []string
		for k := range 6 {
			id := fmt.Sprintf("i-%017x", k+1)
			ids = append(ids, id)
			node := aNode(fmt.Sprintf("n%d", k), id)
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{})
			s.must(err)
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: id, Tags: map[string]string{"managed": ""}}))
		}
		s.lead()
		for _, id := range ids {
			s.send(s.body("rebalance-recommendation", id))
		}
		s.after(10 * time.Second)
		drains := s.drain.all()
		if len(drains) != 2 {
			t.Fatalf("%d drains at once, want 2", len(drains))
		}
		waiting := 0
		for fmt.Sprintf("n%d", waiting) == drains[0].node || fmt.Sprintf("n%d", waiting) == drains[1].node {
			waiting++
		}
		s.send(s.body("spot-interruption", ids[waiting]))
		s.after(2 * time.Second)
		if drains := s.drain.all(); len(drains) != 3 || drains[2].node != fmt.Sprintf("n%d", waiting) {
			t.Errorf("drains %+v, want the spot instance's to pass by", drains)
		}
		s.after(2 * time.Minute)
		if s.left() != 0 || len(s.drain.all()) != 6 {
			t.Errorf("%d messages left after %d drains", s.left(), len(s.drain.all()))
		}
	})
}

func TestADryRunWritesNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.DryRun = true }
		s.lead()
		s.terminate(time.Hour)
		s.send(s.body("spot-interruption", theID))
		s.send(s.body("state-change-running", theID))
		s.after(5 * time.Minute)
		s.wantHook(awssim.Active)
		if n := s.node(); n.Spec.Unschedulable || len(n.Annotations) > 0 || s.left() != 3 || len(s.drain.all()) != 0 {
			t.Errorf("node %+v %v, %d messages left, %d drains", n.Spec, n.Annotations, s.left(), len(s.drain.all()))
		}
	})
}

func TestAForeignMessageCostsNoSecondLookUp(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption", "i-0fedcba9876543210"))
		s.after(5 * time.Minute)
		if s.left() != 1 {
			t.Error("the message is gone")
		}
		if n := s.calls("DescribeInstances"); n != 1 {
			t.Errorf("%d look-ups, want 1", n)
		}
	})
}

func TestAChangeThatIsCalledOffWhileItsNodeIsBeingCordonedIsUndone(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const latency = 2 * time.Second
		s.kube.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(latency)
			return false, nil, nil
		})
		s.lead()
		s.send(s.body("health-reboot-scheduled", theID))
		s.after(latency / 2)
		s.send(s.body("health-reboot-scheduled", theID, "upcoming", "closed"))
		s.after(3 * latency)
		s.wantUntouched()
		s.drain.mu.Lock()
		defer s.drain.mu.Unlock()
		if s.drain.now != 0 {
			t.Error("the drain goes on")
		}
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

func TestAnAnnouncementThatIsDecidedJustBeforeItsEndComesIsNotRecordedAfterIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		c := s.c
		announced, err := notice.Parse(s.body("health-reboot-scheduled", theID))
		s.must(err)
		c.cancelled.add(announced, theID)
		joining := &task{c: c, log: c.Log, n: &announced, id: theID, found: lookup.Found{Refs: []cluster.Ref{cluster.RefOf(s.node())}}}
		joining.Decision = decision.Decision{Action: decision.Drain, Why: decision.WhyScheduledChange}
		s.must(joining.join(s.Context()))
		s.wantUntouched()
		if n := len(s.drain.all()); n != 0 {
			t.Errorf("%d drains", n)
		}
	})
}

// Each write of a Node goes to everybody who watches the nodes, so a drain makes two: the cordon with all marks, and the
// end. A notice that joins it is one more.
func TestADrainPatchesItsNodeTwice(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notices func(s *story)
		want    int
	}{
		"a spot interruption": {func(s *story) { s.send(s.body("spot-interruption", theID)) }, 2},
		"a lifecycle hook":    {func(s *story) { s.terminate(10 * time.Minute) }, 2},
		"a recommendation, and then a spot interruption": {func(s *story) {
			s.send(s.body("rebalance-recommendation", theID))
			s.after(time.Second)
			s.send(s.body("spot-interruption", theID))
		}, 3},
		"the same message ten times": {func(s *story) {
			body := s.body("spot-interruption", theID)
			for range 10 {
				s.send(body)
				s.after(time.Second) // until the watch shows what was written
			}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 30 * time.Second
				var patches atomic.Int64
				count := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
					patches.Add(1)
					return false, nil, nil
				})
				s.beforePatch.Store(&count)
				s.lead()
				test.notices(s)
				s.after(time.Hour)
				if got := int(patches.Load()); got != test.want || s.left() != 0 {
					t.Errorf("%d patches, want %d; %d messages are left", got, test.want, s.left())
				}
			})
		})
	}
}

func TestHeartbeatsHoldTheHookOfAnInstanceWhoseNodeComesLater(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.remove(theNode)
		s.interval, s.drain.takes = 30*time.Second, time.Second
		s.lead()
		s.terminate(30 * time.Second)
		s.after(100 * time.Second)
		if a := s.wantHook(awssim.Active); a.Heartbeats < 3 || s.left() != 1 {
			t.Errorf("%d heartbeats, %d messages left", a.Heartbeats, s.left())
		}
		s.register(theNode, "later")
		s.after(5 * time.Second)
		s.wantHook(awssim.Completed)
		beats := s.calls("RecordLifecycleActionHeartbeat")
		s.after(time.Hour)
		if n := s.calls("RecordLifecycleActionHeartbeat"); n != beats {
			t.Errorf("%d heartbeats after the completion", n-beats)
		}
	})
}
