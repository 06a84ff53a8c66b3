package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// record notes when the nodes of one measurement were cordoned, when their first
// pod was told to stop, and when they were empty.
type record struct {
	nodes    map[string]*times
	empty    chan struct{} // closed when all nodes are
	replaced replacements  // when they were
	peaks    []string      // until then

	mu    sync.Mutex
	start time.Time
	left  int // nodes that are not empty
}

type times struct {
	pods                    int
	cordoned, evicted, gone time.Time
}

func newRecord(nodes []node, pods int) *record {
	r := &record{nodes: map[string]*times{}, empty: make(chan struct{}), left: len(nodes)}
	for _, n := range nodes {
		r.nodes[n.name] = &times{pods: pods}
	}
	return r
}

// begin is the moment that all times count from.
func (r *record) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = time.Now()
}

// noteCordoned notes that a node is cordoned.
func (r *record) noteCordoned(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.nodes[node]; t != nil && t.cordoned.IsZero() {
		t.cordoned = time.Now()
	}
}

// noteEvicted notes that a pod of a node was told to stop.
func (r *record) noteEvicted(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.nodes[node]; t != nil && t.evicted.IsZero() {
		t.evicted = time.Now()
	}
}

// noteGone notes that a pod of a node is gone.
func (r *record) noteGone(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.nodes[node]
	if t == nil {
		return
	}
	if t.pods--; t.pods == 0 {
		t.gone = time.Now()
		if r.left--; r.left == 0 {
			close(r.empty)
		}
	}
}

// awaitEmpty returns when all nodes are empty. It gives up after five minutes: then some were missed.
func (r *record) awaitEmpty(ctx context.Context) error {
	const patience = 5 * time.Minute
	select {
	case <-r.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return nil
	}
}

// since are the times of all nodes, from the beginning.
func (r *record) since(of func(*times) time.Time) spread {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all spread
	for _, t := range r.nodes {
		if at := of(t); !at.IsZero() {
			all = append(all, at.Sub(r.start))
		}
	}
	slices.Sort(all)
	return all
}

func (r *record) cordoned() spread { return r.since(func(t *times) time.Time { return t.cordoned }) }
func (r *record) evicted() spread  { return r.since(func(t *times) time.Time { return t.evicted }) }
func (r *record) gone() spread     { return r.since(func(t *times) time.Time { return t.gone }) }

// spread are durations in order.
type spread []time.Duration

// at is the quantile q, zero of nothing.
func (s spread) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func (s spread) max() time.Duration { return s.at(1) }
