package controller

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The rules of a policy file in a history, and who judges whether drains keep them, with code of its own.

const (
	poolLabel = "pool"
	zoneLabel = corev1.LabelTopologyZone
)

// poolOf and zoneOf are labels of a machine's Nodes.
func poolOf(k int) string { return []string{"blue", "red"}[k%2] }
func zoneOf(k int) string { return []string{"a", "b"}[k/2%2] }

// A lifeRule is a rule in a history.
type lifeRule struct {
	kind    notice.Kind // Ignored: all
	pool    string      // empty: all nodes
	ignores bool
	before  time.Duration // negative: at once
	from    time.Duration // when its window opens, from midnight
	open    time.Duration // for how long it is open each day; 0: there is no window
	limit   string        // empty: none
	perZone bool
	wait    time.Duration // at a limit; 0: as long as it can
	first   bool          // a replacement is to be there first
}

func (r lifeRule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kind %s pool %q", r.kind, r.pool)
	switch {
	case r.ignores:
		b.WriteString(" ignore")
	case r.before >= 0:
		fmt.Fprintf(&b, " at start-%s", r.before)
	}
	if r.open > 0 {
		fmt.Fprintf(&b, " within %s+%s", r.from, r.open)
	}
	if r.first {
		b.WriteString(" replacement first")
	}
	if r.limit != "" {
		fmt.Fprintf(&b, " limit %s per zone %t, wait %s", r.limit, r.perZone, r.wait)
	}
	return b.String()
}

func ruleName(k int) string { return "rule" + strconv.Itoa(k) }

// ruleFile is what the program has to read for these rules.
func ruleFile(rules []lifeRule) *decision.Rules {
	file := &decision.Rules{}
	for k, r := range rules {
		n := decision.NodeRule{Name: ruleName(k), Do: decision.Draining, Before: r.before, ReplaceFirst: r.first}
		if r.ignores {
			n.Do = decision.Ignoring
		}
		if r.kind != notice.Ignored {
			n.Kinds = []notice.Kind{r.kind}
		}
		if r.pool != "" {
			n.Nodes = []decision.Selector{{{Key: poolLabel, Operator: decision.In, Values: []string{r.pool}}}}
		}
		if r.open > 0 {
			n.Within = &decision.Window{
				Name: "daily", Days: [7]bool{true, true, true, true, true, true, true},
				From: int(r.from / time.Minute), To: int((r.from+r.open)/time.Minute) % (24 * 60), Zone: time.UTC,
			}
		}
		if r.limit != "" {
			n.Limit = decision.Limit{Nodes: r.limit, Wait: r.wait}
			if r.perZone {
				n.Limit.Per = zoneLabel
			}
		}
		file.Nodes = append(file.Nodes, n)
	}
	return file
}

// A lifeFile is the policy file of a world. It implements PolicyFile.
type lifeFile struct {
	mu      sync.Mutex
	rules   *decision.Rules
	changed chan struct{}
}

func (f *lifeFile) Rules() *decision.Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

func (f *lifeFile) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *lifeFile) set(rules []lifeRule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed != nil {
		close(f.changed)
	}
	f.rules, f.changed = ruleFile(rules), make(chan struct{})
}

// rules are those of a history, and when they change.
func (d draw) rules() {
	if d.chance(0.5) {
		return
	}
	for range 1 + d.IntN(3) {
		var rules []lifeRule
		for range 1 + d.IntN(3) {
			rules = append(rules, d.rule())
		}
		d.h.policies = append(d.h.policies, rules)
	}
	last := time.Duration(0)
	if len(d.h.steps) > 0 {
		last = min(d.h.steps[len(d.h.steps)-1].at, 24*time.Hour)
	}
	for k := range d.h.policies[1:] {
		d.add(d.between(0, last), step{what: doRules, m: -1, text: strconv.Itoa(k + 1)})
	}
	for range d.IntN(4) { // what rules are made for
		at := d.between(0, last)
		d.add(at, step{what: doAnnounce, m: d.machine(), text: pick(d, "stop", "reboot"), d: d.between(time.Minute, 6*time.Hour), late: d.late()})
		if d.chance(0.5) {
			d.add(at+d.gap(), step{what: doRebalance, m: d.machine()})
		}
	}
	d.sort()
}

func (d draw) rule() lifeRule {
	r := lifeRule{
		kind: pick(d, notice.Ignored, notice.ScheduledChange, notice.ScheduledChange, notice.RebalanceRecommendation, notice.ASGTerminate), pool: pick(d, "", "", "blue", "red"),
		ignores: d.chance(0.1), first: d.chance(0.2), before: -1,
	}
	if r.ignores && (r.kind == notice.Ignored || r.kind == notice.ASGTerminate) { // its hooks are not waited for
		r.kind = notice.ScheduledChange
	}
	if d.chance(0.4) {
		r.before = d.between(0, 2*time.Hour)
	}
	if d.chance(0.5) {
		r.from, r.open = d.between(0, 5*time.Hour).Truncate(time.Minute), d.between(5*time.Minute, 3*time.Hour).Truncate(time.Minute)
	}
	if d.chance(0.6) {
		r.limit, r.perZone, r.wait = pick(d, "1", "1", "2", "50%"), d.chance(0.5), d.some(0.4, d.between(time.Minute, 20*time.Minute))
	}
	return r
}

// setRules changes the policy file.
func (w *world) setRules(which string) {
	k, err := strconv.Atoi(which)
	w.must(err)
	w.mu.Lock()
	w.policy, w.policySince = w.h.policies[k], time.Now()
	w.mu.Unlock()
	w.file.set(w.h.policies[k])
}

// ruleOf is the rule of an entry as it is now; nil: none. w.mu is held.
func (w *world) ruleOf(e intent.Entry) *lifeRule {
	for k := range w.policy {
		if ruleName(k) == e.Rule {
			return &w.policy[k]
		}
	}
	return nil
}

// opens is when the window opens for the last time at or before a moment, and closes again.
func (r *lifeRule) opens(at time.Time) (from, to time.Time) {
	from = at.UTC().Truncate(24 * time.Hour).Add(r.from)
	if from.After(at) {
		from = from.Add(-24 * time.Hour)
	}
	return from, from.Add(r.open)
}

// hasTime reports whether the rule lets a drain for an entry begin. w.mu is held.
func (w *world) hasTime(e intent.Entry, now time.Time) bool {
	r := w.ruleOf(e)
	if r == nil {
		return !e.NotBefore.After(now)
	}
	due := time.Time{}
	switch changes := e.Kind == notice.ScheduledChange; {
	case changes && e.Deadline.IsZero(): // it has started
		return true
	case changes && r.before >= 0: // nothing else has a start
		due = e.Deadline.Add(-r.before)
	}
	if r.open == 0 || !due.IsZero() && !due.After(now) {
		return !due.After(now)
	}
	from, to := r.opens(now)
	return now.Before(to) && (due.IsZero() || from.Add(24*time.Hour).After(due))
}

// A lifeRoom is a group of Nodes of which only so many may be out of use.
type lifeRoom struct {
	name string
	most string
	has  func(r *nodeRecord) bool
}

// roomsOf are those that a drain which can wait has to keep. i is the intent before it begins. w.mu is held.
func (w *world) roomsOf(r *nodeRecord, i intent.Intent, now time.Time) (rooms []lifeRoom) {
	if n := w.h.options.maxUnready; n > 0 {
		rooms = append(rooms, lifeRoom{"all nodes", strconv.Itoa(n), func(*nodeRecord) bool { return true }})
	}
	var limit *lifeRule
	others := slices.ContainsFunc(i.Entries, func(e intent.Entry) bool { return !e.ReplaceFirst && w.hasTime(e, now) })
	for _, e := range i.Entries {
		if !w.hasTime(e, now) || e.ReplaceFirst && others { // its limit bounds who waits for a replacement
			continue
		}
		rule := w.ruleOf(e)
		since := later(later(i.CordonedAt, e.NotBefore), i.Replacement.Until)
		waited := rule != nil && rule.wait > 0 && i.HeldBack && !now.Before(since.Add(rule.wait))
		if rule == nil || rule.limit == "" || waited {
			return rooms
		}
		if limit == nil {
			limit = rule
		}
	}
	if limit != nil {
		rooms = append(rooms, lifeRoom{"the nodes of rule " + limit.String(), limit.limit, func(o *nodeRecord) bool {
			return (limit.pool == "" || poolOf(o.m.k) == limit.pool) && (!limit.perZone || zoneOf(o.m.k) == zoneOf(r.m.k))
		}})
	}
	return rooms
}

// used is how many Nodes of a room are out of use, beside one, and how many may be. Both mu are held.
func (w *world) used(room lifeRoom, beside *nodeRecord, isOut func(o *nodeRecord, n *corev1.Node) bool) (out, most int, names string) {
	all := 0
	for _, o := range w.nodes {
		u := w.api.objects["nodes/"+o.name]
		if !o.deleted.IsZero() || u == nil || !room.has(o) {
			continue
		}
		all++
		if n := asNode(u); o != beside && isOut(o, n) {
			out++
			names += " " + o.name
		}
	}
	most, err := intstr.GetScaledValueFromIntOrPercent(new(intstr.Parse(room.most)), all, false)
	w.must(err)
	return out, max(1, most), names
}

// checkBegin looks at a drain that begins and could have waited. Both mu are held.
func (w *world) checkBegin(r *nodeRecord, b, a *corev1.Node, now time.Time) {
	i, ok, err := cluster.ReadIntent(a)
	guessed := slices.ContainsFunc(i.Hooks, func(h intent.Hook) bool { return h.Assumed }) // its deadline binds
	if guessed || len(w.h.policies) == 0 || !ok || err != nil || !decision.CanWait(i, now, w.policyOf()) || w.troubled("API", recovered) ||
		now.Sub(w.policySince) < nearly || w.alone(r, i, now) {
		return
	}
	was, _, _ := cluster.ReadIntent(b)
	goesOn := slices.ContainsFunc(w.records(), func(o *nodeRecord) bool { // as the next Node of its machine
		return o != r && o.m == r.m && (o.deleted.IsZero() || o.state == cluster.StateDraining)
	})
	if !goesOn && i.ReplacesFirst() && i.Replacement.Step == intent.NotReplacing {
		w.violate(keepsTime, "the drain of node %s begins, and no replacement was asked for: %+v", r.name, i.Entries)
	}
	hasTime := func(e intent.Entry) bool {
		before := !was.HeldBack && e.Time.Before(w.policySince) && !e.NotBefore.After(now) // other rules have let it begin
		return before || w.hasTime(e, now)
	}
	if !slices.ContainsFunc(i.Entries, hasTime) {
		w.violate(keepsTime, "the drain of node %s begins, and no rule says so: %+v, before %+v; rules: %v", r.name, i.Entries, was.Entries, w.policy)
	}
}

// watchWaiting looks again and again, while Nodes wait, whether one has had time and room for a while. w.mu is held.
func (w *world) watchWaiting() {
	const each = 20 * time.Second
	if w.watches {
		return
	}
	w.watches = true
	var look func()
	look = func() {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.watches = false
		now := time.Now()
		for _, r := range w.nodes {
			u := w.api.objects["nodes/"+r.name]
			if !r.deleted.IsZero() || u == nil {
				continue
			}
			node := asNode(u)
			if node.UID != r.uid || node.Labels[cluster.StateLabel] != cluster.StateWaiting {
				r.couldSince = time.Time{}
				continue
			}
			i, _, _ := cluster.ReadIntent(node)
			replaces := i.ReplacesFirst()
			if w.watches = true; !w.couldBegin(r, node, now) || r.replaces && !replaces {
				r.couldSince, r.replaces = time.Time{}, replaces
				continue
			}
			if r.replaces = replaces; r.couldSince.IsZero() {
				r.couldSince = now
			}
			if w.calm(r.couldSince, now) >= heard+w.patience(i) {
				w.violate(noStarving, "node %s waits, and has had time and room since %s; notices: %s", r.name, w.since(r.couldSince), w.noticesOf(r.m))
			}
		}
		if w.watches {
			w.after(each, look)
		}
	}
	w.after(each, look)
}

// couldBegin reports whether nothing is in the way of a drain that is held back. Both mu are held.
func (w *world) couldBegin(r *nodeRecord, node *corev1.Node, now time.Time) bool {
	i, ok, err := cluster.ReadIntent(node)
	i = i.Current(now) // a deadline that passed long ago hurries nobody
	if !ok || err != nil || !slices.ContainsFunc(i.Entries, func(e intent.Entry) bool { return w.hasTime(e, now) }) {
		return !ok || err != nil || !decision.CanWait(i, now, w.policyOf())
	}
	if !decision.CanWait(i, now, w.policyOf()) {
		return true
	}
	return !slices.ContainsFunc(w.roomsOf(r, i, now), func(room lifeRoom) bool {
		out, most, _ := w.used(room, r, func(o *nodeRecord, n *corev1.Node) bool {
			return n.Spec.Unschedulable || !o.ready || n.Labels[cluster.StateLabel] == cluster.StateDraining
		})
		return out >= most
	})
}
