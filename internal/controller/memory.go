package controller

import (
	"slices"
	"sync"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
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
	return !n.Ended && c.hasAnnounced(id, n.Kind, n.Change, n.Time)
}

// hasEntry is has for a notice that a node carries.
func (c cancelledChanges) hasEntry(id string, e intent.Entry) bool {
	return c.hasAnnounced(id, e.Kind, e.Change, e.Time)
}

func (c cancelledChanges) hasAnnounced(id string, kind notice.Kind, change string, at time.Time) bool {
	return kind == notice.ScheduledChange && slices.ContainsFunc(c.of(id), func(ended cancelled) bool {
		return ended.change == change && !at.After(ended.at)
	})
}
