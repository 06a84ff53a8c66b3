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
func Once(of Observer) Observer { return &once{Observer: of, ended: lru.New(mostEnded)} }

type once struct {
	Observer

	mu    sync.Mutex
	ended *lru.Cache // of drainKey
}

// A drainKey is one drain of a node. One that only cordoned it may be followed by one that gets its pods off.
type drainKey struct {
	node    types.UID
	since   time.Time
	cordons bool
}

// Drained implements Observer.
func (o *once) Drained(d Drain) {
	if d.Outcome != intent.CalledOff { // nobody comes to that end again
		key := drainKey{d.Node.UID, d.Intent.CordonedAt.UTC(), d.Outcome == intent.Cordoned}
		o.mu.Lock()
		_, told := o.ended.Get(key)
		o.ended.Add(key, nil)
		o.mu.Unlock()
		if told {
			return
		}
	}
	o.Observer.Drained(d)
}
