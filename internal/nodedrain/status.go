package nodedrain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const (
	// answersAtOnce bounds the drains that are asked for their progress at once.
	answersAtOnce = 32
	// mostWaits bounds what Status says that a node waits for.
	mostWaits = 8
)

// Status returns the nodes whose drains have not ended, and what they wait for, by their deadlines. It may be
// called at any time, and makes no request. What a drain does not say in time is left out.
func (r *Registry) Status(ctx context.Context) []overview.Node {
	all := r.allDrains()
	nodes := make([]*overview.Node, len(all))
	room := make(chan struct{}, answersAtOnce)
	var asking sync.WaitGroup
	for k, d := range all {
		room <- struct{}{}
		asking.Go(func() {
			nodes[k] = d.status(ctx)
			<-room
		})
	}
	asking.Wait()
	failures := r.writes.lasting(time.Now())
	list := make([]overview.Node, 0, len(nodes)+len(failures))
	for k, n := range nodes {
		if n == nil {
			continue
		}
		if w, fails := failures[all[k].ref.UID]; fails {
			n.WaitsFor = append(n.WaitsFor, w.wait(n.CordonedAt.IsZero() && n.Stage != overview.HeldBack))
			delete(failures, all[k].ref.UID)
		}
		bound(n)
		list = append(list, *n)
	}
	for _, w := range failures {
		if n := r.unrecordedNode(w); n != nil {
			list = append(list, *n)
		}
	}
	slices.SortFunc(list, overview.ByDeadline)
	return list
}

// status is the drain as people see it; nil: it has ended, or nothing is recorded yet.
func (d *Drain) status(ctx context.Context) *overview.Node {
	carried := d.carried()
	if carried.Finished() || len(carried.Entries) == 0 {
		return nil
	}
	n := report.NodeOf(d.ref, carried)
	if d.isUncordoned() {
		n.CordonedAt = time.Time{}
	}
	stage, waits := d.said()
	if stage != "" {
		n.Stage = stage
	}
	waits = append(d.withFailures(waits, carried.Hooks), d.unheld(carried.Hooks)...)
	n.WaitsFor = waits
	if progress, known := d.ask(ctx); known {
		if progress.Listed {
			n.Pods, n.LastAsked, n.PodsGone = &progress.Pods, progress.LastAsked, progress.PodsGone
			n.LastLeft = progress.LastLeft
		}
		if !progress.PodsGone.IsZero() && n.Stage == overview.Draining {
			n.Stage = overview.Detaching
		}
		n.WaitsFor = append(slices.Clone(waits), progress.Waits...)
	} else if result := d.evacuated.Load(); result != nil {
		afterPods(&n, result)
	}
	return &n
}

// afterPods adds how the drain of the pods has ended.
func afterPods(n *overview.Node, result *evacuation.Result) {
	if result.Unlisted != nil {
		n.PodsGone = time.Time{}
		n.WaitsFor = append(n.WaitsFor, overview.Wait{
			Cause: result.Unlisted.Cause, Why: "its pods were not listed in time: " + result.Unlisted.Why,
		})
		return
	}
	n.Pods = &overview.Pods{
		Left:   len(result.Missed) + len(result.Lost) + len(result.Unconfirmed),
		Forced: result.Forced, Gone: result.Evicted + result.Forced + result.Ended,
	}
	n.LastAsked, n.PodsGone = result.Record.LastAsked, cmp.Or(result.Record.PodsGone, n.PodsGone)
	n.LastLeft = result.Record.LastLeft
	if n.Pods.Left > 0 { // nobody waits for them any more
		n.PodsGone = time.Time{}
	}
}

// bound orders the waits, and leaves out those beyond the first, and what JSON cannot express.
func bound(n *overview.Node) {
	n.WaitsFor = encodable(n.WaitsFor)
	slices.SortStableFunc(n.WaitsFor, overview.ByWeight)
	if more := len(n.WaitsFor) - mostWaits; more > 0 {
		n.WaitsFor, n.MoreWaits = n.WaitsFor[:mostWaits], more
	}
}

// encodable returns the waits without ends that JSON cannot express. They come of times that a kubelet has made up.
func encodable(waits []overview.Wait) []overview.Wait {
	const lastYear = 9999 // https://datatracker.ietf.org/doc/html/rfc3339#section-1
	waits = slices.Clone(waits)
	for k := range waits {
		if year := waits[k].Until.Year(); year < 0 || year > lastYear {
			waits[k].Until = time.Time{}
		}
	}
	return waits
}

// heldBackBy says what holds a node back.
func heldBackBy(t holdback.Permit, rule string) overview.Wait {
	w := overview.Wait{Why: t.Detail}
	switch t.Why { //nolint:exhaustive // the others let a drain begin, or are about its replacement
	case decision.WhyRuleTime:
		w.Cause, w.Name, w.Until = overview.Window, rule, t.Again
	case decision.WhyRuleLimit:
		w.Cause, w.Name = overview.Limit, rule
	case decision.WhyMaxUnready:
		w.Cause = overview.MaxUnready
	default:
		w.Cause, w.Until = overview.Replacement, t.Again
	}
	return w
}

// completing says which hooks of a node are still to be completed.
func completing(hooks []intent.Hook, ended map[intent.Hook]bool) (waits []overview.Wait) {
	for _, h := range hooks {
		if _, known := ended[h.Action()]; !known {
			name := h.Group + "/" + h.Name
			waits = append(waits, overview.Wait{
				Cause: overview.Completion, Name: name, Until: h.Deadline,
				Why: "lifecycle hook " + name + " is being completed",
			})
		}
	}
	return waits
}

// withFailures returns the waits. Those for hooks whose completion fails say why.
func (d *Drain) withFailures(waits []overview.Wait, hooks []intent.Hook) []overview.Wait {
	waits = slices.Clone(waits)
	for k := range waits {
		w := &waits[k]
		at := slices.IndexFunc(hooks, func(h intent.Hook) bool { return w.Name == h.Group+"/"+h.Name })
		if w.Cause != overview.Completion || at < 0 {
			continue
		}
		if err := d.r.Hooks.Failure(hooks[at]); err != nil {
			w.Cause, w.Why = overview.FailingHook, "lifecycle hook "+w.Name+" is not completed yet: "+err.Error()
		}
	}
	return waits
}

// unheld are the hooks whose heartbeats fail: the machine may go before the deadline that these were to bring.
func (d *Drain) unheld(hooks []intent.Hook) (waits []overview.Wait) {
	for _, h := range hooks {
		if _, err := d.r.Hooks.HeartbeatFailure(h); err != nil {
			name := h.Group + "/" + h.Name
			waits = append(waits, overview.Wait{
				Cause: overview.FailingHook, Name: name,
				Why: "lifecycle hook " + name + " may end before the deadline, its heartbeats fail: " + err.Error(),
			})
		}
	}
	return waits
}

// waitsForTargets says which target groups are waited for.
func waitsForTargets(groups []string, until time.Time) overview.Wait {
	names := strings.Join(evacuation.Names(groups, mostWaits), ", ")
	return overview.Wait{
		Cause: overview.Target, Name: names, Until: until, Why: "the machine is still a target of load balancer " + names,
	}
}

// waitsForNode says that others of the machine's Nodes have pods. name is that of one of them.
func waitsForNode(name string, others int) overview.Wait {
	more := ""
	if others > 1 {
		more = " and " + strconv.Itoa(others-1) + " more"
	}
	return overview.Wait{
		Cause: overview.OtherNode, Name: name,
		Why: "the pods of Node " + name + more + ", of the same machine, have to leave first",
	}
}

// waitsForNextNode says that the machine of a deleted Node runs on, and that it may get another Node.
func waitsForNextNode(until time.Time) overview.Wait {
	return overview.Wait{
		Cause: overview.OtherNode, Until: until,
		Why: "the Node was deleted and its machine runs: the next Node of the machine gets the notices",
	}
}

// waitsForSuccessor says that another Node of the machine has got the notices of a deleted one.
func waitsForSuccessor(next *Drain) overview.Wait {
	return overview.Wait{
		Cause: overview.OtherNode, Name: next.ref.Name,
		Why: "the Node was deleted: Node " + next.ref.Name + ", of the same machine, has got its notices",
	}
}

// answerTime is how long an evacuation has to say how far it has come. It does so at once, but for the moments in which
// it has not begun or has ended.
const answerTime = 20 * time.Millisecond

// progress is how far a drain has come, for those who want to know. Its methods may be called concurrently.
type progress struct {
	questions  chan chan<- evacuation.Progress   // for the evacuation
	evacuating atomic.Bool                       // it answers them
	evacuated  atomic.Pointer[evacuation.Result] // nil: it has not ended

	saying sync.Mutex
	stage  overview.Stage  // how far the drain has come; empty: it has not begun
	waits  []overview.Wait // what it waits for beside its pods
}

// say notes how far the drain has come, and what it waits for beside its pods.
func (p *progress) say(stage overview.Stage, waits ...overview.Wait) {
	p.saying.Lock()
	defer p.saying.Unlock()
	p.stage, p.waits = stage, waits
}

// said returns what say has noted.
func (p *progress) said() (overview.Stage, []overview.Wait) {
	p.saying.Lock()
	defer p.saying.Unlock()
	return p.stage, p.waits
}

// waitsForRoom reports whether a limit holds the drain back.
func (p *progress) waitsForRoom() bool {
	_, waits := p.said()
	return slices.ContainsFunc(waits, func(w overview.Wait) bool {
		return w.Cause == overview.Limit || w.Cause == overview.MaxUnready
	})
}

// ask asks the evacuation how far it has come; known: it has answered.
func (p *progress) ask(ctx context.Context) (answer evacuation.Progress, known bool) {
	if !p.evacuating.Load() {
		return answer, false
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply := make(chan evacuation.Progress, 1)
	select {
	case p.questions <- reply:
	case <-ctx.Done():
		return answer, false
	}
	select {
	case answer = <-reply:
		return answer, true
	case <-ctx.Done():
		return answer, false
	}
}

// Load returns which drains are in progress. It may be called at any time.
func (r *Registry) Load() report.Load {
	var l report.Load
	for _, nd := range r.allDrains() {
		carried := nd.carried()
		if carried.Finished() || len(carried.Entries) == 0 { // its first patch is in flight
			continue
		}
		switch {
		case carried.HeldBack && !r.Cluster.Exists(nd.ref): // the next Node of its machine waits
			continue
		case carried.HeldBack:
			l.HeldBack++
			if nd.waitsForRoom() {
				l.HeldByLimit++
			}
		default:
			l.Drains++
			l.Oldest = intent.Earlier(l.Oldest, cmp.Or(carried.CordonedAt, nd.since))
		}
		if nd.hasPods() {
			l.Deadline = intent.Earlier(l.Deadline, carried.Deadline())
		}
		l.Hooks += len(carried.Hooks)
		l.HookDeadline = intent.Earlier(l.HookDeadline, r.hooksEnd(carried, 0))
	}
	return l
}

// HeldBack returns how many drains wait because too many nodes are out of use, for their time, or for a replacement,
// and a sentence about it for people.
func (r *Registry) HeldBack() (drains int, why string) {
	drains, why = r.line.HeldBack()
	if byRules := r.Load().HeldBack - drains; byRules > 0 {
		drains += byRules
		if why != "" {
			why += "; "
		}
		why += fmt.Sprintf("%d as their rules say", byRules)
	}
	return drains, why
}
