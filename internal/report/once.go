package report

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// mostEnded bounds the drains that an observer remembers: more than the nodes of the largest cluster.
const mostEnded = 16_384

// Once returns an observer that passes everything on, and the end of each drain once. A term that ends between the last
// pod and the last write has the next one come to the same end again.
func Once(of Observer) Observer { return &once{of, NewTold(mostEnded)} }

type once struct {
	Observer

	ended *Told // drainKeys
}

// A drainKey is one drain of a node. One that only cordoned it may be followed by one that gets its pods off.
type drainKey struct {
	node    types.UID
	since   time.Time
	cordons bool
}

// Drained implements Observer.
func (o *once) Drained(d Drain) {
	key := drainKey{d.Node.UID, d.Intent.CordonedAt.UTC(), d.Outcome == intent.Cordoned}
	if d.Outcome == intent.CalledOff || !o.ended.Before(key) { // nobody comes to the end of a called-off one again
		o.Observer.Drained(d)
	}
}

// Told remembers what people have been told, so that they are told once: a poll finds what a rule ignores again each
// time, and what is left in the queue comes back. Its method may be called concurrently.
type Told struct {
	mu     sync.Mutex
	before *lru.Cache
}

// NewTold returns one that remembers the last most things.
func NewTold(most int) *Told { return &Told{before: lru.New(most)} }

// Before reports whether people have been told of something, and notes that they are.
func (t *Told) Before(of any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, told := t.before.Get(of)
	t.before.Add(of, nil)
	return told
}
