package nodedrain

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// A drains has the drains of all nodes, one a node. Its methods may be called concurrently.
type drains struct {
	registry *Registry // makes them

	mu     sync.Mutex
	byNode map[types.UID]*Drain
}

// get returns the drain of the node; nil if there is none.
func (s *drains) get(ref cluster.Ref) *Drain {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[ref.UID]
}

// getOrCreate returns the drain of the node.
func (s *drains) getOrCreate(ref cluster.Ref) *Drain {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.byNode[ref.UID]
	if d == nil {
		d = s.registry.newDrain(ref)
		s.byNode[ref.UID] = d
	}
	return d
}

// all returns the drains, in no order.
func (s *drains) all() []*Drain {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Drain, 0, len(s.byNode))
	for _, d := range s.byNode {
		all = append(all, d)
	}
	return all
}

// ofInstance returns the drains of all Nodes of an instance; none if its id is not known.
func (s *drains) ofInstance(id string) (drains []*Drain) {
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.byNode {
		if d.ref.Instance == id {
			drains = append(drains, d)
		}
	}
	return drains
}

// others returns the drains of the other Nodes of the same instance.
func (s *drains) others(ref cluster.Ref) []*Drain {
	return slices.DeleteFunc(s.ofInstance(ref.Instance), func(d *Drain) bool { return d.ref.UID == ref.UID })
}

// hooksOfOthers are the hooks of the instance that its other Nodes carry.
func (s *drains) hooksOfOthers(ref cluster.Ref) (hooks []intent.Hook) {
	for _, other := range s.others(ref) {
		hooks = append(hooks, other.carried().Hooks...)
	}
	return hooks
}

// places are where the drains stand in the line.
func (s *drains) places() []*holdback.Place {
	all := s.all()
	places := make([]*holdback.Place, len(all))
	for k, d := range all {
		places[k] = d.place
	}
	return places
}

// locked returns the drain of the node, locked. It has not ended. A new one has not started. The error is the cause of
// ctx.
func (s *drains) locked(ctx context.Context, ref cluster.Ref) (*Drain, error) {
	for {
		d := s.getOrCreate(ref)
		if err := d.lock(ctx); err != nil {
			return nil, err
		}
		if !s.hasEnded(d) {
			return d, nil
		}
		d.unlock() // it ended while we waited for it
	}
}

// succeed makes another drain of the node take the place of one that is about to be quit, so that nobody
// begins one in between. It has not started, and it is locked. It returns nil if the drain is
// being called off, which may begin it again, or has ended.
func (s *drains) succeed(d *Drain) *Drain {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ended || isClosed(d.quit.done) {
		return nil
	}
	d.next = s.registry.newDrain(d.ref)
	d.next.turn <- struct{}{}
	return d.next
}

// remove says that the drain has ended: the next notice begins another one.
func (s *drains) remove(d *Drain) {
	d.place.Leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	d.ended = true
	if s.byNode[d.ref.UID] == d {
		delete(s.byNode, d.ref.UID)
		if d.next != nil && !d.next.ended {
			s.byNode[d.ref.UID] = d.next
		}
	}
}

func (s *drains) hasEnded(d *Drain) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.ended
}
