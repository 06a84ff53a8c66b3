package cluster

import (
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// PerNode does work for nodes, for each on a goroutine of its own: a node that cannot be written holds up no other. Set
// Log before the first call. Its methods may be called concurrently.
type PerNode struct {
	Log logr.Logger // of panics

	all  sync.WaitGroup
	mu   sync.Mutex
	busy map[types.UID]bool // nodes that are worked on; true: once more
}

// Do begins the work for a node. Where it has begun, and has not ended, it is done once more after that. A panic ends
// it.
func (p *PerNode) Do(node types.UID, work func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == nil {
		p.busy = map[types.UID]bool{}
	}
	_, begun := p.busy[node]
	p.busy[node] = begun
	if begun {
		return
	}
	p.all.Go(func() {
		for again := true; again; again = p.again(node) {
			_ = logging.Recover(p.Log, func() error { // which logs it
				work()
				return nil
			})
		}
	})
}

// again reports whether the work for a node is to be done once more; else it has ended.
func (p *PerNode) again(node types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.busy[node]
	if again {
		p.busy[node] = false
	} else {
		delete(p.busy, node)
	}
	return again
}

// Wait waits for the end of all work. Do must not be called any more.
func (p *PerNode) Wait() { p.all.Wait() }
