package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/episode"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const (
	// overviewKept is how long an overview is served again: however many look at it, the drains are asked that often.
	overviewKept = 500 * time.Millisecond
	// overviewTime bounds the making of one.
	overviewTime = time.Second
)

// A lookout tells what is in progress and what has happened, to those who ask over HTTP. Its methods may be called
// concurrently.
type lookout struct {
	leader   string // the name of this pod
	policy   *policyfile.Follower
	waiting  func() []overview.Unscheduled // nil: nobody knows
	episodes *episode.Recorder

	leads  atomic.Value // the name of the pod that was seen to lead, a string; nil: none was seen
	making sync.Mutex   // is held while an overview is made: others wait for that one

	mu      sync.Mutex        // is held for a moment: the end of a term waits for no reader
	present *lookedAt         // nil: this replica stands by
	last    overview.Overview // of the present term; zero: none
}

func newLookout(leader string, policy *policyfile.Follower, log *slog.Logger) *lookout {
	return &lookout{leader: leader, policy: policy, episodes: episode.NewRecorder(log.With("logger", "episode"))}
}

// ledBy notes who holds the lease, by the identity of a replica: the name of its pod, and a random part.
func (l *lookout) ledBy(identity string) {
	pod, _, _ := strings.Cut(identity, "_")
	l.leads.Store(pod)
}

// standby is the answer of a replica that does not lead.
func (l *lookout) standby() error {
	pod, _ := l.leads.Load().(string)
	return page.Standby{Leader: pod}
}

// lookedAt is a term of leadership.
type lookedAt struct {
	status      func(context.Context) []overview.Node
	heldBack    func() (drains int, why string)
	lastReceive func() time.Time
	inFlight    func() (messages int, oldest time.Time) // nil: there is no queue
}

// lead begins a term, which the lookout tells of until end is called.
func (l *lookout) lead(t lookedAt) (end func()) {
	l.set(&t)
	return func() { l.set(nil) }
}

func (l *lookout) set(t *lookedAt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.present, l.last = t, overview.Overview{}
}

// Overview returns what is in progress, of now or of a moment ago. The error says that this replica stands by.
func (l *lookout) Overview(ctx context.Context) (overview.Overview, error) {
	l.making.Lock()
	defer l.making.Unlock()
	l.mu.Lock()
	t, last := l.present, l.last
	l.mu.Unlock()
	if t == nil {
		return overview.Overview{}, l.standby()
	}
	if time.Since(last.At) < overviewKept {
		return last, nil
	}
	o := l.overview(ctx, t)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.present != t {
		return overview.Overview{}, l.standby()
	}
	l.last = o
	return o, nil
}

// overview asks a term. Others get what is made here, and so it does not end with the one who asked first.
func (l *lookout) overview(ctx context.Context, t *lookedAt) overview.Overview {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), overviewTime)
	defer cancel()
	o := overview.Overview{Source: overview.Leader, Leader: l.leader, Nodes: t.status(ctx)}
	o.At = time.Now().UTC()
	_, o.HeldBack = t.heldBack()
	if t.inFlight != nil {
		o.Queue = &overview.Queue{LastReceive: t.lastReceive()}
		o.Queue.InFlight, o.Queue.Oldest = t.inFlight()
	}
	if l.waiting != nil {
		o.Unscheduled = l.waiting()
	}
	if l.policy != nil {
		rules := l.policy.Rules()
		o.Policy = &overview.Policy{Rules: len(rules.Nodes) + len(rules.Pods), Problem: l.policy.Problem()}
	}
	return o
}

// History returns what has happened. The error says that this replica stands by.
func (l *lookout) History(context.Context) (overview.History, error) {
	l.mu.Lock()
	leads := l.present != nil
	l.mu.Unlock()
	if !leads {
		return overview.History{}, l.standby()
	}
	return l.episodes.History(), nil
}

// rebuild has the lookout know what the nodes carry of episodes that have ended.
func (l *lookout) rebuild(nodes *cluster.Cluster) {
	var all []overview.Episode
	nodes.Finished(func(ref cluster.Ref, i intent.Intent) {
		all = append(all, report.EpisodeOf(ref, i))
	})
	l.episodes.Rebuild(all)
}

// serveJSON serves what get returns. Its error is for a replica that stands by.
func serveJSON[T any](get func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		v, err := get(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // an error is the client's: it has gone
	}
}
