// Package holdback says when the drains that can wait may begin: at the times that the rules of the policy file give,
// and only while not too many nodes are out of use. [decision.Begin] decides; this package looks at the nodes for it.
package holdback

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

const (
	// lookAgain is how often drains that are held back ask whether they can go on.
	lookAgain = time.Second
	// watchLag is how long the watch can take to show what was written to a node.
	watchLag = 30 * time.Second
)

// Policies are the options with the rules of the policy file.
type Policies interface {
	CurrentPolicy() decision.Policy
	// RulesChanged returns a channel that is closed when there are other rules; nil: there never are.
	RulesChanged() <-chan struct{}
}

// Config is what a line is made of. Its functions may be called concurrently.
type Config struct {
	Cluster *cluster.Cluster
	Policies
	// MaxUnready is how many nodes may be not ready or cordoned for drains that can wait: a number, or a percentage of
	// all nodes. Zero: no bound.
	MaxUnready intstr.IntOrString
	// Places are those of all drains, whether they wait or not.
	Places func() []*Place
	// Joins reports whether another Node of the same instance is being drained: this one then does not wait for room.
	Joins func(cluster.Ref) bool
	// Replaces reports whether a node that may begin waits for its replacement still: it takes no room meanwhile.
	Replaces func(intent.Intent) bool
}

// A Line has all drains, and asks [decision.Begin] about those that are held back, at most once a second where nothing
// has changed. What it keeps is an answer, and which drains have just ended: the watch may still show their nodes
// without the cordon. Its methods, and those of its places, may be called concurrently.
type Line struct {
	Config

	mu     sync.Mutex
	ended  map[types.UID]endedDrain
	answer *answer
}

type endedDrain struct {
	ref cluster.Ref
	at  time.Time
}

// New returns a line without places.
func New(cfg Config) *Line { return &Line{Config: cfg, ended: map[types.UID]endedDrain{}} }

// A Place is where one drain stands in the line.
type Place struct {
	line    *Line
	ref     cluster.Ref
	carried func() intent.Intent

	// Guarded by line.mu.
	admitted  bool // its drain may begin
	recording bool // a notice is being recorded that may begin it
	left      bool // its drain has ended
}

// NewPlace is the place of a drain. carried is what its node carries; it does not block.
func (l *Line) NewPlace(ref cluster.Ref, carried func() intent.Intent) *Place {
	return &Place{line: l, ref: ref, carried: carried}
}

// A Permit says whether the drain of a node may begin.
type Permit struct {
	Begins bool
	Why    decision.Why
	Detail string    // for people, where the node is held back
	Again  time.Time // when to ask again, where the node is held back
}

// Ask asks for the drain of a node that carries an intent and is held back. If the drain may begin, the node counts as
// out of use from now on. changed: not only time has passed since the question before.
func (p *Place) Ask(i intent.Intent, now time.Time, changed bool) Permit {
	return p.ask(&p.admitted, i, now, changed)
}

// AskToRecord asks for a node that is about to carry an intent. If its drain may begin, the node counts as out of use
// until Recorded is called, whatever it carries so far.
func (p *Place) AskToRecord(next intent.Intent, now time.Time) Permit {
	return p.ask(&p.recording, next, now, true)
}

// Recorded says that the intent of AskToRecord is recorded, or will not be.
func (p *Place) Recorded() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	p.recording = false
}

// Leave says that the drain has ended. A node whose drain had begun counts as out of use until the watch must show it.
func (p *Place) Leave() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if carried := p.carried(); !p.left && hasBegun(carried) {
		p.line.ended[p.ref.UID] = endedDrain{p.ref, time.Now()}
	}
	p.left = true
}

// hasBegun reports whether the drain of a node with this intent is not held back.
func hasBegun(carried intent.Intent) bool { return carried.Version > 0 && !carried.HeldBack }

func (p *Place) ask(takes *bool, i intent.Intent, now time.Time, changed bool) Permit {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	w := p.waiter(i, now)
	permit, known := decision.Permit{}, false
	a := l.answer
	fresh := a != nil && now.Sub(a.at) < lookAgain && a.rules == l.RulesChanged()
	if fresh && !w.Hurries && !w.Opens.After(now) {
		permit, known = a.permits[w.Node]
		known = known && (permit.Begins || permit.Why != decision.WhyRuleTime) // its time has come since
		if changed {
			permit, known = a.full(w.Held) // as most of a storm find it
		}
	}
	if !known {
		permit = l.lineUp(now, w).permits[w.Node]
	}
	l.answer.permits[w.Node] = permit
	*takes = permit.Begins && !w.Replaces
	return l.explain(permit, w, i, now)
}

// A waiter is a held drain with the labels of its node.
type waiter struct {
	decision.Held
	labels map[string]string
}

// waiter is the drain as [decision.Begin] has to know it.
func (p *Place) waiter(i intent.Intent, now time.Time) *waiter {
	l, policy := p.line, p.line.CurrentPolicy()
	w := &waiter{Held: decision.Held{
		Node: string(p.ref.UID), Since: i.CordonedAt, Deadline: i.Deadline(), Hurries: !decision.CanWait(i, now, policy),
	}}
	node, there := l.Cluster.Look(p.ref)
	if there {
		w.labels = node.Labels
	}
	if w.Hurries {
		return w
	}
	w.Joins, w.Replaces = l.Joins(p.ref), l.Replaces(i)
	var limit *decision.NodeRule
	if w.Opens, limit = policy.Opens(i, now); limit != nil && there {
		w.Limits = append(w.Limits, groupOf(limit, w.labels))
	}
	if l.MaxUnready != (intstr.IntOrString{}) {
		w.Limits = append(w.Limits, decision.Group{})
	}
	return w
}

// lineUp has [decision.Begin] answer for all drains that are held back, and for one more. The caller holds mu.
func (l *Line) lineUp(now time.Time, more *waiter) *answer {
	var held []*waiter
	if more != nil {
		held = append(held, more)
	}
	begun := l.justEnded(now)
	for _, p := range l.Places() {
		if p.left {
			continue
		}
		carried := p.carried()
		if p.admitted || p.recording || hasBegun(carried) {
			begun = append(begun, p.ref)
			begun = append(begun, l.joining(p.ref)...)
		}
		asks := more != nil && more.Node == string(p.ref.UID)
		if carried.HeldBack && !asks && l.Cluster.Exists(p.ref) {
			held = append(held, p.waiter(carried, now))
		}
	}
	a := l.lookAtRooms(held, begun, now)
	all := make([]decision.Held, len(held))
	for k, w := range held {
		w.Of = l.groupsOf(a, w.labels)
		all[k] = w.Held
	}
	a.permits = decision.Begin(all, a.rooms, now)
	l.answer = a
	return a
}

// joining are the other Nodes of the same instance that have not got the notices of a drain which has begun. They do
// not wait for room when they get them, a moment later.
func (l *Line) joining(ref cluster.Ref) (refs []cluster.Ref) {
	for _, node := range l.Cluster.ByInstance(ref.Instance) {
		if node.UID != ref.UID && node.Annotations[cluster.IntentAnnotation] == "" {
			refs = append(refs, cluster.RefOf(node))
		}
	}
	return refs
}

// justEnded are the nodes whose drains have ended within watchLag. The caller holds mu.
func (l *Line) justEnded(now time.Time) (refs []cluster.Ref) {
	for uid, e := range l.ended {
		if now.Sub(e.at) > watchLag {
			delete(l.ended, uid)
			continue
		}
		refs = append(refs, e.ref)
	}
	return refs
}

// explain is a permit in the words of those who wait. The caller holds mu.
func (l *Line) explain(p decision.Permit, w *waiter, i intent.Intent, now time.Time) Permit {
	t := Permit{Begins: p.Begins, Why: p.Why, Again: now.Add(lookAgain)}
	switch {
	case p.Begins:
		t.Again = time.Time{}
	case p.Why == decision.WhyRuleTime:
		opens := w.Opens
		if d := i.Deadline(); !d.IsZero() {
			opens = intent.Earlier(opens, d.Add(-l.CurrentPolicy().NodeGracePeriod))
		}
		if opens.After(t.Again) { // else a deadline that is a guess may have passed
			t.Again = opens
		}
		t.Detail = fmt.Sprintf("rule %s lets the drain begin at %s", i.Terms().Rule, w.Opens.UTC().Format(time.RFC3339))
	case p.Why == decision.WhyRuleLimit:
		of := ""
		if p.Group.Per != "" {
			of = " with " + p.Group.Per + "=" + p.Group.Value
		}
		t.Detail = fmt.Sprintf("rule %s limits the nodes%s that are out of use to %s, and they are %s",
			p.Group.Rule, of, p.Group.Nodes, l.usersOf(p.Group, w.Node))
	default:
		_, t.Detail = l.answer.byOption(l.MaxUnready)
		t.Detail = "drains held back: " + t.Detail + ": " + l.usersOf(decision.Group{}, w.Node)
	}
	return t
}

// usersOf names the nodes that use up a limit, for one that waits. The caller holds mu.
func (l *Line) usersOf(g decision.Group, waiting string) string {
	const most = 3
	a, room := l.answer, l.answer.rooms[g]
	if room == nil {
		return "not known"
	}
	users, known := a.users[g]
	if !known {
		users = l.Cluster.Names(room.Out, room.Begun)
		a.users[g] = users
	}
	var names []string
	for uid, name := range users {
		if uid != waiting {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = evacuation.Names(names, most)
	if more := room.Used() - len(users); more > 0 {
		names = append(names, fmt.Sprintf("%d about to be drained", more))
	}
	return strings.Join(names, ", ")
}

// HeldBack returns how many drains wait because too many nodes are out of use by MaxUnready, and a sentence about it
// for people.
func (l *Line) HeldBack() (drains int, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lineUp(time.Now().UTC(), nil).byOption(l.MaxUnready)
}
