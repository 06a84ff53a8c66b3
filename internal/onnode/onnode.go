// Package onnode has the notices of an instance's metadata carried out, by the pod on its node.
//
// A leader with a queue knows of limits, rules, hooks and load balancers. While one leads, the pod only reports: it
// writes to its Node what the metadata has told, and the leader takes it as a notice like any other. The pod drains its
// own node where nobody leads, and where the leader does not take a report that cannot wait.
package onnode

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/imds"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const (
	// lookAgain is how often it is looked what the node carries.
	lookAgain = time.Second
	// askAgain is how often it is asked whether somebody leads, while there is something to do.
	askAgain = 5 * time.Second
	// takenWithin is how long the leader may take to record what was reported, if that cannot wait.
	takenWithin = 15 * time.Second
	// vacantFor is how long nobody may lead until what can wait is drained without a leader: it is longer than a
	// takeover takes; see package lease. The leader may also have been installed together with this pod.
	vacantFor = 30 * time.Second
	// deafAfter is how long the metadata may give no answer until the leader is told.
	deafAfter = 90 * time.Second
	// namedWithin is when the Node says which instance it is: a cloud controller manager writes it as the Node joins.
	namedWithin = 2 * time.Minute
)

// A Leader tells whether a handler with a queue leads; see [lease.Watcher].
type Leader interface {
	Leadership(ctx context.Context) lease.State
}

// A Controller drains the node; see package controller.
type Controller interface {
	imds.Handler
	Load() report.Load
}

// A Server serves the node that it runs on. Set the fields before Run.
type Server struct {
	Cluster *cluster.Cluster // of this Node alone
	Node    string           // its name
	Leader  Leader
	Lease   string // that of the leader, as namespace/name
	Policy  decision.Policy
	// ReportOnly: it never drains the node.
	ReportOnly bool
	Log        logr.Logger
	// LastAnswer is when the metadata has answered last; zero: never. It may be called at any time.
	LastAnswer func() time.Time
	// Term reads the metadata, and has its notices handled by what with returns, until ctx ends. drains: its controller
	// drains meanwhile, what the node carries first. It returns the cause of ctx, or why it has ended before.
	Term func(ctx context.Context, drains bool, with func(Controller) imds.Handler) error

	known atomic.Bool // there is a Lease, or there was one
}

// leadership asks whether somebody leads. A Lease that was there, and is gone or must no longer be read, is vacant.
func (s *Server) leadership(ctx context.Context) lease.State {
	state := s.Leader.Leadership(ctx)
	switch {
	case state == lease.Absent && s.known.Load():
		return lease.Vacant
	case state != lease.Absent && state != lease.Unknown:
		s.known.Store(true)
	}
	return state
}

// errTurn ends a term because the other sort begins.
var errTurn = errors.New("the leader has come, or is missed")

// takeBackTime is how long the metadata waits for a Node that cannot be written.
const takeBackTime = 5 * time.Second

// Run serves the node until ctx ends, or a term does.
func (s *Server) Run(ctx context.Context) error {
	// What an earlier process has reported may be about an earlier life of the instance. What holds is told again.
	s.takeBack(ctx, func(before notice.Report) notice.Report { return before.Telling(s.Lease, nil, time.Time{}) })
	for reason := ""; ; {
		var err error
		if reason == "" {
			reason, err = s.report(ctx)
		} else {
			reason, err = "", s.drain(ctx, reason)
		}
		if !errors.Is(err, errTurn) {
			return err
		}
	}
}

// takeBack takes back some of what the Node reports. It gives up after a while: the notices matter more.
func (s *Server) takeBack(ctx context.Context, change func(notice.Report) notice.Report) {
	node := s.Cluster.ByName(s.Node)
	if node == nil || node.Annotations[cluster.ReportAnnotation] == "" {
		return
	}
	ctx, stop := context.WithTimeout(ctx, takeBackTime)
	defer stop()
	if err := s.Cluster.Report(ctx, cluster.RefOf(node), change); err != nil {
		logging.Warn(s.Log, "what the pod has reported before cannot be taken back", "error", err, "node", s.Node)
	}
}

// Why the pod drains its node.
const (
	absent = "there is no Lease of a leader that is not in dry-run"
	vacant = "nobody leads"
	missed = "the leader has not taken what was reported"
	begun  = "the leader does not learn of what this pod has begun to drain the node for, or ignores it"
	// A leader reads the report of an instance by the provider id of its Node.
	unnamed = "the node has no provider id of an EC2 instance, so no leader knows what a report is about"
)

// isUnnamed reports whether the Node does not say which instance it is.
func (s *Server) isUnnamed() bool {
	node := s.Cluster.ByName(s.Node)
	return node != nil && cluster.InstanceID(node) == ""
}

// report reports what the metadata tells until the node has to be drained, and returns why.
func (s *Server) report(ctx context.Context) (reason string, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &reporter{Server: s, since: time.Now(), news: make(chan struct{}, 1)}
	if node := s.Cluster.ByName(s.Node); node != nil {
		before, _ := cluster.ReadReport(node) // what cannot be read is written again with the next notice
		r.deaf = before.Deaf
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	err = s.Term(ctx, false, func(c Controller) imds.Handler {
		r.Controller = c
		watching.Go(func() {
			if reason = r.await(ctx); reason != "" {
				s.Log.Info("this pod drains its node", "node", s.Node, "why", reason)
				stop(errTurn)
			}
		})
		return r
	})
	stop(nil)
	watching.Wait()
	return reason, err
}

// drain drains the node until the leader does so.
func (s *Server) drain(ctx context.Context, reason string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	if node := s.Cluster.ByName(s.Node); node != nil {
		if before, _ := cluster.ReadReport(node); !before.Deaf.IsZero() { // from now on nobody keeps that up to date
			s.takeBack(ctx, func(r notice.Report) notice.Report { return r.Telling(r.To, r.Notices, time.Time{}) })
		}
	}
	why := cause{reason, s.nodeUID(), s.isJoined()}
	err := s.Term(ctx, true, func(c Controller) imds.Handler {
		watching.Go(func() { s.awaitLeader(ctx, c, why, stop) })
		return asking{c, s, why, stop}
	})
	stop(nil)
	return err
}

// A cause is why the pod drains its node.
type cause struct {
	reason string
	node   types.UID // of the Node, when the drain began
	joined bool      // a leader drained the node too then
}

// leads reports whether somebody leads, and does not take what this pod drains the node for.
func (c cause) leads() bool { return c.reason == missed || c.reason == begun || c.reason == unnamed }

// isJoined reports whether a leader drains the node, too.
func (s *Server) isJoined() bool {
	node := s.Cluster.ByName(s.Node)
	if node == nil {
		return false
	}
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && !i.Finished() && s.Cluster.Shares(i)
}

// nodeUID is that of the present Node; empty: there is none.
func (s *Server) nodeUID() types.UID {
	if node := s.Cluster.ByName(s.Node); node != nil {
		return node.UID
	}
	return ""
}

// awaitLeader ends the term when somebody leads again or, where somebody leads already, nothing is left to do. Without
// a leader this process goes on to look after what it has drained: the machine may come back, or somebody uncordon it.
func (s *Server) awaitLeader(ctx context.Context, c Controller, why cause, stop context.CancelCauseFunc) {
	const rests = 2   // a drain whose first patch is in flight does not count
	const seldom = 60 // of so many times it is asked once where no Lease has come: there may be thousands of pods
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for idle := 0; ; idle++ {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		if l := c.Load(); l.Drains+l.HeldBack > 0 {
			idle = 0
		}
		switch {
		case idle >= rests && why.leads() && why.reason != unnamed:
			stop(errTurn)
			return
		case idle >= rests && why.reason == absent && idle%seldom != 0: // it is asked before the next notice, too
		case s.handsOver(ctx, why):
			stop(errTurn)
			return
		}
	}
}

// handsOver reports whether a leader drains the node from now on, or nobody does, as the handler is paused. A leader
// that led already has not taken what this pod drains the node for. It has come if it has joined the drain since. And
// what it did not take for this Node it may take for the next one.
func (s *Server) handsOver(ctx context.Context, why cause) bool {
	hasCome := why.node != s.nodeUID() || !why.joined && s.isJoined()
	if why.reason == unnamed { // a cloud controller manager may have named it meanwhile
		hasCome = !s.isUnnamed()
	}
	switch state := s.leadership(ctx); {
	case state == lease.Stopped:
		s.Log.Info("the handler is paused: this pod stops as well", "node", s.Node)
		return true
	case state == lease.Held && (hasCome || !why.leads()):
		s.Log.Info("a handler leads: it goes on with what this pod reports", "node", s.Node)
		return true
	}
	return false
}

// asking is a Controller that asks before each notice whether somebody leads.
type asking struct {
	Controller
	s    *Server
	why  cause
	stop context.CancelCauseFunc
}

// HandleNotice implements imds.Handler.
func (a asking) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	if a.s.handsOver(ctx, a.why) {
		a.stop(errTurn)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if node := a.s.Cluster.ByName(a.s.Node); node != nil {
		if r, _ := cluster.ReadReport(node); slices.Contains(r.Answered, n.ID) { // a rule of the leader's ignores it
			return nil
		}
	}
	return a.Controller.HandleNotice(ctx, n, acts)
}

// A reporter writes to the node what the metadata tells.
type reporter struct {
	*Server
	Controller // does not drain: it knows what the node carries

	since time.Time     // when it began
	news  chan struct{} // something was told
	mu    sync.Mutex
	told  []told
	on    types.UID // the Node to which all of it was written
	deaf  time.Time // since when the metadata does not answer, as was written; zero: it does
	// undrained is why this process would drain the node if it did not only report, as was said; empty: it would not.
	undrained string

	asked  time.Time   // when the leader was asked for last
	state  lease.State // the answer
	vacant time.Time   // since when nobody leads; zero: somebody does
	paused time.Time   // when the handler was last seen to be paused: what the leader has to do counts from then
}

// told is a notice of the metadata.
type told struct {
	notice.Notice
	at       time.Time // when it was read first
	reported time.Time // when a Node was first written with it; zero: none was
	taken    types.UID // the Node on which the leader has recorded it; empty: none so far
}

// HandleNotice implements imds.Handler. It returns when the notice is reported.
func (r *reporter) HandleNotice(ctx context.Context, n notice.Notice, _ func()) error {
	node := r.Cluster.ByName(r.Node)
	if node == nil {
		return cluster.ErrNodeGone
	}
	r.mu.Lock()
	news := told{Notice: n, at: time.Now()}
	if at := slices.IndexFunc(r.told, func(have told) bool { return have.ID == n.ID }); at >= 0 {
		news = r.told[at] // it is told again because it could not be reported
	}
	r.told = slices.DeleteFunc(r.told, func(have told) bool { return have.Kind == n.Kind && have.Change == n.Change })
	r.told = append(r.told, news)
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
	logging.Deadline(r.Log, n.Deadline).Info("the instance metadata tells of something: it is reported to the leader",
		"node", r.Node, "kind", n.Kind, "event", n.ID)
	return r.write(ctx, node)
}

// Changes implements imds.Handler. The leader may take what was reported later, as after a pause: how it ends is read,
// too.
func (r *reporter) Changes(instance string) []string {
	changes := r.Controller.Changes(instance)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.told {
		if t.Kind == notice.ScheduledChange && !t.Ended && !slices.Contains(changes, t.Change) {
			changes = append(changes, t.Change)
		}
	}
	return changes
}

// write writes all that was told to a Node.
func (r *reporter) write(ctx context.Context, node *corev1.Node) error {
	deaf := r.deafSince(time.Now())
	written := sets.New[string]()
	err := r.Cluster.Report(ctx, cluster.RefOf(node), func(before notice.Report) notice.Report {
		r.mu.Lock()
		defer r.mu.Unlock()
		var all []notice.Notice
		for _, t := range r.told {
			all = append(all, t.Notice)
			written.Insert(t.ID)
		}
		if len(all) == 0 { // it is what an earlier term has told, and the metadata tells again
			all = before.Notices
		}
		return before.Telling(r.Lease, all, deaf)
	})
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for k := range r.told {
			if t := &r.told[k]; written.Has(t.ID) && (t.reported.IsZero() || r.on != node.UID) {
				t.reported = time.Now()
			}
		}
		r.on, r.deaf = node.UID, deaf
	}
	return err
}

// deafSince is since when the metadata does not answer; zero: it does, or has not been asked for long.
func (r *reporter) deafSince(now time.Time) time.Time {
	last := r.LastAnswer()
	if last.Before(r.since) {
		last = r.since
	}
	if now.Sub(last) < deafAfter {
		return time.Time{}
	}
	return last.UTC()
}

// writeSoon is write, and gives up after a while: who calls it has to look for the leader.
func (r *reporter) writeSoon(ctx context.Context, node *corev1.Node) error {
	ctx, stop := context.WithTimeout(ctx, takeBackTime)
	defer stop()
	return r.write(ctx, node)
}

// lacks reports whether this is another Node than the one that all that was told was written to.
func (r *reporter) lacks(node *corev1.Node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.on != "" && r.on != node.UID
}

// tellDeaf writes whether the metadata answers, unless that is written.
func (r *reporter) tellDeaf(ctx context.Context) {
	r.mu.Lock()
	told := r.deaf.Equal(r.deafSince(time.Now()))
	r.mu.Unlock()
	if node := r.Cluster.ByName(r.Node); node != nil && !told {
		_ = r.writeSoon(ctx, node) // if it fails, it is tried again
	}
}

// await returns why the node has to be drained by this process, or nothing when ctx ends.
func (r *reporter) await(ctx context.Context) (reason string) {
	hears := time.NewTicker(deafAfter / 9) // before the liveness probe ends this process
	defer hears.Stop()
	for {
		var again <-chan time.Time // nil: there is nothing to do
		changed := r.Cluster.Changed()
		if node := r.Cluster.ByName(r.Node); node != nil {
			if r.lacks(node) && r.writeSoon(ctx, node) != nil {
				again = time.After(lookAgain)
			}
			if todo := r.todo(node, time.Now()); len(todo) > 0 || !r.known.Load() && !r.ReportOnly {
				if reason = r.look(ctx, todo); reason != "" && !r.ReportOnly {
					return reason
				}
				r.sayUndrained(reason)
				again = time.After(lookAgain)
			}
		}
		if again == nil { // what comes next asks again
			r.vacant, r.asked = time.Time{}, time.Time{}
		}
		select {
		case <-ctx.Done():
			return ""
		case <-r.news:
		case <-changed:
		case <-again:
		case <-hears.C:
			r.tellDeaf(ctx)
		}
	}
}

// sayUndrained says why the node would have to be drained by this process, which only reports; empty: it has not to.
func (r *reporter) sayUndrained(reason string) {
	if reason != "" && reason != r.undrained {
		logging.Warn(r.Log, "nobody drains the node: this pod only reports", "node", r.Node, "why", reason)
	}
	r.undrained = reason
}

// look returns why the node has to be drained by this process now, or nothing. Where no Lease comes at all, it does not
// matter whether there is something to do: nobody is there to report to.
func (r *reporter) look(ctx context.Context, todo []task) (reason string) {
	again := r.state == lease.Unknown && time.Since(r.vacant) < askAgain
	if again || time.Since(r.asked) >= askAgain {
		before := r.state
		r.state, r.asked = r.leadership(ctx), time.Now()
		switch {
		case r.state == lease.Stopped:
			if before != lease.Stopped {
				r.Log.Info("the handler is paused by its Lease: this pod does not drain its node", "node", r.Node, "lease", r.Lease)
			}
			r.vacant, r.paused = time.Time{}, r.asked
		case r.state == lease.Held:
			r.vacant = time.Time{}
		case r.vacant.IsZero(), r.state == lease.Absent && before != lease.Absent:
			r.vacant = r.asked
		}
	}
	now := time.Now()
	if r.state == lease.Absent && now.Sub(r.vacant) >= vacantFor {
		return absent
	}
	for _, t := range todo {
		if r.paused.After(t.since) {
			t.since = r.paused
		}
		if reason = t.reason(r.state, r.vacant, now); reason != "" {
			return reason
		}
	}
	return ""
}

// todo is what is left to do on the node, as far as this process can tell.
func (r *reporter) todo(node *corev1.Node, now time.Time) (todo []task) {
	on, _, err := cluster.ReadIntent(node)
	if err != nil {
		on.Version = 0
	}
	answered, _ := cluster.ReadReport(node) // what cannot be read has no answers
	leaders := on.Version > 0 && r.Cluster.Shares(on)
	own := on.Version > 0 && r.Cluster.Serves(on) && !leaders
	made, unnamed := node.CreationTimestamp.Time, r.isUnnamed()
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, t := range r.told {
		knows := on.Version > 0 && decision.Knows(on, t.Notice, now)
		ended := knows && on.Finished() || !knows && t.taken == node.UID // the node carries what came after it
		if knows && leaders {
			r.told[k].taken = node.UID
		}
		if ended || slices.Contains(answered.Answered, t.ID) {
			continue
		}
		next := on
		if !knows { // what else the node carries is the leader's
			next = intent.Intent{}.With(decision.Decision{Deadline: t.Deadline}.Entry(t.Notice, now), nil, now)
		}
		waits := t.Ended || decision.CanWait(next, now, r.Policy)
		todo = append(todo, task{
			// A slow API server takes its time for the report, too. It may have been about an earlier Node.
			since: slices.MaxFunc([]time.Time{t.at, t.reported, made}, time.Time.Compare),
			waits: waits, taken: knows && leaders, heldBack: on.HeldBack && leaders, unnamed: unnamed, own: own,
		})
	}
	if own {
		todo = append(todo, r.begun(on, answered, now)...)
	}
	return todo
}

// begun is what is left to do of what this pod has begun itself. A leader takes it by what is reported. Where a rule
// ignores that, or the metadata does not tell it any more, as of an earlier life of the machine, this pod goes on. The
// caller holds mu.
func (r *reporter) begun(on intent.Intent, answered notice.Report, now time.Time) []task {
	switch {
	case on.Finished() && len(on.Entries) > 0 && r.isUnnamed(): // no leader can handle it
		return []task{{since: on.FinishedAt, waits: true, unnamed: true, own: true}}
	case on.Finished() && len(on.Entries) > 0: // without a leader this pod handles it; see awaitLeader
		return []task{{since: now, waits: true, own: true}}
	case on.Finished():
		return nil
	}
	young := now.Sub(r.since) < takenWithin // the metadata may have more to tell
	takes := slices.ContainsFunc(on.Entries, func(e intent.Entry) bool {
		ignored := slices.ContainsFunc(e.IDs, func(id string) bool { return slices.Contains(answered.Answered, id) })
		isTold := func(t told) bool { return t.Kind == e.Kind && t.Change == e.Change }
		return !ignored && (young || slices.ContainsFunc(r.told, isTold))
	})
	since := on.CordonedAt
	if r.since.After(since) { // a leader has come after the drain had begun
		since = r.since
	}
	return []task{{
		since: since, waits: decision.CanWait(on, now, r.Policy), begun: !takes && !on.HeldBack, own: true,
	}}
}

// A task is something that is left to do on the node.
type task struct {
	since    time.Time // when this process learned of it, could report it, or the Node was made
	waits    bool      // it can wait
	taken    bool      // a leader has recorded it
	begun    bool      // this pod has begun with it, and no leader takes it
	heldBack bool      // a leader holds the node back
	unnamed  bool      // the Node does not say which instance it is, and has had its time
	own      bool      // the node carries what this pod has done to it without a leader
}

// withoutLease is reason where there has been no Lease for so long: it may be about to come.
func (t task) withoutLease(vacant time.Duration) string {
	if t.waits && !t.own && vacant < vacantFor {
		return ""
	}
	return absent
}

// reason is why this process has to do it now, or nothing. vacantSince is when the state began that nobody leads.
func (t task) reason(leader lease.State, vacantSince, now time.Time) string {
	vacates := now.Sub(vacantSince)
	switch {
	case leader == lease.Stopped:
		return ""
	case leader == lease.Absent:
		return t.withoutLease(vacates)
	case t.begun:
		return begun
	case t.unnamed && !t.taken && now.Sub(t.since) >= namedWithin:
		return unnamed
	case t.waits && (t.heldBack || leader == lease.Held || vacates < vacantFor):
		return ""
	case leader != lease.Held && vacates < askAgain && (t.taken || leader == lease.Unknown): // it may be for a moment
		return ""
	case leader != lease.Held:
		return vacant
	case !t.taken && now.Sub(t.since) >= takenWithin:
		return missed
	}
	return ""
}
