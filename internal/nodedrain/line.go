package nodedrain

import (
	"fmt"
	"maps"
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

// A line asks [decision.Begin] about all drains that are held back, at most once a lookAgain where nothing has changed.
// What it keeps is an answer, and which drains have just ended: the watch may not show their nodes as cordoned yet.
type line struct {
	mu     sync.Mutex
	ended  map[types.UID]endedDrain
	answer *lineAnswer
}

type endedDrain struct {
	ref cluster.Ref
	at  time.Time
}

// A lineAnswer is what [decision.Begin] has said.
type lineAnswer struct {
	at      time.Time
	rules   <-chan struct{} // of these rules
	looked  time.Time       // when the nodes were looked at
	permits map[string]decision.Permit
	rooms   map[decision.Group]*decision.Room
	users   map[decision.Group]map[string]string // the names by UID of the nodes that use up a limit
}

// A permit says whether the drain of a node may begin.
type permit struct {
	begins bool
	why    decision.Why
	detail string    // for people, where the node is held back
	again  time.Time // when to ask again, where the node is held back
}

// permitFor says whether the drain of a node that carries an intent, or is about to, may begin now, and sets place to
// that: d.admitted or d.beginning. While one of them is set, the node counts as out of use. changed: not only time
// has passed since it was asked about this drain.
func (d *Drain) permitFor(place *bool, i intent.Intent, now time.Time, changed bool) permit {
	uid := string(d.ref.UID)
	l := &d.r.line
	l.mu.Lock()
	defer l.mu.Unlock()
	h := d.held(i, now)
	p, known := decision.Permit{}, false
	a := l.answer
	fresh := a != nil && now.Sub(a.at) < lookAgain && a.rules == d.r.rulesChanged()
	if fresh && !h.Hurries && !h.Opens.After(now) {
		p, known = a.permits[uid]
		known = known && (p.Begins || p.Why != decision.WhyRuleTime) // its time has come since
		if changed {
			p, known = a.full(h.Held) // as most of a storm find it
		}
	}
	if !known {
		p = d.r.lineUp(now, h).permits[uid]
	}
	l.answer.permits[uid] = p
	*place = p.Begins && !h.Replaces
	return d.r.explain(p, h, i, now)
}

// A waiter is a held drain with the labels of its node.
type waiter struct {
	decision.Held
	labels map[string]string
}

// full is the permit of a drain that nobody has asked about, where a group of it has room for none.
func (a *lineAnswer) full(h decision.Held) (p decision.Permit, full bool) {
	if h.Joins {
		return p, false
	}
	for _, g := range h.Limits {
		if r := a.rooms[g]; r != nil && r.Full() && !r.Out[h.Node] && !r.Begun[h.Node] {
			return decision.Permit{Why: g.Why(), Group: g}, true
		}
	}
	return p, false
}

// explain is a permit in the words of those who wait.
func (r *Registry) explain(p decision.Permit, h *waiter, i intent.Intent, now time.Time) permit {
	t := permit{begins: p.Begins, why: p.Why}
	switch {
	case p.Begins:
	case p.Why == decision.WhyRuleTime:
		t.again = h.Opens
		if d := i.Deadline(); !d.IsZero() {
			t.again = intent.Earlier(t.again, d.Add(-r.NodeGracePeriod))
		}
		if soon := now.Add(lookAgain); t.again.Before(soon) { // a deadline that is a guess may have passed
			t.again = soon
		}
		t.detail = fmt.Sprintf("rule %s lets the drain begin at %s", i.Terms().Rule, h.Opens.UTC().Format(time.RFC3339))
	case p.Why == decision.WhyRuleLimit:
		t.again = now.Add(lookAgain)
		of := ""
		if p.Group.Per != "" {
			of = " with " + p.Group.Per + "=" + p.Group.Value
		}
		t.detail = fmt.Sprintf("rule %s limits the nodes%s that are out of use to %s, and they are %s",
			p.Group.Rule, of, p.Group.Nodes, r.usersOf(p.Group, h.Node))
	default:
		t.again = now.Add(lookAgain)
		_, t.detail = r.line.answer.byOption(r.MaxUnready)
		t.detail += ": " + r.usersOf(decision.Group{}, h.Node)
	}
	return t
}

// usersOf names the nodes that use up a limit, for one that waits. The caller holds the lock of the line.
func (r *Registry) usersOf(g decision.Group, waiting string) string {
	const most = 3
	a, room := r.line.answer, r.line.answer.rooms[g]
	if room == nil {
		return "not known"
	}
	users, known := a.users[g]
	if !known {
		users = r.Cluster.Names(room.Out, room.Begun)
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

// held is a drain as [decision.Begin] has to know it. The caller holds the lock of the line.
func (d *Drain) held(i intent.Intent, now time.Time) *waiter {
	ref := d.ref
	h := &waiter{Held: decision.Held{
		Node: string(ref.UID), Since: i.CordonedAt, Deadline: i.Deadline(), Hurries: !decision.CanWait(i, now, d.r.Policy),
	}}
	node, there := d.r.Cluster.Look(ref)
	if there {
		h.labels = node.Labels
	}
	if h.Hurries {
		return h
	}
	h.Joins, h.Replaces = d.r.isDraining(ref), d.r.replacesFirst(i)
	var limit *decision.NodeRule
	if h.Opens, limit = d.r.CurrentPolicy().Opens(i, now); limit != nil && there {
		h.Limits = append(h.Limits, groupOf(limit, h.labels))
	}
	if d.r.MaxUnready != (intstr.IntOrString{}) {
		h.Limits = append(h.Limits, decision.Group{})
	}
	return h
}

// groupOf is the group of a rule's limit that nodes with these labels are of.
func groupOf(rule *decision.NodeRule, labels map[string]string) decision.Group {
	return decision.Group{
		Rule: rule.Name, Nodes: rule.Limit.Nodes, Per: rule.Limit.Per, Value: labels[rule.Limit.Per],
	}
}

// lineUp has [decision.Begin] answer for all drains that are held back, and for one more. The caller holds the lock
// of the line.
func (r *Registry) lineUp(now time.Time, more *waiter) *lineAnswer {
	var held []*waiter
	if more != nil {
		held = append(held, more)
	}
	begun := r.justEnded(now)
	r.mu.Lock()
	drains := slices.Collect(maps.Values(r.drains))
	r.mu.Unlock()
	for _, nd := range drains {
		carried, _ := nd.current()
		if nd.admitted || nd.beginning || carried.Version > 0 && !carried.HeldBack {
			begun = append(begun, nd.ref)
		}
		asks := more != nil && more.Node == string(nd.ref.UID)
		if carried.HeldBack && !asks && r.Cluster.Exists(nd.ref) {
			held = append(held, nd.held(carried, now))
		}
	}
	a := r.lookAtRooms(held, begun, now)
	for g := range a.rooms {
		isOf := r.selectorOf(g)
		for _, h := range held {
			if isOf(h.labels) {
				h.Of = append(h.Of, g)
			}
		}
	}
	all := make([]decision.Held, len(held))
	for k, h := range held {
		all[k] = h.Held
	}
	a.permits = decision.Begin(all, a.rooms, now)
	r.line.answer = a
	return a
}

// justEnded are the nodes whose drains have ended, and which the watch may not show as they are.
func (r *Registry) justEnded(now time.Time) (refs []cluster.Ref) {
	maps.DeleteFunc(r.line.ended, func(_ types.UID, e endedDrain) bool { return now.Sub(e.at) > watchLag })
	for _, e := range r.line.ended {
		refs = append(refs, e.ref)
	}
	return refs
}

// lookAtRooms looks at the groups whose limits held drains have to keep. begun are the nodes whose drains have begun.
func (r *Registry) lookAtRooms(held []*waiter, begun []cluster.Ref, now time.Time) *lineAnswer {
	a := &lineAnswer{
		at: now, looked: now, rules: r.rulesChanged(),
		rooms: map[decision.Group]*decision.Room{}, users: map[decision.Group]map[string]string{},
	}
	before := r.line.answer
	if before != nil && now.Sub(before.looked) < lookAgain && before.rules == a.rules {
		a.looked = before.looked
	} else {
		before = &lineAnswer{}
	}
	for _, h := range held {
		for _, g := range h.Limits {
			if a.rooms[g] != nil {
				continue
			}
			room, isOf := &decision.Room{Begun: map[string]bool{}}, r.selectorOf(g)
			if seen := before.rooms[g]; seen != nil {
				room.Out, room.All = seen.Out, seen.All
			} else {
				room.Out, room.All = r.Cluster.Unavailable(isOf)
			}
			bound := r.MaxUnready
			if g != (decision.Group{}) {
				bound = intstr.Parse(g.Nodes)
			}
			room.Most = mostUnready(bound, room.All)
			for _, ref := range begun {
				node, there := r.Cluster.Look(ref)
				if uid := string(ref.UID); there && !room.Out[uid] && isOf(node.Labels) {
					room.Begun[uid] = true
				}
			}
			a.rooms[g] = room
		}
	}
	return a
}

// selectorOf reports for the labels of a node whether it is of a group.
func (r *Registry) selectorOf(g decision.Group) func(labels map[string]string) bool {
	if g == (decision.Group{}) {
		return func(map[string]string) bool { return true }
	}
	rule := r.CurrentPolicy().Rules.Named(g.Rule)
	return func(labels map[string]string) bool {
		return rule != nil && rule.Selects(labels) && labels[g.Per] == g.Value
	}
}

// HeldBack returns how many drains wait because too many nodes are out of use, or because a rule of
// the policy file says so, and a sentence about it for people.
func (r *Registry) HeldBack() (drains int, why string) {
	r.line.mu.Lock()
	drains, why = r.lineUp(time.Now().UTC(), nil).byOption(r.MaxUnready)
	r.line.mu.Unlock()
	if byRules := r.Load().HeldBack - drains; byRules > 0 {
		drains += byRules
		if why != "" {
			why += "; "
		}
		why += fmt.Sprintf("drains that wait as their rules say: %d", byRules)
	}
	return drains, why
}

// byOption is how many drains the limit of the options holds back, and a sentence about it.
func (a *lineAnswer) byOption(bound intstr.IntOrString) (drains int, why string) {
	for _, p := range a.permits {
		if !p.Begins && p.Why == decision.WhyMaxUnready {
			drains++
		}
	}
	r := a.rooms[decision.Group{}]
	if drains == 0 || r == nil {
		return 0, ""
	}
	return drains, fmt.Sprintf(
		"drains held back: %d, because %d of %d nodes are not ready, cordoned or about to be; max-unready-nodes is %s",
		drains, r.Used(), r.All, bound.String())
}

// mostUnready is how many of the cluster's nodes may be not ready or cordoned. A
// percentage is rounded down, but one node may always be.
func mostUnready(bound intstr.IntOrString, nodes int) int {
	most, err := intstr.GetScaledValueFromIntOrPercent(&bound, nodes, false)
	if err != nil { // neither a number nor a percentage: the configuration has no such value
		return nodes
	}
	return max(1, most)
}
