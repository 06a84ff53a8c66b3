package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
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

// The world that a history happens to. What AWS, kubelets, controllers and people
// do in it does not depend on the program, but for what that asks of them.
const (
	account     = "123456789012"
	person      = "a person"
	strangerID  = "i-0fedcba9876543210"
	gracePeriod = 2 * time.Minute // node-termination-grace-period

	startTakes    = 10 * time.Second // from pending to running
	bootTakes     = 30 * time.Second // until the kubelet is there
	shutdownTakes = 15 * time.Second // until the kubelet has gone
	silence       = 40 * time.Second // of a kubelet until its node is not ready
	evictAfter    = 5 * time.Minute  // of silence Kubernetes deletes the pods
	forgetAfter   = 20 * time.Second // of its machine's end a Node is deleted
	orphansGoIn   = 45 * time.Second // when their Node is deleted
	placeIn       = 700 * time.Millisecond
	followIn      = 16 * time.Second // after the death of a leader

	sweepEach    = 30 * time.Second
	settledAfter = 20 * time.Minute // the last thing to wait for
)

// What ends a history early: more would tell nothing new.
const (
	mostStops     = 500  // of pods
	mostPerSecond = 1000 // requests
)

func machineName(k int) string { return fmt.Sprintf("m%d", k) }
func machineID(k int) string   { return fmt.Sprintf("i-%017x", 0x1000+k) }
func ownerName(k int) string   { return fmt.Sprintf("app%d", k) }

// A machine is an instance as it really is.
type machine struct {
	k        int
	id       string
	state    string // as EC2 has it; empty: not launched yet
	life     int    // counts its starts
	began    time.Time
	boot     int    // counts what changes the boot id
	hibernal bool   // hibernates: the next start is no boot
	up       bool   // its kubelet answers
	changed  int    // counts changes of up: what was to come later is void
	node     string // the name under which its kubelet registers
	pool     bool   // on its way to the warm pool, or there

	mail      time.Duration // by which events about it come late
	mailTwice bool
	changes   int                     // scheduled changes so far
	events    []awssim.ScheduledEvent // as EC2 lists them
	impaired  time.Time               // since when its status checks fail; zero: they pass

	unhealthy    int // the life, and 1, of which the group was told that it is unhealthy
	pod          *lifePod
	metadata     []notice.Notice
	metadataLife int           // of which the metadata tell
	metadataNews chan struct{} // closed when they change
}

func (m *machine) runs() bool { return m.state == "running" || m.state == "pending" }

// now is a machine as it is at the moment.
func (w *world) now(m *machine) machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *m
}

// A world plays one history, and writes down what it sees.
type world struct {
	*testing.T
	h     *history
	aws   *awssim.Server
	api   *apiServer
	log   logr.Logger
	begin time.Time
	stuck *atomic.Bool
	until invariant // whose violation ends the history; empty: none does

	ended chan struct{} // closed when there is no more to see
	stop  func()        // closes it

	leading chan struct{} // has room for one who changes leaders; no mutex, which would stop the time
	changes sync.WaitGroup
	replica *lifeReplica // guarded by leading
	process *lifeProcess // of the replica, and of the one before where one process leads again

	mu       sync.Mutex
	step     int
	machines []*machine
	nodes    map[types.UID]*nodeRecord
	posts    []*post
	asks     []ask
	refused  map[string]bool      // pods, by UID, of which an eviction was refused
	first    map[string]time.Time // when the eviction of a pod was first asked for
	failures []violation
	health   []healthChange
	broken   map[string]int // faults that are under way, by their name
	troubles []trouble
	leads    bool
	leaders  []time.Time // when they ended
	began    []time.Time // when they began
	killed   []time.Time
	cutShort bool // ended early: nothing is at rest
	willing  bool // budgets and finalizers are in nobody's way any more
	kicked   bool
	stops    int // accepted
	second   time.Time
	requests int
	names    int
	tried    map[string][]time.Time // completions, by token
	polled   map[string][]time.Time // when a poll has found something of a scheduled event, by its id
	looks    []func()               // at what has to be in service again

	file        *lifeFile
	policy      []lifeRule // the rules of now
	policySince time.Time
	watches     bool // Nodes that wait
	pods        sync.WaitGroup
	takeovers   int             // terms of pods on nodes that drain
	waiting     map[string]bool // machines, by id, whose drains wait at the end, as they may
}

func newWorld(t *testing.T, h *history, stuck *atomic.Bool, verbose bool) *world {
	w := &world{
		T: t, h: h, log: logr.Discard(), begin: time.Now(), stuck: stuck, api: newAPIServer(t, h.seed), ended: make(chan struct{}), leading: make(chan struct{}, 1), step: -1,
		nodes: map[types.UID]*nodeRecord{}, refused: map[string]bool{}, first: map[string]time.Time{}, broken: map[string]int{}, tried: map[string][]time.Time{},
		polled: map[string][]time.Time{}, waiting: map[string]bool{},
	}
	if len(h.policies) > 0 {
		w.file, w.policy = &lifeFile{}, h.policies[0]
		w.file.set(w.policy)
	}
	w.stop = sync.OnceFunc(func() { close(w.ended) })
	if verbose {
		w.log = logtest.To(t.Output())
	}
	w.aws = awssim.New(awssim.Options{Seed: h.seed, ShutdownTime: h.options.shutdown, Delivery: w.deliver})
	w.api.budget, w.api.kubelet, w.api.watched, w.api.asked, w.api.patched = w.budget, w.stopPod, w.watched, w.asked, w.patched
	o := h.options
	w.must(w.aws.CreateQueue(awssim.Queue{Name: queueName, Duplicates: o.duplicates, Disorder: o.disorder}))
	w.must(w.aws.PutRule(awssim.Rule{Name: "all", Queue: queueName}))
	w.must(w.aws.PutGroup(awssim.Group{Name: "workers"}))
	w.must(w.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: o.hookTimeout}))
	if o.othersHook {
		w.must(w.aws.PutHook(awssim.Hook{Group: "workers", Name: "others", Transition: awssim.Terminating, HeartbeatTimeout: o.hookTimeout, DefaultResult: awssim.Continue}))
	}
	if o.launchHook {
		w.must(w.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: o.launchTimeout}))
	}
	for k, inService := range h.machines {
		m := &machine{k: k, id: machineID(k), node: machineName(k)}
		w.machines = append(w.machines, m)
		if !inService {
			continue
		}
		m.state, m.up, m.began = "running", true, w.begin.Add(-24*time.Hour)
		w.putInstance(m, "running")
		w.register(m, m.node, true)
	}
	w.place(true)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// after lets something happen later, unless the history has ended by then.
func (w *world) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		select {
		case <-w.ended:
		default:
			f()
		}
	})
}

// wait returns false if the history ends before d is over.
func (w *world) wait(d time.Duration) bool {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ended:
		return false
	}
}

// play is the whole history.
func (w *world) play() {
	defer w.aws.Close()
	w.lead(0)
	for _, m := range w.machines {
		if w.now(m).up {
			w.startPod(m)
		}
	}
	w.wait(5 * time.Second)
	for k, s := range w.h.steps {
		if !w.wait(time.Until(w.begin.Add(5*time.Second + s.at))) {
			break
		}
		w.mu.Lock()
		w.step = k
		w.mu.Unlock()
		w.log.Info("STEP", "n", k, "step", s.String())
		w.do(s)
	}
	w.settle()
	select {
	case <-w.ended:
		w.cutShort = true
	default:
		for _, look := range w.looks {
			look()
		}
		w.atRest()
	}
	w.stop()
	w.changes.Wait()
	w.pods.Wait()
	w.leading <- struct{}{}
	defer func() { <-w.leading }()
	if w.replica != nil {
		w.replica.end()
	}
	if w.process != nil {
		w.process.end()
	}
	w.checkAll()
}

// settle waits until all that has begun can have ended: nothing is in its way.
func (w *world) settle() {
	w.changes.Wait()
	w.mu.Lock()
	w.willing = true
	w.mu.Unlock()
	w.api.mu.Lock()
	for _, u := range w.podsOf("") {
		if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) > 0 {
			w.removePod(u, time.Second)
		}
	}
	w.api.mu.Unlock()
	end := time.Now()
	for _, s := range w.h.steps {
		switch s.what {
		case doLaunch, doDeleteNode, doLateProvider, doNotReady, doImpair: // what they have begun ends later
			end = later(end, w.begin.Add(s.at+s.d))
		}
	}
	for {
		for _, a := range w.aws.LifecycleActions() { // which can tell of more
			if a.Outcome == awssim.Active {
				end = later(end, a.Deadline)
			}
		}
		w.mu.Lock()
		for _, t := range w.troubles {
			end = later(end, t.to)
		}
		for _, p := range w.posts {
			end = later(end, p.visible)
			if strings.Contains(p.text, "hook") || strings.Contains(p.text, "launch") { // it is waited for, be it forged
				end = later(end, p.at.Add(max(time.Hour, w.h.options.hookTimeout)))
			}
		}
		w.mu.Unlock()
		left := time.Until(end.Add(settledAfter))
		if left <= 0 || !w.wait(left) {
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// do makes a step happen, if it can.
func (w *world) do(s step) {
	var m *machine
	if s.m >= 0 {
		m = w.machines[s.m]
	}
	state, up, pool := "", false, false
	if m != nil {
		now := w.now(m)
		state, up, pool = now.state, now.up, now.pool
	}
	switch s.what {
	case doLaunch:
		if state == "" {
			w.launch(m, s.d)
		}
	case doStop, doHibernate:
		if state == "running" {
			w.stopMachine(m, s.what == doHibernate)
		}
	case doStart:
		if state == "stopped" && !pool {
			w.must(w.aws.SetInstanceState(m.id, "pending"))
		}
	case doTerminate:
		if state == "running" || state == "stopped" {
			w.must(w.aws.SetInstanceState(m.id, "shutting-down"))
		}
	case doToPool:
		if state == "running" && w.aws.LifecycleState(m.id) == "InService" {
			w.within(m, s.late, func() {
				w.setPool(m, true)
				_, err := w.aws.ReturnToWarmPool(m.id, s.text)
				w.must(err)
			})
		}
	case doFromPool:
		if place := w.aws.LifecycleState(m.id); pool && (place == awssim.WarmedRunning || place == awssim.WarmedStopped && state == "stopped") {
			w.within(m, s.late, func() {
				w.setPool(m, false)
				_, err := w.aws.LaunchFromWarmPool(m.id)
				w.must(err)
			})
		}
	case doScaleIn:
		if state == "running" && w.aws.LifecycleState(m.id) == "InService" {
			w.within(m, s.late, func() {
				_, err := w.aws.StartTransition(m.id, awssim.Terminating)
				w.must(err)
			})
		}
	case doNotReady:
		if up {
			w.kubeletDown(m)
			life := w.now(m).life
			w.after(s.d, func() {
				if now := w.now(m); now.life == life && now.runs() {
					w.kubeletUp(m)
				}
			})
		}
	case doReboot:
		if state == "running" && up {
			w.reboot(m, s.d)
		}
	case doReplaceRoot:
		if state == "running" && w.aws.LifecycleState(m.id) == "InService" {
			w.replaceRoot(m, s)
		}
	case doDeleteNode, doReplaceNode, doLateProvider, doSecondNode:
		if up {
			w.registerAnew(m, s)
		}
	case doSpot, doReserved:
		if state == "running" && (s.what == doReserved || w.isSpot(m)) {
			w.spot(m, s)
		}
	case doBlock:
		w.expire(s)
	case doRebalance:
		if state == "running" && w.isSpot(m) {
			w.send(m, "rebalance", ec2Event("EC2 Instance Rebalance Recommendation", m.id, nil), &post{}, s.late)
			w.tellRebalance(m)
		}
	case doAnnounce, doPutOff, doRepeat, doResolve, doClose:
		if state != "" && state != "terminated" {
			w.maintain(m, s)
		}
	case doMail:
		w.mu.Lock()
		m.mail, m.mailTwice = s.d, s.text == "twice"
		w.mu.Unlock()
	case doForge:
		if state != "" {
			w.forge(m, s.text, s.late)
		}
	case doCordon, doUncordon, doTaint, doLabel:
		w.person(m, s)
	case doRollout:
		w.rollOut()
	case doLeader:
		w.changes.Go(func() { w.changeLeader(s.d, false) })
	case doKill:
		w.changes.Go(func() { w.changeLeader(followIn, true) })
	case doFault:
		w.fault(s)
	case doRules:
		w.setRules(s.text)
	case doImpair:
		if state == "running" && up {
			w.impair(m, s.d)
		}
	}
}

func (w *world) setPool(m *machine, pool bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.pool = pool
}

// within lets what AWS tells about a machine in f come late.
func (w *world) within(m *machine, late time.Duration, f func()) {
	w.mu.Lock()
	before := m.mail
	m.mail = max(before, late)
	w.mu.Unlock()
	f()
	w.mu.Lock()
	m.mail = before
	w.mu.Unlock()
}

// Machines.

func (w *world) putInstance(m *machine, state string) {
	lifecycle := "spot"
	if w.reservationOf(m) != "" {
		lifecycle = lookup.CapacityBlock
	}
	w.must(w.aws.PutInstance(awssim.Instance{
		ID: m.id, State: state, PrivateDNSName: machineName(m.k), Tags: map[string]string{"managed": ""}, LaunchTime: m.began,
		Lifecycle: lifecycle, Reservation: w.reservationOf(m),
	}))
	group := w.aws.Groups()[0]
	group.Instances = append(group.Instances, m.id)
	w.must(w.aws.PutGroup(group))
}

func (w *world) launch(m *machine, joins time.Duration) {
	w.mu.Lock()
	m.state, m.began = "pending", time.Now()
	m.life++
	m.boot++
	w.mu.Unlock()
	w.putInstance(m, "pending")
	if w.h.options.launchHook {
		_, err := w.aws.StartTransition(m.id, awssim.Launching)
		w.must(err)
	}
	w.after(startTakes, func() {
		if w.now(m).state == "pending" {
			w.must(w.aws.SetInstanceState(m.id, "running"))
		}
	})
	w.after(startTakes+joins, func() { w.boots(m, 1) })
}

func (w *world) stopMachine(m *machine, hibernates bool) {
	w.mu.Lock()
	m.hibernal = hibernates
	w.mu.Unlock()
	if err := w.aws.SetInstanceState(m.id, "stopping"); err != nil { // EC2 has forgotten it by now
		w.mu.Lock()
		defer w.mu.Unlock()
		m.state = "terminated"
	}
}

// reboot makes the kubelet silent for a while, and changes the boot id. Pods start again.
func (w *world) reboot(m *machine, takes time.Duration) {
	w.kubeletDown(m)
	w.mu.Lock()
	m.boot++
	life, boot := m.life, m.boot
	w.mu.Unlock()
	w.after(takes, func() {
		if now := w.now(m); now.life == life && now.boot == boot && now.runs() && !now.up {
			w.kubeletUp(m)
		}
	})
}

// replaceRoot is what an instance refresh does with a machine: once its hooks wait no more, it
// reboots.
func (w *world) replaceRoot(m *machine, s step) {
	var started []awssim.LifecycleAction
	w.within(m, s.late, func() {
		var err error
		started, err = w.aws.ReplaceRootVolume(m.id)
		w.must(err)
	})
	life := w.now(m).life
	var look func()
	look = func() {
		now := w.now(m)
		switch state := w.aws.LifecycleState(m.id); {
		case now.life != life || now.state != "running":
		case state == awssim.ReplacingRootVolumeProceed:
			w.reboot(m, s.d)
			began := time.Now()
			_, err := w.aws.RootVolumeReplaced(m.id)
			w.must(err)
			if len(started) > 0 {
				w.backFrom(m, "its root volume was replaced", &post{m: m, kind: "replaced", life: life, at: began, step: w.stepNow()})
			}
		case strings.HasPrefix(state, "ReplacingRootVolume"):
			w.after(time.Second, look)
		}
	}
	look()
}

// backFrom looks whether a machine that has rebooted for something takes pods again, when its kubelet
// is there.
func (w *world) backFrom(m *machine, why string, p *post) {
	var look func()
	look = func() {
		now := w.now(m)
		switch {
		case now.life != p.life || now.state != "running":
		case now.up:
			w.mu.Lock()
			p.visible = time.Now()
			if p.change != "" {
				w.posts = append(w.posts, p)
			}
			w.mu.Unlock()
			w.mayServeAgain(m, why, p)
		default:
			w.after(time.Second, look)
		}
	}
	w.after(time.Second, look)
}

// stepNow is the last step so far.
func (w *world) stepNow() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.step
}

// happens makes a scheduled change happen, unless a later notice is about another time.
func (w *world) happens(p *post) {
	w.mu.Lock()
	still := p.m.life == p.life && p.m.state == "running" && p.m.up && !slices.ContainsFunc(w.posts, func(next *post) bool {
		return next != p && next.m == p.m && next.change == p.change && next.at.After(p.at) && !next.deadline.Equal(p.deadline)
	})
	w.mu.Unlock()
	if still {
		w.list(p.m, p.event, "[Completed] ", time.Time{})
	}
	switch {
	case !still:
	case strings.HasPrefix(p.text, "stop"):
		w.stopMachine(p.m, false)
		w.after(w.h.options.shutdown+5*time.Minute, func() {
			if now := w.now(p.m); now.state == "stopped" && now.life == p.life && !now.pool {
				w.must(w.aws.SetInstanceState(p.m.id, "pending"))
			}
		})
	default:
		w.reboot(p.m, 20*time.Second+time.Duration(p.m.k)*30*time.Second)
		w.backFrom(p.m, "its scheduled reboot is over", &post{m: p.m, kind: "change", text: p.text, life: p.life, at: time.Now(), step: w.stepNow(), change: p.change, over: true, rebooted: true})
	}
}

// changedState is told of each new state of an instance, as it is emitted.
func (w *world) changedState(m *machine, state string) {
	w.mu.Lock()
	m.state = state
	switch state {
	case "pending":
		m.began = time.Now()
		m.life++
		if !m.hibernal {
			m.boot++
		}
		m.hibernal = false
	case "terminated":
		m.pool = false
	}
	life := m.life
	w.mu.Unlock()
	switch state {
	case "pending":
		w.after(0, func() { w.delist(m) })
		w.after(startTakes, func() {
			if w.now(m).state == "pending" {
				w.must(w.aws.SetInstanceState(m.id, "running"))
			}
		})
	case "running":
		if life > 1 || w.h.machines[m.k] { // else it is launched
			w.after(bootTakes, func() { w.boots(m, life) })
		}
	case "stopping", "shutting-down":
		w.after(shutdownTakes, func() {
			if w.now(m).life == life {
				w.kubeletDown(m)
			}
		})
		w.after(w.h.options.shutdown, func() { w.aws.LifecycleState(m.id) }) // time goes on there when somebody asks
	case "stopped", "terminated":
		w.after(time.Millisecond, func() { w.kubeletDown(m) })
	}
	if state == "terminated" {
		w.after(forgetAfter, func() {
			for _, name := range w.nodesOf(m) {
				w.api.remove("nodes", name)
			}
		})
	}
}

func (w *world) boots(m *machine, life int) {
	w.mu.Lock()
	boots := m.life == life && m.state == "running" && !m.up
	w.mu.Unlock()
	if boots {
		w.kubeletUp(m)
	}
}

// nodesOf are the names of a machine's Nodes.
func (w *world) nodesOf(m *machine) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, n := range w.nodes {
		if n.m == m && n.deleted.IsZero() {
			names = append(names, n.name)
		}
	}
	slices.Sort(names)
	return names
}

// Kubelets and the controllers of nodes.

func (w *world) kubeletDown(m *machine) {
	w.mu.Lock()
	if !m.up {
		w.mu.Unlock()
		return
	}
	m.up = false
	m.changed++
	changed := m.changed
	w.mu.Unlock()
	w.stopPodOn(m)
	still := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return m.changed == changed
	}
	w.after(silence, func() {
		if !still() {
			return
		}
		for _, name := range w.nodesOf(m) {
			w.notReady(m, name)
		}
	})
	w.after(silence+evictAfter, func() {
		if !still() {
			return
		}
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		for _, name := range w.nodesOf(m) {
			for _, u := range w.podsOf(name) {
				if o := w.ownerOf(u); u.GetDeletionTimestamp() == nil && !o.tolerates {
					u = u.DeepCopy()
					u.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Add(o.grace))))
					w.api.store("pods", u)
				}
			}
		}
	})
}

func (w *world) notReady(m *machine, name string) {
	state := w.now(m).state
	w.editNode(name, func(n *corev1.Node) {
		setReady(n, corev1.ConditionUnknown)
		n.Spec.Taints = append(n.Spec.Taints,
			corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
			corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
		if state == "stopped" || state == "stopping" {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "node.cloudprovider.kubernetes.io/shutdown", Effect: corev1.TaintEffectNoSchedule})
		}
	})
}

// lifecycleTaints are those that come and go with the state of a node.
var lifecycleTaints = []string{corev1.TaintNodeUnreachable, "node.cloudprovider.kubernetes.io/shutdown"}

func (w *world) kubeletUp(m *machine) {
	w.mu.Lock()
	m.up = true
	m.changed++
	name, boot := m.node, m.boot
	w.mu.Unlock()
	if !w.editNode(name, func(n *corev1.Node) { ready(n, m.id, boot) }) {
		w.register(m, name, true)
	}
	w.startPod(m)
	w.cleanUp(name)
}

// cleanUp is what a kubelet does first: pods that were to stop have stopped.
func (w *world) cleanUp(node string) {
	w.after(2*time.Second, func() {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		for _, u := range w.podsOf(node) {
			if u.GetDeletionTimestamp() != nil {
				w.removePod(u, 0)
			}
		}
	})
}

func ready(n *corev1.Node, id string, boot int) {
	setReady(n, corev1.ConditionTrue)
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(lifecycleTaints, t.Key) })
	n.Status.NodeInfo.BootID = fmt.Sprintf("boot-%d-of-%s", boot, id)
}

func setReady(n *corev1.Node, status corev1.ConditionStatus) {
	if len(n.Status.Conditions) > 0 && n.Status.Conditions[0].Status == status {
		return
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now()}}
}

// register makes a Node, as the kubelet of a machine that is up does.
func (w *world) register(m *machine, name string, provided bool) {
	w.mu.Lock()
	w.names++
	uid := types.UID(fmt.Sprintf("node-%s-%d", name, w.names))
	boot := m.boot
	w.mu.Unlock()
	n := aNode(name, m.id)
	n.UID, n.CreationTimestamp = uid, metav1.Now()
	n.Labels = map[string]string{corev1.LabelHostname: name, poolLabel: poolOf(m.k), zoneLabel: zoneOf(m.k)}
	if !provided {
		n.Spec.ProviderID = ""
	}
	n.Status.Conditions = nil
	ready(n, m.id, boot)
	w.mu.Lock()
	w.nodes[uid] = &nodeRecord{uid: uid, name: name, m: m, created: time.Now(), provided: provided, ourTaints: map[string]bool{}, ourLabels: map[string]bool{}}
	if provided {
		w.nodes[uid].since = time.Now()
	}
	w.mu.Unlock()
	w.api.put("nodes", n)
}

// registerAnew makes another Node of a machine whose kubelet is up.
func (w *world) registerAnew(m *machine, s step) {
	before := w.now(m)
	name, changed := before.node, before.changed
	still := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return m.changed == changed && m.up
	}
	switch s.what {
	case doReplaceNode:
		w.api.remove("nodes", name)
		w.register(m, name, true)
	case doDeleteNode:
		w.api.remove("nodes", name)
		w.after(s.d, func() {
			if still() && w.now(m).node == name {
				w.registerOnce(m, name, true)
			}
		})
	case doLateProvider:
		w.api.remove("nodes", name)
		w.register(m, name, false)
		w.after(s.d, func() {
			w.editNode(name, func(n *corev1.Node) {
				if n.Spec.ProviderID == "" {
					n.Spec.ProviderID = "aws:///us-east-1a/" + m.id
					w.mu.Lock()
					w.nodes[n.UID].provided, w.nodes[n.UID].since = true, time.Now()
					w.mu.Unlock()
				}
			})
		})
	case doSecondNode:
		other, second := strings.CutSuffix(name, "-b")
		if !second {
			other = name + "-b"
		}
		w.mu.Lock()
		m.node = other
		w.mu.Unlock()
		w.after(silence, func() {
			if w.now(m).node == other { // nobody speaks for the old one any more
				w.notReady(m, name)
			}
		})
		if !w.editNode(other, func(n *corev1.Node) { ready(n, m.id, before.boot) }) {
			w.register(m, other, true)
		}
		w.startPod(m)
		w.cleanUp(other)
	}
}

func (w *world) registerOnce(m *machine, name string, provided bool) {
	var n corev1.Node
	if !w.api.node(name, &n) {
		w.register(m, name, provided)
	}
}

// editNode changes a Node as somebody else than the program does.
func (w *world) editNode(name string, change func(n *corev1.Node)) bool {
	return w.api.edit("nodes", "", name, func(u *unstructured.Unstructured) {
		n := asNode(u)
		change(n)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(n)
		w.must(err)
		u.Object = object
	})
}

func asNode(u *unstructured.Unstructured) *corev1.Node {
	n := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, n); err != nil {
		panic(err)
	}
	return n
}

// Pods, their owners and the scheduler.

// ownerOf is whose pod it is: its name begins with the owner's.
func (w *world) ownerOf(u *unstructured.Unstructured) owner {
	var k int
	if _, err := fmt.Sscanf(u.GetName(), "app%d-", &k); err != nil {
		return owner{}
	}
	return w.h.owners[k]
}

// podsOf are the pods of a node, or all. The API server's mu is held.
func (w *world) podsOf(node string) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for key, u := range w.api.objects {
		if strings.HasPrefix(key, "pods/") && (node == "" || nodeNameOf(u) == node) {
			found = append(found, u)
		}
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return found
}

func nodeNameOf(u *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
	return name
}

// budget refuses evictions. The API server's mu is held, as in all that follow.
func (w *world) budget(pod *unstructured.Unstructured) *metav1.Status {
	o := w.ownerOf(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := string(pod.GetUID())
	since, asked := w.first[uid]
	if !asked {
		since = time.Now()
		w.first[uid] = since
	}
	if o.budget == 0 || w.willing || o.budget > 0 && time.Since(since) >= o.budget {
		return nil
	}
	w.refused[uid] = true
	refusal := failure(http.StatusTooManyRequests, "", "Cannot evict pod as it would violate the pod's disruption budget.")
	refusal.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}}
	return refusal
}

// stopPod is what a kubelet does with a pod that has to stop.
func (w *world) stopPod(pod *unstructured.Unstructured, grace time.Duration) {
	w.removePod(pod, min(grace, w.ownerOf(pod).stops))
}

// removePod lets a pod go after a while, if its kubelet is there then and no
// finalizer holds it.
func (w *world) removePod(pod *unstructured.Unstructured, after time.Duration) {
	w.after(after, func() {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		w.mu.Lock()
		up := slices.ContainsFunc(w.machines, func(m *machine) bool { return m.up && m.node == nodeNameOf(pod) })
		held := len(pod.GetFinalizers()) > 0 && !w.willing
		w.mu.Unlock()
		if up && !held {
			w.dropPod(pod)
		}
	})
}

func (w *world) dropPod(pod *unstructured.Unstructured) {
	key := "pods/" + pod.GetNamespace() + "/" + pod.GetName()
	if now, ok := w.api.objects[key]; ok && now.GetUID() == pod.GetUID() {
		w.api.drop(key, "pods")
	}
}

// watched sees every change of the cluster.
func (w *world) watched(e watchEvent) {
	switch e.resource {
	case "nodes":
		w.watchedNode(e)
	case "pods":
	default:
		return
	}
	w.mu.Lock()
	kick := !w.kicked
	w.kicked = true
	w.mu.Unlock()
	if kick {
		w.after(placeIn, func() { w.place(false) })
	}
}

func (w *world) watchedNode(e watchEvent) {
	n := asNode(e.object)
	w.mu.Lock()
	r := w.nodes[n.UID]
	if r != nil && e.kind == "DELETED" {
		r.deleted = time.Now()
	}
	if r != nil {
		now := cluster.Ready(n) && e.kind != "DELETED"
		if now && !r.ready {
			r.readySince = time.Now()
		}
		if !now && r.ready {
			r.unreadySince = time.Now()
		}
		r.ready = now
		if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; !excluded {
			r.excluded = time.Time{}
		} else if r.excluded.IsZero() {
			r.excluded, r.wasTarget = time.Now(), now
		}
	}
	w.mu.Unlock()
	if e.kind == "DELETED" {
		w.after(orphansGoIn, func() {
			w.api.mu.Lock()
			defer w.api.mu.Unlock()
			if _, there := w.api.objects["nodes/"+n.Name]; there {
				return
			}
			for _, u := range w.podsOf(n.Name) {
				w.dropPod(u)
			}
		})
	}
	if hasTaint(n, corev1.TaintNodeOutOfService) {
		w.after(time.Second, func() {
			w.api.mu.Lock()
			defer w.api.mu.Unlock()
			for _, u := range w.podsOf(n.Name) {
				if !w.ownerOf(u).tolerates {
					w.dropPod(u)
				}
			}
		})
	}
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// place makes the pods that their owners lack, where there is a node for them.
func (w *world) place(begin bool) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.mu.Lock()
	w.kicked = false
	w.mu.Unlock()
	var nodes []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(w.api.objects)) {
		if strings.HasPrefix(name, "nodes/") {
			nodes = append(nodes, asNode(w.api.objects[name]))
		}
	}
	load := map[string]int{}
	have := map[string]map[string]int{} // pods of an owner that are not on their way out, by node
	taken := map[string]bool{}
	for _, u := range w.podsOf("") {
		name, _, _ := strings.Cut(u.GetName(), "-")
		taken[u.GetName()] = true
		load[nodeNameOf(u)]++
		if u.GetDeletionTimestamp() == nil {
			if have[name] == nil {
				have[name] = map[string]int{}
			}
			have[name][nodeNameOf(u)]++
		}
	}
	for k, o := range w.h.owners {
		name := ownerName(k)
		fits := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
			return !cluster.Ready(n) || !o.tolerates && (n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
			}))
		})
		if o.kind == "DaemonSet" {
			for _, n := range fits {
				if have[name][n.Name] == 0 {
					w.newPod(k, w.podName(name), n.Name)
				}
			}
			continue
		}
		if o.kind == "" && !begin || len(fits) == 0 {
			continue
		}
		all := 0
		for _, n := range have[name] {
			all += n
		}
		for j := range o.replicas {
			pod := fmt.Sprintf("%s-%d", name, j)
			switch {
			case o.kind == "StatefulSet" && taken[pod]:
				continue
			case o.kind != "StatefulSet" && all >= o.replicas:
				continue
			case o.kind != "StatefulSet":
				pod = w.podName(name)
			}
			all++
			best := slices.MinFunc(fits, func(a, b *corev1.Node) int {
				if o.tolerates && a.Spec.Unschedulable != b.Spec.Unschedulable { // where there is the most room
					if a.Spec.Unschedulable {
						return -1
					}
					return 1
				}
				return load[a.Name] - load[b.Name]
			})
			load[best.Name]++
			w.newPod(k, pod, best.Name)
		}
	}
}

// rollOut stops the pods of all owners that make them anew.
func (w *world) rollOut() {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	for _, u := range w.podsOf("") {
		if o := w.ownerOf(u); u.GetDeletionTimestamp() == nil && (o.kind == "ReplicaSet" || o.kind == "StatefulSet") && !o.finalizer {
			u = u.DeepCopy()
			u.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Add(o.grace))))
			w.api.store("pods", u)
			w.removePod(u, 0)
		}
	}
}

func (w *world) podName(owner string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names++
	return fmt.Sprintf("%s-x%d", owner, w.names)
}

func (w *world) newPod(k int, name, node string) {
	o := w.h.owners[k]
	seconds := int64(o.grace / time.Second)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &seconds},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if o.kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: o.kind, Name: ownerName(k), UID: types.UID("uid-of-" + ownerName(k)), Controller: new(true)}}
	}
	if o.tolerates {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if o.finalizer {
		pod.Finalizers = []string{"team/backup"}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	w.must(err)
	w.api.store("pods", &unstructured.Unstructured{Object: object})
}

// Notices.

// ec2Event is a body in EventBridge's envelope, but for its id and time.
func ec2Event(kind, id string, detail map[string]any) map[string]any {
	all := map[string]any{"instance-id": id}
	maps.Copy(all, detail)
	return map[string]any{"version": "0", "detail-type": kind, "source": "aws.ec2", "account": account, "region": "us-east-1", "resources": []string{"arn:aws:ec2:us-east-1:" + account + ":instance/" + id}, "detail": all}
}

// send puts a notice into the queue, late by some time. p says what it is to the world.
func (w *world) send(m *machine, kind string, event map[string]any, p *post, late time.Duration) {
	now := time.Now()
	w.mu.Lock()
	w.names++
	event["id"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", w.names)
	event["time"] = now.UTC().Format(time.RFC3339)
	p.m, p.kind, p.life, p.at, p.visible, p.step = m, kind, m.life, now, now.Add(late), w.step
	if p.event != "" && w.h.options.bothModes {
		p.earliest = now
	}
	if p.event != "" && w.h.options.polls {
		p.earliest = now
		if p.lost = kind == "change" && w.h.options.losesNews && p.first && w.names%2 == 0; p.lost {
			p.visible = now.Add(3 * sweepEach)
		}
	}
	if (kind == "spot" || kind == "rebalance") && w.h.options.bothModes {
		p.earliest = now
		if p.lost = w.h.options.losesSpot && m.up && w.names%2 == 0; p.lost {
			p.visible = now.Add(heard / 2)
		}
	}
	w.posts = append(w.posts, p)
	w.mu.Unlock()
	if p.lost {
		return
	}
	body, err := json.Marshal(event)
	w.must(err)
	w.after(late, func() {
		_, err := w.aws.SendMessage(queueName, string(body))
		w.must(err)
	})
}

// lifeBlock is the Capacity Reservation of the machines in the block.
const lifeBlock = "cr-0000000000000b10c"

func (w *world) reservationOf(m *machine) string {
	if m.k < w.h.options.block {
		return lifeBlock
	}
	return ""
}

// isSpot reports whether EC2 interrupts a machine.
func (w *world) isSpot(m *machine) bool { return w.reservationOf(m) == "" }

// expire tells that the Capacity Block ends in 40 minutes, and ends what runs in it in ten.
func (w *world) expire(s step) {
	now := time.Now().Truncate(time.Second)
	deadline := now.Add(10 * time.Minute)
	event := map[string]any{
		"version": "0", "detail-type": "Capacity Block Expiration Warning", "source": "aws.ec2", "account": account, "region": "us-east-1",
		"resources": []string{"arn:aws:ec2:us-east-1:" + account + ":capacity-reservation/" + lifeBlock},
		"detail":    map[string]any{"capacity-reservation-id": lifeBlock, "end-date": now.Add(40 * time.Minute).UTC().Format(time.RFC3339)},
	}
	members := w.machines[:w.h.options.block]
	if len(members) == 0 {
		return
	}
	first := &post{deadline: deadline}
	w.send(members[0], "block", event, first, s.late)
	posts := []*post{first}
	w.mu.Lock()
	for _, m := range members[1:] {
		p := *first
		p.m, p.life = m, m.life
		posts = append(posts, &p)
	}
	w.posts = append(w.posts, posts[1:]...)
	w.mu.Unlock()
	w.after(time.Until(deadline), func() {
		for _, p := range posts {
			if now := w.now(p.m); now.state != "running" {
				continue
			}
			w.goes(p)
			w.must(w.aws.SetInstanceState(p.m.id, "shutting-down"))
		}
	})
}

func (w *world) spot(m *machine, s step) {
	p := &post{deadline: time.Now().Add(2 * time.Minute)}
	if s.text == "hibernate" {
		p.deadline = time.Now()
	}
	life := w.now(m).life
	if s.what == doReserved {
		s.text = "terminate"
		w.send(m, "reservation", ec2Event("EC2 Capacity Reservation Instance Interruption Warning", m.id, map[string]any{
			"instance-action": s.text, "instance-termination-time": p.deadline.UTC().Format(time.RFC3339),
		}), p, s.late)
	} else {
		w.send(m, "spot", ec2Event("EC2 Spot Instance Interruption Warning", m.id, map[string]any{"instance-action": s.text}), p, s.late)
		w.tellSpot(m, s.text, p.deadline)
	}
	w.after(time.Until(p.deadline), func() {
		w.mu.Lock()
		goes := m.life == life && m.state == "running"
		w.mu.Unlock()
		if goes {
			w.goes(p)
		}
		switch {
		case !goes:
		case s.text == "terminate":
			w.must(w.aws.SetInstanceState(m.id, "shutting-down"))
		default:
			w.stopMachine(m, s.text == "hibernate")
		}
	})
}

// maintain tells of a scheduled change, the last of its machine.
func (w *world) maintain(m *machine, s step) {
	w.mu.Lock()
	var last *post
	for _, p := range w.posts {
		if p.m == m && p.event != "" && (last == nil || p.at.After(last.at) || p.at.Equal(last.at)) {
			last = p
		}
	}
	p := &post{text: s.text}
	switch s.what {
	case doAnnounce:
		m.changes++
		p.change, p.deadline = fmt.Sprintf("arn:aws:health:us-east-1::event/EC2/AWS_EC2_MAINTENANCE/%s-%d", m.id, m.changes), time.Now().Add(s.d)
		p.event, p.first = fmt.Sprintf("instance-event-%017x", 0x1000*m.k+m.changes), true
	case doPutOff:
		p.deadline = time.Now().Add(s.d)
	}
	if s.what != doAnnounce {
		if last == nil || last.over {
			w.mu.Unlock()
			return
		}
		p.change, p.text, p.event = last.change, last.text, last.event
		if s.what == doRepeat {
			p.deadline = last.deadline
		}
		p.over = s.what == doResolve || s.what == doClose
	}
	if !p.deadline.IsZero() {
		p.deadline = p.deadline.Truncate(time.Second)
	}
	w.mu.Unlock()
	switch {
	case s.what == doAnnounce || s.what == doPutOff:
		w.list(m, p.event, strings.Fields(p.text)[0], p.deadline)
	case p.over:
		w.list(m, p.event, "[Canceled] ", time.Time{})
	}
	kind, stranger, _ := strings.Cut(p.text, " ")
	code := map[string]string{"stop": "AWS_EC2_INSTANCE_STOP_SCHEDULED", "reboot": "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"}[kind]
	start := p.deadline
	if p.over {
		start = last.deadline
	}
	entity := map[string]any{"entityValue": m.id, "status": "PENDING"}
	entities := []any{entity}
	if stranger != "" {
		entities = append(entities, map[string]any{"entityValue": strangerID, "status": "PENDING"})
	}
	detail := map[string]any{
		"eventArn": p.change, "service": "EC2", "eventTypeCode": code, "eventTypeCategory": "scheduledChange", "eventScopeCode": "ACCOUNT_SPECIFIC",
		"eventRegion": "us-east-1", "affectedAccount": account, "statusCode": "upcoming", "startTime": start.UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT"),
		"affectedEntities": entities,
	}
	switch s.what {
	case doResolve:
		entity["status"] = "RESOLVED"
	case doClose:
		detail["statusCode"] = "closed"
	}
	event := map[string]any{
		"version": "0", "detail-type": "AWS Health Event", "source": "aws.health", "account": account, "region": "us-east-1",
		"resources": []string{m.id}, "detail": detail,
	}
	w.send(m, "change", event, p, s.late)
	if w.h.options.changesHappen && !p.over && s.what != doRepeat {
		w.after(time.Until(p.deadline), func() { w.happens(p) })
	}
	if p.over {
		w.mayServeAgain(m, "its scheduled change was called off", p)
	}
}

// list makes EC2 list a scheduled event, with another time, or as over.
func (w *world) list(m *machine, id, what string, notBefore time.Time) {
	w.mu.Lock()
	at := slices.IndexFunc(m.events, func(e awssim.ScheduledEvent) bool { return e.ID == id })
	switch {
	case notBefore.IsZero() && at >= 0:
		m.events[at].Description = what + m.events[at].Description
	case at >= 0:
		m.events[at].NotBefore = notBefore
	case !notBefore.IsZero():
		m.events = append(m.events, awssim.ScheduledEvent{
			ID: id, Code: map[string]string{"stop": "instance-stop", "reboot": "system-reboot"}[what], Description: "maintenance", NotBefore: notBefore,
		})
	}
	at = slices.IndexFunc(m.events, func(e awssim.ScheduledEvent) bool { return e.ID == id })
	var told awssim.ScheduledEvent
	if at >= 0 {
		told = m.events[at]
	}
	w.mu.Unlock()
	w.setStatus(m)
	if at >= 0 {
		w.tellScheduled(m, id, told.Code, told.NotBefore, notBefore.IsZero())
	}
}

// setStatus makes EC2 say of a machine what is so.
func (w *world) setStatus(m *machine) {
	now := w.now(m)
	check := awssim.StatusCheck{}
	if !now.impaired.IsZero() {
		check = awssim.StatusCheck{Status: "impaired", ImpairedSince: now.impaired}
	}
	_ = w.aws.SetInstanceStatus(m.id, slices.Clone(now.events), check, awssim.StatusCheck{}) // EC2 may have forgotten it by now
}

// impair makes the status checks of a machine fail, unless those of another do: one brings no alarm.
func (w *world) impair(m *machine, d time.Duration) {
	const found = 2*time.Minute + 2*sweepEach // until the program acts, and an answer to its poll
	w.mu.Lock()
	if slices.ContainsFunc(w.machines, func(o *machine) bool { return !o.impaired.IsZero() }) {
		w.mu.Unlock()
		return
	}
	now, life := time.Now(), m.life
	m.impaired = now
	p := post{m: m, kind: "impaired", life: life, at: now, visible: now.Add(found), earliest: now.Add(2 * time.Minute), change: fmt.Sprint("impaired-", now.Unix()), step: w.step}
	w.posts = append(w.posts, new(p))
	w.mu.Unlock()
	w.setStatus(m)
	w.after(d, func() {
		w.mu.Lock()
		same := m.life == life && m.impaired.Equal(now)
		if same {
			m.impaired = time.Time{}
			p.at, p.visible, p.earliest, p.over = time.Now(), time.Now().Add(2*sweepEach), time.Time{}, true
			w.posts = append(w.posts, &p)
		}
		w.mu.Unlock()
		if same {
			w.setStatus(m)
			w.mayServeAgain(m, "its status checks pass", &p)
		}
	})
}

// delist is what EC2 does with the events of an instance that starts on another host.
func (w *world) delist(m *machine) {
	w.mu.Lock()
	m.events, m.impaired = nil, time.Time{}
	w.mu.Unlock()
	w.setStatus(m)
}

// pollWatch notes what a poll hands over.
type pollWatch struct {
	Unannounced
	w *world
}

func (p pollWatch) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	p.w.mu.Lock()
	p.w.polled[n.Change] = append(p.w.polled[n.Change], time.Now())
	p.w.mu.Unlock()
	return p.Controller.HandleNotice(ctx, n, acts)
}

// forge sends what no service of AWS sends, or not about this machine.
func (w *world) forge(m *machine, what string, late time.Duration) {
	p := &post{forged: true, text: what}
	state := func(s string) map[string]any {
		return ec2Event("EC2 Instance State-change Notification", m.id, map[string]any{"state": s})
	}
	hook := func(transition, group, token string) map[string]any {
		name := map[string]string{"terminate": "drain", "launch": "ready"}[transition]
		return map[string]any{
			"version": "0", "detail-type": "EC2 Instance-" + transition + " Lifecycle Action", "source": "aws.autoscaling", "account": account, "region": "us-east-1",
			"detail": map[string]any{
				"LifecycleActionToken": token, "AutoScalingGroupName": group, "LifecycleHookName": name, "EC2InstanceId": m.id,
				"LifecycleTransition": "autoscaling:EC2_INSTANCE_" + map[string]string{"terminate": "TERMINATING", "launch": "LAUNCHING"}[transition],
			},
		}
	}
	const token = "87654321-4321-4321-4321-210987654321"
	var event map[string]any
	switch what {
	case "stopped", "terminated":
		event = state(what)
	case "stopping":
		event = state(what)
		p.deadline = time.Now().Add(gracePeriod) // nobody can tell it from a true one
	case "spot":
		event = ec2Event("EC2 Spot Instance Interruption Warning", m.id, map[string]any{"instance-action": "terminate"})
		if w.isSpot(m) || !w.h.options.tagCheck { // else nobody believes it: EC2 is asked anyway
			p.deadline = time.Now().Add(2 * time.Minute)
		}
	case "unknown id":
		event = ec2Event("EC2 Spot Instance Interruption Warning", strangerID, map[string]any{"instance-action": "terminate"})
	case "other account":
		event = ec2Event("EC2 Spot Instance Interruption Warning", m.id, map[string]any{"instance-action": "terminate"})
		event["account"] = "999999999999"
	case "hook with no token":
		event = hook("terminate", "workers", "no-token-at-all")
		p.deadline = time.Now().Add(w.hookTime())
	case "hook of no group":
		event = hook("terminate", "strangers", token)
		p.deadline = time.Now().Add(gracePeriod)
	case "launch of a token":
		event = hook("launch", "workers", token)
	case "no event":
		event = map[string]any{"detail-type": []string{"EC2 Spot"}}
	}
	w.send(m, "forged "+what, event, p, late)
}

// hookTime is how long a termination hook gives a drain.
func (w *world) hookTime() time.Duration {
	open := w.h.options.hookTimeout
	if w.h.options.heartbeats {
		open = max(open, time.Hour)
	}
	return open
}

// deliver is the mail: it takes notice of what AWS tells, and says when it comes.
// The lock of the simulator is held.
func (w *world) deliver(body string) []time.Duration {
	var e struct {
		DetailType string `json:"detail-type"`
		Detail     struct {
			ID    string `json:"instance-id"`
			State string `json:"state"`

			LifecycleActionToken, LifecycleHookName, LifecycleTransition string
			Origin, Destination                                          string
			EC2InstanceID                                                string `json:"EC2InstanceId"`
		}
	}
	if json.Unmarshal([]byte(body), &e) != nil {
		return []time.Duration{0}
	}
	at := slices.IndexFunc(w.machines, func(m *machine) bool { return m.id == e.Detail.ID || m.id == e.Detail.EC2InstanceID })
	if at < 0 {
		return []time.Duration{0}
	}
	m := w.machines[at]
	if e.Detail.State != "" {
		w.changedState(m, e.Detail.State)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	p := &post{m: m, life: m.life, at: now, visible: now.Add(m.mail), step: w.step, text: e.Detail.State}
	switch {
	case e.Detail.State == "stopping" || e.Detail.State == "shutting-down":
		p.kind, p.deadline = "stopping", now.Add(gracePeriod)
	case e.Detail.State != "":
		p.kind = "state"
	case e.Detail.LifecycleTransition == string(awssim.Terminating):
		p.kind, p.token, p.text, p.deadline = "hook", e.Detail.LifecycleActionToken, e.Detail.LifecycleHookName, now.Add(w.hookTime())
		if p.text == "others" {
			p.deadline = time.Time{}
		}
	default:
		p.kind, p.token, p.text = "launch", e.Detail.LifecycleActionToken, e.Detail.LifecycleHookName
	}
	w.posts = append(w.posts, p)
	if token := p.token; token != "" {
		w.after(0, func() { w.timesOut(token) })
	}
	p.earliest = p.visible
	if w.h.options.sweeps && p.kind == "hook" && p.text != "others" {
		p.earliest = now
		if w.names++; w.h.options.loses && w.names%2 == 0 {
			p.visible = now.Add(3 * sweepEach)
			p.lost = true
			return nil
		}
	}
	times := []time.Duration{m.mail}
	if m.mailTwice {
		times = append(times, m.mail+time.Minute)
	}
	return times
}

// timesOut has a lifecycle action end when it times out, whoever leads: time goes on in the simulator when
// somebody asks.
func (w *world) timesOut(token string) {
	actions := w.aws.LifecycleActions()
	if at := slices.IndexFunc(actions, func(a awssim.LifecycleAction) bool { return a.Token == token && a.Outcome == "" }); at >= 0 {
		w.after(time.Until(actions[at].Deadline), func() { w.timesOut(token) })
	}
}

// People.

func (w *world) person(m *machine, s step) {
	w.editNode(w.now(m).node, func(n *corev1.Node) {
		w.mu.Lock()
		defer w.mu.Unlock()
		r := w.nodes[n.UID]
		switch s.what {
		case doCordon:
			if !n.Spec.Unschedulable {
				n.Spec.Unschedulable = true
				by := person
				// A cordon that was away and came back while nobody looked is the same one.
				if !r.uncordoned.IsZero() && w.calm(r.uncordoned, time.Now()) < time.Second {
					by = "somebody"
				}
				r.cordon(by)
			}
		case doUncordon:
			if n.Spec.Unschedulable {
				n.Spec.Unschedulable, r.uncordoned = false, time.Now()
				r.midDrain = n.Labels[cluster.StateLabel] == cluster.StateDraining || isEnd(n.Labels[cluster.StateLabel])
				r.cordon("")
			}
		case doTaint:
			if !hasTaint(n, s.text) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: s.text, Value: "team", Effect: corev1.TaintEffectNoSchedule})
				delete(r.ourTaints, s.text)
			}
		case doLabel:
			if _, there := n.Labels[s.text]; !there {
				n.Labels[s.text] = "team"
			}
		}
	})
}

// Faults and leaders.

// A trouble is a time in which something failed.
type trouble struct {
	what     string
	from, to time.Time
}

func (w *world) fault(s step) {
	now := time.Now()
	f := awssim.Fault{ID: fmt.Sprintf("%s at %s", s.text, s.at), Service: "ec2"}
	if strings.HasPrefix(s.text, "Auto") {
		f.Service = "autoscaling"
	}
	switch {
	case strings.HasPrefix(s.text, "API"):
		harm := awssim.Fault{Latency: 3 * time.Second}
		if strings.HasSuffix(s.text, "down") {
			harm = awssim.Fault{Reset: true}
		}
		w.api.mu.Lock()
		w.api.faults = append(w.api.faults, &apiFault{Fault: harm, from: now, to: now.Add(s.d)})
		w.api.mu.Unlock()
	case strings.HasSuffix(s.text, "throttled"):
		f.Rate = 1e-9
	case strings.HasSuffix(s.text, "denied"):
		f.Status, f.Code = http.StatusForbidden, "AccessDenied"
		if f.Service == "ec2" {
			f.Code = "UnauthorizedOperation"
		}
	case strings.HasSuffix(s.text, "down"):
		f.Reset = true
	}
	if !strings.HasPrefix(s.text, "API") {
		w.must(w.aws.SetFault(f))
		time.AfterFunc(s.d, func() { w.aws.RemoveFault(f.ID) })
	}
	w.mu.Lock()
	w.broken[f.ID]++
	w.troubles = append(w.troubles, trouble{s.text, now, now.Add(s.d)})
	w.mu.Unlock()
	w.noteHealth()
	w.after(s.d, func() {
		w.mu.Lock()
		delete(w.broken, f.ID)
		w.mu.Unlock()
		w.noteHealth()
	})
}

// healthChange is when the program began to be able to do its work, or was no more.
type healthChange struct {
	at time.Time
	ok bool
}

func (w *world) noteHealth() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health = append(w.health, healthChange{time.Now(), w.leads && len(w.broken) == 0})
}

// calm is for how long between two moments there was a leader, and nothing failed.
// w.mu is held.
func (w *world) calm(from, to time.Time) (d time.Duration) {
	for k, c := range w.health {
		end := to
		if k+1 < len(w.health) && w.health[k+1].at.Before(to) {
			end = w.health[k+1].at
		}
		if begin := later(c.at, from); c.ok && begin.Before(end) {
			d += end.Sub(begin)
		}
	}
	return d
}

// A lifeReplica is the program while it leads.
type lifeReplica struct {
	cut    atomic.Bool // from everything, as a killed one
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	c      *Controller
	s      *queue.Server
}

func (r *lifeReplica) end() {
	r.cancel(errors.New("this replica ends"))
	r.all.Wait()
}

// A lifeProcess is what outlives a term of the program, where one process leads again: what it knows of the nodes.
type lifeProcess struct {
	cut    atomic.Bool // from everything, as a killed one
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	gate   *pace.Gate
	nodes  *cluster.Cluster
}

func (p *lifeProcess) end() {
	p.cancel(errors.New("this process ends"))
	p.all.Wait()
}

func (w *world) startProcess() *lifeProcess {
	ctx, cancel := context.WithCancelCause(klog.NewContext(w.Context(), w.log))
	p := &lifeProcess{cancel: cancel, gate: pace.NewGate(64, 64)}
	nodes, err := cluster.New(w.client(&p.cut), p.gate, w.aws.QueueURL(queueName), w.marks())
	w.must(err)
	p.nodes = nodes
	p.all.Go(func() { nodes.Run(ctx) })
	return p
}

// client asks the API server until cut.
func (w *world) client(cut *atomic.Bool) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://kubernetes.invalid", Transport: between{w, cut, w.api}, QPS: 500, Burst: 1000,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	})
	w.must(err)
	return client
}

func (w *world) changeLeader(after time.Duration, killed bool) {
	w.leading <- struct{}{}
	defer func() { <-w.leading }()
	w.mu.Lock()
	w.leads = false
	if killed {
		w.killed = append(w.killed, time.Now())
	}
	w.leaders = append(w.leaders, time.Now())
	w.mu.Unlock()
	w.noteHealth()
	if w.replica != nil {
		ends := killed || !w.h.options.oneProcess
		w.replica.cut.Store(killed)
		w.process.cut.Store(killed)
		w.replica.end()
		w.replica = nil
		if ends {
			w.process.end()
			w.process = nil
		}
	}
	if w.wait(after) {
		w.startLeader()
	}
}

func (w *world) lead(time.Duration) {
	w.leading <- struct{}{}
	defer func() { <-w.leading }()
	w.startLeader()
}

var errCut = errors.New("the replica is dead")

// between is a transport of a replica.
type between struct {
	w    *world
	cut  *atomic.Bool // of the replica
	next http.RoundTripper
}

func (b between) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.cut.Load() || !b.w.request(req.Method+" "+req.URL.Path+" "+req.Header.Get("X-Amz-Target")) {
		return nil, errCut
	}
	done := b.w.sees(req)
	response, err := b.next.RoundTrip(req)
	if b.cut.Load() {
		return nil, errCut
	}
	if done != nil && err == nil && response.StatusCode == http.StatusOK {
		done()
	}
	return response, err
}

// request counts the requests; it returns false when there were too many.
func (w *world) request(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now().Truncate(time.Second); !now.Equal(w.second) {
		w.second, w.requests = now, 0
	}
	w.requests++
	if w.requests < mostPerSecond && !w.stuck.Load() {
		return true
	}
	w.violate(noHotLoop, "%d requests in one second, the last is %s (and too long a real time: %t)", w.requests, what, w.stuck.Load())
	w.stop()
	return false
}

// marks are what a cordon puts on a node beside.
func (w *world) marks() cluster.CordonOptions {
	if !w.h.options.marks {
		return cluster.CordonOptions{}
	}
	return cluster.CordonOptions{TaintEffect: corev1.TaintEffectNoSchedule, ExcludeFromLoadBalancers: decision.Policy{}.Excludes}
}

func (w *world) startLeader() {
	ctx, cancel := context.WithCancelCause(w.Context())
	ctx = klog.NewContext(ctx, w.log)
	r := &lifeReplica{cancel: cancel}
	w.mu.Lock()
	w.began = append(w.began, time.Now())
	w.mu.Unlock()
	config := w.aws.Config()
	config.HTTPClient = &http.Client{Transport: between{w, &r.cut, w.aws.Transport()}}
	client := w.client(&r.cut)
	if w.process == nil {
		w.process = w.startProcess()
	}
	o, gate, nodes, metrics := w.h.options, w.process.gate, w.process.nodes, telemetry.New()
	volumes, err := drain.NewVolumes(client)
	w.must(err)
	cfg := Config{Instances: instance.NewDirectory(ec2.NewFromConfig(config).DescribeInstances), OutOfServiceTaint: o.outOfService, Config: nodedrain.Config{
		Cluster: nodes,
		Hooks:   &asg.Hooks{Client: asg.Of(autoscaling.NewFromConfig(config)), Log: w.log, Metrics: metrics},
		Drainer: &drain.Drainer{
			Client: client, Filter: drain.Filter{IgnoreDaemonSets: true}, Grace: -1, Gate: gate, Volumes: volumes,
		},
		Observer: metrics, Log: w.log,
		Policy:          decision.Policy{DeleteForeign: o.deleteForeign, NodeGracePeriod: gracePeriod, Accounts: []string{account}, Region: "us-east-1"},
		CompletionDelay: o.completionDelay, Workers: o.workers,
	}}
	if len(w.h.policies) > 0 {
		cfg.PolicyFile, cfg.Replacements = w.file, lifeGroup{w}
	}
	if o.bothModes {
		cfg.Lease = theLease
	}
	if o.deregistration > 0 {
		cfg.LoadBalancers = w
	}
	if o.tagCheck {
		cfg.ManagedTag = "managed"
	}
	if o.heartbeats {
		cfg.HeartbeatUntil = time.Hour
		cfg.Hooks = &asg.Hooks{Client: asg.Of(autoscaling.NewFromConfig(config)), HeartbeatInterval: time.Minute, HeartbeatUntil: time.Hour, Log: w.log, Metrics: metrics}
	}
	if o.othersHook {
		cfg.HookNames = []string{"drain", "ready"}
	}
	if o.maxUnready > 0 {
		cfg.MaxUnready = intstr.FromInt32(int32(o.maxUnready))
	}
	c := New(cfg)
	if o.sweeps {
		swept := &sweep.Sweep{Groups: cfg.Hooks.(*asg.Hooks), Handler: c.Unannounced(), HookNames: cfg.HookNames, Interval: sweepEach, Log: w.log, Metrics: metrics}
		r.all.Go(func() {
			if nodes.WaitForSync(ctx) == nil {
				swept.Run(ctx)
			}
		})
	}
	if o.polls {
		poll := &status.Poll{
			Source: &instance.Statuses{Client: ec2.NewFromConfig(config).DescribeInstanceStatus}, Handler: pollWatch{c.Unannounced(), w}, Interval: sweepEach, DrainImpaired: o.drainsImpaired, Log: w.log, Metrics: metrics,
		}
		r.all.Go(func() {
			if nodes.WaitForSync(ctx) == nil {
				poll.Run(ctx)
			}
		})
	}
	s := &queue.Server{Client: sqs.NewFromConfig(config), URL: w.aws.QueueURL(queueName), Handler: c, Log: w.log, Metrics: metrics}
	r.c, r.s = c, s
	w.replica = r
	r.all.Go(func() { volumes.Run(ctx) })
	r.all.Go(func() {
		if nodes.WaitForSync(ctx) != nil {
			return
		}
		r.all.Go(func() {
			select {
			case <-c.Registry.Resumed():
				if err := s.Check(ctx); err != nil && ctx.Err() == nil {
					w.log.Error(err, "check the queue")
				}
				_ = s.Serve(ctx) // what it did not settle comes back
			case <-ctx.Done():
			}
		})
		if err := c.Run(ctx); ctx.Err() == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.violate(noHotLoop, "the program has ended: %v", err)
		}
	})
	w.mu.Lock()
	w.leads = true
	w.mu.Unlock()
	w.noteHealth()
}
