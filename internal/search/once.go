package search

import (
	"maps"
	"math"
	"sync"
	"time"
)

// AsLongAsFound is for what is not handled again as long as it is found.
const AsLongAsFound time.Duration = math.MaxInt64

// Once has what a search finds handled once, and again after an error. The methods may be called concurrently.
type Once[K comparable] struct {
	mu    sync.Mutex
	until map[K]time.Time // what was begun, and until when it is not begun again; zero: it goes on
	all   sync.WaitGroup
}

// NewOnce returns a Once that has begun nothing.
func NewOnce[K comparable]() *Once[K] { return &Once[K]{until: map[K]time.Time{}} }

// Begin calls handle on a goroutine of its own. It does nothing while a call for the key goes on, nor, after one
// without an error, for the time that it returned.
func (o *Once[K]) Begin(key K, handle func() (time.Duration, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if until, begun := o.until[key]; begun && (until.IsZero() || time.Now().Before(until)) {
		return
	}
	o.until[key] = time.Time{}
	o.all.Go(func() {
		again, err := handle()
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil {
			delete(o.until, key)
		} else if _, found := o.until[key]; found {
			o.until[key] = time.Now().Add(again)
		}
	})
}

// Forget drops the keys that are over: they may be found again. goesOn: a call goes on.
func (o *Once[K]) Forget(over func(key K, goesOn bool) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.until, func(key K, until time.Time) bool { return over(key, until.IsZero()) })
}

// Wait returns when all that was begun has ended.
func (o *Once[K]) Wait() { o.all.Wait() }
