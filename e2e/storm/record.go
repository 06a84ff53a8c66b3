package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// record notes when the nodes of one measurement were cordoned, when their first
// pod was told to stop, and when they were empty.
type record struct {
	nodes map[string]*times
	empty chan struct{} // closed when all nodes are

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

// watch notes until ctx ends. It returns when it has seen what there is.
func (r *record) watch(ctx context.Context, kube kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(kube, 0)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.note(obj, false) },
		UpdateFunc: func(_, obj any) { r.note(obj, false) },
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj
			}
			r.note(obj, true)
		},
	}
	core := factory.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.Nodes().Informer(), core.Pods().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return ctx.Err()
}

func (r *record) note(obj any, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch obj := obj.(type) {
	case *corev1.Node:
		if t := r.nodes[obj.Name]; t != nil && t.cordoned.IsZero() && obj.Spec.Unschedulable {
			t.cordoned = now
		}
	case *corev1.Pod:
		t := r.nodes[obj.Spec.NodeName]
		if t == nil {
			return
		}
		if t.evicted.IsZero() && obj.DeletionTimestamp != nil {
			t.evicted = now
		}
		if !deleted {
			return
		}
		if t.pods--; t.pods == 0 {
			t.gone = now
			if r.left--; r.left == 0 {
				close(r.empty)
			}
		}
	}
}

// awaitEmpty returns when all nodes are empty. It gives up after five minutes.
func (r *record) awaitEmpty(ctx context.Context) error {
	const patience = 5 * time.Minute
	select {
	case <-r.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		r.mu.Lock()
		defer r.mu.Unlock()
		return fmt.Errorf("%d nodes are not empty after %s", r.left, patience)
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
