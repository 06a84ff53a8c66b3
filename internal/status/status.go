// Package status finds what EC2 says only to those who ask: events that AWS has scheduled for
// instances, and instances whose status checks fail. AWS Health tells of scheduled events too, with
// best effort, and only where a rule sends its notices to the queue. Of status checks no event tells.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/search"
)

const (
	// impairedFor is how long status checks have to fail. EC2 checks each minute, and a machine that
	// boots fails for a moment.
	impairedFor = 2 * time.Minute
	// absences are the polls in a row that must not list something until it is over. EC2 answers
	// with eventual consistency.
	absences = 2
	// handledKept is when a notice that was handled, and that no Node carries, is handled again. Its
	// instance was not this program's to drain then: it may lack the managed tag.
	handledKept = time.Hour

	// With more impaired instances than few, and than a share of all nodes, none is drained; nor with more than half of
	// the nodes. A zone may have failed, or the network: pods that run would be deleted for nothing. EKS and Karpenter
	// stop to repair nodes at the same share.
	// https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html
	few   = 5
	share = 5 // the fifth part
)

// Source is what EC2 says of the instances; see [instance.Statuses]. Errors wrap
// [instance.ErrStatusDenied] if the role lacks the permission.
type Source interface {
	// Events are those that AWS has scheduled for instances, whether they run or not.
	Events(ctx context.Context) ([]instance.ScheduledEvent, error)
	// Impaired are the running instances whose status checks fail.
	Impaired(ctx context.Context) ([]instance.Impairment, error)
}

// Handler does what a notice asks for; see package controller. Its methods are called
// concurrently.
type Handler interface {
	// HandleNotice returns when that is done, or with an error. It may be called again. It
	// calls acts when it begins to do something.
	HandleNotice(ctx context.Context, n notice.Notice, acts func()) error
	// HasNode reports whether the cluster has a Node of the instance.
	HasNode(instance string) bool
	// Count is how many Nodes the cluster has.
	Count() int
	// HasHeardOf reports whether a Node of the notice's instance carries the notice, or has
	// carried it before.
	HasHeardOf(n notice.Notice) bool
	// Scheduled are the scheduled changes that the Nodes of the instance carry.
	Scheduled(instance string) []intent.Entry
	// Polled calls visit for each entry that a Node carries and that a poll may have found, and says
	// whether the Node is ready, and whether a pod on it reports the change as the metadata does.
	Polled(visit func(instance string, e intent.Entry, ready, reported bool))
	// Impaired is told of an instance with a Node whose status checks fail, with their names. It is
	// told once for each time that they fail.
	Impaired(instance, checks string)
}

// Metrics counts the polls. Its method must not block.
type Metrics interface {
	// Polled is told how each poll ended, and how many of the cluster's instances are impaired.
	// denied: the error is a missing permission.
	Polled(impaired int, err error, denied bool)
}

// A Poll asks EC2, again and again, for scheduled events and failed status checks. Those of the
// cluster's nodes are handled as notices. What nodes carry of it says what is known already, so
// that a new leader needs no memory of it. Set the fields before Run.
type Poll struct {
	Source  Source
	Handler Handler
	// DrainImpaired: nodes of impaired instances are drained. Otherwise they are only told of.
	DrainImpaired bool
	Interval      time.Duration
	Log           logr.Logger
	Metrics       Metrics

	search   search.Rounds
	absent   map[key]int          // at so many polls in a row what a Node carries was not listed
	seen     map[key]bool         // what a Node carries was listed before, in this term
	impaired map[string]time.Time // since when the status checks of an instance fail
	told     map[string]bool      // of those
	impairs  int                  // for impairedFor
	tooMany  bool                 // at the last poll

	leftAlone atomic.Pointer[string] // why so many impaired instances are not drained; nil: they are, or there are none

	handled *search.Once[key]
}

// A key names a notice for an instance, or what a Node carries of it.
type key struct{ instance, id string }

// Run polls until ctx ends. When it returns, all that it has begun has returned too.
func (p *Poll) Run(ctx context.Context) {
	p.absent, p.handled = map[key]int{}, search.NewOnce[key]()
	p.impaired, p.told = map[string]time.Time{}, map[string]bool{}
	defer p.handled.Wait()
	for {
		if p.search.Wait(ctx, p.Interval) != nil {
			return
		}
		err := p.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		denied := errors.Is(err, instance.ErrStatusDenied) && !awserr.Unsupported(err)
		p.Metrics.Polled(p.impairs, err, denied)
		hint := "check whether the VPC has an endpoint for EC2 or another way to it"
		if denied {
			hint = "add the permission to the role"
		}
		hint += ", or set status-interval to -1"
		p.search.Ended(p.Log, "scheduled events without a notice and impaired instances", err, hint)
	}
}

// Unseen says what the polls do not find at present, or what nothing is done about, and why; empty: nothing. It may be
// called concurrently.
func (p *Poll) Unseen() string {
	if text := p.leftAlone.Load(); text != nil {
		return cmp.Or(p.search.Unseen(), *text)
	}
	return p.search.Unseen()
}

// poll looks once. Without all answers nothing is done: what was found before stays.
func (p *Poll) poll(ctx context.Context) error {
	now := time.Now().UTC()
	events, err := p.Source.Events(ctx)
	if err != nil {
		return err
	}
	impairments, err := p.Source.Impaired(ctx)
	if err != nil {
		return err
	}
	listed, over := map[key]bool{}, map[key]string{} // over has the codes
	of := map[string][]instance.ScheduledEvent{}     // by instance
	for _, e := range events {
		of[e.Instance] = append(of[e.Instance], e)
	}
	var found []notice.Notice
	for _, e := range events {
		switch at := (key{e.Instance, e.ID}); {
		case !p.Handler.HasNode(e.Instance):
		case e.Over:
			over[at] = e.Code
			if told := endedAsTold(e, of[e.Instance], p.Handler.Scheduled(e.Instance)); told != nil {
				found = append(found, end(notice.ScheduledChange, e.Instance, told.Change, e.Code, now))
			}
		default:
			listed[at] = true
			n := announced(e, now)
			if told := movedFrom(e, of[e.Instance], p.Handler.Scheduled(e.Instance)); told != nil {
				n.Change, n.Detail = told.Change, cmp.Or(told.Code, n.Detail)
			}
			found = append(found, n)
		}
	}
	found = append(found, p.impairedNow(impairments, now)...)
	found = append(found, p.ended(listed, over, now)...)
	p.forget(found)
	for _, n := range found {
		if n.Ended || !p.Handler.HasHeardOf(n) {
			p.handle(ctx, n)
		}
	}
	return nil
}

// announced is the notice of a scheduled event. Its id changes when the event is moved.
func announced(e instance.ScheduledEvent, now time.Time) notice.Notice {
	id := e.ID
	if !e.NotBefore.IsZero() {
		id += e.NotBefore.UTC().Format("-20060102T150405Z")
	}
	return notice.Notice{
		Kind: notice.ScheduledChange, ID: id, Change: e.ID, Time: now, Deadline: e.NotBefore, Instances: []string{e.Instance},
		Detail: e.Code,
	}
}

// impairedNow tells of the instances whose status checks fail for impairedFor, and returns the
// notices about them, if their nodes are to be drained.
func (p *Poll) impairedNow(impairments []instance.Impairment, now time.Time) (found []notice.Notice) {
	impaired, told := map[string]time.Time{}, map[string]bool{}
	p.impairs = 0
	for _, i := range impairments {
		if !p.Handler.HasNode(i.Instance) {
			continue
		}
		since := cmp.Or(i.Since, p.impaired[i.Instance], now)
		impaired[i.Instance] = since
		if now.Sub(since) < impairedFor {
			continue
		}
		p.impairs++
		checks := strings.Join(i.Checks, ", ")
		if told[i.Instance] = true; !p.told[i.Instance] {
			p.Handler.Impaired(i.Instance, checks)
		}
		found = append(found, notice.Notice{
			Kind: notice.InstanceImpaired, ID: "impaired-" + since.UTC().Format("20060102T150405Z"), Time: now,
			Instances: []string{i.Instance}, Detail: checks,
		})
	}
	p.impaired, p.told = impaired, told
	nodes := p.Handler.Count()
	tooMany := p.impairs > few && p.impairs*share > nodes || p.impairs > 1 && p.impairs*2 > nodes
	if p.DrainImpaired && tooMany && !p.tooMany {
		logging.Warn(p.Log, "so many instances are impaired that none is drained for that: "+
			"a zone or the network may have failed",
			"impaired", p.impairs, "of", nodes)
	}
	p.tooMany = tooMany
	p.leftAlone.Store(nil)
	switch {
	case !p.DrainImpaired:
		return nil
	case tooMany:
		p.leftAlone.Store(new(fmt.Sprintf("whether %d instances are impaired, or a zone or the network: "+
			"so many of %d nodes are not drained for that", p.impairs, nodes)))
		return nil
	}
	return found
}

// ended returns the notices that end what Nodes carry and EC2 does not list any more. The status
// checks of an instance that does not run are not listed either: its node is not ready.
func (p *Poll) ended(listed map[key]bool, over map[key]string, now time.Time) (found []notice.Notice) {
	absent, seen := map[key]int{}, map[key]bool{}
	p.Handler.Polled(func(id string, e intent.Entry, ready, reported bool) {
		at, isListed := key{id, e.Change}, false
		if e.Kind == notice.InstanceImpaired {
			_, isListed = p.impaired[id]
			isListed = isListed || !ready
		} else {
			isListed = listed[at]
		}
		code, isOver := over[at]
		seen[at] = p.seen[at]
		switch {
		case isListed:
			seen[at] = true
			return
		case isOver:
		case reported && !p.seen[at]: // EC2 may list it later, or never: it is asked about one account
			return
		default:
			if absent[at] = p.absent[at] + 1; absent[at] < absences {
				return
			}
		}
		found = append(found, end(e.Kind, id, e.Change, cmp.Or(code, e.Change), now))
	})
	p.absent, p.seen = absent, seen
	return found
}

// end is the notice that a change, or an impairment, is over.
func end(kind notice.Kind, id, change, detail string, now time.Time) notice.Notice {
	return notice.Notice{
		Kind: kind, ID: cmp.Or(change, "impaired") + "-over", Change: change, Time: now, Ended: true,
		Instances: []string{id}, Detail: detail,
	}
}

// AWS Health tells of the same events by ids of its own, of no move, and the message that one is over may be lost. So
// the times and the codes decide which event of EC2's is which change that a Node carries: of and carried are all of
// the instance.

// movedFrom is the change of which a message has told, and which EC2 lists as this event, for another time; nil: it is
// none, or Nodes know. Where they carry the event by EC2's id too, which moves after it, its time of before tells which
// one that is. Otherwise the change is the only one that EC2 does not list, and the event the only one that no Node
// carries.
func movedFrom(e instance.ScheduledEvent, of []instance.ScheduledEvent, carried []intent.Entry) *intent.Entry {
	isNew := func(e instance.ScheduledEvent) bool {
		return !e.Over && !slices.ContainsFunc(carried, func(c intent.Entry) bool {
			return c.Change == e.ID || isAt(c, e.NotBefore)
		})
	}
	k := slices.IndexFunc(carried, func(c intent.Entry) bool { return c.Change == e.ID })
	moves := k >= 0 && !isAt(carried[k], e.NotBefore)
	if e.NotBefore.IsZero() || !moves && !isNew(e) {
		return nil
	}
	return toldOf(carried, func(c intent.Entry) bool {
		isListed := func(o instance.ScheduledEvent) bool { return mayBeSame(c, o) && isAt(c, o.NotBefore) }
		isOther := func(o instance.ScheduledEvent) bool { return o.ID != e.ID && mayBeSame(c, o) && isNew(o) }
		switch {
		case c.Deadline.IsZero(), !mayBeSame(c, e), slices.ContainsFunc(of, isListed):
			return false
		case moves:
			return isAt(c, carried[k].Deadline)
		}
		return !slices.ContainsFunc(of, isOther)
	})
}

// endedAsTold is the change of which a message has told, and which EC2 lists as this event, which is over; nil: it is
// none, or another event begins then, too. A change that was moved has the id of its event, see announced. A code that
// does not say what happens fits each event then, if no other one does.
func endedAsTold(e instance.ScheduledEvent, of []instance.ScheduledEvent, carried []intent.Entry) *intent.Entry {
	ends := func(c intent.Entry) bool {
		isOther := func(o instance.ScheduledEvent) bool { return !o.Over && isAt(c, o.NotBefore) }
		wasMoved := slices.ContainsFunc(c.IDs, func(id string) bool { return strings.HasPrefix(id, e.ID) })
		return (wasMoved || isAt(c, e.NotBefore)) && !slices.ContainsFunc(of, isOther)
	}
	if told := toldOf(carried, func(c intent.Entry) bool { return mayBeSame(c, e) && ends(c) }); told != nil {
		return told
	}
	return toldOf(carried, func(c intent.Entry) bool {
		return isListable(c) && notice.EffectOf(c.Code) == notice.Unclear && ends(c)
	})
}

// toldOf is the one change of a message that is so; nil: none, or more than one.
func toldOf(carried []intent.Entry, is func(intent.Entry) bool) (one *intent.Entry) {
	for k := range carried {
		switch c := &carried[k]; {
		case c.Polled(), !is(*c), one != nil && c.Change == one.Change:
		case one != nil:
			return nil
		default:
			one = c
		}
	}
	return one
}

// mayBeSame reports whether the codes of a change, AWS Health's and EC2's, fit: system-maintenance is of the network or
// the power.
func mayBeSame(told intent.Entry, listed instance.ScheduledEvent) bool {
	effect := notice.EffectOf(told.Code)
	return isListable(told) && (effect == notice.EffectOf(listed.Code) || listed.Code == "system-maintenance" &&
		(effect == notice.CutsNetwork || strings.Contains(told.Code, "POWER_MAINTENANCE")))
}

// isListable reports whether EC2 lists such a change: it lists none of a Dedicated Host, nor of an UltraServer.
func isListable(told intent.Entry) bool {
	return !strings.Contains(told.Code, "DEDICATED_HOST") && !strings.Contains(told.Code, "ULTRASERVER")
}

// isAt reports whether a change that a Node carries begins at that time, to the minute.
func isAt(c intent.Entry, at time.Time) bool {
	return !c.Deadline.IsZero() && c.Deadline.Sub(at).Abs() < time.Minute
}

// forget drops what was handled and is not found any more.
func (p *Poll) forget(found []notice.Notice) {
	still := map[key]bool{}
	for _, n := range found {
		still[keyOf(n)] = true
	}
	p.handled.Forget(func(at key, goesOn bool) bool { return !goesOn && !still[at] })
}

func keyOf(n notice.Notice) key { return key{n.Instances[0], n.Kind.String() + n.ID + n.Change} }

// handle begins what a notice asks for, unless it has.
func (p *Poll) handle(ctx context.Context, n notice.Notice) {
	p.handled.Begin(keyOf(n), func() (time.Duration, error) {
		err := p.Handler.HandleNotice(ctx, n, func() {
			p.Log.Info("EC2 says what no message has told: it is handled as a notice",
				"kind", n.Kind, "event", n.ID, "instance", n.Instances[0], "detail", n.Detail, "over", n.Ended)
		})
		if err != nil && ctx.Err() == nil {
			logging.Warn(p.Log, "what a poll has found could not be handled: trying again",
				"error", err, "kind", n.Kind, "event", n.ID, "instance", n.Instances[0])
		}
		return handledKept, err
	})
}
