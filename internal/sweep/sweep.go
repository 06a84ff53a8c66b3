// Package sweep finds the lifecycle hooks that wait without a notice. EventBridge delivers
// the events of AWS services with best effort, and a rule can be missing or wrong. An
// instance whose event was lost waits until its hook times out, and loses its pods then.
//
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-service-event-delivery-level.html
package sweep

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/search"
)

const (
	// idlePause is how long an action for which nothing was to be done is left alone: a permission or a
	// tag may come.
	idlePause = 5 * time.Minute
	// hooksKept is how old the list of a group's hooks may be.
	hooksKept = 10 * time.Minute
	// clocksDiffer is the most by which our clock and the times of AWS's events differ.
	clocksDiffer = 15 * time.Second
)

// Groups tells which instances wait; see [asg.Hooks].
type Groups interface {
	// Waiting calls visit for each instance of each group that a termination hook may hold,
	// or that is retained. The error is an *asg.PermissionError without the permission.
	Waiting(ctx context.Context, visit func(asg.Waiting)) error
	// TerminationHooks are the group's termination hooks.
	TerminationHooks(ctx context.Context, group string) ([]asg.TerminationHook, error)
	// Waits reports whether Auto Scaling waits for the hook now. If so, the hook's timeout
	// begins again.
	Waits(ctx context.Context, hook intent.Hook) (waits, ended bool, err error)
}

// Handler does what a notice asks for; see package controller.
type Handler interface {
	// HandleNotice returns when that is done, or with an error. It may be called again. It
	// calls acts when it begins to do something.
	HandleNotice(ctx context.Context, n notice.Notice, acts func()) error
	// Acts reports whether HandleNotice would do something about the notice: the instance is this cluster's, and is to be
	// drained or its hook to be completed.
	Acts(ctx context.Context, n notice.Notice) (bool, error)
	// HasNode reports whether the cluster has a Node of the instance.
	HasNode(instance string) bool
	// Terminates reports whether a notice has told that the instance is terminated, by an event
	// that is no older than since.
	Terminates(instance string, since time.Time) bool
	// Told reports whether a notice has told of the hook: a node carries it.
	Told(hook intent.Hook) bool
	// Retained is told of an instance that its group keeps after an abandoned termination.
	// It is called when a sweep finds that and the one before did not.
	Retained(instance, group string)
}

// Metrics counts what is found. Its methods are called concurrently and must not block.
type Metrics interface {
	// Swept is told the result of each sweep, and how many of the cluster's instances are retained.
	Swept(retained int, err error)
	// Unannounced is called for each hook that waits without a notice.
	Unannounced()
}

// A Sweep asks Auto Scaling, again and again, which instances wait for a termination hook.
// Those of the cluster's nodes that no notice has told of are handled as if one had. Set
// the fields before Run.
type Sweep struct {
	Groups  Groups
	Handler Handler
	// HookNames are the hooks to complete. Without names these are all, but for those that
	// are surely another program's: the hooks of EKS managed node groups, and hooks with a
	// notification target.
	HookNames []string
	// NoQueue: nobody else tells of hooks, which is no fault then. A sweep that fails is repeated after a minute, or
	// after its interval if that is longer.
	NoQueue  bool
	Interval time.Duration
	Log      logr.Logger
	Metrics  Metrics

	waiting  map[string]wait   // those of the cluster's instances that are known to wait
	nodeless map[string]bool   // instances that waited at the last sweep, and had no Node
	retained map[string]string // the groups of those that are retained
	hooks    map[string]groupHooks
	last     time.Time // when the last sweep that did not fail began; zero: there was none

	search search.Rounds

	// handled are actions. Nobody has told of them, so they have only a group, a name and an instance.
	handled *search.Once[intent.Hook]
}

// A wait is that of an instance for a termination hook.
type wait struct {
	since time.Time // known
	// after: it was not waiting for this then, so that older notices are about an earlier action; zero:
	// not known.
	after        time.Time
	replacesRoot bool
}

type groupHooks struct {
	hooks []asg.TerminationHook
	asked time.Time
}

// Run sweeps until ctx ends. When it returns, all that it has begun has returned too.
func (s *Sweep) Run(ctx context.Context) {
	s.hooks = map[string]groupHooks{}
	s.waiting, s.retained, s.handled = map[string]wait{}, map[string]string{}, search.NewOnce[intent.Hook]()
	defer s.handled.Wait()
	what := "lifecycle hooks whose notices are lost"
	if s.NoQueue {
		what, s.search.Longest = "lifecycle hooks", time.Minute
	}
	for {
		if s.search.Wait(ctx, s.Interval) != nil {
			return
		}
		err := s.sweep(ctx)
		if ctx.Err() != nil {
			return
		}
		s.Metrics.Swept(len(s.retained), err)
		s.search.Ended(s.Log, what, err, hintFor(err))
	}
}

func hintFor(err error) string {
	const without = "or set sweep-interval to -1, if no Auto Scaling group has nodes of this cluster"
	if _, denied := errors.AsType[*asg.PermissionError](err); denied && !awserr.Unsupported(err) {
		return "add the permission to the role, " + without
	}
	return "check whether the VPC has an endpoint for Auto Scaling or another way to it, " + without
}

// Unseen says what the sweeps do not find at present, and why; empty: nothing. It may be called concurrently.
func (s *Sweep) Unseen() string { return s.search.Unseen() }

// sweep looks once. An instance that was waiting at the sweep before too is handled: by now
// its notice should have come.
func (s *Sweep) sweep(ctx context.Context) error {
	now := time.Now().UTC()
	waiting, nodeless, retained := map[string]wait{}, map[string]bool{}, map[string]string{}
	overdue := map[string][]string{} // instances by group
	err := s.Groups.Waiting(ctx, func(w asg.Waiting) {
		if !s.Handler.HasNode(w.Instance) {
			nodeless[w.Instance] = true
			return
		}
		if w.Retained {
			retained[w.Instance] = w.Group
			return
		}
		if w.EKS && len(s.HookNames) == 0 {
			return
		}
		before, known := s.waiting[w.Instance]
		if !known || before.replacesRoot != w.ReplacesRoot { // what it waited for before is over
			after := s.last
			if s.nodeless[w.Instance] {
				after = time.Time{}
			}
			waiting[w.Instance] = wait{now, after, w.ReplacesRoot}
			return
		}
		waiting[w.Instance] = before
		if !s.NoQueue && len(s.HookNames) == 0 && s.Handler.Terminates(w.Instance, before.after.Add(-clocksDiffer)) {
			return // the rules may leave other hooks to their owners
		}
		overdue[w.Group] = append(overdue[w.Group], w.Instance)
	})
	if err != nil {
		return err // what was found before stays: it is found again
	}
	for _, id := range slices.Sorted(maps.Keys(retained)) {
		group := retained[id]
		if _, known := s.retained[id]; !known {
			s.Handler.Retained(id, group)
		}
	}
	s.forget(waiting)
	s.waiting, s.nodeless, s.retained, s.last = waiting, nodeless, retained, now
	var errs []error
	for _, group := range slices.Sorted(maps.Keys(overdue)) {
		hooks, err := s.hooksOf(ctx, group)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, hook := range hooks {
			if !s.owns(hook) {
				continue
			}
			for _, id := range overdue[group] {
				if a := (intent.Hook{Group: group, Name: hook.Name, Instance: id}); !s.Handler.Told(a) {
					s.handle(ctx, a, waiting[id])
				}
			}
		}
	}
	return errors.Join(errs...)
}

// hooksOf are the termination hooks of a group. They hardly ever change, and an instance may wait
// for hours for the hook of another program.
func (s *Sweep) hooksOf(ctx context.Context, group string) ([]asg.TerminationHook, error) {
	if known, ok := s.hooks[group]; ok && time.Since(known.asked) < hooksKept {
		return known.hooks, nil
	}
	hooks, err := s.Groups.TerminationHooks(ctx, group)
	if err == nil {
		s.hooks[group] = groupHooks{hooks, time.Now()}
	}
	return hooks, err
}

// forget drops the actions of instances that do not wait any more, or for something else: another
// action of the same name may come, of an instance that returns from a warm pool or with another
// root volume.
func (s *Sweep) forget(waiting map[string]wait) {
	s.handled.Forget(func(a intent.Hook, _ bool) bool {
		w, waits := waiting[a.Instance]
		return !waits || w != s.waiting[a.Instance]
	})
}

func (s *Sweep) owns(hook asg.TerminationHook) bool {
	if len(s.HookNames) > 0 {
		return slices.Contains(s.HookNames, hook.Name)
	}
	return hook.Target == ""
}

// handle begins what the notice of the action would have asked for, unless it has.
func (s *Sweep) handle(ctx context.Context, a intent.Hook, w wait) {
	s.handled.Begin(a, func() (time.Duration, error) {
		acted, err := s.carryOut(ctx, a, w)
		if err != nil && ctx.Err() == nil {
			logging.Warn(s.Log, "what a lifecycle hook asks for was not done: trying again",
				"error", err, "instance", a.Instance, "group", a.Group, "hook", a.Name)
		}
		if acted {
			return search.AsLongAsFound, err
		}
		return idlePause, err
	})
}

// carryOut handles the notice of an action that has not come, if Auto Scaling waits for the
// action. To ask begins the timeout of the action again, so that the deadline is known. It therefore does not ask about
// an action that is not ours. acted is false if there was nothing to do.
func (s *Sweep) carryOut(ctx context.Context, a intent.Hook, w wait) (acted bool, err error) {
	n := notice.Notice{
		Kind: notice.ASGTerminate, Time: time.Now().UTC(), Instances: []string{a.Instance},
		ID:   "sweep-" + a.Name + "-" + w.since.Format(time.RFC3339), // the same as long as the instance waits
		Hook: notice.Hook{Group: a.Group, Name: a.Name},
	}
	if w.replacesRoot {
		n.Hook.Action = notice.ReplaceRootVolume
	}
	if ours, err := s.Handler.Acts(ctx, n); err != nil || !ours {
		return false, err
	}
	n.Time = time.Now().UTC()
	if waits, _, err := s.Groups.Waits(ctx, a); err != nil || !waits {
		return false, err
	}
	err = s.Handler.HandleNotice(ctx, n, func() {
		if acted = true; s.NoQueue {
			s.Log.Info("a lifecycle hook waits", "instance", a.Instance, "group", a.Group, "hook", a.Name)
			return
		}
		s.Metrics.Unannounced()
		logging.Warn(s.Log, "a lifecycle hook waits, and no notice has told of it: it is handled as if one had",
			"instance", a.Instance, "group", a.Group, "hook", a.Name, "event", n.ID,
			"hint", "run doctor: a rule of EventBridge may be missing")
	})
	return acted, err
}
