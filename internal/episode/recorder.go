// Package episode keeps the records of the episodes that have ended, and writes each into the log: that line is the
// copy that lasts.
package episode

import (
	"cmp"
	"encoding/json"
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

// A Recorder keeps the latest episodes. Its methods may be called concurrently.
type Recorder struct {
	log logr.Logger

	mu    sync.Mutex
	since time.Time // the present term began
	kept  []kept    // by their ends
}

type kept struct {
	node  string
	ended time.Time
	text  []byte // JSON
}

// NewRecorder returns a Recorder that keeps nothing so far. Its first term begins now.
func NewRecorder(log logr.Logger) *Recorder {
	return &Recorder{log: log, since: time.Now().UTC()}
}

// Add keeps an episode that has just ended, and logs it.
func (r *Recorder) Add(e overview.Episode) {
	r.log.Info("episode", values(e)...)
	r.keep(e)
}

// Rebuild begins a term: it adds episodes of which only is known what nodes carry. What is known better, of an
// earlier term of this process, stays as it is.
func (r *Recorder) Rebuild(episodes []overview.Episode) {
	r.mu.Lock()
	r.since = time.Now().UTC()
	r.mu.Unlock()
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
				pods.ForcedPods, pods.CutShort = nil, nil
				e.Pods = &pods
			}
		},
		func() { e.Refused = e.Refused[:min(1, len(e.Refused))] },
		func() { e.Targets, e.Notices = nil, e.Notices[:min(4, len(e.Notices))] },
		func() { e.Hooks = e.Hooks[:min(2, len(e.Hooks))] },
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
