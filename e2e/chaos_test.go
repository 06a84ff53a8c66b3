package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

var everyCall = flag.Bool("chaos", false, "kill the leader before and after the calls of the play, not at some alone")

// spread are the points of an ordinary run: each leaves the next leader another thing to find out. The first three are those
// of the gate.
var spread = []point{
	{call: "autoscaling CompleteLifecycleAction", nth: 1, after: true},
	{call: "sqs DeleteMessageBatch", nth: 2, after: true}, // the first asks at start whether it may
	{call: "patch nodes S-a", nth: 1},
	{call: "autoscaling CompleteLifecycleAction", nth: 1},
	{call: "sqs ReceiveMessage", nth: 2, after: true},
	{call: "sqs DeleteMessageBatch", nth: 2},
	{call: "patch nodes S-c", nth: 1, after: true},
	{call: "patch nodes S-e", nth: 2},
	{call: "create pods/eviction slow", nth: 1, after: true},
	{call: "create pods/eviction web-*", nth: 2, after: true},
}

// The leader is killed at one of its calls to AWS or to the API server, in a play
// that has most of what can happen to a node, and the other replica brings all of
// it to its end. With -chaos a first, undisturbed play tells which calls there are.
func TestTheLeaderMayBeKilledAtAnyOfItsCalls(t *testing.T) {
	t.Parallel()
	points := spread
	if testing.Short() {
		points = spread[:3]
	}
	if *everyCall {
		var undisturbed *play
		t.Run("recorded", func(t *testing.T) {
			t.Run("undisturbed", func(t *testing.T) {
				undisturbed = perform(t, nil)
			})
		})
		if t.Failed() {
			return
		}
		points = undisturbed.victim.points()
	}
	results := &table{}
	t.Cleanup(func() {
		report(t, "%s", results)
		if *everyCall && results.judgesTooFew() {
			t.Error("of more than a tenth of the plays the takeover was not judged")
		}
	})
	for _, p := range points {
		t.Run(p.String(), func(t *testing.T) {
			var pl *play
			t.Cleanup(func() { results.add(p, pl, t.Failed()) })
			pl = perform(t, &p)
			if !*everyCall && pl.victim.killed.IsZero() {
				t.Error("the leader made no such call")
			}
		})
	}
}

// report writes what -chaos is there to find out, and logs it in an ordinary run.
func report(t *testing.T, format string, args ...any) {
	t.Helper()
	if *everyCall {
		fmt.Fprintf(os.Stdout, format+"\n", args...)
		return
	}
	t.Logf(format, args...)
}

// A point is a moment to kill the leader at: a call, when it is made for the nth time.
type point struct {
	call  string // as named by callName
	nth   int
	after bool // just after it was served, else just before it arrives
}

func (p point) String() string {
	when := "before"
	if p.after {
		when = "after"
	}
	return fmt.Sprintf("%s %s %d", when, p.call, p.nth)
}

// generated is what ends the names of a Deployment's pods.
var generated = regexp.MustCompile(`-[a-z0-9]{6,10}-[a-z0-9]{5}$`)

// callName is what a call is called in every play alike.
func (s *scenario) callName(c proxy.Call) string {
	if c.Resource == "events" {
		c.Name = ""
	}
	c.Name = generated.ReplaceAllString(c.Name, "-*")
	if rest, ok := strings.CutPrefix(c.Name, s.name+"-"); ok {
		c.Name = "S-" + rest
	}
	return c.String()
}

// A victim is the replica that leads first. It counts its calls, and is killed
// at one of them if there is a point.
type victim struct {
	*handler
	at *point

	mu     sync.Mutex
	times  map[string]int // calls so far, by name
	target proxy.Call     // the one to be killed after
	killed time.Time
}

func (v *victim) hooks(h *handler) proxy.Hooks {
	v.handler = h
	return proxy.Hooks{
		Before: func(_ context.Context, c proxy.Call) proxy.Fault {
			return proxy.Fault{Reset: v.arrives(c)}
		},
		After: func(_ context.Context, c proxy.Call, _ int) {
			v.mu.Lock()
			defer v.mu.Unlock()
			if c == v.target {
				v.die()
			}
		},
	}
}

// arrives counts a call and reports whether the replica is dead, which it may be
// by this very call.
func (v *victim) arrives(c proxy.Call) (dead bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.killed.IsZero() {
		return true
	}
	name := v.s.callName(c)
	v.times[name]++
	if v.at == nil || name != v.at.call || v.times[name] != v.at.nth {
		return false
	}
	if v.at.after {
		v.target = c
		return false
	}
	v.die()
	return true
}

// die kills the replica. The caller holds mu.
func (v *victim) die() {
	v.killed = time.Now()
	v.kill()
}

// mostTimes is of how many times of a call the leader is killed at: the Lease is renewed each second.
const mostTimes = 8

// points are those before and after each call so far; of a call that is made more often than mostTimes, so many of its
// times, evenly spread.
func (v *victim) points() []point {
	v.mu.Lock()
	defer v.mu.Unlock()
	var points []point
	for _, call := range slices.Sorted(maps.Keys(v.times)) {
		times := v.times[call]
		for k := range min(times, mostTimes) {
			nth := 1 + k*times/min(times, mostTimes)
			points = append(points, point{call, nth, false}, point{call, nth, true})
		}
	}
	return points
}

// A play has a spot warning, a termination hook with heartbeats, scheduled changes
// of which one is called off, and budgets, for two replicas.
type play struct {
	*scenario
	spot, scaledIn, retired, retiredToo, calledOff, spare node

	before   map[types.UID]corev1.Pod
	token    string    // of the lifecycle action
	sent     time.Time // the notices
	deadline time.Time
	victim   *victim
	away     bool          // the control plane was: its record has gaps, and it served requests that it did not answer
	pulse    *pulse        // since the notices, or since the control plane is back
	takeover time.Duration // from the kill to the other replica's first receive; zero without one
	calm     bool          // the takeover was judged by takenOverCalm
	unjudged bool          // it took too long, and so did the control plane, or this machine
}

// perform plays it to its end and checks that nothing was lost or done twice.
func perform(t *testing.T, at *point) *play {
	s := newScenario(t)
	p := &play{scenario: s, victim: &victim{at: at, times: map[string]int{}}}
	p.setUp()
	// A poll of EC2 is a call of some plays only, because it comes after a minute.
	args := []string{"--heartbeat-interval=30", "--taint-node", "--exclude-from-load-balancers", "--status-interval=-1"}
	pulse := s.feel()
	s.launchBehind(p.victim.hooks, args...)
	s.eventually("the first replica leads", func() bool { return p.victim.leads() || p.victim.isExited() })
	received := make(chan time.Time, 1)
	s.launchBehind(firstReceive(received), args...).awaitReady()
	ready := time.Now()
	p.pulse = s.feel()
	about := p.notices()
	for message := range about {
		s.awaitDeleted(soon, message)
	}
	// A heartbeat that should not be would come within the third of the hook's timeout, or the interval.
	after := time.NewTimer(time.Until(p.action(p.token).Ended.Add(min(hookTimeout/3, 30*time.Second) + time.Second)))
	defer after.Stop()
	<-after.C
	select {
	case first := <-received:
		from := later(p.victim.killed, ready)
		p.takeover = first.Sub(from)
		slowest := pulse.slowest(from.Add(-leasePeriod), first)
		most := takenOver
		if p.calm = slowest <= calm && pulse.longestLease(from.Add(-leasePeriod), first) <= shortestLease; p.calm {
			most = takenOverCalm
		}
		switch {
		case p.takeover <= most:
		case slowest > healthy && p.takeover <= 10*most:
			p.unjudged = true
			unjudged.Add(1)
			t.Logf("not judged: the takeover took %s, and the control plane, or this machine, %s to read a Lease", p.takeover, slowest)
		default:
			p.Errorf("the other replica received its first message %s after the kill, want %s at most; to read a Lease took %s", p.takeover, most, slowest)
		}
	default:
	}
	p.nothingIsLost(about)
	return p
}

// firstReceive tells when a replica receives for the first time, which is when it
// leads and has the works of nodes under way that the leader before it has left.
func firstReceive(received chan<- time.Time) func(*handler) proxy.Hooks {
	return func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
			if c.Action == "ReceiveMessage" {
				select {
				case received <- time.Now():
				default:
				}
			}
			return proxy.Fault{}
		}}
	}
}

const (
	// hookTimeout is that of the hook of a play. It outlives a failover on a slow machine.
	hookTimeout = 2 * time.Minute
	// takenOver is the time within which docs/reliability.md promises another replica after a crash, where each answer
	// takes no longer than healthy.
	takenOver = 20 * time.Second
	healthy   = 500 * time.Millisecond
	// takenOverCalm is the same where each answer takes no longer than calm, and the Lease lasts shortestLease: 16.1 s,
	// as internal/lease says, and the requests of the new leader.
	takenOverCalm = 17 * time.Second
	shortestLease = 13 // seconds
	calm          = 100 * time.Millisecond
	// leasePeriod is how long the answers count that a Lease lasts by.
	leasePeriod = 15 * time.Second
)

// A pulse is how long the control plane takes for the smallest of requests, and this machine to make it.
type pulse struct {
	s     *scenario
	mu    sync.Mutex
	beats []beat
	next  time.Time // when the beat is due that is under way, or waits
}

type beat struct {
	due   time.Time
	took  time.Duration
	lasts int32 // the Lease, in seconds; 0: there is none
}

// feel reads the scenario's Lease twice a second until the scenario ends.
func (s *scenario) feel() *pulse {
	p := &pulse{s: s, next: time.Now()}
	go func() {
		for due := p.next; retry.Sleep(s.ctx, time.Until(due)) == nil; due = p.next {
			b := beat{due: due}
			l, err := s.kube.CoordinationV1().Leases(s.name).Get(s.ctx, release.Name, metav1.GetOptions{})
			if err == nil && l.Spec.LeaseDurationSeconds != nil {
				b.lasts = *l.Spec.LeaseDurationSeconds
			}
			b.took = time.Since(due)
			p.mu.Lock()
			p.beats, p.next = append(p.beats, b), time.Now().Add(healthy)
			p.mu.Unlock()
		}
	}()
	return p
}

// slowest is the longest that one has taken which was due in this time. One that is under way counts: who asks may be
// the first that wakes up.
func (p *pulse) slowest(from, to time.Time) (slowest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.After(from) && p.next.Before(to) {
		slowest = time.Since(p.next)
	}
	for _, b := range p.beats {
		if b.due.After(from) && b.due.Before(to) {
			slowest = max(slowest, b.took)
		}
	}
	return slowest
}

// longestLease is the longest, in seconds, that the Lease has lasted of those that were read in this time.
func (p *pulse) longestLease(from, to time.Time) (longest int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.beats {
		if b.due.After(from) && b.due.Before(to) {
			longest = max(longest, b.lasts)
		}
	}
	return longest
}

// unjudged is how often nothing was said of a time, in all scenarios.
var unjudged atomic.Int64

// judge is Errorf for what is about seconds. It is no error if the control plane, or this machine, has stalled since feel.
func (p *pulse) judge(format string, args ...any) {
	p.s.Helper()
	said := fmt.Sprintf(format, args...)
	if took := p.slowest(time.Time{}, time.Now()); took > healthy {
		unjudged.Add(1)
		p.s.Logf("not judged: %s; the control plane, or this machine, took %s to read a Lease", said, took)
		return
	}
	p.s.Error(said)
}

// atMost judges that something took no longer than that. Ten times as long is an error on any machine.
func (p *pulse) atMost(took, most time.Duration, what string) {
	p.s.Helper()
	say := p.judge
	if took > 10*most {
		say = p.s.Errorf
	}
	if took > most {
		say("%s took %s, want %s at most", what, took, most)
	}
}

// before judges that something was before a deadline. A minute after it is an error on any machine.
func (p *pulse) before(at, deadline time.Time, format string, args ...any) {
	p.s.Helper()
	say, late := p.judge, at.Sub(deadline)
	if late > time.Minute {
		say = p.s.Errorf
	}
	if late >= 0 {
		say("%s %s after the deadline", fmt.Sprintf(format, args...), late)
	}
}

// endsWithin is how soon a drain is to end after the last that it has waited for: later where requests are slow, of which
// it makes several.
func (p *pulse) endsWithin(from, to time.Time) time.Duration {
	if p.slowest(from, to) > calm {
		return 15 * time.Second
	}
	return 10 * time.Second
}

func (p *play) setUp() {
	for k, n := range []*node{&p.spot, &p.scaledIn, &p.retired, &p.retiredToo, &p.calledOff, &p.spare} {
		if k == 3 { // one of the pods is on each of the first three
			p.deployment("web", 3)
		}
		*n = p.node(fmt.Sprintf("%s-%c", p.name, 'a'+k), p.id(k))
	}
	p.pod("kept", p.spot.name, app("kept"), stopping(30*time.Second, time.Second))
	p.pod("slow", p.scaledIn.name, stopping(time.Minute, 35*time.Second))
	p.pod("one", p.retired.name)
	p.pod("two", p.retiredToo.name)
	p.pod("guarded", p.calledOff.name, app("guarded"))
	p.budget("web", "web", 2)
	p.budget("kept", "kept", 1)
	p.budget("guarded", "guarded", 1)
	p.hook(awssim.Terminating, hookTimeout, p.scaledIn)
	p.before = p.placement()
}

// notices sends all of them, and returns the messages with the nodes that each is about.
func (p *play) notices() map[string][]node {
	about := map[string][]node{}
	var message string
	p.sent = time.Now()
	p.token, message = p.transition(p.scaledIn, awssim.Terminating)
	about[message] = []node{p.scaledIn}
	message, p.deadline = p.warn(p.spot, 90*time.Second) // the pod that a budget keeps is forced 35 s before
	about[message] = []node{p.spot}
	about[p.send(p.body("health-retirement-two-instances", p.retired.instance, second, p.retiredToo.instance, startTime, ahead()))] = []node{p.retired, p.retiredToo}
	about[p.send(p.body("health-reboot-scheduled", p.calledOff.instance, startTime, ahead()))] = nil
	p.eventually("the drain that will be called off is under way", func() bool { return len(p.requests("guarded")) > 0 })
	about[p.send(p.body("health-reboot-scheduled", p.calledOff.instance, "upcoming", "closed"))] = []node{p.calledOff}
	return about
}

// nothingIsLost checks what has to hold whoever is killed when.
func (p *play) nothingIsLost(about map[string][]node) {
	p.Helper()
	if left := p.aws.Messages(queueName); len(left) > 0 {
		p.Errorf("%d messages are left: %+v", len(left), left)
	}
	for message, nodes := range about {
		p.deletedAfterItsEffect(message, nodes...)
	}
	p.acceptedOnce(p.token)
	p.noHeartbeatAfterCompletion()

	drained := []node{p.spot, p.scaledIn, p.retired, p.retiredToo}
	if p.away {
		p.eventually("the drains end", func() bool {
			return !slices.ContainsFunc(drained, func(n node) bool {
				return p.getNode(n.name).Labels[cluster.StateLabel] == cluster.StateDraining
			})
		})
	}
	asked := p.asked()
	for uid, times := range asked {
		if times > 1 && !p.away {
			p.Errorf("pod %s (%s) was made to stop by %d requests", p.before[uid].Name, uid, times)
		}
	}
	stopped := p.stopped()
	for uid, pod := range p.before {
		switch on := pod.Spec.NodeName; {
		case slices.ContainsFunc(drained, named(on)):
			if asked[uid] != 1 && !p.away {
				p.Errorf("pod %s on %s was asked to leave %d times", pod.Name, on, asked[uid])
			}
			if on == p.spot.name {
				p.pulse.before(stopped[pod.Name], p.deadline, "pod %s stopped", pod.Name)
			}
		case !p.lives(uid, pod):
			p.Errorf("pod %s on %s was stopped", pod.Name, on)
		}
	}
	for _, n := range drained {
		if on := p.podsOn(n.name); len(on) > 0 || !p.cordoned(n.name) {
			p.Errorf("node %s has %d pods, and cordoned is %t", n.name, len(on), p.cordoned(n.name))
		}
		p.finished(n.name)
	}
	p.hasMarks(p.calledOff.name, marks{})
	p.hasNoIntent(p.calledOff.name)
	p.untouched(p.spare, 0)
}

// deletedAfterItsEffect checks that all that was done to the nodes and to the
// pods that were on them was done before the message was deleted.
func (p *play) deletedAfterItsEffect(message string, nodes ...node) {
	p.Helper()
	deleted := p.deleted(message)
	// A budget holds the place of an eviction that the API server has begun and not ended, for two minutes. After as long
	// the Nodes alone carry what can wait; nothingIsLost sees that they were drained.
	const alone = 2 * time.Minute
	if p.away && slices.Contains(nodes, p.retired) && deleted.Sub(p.sent) >= alone {
		return
	}
	stopped := p.stopped()
	for _, pod := range p.before {
		if slices.ContainsFunc(nodes, named(pod.Spec.NodeName)) && stopped[pod.Name].After(deleted) {
			p.Errorf("pod %s stopped at %s, after message %s was deleted at %s", pod.Name, stopped[pod.Name], message, deleted)
		}
	}
	for _, e := range p.writes() {
		if e.Resource == "nodes" && slices.ContainsFunc(nodes, named(e.Name)) && e.Code < 300 && e.Received.After(deleted) {
			p.Errorf("%s of node %s at %s, after message %s was deleted at %s", e.Verb, e.Name, e.Received, message, deleted)
		}
	}
	if slices.Contains(nodes, p.scaledIn) && deleted.Before(p.action(p.token).Ended) {
		p.Errorf("message %s was deleted at %s, before the hook was completed", message, deleted)
	}
}

// noHeartbeatAfterCompletion checks that no replica has sent one after it had an
// answer to its completion.
func (p *play) noHeartbeatAfterCompletion() {
	p.Helper()
	completed := map[string]time.Time{}
	for _, c := range p.aws.Calls() { // in the order of their ends
		switch c.Action {
		case "CompleteLifecycleAction":
			if c.Code == "" || c.Code == "ValidationError" {
				completed[c.AccessKeyID] = c.End
			}
		case "RecordLifecycleActionHeartbeat":
			if at, ok := completed[c.AccessKeyID]; ok && c.Start.After(at) {
				p.Errorf("%s sent a heartbeat %s after its completion", c.AccessKeyID, c.Start.Sub(at))
			}
		}
	}
}

func named(name string) func(node) bool { return func(n node) bool { return n.name == name } }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A table sums the plays up, a line for each kind of call. Its methods may be
// called concurrently.
type table struct {
	mu   sync.Mutex
	rows map[string]*row
}

type row struct {
	points, unreached, unjudged, calm, failed int
	slowest                                   time.Duration // takeover
}

// kindOf is a call without the name of what it is about.
func kindOf(call string) string {
	words := strings.Fields(call)
	return strings.Join(words[:min(2, len(words))], " ")
}

// add takes in a play at a point, nil if it did not get to its end.
func (t *table) add(at point, p *play, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[string]*row{}
	}
	for _, kind := range []string{kindOf(at.call), all} {
		r := cmp.Or(t.rows[kind], &row{})
		t.rows[kind] = r
		r.points++
		if failed {
			r.failed++
		}
		if p == nil {
			continue
		}
		if p.unjudged {
			r.unjudged++
		}
		if p.calm {
			r.calm++
		}
		if p.victim.killed.IsZero() {
			r.unreached++
		}
		r.slowest = max(r.slowest, p.takeover)
	}
}

// all names the last line, which has the sums.
const all = "~ all" // sorts last

// judgesTooFew reports whether more than a tenth of the plays had a takeover that was not judged.
func (t *table) judgesTooFew() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := cmp.Or(t.rows[all], &row{})
	return sum.unjudged*10 > sum.points
}

func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	text.WriteString("| the leader's calls | points | not reached | not judged | judged by 17 s | failures | slowest takeover |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, kind := range slices.Sorted(maps.Keys(t.rows)) {
		r := t.rows[kind]
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %d | %d | %.1f s |\n", strings.TrimPrefix(kind, "~ "),
			r.points, r.unreached, r.unjudged, r.calm, r.failed, r.slowest.Seconds())
	}
	return text.String()
}

func TestTheTableOfChaosCountsWhatWasNotJudged(t *testing.T) {
	t.Parallel()
	at, killed := point{call: "update leases", nth: 1}, &victim{killed: time.Now()}
	results := &table{}
	for range 9 {
		results.add(at, &play{victim: killed, calm: true, takeover: 16 * time.Second}, false)
	}
	results.add(at, &play{victim: killed, unjudged: true, takeover: 30 * time.Second}, false)
	if results.judgesTooFew() {
		t.Error("one of ten was not judged, and that is too many")
	}
	results.add(at, &play{victim: killed, unjudged: true, takeover: 25 * time.Second}, false)
	if !results.judgesTooFew() {
		t.Error("two of eleven were not judged, and that is fine")
	}
	results.add(at, nil, true) // it did not get to its end
	if want := "| all | 12 | 0 | 2 | 9 | 1 | 30.0 s |\n"; !strings.HasSuffix(results.String(), want) {
		t.Errorf("the table is\n%s\nwant as its last line %s", results, want)
	}
}
