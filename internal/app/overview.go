package app

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const (
	// overviewTime bounds the making of an overview.
	overviewTime = time.Second
	// slowAnswer is how long the API server takes for an answer before people are told: most take some milliseconds.
	slowAnswer = time.Second
)

// A lookout tells what is in progress and what has happened, to those who ask over HTTP. Its methods may be called
// concurrently.
type lookout struct {
	leader   string // the name of this pod
	dryRun   bool
	policy   *policyfile.Follower
	waiting  func() []overview.Unscheduled // nil: nobody knows
	nodes    *cluster.Cluster              // nil: there is none
	episodes *report.Recorder

	mu      sync.Mutex // is held for a moment: the end of a term waits for no reader
	leads   string     // the name of the pod that was seen to lead; empty: none was seen
	held    lease.Term // of this replica, if it holds the Lease; zero: there is none
	present *lookedAt  // nil: this replica stands by, or is paused
	paused  *string    // why; nil: this replica does not hold a Lease that pauses it
	reports bool       // this pod only reports what the metadata of its node tells
}

func newLookout(leader string, policy *policyfile.Follower, log logr.Logger) *lookout {
	return &lookout{leader: leader, policy: policy, episodes: report.NewRecorder(log.WithName("episode"))}
}

// ledBy notes who holds the lease, by the identity of a replica: the name of its pod, and a random part.
func (l *lookout) ledBy(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads, _, _ = strings.Cut(identity, "_")
}

// renewed notes what is known of the Lease that this replica holds.
func (l *lookout) renewed(t lease.Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = t
}

// pause notes whether this replica is paused by the Lease that it holds, and why.
func (l *lookout) pause(why string, paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused = nil; paused {
		l.paused = &why
	}
}

// standby is the answer of a replica that does not lead.
func (l *lookout) standby() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		return page.Paused{Why: *l.paused}
	}
	return page.Standby{Leader: l.leads, Reports: l.reports}
}

// lookedAt is a term of leadership.
type lookedAt struct {
	status      func(context.Context) []overview.Node
	heldBack    func() (drains int, why string)
	lastReceive func() time.Time
	inFlight    func() (messages int, oldest time.Time) // nil: there is no queue
	held        func() []overview.Held                  // nil: none is
	unseen      []func() string
	failing     func() (since time.Time, why string) // of the receives; nil: there is no queue
	resumed     <-chan struct{}                      // closed when all drains that nodes carry are known; nil: they are
}

// isResuming reports whether some drains that nodes carry are not known yet.
func (t *lookedAt) isResuming() bool {
	select {
	case <-t.resumed:
		return false
	default:
		return t.resumed != nil
	}
}

// lead begins a term, which the lookout tells of until end is called.
func (l *lookout) lead(t lookedAt) (end func()) {
	l.set(&t, false)
	return func() { l.set(nil, false) }
}

// report has the lookout say that this pod only reports, until end is called.
func (l *lookout) report() (end func()) {
	l.set(nil, true)
	return func() { l.set(nil, false) }
}

func (l *lookout) set(t *lookedAt, reports bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.present, l.reports = t, reports
}

func (l *lookout) term() *lookedAt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.present
}

// Overview returns what is in progress. The error says that this replica stands by.
func (l *lookout) Overview(ctx context.Context) (overview.Overview, error) {
	t := l.term()
	if t == nil {
		return overview.Overview{}, l.standby()
	}
	o := l.overview(ctx, t)
	if l.term() != t { // it has ended meanwhile
		return overview.Overview{}, l.standby()
	}
	return o, nil
}

func (l *lookout) overview(ctx context.Context, t *lookedAt) overview.Overview {
	ctx, cancel := context.WithTimeout(ctx, overviewTime)
	defer cancel()
	o := overview.Overview{Source: overview.Leader, Leader: l.leader, DryRun: l.dryRun, Resuming: t.isResuming()}
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	o.LeadsSince, o.Transitions = held.Since, held.Transitions
	if held.Answer >= slowAnswer {
		what := "changes of the cluster in time: the API server answers after " + overview.Length(held.Answer)
		o.Unseen = append(o.Unseen, what)
	}
	o.Nodes = t.status(ctx)
	o.At = time.Now().UTC()
	_, o.HeldBack = t.heldBack()
	for _, unseen := range t.unseen {
		if what := unseen(); what != "" {
			o.Unseen = append(o.Unseen, what)
		}
	}
	if t.inFlight != nil && !o.Resuming { // it receives after that
		o.Queue = &overview.Queue{LastReceive: t.lastReceive()}
		o.Queue.InFlight, o.Queue.Oldest = t.inFlight()
		o.Queue.FailingSince, o.Queue.Failure = t.failing()
	}
	if t.held != nil {
		o.Held = t.held()
	}
	if l.waiting != nil {
		o.Unscheduled = l.waiting()
	}
	o.Cordoned = l.cordoned(o.At)
	if l.nodes != nil {
		o.LeftAlone = l.nodes.Labelled(decision.LeaveAloneLabel)
	}
	if l.policy != nil {
		rules := l.policy.Rules()
		o.Policy = &overview.Policy{Rules: len(rules.Nodes) + len(rules.Pods), Problem: l.policy.Problem()}
	}
	o.Notices = o.Deaf()
	return o
}

// cordoned are the nodes that are ready and still cordoned though their drains have ended.
func (l *lookout) cordoned(now time.Time) (all []overview.Cordoned) {
	if l.nodes == nil {
		return nil
	}
	l.nodes.ReadyCordoned(func(ref cluster.Ref, i intent.Intent) {
		if c, still := report.CordonedOf(ref, i, now); still {
			all = append(all, c)
		}
	})
	slices.SortFunc(all, overview.WorstFirst)
	return all
}

// History returns what has happened. The error says that this replica stands by.
func (l *lookout) History(context.Context) (overview.History, error) {
	if l.term() == nil {
		return overview.History{}, l.standby()
	}
	return l.episodes.History(), nil
}

// rebuild has the lookout know what the nodes carry of episodes that have ended.
func (l *lookout) rebuild(nodes *cluster.Cluster) {
	nodes.EachIntent(func(ref cluster.Ref, i intent.Intent) {
		l.episodes.Carried(report.EpisodesOf(ref, i))
	})
}

// deleted has the lookout know what a Node carried that is deleted: a replica that stands by may lead later. A term
// tells of its drains itself.
func (l *lookout) deleted(ref cluster.Ref, i intent.Intent) {
	if t := l.term(); t != nil && !t.isResuming() {
		return
	}
	all := report.EpisodesOf(ref, i)
	if !i.Finished() && len(i.Entries) > 0 { // only who leads now may know how it ends
		e := report.EpisodeOf(ref, i)
		e.Ended = time.Now().UTC()
		all = append(all, e)
	}
	l.episodes.Carried(all)
}

// serveJSON serves what get returns. Its error is for a replica that stands by.
func serveJSON[T any](get func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		v, err := get(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // an error is the client's: it has gone
	}
}
