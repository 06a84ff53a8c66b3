package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// A WhatIf asks what a notice would do to a node, or to each node of the cluster by itself.
type WhatIf struct {
	Kind notice.Kind // one that is Sendable
	Node string      // empty with All
	All  bool
	JSON bool
}

// Run prints what would happen, and reports whether pods would be lost, cut short, or not created again.
func (w WhatIf) Run(ctx context.Context, s *Session, out io.Writer) (harms bool, err error) {
	targets, view, err := w.targets(ctx, s)
	if err != nil {
		return false, err
	}
	now := time.Now().Truncate(time.Second)
	s.readLease(ctx)
	s.lookUpAll(ctx, targets)
	if w.All {
		targets = slices.DeleteFunc(targets, (*target).mayBeElsewhere)
	}
	if len(targets) == 0 {
		return false, errors.New("no node of the cluster is known to be an EC2 instance")
	}
	var all []forecast
	for _, t := range targets {
		f, err := t.forecast(view, now)
		if err != nil {
			return false, err
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, worstFirst)
	if !w.All {
		all[0].uses = all[0].usesOfLimits(ctx)
	}
	switch {
	case w.JSON:
		err = writeForecasts(out, s, w.Kind, all)
	case w.All:
		err = printForecasts(out, s, w.Kind, all)
	default:
		err = all[0].write(out)
	}
	return slices.ContainsFunc(all, func(f forecast) bool {
		return len(f.lost())+len(f.cut())+len(f.uncontrolled()) > 0
	}), err
}

// targets returns the nodes that are asked about, and what is known of their pods.
func (w WhatIf) targets(ctx context.Context, s *Session) (all []*target, view *rehearsal.Snapshot, err error) {
	if !w.All {
		t, err := s.targetNamed(ctx, w.Kind, w.Node)
		if err != nil {
			return nil, nil, err
		}
		view, err = rehearsal.Read(ctx, s.client, w.Node)
		return []*target{t}, view, err
	}
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list the nodes: %w", err)
	}
	for k := range nodes.Items {
		if n := &nodes.Items[k]; mayBeOnEC2(n) {
			all = append(all, s.target(w.Kind, n))
		}
	}
	view, err = rehearsal.ReadAll(ctx, s.client)
	return all, view, err
}

// mayBeOnEC2 reports whether an instance can be behind the node.
func mayBeOnEC2(n *corev1.Node) bool {
	d := doctor.NodeOf(n)
	return !d.Fargate && (d.InstanceID == "" || notice.IsInstanceID(d.InstanceID))
}

// lookUpAll asks AWS what the handler would ask about the nodes. It notes what remains
// unknown.
func (s *Session) lookUpAll(ctx context.Context, targets []*target) {
	if !slices.ContainsFunc(targets, (*target).asksAWS) {
		return
	}
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	if s.Region == "" { // there is no queue to name it
		s.Region = targets[0].notice.Region
	}
	instances, err := s.instancesOf(ctx, targets)
	if err != nil {
		what := "whether instances have the tag " + s.ManagedTag + " is unknown; the answer assumes that they have it"
		if !s.CheckTag {
			what = "the instances are unknown"
		}
		s.origin.note(fmt.Sprintf("%s: %v", what, err))
	}
	hooks := map[string]doctor.Answer[doctor.Hook]{}
	var without []string // nodes
	var why error        // of the first
	for _, t := range targets {
		instance, known := instances[t.node.Name]
		switch {
		case known:
			t.setInstance(instance)
		case len(targets) > 1 && t.mayBeElsewhere(): // nobody asks about it by its name
			continue
		case err == nil:
			s.origin.note(t.absentError().Error())
		}
		if t.kind != notice.ASGTerminate {
			continue
		}
		if err := t.lookUpHook(ctx, hooks); err != nil {
			without, why = append(without, t.node.Name), cmp.Or(why, err)
		}
	}
	if len(without) > 0 {
		s.origin.note(fmt.Sprintf(
			"the hook of %s is unknown; the answer assumes a timeout of node-termination-grace-period: %v; the nodes: %s",
			overview.Count(len(without), "node"), why, strings.Join(evacuation.Names(without, 5), ", ")))
	}
}

// instancesOf returns the instances of the nodes by the name of the node.
func (s *Session) instancesOf(ctx context.Context, targets []*target) (map[string]doctor.Instance, error) {
	if err := s.connectAWS(ctx); err != nil {
		return nil, err
	}
	var nodes []doctor.Node
	for _, t := range targets {
		nodes = append(nodes, doctor.NodeOf(t.node))
	}
	return s.gatherer.InstancesBehind(ctx, nodes)
}

// A forecast is what would become of a node.
type forecast struct {
	*target
	outcome
	at   time.Time      // of the notice
	uses []holdback.Use // of the limits that the drain has to keep; empty: it need not wait for one, or they are not known
}

func (t *target) forecast(view *rehearsal.Snapshot, now time.Time) (forecast, error) {
	r, err := t.rehearse(view, now)
	return forecast{target: t, outcome: r, at: now}, err
}

// usesOfLimits says how far those limits are used up that the drain has to keep.
func (f forecast) usesOfLimits(ctx context.Context) []holdback.Use {
	_, rule := f.policy().Opens(f.Intent, f.at)
	limits := f.MaxUnready != (intstr.IntOrString{}) || rule != nil && rule.Limit.Nodes != ""
	if !limits || !f.isLimited() {
		return nil
	}
	nodes, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		f.origin.note(fmt.Sprintf("the nodes could not be listed, so it is not known how far limits are used up: %v", err))
		return nil
	}
	return holdback.Uses(rule, f.MaxUnready, f.node, nodes.Items)
}

// isLimited reports whether a drain that begins now has to keep the limit of the rule, and that of the options.
func (f forecast) isLimited() bool {
	if f.whyNotDrained() != "" || f.begin().After(f.at) {
		return false
	}
	carried, inWork := f.inProgress()
	return (!inWork || carried.HeldBack) && decision.CanWait(f.Intent, f.at, f.policy())
}

// inProgress reports whether a drain of the node is in progress, and what the node carries of it.
func (f forecast) inProgress() (carried intent.Intent, is bool) {
	carried, ok, err := cluster.ReadIntent(f.node)
	return carried, ok && err == nil && !carried.Finished()
}

// useText says how far a limit is used up.
func useText(use *holdback.Use) string {
	const mostNames = 5
	whose, among, by, then := "limit of "+use.Rule, "", "", "there is room"
	if use.Rule == "" {
		whose = "max-unready-nodes"
	}
	if use.Per != "" {
		among = " with " + use.Per
	}
	if len(use.Nodes) > 0 {
		by = ": " + strings.Join(evacuation.Names(use.Nodes, mostNames), ", ")
	}
	if isFull(use) {
		then = "the drain would wait"
	}
	return fmt.Sprintf("%s: nodes%s that are out of use now: %d of at most %d%s; %s",
		whose, among, len(use.Nodes), use.Most, by, then)
}

func isFull(use *holdback.Use) bool { return len(use.Nodes) >= use.Most }

// whyNotDrained says why the handler would move no pod; empty if it would.
func (f forecast) whyNotDrained() string {
	why, _ := f.whyIgnored(f.outcome)
	switch {
	case why != "":
		return "the handler would ignore the notice: " + why
	case f.idle != "":
		return f.idle
	case f.DryRun:
		return "the handler would do nothing: dry-run is on"
	case f.cordonsOnly(f.outcome):
		return fmt.Sprintf("the node would be cordoned, and its pods would stay (%s)", f.Rule)
	}
	return ""
}

// lost returns the pods that would be lost. If the handler moves none, these are all pods that
// would have to leave.
func (f forecast) lost() []string {
	if f.whyNotDrained() == "" {
		return f.Summary().Lost
	}
	if f.stands() {
		return nil
	}
	return slices.Sorted(slices.Values(f.Summary().Names))
}

// stands reports whether nothing goes away by the notice.
func (f forecast) stands() bool {
	return f.kind == notice.RebalanceRecommendation || f.Why == decision.WhyNotSpot
}

// stayed returns the pods that do not have to leave, and go with the instance.
func (f forecast) stayed() []string {
	if f.stands() {
		return nil
	}
	return f.Summary().Stayed
}

// uncontrolled returns the pods that would be evicted and not be created again.
func (f forecast) uncontrolled() []string {
	if f.whyNotDrained() != "" {
		return nil
	}
	return f.Summary().Uncontrolled
}

// cut returns the pods that would be killed before the end of their grace periods: none where the handler moves none.
func (f forecast) cut() []string {
	if f.whyNotDrained() != "" {
		return nil
	}
	return f.Summary().Cut
}

func worstFirst(a, b forecast) int {
	x, y := a.Summary(), b.Summary()
	return cmp.Or(
		-cmp.Compare(len(a.lost()), len(b.lost())), -cmp.Compare(len(a.cut()), len(b.cut())),
		-cmp.Compare(len(a.uncontrolled()), len(b.uncontrolled())),
		-cmp.Compare(x.Blocked, y.Blocked), -cmp.Compare(x.Forced, y.Forced),
		-cmp.Compare(len(a.down()), len(b.down())), -cmp.Compare(x.Pods, y.Pods),
		cmp.Compare(a.node.Name, b.node.Name),
	)
}

// mostDown is how many workloads are named that would be down.
const mostDown = 10

// write writes the forecast of one node.
func (f forecast) write(out io.Writer) error {
	_, err := io.WriteString(out, f.origin.text(f.identity)+f.fate())
	return err
}

// fate says what would become of the node and its pods.
func (f forecast) fate() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s: ", f.node.Name, f.kind.Dashed())
	if idle := f.whyNotDrained(); idle != "" {
		b.WriteString(idle + "\n")
		if _, remedy := f.whyIgnored(f.outcome); remedy != "" {
			b.WriteString("    " + remedy + "\n")
		}
		if lost := f.lost(); len(lost) > 0 {
			b.WriteString("would be lost with the instance: " + strings.Join(lost, ", ") + "\n")
		}
		if stayed := f.stayed(); len(stayed) > 0 {
			b.WriteString("would go with the instance anyway: " + strings.Join(stayed, ", ") + "\n")
		}
		return b.String()
	}
	b.WriteString(deadlineText(f.Terms.Deadline, f.at))
	if f.Terms.IgnoreBudgets {
		b.WriteString("; PodDisruptionBudgets do not count: the instance is stopping already")
	}
	b.WriteString("\n")
	if carried, is := f.inProgress(); is {
		fmt.Fprintf(&b, "the node is being drained already, for %s: status shows that drain; below is what this notice "+
			"would have to do by itself\n", carried.Cause().Kind.Dashed())
	}
	if begin := f.begin(); begin.After(f.at) {
		fmt.Fprintf(&b, "the drain would begin at %s, by rule %s; the times below count from then\n",
			begin.UTC().Format(time.RFC3339), f.Rule)
	}
	for k := range f.uses {
		b.WriteString(useText(&f.uses[k]) + "\n")
	}
	if f.Intent.ReplacesFirst() {
		fmt.Fprintf(&b, "the group would be asked first to replace the instance, by rule %s; the times below count from "+
			"then\n", f.Rule)
	}
	if f.By == intent.ByKarpenter {
		until := "and takes the time that it needs"
		if by := decision.KarpenterDeadline(f.Intent); !by.IsZero() {
			until = fmt.Sprintf("and is told to be done %s after the notice", overview.Length(by.Sub(f.at)))
		}
		fmt.Fprintf(&b, "Karpenter would be asked to replace and drain the node, %s; below is what the handler "+
			"does if Karpenter does not\n", until)
	}
	_ = f.Print(&b) // into memory
	return b.String()
}

// printForecasts writes a line for each node, and a summary.
func printForecasts(out io.Writer, s *Session, kind notice.Kind, all []forecast) error {
	width := len("node")
	for _, f := range all {
		width = max(width, len(f.node.Name))
	}
	var b strings.Builder
	b.WriteString(s.origin.text(s.identity))
	fmt.Fprintf(&b, "%s for each node separately, the worst first:\n\n", kind.Dashed())
	fmt.Fprintf(&b, "  %-*s  %4s  %4s  %4s  %7s  %7s\n", width, "node", "pods", "lost", "cut", "blocked", "deleted")
	nodes, pods, cutShort, uncontrolled := 0, 0, 0, 0
	var down []string // workloads
	for _, f := range all {
		sum, lost, cut := f.Summary(), f.lost(), f.cut()
		cutShort += len(cut)
		uncontrolled += len(f.uncontrolled())
		if len(lost) > 0 {
			nodes++
			pods += len(lost)
		}
		blocked := fmt.Sprint(sum.Blocked)
		if f.BudgetsUnread != nil {
			blocked = "?"
		}
		remark := f.whyNotDrained()
		if _, remedy := f.whyIgnored(f.outcome); f.Why == decision.WhyNotSpot {
			remark = "no spot instance: it gets no such notice"
		} else if remedy != "" {
			remark += "; " + remedy
		}
		if remark == "" {
			remark = f.harm()
		} else if stayed := f.stayed(); len(stayed) > 0 {
			remark += "; go with the instance anyway: " + strings.Join(stayed, ", ")
		}
		line := fmt.Sprintf("  %-*s  %4d  %4d  %4d  %7s  %7d  %s",
			width, f.node.Name, sum.Pods, len(lost), len(cut), blocked, sum.Forced, remark)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		down = append(down, f.down()...)
	}
	down = slices.Compact(slices.Sorted(slices.Values(down)))
	fmt.Fprintf(&b, "\n%d of %s would lose pods, %d in all; ", nodes, overview.Count(len(all), "node"), pods)
	if slices.ContainsFunc(all, func(f forecast) bool { return f.whyNotDrained() == "" }) {
		fmt.Fprintf(&b, "%s would be cut short; %d would not be created again; %s would be down during the drain",
			overview.Count(cutShort, "pod"), uncontrolled, overview.Count(len(down), "workload"))
	} else {
		b.WriteString("none would be drained")
	}
	if len(down) > 0 {
		b.WriteString(": " + strings.Join(evacuation.Names(down, mostDown), ", "))
	}
	b.WriteString("\n")
	if all[0].BudgetsUnread != nil {
		fmt.Fprintf(&b, "PodDisruptionBudgets could not be read: %v\n", all[0].BudgetsUnread)
	}
	b.WriteString("what-if --node NAME shows one node pod by pod. " +
		"This is the worst case of a drain that begins at once: every pod uses its whole grace period. " +
		"Admission webhooks and policies are not asked.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// harm names the pods of a node that would be lost, cut short, not created again, or go with the instance.
func (f forecast) harm() string {
	var parts []string
	for _, part := range []struct {
		what string
		pods []string
	}{
		{"lost", f.lost()},
		{"cut short", f.cut()},
		{"not created again", f.uncontrolled()},
		{"stay, and go with the instance", f.stayed()},
	} {
		if len(part.pods) > 0 {
			parts = append(parts, part.what+": "+strings.Join(part.pods, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// A nodeReport is a forecast for programs.
type nodeReport struct {
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	// Ignored says why the handler would not drain the node; absent if it would.
	Ignored string `json:"ignored,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Why     string `json:"why"`
	// Rule is the one that decides; absent if none is asked. Begin is when the drain begins; absent: at once.
	Rule  string    `json:"rule,omitempty"`
	Begin time.Time `json:"begin,omitzero"`
	// By is karpenter if Karpenter would be asked to drain the node, and else absent.
	By string `json:"by,omitempty"`
	// Limits say how far those limits are used up that the drain has to keep; absent with --all. ReplacesFirst: the group
	// would be asked first to replace the instance.
	Limits        []holdback.Use `json:"limits,omitempty"`
	ReplacesFirst bool           `json:"replacesFirst,omitempty"`
	// Deadline is in seconds after the notice; absent if nothing is forced.
	Deadline *float64              `json:"deadlineSeconds,omitempty"`
	Pods     []rehearsal.PodReport `json:"pods"`
	Lost     []string              `json:"lost"`
	Cut      []string              `json:"cut"` // killed before the end of their grace periods
	// Uncontrolled would not be created again. Stayed do not have to leave, and go with the instance.
	Uncontrolled []string `json:"uncontrolled"`
	Stayed       []string `json:"stayed"`
	Left         []string `json:"left"`
	Down         []string `json:"down"` // workloads
	// AwaitedClaims are those whose volumes the drain may wait for after the pods.
	AwaitedClaims []string `json:"awaitedClaims,omitempty"`
	// BudgetsUnread says why PodDisruptionBudgets could not be read.
	BudgetsUnread string `json:"budgetsUnread,omitempty"`
}

func (f forecast) report() nodeReport {
	_, remedy := f.whyIgnored(f.outcome)
	r := nodeReport{
		Node: f.node.Name, Instance: f.notice.Instance,
		Ignored: f.whyNotDrained(), Remedy: remedy, Why: string(f.Why), Rule: f.Rule, Begin: f.begin(), Limits: f.uses,
		ReplacesFirst: f.Intent.ReplacesFirst(),
		Pods:          []rehearsal.PodReport{},
		Lost:          orEmpty(f.lost()), Cut: orEmpty(f.cut()), Uncontrolled: orEmpty(f.uncontrolled()),
		Stayed: orEmpty(f.stayed()),
		Left:   orEmpty(f.Summary().Left), Down: orEmpty(f.down()),
	}
	if r.Ignored == "" {
		r.Pods, r.AwaitedClaims = f.PodReports(), f.AwaitedClaims()
	}
	if !f.Terms.Deadline.IsZero() {
		r.Deadline = new(f.Terms.Deadline.Sub(f.at).Seconds())
	}
	if f.By == intent.ByKarpenter && r.Ignored == "" {
		r.By = string(f.By)
	}
	if f.BudgetsUnread != nil {
		r.BudgetsUnread = f.BudgetsUnread.Error()
	}
	return r
}

// orEmpty returns a list that is never null in JSON.
func orEmpty(list []string) []string { return append([]string{}, list...) }

// down are the workloads that are down during the drain, if there is one.
func (f forecast) down() (names []string) {
	if f.whyNotDrained() != "" {
		return nil
	}
	for _, d := range f.Down {
		names = append(names, d.Name)
	}
	return names
}

// writeForecasts writes them for programs.
func writeForecasts(out io.Writer, s *Session, kind notice.Kind, all []forecast) error {
	report := struct {
		originReport
		Kind         string       `json:"kind"`
		Lost         int          `json:"lost"`
		Cut          int          `json:"cut"`
		Uncontrolled int          `json:"uncontrolled"`
		Nodes        []nodeReport `json:"nodes"`
	}{originReport: s.originReport(), Kind: kind.Dashed(), Nodes: []nodeReport{}}
	for _, f := range all {
		report.Lost += len(f.lost())
		report.Cut += len(f.cut())
		report.Uncontrolled += len(f.uncontrolled())
		report.Nodes = append(report.Nodes, f.report())
	}
	return WriteJSON(out, report)
}

// WriteJSON writes a report for programs.
func WriteJSON(out io.Writer, report any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
