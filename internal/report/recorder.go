package report

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	// Kept is how many episodes a Recorder keeps: the latest.
	Kept = 500
	// mostBytes bounds one of them, as JSON: names of pods are left out of a longer one. So Kept of them take
	// 2 MiB at most.
	mostBytes = 4 << 10
	// longestInstance is more than an id of EC2 has. A kubelet can give its node one of any length.
	longestInstance = 400
)

// A Recorder keeps the records of the latest episodes that have ended, and writes each into the log: that line is the
// copy that lasts. Its methods may be called concurrently.
type Recorder struct {
	log logr.Logger

	mu    sync.Mutex
	since time.Time // all episodes are known that have ended after it
	kept  []kept    // by their ends
}

type kept struct {
	node  string
	ended time.Time
	text  []byte // JSON
}

// NewRecorder returns a Recorder that keeps nothing so far. It knows all episodes from now on.
func NewRecorder(log logr.Logger) *Recorder {
	return &Recorder{log: log, since: time.Now().UTC()}
}

// Add keeps an episode that has just ended, and logs it.
func (r *Recorder) Add(e overview.Episode) {
	r.log.Info("episode", values(e)...)
	r.keep(e)
}

// Begin says that it knows all episodes from now on, and not before: the nodes are watched.
func (r *Recorder) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = time.Now().UTC()
}

// Carried adds episodes of which only is known what nodes carry. What is known better, of an earlier term of this
// process, stays as it is.
func (r *Recorder) Carried(episodes []overview.Episode) {
	for _, e := range episodes {
		r.keep(e)
	}
}

func (r *Recorder) keep(e overview.Episode) {
	text := encode(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(k kept) bool { return k.node == e.Node && k.ended.Sub(e.Ended).Abs() < sameEnd }
	if e.Known == overview.AsCarried && slices.ContainsFunc(r.kept, same) {
		return
	}
	if e.Known == overview.AsCarried && len(e.Notices) == 0 && e.Ended.After(r.since) {
		// It is one before the last. A node carries no more, so there may have been one before it.
		r.since = slices.MinFunc([]time.Time{e.Ended, time.Now().UTC()}, time.Time.Compare)
	}
	at, _ := slices.BinarySearchFunc(r.kept, e.Ended, func(k kept, t time.Time) int {
		return cmp.Or(k.ended.Compare(t), -1) // behind those that have ended then, too
	})
	r.kept = slices.Insert(r.kept, at, kept{e.Node, e.Ended, text})
	if len(r.kept) > Kept {
		r.kept = slices.Delete(r.kept, 0, len(r.kept)-Kept)
	}
}

// sameEnd is how far the end that a node carries and the one that was recorded can be apart.
const sameEnd = 10 * time.Second

// History returns the episodes that are kept, the newest first.
func (r *Recorder) History() overview.History {
	r.mu.Lock()
	texts := make([][]byte, 0, len(r.kept))
	for _, k := range slices.Backward(r.kept) {
		texts = append(texts, k.text)
	}
	since := r.since
	if len(r.kept) == Kept && r.kept[0].ended.After(since) { // older ones may have been dropped
		since = r.kept[0].ended
	}
	r.mu.Unlock()
	h := overview.History{At: time.Now().UTC(), Since: since, Episodes: make([]overview.Episode, len(texts))}
	for k, text := range texts {
		_ = json.Unmarshal(text, &h.Episodes[k]) // encode has written it
	}
	return h
}

// encode returns an episode as JSON of mostBytes at most.
func encode(e overview.Episode) []byte {
	for _, shorten := range []func(){
		func() {},
		func() {
			if e.Pods != nil {
				pods := *e.Pods
				pods.ForcedPods, pods.CutShort, pods.StayedPods = nil, nil, nil
				e.Pods = &pods
			}
		},
		func() { e.Refused = e.Refused[:min(1, len(e.Refused))] },
		func() { e.Targets, e.Notices = nil, e.Notices[:min(4, len(e.Notices))] },
		func() {
			e.Hooks, e.UncompletedHooks = e.Hooks[:min(2, len(e.Hooks))], e.UncompletedHooks[:min(2, len(e.UncompletedHooks))]
		},
		func() {
			if e.Pods != nil {
				e.Pods.Remaining = nil
			}
		},
	} {
		shorten()
		if text, err := json.Marshal(e); err == nil && len(text) <= mostBytes { // nothing in it cannot be marshalled
			return text
		}
	}
	if len(e.Instance) > longestInstance {
		e.Instance = ""
	}
	text, _ := json.Marshal(overview.Episode{ //nolint:errchkjson // as above
		Node: e.Node, Instance: e.Instance, Outcome: e.Outcome, Known: e.Known, Ended: e.Ended, Deadline: e.Deadline,
		Slack: e.Slack,
	})
	return text
}

// values are the keys and values of the log line about an episode. Its keys are stable: users search for them.
// What is not known, or did not come about, is left out.
func values(e overview.Episode) []any {
	all := []any{
		"node", e.Node, "instance", e.Instance, "kind", e.Kind, "rule", e.Rule, "outcome", e.Outcome, "why", e.Why,
		"known", string(e.Known), "notices", notices(e), "heldBack", e.HeldBack, "began", e.Began,
		"cordonedAt", e.CordonedAt, "uncordoned", e.Uncordoned, "firstAsked", e.FirstAsked, "lastAsked", e.LastAsked,
		"podsGone", e.PodsGone, "deadline", e.Deadline, "slackSeconds", e.Slack,
	}
	if p := e.Pods; p != nil {
		all = append(all, "evicted", &p.Evicted, "forced", &p.Forced, "ended", p.Ended, "missed", p.Missed, "lost", p.Lost,
			"unconfirmed", p.Unconfirmed, "forcedPods", p.ForcedPods, "cut", p.Cut, "cutShort", p.CutShort,
			"remaining", p.Remaining, "stayed", p.StayedPods, "partial", p.Partial)
	}
	var kept []string
	for _, r := range e.Refused {
		kept = append(kept, r.Why)
	}
	all = append(all, "keptBy", kept, "awaitedLoadBalancersSeconds", e.AwaitedBalancers, "targets", e.Targets,
		"awaitedVolumesSeconds", e.AwaitedVolumes, "volumes", e.Volumes, "hooks", overview.HookNames(e.Hooks),
		"uncompletedHooks", overview.HookNames(e.UncompletedHooks))
	var known []any
	for pair := range slices.Chunk(all, 2) {
		if value := shown(pair[1]); value != nil {
			known = append(known, pair[0], value)
		}
	}
	return known
}

// shown is a value as the log has it; nil: it is not shown. What a pointer points to is shown where it is zero, too.
func shown(value any) any {
	switch v := value.(type) {
	case time.Time:
		if !v.IsZero() {
			return v.UTC().Format(time.RFC3339Nano)
		}
		return nil
	case []string:
		if len(v) == 0 {
			return nil
		}
	}
	if v := reflect.ValueOf(value); v.IsZero() {
		return nil
	} else if v.Kind() == reflect.Pointer {
		return v.Elem().Interface()
	}
	return value
}

// notices are the kinds of an episode's notices, with their times.
func notices(e overview.Episode) (all []string) {
	for _, n := range e.Notices {
		all = append(all, n.Kind+" "+n.At.UTC().Format(time.RFC3339))
	}
	return all
}
