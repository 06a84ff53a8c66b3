package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// checkTimeout bounds each try of a check that has no timeout of its own. An answer takes a second, with the client's
// own retries.
const checkTimeout = 10 * time.Second

// checkBackoff is the pause after a failed check. It is short at first, because a spot
// warning leaves two minutes, and longer then, because the other side may be throttling.
// With its jitter it is bounded by Max as well.
var checkBackoff = retry.Backoff{First: 500 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.5}

// A check is something that must work once before this replica is ready. /readyz names it
// until then.
type check struct {
	part string
	run  func(context.Context) error
	// timeout of each try; zero: checkTimeout.
	timeout time.Duration
	// heals reports whether an error may go away by itself, so that the check is tried
	// again. Any other error ends the process, which shows what somebody has to mend.
	heals func(error) bool
	// background: if the first try fails with an error that may heal, the start-up does not
	// wait for further tries. The replica may lead, but is not ready.
	background bool
	// then are the checks that follow when it works; without it they fail for the same reason.
	then []check
}

func always(error) bool { return true }

// runChecks makes all checks at once, each until it works. It returns the first error that
// does not heal, or the cause of ctx.
func runChecks(ctx context.Context, log logr.Logger, h *health, checks []check) error {
	group, all := errgroup.WithContext(ctx)
	var start func([]check)
	start = func(checks []check) {
		for _, c := range checks {
			group.Go(func() error {
				err := c.await(ctx, all, log, h)
				if err == nil {
					start(c.then)
				}
				return err
			})
		}
	}
	announce(h, checks)
	h.set("start", "")
	start(checks)
	return group.Wait()
}

func announce(h *health, checks []check) {
	for _, c := range checks {
		h.set(c.part, "not checked yet")
		announce(h, c.then)
	}
}

// await tries the check until it works. It returns an error that does not heal, or the cause
// of starting, the context of all checks. A background check goes on until ctx ends after
// await has returned.
func (c check) await(ctx, starting context.Context, log logr.Logger, h *health) error {
	err := c.try(starting)
	switch {
	case err == nil:
		h.set(c.part, "")
		return nil
	case starting.Err() != nil:
		return context.Cause(starting)
	case !c.heals(err):
		return err
	case c.background:
		c.heals = always // as when a permission is taken away later
		go func() { _ = c.tryAgain(ctx, log, h, err) }()
		return nil
	}
	return c.tryAgain(starting, log, h, err)
}

// try makes the check once.
func (c check) try(ctx context.Context) error {
	timeout := cmp.Or(c.timeout, checkTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	return c.run(ctx)
}

// tryAgain tries a check that has failed with err until it works. It returns an error that
// does not heal, or the cause of ctx.
func (c check) tryAgain(ctx context.Context, log logr.Logger, h *health, err error) error {
	begin := time.Now()
	logging.Warn(log, "the start-up waits for something that may heal by itself: trying again",
		"what", c.part, "error", err)
	for tries := 1; ; tries++ {
		h.set(c.part, err.Error())
		if ended := retry.Sleep(ctx, min(checkBackoff.Pause(tries), checkBackoff.Max)); ended != nil {
			return ended
		}
		if err = c.try(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !c.heals(err) {
			return err
		}
	}
	h.set(c.part, "")
	log.Info("the start-up no longer waits for it", "what", c.part, "after", time.Since(begin).Round(time.Second).String())
	return nil
}
