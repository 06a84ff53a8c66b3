// Package lookup asks EC2 about instances. It says how old an answer may be, and what follows where the role lacks the
// permission to ask.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// How old an answer of EC2 may be.
const (
	// Kept is for what hardly changes: whose an instance is.
	Kept = 10 * time.Minute
	// KeptShort is for an instance whose Node is waited for.
	KeptShort = 15 * time.Second
	// Fresh is for an answer that something is destroyed by, or that a message is
	// compared with. All who ask within this time share the answer.
	Fresh = 500 * time.Millisecond
)

const (
	// Timeout bounds one question.
	Timeout = 15 * time.Second
	// DoubtTimeout is how long EC2 is asked for the present state of an instance before
	// the message is believed: an instance that stops is there for seconds.
	DoubtTimeout = 3 * time.Second
)

// Instances tells what EC2 knows of an instance; see package instance. An answer may
// be as old as maxAge. found is false when EC2 does not know the id; an error says nothing.
type Instances interface {
	// Get hurries for what must not wait for the ids of strangers.
	Get(ctx context.Context, id string, maxAge time.Duration, hurry bool) (i instance.Instance, found bool, err error)
	// Known is the last answer, however old, without asking.
	Known(id string) (i instance.Instance, found bool, asked time.Time)
	// Members are the instances of a Capacity Reservation that do not terminate already or, if hosts are given, those on
	// these Dedicated Hosts.
	Members(ctx context.Context, reservation string, hosts []string, maxAge time.Duration) ([]instance.Instance, error)
}

// Lookup asks EC2. Its methods may be called concurrently; the fields must not change meanwhile.
type Lookup struct {
	Instances
	// Needed: without the permission to ask nothing can be decided, as with the tag check. Otherwise its lack is logged
	// once, and EC2 is asked again after [Kept].
	Needed bool
	Log    logr.Logger

	mu     sync.Mutex
	denied error     // the last answer of EC2, where the role lacks the permission and does not need it
	again  time.Time // when the role may have got the permission

	failing, failed time.Time // when the first and the last of the look-ups failed that fail now
	failure         error     // of the last one
}

// Look asks about an instance once; see [Lookup.Permitted].
//
// node: the instance has a Node here. Such requests go before those about unknown ids.
func (l *Lookup) Look(
	ctx context.Context, id string, maxAge time.Duration, node bool,
) (inst *instance.Instance, known bool, err error) {
	inst = new(instance.Instance)
	err = l.Permitted(ctx, func() (err error) {
		*inst, known, err = l.Get(ctx, id, maxAge, node)
		return err
	})
	return inst, known, err
}

// Permitted asks EC2 by ask. Where the role has no permission, and needs none, the error is [instance.ErrDenied], and
// EC2 is not asked again for a while.
func (l *Lookup) Permitted(ctx context.Context, ask func() error) error {
	l.mu.Lock()
	err, again := l.denied, !time.Now().Before(l.again)
	l.mu.Unlock()
	if err != nil && !again {
		return err
	}
	err = ask()
	if denied := errors.Is(err, instance.ErrDenied); err != nil && (l.Needed || !denied) {
		if !errors.Is(ctx.Err(), context.Canceled) { // else nobody wants the answer any more
			l.fails(err)
		}
		return err
	}
	l.mu.Lock()
	first := err != nil && l.denied == nil && !errors.Is(err, errNoEC2)
	l.denied, l.again, l.failed = err, time.Now().Add(Kept), time.Time{}
	l.mu.Unlock()
	if first {
		logging.Warn(l.Log, "messages about instances that have no Node here, and about Capacity Blocks, are left in "+
			"the queue: EC2 cannot be asked whose they are", "error", err)
	}
	return err
}

// failsFor is how long a look-up that has failed counts: until then it was tried again, see [cluster.Retry].
const failsFor = time.Minute

func (l *Lookup) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.failed) > failsFor {
		l.failing = now
	}
	l.failed, l.failure = now, err
}

// Unseen says since when look-ups fail, and why; empty: they do not.
func (l *Lookup) Unseen() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.failed) > failsFor {
		return ""
	}
	since := l.failing.UTC().Format("2006-01-02 15:04:05Z")
	return "whose instances messages are about, since " + since + ": " + l.failure.Error()
}

// Ask asks about an instance that has, or had, a Node here, and tries until EC2 answers. doing says what for, for the
// log. known is false where the role has no permission to ask. The error is the cause of ctx.
func (l *Lookup) Ask(
	ctx context.Context, log logr.Logger, doing, id string, maxAge time.Duration,
) (inst instance.Instance, known bool, err error) {
	err = cluster.Retry(ctx, log, doing, func(ctx context.Context) error {
		found, ok, err := l.Look(ctx, id, maxAge, true)
		inst, known = *found, ok
		if errors.Is(err, instance.ErrDenied) {
			return nil
		}
		return err
	})
	return inst, known, err
}

// LaunchOf is when the instance was started last, as EC2 says; zero where it does not say. The error is the cause of
// ctx.
func (l *Lookup) LaunchOf(ctx context.Context, log logr.Logger, id string) (time.Time, error) {
	inst, _, err := l.Ask(ctx, log, "look up the launch of the instance", id, Fresh)
	return inst.LastLaunch(), err
}

// CapacityBlock is the lifecycle of an instance in a Capacity Block, as EC2 names it.
const CapacityBlock = "capacity-block"

// membersKept is how old an answer may be to which instances a Capacity Block or a host has. Some may
// be launched until its end, and a message about a foreign one comes back again and again.
const membersKept = time.Minute

// MembersOf are the instances of the Capacity Block, or those on the Dedicated Hosts, that the notice is about.
func (l *Lookup) MembersOf(ctx context.Context, n *notice.Notice) ([]instance.Instance, error) {
	found, err := l.Members(ctx, n.Reservation, n.Hosts, membersKept)
	if len(n.Hosts) > 0 {
		return found, err
	}
	return slices.DeleteFunc(slices.Clone(found), func(i instance.Instance) bool {
		return i.Lifecycle != CapacityBlock // a reservation of another sort takes no instance away
	}), err
}

// NoEC2 are the [Instances] of a handler that asks EC2 nothing.
type NoEC2 struct{}

var errNoEC2 = fmt.Errorf("%w: this handler asks EC2 nothing", instance.ErrDenied)

// Get is refused, as the methods below are.
func (NoEC2) Get(context.Context, string, time.Duration, bool) (instance.Instance, bool, error) {
	return instance.Instance{}, false, errNoEC2
}

// Known knows nothing.
func (NoEC2) Known(string) (instance.Instance, bool, time.Time) {
	return instance.Instance{}, false, time.Time{}
}

// Members is refused.
func (NoEC2) Members(context.Context, string, []string, time.Duration) ([]instance.Instance, error) {
	return nil, errNoEC2
}
