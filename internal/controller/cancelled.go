package controller

import (
	"slices"
	"sync"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// cancelledChanges remembers when scheduled changes were cancelled, for announcements that
// SQS delivers after that. It is bounded, because this order is rare: for each instance by itself,
// because a pod on a node can report ever new ends of changes.
type cancelledChanges struct {
	mu    *sync.Mutex
	ended *utilcache.LRUExpireCache // of instances: their changes as []cancelled, which nobody changes
}

type cancelled struct {
	change string
	at     time.Time
}

func newCancelledChanges() cancelledChanges {
	const instances = 4096
	return cancelledChanges{new(sync.Mutex), utilcache.NewLRUExpireCache(instances)}
}

func (c cancelledChanges) add(n notice.Notice, id string) {
	const (
		ttl  = time.Hour // SQS does not reorder messages by more
		most = 16
	)
	c.mu.Lock()
	defer c.mu.Unlock()
	all, at := slices.Clone(c.of(id)), n.Time
	if k := slices.IndexFunc(all, func(e cancelled) bool { return e.change == n.Change }); k >= 0 {
		if all[k].at.After(at) {
			at = all[k].at
		}
		all = slices.Delete(all, k, k+1)
	}
	all = append(all, cancelled{n.Change, at})
	c.ended.Add(id, all[max(0, len(all)-most):], ttl)
}

func (c cancelledChanges) of(id string) []cancelled {
	all, _ := c.ended.Get(id)
	known, _ := all.([]cancelled)
	return known
}

// has reports whether the change was cancelled for the instance after this announcement.
func (c cancelledChanges) has(n notice.Notice, id string) bool {
	return n.Kind == notice.ScheduledChange && !n.Ended && slices.ContainsFunc(c.of(id), func(ended cancelled) bool {
		return ended.change == n.Change && !n.Time.After(ended.at)
	})
}
