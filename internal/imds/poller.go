package imds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
	"github.com/node-termination-handler/node-termination-handler/internal/search"
)

// Interval is the time between two polls. AWS recommends to look for an interruption every five
// seconds; AWS Node Termination Handler looks every two.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const Interval = 2 * time.Second

// backoff is the pause after failed polls. A spot warning leaves two minutes.
var backoff = retry.Backoff{First: Interval, Max: 10 * time.Second, Factor: 2}

// Items of the metadata, below meta-data/.
const (
	itemSpot      = "meta-data/spot/instance-action"
	itemRebalance = "meta-data/events/recommendations/rebalance"
	itemScheduled = "meta-data/events/maintenance/scheduled"
	itemHistory   = "meta-data/events/maintenance/history"
	itemLifecycle = "meta-data/autoscaling/target-lifecycle-state"
)

// Handler does what a notice asks for; see package controller.
type Handler interface {
	// HandleNotice returns when that is done, or with an error. It may be called again, and
	// concurrently for several notices. It calls acts when it begins to do something.
	HandleNotice(ctx context.Context, n notice.Notice, acts func()) error
	// Changes are the ids of the scheduled changes that the nodes of the instance carry.
	Changes(instance string) []string
}

// Metrics counts the polls. Its methods must not block.
type Metrics interface {
	// PolledMetadata is told how each poll has ended.
	PolledMetadata(err error)
}

// Kinds are the kinds of notice to look for.
type Kinds struct{ Spot, Rebalance, Scheduled, Lifecycle bool }

// A Poller reads the metadata of an instance every [Interval], and has each notice that it finds
// handled once. A notice whose handling fails is handled again. So that there is no more than one
// request a second, each poll but the first looks for a spot interruption and for one of the other
// kinds, in turn. Set the fields before Run.
type Poller struct {
	Metadata *Client
	Handler  Handler
	Identity Identity // of the instance
	// Life tells one life of the instance from another, such as the boot id of its node. Notices
	// of which the metadata has no time get it as part of their ids.
	Life    string
	Kinds   Kinds
	Log     logr.Logger
	Metrics Metrics

	failed   int                    // polls in a row
	turn     int                    // polls so far
	troubles map[notice.Kind]string // looks that fail, with what the log has told of; empty: nothing
	moving   map[sort]moving        // notices that the metadata has
	handled  *search.Once[found]

	mu       sync.Mutex
	lastPoll time.Time
}

// found names a notice.
type found struct {
	kind notice.Kind
	id   string
}

// LastAnswer is when the last poll was answered; zero: never. It may be called at any time.
func (p *Poller) LastAnswer() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastPoll
}

// Run polls until ctx ends. When it returns, all that it has begun has returned too, and Run may be called again.
func (p *Poller) Run(ctx context.Context) {
	p.handled, p.troubles = search.NewOnce[found](), map[notice.Kind]string{}
	if p.moving == nil {
		p.moving = map[sort]moving{}
	}
	defer p.handled.Wait()
	for next := time.Now(); ; {
		answered, err := p.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		p.note(answered, err)
		now := time.Now()
		if next = next.Add(Interval); !answered {
			next = now.Add(backoff.Pause(p.failed))
		} else if next.Before(now) { // polls that were missed are not made up for
			next = now
		}
		if retry.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
	}
}

// note takes in how a poll has ended. A service that does not give one item is answering.
func (p *Poller) note(answered bool, err error) {
	p.Metrics.PolledMetadata(err)
	if !answered {
		p.failed++
		return
	}
	p.failed = 0
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastPoll = time.Now()
}

// noteLook takes in how a look has ended. A problem is logged once, and its end too.
func (p *Poller) noteLook(kind notice.Kind, err error) {
	reported, failing := p.troubles[kind]
	switch {
	case err == nil:
		if delete(p.troubles, kind); reported != "" {
			p.Log.Info("the instance metadata can be read again", "kind", kind)
		}
	case !failing: // one failure says little
		p.troubles[kind] = ""
		p.Log.V(1).Info("the instance metadata cannot be read: trying again", "error", err, "kind", kind)
	case err.Error() != reported:
		p.troubles[kind] = err.Error()
		logging.Warn(p.Log, "the instance metadata cannot be read: notices are missed until it can; trying again",
			"error", err, "kind", kind)
	}
}

// A look is for one kind of notice.
type look struct {
	kind notice.Kind
	at   func(context.Context) ([]notice.Notice, error)
}

// looks are those of the next poll.
func (p *Poller) looks() []look {
	var now, others []look
	if p.Kinds.Spot {
		now = append(now, look{notice.SpotInterruption, p.spot})
	}
	if p.Kinds.Scheduled {
		others = append(others, look{notice.ScheduledChange, p.scheduled})
	}
	if p.Kinds.Lifecycle {
		others = append(others, look{notice.ASGTerminate, p.termination})
	}
	if p.Kinds.Rebalance {
		others = append(others, look{notice.RebalanceRecommendation, p.rebalance})
	}
	if p.turn++; p.turn > 1 && len(others) > 0 {
		others = others[p.turn%len(others):][:1]
	}
	return append(now, others...)
}

// poll looks once. answered: for some kind there was an answer.
func (p *Poller) poll(ctx context.Context) (answered bool, err error) {
	var errs []error
	for _, look := range p.looks() {
		notices, err := look.at(ctx)
		if ctx.Err() != nil {
			return answered, ctx.Err()
		}
		answered = answered || err == nil
		p.noteLook(look.kind, err)
		present := map[found]bool{}
		if err == nil {
			p.settle(look.kind, notices)
		}
		for _, n := range notices {
			n.Account, n.Region = p.Identity.Account, p.Identity.Region
			present[found{n.Kind, n.ID}] = true
			p.handle(ctx, n)
		}
		if err == nil {
			p.handled.Forget(func(n found, _ bool) bool { return n.kind == look.kind && !present[n] })
			continue
		}
		errs = append(errs, err)
		if _, ofItem := errors.AsType[itemError](err); !ofItem {
			break // the other would wait for an answer as long
		}
	}
	return answered, errors.Join(errs...)
}

// A sort is what notices have in common that are one if their time moves a little.
type sort struct {
	kind           notice.Kind
	change, detail string
	ended          bool
}

// moving is a notice as it was read first, and its time as it was read last.
type moving struct {
	first notice.Notice
	last  time.Time
}

// settle gives a notice whose time moves at each answer the time that it had first: it is one notice. The times of
// amazon-ec2-metadata-mock move by default; those of EC2 do not.
func (p *Poller) settle(kind notice.Kind, notices []notice.Notice) {
	const step = time.Minute // a notice whose time moves by more, or to an earlier time, is another one
	before := p.moving
	p.moving = maps.Clone(before)
	maps.DeleteFunc(p.moving, func(of sort, _ moving) bool { return of.kind == kind })
	for k, n := range notices {
		of, at := sort{n.Kind, n.Change, n.Detail, n.Ended}, n.Deadline
		if at.IsZero() {
			at = n.Time
		}
		m, known := before[of]
		if moved := at.Sub(m.last); !known || moved < 0 || moved >= step {
			m.first = n
		}
		p.moving[of] = moving{m.first, at}
		notices[k] = m.first
	}
}

// read reads an item, if there is one, and parses it.
func (p *Poller) read(
	ctx context.Context, path string, parse func(body string) ([]notice.Notice, error),
) ([]notice.Notice, error) {
	body, found, err := p.Metadata.get(ctx, path)
	if err != nil || !found {
		return nil, err
	}
	notices, err := parse(body)
	if err != nil {
		err = itemError{fmt.Errorf("read %s: %w", path, err)}
	}
	return notices, err
}

func (p *Poller) spot(ctx context.Context) ([]notice.Notice, error) {
	return p.read(ctx, itemSpot, func(body string) ([]notice.Notice, error) {
		return one(notice.OfSpotAction(body, p.Identity.Instance))
	})
}

func (p *Poller) rebalance(ctx context.Context) ([]notice.Notice, error) {
	return p.read(ctx, itemRebalance, func(body string) ([]notice.Notice, error) {
		return one(notice.OfRebalance(body, p.Identity.Instance))
	})
}

func (p *Poller) termination(ctx context.Context) ([]notice.Notice, error) {
	return p.read(ctx, itemLifecycle, func(body string) ([]notice.Notice, error) {
		if strings.ContainsFunc(strings.TrimSpace(body), isNoStateRune) {
			return nil, errors.New("it is no state: a word, or two with a colon")
		}
		if !notice.Terminated(body) {
			return nil, nil
		}
		return one(notice.OfTermination(p.Identity.Instance, p.Life))
	})
}

// isNoStateRune reports what no lifecycle state has. Its words are letters and a colon.
func isNoStateRune(r rune) bool { return r != ':' && !unicode.IsLetter(r) }

func one(n notice.Notice, err error) ([]notice.Notice, error) {
	if err != nil {
		return nil, err
	}
	return []notice.Notice{n}, nil
}

// scheduled finds the changes that are ahead, and the end of those that the node carries. A change
// that is over is listed in the history alone, by AWS's documents.
func (p *Poller) scheduled(ctx context.Context) ([]notice.Notice, error) {
	read := time.Now()
	if p.Identity.Started.After(read) { // the clock is behind; what the metadata tells is about the present life
		read = p.Identity.Started
	}
	parse := func(body string) ([]notice.Notice, error) {
		return notice.OfScheduled(body, p.Identity.Instance, read)
	}
	listed, err := p.read(ctx, itemScheduled, parse)
	if err != nil && listed == nil {
		return nil, err
	}
	open := p.Handler.Changes(p.Identity.Instance)
	var wanted []notice.Notice
	for _, n := range listed {
		if !n.Ended {
			open = slices.DeleteFunc(open, func(change string) bool { return change == n.Change })
			wanted = append(wanted, n)
		}
	}
	if len(open) == 0 {
		return wanted, err
	}
	past, historyErr := p.read(ctx, itemHistory, parse)
	for _, n := range append(listed, past...) {
		if n.Ended && slices.Contains(open, n.Change) {
			wanted = append(wanted, n)
		}
	}
	return wanted, errors.Join(err, historyErr)
}

// handle begins what a notice asks for, unless it has.
func (p *Poller) handle(ctx context.Context, n notice.Notice) {
	p.handled.Begin(found{n.Kind, n.ID}, func() (time.Duration, error) {
		err := p.Handler.HandleNotice(ctx, n, func() {})
		if err != nil && ctx.Err() == nil {
			logging.Warn(p.Log, "what a notice asked for was not done: trying again",
				"error", err, "kind", n.Kind, "event", n.ID)
		}
		return search.AsLongAsFound, err
	})
}
