package decision

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Rules are what a policy file says. The zero value has none: the options alone decide. It is not
// changed once it is in use, so it may be read concurrently.
type Rules struct {
	// Nodes are tried in their order for each notice about a node: the first that matches decides.
	Nodes []NodeRule
	// Pods are tried in their order for each pod that has to leave.
	Pods []PodRule
}

// A NodeRule says what to do with a node that gets a notice.
type NodeRule struct {
	Name string

	// Kinds are those of the notices that it is about; empty: all but launches.
	Kinds []notice.Kind
	// Codes are patterns, in which * stands for any characters, for the code of a scheduled change or the
	// status checks that fail, as Notice.Detail has them; empty: any.
	Codes []string
	// Nodes select nodes by their labels: one of them has to match; empty: all nodes.
	Nodes []Selector

	Do Effort
	// Before is how long before the start of what is announced the drain begins; negative: at once.
	Before time.Duration
	// Within is the window in which the drain begins, unless that would be too late; nil: any time.
	Within *Window
	// Patient: pods are never forced because of the notice, not even when its deadline is near.
	Patient bool
	// Grace replaces the termination grace period of the pods; zero: it does not.
	Grace time.Duration
	// MostGrace is the longest grace period of a pod, whoever sets it; zero: there is none.
	MostGrace time.Duration
	// BudgetPercent is how much of the notice belongs to PodDisruptionBudgets where a grace period does not fit into it;
	// nil: half of it.
	BudgetPercent *int
	// Limit holds a drain that can wait back; zero: it does not.
	Limit Limit
	// ReplaceFirst: another instance is to stand ready before the drain begins. Limit.Wait bounds how long
	// it is awaited; see DefaultPatience.
	ReplaceFirst bool
	// By is who gets the pods off a node of Karpenter's; empty: the option says.
	By intent.By
}

// A Limit holds drains back while too many nodes of a group are not ready or cordoned, by whomever.
type Limit struct {
	// Nodes is how many of a group may be so, such as 2 or 10%; empty: no limit.
	Nodes string
	// Per is the key of a label: the nodes with the same value are one group, those without it are
	// another. Empty: all nodes are one group.
	Per string
	// Wait is how long a drain is held back at most; zero: as long as it can wait.
	Wait time.Duration
}

// Effort is how far the handler goes with a node, from nothing to a drain.
type Effort uint8

// The efforts, the weakest first.
const (
	Ignoring  Effort = iota // nothing is done
	Notifying               // people are told
	Cordoning               // the node gets no new pods
	Draining                // and its pods leave
)

// String is the effort's name in a policy file.
func (e Effort) String() string { return [...]string{"ignore", "notify", "cordon", "drain"}[e] }

// String says what the rule does, such as "drain at start-30m within nights".
func (r *NodeRule) String() string {
	text := r.Do.String()
	if r.Before >= 0 {
		text += " at start-" + short(r.Before)
	}
	if r.Within != nil {
		text += " within " + r.Within.Name
	}
	if r.Patient {
		text += ", nothing is forced"
	}
	if r.Grace > 0 {
		text += ", grace " + short(r.Grace)
	}
	if r.MostGrace > 0 {
		text += ", grace at most " + short(r.MostGrace)
	}
	if r.BudgetPercent != nil {
		text += fmt.Sprintf(", budgets %d%%", *r.BudgetPercent)
	}
	if r.By != "" {
		text += ", by " + string(r.By)
	}
	if r.Limit.Nodes != "" {
		text += ", limit " + r.Limit.Nodes
		if r.Limit.Per != "" {
			text += " per " + r.Limit.Per
		}
	}
	if r.ReplaceFirst {
		text += ", a replacement first"
	}
	if r.Limit.Wait > 0 {
		text += ", wait at most " + short(r.Limit.Wait)
	}
	return text
}

// short is a time span as a policy file has it, without the units of which there are none.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// A Considered is a rule that was asked about a notice.
type Considered struct {
	Rule NodeRule
	// Why it did not match; MatchesRule: it decides.
	Why Mismatch
}

// Explain returns the rules that are asked about a notice for a node with these labels, in their order.
// The last of them is the one of RuleFor.
func (p Policy) Explain(n notice.Notice, labels map[string]string) (all []Considered) {
	if leftAlone(n, labels) {
		return []Considered{{p.RuleFor(n, labels), MatchesRule}}
	}
	for k := range p.Rules.Nodes {
		r := p.Rules.Nodes[k]
		why := r.Mismatch(n.Kind, n.Detail, labels)
		if all = append(all, Considered{r, why}); why == MatchesRule {
			return all
		}
	}
	return append(all, Considered{p.RuleFor(n, labels), MatchesRule})
}

// Names of the rules that stand for options. They come after those of the file, and the last one
// matches every notice.
const (
	RuleCordonOnly      = "cordon-only"
	RuleCordonRebalance = "cordon-rebalance"
	RuleDrain           = "drain"
)

const (
	// LeaveAloneLabel is a label, with any value, that people give a node: notices about it are told and not acted on,
	// but for a termination by Auto Scaling, whose machine goes anyway.
	LeaveAloneLabel = "node-termination-handler/leave-alone"
	// RuleLeaveAlone is the rule that stands for the label. It comes before all others.
	RuleLeaveAlone = "leave-alone"
)

// ReservedRules are the names that no rule of a file has.
var ReservedRules = append([]string{RuleLeaveAlone}, OptionRules...)

// leftAlone reports whether somebody wants a node with these labels to be left alone for the notice.
func leftAlone(n notice.Notice, labels map[string]string) bool {
	_, is := labels[LeaveAloneLabel]
	return is && n.Kind != notice.ASGTerminate && n.Kind != notice.ASGLaunch
}

// OptionRules are all of these names.
var OptionRules = []string{RuleCordonOnly, RuleCordonRebalance, RuleDrain}

// IsOption reports whether the rule of that name stands for an option.
func IsOption(rule string) bool { return slices.Contains(OptionRules, rule) }

// RuleFor returns the rule that decides about a notice for a node with these labels: that of LeaveAloneLabel, the first
// of the file that matches, or one of those that stand for the options.
func (p Policy) RuleFor(n notice.Notice, labels map[string]string) NodeRule {
	if leftAlone(n, labels) {
		return NodeRule{Name: RuleLeaveAlone, Do: Notifying, Before: -1}
	}
	for k := range p.Rules.Nodes {
		if r := &p.Rules.Nodes[k]; r.Mismatch(n.Kind, n.Detail, labels) == MatchesRule {
			return *r
		}
	}
	switch {
	case p.CordonOnly:
		return NodeRule{Name: RuleCordonOnly, Do: Cordoning, Before: -1}
	case p.CordonRebalance && n.Kind == notice.RebalanceRecommendation:
		return NodeRule{Name: RuleCordonRebalance, Do: Cordoning, Before: -1}
	}
	return NodeRule{Name: RuleDrain, Do: Draining, Before: -1}
}

// Named returns the file's rule for nodes of that name; nil: there is none.
func (r Rules) Named(name string) *NodeRule {
	at := slices.IndexFunc(r.Nodes, func(n NodeRule) bool { return n.Name == name })
	if at < 0 {
		return nil
	}
	return &r.Nodes[at]
}

// Selects reports whether the rule is about nodes with these labels.
func (r *NodeRule) Selects(labels map[string]string) bool { return matchesAny(r.Nodes, labels) }

// DecideAgain is the intent of a node that is held back, by the rules of now. What a rule ignores by
// now, or only tells of, is taken out, but for a termination, whose hook waits for the node. If such a
// notice comes again, the rules of then decide about it.
func (p Policy) DecideAgain(i intent.Intent, labels map[string]string, now time.Time) intent.Intent {
	decide := func(e intent.Entry) NodeRule {
		return p.RuleFor(notice.Notice{Kind: e.Kind, Detail: e.Code}, labels)
	}
	i = i.Dismiss(func(e intent.Entry) bool { return e.Kind != notice.ASGTerminate && decide(e).Do < Cordoning })
	for k, e := range i.Entries {
		rule := decide(e)
		switch {
		case IsOption(rule.Name):
			i.Entries[k].Terms = intent.Terms{}
			continue
		case rule.Do < Cordoning: // a termination: its hook is completed, and that is all
			i.Entries[k].Terms = intent.Terms{Rule: rule.Name, CordonOnly: true}
			continue
		}
		terms := p.terms(&rule, e, isGuessed(i), now)
		hasCome := e.Rule == rule.Name && !e.NotBefore.After(now)
		switch { // the wait of the rule's limit counts from when its time has come
		case hasCome && (terms.NotBefore.IsZero() || rule.Within != nil): // its window is asked again; see opensAt
			terms.NotBefore = e.NotBefore
		case terms.NotBefore.IsZero():
			terms.NotBefore = now.UTC()
		}
		i.Entries[k].Terms = terms
	}
	return i
}

// IsOutdated reports whether the rules of now say something else of a node with these labels than it carries, if it is
// held back: the rules, or the labels, have changed since it was decided about one of its notices.
func (p Policy) IsOutdated(i intent.Intent, labels map[string]string, now time.Time) bool {
	return !reflect.DeepEqual(p.DecideAgain(i, labels, now).Entries, i.Entries)
}

// Mismatch says why a rule does not match.
type Mismatch string

// The reasons why a rule does not match.
const (
	MatchesRule Mismatch = ""
	OtherKind   Mismatch = "another kind"
	OtherCode   Mismatch = "another code"
	OtherNode   Mismatch = "another node"
)

// Mismatch says why the rule does not match a notice of that kind and code for a node with these
// labels; MatchesRule: it does.
func (r *NodeRule) Mismatch(kind notice.Kind, code string, labels map[string]string) Mismatch {
	switch {
	case len(r.Kinds) > 0 && !slices.Contains(r.Kinds, kind):
		return OtherKind
	case !matchesAny(r.Nodes, labels):
		return OtherNode
	case !slices.ContainsFunc(notice.Codes(code), func(c string) bool { return matchesAnyPattern(r.Codes, c) }):
		return OtherCode
	}
	return MatchesRule
}

// terms are what a rule says of a notice with that deadline, which may be only assumed. Only what AWS announces has a
// start: the end of a hook's timeout is none.
func (p Policy) terms(r *NodeRule, e intent.Entry, assumed bool, now time.Time) intent.Terms {
	start := time.Time{}
	if e.Kind == notice.ScheduledChange || e.Kind.Urgent() {
		start = e.Deadline
	}
	t := r.Terms(start, p.latestBegin(e, assumed, now), now)
	t.ReplaceFirst = r.ReplaceFirst && Replaceable(e.Kind)
	return t
}

// Terms are what a rule says of a notice that a node gets now. latest is when the drain has to begin
// at the latest, and start is when what is announced begins; zero: not known.
//
//	at            within    the drain begins
//	now           -         at once
//	start-D       -         D before the start; at once without a start
//	now           window    when the window is open
//	start-D       window    when the window opens for the last time by D before the start, now if it
//	                        is open and does not open again, or D before the start if it is never open
//
// It never begins after latest. ReplaceFirst depends on the kind, and is not set.
func (r *NodeRule) Terms(start, latest, now time.Time) intent.Terms {
	t := intent.Terms{
		Rule: r.Name, CordonOnly: r.Do == Cordoning, Patient: r.Patient, GraceSeconds: int64(r.Grace / time.Second),
		MostGraceSeconds: int64(r.MostGrace / time.Second), BudgetPercent: r.BudgetPercent, By: r.By,
	}
	due := time.Time{}
	if r.Before >= 0 && !start.IsZero() {
		due = start.Add(-r.Before)
	}
	switch {
	case r.Within == nil:
		t.NotBefore = due
	case due.IsZero():
		t.NotBefore = r.Within.Next(now)
	default:
		if t.NotBefore = r.Within.Last(now, due); t.NotBefore.IsZero() {
			t.NotBefore = due
		}
	}
	if !t.NotBefore.IsZero() {
		t.NotBefore = intent.Earlier(t.NotBefore, latest).UTC() // as the node carries it
	}
	if !t.NotBefore.After(now) {
		t.NotBefore = time.Time{}
	}
	return t
}

// A Selector selects objects by their labels or annotations, as a label selector of Kubernetes
// does. The empty one selects everything.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
type Selector []Requirement

// A Requirement is about the value of one key.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string // of In and NotIn some, of Greater and Less one integer, else none
}

// Operator says how a Requirement compares.
type Operator uint8

// The operators.
const (
	In           Operator = iota
	NotIn                 // also where the key is missing
	Exists                //
	DoesNotExist          //
	Greater               // than an integer
	Less
)

// Matches reports whether all requirements hold.
func (s Selector) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s, func(r Requirement) bool { return !r.holds(labels) })
}

func (r Requirement) holds(labels map[string]string) bool {
	value, there := labels[r.Key]
	switch r.Operator {
	case In:
		return there && slices.Contains(r.Values, value)
	case NotIn:
		return !there || !slices.Contains(r.Values, value)
	case Exists:
		return there
	case DoesNotExist:
		return !there
	case Greater:
		return there && len(r.Values) == 1 && compareIntegers(value, r.Values[0]) > 0
	case Less:
		return there && len(r.Values) == 1 && compareIntegers(value, r.Values[0]) < 0
	}
	return false
}

// compareIntegers returns 0 where one of the two is not an integer.
func compareIntegers(a, b string) int {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX != nil || errY != nil {
		return 0
	}
	return cmp.Compare(x, y)
}

// matchesAny reports whether one of the selectors matches. Without selectors everything does.
func matchesAny(selectors []Selector, labels map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// MatchesPattern reports whether a text is as the pattern says, in which * stands for any characters,
// also none.
func MatchesPattern(pattern, text string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	for ok {
		part, next, more := strings.Cut(rest, "*")
		if !more { // the last part ends the text
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part) // the first place leaves the most to the rest
		rest = next
	}
	return false
}

// matchesAnyPattern reports whether one of the patterns matches. Without patterns everything does.
func matchesAnyPattern(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return MatchesPattern(p, text) })
}

// A Window is a time of the day, on some days of the week, in the local time of a place.
type Window struct {
	Name string
	// Days are those on which it opens, Sunday first.
	Days [7]bool
	// From and To are minutes since midnight, by the clock on the wall. If To is not later than From
	// the window closes on the next day.
	From, To int
	Zone     *time.Location
}

// opening returns when the window opens and closes on the day of its place that is so many days
// after the one of at. opens is false if it does not open on that day.
func (w Window) opening(at time.Time, days int) (from, to time.Time, opens bool) {
	year, month, day := at.In(w.Zone).Date()
	// Noon is there on each day, also where the clock skips midnight.
	noon := time.Date(year, month, day+days, 12, 0, 0, 0, w.Zone)
	if !w.Days[noon.Weekday()] {
		return from, to, false
	}
	closes := w.To
	if w.To <= w.From {
		closes += 24 * 60
	}
	year, month, day = noon.Date()
	onWall := func(minutes int) time.Time { return time.Date(year, month, day, 0, minutes, 0, 0, w.Zone) }
	from, to = onWall(w.From), onWall(closes)
	return from, to, from.Before(to) // the clock may skip all of it
}

// Next returns the first moment from at on at which the window is open; zero: it never opens. The
// clock of its place may skip the moment at which it opens, or show it twice: see [time.Date].
func (w Window) Next(at time.Time) time.Time {
	const week = 7
	for days := -1; days <= 2*week; days++ { // one that the clock skips opens a week later
		from, to, opens := w.opening(at, days)
		switch {
		case !opens || !at.Before(to):
		case at.Before(from):
			return from
		default:
			return at
		}
	}
	return time.Time{}
}

// Last returns the last moment from at on, and not after due, at which the window opens, or at
// if it is open then and does not open again by due. Zero: it is never open in that time.
func (w Window) Last(at, due time.Time) time.Time {
	const week = 7
	for days := 1; days >= -2*week-1; days-- { // one that the clock skips opened a week before
		from, to, opens := w.opening(due, days)
		switch {
		case !opens || from.After(due):
		case !from.Before(at):
			return from
		case at.Before(to):
			return at
		default: // those before have closed earlier
			return time.Time{}
		}
	}
	return time.Time{}
}
