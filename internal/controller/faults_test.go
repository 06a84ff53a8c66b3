package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

var (
	faultSeed = flag.Uint64("fault-seed", 1, "seed of the random faults, the same each time so that no gate fails by chance; 0: one of its own; it is printed")
	faultRuns = flag.Int("fault-runs", 4, "how many random mixes of faults to try")
	allFaults = flag.Bool("faults", false, "let every call fail in every way, not each in one")
)

// client-go's brake on errors keeps the time of the last one for the whole
// process, and waits for decades where that was real and the next is virtual.
// Each test is a cluster that soon is garbage: collected less often, a fifth of
// the time is saved.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	debug.SetGCPercent(400)
	m.Run()
}

// A bad day is a whole installation in virtual time: two replicas as
// cmd/node-termination-handler wires them, with the real clients, between a
// simulated AWS account and an API server that both fail as they are told. The
// same notices come every time; see send.
type badDay struct {
	*testing.T
	aws   *awssim.Server
	api   *apiServer
	sent  map[string]string // node, by message
	clock time.Duration     // by which AWS's is ahead of ours
	begin time.Time         // of the notices
	log   logr.Logger

	mu    sync.Mutex
	terms []time.Time // when a replica began to lead
}

// The nodes, and what becomes of them.
const (
	spotNode   = "spot"   // a spot warning, delivered twice; a pod that a budget keeps, a volume
	hookNode   = "hook"   // a termination hook that needs heartbeats; slow pods, one that stays and has a volume
	healthOne  = "one"    // both of one Health notice
	healthTwo  = "two"    //
	undoneNode = "undone" // a scheduled change that is called off
	otherNode  = "other"  // nothing
)

var badDayNodes = []string{spotNode, hookNode, healthOne, healthTwo, undoneNode, otherNode}

const (
	aheadOfNotices = 5 * time.Second  // enough for a replica to lead, where nothing fails
	faultsLast     = time.Minute      // half of what a spot warning leaves
	dayLasts       = 10 * time.Minute // by then all is done
)

func idOf(node string) string { return fmt.Sprintf("i-%017x", slices.Index(badDayNodes, node)+1) }

// endure runs a day. set, which comes first, makes the faults.
func endure(t *testing.T, seed uint64, set func(d *badDay)) {
	t.Helper()
	day(t, seed, set, func(d *badDay, stops []func()) {
		time.Sleep(dayLasts)
		synctest.Wait()
		d.check()
		for _, stop := range stops {
			stop() // and with it everything that it has started: a bubble does not end before
		}
	})
}

// day begins one with two replicas, sends the notices, and leaves the rest to play, which stops the replicas.
func day(t *testing.T, seed uint64, set func(d *badDay), play func(d *badDay, stops []func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &badDay{T: t, api: newAPIServer(t, seed), sent: map[string]string{}, begin: time.Now().Add(aheadOfNotices)}
		d.aws = awssim.New(awssim.Options{Seed: seed, ShutdownTime: time.Minute})
		t.Cleanup(d.aws.Close)
		d.log = logr.Discard()
		if testing.Verbose() {
			d.log = logtest.To(t.Output())
		}
		d.setUp()
		set(d)
		stops := []func(){d.replica("a"), d.replica("b")}
		time.Sleep(aheadOfNotices)
		d.send()
		play(d, stops)
	})
}

func (d *badDay) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *badDay) setUp() {
	d.must(d.aws.CreateQueue(awssim.Queue{Name: queueName, Duplicates: 0.1, Resurrections: 0.1, Disorder: true}))
	d.api.stops = func(pod string) time.Duration {
		if strings.HasPrefix(pod, hookNode) {
			return 80 * time.Second
		}
		return 10 * time.Second
	}
	for _, name := range badDayNodes {
		d.must(d.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: idOf(name), Tags: map[string]string{"managed": ""}, LaunchTime: d.begin.Add(-time.Hour)}))
		d.api.put("nodes", aNode(name, idOf(name)))
		for k := range 2 {
			d.pod(fmt.Sprintf("%s-%d", name, k), name)
		}
	}
	d.must(d.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{idOf(hookNode)}}))
	d.must(d.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 3 * time.Minute}))
	d.pod("kept", spotNode)
	d.api.refuse["kept"] = failure(http.StatusTooManyRequests, "", "Cannot evict pod as it would violate the pod's disruption budget.")
	d.api.refuse["kept"].Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}}
	d.pod("stays", hookNode)
	d.api.put("persistentvolumeclaims", &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "ns"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-stays"},
	})
	for volume, node := range map[string]string{"pv-stays": hookNode, "pv-goes": spotNode} {
		d.api.put("volumeattachments", &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: volume},
			Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
		})
	}
}

func (d *badDay) pod(name, node string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(30))},
	}
	if node == hookNode {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(180))
	}
	if name == "stays" {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: new(true)}}
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
	}
	d.api.put("pods", pod)
}

// replica runs one. It must not end before it is stopped.
func (d *badDay) replica(name string) (stop func()) {
	d.Helper()
	ctx, cancel := context.WithCancelCause(d.Context())
	log := d.log.WithName(name)
	ctx = klog.NewContext(ctx, log)
	client, gate, metrics := d.api.client(0), pace.NewGate(64, 64), telemetry.New()
	nodes, err := cluster.New(client, gate, d.aws.QueueURL(queueName), cluster.CordonOptions{})
	d.must(err)
	volumes, err := drain.NewVolumes(client)
	d.must(err)
	nowhere := func() (account, region string) { return "", "" }
	events := telemetry.NewEvents(ctx, telemetry.EventOptions{
		Client: d.api.client(10 * time.Second).CoreV1(), Node: nodes.ByName, Where: nowhere, Metrics: metrics, Log: log,
	})
	var all sync.WaitGroup
	all.Go(func() { nodes.Run(ctx) })
	all.Go(func() { volumes.Run(ctx) })
	work := func(ctx context.Context) error {
		d.mu.Lock()
		d.terms = append(d.terms, time.Now())
		d.mu.Unlock()
		c := New(Config{Instances: instance.NewDirectory(ec2.NewFromConfig(d.aws.Config()).DescribeInstances), Config: nodedrain.Config{
			Cluster: nodes,
			Hooks:   &asg.Hooks{Client: asg.Of(autoscaling.NewFromConfig(d.aws.Config())), HeartbeatInterval: 30 * time.Second, Log: log, Metrics: metrics},
			Drainer: &drain.Drainer{
				Client: client, Filter: drain.Filter{IgnoreDaemonSets: true}, Grace: -1, Gate: gate, Volumes: volumes, Observe: events.Pod,
			},
			Observer: report.Observers{metrics, events},
			Log:      log,
			Policy:   decision.Policy{DeleteForeign: true, NodeGracePeriod: 2 * time.Minute, HeartbeatUntil: time.Hour, Accounts: []string{"123456789012"}, Region: "us-east-1", ManagedTag: "managed"},
		}})
		s := &queue.Server{Client: sqs.NewFromConfig(d.aws.Config()), URL: d.aws.QueueURL(queueName), Handler: c, Log: log, Metrics: metrics}
		var serving sync.WaitGroup
		defer serving.Wait()
		serving.Go(func() {
			select {
			case <-c.Registry.Resumed():
				if err := s.Check(ctx); err != nil {
					log.Error(err, "check the queue")
				}
				if err := s.Serve(ctx); err != nil {
					log.Error(err, "stop receiving")
				}
			case <-ctx.Done():
			}
		})
		return c.Run(ctx)
	}
	elector := lease.Elector{Client: client.CoordinationV1(), Namespace: "ns", Name: "lease", Identity: name, Log: log}
	all.Go(func() {
		if nodes.WaitForSync(ctx) != nil {
			return
		}
		if err := elector.Run(ctx, work); ctx.Err() == nil {
			d.Errorf("replica %s has ended: %v", name, err)
		}
	})
	return func() {
		cancel(errors.New("the day is over"))
		all.Wait()
	}
}

// send is what happens in the account and the cluster.
func (d *badDay) send() {
	s := &story{T: d.T, aws: d.aws}
	send := func(event, node string, edits ...string) string {
		return s.send(s.body(event, idOf(node), append(edits, "2026-11-20T10:15:30Z", time.Now().Add(d.clock).UTC().Format(time.RFC3339))...))
	}
	warning := send("spot-interruption", spotNode)
	d.sent[warning] = spotNode
	d.must(d.aws.Redeliver(queueName, warning))
	d.sent[send("health-reboot-scheduled", healthOne, `"affectedEntities": [`, `"affectedEntities": [{"entityValue":"`+idOf(healthTwo)+`"},`)] = healthOne
	d.sent[send("health-reboot-scheduled", undoneNode)] = undoneNode
	s.send(s.body("spot-interruption", "i-0fedcba9876543210")) // foreign
	send("state-change-running", otherNode)
	started, err := d.aws.StartTransition(idOf(hookNode), awssim.Terminating)
	d.must(err)
	d.sent[send("asg-terminate-lifecycle", hookNode, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", started[0].Token)] = hookNode
	time.AfterFunc(90*time.Second, func() { send("health-maintenance-completed", undoneNode) })
	// The volume is detached a while after its pods have gone.
	go func() {
		for !d.emptied(spotNode) {
			if wait(d.Context(), time.Second) != nil {
				return
			}
		}
		d.api.remove("volumeattachments", "pv-goes")
	}()
}

// emptied reports whether the pods of a node that have to leave it are gone.
func (d *badDay) emptied(node string) bool {
	d.api.mu.Lock()
	defer d.api.mu.Unlock()
	for key, u := range d.api.objects {
		if strings.HasPrefix(key, "pods/ns/"+node+"-") || node == spotNode && u.GetName() == "kept" {
			return false
		}
	}
	return true
}

// check looks at the records for what must hold whatever has failed.
func (d *badDay) check() {
	d.Helper()
	for _, m := range d.aws.Messages(queueName) {
		d.Errorf("message %s is left, after %d deliveries: %.100s", m.ID, m.ReceiveCount, m.Body)
	}
	d.checkNodes()
	d.checkHook()
	d.checkPods()
	d.checkTries()
}

func (d *badDay) checkNodes() {
	d.Helper()
	for _, name := range badDayNodes {
		node := &corev1.Node{}
		d.api.node(name, node)
		carried, _, err := cluster.ReadIntent(node)
		switch {
		case err != nil:
			d.Error(err)
		case name == undoneNode || name == otherNode:
			if !asBefore(node) {
				d.Errorf("node %s is not as it was: %+v %+v", name, node.ObjectMeta, node.Spec)
			}
		case !node.Spec.Unschedulable || !carried.Finished() || !d.emptied(name):
			d.Errorf("node %s is not drained: cordoned %t, intent %+v", name, node.Spec.Unschedulable, carried)
		}
	}
}

func (d *badDay) checkHook() {
	d.Helper()
	actions := d.aws.LifecycleActions()
	if len(actions) != 1 || actions[0].Outcome != awssim.Completed {
		d.Errorf("lifecycle actions %+v, want one that is completed", actions)
	}
	var completed time.Time
	for _, call := range d.aws.Calls() {
		switch {
		case call.Action == "CompleteLifecycleAction" && call.Code == "":
			if !completed.IsZero() {
				d.Error("the hook was completed twice")
			}
			completed = call.End
		case call.Action == "RecordLifecycleActionHeartbeat" && !completed.IsZero() && call.Start.After(completed):
			d.Errorf("a heartbeat %s after the completion", call.Start.Sub(completed))
		}
	}
}

// hadNoLeader reports whether a replica had only begun to lead.
func (d *badDay) hadNoLeader(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.terms, func(begin time.Time) bool {
		return !begin.After(at) && at.Sub(begin) < 5*time.Second
	})
}

func (d *badDay) checkPods() {
	d.Helper()
	d.api.mu.Lock()
	defer d.api.mu.Unlock()
	last := map[string]podStop{}
	left := map[string]time.Time{} // when the last pod of a node had left
	for _, s := range d.api.stopped {
		before, twice := last[s.uid]
		// A deletion does not wait for an eviction that hangs, which can only come to nothing then.
		if twice && before.how == "deleted" && s.how == "evicted" && s.at.Sub(before.at) < 10*time.Second {
			continue
		}
		if twice {
			d.Errorf("pod %s was %s %s after it was %s", s.name, s.how, s.at.Sub(before.at), before.how)
		}
		last[s.uid] = s
		node, _, _ := strings.Cut(s.name, "-")
		if s.name == "kept" {
			node = spotNode
		}
		gone := d.api.gone[s.uid]
		if gone.After(left[node]) {
			left[node] = gone
		}
		if node == spotNode && gone.After(d.begin.Add(2*time.Minute)) {
			d.Errorf("pod %s left %s after the spot warning", s.name, gone.Sub(d.begin))
		}
		// By our clock the machine of the spot warning is gone already; or nobody led before.
		if s.grace < 10*time.Second && (node != spotNode || d.clock >= 0) && !d.hadNoLeader(s.at) {
			d.Errorf("pod %s got a grace of %s: there was time for more", s.name, s.grace)
		}
		if s.name == "kept" && s.how == "evicted" || s.name == "stays" || node == otherNode {
			d.Errorf("pod %s was %s", s.name, s.how)
		}
	}
	for _, e := range d.aws.Effects() {
		if node := d.sent[e.MessageID]; e.Kind == awssim.MessageDeleted && node != undoneNode && e.Time.Before(left[node]) {
			d.Errorf("the message of node %s was deleted %s before its last pod had left", node, left[node].Sub(e.Time))
		}
	}
}

// checkTries checks that nothing that fails is tried more than ten times in a second.
func (d *badDay) checkTries() {
	d.Helper()
	const most = 10
	tries := map[string][]time.Time{}
	for _, call := range d.aws.Calls() {
		if call.Code != "" {
			thing := fmt.Sprint(call.Action, call.Params)
			tries[thing] = append(tries[thing], call.Start)
		}
	}
	d.api.mu.Lock()
	defer d.api.mu.Unlock()
	for _, call := range d.api.calls {
		if call.status == 0 || call.status >= http.StatusBadRequest {
			thing := call.action + " " + call.path
			tries[thing] = append(tries[thing], call.start)
		}
	}
	for thing, times := range tries {
		slices.SortFunc(times, time.Time.Compare)
		for k := most; k < len(times); k++ {
			if span := times[k].Sub(times[k-most]); span < time.Second {
				d.Errorf("%s failed %d times within %s", thing, most+1, span)
				break
			}
		}
	}
}

// clocksDiffer is five minutes, what AWS takes, and as much as a signature's time,
// which is of whole seconds, may be off.
const clocksDiffer = 5*time.Minute + time.Second

// ways are those in which any call can fail.
var ways = map[string]awssim.Fault{
	"throttled":          {Status: http.StatusTooManyRequests},
	"500":                {Status: http.StatusInternalServerError},
	"503":                {Status: http.StatusServiceUnavailable},
	"reset":              {Reset: true},
	"answer lost":        {Reset: true, AfterEffect: true},
	"half a response":    {Half: true},
	"no answer":          {Hang: true, HangFor: time.Minute},
	"slow":               {Latency: 5 * time.Second},
	"wrong content type": {ContentType: "text/html"},
	"clock ahead":        {Skew: clocksDiffer},
	"clock behind":       {Skew: -clocksDiffer},
	"no permission":      {Status: http.StatusForbidden, Code: "AccessDenied"},
}

// actions are all that is called; those of the API server have two words. What
// else is needed for a call to be made is set by its function.
var actions = map[string]func(d *badDay){
	"ReceiveMessage": nil, "DeleteMessageBatch": nil, "ChangeMessageVisibilityBatch": nil, "GetQueueAttributes": nil,
	"DescribeInstances":      nil,
	"DescribeLifecycleHooks": nil, "RecordLifecycleActionHeartbeat": nil, "CompleteLifecycleAction": nil,

	"create leases": nil, "get leases": nil, "update leases": nil,
	"create pods/eviction": nil, "delete pods": nil, "watch pods": nil,
	"watch nodes": nil, "patch nodes": nil, "list nodes": nil,
	"watch volumeattachments": nil, "get persistentvolumeclaims": nil, "create events": nil,

	"get nodes": func(d *badDay) {
		d.fail("patch nodes", awssim.Fault{Status: http.StatusConflict, Probability: 0.5}, 0, faultsLast)
	},
	"patch events": func(d *badDay) {
		d.fail("patch nodes", awssim.Fault{Status: http.StatusInternalServerError}, 0, 20*time.Second)
	},
	"list pods":              func(d *badDay) { d.api.listsOnly = true },
	"list volumeattachments": func(d *badDay) { d.api.listsOnly = true },
}

// fail lets an action fail between two moments, counted from the notices.
func (d *badDay) fail(action string, f awssim.Fault, from, to time.Duration) {
	if strings.Contains(action, " ") {
		f.Action = action
		d.api.faults = append(d.api.faults, &apiFault{Fault: f, from: d.begin.Add(from), to: d.begin.Add(to)})
		return
	}
	f.ID, f.Action = fmt.Sprint(action, from), action
	switch {
	case f.Status == http.StatusTooManyRequests: // each service has its own way to say it
		f.Status, f.Rate = 0, 1e-9
	case f.Code != "" && action == "DescribeInstances":
		f.Code = "UnauthorizedOperation"
	}
	time.AfterFunc(time.Until(d.begin.Add(from)), func() { d.must(d.aws.SetFault(f)) })
	time.AfterFunc(time.Until(d.begin.Add(to)), func() { d.aws.RemoveFault(f.ID) })
}

// met is how many calls of an action there were between two moments.
func (d *badDay) met(action string, from, to time.Duration) (n int) {
	within := func(at time.Time) bool { return !at.Before(d.begin.Add(from)) && at.Before(d.begin.Add(to)) }
	for _, c := range d.aws.Calls() {
		if c.Action == action && within(c.Start) {
			n++
		}
	}
	for _, c := range d.api.calls {
		if c.action == action && within(c.start) {
			n++
		}
	}
	return n
}

func TestADayWithoutFaults(t *testing.T) {
	t.Parallel()
	endure(t, 1, func(d *badDay) {
		d.Cleanup(func() {
			for _, call := range d.api.calls {
				if _, known := actions[call.action]; !known {
					t.Errorf("%s is not in the list of actions", call.action)
				}
			}
			for _, call := range d.aws.Calls() {
				if _, known := actions[call.Action]; !known {
					t.Errorf("%s is not in the list of actions", call.Action)
				}
			}
		})
	})
}

// A trial is one day on which one action fails in one way for a while, counted
// from the notices.
type trial struct {
	action, way, when string
	from, lasts       time.Duration
}

// windows are when an action fails: while the replicas start and the notices
// come, while the drains are under way, and when pods are forced and the hook is
// completed.
var windows = []trial{
	{when: "from the start", from: -aheadOfNotices, lasts: faultsLast},
	{when: "in the middle", from: aheadOfNotices, lasts: faultsLast},
	{when: "at the end", from: 78 * time.Second, lasts: 20 * time.Second},
}

// trials are all of them: every action in every way, whenever it is called on a
// day without faults.
func trials(t *testing.T) []trial {
	days := map[bool]*badDay{}
	var all []trial
	for _, action := range slices.Sorted(maps.Keys(actions)) {
		need := actions[action]
		day := days[need != nil]
		if day == nil || need != nil {
			endure(t, 1, func(d *badDay) {
				day = d
				if need != nil {
					need(d)
				}
			})
			days[need != nil] = day
		}
		for _, w := range windows {
			if day.met(action, w.from, w.from+w.lasts) == 0 {
				continue
			}
			for _, way := range slices.Sorted(maps.Keys(ways)) {
				all = append(all, trial{action, way, w.when, w.from, w.lasts})
			}
		}
	}
	return all
}

// Without -faults every action fails once, in a way and at a time by the seed.
func TestNothingIsLostWhateverCallFailsInWhateverWay(t *testing.T) {
	race.Long(t)
	t.Parallel()
	seed := seedOf(t)
	chosen := trials(t)
	if !*allFaults {
		rand.New(rand.NewPCG(seed, 3)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		seen := map[string]bool{}
		chosen = slices.DeleteFunc(chosen, func(x trial) bool {
			again := seen[x.action]
			seen[x.action] = true
			return again
		})
	}
	var mu sync.Mutex
	runs, calls, failures := map[string]int{}, map[string]int{}, map[string]int{}
	t.Cleanup(func() {
		t.Log("| way to fail | runs | calls that it met | failures |")
		for _, way := range slices.Sorted(maps.Keys(runs)) {
			t.Logf("| %s | %d | %d | %d |", way, runs[way], calls[way], failures[way])
		}
		for action := range actions {
			if *allFaults && runs[action] > 0 && calls[action] == 0 { // one by chance may come after the last call
				t.Errorf("%s has never failed", action)
			}
		}
	})
	for _, x := range chosen {
		t.Run(strings.Join([]string{x.action, x.way, x.when}, ", "), func(t *testing.T) {
			t.Parallel()
			endure(t, seed, func(d *badDay) {
				if need := actions[x.action]; need != nil {
					need(d)
				}
				d.fail(x.action, ways[x.way], x.from, x.from+x.lasts)
				d.Cleanup(func() {
					mu.Lock()
					defer mu.Unlock()
					for _, of := range []string{x.way, x.action} {
						runs[of]++
						calls[of] += d.met(x.action, x.from, x.from+x.lasts)
						if d.Failed() {
							failures[of]++
						}
					}
				})
			})
		})
	}
}

// seedOf is the seed of a test's random choices.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := *faultSeed
	if seed == 0 {
		seed = 1 + rand.Uint64N(1e9)
	}
	t.Logf("fault-seed=%d", seed)
	return seed
}

// What fails together.
func TestNothingIsLostWhenAWholeSideIsAway(t *testing.T) {
	race.Long(t)
	t.Parallel()
	// The spot warning is received before the longer ones begin.
	const later, minutes = 5 * time.Second, 5 * time.Minute
	for name, set := range map[string]func(d *badDay){
		"SQS refuses for 5 minutes": func(d *badDay) { d.failAll("sqs", awssim.Fault{Status: http.StatusServiceUnavailable}, later, minutes) },
		"SQS hangs for 5 minutes":   func(d *badDay) { d.failAll("sqs", awssim.Fault{Hang: true}, later, minutes) },
		"SQS denies for 5 minutes":  func(d *badDay) { d.failAll("sqs", awssim.Fault{Code: "AccessDenied"}, later, minutes) },
		"the role is taken away and given back": func(d *badDay) {
			denied := awssim.Fault{Status: http.StatusForbidden, Code: "AccessDenied"}
			const lasts = 145 * time.Second // the hook is open for 180 s
			d.failAll("sqs", denied, later, lasts)
			d.failAll("autoscaling", denied, later, lasts)
			denied.Code = "UnauthorizedOperation"
			d.failAll("ec2", denied, later, lasts)
		},
		// The SDK signs by the clock of the answers; the times of the events stay.
		"AWS's clock is 5 minutes ahead":      func(d *badDay) { d.skew(clocksDiffer) },
		"AWS's clock is 5 minutes behind":     func(d *badDay) { d.skew(-clocksDiffer) },
		"the API server's clock is ahead":     func(d *badDay) { d.api.clock = 5 * time.Minute },
		"the API server's clock is behind":    func(d *badDay) { d.api.clock = -5 * time.Minute },
		"AWS is away for a minute":            func(d *badDay) { d.failAll("*", awssim.Fault{Reset: true}, 0, faultsLast) },
		"the API server is away for a minute": func(d *badDay) { d.failAll("kubernetes", awssim.Fault{Reset: true}, 0, faultsLast) },
		"the API server hangs for a minute": func(d *badDay) {
			d.failAll("kubernetes", awssim.Fault{Hang: true, HangFor: time.Minute}, 0, faultsLast)
		},
		"the API server is away during drains": func(d *badDay) { d.failAll("kubernetes", awssim.Fault{Reset: true}, later, faultsLast) },
		"the API server hangs during drains": func(d *badDay) {
			d.failAll("kubernetes", awssim.Fault{Hang: true, HangFor: time.Minute}, later, faultsLast)
		},
		"the API server denies all for a minute": func(d *badDay) { d.failAll("kubernetes", awssim.Fault{Status: http.StatusForbidden}, 0, faultsLast) },
		"every watch ends after a second": func(d *badDay) {
			d.api.faults = append(d.api.faults, &apiFault{from: d.begin, to: d.begin.Add(dayLasts), cut: time.Second})
		},
		"every watch ends and has to begin anew": func(d *badDay) {
			d.api.faults = append(d.api.faults, &apiFault{from: d.begin, to: d.begin.Add(faultsLast), cut: time.Second})
			d.api.expire = true
		},
		"no watch of pods is ever answered": func(d *badDay) {
			d.fail("watch pods", awssim.Fault{Hang: true, HangFor: time.Hour}, 0, faultsLast)
		},
		"each patch is a conflict": func(d *badDay) { d.fail("patch nodes", awssim.Fault{Status: http.StatusConflict}, 0, faultsLast) },
		"a webhook denies evictions": func(d *badDay) {
			d.fail("create pods/eviction", awssim.Fault{Status: http.StatusForbidden}, 0, faultsLast)
		},
		"two budgets on every pod": func(d *badDay) {
			d.fail("create pods/eviction", awssim.Fault{
				Status: http.StatusInternalServerError, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}, 0, faultsLast)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endure(t, 1, set)
		})
	}
}

// A replica that is stopped amid its drains has ended before its pod is killed, after the 20 s of the chart, also if nothing
// answers.
func TestAReplicaEndsBeforeItIsKilledWhateverHangs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		hangs []string
		most  time.Duration
	}{
		{nil, 2 * time.Second},
		{[]string{"sqs"}, 10 * time.Second},
		{[]string{"*"}, 10 * time.Second},
		{[]string{"kubernetes"}, 10 * time.Second},
		{[]string{"*", "kubernetes"}, 18 * time.Second},
	} {
		t.Run(strings.Join(tt.hangs, "+"), func(t *testing.T) {
			t.Parallel()
			day(t, 1, func(d *badDay) {
				for _, service := range tt.hangs {
					d.failAll(service, awssim.Fault{Hang: true, HangFor: time.Hour}, 15*time.Second, time.Hour)
				}
			}, func(d *badDay, stops []func()) {
				time.Sleep(20 * time.Second) // the drains are under way, and nothing answers any more
				begin := time.Now()
				var both sync.WaitGroup
				for _, stop := range stops {
					both.Go(stop)
				}
				both.Wait()
				if took := time.Since(begin); took > tt.most {
					t.Errorf("it ends after %s, want %s at most", took, tt.most)
				} else {
					t.Logf("it ends after %s", took)
				}
			})
		})
	}
}

// failAll lets all actions of a service fail.
func (d *badDay) failAll(service string, f awssim.Fault, from, lasts time.Duration) {
	if service == "kubernetes" {
		d.api.faults = append(d.api.faults, &apiFault{Fault: f, from: d.begin.Add(from), to: d.begin.Add(from + lasts)})
		return
	}
	f.ID, f.Service = service, service
	time.AfterFunc(time.Until(d.begin.Add(from)), func() { d.must(d.aws.SetFault(f)) })
	time.AfterFunc(time.Until(d.begin.Add(from+lasts)), func() { d.aws.RemoveFault(f.ID) })
}

// skew makes AWS's clock differ from ours all day, in what it takes and in what it says.
func (d *badDay) skew(by time.Duration) {
	d.clock = by
	d.must(d.aws.SetFault(awssim.Fault{ID: "clock", Skew: by}))
	d.Cleanup(func() {
		refused := map[string]int{}
		for _, call := range d.aws.Calls() {
			switch call.Code {
			case "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired":
				refused[call.Service]++
			}
		}
		for _, service := range []string{"sqs", "ec2", "autoscaling"} {
			if n := refused[service]; n < 1 || n > 3 {
				d.Errorf("%d calls to %s were refused for their time, want those that the leader's client made at first", n, service)
			}
		}
	})
}

// Of everything some calls fail, in any way, at any time.
func TestNothingIsLostWhateverFailsTogether(t *testing.T) {
	race.Long(t)
	t.Parallel()
	first := seedOf(t)
	for run := range *faultRuns {
		seed := first + uint64(run)
		t.Run(fmt.Sprintf("fault-seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			endure(t, seed, func(d *badDay) {
				random := rand.New(rand.NewPCG(seed, 2))
				names := slices.Sorted(maps.Keys(ways))
				for _, action := range slices.Sorted(maps.Keys(actions)) {
					way := names[random.IntN(len(names))]
					f := ways[way]
					f.Probability = 0.1 + 0.5*random.Float64()
					from := time.Duration(random.Int64N(int64(faultsLast)))
					to := from + time.Duration(random.Int64N(int64(faultsLast-from)))
					d.Logf("%s to %s, %.0f %%: %s, %s", from.Round(time.Second), to.Round(time.Second), 100*f.Probability, action, way)
					d.fail(action, f, from, to)
				}
			})
		})
	}
}
