package controller

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// An invariant is what must hold in every history, as a sentence.
type invariant string

const (
	noForce       invariant = "no pod gets less than its grace without a deadline, of this life of its machine, that is near or just past"
	noBudget      invariant = "no budget is ignored but for a machine that stops or a deadline that is near"
	noOpenNode    invariant = "no drain ends, and no machine goes, while the machine has a schedulable Node after a notice that could be acted on"
	noEarlyEnd    invariant = "no drain ends before its pods have left, the deadline has come or the machine is gone"
	hookInTime    invariant = "each real hook is completed once, and before its timeout where that was possible"
	noFalseHook   invariant = "no hook is completed for a machine that runs on, nor for one that is not ready to serve"
	othersStay    invariant = "nobody else's cordon, taint, label or hook is touched"
	serveAgain    invariant = "a Node that is back in service is schedulable unless somebody else cordoned it"
	boundedStops  invariant = "evictions and deletions are bounded by the pods that were there"
	boundedMemory invariant = "what is held goes back to nothing, and no drain goes on for ever"
	noMessageLeft invariant = "no message stays in the queue but those that nobody can act on"
	noFight       invariant = "a person who uncordons is fought once at most"
	noFalseTaint  invariant = "no machine that runs is out of service"
	noHotLoop     invariant = "nothing is tried again and again without a pause"
	keepsLimit    invariant = "no drain that can wait takes a node out of use beyond a limit of the options or of its rule"
	noStarving    invariant = "no drain is held back while there is time and room for it"
	oneBrain      invariant = "no pod on a node drains it while somebody leads"
	keepsTime     invariant = "a drain that can wait begins when a rule of its notices lets it"
)

var invariants = []invariant{
	noForce, noBudget, noOpenNode, noEarlyEnd, hookInTime, noFalseHook, othersStay, serveAgain,
	boundedStops, boundedMemory, noMessageLeft, noFight, noFalseTaint, noHotLoop, keepsLimit, noStarving, keepsTime, oneBrain,
}

// The judgements in what follows: how long something may take before it counts.
const (
	// Pods are forced 5 s before their grace begins to be too long, hooks are
	// completed 5 s before their end, and a request takes its time.
	nearly = 15 * time.Second
	// A machine that is there this long after its deadline is no longer about to go.
	justPast = 15 * time.Minute
	// What has been told for this long, with a leader there and nothing failing, is known.
	heard = 2 * time.Minute
	// A notice is acted on within this time, likewise.
	acted = time.Minute
	// A throttled call is made again within this time after the throttling.
	recovered = 90 * time.Second
	// A denied description of hooks is asked for again after 10 minutes.
	remembered = 11 * time.Minute
	// A sweep comes within this time, or one that knows that an event before it is of before.
	betweenSweeps = 50 * time.Second
)

// A post is a notice as the world knows it.
type post struct {
	m       *machine
	kind    string // spot, reservation, block, rebalance, change, stopping, state, hook, launch, forged …
	text    string
	life    int // of the machine, that it is about
	at      time.Time
	visible time.Time // when it can first be received, or a sweep has found what it would tell
	// earliest is when it can first be known of, where that is earlier: a sweep may find its hook.
	earliest time.Time
	lost     bool
	step     int
	// deadline is when the machine goes, as far as the notice tells; zero: it does not.
	deadline time.Time
	token    string
	done     time.Time // when its hook was completed
	change   string
	event    string    // the id by which EC2 lists the change
	first    bool      // it announces the change
	over     bool      // the change is over for the machine
	swept    time.Time // the deadline of its hook, if a sweep has found it: asking begins its timeout anew
	rebooted bool      // so that its change is over
	forged   bool
	wasReady bool      // the node was, when its launch hook was first to be completed
	asks     bool      // it was, when a heartbeat that has not succeeded yet was to ask whether its launch hook is open
	asked    time.Time // when a heartbeat first asked that
}

// A nodeRecord is what happened to a Node.
type nodeRecord struct {
	uid              types.UID
	name             string
	m                *machine
	created, deleted time.Time
	provided         bool
	since            time.Time // it has had its provider id
	ready            bool
	readySince       time.Time
	unreadySince     time.Time

	cordonedBy string    // "us", "a person"; empty: schedulable
	cordoned   time.Time // the last time
	cordons    []cordonChange
	uncordoned time.Time // by a person, the last time
	midDrain   bool      // the node was then in work, or done with
	finished   time.Time // a drain of it, the last time
	fights     int       // cordons of ours on top of that, since the last notice
	foughtAt   time.Time // the last of them
	ourTaints  map[string]bool
	ourLabels  map[string]bool
	ourCordons int
	excluded   time.Time // from load balancers, since then
	wasTarget  bool      // until then: nobody registers a Node that gets ready later
	couldSince time.Time // a drain that is held back has had time and room
	replaces   bool      // and a replacement is awaited
	state      string    // its state label, as the program has written it
}

// A cordonChange is when a Node was cordoned by somebody, or by nobody any more.
type cordonChange struct {
	at time.Time
	by string
}

func (r *nodeRecord) cordon(by string) {
	r.cordonedBy = by
	r.cordons = append(r.cordons, cordonChange{time.Now(), by})
	if by != "" {
		r.cordoned = time.Now()
	}
}

// openAt reports whether the Node took pods at a moment.
func (r *nodeRecord) openAt(at time.Time) bool {
	by := ""
	for _, c := range r.cordons {
		if c.at.Before(at) {
			by = c.by
		}
	}
	return by == "" && r.created.Before(at)
}

// An ask is a request of ours for a pod to leave, that was accepted.
type ask struct {
	uid, owner string
	tolerates  bool
	node       types.UID
	at         time.Time
	finalizer  bool // holds the pod
	late       bool // the pod came while the node was cordoned, or after a person opened it
}

// violate writes a violation down, the first few of each invariant. w.mu is held.
func (w *world) violate(check invariant, format string, args ...any) {
	const few = 3
	n := 0
	for _, v := range w.failures {
		if v.check == check {
			n++
		}
	}
	if check == w.until {
		w.stop()
	}
	if n < few {
		w.failures = append(w.failures, violation{check, w.step, time.Since(w.begin) - 5*time.Second, fmt.Sprintf(format, args...)})
	}
}

func (w *world) found() []violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.failures, func(a, b violation) int { return cmp.Compare(a.at, b.at) })
	return w.failures
}

// recordOf is the Node of a name that is there, or was the last. w.mu is held.
func (w *world) recordOf(name string) *nodeRecord {
	var last *nodeRecord
	for _, r := range w.nodes {
		if r.name == name && (last == nil || r.created.After(last.created) || r.created.Equal(last.created) && r.deleted.IsZero()) {
			last = r
		}
	}
	return last
}

// troubled reports whether something failed for some time before now. w.mu is held.
func (w *world) troubled(what string, within time.Duration) bool {
	return slices.ContainsFunc(w.troubles, func(t trouble) bool {
		return strings.HasPrefix(t.what, what) && time.Since(t.to) < within
	})
}

// blind reports whether EC2 may not have told of which life of a machine a notice
// was: it did not answer. w.mu is held.
func (w *world) blind() bool {
	return w.troubled("EC2 denied", remembered) || w.troubled("EC2", recovered)
}

// sighted is when EC2 is asked again after what failed last; it may be to come. w.mu is held.
func (w *world) sighted() (at time.Time) {
	for _, t := range w.troubles {
		switch {
		case strings.HasPrefix(t.what, "EC2 denied"):
			at = later(at, t.to.Add(remembered))
		case strings.HasPrefix(t.what, "EC2"):
			at = later(at, t.to.Add(recovered))
		}
	}
	return at
}

// led reports whether the leader has changed in between: what no Node carried went with
// its memory. w.mu is held.
func (w *world) led(from, to time.Time) bool {
	return slices.ContainsFunc(w.leaders, func(at time.Time) bool { return !at.Before(from) && !at.After(to) })
}

// holds reports whether the deadline of a notice, about this life of its machine,
// still counts. What replaces it has to be known for that. w.mu is held.
func (w *world) holds(p *post, now time.Time) bool {
	// A hook waits for the instance, whether that was stopped or not; a forged one is not told from it.
	// A block ends for what runs in it.
	another := p.life != p.m.life && p.kind != "hook" && !strings.HasPrefix(p.kind, "forged hook") && p.kind != "block"
	known := p.visible
	if !p.earliest.IsZero() && p.earliest.Before(known) {
		known = p.earliest
	}
	if another && !w.blind() || p.deadline.IsZero() || known.After(now) {
		return false
	}
	if !p.done.IsZero() && now.Sub(p.done) > acted {
		return false
	}
	return p.change == "" || !slices.ContainsFunc(w.posts, func(next *post) bool {
		return next.m == p.m && next.change == p.change && next.at.After(p.at) && w.calm(next.visible, now) >= heard &&
			(!next.visible.Before(p.visible) || !w.led(next.visible, now)) // no Node may have been there to carry it
	})
}

// knownAt is when a notice is known: when it comes, or a sweep asks for its hook before. w.mu is held.
func (w *world) knownAt(p *post) time.Time {
	known := p.visible
	if !p.earliest.IsZero() && p.earliest.Before(known) {
		known = p.earliest
	}
	if found := p.swept.Add(-w.hookTime()); !p.swept.IsZero() && found.Before(known) {
		return found
	}
	return known
}

// near is a notice whose deadline lets a pod of that grace be forced; nil if there is
// none. w.mu is held.
func (w *world) near(m *machine, grace time.Duration, now time.Time) *post {
	for _, p := range w.posts {
		if p.m == m && w.isImpaired(p, now) { // pods may not run there: nothing protects them
			return p
		}
		if p.m != m || !w.holds(p, now) {
			continue
		}
		due := p.deadline
		if !p.swept.IsZero() && !now.Before(p.swept.Add(-grace-nearly)) && now.Sub(p.swept) <= justPast+nearly {
			return p
		}
		// Where the hook cannot be read a deadline is assumed.
		assumed := w.troubled("Auto Scaling throttled", recovered) || w.troubled("Auto Scaling denied", remembered) || w.troubled("API", recovered)
		if p.token != "" && assumed {
			if guess := p.at.Add(gracePeriod); guess.Before(due) {
				due = guess
			}
		}
		if !now.Before(due.Add(-grace-nearly)) && now.Sub(p.deadline) <= justPast+nearly {
			return p
		}
	}
	return nil
}

// isImpaired reports whether a notice is about status checks that fail. w.mu is held.
func (w *world) isImpaired(p *post, now time.Time) bool {
	return p.kind == "impaired" && !p.over && p.life == p.m.life && !p.earliest.After(now) && !slices.ContainsFunc(w.posts, func(end *post) bool {
		return end.over && end.m == p.m && end.change == p.change && w.calm(end.visible, now) >= heard
	})
}

// stopping reports whether nothing keeps the pods of a machine running: it stops, as
// EC2 or a notice that cannot be told from a true one says. w.mu is held.
func (w *world) stopping(m *machine, now time.Time) bool {
	return !m.runs() || slices.ContainsFunc(w.posts, func(p *post) bool {
		return p.m == m && (p.kind == "stopping" || p.text == "stopping") && w.holds(p, now) && now.Sub(p.deadline) <= justPast+nearly
	})
}

// asked sees each answered request to stop a pod. The API server's mu is held.
func (w *world) asked(pod *unstructured.Unstructured, how string, grace time.Duration, status int) {
	if status != http.StatusOK {
		return
	}
	o, now := w.ownerOf(pod), time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.recordOf(nodeNameOf(pod))
	if r == nil {
		return
	}
	owner, _, _ := strings.Cut(pod.GetName(), "-")
	came := pod.GetCreationTimestamp().Time
	w.asks = append(w.asks, ask{
		uid: string(pod.GetUID()), owner: owner, tolerates: o.tolerates, node: r.uid, at: now, finalizer: o.finalizer,
		late: r.cordonedBy != "" && came.After(r.cordoned.Add(10*time.Second)) || r.cordonedBy == "" && !r.uncordoned.IsZero() && came.After(r.uncordoned),
	})
	if w.stops++; w.stops == mostStops {
		w.violate(boundedStops, "%d evictions and deletions, the last is of %s on %s", w.stops, pod.GetName(), r.name)
		w.stop()
	}
	m := r.m
	if at := pod.GetDeletionTimestamp(); at != nil && at.Time.Add(-o.grace).Before(m.began) {
		return // it died with the machine's life before
	}
	if m.life > 0 && now.Sub(m.began) < startTakes+bootTakes+time.Second && came.Before(m.began) {
		return // the same: no kubelet has started anything in this life so far, or just now
	}
	where := fmt.Sprintf("pod %s (grace %s) on %s of %s, which is %s: %s with %s", pod.GetName(), o.grace, r.name, m.id, m.state, how, grace)
	if m.state == "pending" || m.state == "stopped" || m.state == "terminated" { // nothing runs there
		return
	}
	if m.node != r.name { // nobody speaks for this Node any more
		return
	}
	if grace < o.grace && w.near(m, o.grace, now) == nil {
		w.violate(noForce, "%s; notices: %s", where, w.noticesOf(m))
	}
	if how == "deleted" && w.near(m, o.grace, now) == nil && !w.stopping(m, now) {
		w.violate(noBudget, "%s, refused before: %t; notices: %s", where, w.refused[string(pod.GetUID())], w.noticesOf(m))
	}
	if o.kind == "DaemonSet" {
		w.violate(othersStay, "%s: it is of a DaemonSet", where)
	}
}

// noticesOf are the notices about a machine, for people. w.mu is held.
func (w *world) noticesOf(m *machine) string {
	var all []string
	for _, p := range w.posts {
		if p.m == m && p.kind != "state" {
			text := fmt.Sprintf("%s %s of life %d at %s", p.kind, p.text, p.life, w.since(p.at))
			if !p.deadline.IsZero() {
				text += ", deadline " + w.since(p.deadline)
			}
			all = append(all, text)
		}
	}
	return fmt.Sprintf("(life %d) %s", m.life, strings.Join(all[max(0, len(all)-4):], "; "))
}

func (w *world) since(at time.Time) string {
	return (at.Sub(w.begin) - 5*time.Second).Round(time.Second).String()
}

// patched sees each patch of a Node by the program. The API server's mu is held.
func (w *world) patched(before, after *unstructured.Unstructured) {
	b, a := asNode(before), asNode(after)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.nodes[a.UID]
	if r == nil {
		return
	}
	w.patchedCordon(r, b, a, now)
	if r.state = a.Labels[cluster.StateLabel]; r.state != b.Labels[cluster.StateLabel] {
		switch r.state {
		case cluster.StateDraining:
			w.checkBegin(r, b, a, now)
			if b.Spec.Unschedulable { // else its cordon is looked at
				w.checkLimit(r, b, a, now)
			}
		case cluster.StateWaiting:
			w.watchWaiting()
		}
	}
	for _, t := range b.Spec.Taints {
		if slices.Contains(a.Spec.Taints, t) {
			continue
		}
		if !r.ourTaints[t.Key] {
			w.violate(othersStay, "taint %s of node %s was removed or changed", t.Key, r.name)
		}
		delete(r.ourTaints, t.Key)
	}
	for _, t := range a.Spec.Taints {
		if !slices.Contains(b.Spec.Taints, t) {
			r.ourTaints[t.Key] = true
			// Whoever had to wait for the API server does not ask EC2 once more; see atRest.
			if t.Key == corev1.TaintNodeOutOfService && r.m.runs() && !w.troubled("API", recovered) {
				w.violate(noFalseTaint, "node %s was tainted out of service, and %s is %s; notices: %s", r.name, r.m.id, r.m.state, w.noticesOf(r.m))
			}
		}
	}
	for key, value := range b.Labels {
		if now, there := a.Labels[key]; (!there || now != value) && !r.ourLabels[key] {
			w.violate(othersStay, "label %s of node %s was removed or changed", key, r.name)
		}
	}
	for key, value := range a.Labels {
		if old, there := b.Labels[key]; !there || old != value {
			r.ourLabels[key] = true
		}
	}
	for key, value := range b.Annotations {
		if a.Annotations[key] != value && !strings.HasPrefix(key, "node-termination-handler/") {
			w.violate(othersStay, "annotation %s of node %s was removed or changed", key, r.name)
		}
	}
	if !isEnd(b.Labels[cluster.StateLabel]) && isEnd(a.Labels[cluster.StateLabel]) {
		w.drained(r, a, now)
	}
}

// isEnd reports whether a node with that state was drained, in whatever way that ended.
func isEnd(state string) bool {
	return state != "" && state != cluster.StateWaiting && state != cluster.StateDraining
}

func (w *world) patchedCordon(r *nodeRecord, b, a *corev1.Node, now time.Time) {
	switch {
	case b.Spec.Unschedulable && !a.Spec.Unschedulable:
		if r.cordonedBy == person {
			w.violate(othersStay, "node %s was uncordoned, which %s had cordoned", r.name, r.cordonedBy)
		}
		r.midDrain, r.fights = false, 0 // what asked for that cordon is over
		r.cordon("")
	case !b.Spec.Unschedulable && a.Spec.Unschedulable:
		w.checkLimit(r, b, a, now)
		r.ourCordons++
		r.cordon("us")
		if r.uncordoned.IsZero() || !r.midDrain {
			return
		}
		// A notice, a repeated one too, and a new leader may be reason enough.
		reason := func(at time.Time) bool {
			return !at.After(now) && (at.After(r.uncordoned) || w.calm(at, r.uncordoned) < nearly)
		}
		told := func(is func(at time.Time) bool) bool {
			return slices.ContainsFunc(w.posts, func(p *post) bool {
				return p.m == r.m && (is(p.visible) || is(w.knownAt(p)) || slices.ContainsFunc(w.polled[p.event], is))
			})
		}
		if told(reason) || slices.ContainsFunc(w.leaders, reason) {
			r.fights = 0
			return
		}
		if told(func(at time.Time) bool { return at.After(r.foughtAt) && !at.After(now) }) {
			r.fights = 0 // a notice since may have begun a new episode
		}
		r.foughtAt = now
		if r.fights++; r.fights > 1 {
			w.violate(noFight, "node %s was cordoned again %s after a person uncordoned it, not for the first time; notices: %s", r.name, now.Sub(r.uncordoned), w.noticesOf(r.m))
		}
	}
}

// policyOf is what the program goes by that decides how long a drain can wait.
func (w *world) policyOf() decision.Policy { return decision.Policy{NodeGracePeriod: gracePeriod} }

// checkLimit looks at the other nodes when the program takes a node out of use whose drain can wait. What has changed a
// moment ago the program may not have seen, nor what has changed while the API server did not answer. Both mu are held.
func (w *world) checkLimit(r *nodeRecord, b, a *corev1.Node, now time.Time) {
	i, ok, err := cluster.ReadIntent(a)
	begins := b.Labels[cluster.StateLabel] != cluster.StateDraining
	if !begins || !ok || err != nil || !decision.CanWait(i, now, w.policyOf()) || !r.ready || w.troubled("API", recovered) ||
		now.Sub(w.policySince) < nearly || w.alone(r, i, now) {
		return
	}
	was, _, _ := cluster.ReadIntent(b)
	i.HeldBack, i.CordonedAt = was.HeldBack, was.CordonedAt
	for _, o := range w.nodes {
		u := w.api.objects["nodes/"+o.name]
		there := o.deleted.IsZero() && u != nil
		if o != r && o.m == r.m && (there && asNode(u).Labels[cluster.StateLabel] == cluster.StateDraining || !there && o.state == cluster.StateDraining) {
			return // a machine leaves with all its Nodes
		}
	}
	// A drain that cannot wait may have begun since this one was let go.
	seen := func(o *nodeRecord, n *corev1.Node) bool {
		other, _, err := cluster.ReadIntent(n)
		waits := o.cordonedBy == "us" && err == nil && decision.CanWait(other, now, w.policyOf())
		return (n.Spec.Unschedulable || !o.ready) && (waits || now.Sub(later(o.cordoned, later(o.readySince, o.unreadySince))) > nearly)
	}
	for _, room := range w.roomsOf(r, i, now) {
		if out, most, names := w.used(room, r, seen); out >= most {
			w.violate(keepsLimit, "node %s is cordoned, and%s are out of use already, of %d of %s; notices: %s",
				r.name, names, most, room.name, w.noticesOf(r.m))
		}
	}
}

// drained looks at the world when a drain has ended. Both mu are held.
func (w *world) drained(r *nodeRecord, n *corev1.Node, now time.Time) {
	m := r.m
	r.finished = now
	for _, p := range w.posts {
		if p.m == m && going(p, now) && w.calm(p.visible, now) >= acted/2 {
			w.openNodes(p, now, "the drain of "+r.name+" ends", func(name string) *corev1.Node {
				if u := w.api.objects["nodes/"+name]; u != nil {
					return asNode(u)
				}
				return nil
			})
		}
	}
	// What comes while the node is open again, or after its deadline, is not waited
	// for, nor what a kubelet cannot stop.
	stopped := func(p *post) bool {
		return p.m == m && (p.text == "stopped" || p.text == "terminated") && !p.visible.After(now)
	}
	if w.blind() && slices.ContainsFunc(w.posts, stopped) { // it has to be believed
		return
	}
	// "Drained" is said of no node that its deadline has come for.
	late := (w.near(m, 0, now) != nil || w.wasLate(m, now)) && n.Labels[cluster.StateLabel] != cluster.StateDrained
	if !m.runs() || !r.ready || !r.uncordoned.Before(r.cordoned) || !n.Spec.Unschedulable || late {
		return
	}
	// The machine was gone, and somebody has started it again while its hook waited to be completed.
	if delay := w.h.options.completionDelay; m.life > 0 && w.calm(m.began, now) < delay && n.Labels[cluster.StateLabel] != cluster.StateDrained {
		return
	}
	for _, u := range w.podsOf(r.name) {
		o := w.ownerOf(u)
		came := u.GetCreationTimestamp().Time
		if o.tolerates || u.GetDeletionTimestamp() != nil || now.Sub(came) < 30*time.Second {
			continue
		}
		// A person had opened the node, and somebody closed it again.
		if r.cordonedBy != "us" && !r.uncordoned.IsZero() && !came.Before(r.uncordoned.Truncate(time.Second)) && came.Before(r.cordoned) {
			continue
		}
		w.violate(noEarlyEnd, "the drain of node %s of %s, which is %s, ends, and pod %s is there; notices: %s", r.name, m.id, m.state, u.GetName(), w.noticesOf(m))
	}
}

// wasLate reports whether a deadline of an earlier life has come, and nothing could be written since this one began:
// the drain may have ended then. w.mu is held.
func (w *world) wasLate(m *machine, now time.Time) bool {
	return w.calm(m.began, now) < acted && slices.ContainsFunc(w.posts, func(p *post) bool {
		return p.m == m && p.life != m.life && !p.deadline.IsZero() && !p.deadline.After(now) && p.visible.Before(p.deadline)
	})
}

// believed reports whether a notice that the machine has stopped has to be believed,
// as EC2 could not be asked. w.mu is held.
func (w *world) believed(m *machine, now time.Time) bool {
	return w.blind() && slices.ContainsFunc(w.posts, func(p *post) bool {
		return p.m == m && (p.text == "stopped" || p.text == "terminated") && !p.visible.After(now)
	})
}

// going reports whether a true notice says that this life of its machine is about to end.
func going(p *post, now time.Time) bool {
	if p.forged || p.life != p.m.life || p.m.state != "running" || p.visible.After(now) || p.deadline.IsZero() || now.After(p.deadline) {
		return false
	}
	return p.kind == "spot" || p.kind == "reservation" || p.kind == "block" || p.kind == "hook" && p.done.IsZero()
}

func (w *world) isGoing(p *post) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return going(p, time.Now())
}

// openNodes looks for Nodes that take pods on a machine that goes away: those that
// have been ready, with their provider id, for long enough, and that no person has
// opened. w.mu is held.
func (w *world) openNodes(p *post, now time.Time, when string, node func(name string) *corev1.Node) {
	heardFrom := p.visible
	if p.kind == "block" { // only EC2 knows its instances; who comes later, comes too late
		if p.life != p.m.life {
			return
		}
		heardFrom = later(heardFrom, w.sighted())
	}
	for _, r := range w.nodes {
		if r.m != p.m || !r.deleted.IsZero() || !r.provided || !r.ready || w.opened(p) || w.forgotten(p, r) {
			continue
		}
		if w.calm(later(heardFrom, later(r.since, r.readySince)), now) < acted {
			continue
		}
		if n := node(r.name); n != nil && n.UID == r.uid && !n.Spec.Unschedulable {
			w.violate(noOpenNode, "%s, and node %s of %s is schedulable %s after the notice (%s) could be received; notices: %s",
				when, r.name, p.m.id, now.Sub(p.visible), p.kind, w.noticesOf(p.m))
		}
	}
}

// outlivedHook reports whether an earlier hook of the machine, which it has outlived, was completed when it was about to end:
// load balancers are waited for once. w.mu is held.
func (w *world) outlivedHook(p *post) bool {
	return slices.ContainsFunc(w.posts, func(before *post) bool {
		return before != p && before.m == p.m && before.kind == "hook" && before.done.After(before.deadline.Add(-nearly)) &&
			before.done.Before(p.at)
	})
}

// opened reports whether a person has uncordoned a Node of the machine after a notice of
// this life, or of a hook that is open since an earlier one, or of a Capacity Block: he wants it so. w.mu is held.
func (w *world) opened(p *post) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(w.nodes)), func(r *nodeRecord) bool {
		return r.m == p.m && slices.ContainsFunc(w.posts, func(before *post) bool {
			counts := before.life == p.life || before.kind == "block" || before.kind == "hook" && before.done.IsZero()
			return before.m == p.m && counts && before.kind != "state" && before.kind != "launch" && r.uncordoned.After(w.knownAt(before))
		})
	})
}

// forgotten reports whether the leader has changed, or nobody led, between the deletion of a Node that
// was done with and the coming of the next one: what the first carried went with it, and
// with the memory of the replicas that saw it go. w.mu is held.
func (w *world) forgotten(p *post, next *nodeRecord) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(w.nodes)), func(r *nodeRecord) bool {
		// A new leader does not know that the instance had a Node, and may delete its notice as foreign; also
		// one that was in flight, and is delivered again, unless the tag tells whose the instance is.
		foreign := w.h.options.deleteForeign && (r.deleted.Before(p.visible) || !w.h.options.tagCheck)
		done := foreign || !p.done.IsZero() || !r.finished.Before(p.visible) // a node that is empty is done with at once
		return done && r.m == p.m && !r.deleted.IsZero() && w.lacked(r.deleted, next.since.Add(followIn))
	})
}

// lacked reports whether nobody led at some time in between. w.mu is held.
func (w *world) lacked(from, to time.Time) bool {
	return slices.ContainsFunc(w.leaders, func(end time.Time) bool {
		next := slices.IndexFunc(w.began, func(begin time.Time) bool { return !begin.Before(end) })
		return !end.After(to) && (next < 0 || !w.began[next].Before(from))
	})
}

// goes looks at the Nodes of a machine when it goes away by a notice.
func (w *world) goes(p *post) {
	nodes := map[string]*corev1.Node{}
	for _, name := range w.nodesOf(p.m) {
		n := &corev1.Node{}
		if w.api.node(name, n) {
			nodes[name] = n
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calm(p.visible, time.Now()) >= acted {
		w.openNodes(p, time.Now(), p.m.id+" goes", func(name string) *corev1.Node { return nodes[name] })
	}
}

// sees looks at a request to AWS before it is made; what it returns is called when
// that has succeeded.
func (w *world) sees(req *http.Request) (done func()) {
	if req.Body == nil || req.Header.Get("X-Amz-Target") != "" || !strings.Contains(req.Header.Get("Content-Type"), "urlencoded") {
		return nil
	}
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	req.Body = io.NopCloser(bytes.NewReader(body))
	form, err2 := url.ParseQuery(string(body))
	if err == nil && err2 == nil && form.Get("Action") == "RecordLifecycleActionHeartbeat" {
		return w.seesHeartbeat(form)
	}
	if err != nil || err2 != nil || form.Get("Action") != "CompleteLifecycleAction" {
		return nil
	}
	token := form.Get("LifecycleActionToken")
	w.mu.Lock()
	w.tried[token] = append(w.tried[token], time.Now())
	at := slices.IndexFunc(w.posts, func(p *post) bool { return p.token == token && token != "" })
	w.mu.Unlock()
	if at < 0 {
		return nil
	}
	p := w.posts[at]
	wrong := w.notYet(p)
	if p.kind == "launch" { // a call that is refused is repeated, and the node may not be ready any more
		w.mu.Lock()
		if p.wasReady = p.wasReady || wrong == ""; p.wasReady {
			wrong = ""
		}
		w.mu.Unlock()
	}
	if w.isGoing(p) {
		w.goes(p)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		p.done = time.Now()
		if p.text == "others" {
			w.violate(othersStay, "the hook %s of %s was completed, which is somebody else's", p.text, p.m.id)
		}
		if wrong != "" {
			w.violate(noFalseHook, "the %s hook %q of %s was completed %s after it began: %s; notices: %s", p.kind, p.text, p.m.id, time.Since(p.at), wrong, w.noticesOf(p.m))
		}
		if p.kind == "launch" && wrong == "" && p.m.runs() {
			w.after(0, func() { w.mayServeAgain(p.m, "its launch hook was completed", p) })
		}
	}
}

// seesHeartbeat looks at a heartbeat before it is sent; what it returns is called when that has succeeded. Heartbeats
// hold no launch hook open. One is a question: whether Auto Scaling really wants the instance again, before what was done
// to its Nodes is taken back. The completion follows, and so that has to be right already.
func (w *world) seesHeartbeat(form url.Values) (done func()) {
	token := form.Get("LifecycleActionToken")
	w.mu.Lock()
	at := slices.IndexFunc(w.posts, func(p *post) bool { return p.kind == "launch" && p.token == token && token != "" })
	w.mu.Unlock()
	switch {
	case at < 0 && w.h.options.sweeps:
		return func() { w.restarted(form.Get("InstanceId"), form.Get("LifecycleHookName")) }
	case at < 0:
		return nil
	}
	p := w.posts[at]
	wrong := w.notYet(p)
	w.mu.Lock()
	p.asks = p.asks || wrong == "" // a call that fails is repeated, and the node may not be ready any more
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !p.asks {
			w.violate(hookInTime, "the launch hook of %s got a heartbeat %s after it began: %s", p.m.id, time.Since(p.at), wrong)
		}
		if p.asks = false; p.asked.IsZero() {
			p.asked = time.Now()
		}
	}
}

// heldOpen reports whether a launch hook stays open beyond its timeout without need. The question whether it is open
// begins its timeout anew, as AWS has no other that needs no further permission. The hook is completed next: only where
// the API server fails until then, or nobody leads, does it stay open, and that is better than its default result. w.mu
// is held.
func (w *world) heldOpen(p *post, a awssim.LifecycleAction) bool {
	end := a.Started.Add(w.h.options.launchTimeout)
	if !a.Ended.After(end) && (!a.Ended.IsZero() || !a.Deadline.After(end)) {
		return false
	}
	until := a.Ended
	if until.IsZero() {
		until = time.Now()
	}
	from, longest := p.asked, time.Duration(0)
	// The message of a leader that is killed comes again after its visibility timeout only.
	for _, to := range append(slices.Clone(w.killed), until) {
		if to.After(from) && !to.After(until) {
			from, longest = to, max(longest, w.calm(from, to))
		}
	}
	return p.asked.IsZero() || longest >= heard
}

// restarted notes that the timeout of a hook has begun anew: a sweep asks for it by a heartbeat, the
// first one.
func (w *world) restarted(instance, hook string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.posts {
		if p.kind == "hook" && p.m.id == instance && p.text == hook && p.done.IsZero() && p.swept.IsZero() {
			p.swept = time.Now().Add(w.hookTime())
		}
	}
}

// notYet says why a hook must not be completed now; empty: it may.
func (w *world) notYet(p *post) string {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	now, m := time.Now(), p.m
	if !m.runs() || p.life != m.life {
		return ""
	}
	if p.kind == "launch" {
		for _, r := range w.nodes {
			if r.m == m && r.deleted.IsZero() && (r.ready || now.Sub(r.readySince) < nearly) {
				return ""
			}
		}
		if w.troubled("API", recovered) { // the watch is behind
			return ""
		}
		return "it has no Node that is ready"
	}
	if w.near(m, 0, now) != nil || w.believed(m, now) {
		return ""
	}
	if w.h.options.deregistration > 0 && !p.forged && w.isTarget(m, true) && !w.opened(p) && !w.outlivedHook(p) {
		return "it is still in a target group"
	}
	for _, r := range w.nodes {
		serves := r.m == m && r.deleted.IsZero() && r.provided && r.ready && r.excluded.IsZero() && w.calm(r.readySince, now) >= acted
		if serves && w.h.options.deregistration > 0 && !p.forged && w.calm(w.knownAt(p), now) >= acted && !w.opened(p) && !w.outlivedHook(p) {
			return "its Node " + r.name + " is excluded from no load balancer"
		}
	}
	for _, r := range w.nodes {
		if r.m != m || !r.deleted.IsZero() || !r.provided || !r.ready || now.Sub(r.readySince) < acted || r.uncordoned.After(r.cordoned) {
			continue
		}
		for _, u := range w.podsOf(r.name) {
			came := u.GetCreationTimestamp().Time
			asked := !r.uncordoned.IsZero() && !came.Before(r.uncordoned.Truncate(time.Second)) // onto a node that a person opened, maybe when it was empty
			if !w.ownerOf(u).tolerates && u.GetDeletionTimestamp() == nil && now.Sub(came) > nearly && !asked {
				return fmt.Sprintf("pod %s is on %s, and there is time", u.GetName(), r.name)
			}
		}
	}
	return ""
}

// mayServeAgain looks, when that must have been done, whether the Nodes of a machine
// take pods again: nothing else is known of it that would keep them from it.
func (w *world) mayServeAgain(m *machine, why string, p *post) {
	life := w.now(m).life
	tries := 0
	var told *post
	if p.change != "" { // what was not announced in time changed nothing that could be taken back
		w.mu.Lock()
		at := slices.IndexFunc(w.posts, func(first *post) bool {
			return first.m == m && first.change == p.change && !first.over && w.calm(first.visible, p.visible) >= acted
		})
		if at >= 0 {
			told = w.posts[at]
		}
		w.mu.Unlock()
		if told == nil {
			return
		}
	}
	var look func()
	look = func() {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		since := later(p.visible, p.done)
		if m.life != life || m.state != "running" || m.pool {
			return
		}
		if w.calm(since, now) < heard || w.h.options.polls && w.troubled("EC2 denied", remembered) {
			if tries++; tries < 20 {
				w.after(heard, look)
			}
			return
		}
		for _, other := range w.posts {
			// A termination hook that is completed ends the life, or takes the machine to a warm
			// pool: from there a launch hook brings it back, or nobody says that it is.
			reason := other.kind != "state" && other.kind != "launch" && !other.over && (other.done.IsZero() || other.kind == "hook" && told != nil)
			if other.m == m && other.change != "" && !other.over && slices.ContainsFunc(w.posts, func(end *post) bool {
				if end.m != m || !end.over || end.change != other.change {
					return false
				}
				// Of a reboot nobody tells but the node, and only where it was cordoned before.
				unknown := end.rebooted && (other.visible.After(end.at) || w.calm(other.visible, end.at) < acted)
				return unknown || other.visible.After(end.visible) && w.led(end.visible, now)
			}) {
				return // no Node may have been there to carry that it is over
			}
			if other.change != "" { // over by now?
				reason = !slices.ContainsFunc(w.posts, func(end *post) bool {
					return end.over && end.m == m && end.change == other.change && !end.at.Before(other.at) && w.calm(end.visible, now) >= heard
				})
			}
			// Which termination belongs to the past of an instance that never stopped, its launch hook
			// says; whether that is real is asked by a heartbeat.
			if told == nil && w.troubled("Auto Scaling denied", time.Hour) {
				return
			}
			// A forged termination hook that is open at the launch is believed: whoever can forge one can
			// as well forge a warning after the launch.
			// The machine goes, or gets another root volume, since.
			if other.m == m && other.kind == "hook" && !other.done.IsZero() && other.life == m.life && other.at.After(p.at) {
				return
			}
			if other.m == m && other.forged && strings.HasPrefix(other.kind, "forged hook") && (other.done.IsZero() || other.done.After(p.at)) {
				return
			}
			// Auto Scaling waits for the instance, whether that was stopped or not.
			if open := !now.After(later(other.deadline, other.swept).Add(nearly)); told != nil && other.m == m && other.kind == "hook" && reason && open {
				return
			}
			// Also one of an earlier life, if it came so late that it may be believed for want of an answer,
			// or if EC2 could not be asked for the launch since, which ends what concerns a scheduled change.
			late := other.visible.After(p.at.Add(-heard)) && w.troubled("EC2", now.Sub(other.visible)+time.Hour)
			if other.m == m && reason && (other.life == m.life || other.kind == "block" || late || (told != nil || other.change != "") && w.troubled("EC2 denied", time.Hour)) {
				return
			}
		}
		for _, r := range w.nodes {
			u := w.api.objects["nodes/"+r.name]
			if r.m != m || !r.deleted.IsZero() || u == nil || !r.ready || now.Sub(r.readySince) < acted || !r.provided {
				continue
			}
			// What an earlier notice has left, and what came after a person had undone the
			// change, a change that is over does not take back.
			if told != nil && (!r.openAt(told.visible) || r.uncordoned.After(told.visible)) {
				continue
			}
			n := asNode(u)
			if n.Spec.Unschedulable && r.cordonedBy == "us" {
				w.violate(serveAgain, "%s of %s: %s %s ago, and it is cordoned by us; notices: %s", r.name, m.id, why, now.Sub(since), w.noticesOf(m))
			}
			for _, t := range n.Spec.Taints {
				if r.ourTaints[t.Key] && (told == nil || strings.HasSuffix(t.Key, "scheduled-maintenance")) {
					w.violate(serveAgain, "%s of %s: %s %s ago, and it has our taint %s; notices: %s", r.name, m.id, why, now.Sub(since), t.Key, w.noticesOf(m))
				}
			}
		}
	}
	w.mu.Lock()
	w.looks = append(w.looks, look) // at the end too
	w.mu.Unlock()
	w.after(max(0, time.Until(p.visible))+heard+nearly, look)
}

// ahead reports whether the deadline of what a node carries is to come.
func ahead(node *corev1.Node) bool {
	i, _, err := cluster.ReadIntent(node)
	return err == nil && i.Deadline().After(time.Now())
}

// atRest looks at what is still held when all is over, and a leader is there.
func (w *world) atRest() {
	w.leading <- struct{}{}
	defer func() { <-w.leading }()
	r := w.replica
	if r == nil {
		return
	}
	load := r.c.Load()
	held, _ := r.s.InFlight()
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting, draining, hooks, now := 0, 0, 0, time.Now()
	mayWait := w.h.options.maxUnready > 0 || len(w.h.policies) > 0
	for _, n := range w.nodes {
		u := w.api.objects["nodes/"+n.name]
		if !n.deleted.IsZero() || u == nil {
			continue
		}
		node := asNode(u)
		state := node.Labels[cluster.StateLabel]
		i, _, _ := cluster.ReadIntent(node)
		if state == cluster.StateWaiting || state == cluster.StateDraining {
			hooks += len(i.Hooks)
			w.waiting[n.m.id] = true
		}
		switch {
		case state == cluster.StateWaiting && mayWait:
			waiting++
			if w.couldBegin(n, node, now) && !n.couldSince.IsZero() && w.calm(n.couldSince, now) >= heard+w.patience(i) {
				w.violate(noStarving, "node %s still waits at the end, and has time and room; notices: %s", n.name, w.noticesOf(n.m))
			}
		case state == cluster.StateDraining && mayWait && (ahead(node) || now.Sub(i.CordonedAt) < settledAfter): // it has waited
			draining++
		case state == cluster.StateDraining && ahead(node) && w.h.options.deregistration > 0 && w.isTarget(n.m, false):
			draining++ // load balancers are waited for until the deadline, also where a person has opened another Node of the machine
		case !r.c.Cluster.Serves(i) && !n.m.up: // its pod goes on when the machine comes back
		case state == cluster.StateDraining || state == cluster.StateWaiting:
			w.violate(boundedMemory, "node %s of %s, which is %s, is still %s; notices: %s", n.name, n.m.id, n.m.state, state, w.noticesOf(n.m))
		}
		if n.ourTaints[corev1.TaintNodeOutOfService] && hasTaint(node, corev1.TaintNodeOutOfService) && n.m.state == "running" && n.ready {
			w.violate(noFalseTaint, "node %s is still tainted out of service, and %s runs", n.name, n.m.id)
		}
	}
	if load.HeldBack != waiting || load.Drains > draining || load.Hooks > hooks {
		w.violate(boundedMemory, "at the end %d nodes wait, %d are drained, with %d hooks; held are %+v", waiting, draining, hooks, load)
	}
	most := 0
	for _, p := range w.posts {
		if w.waiting[p.m.id] {
			most += 3 // with what is delivered twice
		}
	}
	if held > most && w.h.options.deleteForeign {
		w.violate(boundedMemory, "at the end %d messages are held, and %d nodes wait or are drained", held, len(w.waiting))
	}
}

// checkAll looks at the records.
func (w *world) checkAll() {
	actions := w.aws.LifecycleActions()
	messages := w.aws.Messages(queueName)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkHooks(actions)
	w.checkStops()
	if !w.cutShort {
		w.checkMessages(messages)
	}
}

func (w *world) checkHooks(actions []awssim.LifecycleAction) {
	for _, a := range actions {
		at := slices.IndexFunc(w.posts, func(p *post) bool { return p.token == a.Token })
		if at < 0 || a.Hook == "others" {
			continue
		}
		p := w.posts[at]
		// A leader that follows, a message that comes again and a call that fails are reasons to try once more.
		most := 10 + 10*len(w.leaders)
		if len(w.leaders)+len(w.troubles) == 0 && w.h.options.duplicates == 0 && !slices.ContainsFunc(w.h.steps, func(s step) bool { return s.text == "twice" }) {
			most = 1
		}
		if n := len(w.tried[a.Token]); n > most && len(w.troubles) == 0 {
			w.violate(hookInTime, "the %s hook of %s was completed in %d tries", p.kind, p.m.id, n)
		}
		tried, late := w.tried[a.Token], 0
		for _, at := range tried {
			if at.Sub(a.GlobalDeadline) > acted {
				late++
			}
		}
		// Who hears of it late tries once. Where the hook could not be read its limit is that of all, 48 hours.
		if most := 3 * (1 + len(w.leaders)); late > most && !slices.ContainsFunc(w.troubles, func(t trouble) bool { return strings.HasPrefix(t.what, "Auto Scaling") && t.to.After(a.Started) }) {
			w.violate(hookInTime, "the %s hook of %s was tried %d times after its global limit, the last time %s after it",
				p.kind, p.m.id, late, tried[len(tried)-1].Sub(a.GlobalDeadline))
		}
		if a.Transition == awssim.Launching && w.heldOpen(p, a) {
			w.violate(hookInTime, "the launch hook of %s, open for %s, was held open by %d heartbeats", p.m.id, w.h.options.launchTimeout, a.Heartbeats)
		}
		if a.Outcome != awssim.TimedOut || w.calm(a.Ended.Add(-2*nearly), a.Ended) < 2*nearly {
			continue
		}
		trouble := slices.ContainsFunc(w.troubles, func(t trouble) bool {
			end := t.to
			if p.lost && t.what == "Auto Scaling denied" { // a sweep asks again after a while
				end = end.Add(remembered)
			}
			return end.After(a.Started) && t.from.Before(a.Ended)
		})
		killed := slices.ContainsFunc(w.killed, func(k time.Time) bool { return k.After(a.Started) && k.Before(a.Ended) })
		// Who forges a termination makes the hooks without names somebody else's.
		if p.lost && !w.h.options.othersHook && slices.ContainsFunc(w.posts, func(o *post) bool {
			return o.m == p.m && strings.HasPrefix(o.kind, "forged hook") && o.visible.Before(p.visible.Add(heard))
		}) {
			continue
		}
		// No sweep came between two actions of one hook: it cannot tell them apart. Without names a new
		// leader cannot either.
		if p.lost && slices.ContainsFunc(actions, func(o awssim.LifecycleAction) bool {
			if o.InstanceID != a.InstanceID || o.Hook != a.Hook || o.Ended.IsZero() || a.Started.Before(o.Ended) {
				return false
			}
			// A rule holds the node back for the first one still, which ended while nobody led: it is taken for that.
			if o.Outcome == awssim.TimedOut && len(w.h.policies) > 0 {
				return true
			}
			if w.h.options.othersHook {
				return w.calm(o.Ended, a.Started) < betweenSweeps
			}
			from := o.Ended
			for _, began := range w.began {
				if began.Before(a.Ended) {
					from = later(from, began)
				}
			}
			return w.calm(from, a.Started) < betweenSweeps
		}) {
			continue
		}
		// A node that a rule holds back carries the notice, and its message is deleted. If the Node is deleted then, while
		// nobody leads, nothing but a sweep finds the hook again.
		forgotten := false
		for _, r := range w.nodes {
			forgotten = forgotten || r.m == p.m && r.deleted.After(p.visible) && r.deleted.Before(a.Ended) && w.lacked(r.deleted, r.deleted)
		}
		if forgotten && !w.h.options.sweeps && len(w.h.policies) > 0 {
			continue
		}
		possible := false
		for _, r := range w.nodes {
			there := r.m == p.m && r.provided && (r.deleted.IsZero() || r.deleted.After(a.Ended))
			if !w.h.options.tagCheck && r.since.After(p.visible) {
				there = false // nothing tells that an instance without a Node is this cluster's
			}
			begin := later(p.visible, r.since)
			if p.kind == "launch" {
				there = there && r.ready && !killed
				begin = later(begin, r.readySince)
			}
			possible = possible || there && w.calm(begin, a.Ended) >= heard
		}
		if possible && !trouble {
			w.violate(hookInTime, "the %s hook of %s, open from %s to %s, timed out, and it could have been completed; notices: %s",
				p.kind, p.m.id, w.since(a.Started), w.since(a.Ended), w.noticesOf(p.m))
		}
	}
}

// checkStops compares what was asked of pods with the pods that were there. In a drain a
// pod may be evicted, deleted, and told to hurry, once more by a new leader and where an
// answer was lost. Those
// that came under the cordon, or where a person has opened the node, may be asked to
// leave once for each reason to drain. Those that a finalizer holds outlive a drain, and the next one asks again.
func (w *world) checkStops() {
	perPod := map[string]int{}
	late := map[string]int{}
	reasons := map[types.UID]int{}
	for uid, r := range w.nodes {
		reasons[uid] = 2 + len(w.leaders) + w.takeovers + r.ourCordons
		for _, p := range w.posts {
			if p.m == r.m {
				reasons[uid]++
				if w.h.options.polls && p.kind == "change" { // EC2 tells of it too
					reasons[uid]++
				}
			}
		}
	}
	for _, a := range w.asks {
		perPod[a.uid]++
		most := 3 + 2*(len(w.leaders)+w.takeovers+len(w.troubles)+w.nodes[a.node].ourCordons)
		if a.finalizer {
			most += 2 * reasons[a.node]
		}
		if n := perPod[a.uid]; n == most+1 {
			w.violate(boundedStops, "a pod of %s on %s was asked to leave %d times", a.owner, w.nodes[a.node].name, n)
		}
		if a.late && perPod[a.uid] == 1 {
			key := a.owner + " on " + w.nodes[a.node].name
			late[key]++
			var k int
			_, _ = fmt.Sscanf(a.owner, "app%d", &k)
			if n := late[key]; n == 1+w.h.owners[k].replicas*reasons[a.node] {
				w.violate(boundedStops, "%d pods of %s were asked to leave that had come after the cordon, or after a person uncordoned the node", n, key)
			}
		}
	}
}

func (w *world) checkMessages(messages []awssim.Message) {
	for _, message := range messages {
		var e struct {
			Account string
			Detail  struct {
				ID            string `json:"instance-id"`
				EC2InstanceID string `json:"EC2InstanceId"`
			}
			Resources []string
		}
		_ = json.Unmarshal([]byte(message.Body), &e)
		if !w.h.options.deleteForeign {
			if strings.Contains(message.Body, strangerID) { // others may know it
				continue
			}
			at := slices.IndexFunc(w.machines, func(m *machine) bool {
				return (m.id == e.Detail.ID || m.id == e.Detail.EC2InstanceID || slices.Contains(e.Resources, m.id)) && m.state == "running"
			})
			if at < 0 || e.Account != account || !slices.ContainsFunc(w.records(), func(r *nodeRecord) bool { return r.m == w.machines[at] && r.deleted.IsZero() }) {
				continue
			}
		}
		about := slices.ContainsFunc(w.machines, func(m *machine) bool {
			block := m.k < w.h.options.block && strings.Contains(message.Body, lifeBlock)
			return w.waiting[m.id] && (block || strings.Contains(message.Body, m.id))
		})
		if about { // its message is held
			continue
		}
		w.violate(noMessageLeft, "after %d deliveries: %.300s", message.ReceiveCount, message.Body)
	}
}

func (w *world) records() []*nodeRecord {
	var all []*nodeRecord
	for _, r := range w.nodes {
		all = append(all, r)
	}
	return all
}
