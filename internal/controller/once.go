package controller

import (
	"sync"

	"k8s.io/utils/lru"
)

// A once remembers what people have been told, so that they are told once: a poll finds what a rule ignores again each
// time, and what is left in the queue comes back. Its method may be called concurrently.
type once struct {
	mu     *sync.Mutex
	before *lru.Cache
}

// newOnce returns a once that remembers the last most things.
func newOnce(most int) once { return once{new(sync.Mutex), lru.New(most)} }

// said reports whether people have been told of something, and notes that they are.
func (o once) said(of string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, said := o.before.Get(of)
	o.before.Add(of, nil)
	return said
}
