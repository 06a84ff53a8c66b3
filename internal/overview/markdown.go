package overview

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Report is what an incident channel wants to know of drains that have ended.
type Report struct {
	At time.Time `json:"at"`
	// Node is the node that it is about; empty: it is about all.
	Node string `json:"node,omitempty"`
	// Since is the earliest end of a drain that it is about; zero: all that are known.
	Since time.Time `json:"since,omitzero"`
	// Episodes are the drains, the newest first.
	Episodes []Episode `json:"episodes"`
	// KnownSince is from when on the leader knows all drains; zero: it was not asked.
	KnownSince time.Time `json:"knownSince,omitzero"`
	// Missing says why the leader was not asked; else it is empty.
	Missing string `json:"missing,omitempty"`
	// Current is the drain of Node that is in progress; nil: none is, or it is not known.
	Current *Node `json:"current,omitempty"`
	// Events are those of Node, the oldest first, where the leader was not asked.
	Events []Event `json:"events,omitempty"`
}

// An Event is one of Kubernetes.
type Event struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	Text   string    `json:"text"`
}

const (
	// mostRows bounds the table of drains, and mostDetails the drains that are told in full. A channel cuts more.
	mostRows    = 50
	mostDetails = 8
)

// Select returns the episodes that a report is about.
func Select(all []Episode, node string, since time.Time) []Episode {
	chosen := []Episode{}
	for _, e := range all {
		if (node == "" || e.Node == node) && !e.Ended.Before(since) {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// Lost returns how many pods were lost: they were still there, or perhaps, when the machine went.
func (r *Report) Lost() (lost int) {
	for k := range r.Episodes {
		lost += r.Episodes[k].lost()
	}
	return lost
}

// Harmed reports whether a pod was lost, also where it is not known which, or killed before its grace period was over.
func (r *Report) Harmed() bool {
	return slices.ContainsFunc(r.Episodes, func(e Episode) bool { return e.Failed() || e.CutShort() })
}

// CutShort reports whether a pod is known to have been killed before the end of its grace period.
func (e *Episode) CutShort() bool { return e.Pods != nil && e.Pods.Cut > 0 }

// Incomplete reports whether it is not known how a drain has ended, or what became of all of its pods, or of a part of
// the time which drains there were.
func (r *Report) Incomplete() bool {
	unknown := slices.ContainsFunc(r.Episodes, func(e Episode) bool {
		return e.Outcome == "" || e.Pods != nil && e.Pods.Partial
	})
	return unknown || r.Missing != "" || r.isPartial()
}

// isPartial reports whether the leader does not know all drains of the time that the report is about.
func (r *Report) isPartial() bool { return !r.Since.IsZero() && r.KnownSince.After(r.Since) }

// Failed reports whether pods were lost, or are not known to have left in time. Report and page go by that.
func (e *Episode) Failed() bool {
	return slices.Contains([]string{"missed", "gone", "unconfirmed"}, e.Outcome) || e.lost() > 0
}

// moved reports whether pods may have been moved: the node was not only cordoned or held back.
func (e *Episode) moved() bool {
	return e.Pods != nil || e.Known == SinceTakeOver || e.Outcome != "cordoned" && e.Outcome != "called-off"
}

func (e *Episode) lost() int {
	if e.Pods == nil {
		return 0
	}
	return e.Pods.Missed + e.Pods.Lost + e.Pods.Unconfirmed
}

// wentWrong reports whether a reader wants to know more of the episode.
func (e *Episode) wentWrong() bool {
	hurried := e.Pods != nil && e.Pods.Forced > 0 || e.CutShort()
	return e.Failed() || hurried || e.Uncordoned != "" ||
		e.Slack != nil && *e.Slack <= 0 || len(e.Targets) > 0 || e.Volumes > 0
}

// Markdown returns the report. Names and texts of others are no markdown in it: they make neither links nor mentions.
func (r *Report) Markdown() string {
	var b strings.Builder
	r.writeHead(&b)
	if r.Current != nil {
		r.writeCurrent(&b)
	}
	if len(r.Episodes) > 1 {
		r.writeTable(&b)
	}
	for _, e := range r.toTell() {
		e.write(&b)
	}
	if len(r.Events) > 0 {
		r.writeEvents(&b)
	}
	r.writeAdvice(&b)
	return b.String()
}

func (r *Report) writeHead(b *strings.Builder) {
	if r.Node != "" {
		fmt.Fprintf(b, "# Drains of node %s\n\n", name(r.Node))
	} else {
		fmt.Fprintf(b, "# Drains since %s\n\n", day(r.Since))
	}
	if r.Missing != "" {
		fmt.Fprintf(b, "> **Incomplete**: %s. What follows is what nodes and their Events tell: "+
			"what kept pods is not known.\n\n", prose(strings.TrimSuffix(r.Missing, ".")))
	}
	switch {
	case len(r.Episodes) > 0:
		b.WriteString(r.summary() + "\n\n")
	case r.KnownSince.IsZero():
		b.WriteString("No drain that has ended is known.\n\n")
	default:
		since := slices.MaxFunc([]time.Time{r.Since, r.KnownSince}, time.Time.Compare)
		fmt.Fprintf(b, "No drain has ended since %s.\n\n", day(since))
	}
	carried := func(e Episode) bool { return e.Known == AsCarried }
	mayMiss := r.Node != "" && len(r.Episodes) == 0 && r.Current == nil || slices.ContainsFunc(r.Episodes, carried)
	if r.isPartial() || !r.KnownSince.IsZero() && mayMiss {
		fmt.Fprintf(b, "> The leader knows all drains since %s. Of earlier ones it knows what the nodes carry that still "+
			"exist.\n\n", day(r.KnownSince))
	}
}

// summary counts drains and pods.
func (r *Report) summary() string {
	outcomes := map[string]int{}
	for k := range r.Episodes {
		outcomes[r.Episodes[k].Outcome]++
	}
	var parts []string
	for _, end := range ends {
		if n := outcomes[end.outcome]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, end.outcome))
		}
	}
	if n := outcomes[""]; n > 0 {
		parts = append(parts, fmt.Sprintf("of %d it is not known", n))
	}
	text := fmt.Sprintf("%s: %s.", Count(len(r.Episodes), "drain"), strings.Join(parts, ", "))
	if pods := r.Pods(); pods != "" {
		text += " " + pods
	}
	return text
}

// Pods counts what became of the pods, in markdown; empty: it is not known.
func (r *Report) Pods() string {
	var left, forced, cut, stayed, known, partial, unknown int
	for k := range r.Episodes {
		p := r.Episodes[k].Pods
		if p == nil {
			if r.Episodes[k].moved() {
				unknown++
			}
			continue
		}
		known++
		left += p.Evicted + p.Ended
		forced += p.Forced
		cut += p.Cut
		stayed += p.Stayed
		if p.Partial {
			partial++
		}
	}
	if known == 0 {
		return ""
	}
	of, besides := "", ""
	if unknown > 0 {
		of = " of " + Count(known, "drain")
	}
	if cut > 0 {
		besides = fmt.Sprintf("%d killed before the end of their grace periods, ", cut)
	}
	if stayed > 0 {
		besides += fmt.Sprintf("%d stayed, ", stayed)
	}
	lost := fmt.Sprintf("**%d lost**.", r.Lost())
	if unknown+partial > 0 && r.Lost() == 0 { // no bold zero beside what is not known
		lost = "none of them lost."
	}
	if unknown > 0 && r.Lost() == 0 {
		lost += fmt.Sprintf(" Of %s it is not known.", Count(unknown, "drain"))
	}
	text := fmt.Sprintf("Pods%s: %d left in order, %d forced, %s%s", of, left, forced, besides, lost)
	if partial > 0 {
		text += fmt.Sprintf(" Of %s, interrupted by a pause or a change of leader, the pods that had left before are not "+
			"counted.", Count(partial, "drain"))
	}
	return text
}

func (r *Report) writeCurrent(b *strings.Builder) {
	n := r.Current
	text := fmt.Sprintf("**In progress**: %s, since %s", name(n.Kind), Length(r.At.Sub(n.Since)))
	if !n.Deadline.IsZero() {
		text += fmt.Sprintf(", deadline %s (in %s)", clock(n.Deadline, r.At), Length(n.Deadline.Sub(r.At)))
	}
	if n.Pods != nil {
		text += ", " + Count(n.Pods.Left, "pod") + " left"
	}
	b.WriteString(text + ".\n")
	for k := range n.WaitsFor {
		b.WriteString("- It waits: " + prose(n.WaitsFor[k].describe(r.At)) + "\n")
	}
	b.WriteString("\n")
}

func (r *Report) writeTable(b *strings.Builder) {
	b.WriteString("| ended | node | kind | outcome | slack | forced | lost |\n|---|---|---|---|---|---|---|\n")
	for k := range r.Episodes[:min(len(r.Episodes), mostRows)] {
		e := &r.Episodes[k]
		forced, lost := "?", "?"
		switch {
		case e.Pods != nil:
			forced, lost = fmt.Sprint(e.Pods.Forced), fmt.Sprint(e.lost())
		case !e.moved():
			forced, lost = "-", "-"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n",
			day(e.Ended), name(e.Node), prose(e.Kind), prose(e.Outcome), e.slack(), forced, lost)
	}
	if more := len(r.Episodes) - mostRows; more > 0 {
		fmt.Fprintf(b, "\nThere are %d more, which are older.\n", more)
	}
	b.WriteString("\n")
}

func (e *Episode) slack() string {
	if e.Slack == nil {
		return "-"
	}
	return seconds(*e.Slack)
}

// toTell are the episodes that are told in full: all of a few, of many those that went wrong.
func (r *Report) toTell() (told []*Episode) {
	const few = 3
	for k := range r.Episodes {
		if e := &r.Episodes[k]; len(told) < mostDetails && (len(r.Episodes) <= few || e.wentWrong()) {
			told = append(told, e)
		}
	}
	return told
}

func (e *Episode) write(b *strings.Builder) {
	fmt.Fprintf(b, "## %s: %s, %s\n\n", name(e.Node), prose(e.Kind), prose(e.Outcome))
	if e.Instance != "" {
		fmt.Fprintf(b, "Instance %s. ", name(e.Instance))
	}
	b.WriteString(e.verdict() + "\n\n")
	b.WriteString("**What AWS said**\n")
	if len(e.Notices) == 0 {
		b.WriteString("- Not known.\n")
	}
	for _, n := range e.Notices {
		b.WriteString("- " + n.describe() + "\n")
	}
	b.WriteString("\n**What was done when**\n\n| after | at | what |\n|---|---|---|\n")
	begin := e.begin()
	for _, s := range e.steps() {
		fmt.Fprintf(b, "| %s | %s | %s |\n", Length(s.at.Sub(begin)), clock(s.at, begin), s.what)
	}
	e.writePods(b)
	b.WriteString("\n")
}

// ends are the outcomes of drains, in the order in which they are counted.
var ends = []struct{ outcome, verdict string }{
	{"drained", "All pods that had to leave have left."},
	{"missed", "Pods were still there at the deadline."},
	{"gone", "The machine was gone before all pods had left."},
	{"unconfirmed", "Pods should have ended, and no kubelet says that they have."},
	{"cordoned", "The node was only cordoned."},
	{"called-off", "The drain was called off."},
}

// verdict says how it ended.
func (e *Episode) verdict() string {
	text := "How it ended is not known."
	for _, end := range ends {
		if end.outcome == e.Outcome {
			text = end.verdict
		}
	}
	if e.unlisted() {
		text = "Which pods were still there is not known: they were not listed in time."
	}
	if e.Uncordoned != "" {
		cordoned := "was cordoned too late"
		if e.CordonedAt.IsZero() {
			cordoned = "was not cordoned"
		}
		text += " The node " + cordoned + ": " + prose(strings.TrimSuffix(e.Uncordoned, ".")) + "."
	}
	if e.Why != "" {
		text += " Reason: " + prose(e.Why) + "."
	}
	switch {
	case e.Slack == nil:
	case *e.Slack > 0:
		text += fmt.Sprintf(" The pods were gone %s before the deadline.", e.slack())
	default:
		text += fmt.Sprintf(" No time was left: the slack is %s.", e.slack())
	}
	switch e.Known {
	case SinceTakeOver:
		text += " It was interrupted, by a pause or a change of leader: pods that had left before are not counted, and the " +
			"times of what was done before are not known."
	case AsCarried:
		if e.Pods != nil && e.Pods.Partial {
			text += " It was interrupted, by a pause or a change of leader: pods that had left before are not counted."
		}
		text += " Only what the node carries is known: nothing of what kept pods, and of volumes."
	case Everything:
	}
	return text
}

func (n *Notice) describe() string {
	text := day(n.At) + " " + prose(n.Kind)
	if n.Code != "" {
		text += " " + name(n.Code)
	}
	if !n.Deadline.IsZero() {
		text += ", deadline " + clock(n.Deadline, n.At) + " (" + Length(n.Deadline.Sub(n.At)) + " later)"
	}
	if n.Rule != "" {
		text += ", rule " + name(n.Rule)
	}
	if n.ID != "" {
		text += ", event " + names(append([]string{n.ID}, n.Also...))
	}
	return text
}

// begin is the time that those of its steps are told from.
func (e *Episode) begin() time.Time { return cmp.Or(e.Began, e.CordonedAt, e.FirstAsked, e.Ended) }

// cordonedAgain reports whether the node was cordoned before that, too: a pod was asked to leave earlier.
func (e *Episode) cordonedAgain() bool {
	return !e.FirstAsked.IsZero() && e.CordonedAt.After(e.FirstAsked) && e.Uncordoned == ""
}

// A step is something that was done.
type step struct {
	at   time.Time
	what string
}

// HookNames are the names of hooks, each with its group.
func HookNames(hooks []Hook) (all []string) {
	for _, h := range hooks {
		all = append(all, h.Group+"/"+h.Name)
	}
	return all
}

// steps are what is known to have been done, in its order.
func (e *Episode) steps() (steps []step) {
	add := func(at time.Time, what string) {
		if !at.IsZero() {
			steps = append(steps, step{at, what})
		}
	}
	add(e.Began, "the first notice")
	cordoned := "the node was cordoned"
	switch {
	case e.Known == SinceTakeOver:
		cordoned += ", perhaps again"
	case e.cordonedAgain():
		cordoned += " again: somebody had uncordoned it"
	}
	if e.HeldBack != "" {
		cordoned += ". Before that it was held back: " + prose(e.HeldBack)
	}
	add(e.CordonedAt, cordoned)
	add(e.FirstAsked, "the first pod was asked to leave")
	if !e.LastAsked.Equal(e.FirstAsked) {
		add(e.LastAsked, "the last pod was asked to leave")
	}
	add(e.PodsGone, "no pod was waited for any more")
	add(e.Deadline, "**the deadline**")
	ended := "the drain ended"
	if len(e.Hooks) > 0 {
		ended += ", lifecycle hook completed: " + names(HookNames(e.Hooks))
	}
	if len(e.UncompletedHooks) > 0 {
		ended += ", **lifecycle hook not completed**: " + names(HookNames(e.UncompletedHooks))
	}
	add(e.Ended, ended)
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	return steps
}

func (e *Episode) writePods(b *strings.Builder) {
	if p := e.Pods; p != nil {
		p.write(b, e.lost())
	}
	if len(e.Refused) > 0 {
		b.WriteString("\n**What kept pods**\n")
	}
	for _, r := range e.Refused {
		count := ""
		if r.Pods > 0 {
			count = Count(r.Pods, "pod") + ": "
		}
		b.WriteString("- " + count + prose(r.Why) + "\n")
	}
	if e.AwaitedBalancers > 0 || len(e.Targets) > 0 {
		fmt.Fprintf(b, "\n**Load balancers**: awaited for %s", seconds(e.AwaitedBalancers))
		if len(e.Targets) > 0 {
			b.WriteString("; the machine may still have been a target" + listed(e.Targets))
		}
		b.WriteString(".\n")
	}
	if e.AwaitedVolumes > 0 || e.Volumes > 0 {
		fmt.Fprintf(b, "\n**Volumes**: awaited for %s, %d still attached at the end.\n", seconds(e.AwaitedVolumes), e.Volumes)
	}
}

// unlisted reports whether the pods that had to leave are not known, because they were not listed in time.
func (e *Episode) unlisted() bool {
	return slices.ContainsFunc(e.Refused, func(r Refusal) bool {
		return slices.Contains([]Cause{Gate, List, FailingList}, r.Cause)
	})
}

func (p *Counts) write(b *strings.Builder, lost int) {
	fmt.Fprintf(b, "\n**Pods**: %d evicted, %d ended by themselves, %d forced%s. Lost: **%d**%s.\n",
		p.Evicted, p.Ended, p.Forced, listed(p.ForcedPods), lost, listed(p.Remaining))
	if len(p.CutShort) > 0 {
		fmt.Fprintf(b, "\n**Killed before the end of their grace periods**%s.\n", listed(p.CutShort))
	}
	if p.Stayed > 0 {
		fmt.Fprintf(b, "\n**Stayed**, as an option, a rule or their owners say, or as they came during the drain, and go "+
			"with the machine: %d%s.\n",
			p.Stayed, listed(p.StayedPods))
	}
}

func seconds(s float64) string { return Length(time.Duration(s * float64(time.Second))) }

// listed lists names after a number.
func listed(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return " (" + names(texts) + ")"
}

func names(texts []string) string {
	var all []string
	for _, n := range texts {
		all = append(all, name(n))
	}
	return strings.Join(all, ", ")
}

func (r *Report) writeEvents(b *strings.Builder) {
	b.WriteString("**Events of the node**\n")
	for _, e := range r.Events[max(0, len(r.Events)-mostRows):] {
		fmt.Fprintf(b, "- %s %s: %s\n", day(e.At), name(e.Reason), prose(e.Text))
	}
	b.WriteString("\n")
}

func (r *Report) writeAdvice(b *strings.Builder) {
	var all []string
	for k := range r.Episodes {
		for _, a := range r.Episodes[k].advice() {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	if len(all) == 0 {
		return
	}
	b.WriteString("## What to change\n\n")
	for _, a := range all[:min(len(all), mostRows)] {
		b.WriteString("- " + a + "\n")
	}
}

// day is a moment in UTC with its date.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// name is a name as code. Of what would end the code, or be a mention in a chat, other characters are shown.
func name(text string) string {
	if text == "" {
		return "-"
	}
	return "`" + inCode.Replace(Clean(text)) + "`"
}

// prose is a text of others that is no markdown, and no address that would be a link.
func prose(text string) string {
	return asProse.Replace(www.ReplaceAllString(CleanText(text), "${1}．"))
}

var (
	inCode  = strings.NewReplacer("`", "'", "|", "¦", "<", "‹", ">", "›", "@", "＠")
	asProse = strings.NewReplacer("://", "：//", "<", "‹", ">", "›", "&", "＆", "@", "＠",
		`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "#", `\#`, "~", `\~`, "!", `\!`)
	www = regexp.MustCompile(`(?i)(www)\.`)
)
