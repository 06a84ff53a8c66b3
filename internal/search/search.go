// Package search has what the searches have in common that ask AWS again and again for what nobody tells.
package search

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// LongestPause is how long a search that fails is not repeated at most, unless its interval is longer. A person
// grants a missing permission, or makes a VPC endpoint.
const LongestPause = 10 * time.Minute

// Jitter spreads the searches of many clusters in one account, which share its rate limits.
const Jitter = 0.1

// Rounds are those of a search. It is a safety net: of several failures the first and the end are logged, and the pause
// after each is twice as long. Only Unseen may be called concurrently.
type Rounds struct {
	Longest time.Duration // the longest pause, unless the interval is longer; zero: LongestPause

	failed int       // so many times in a row
	since  time.Time // the first of these
	unseen atomic.Pointer[string]
}

// Wait returns when it is time to look, or with the cause of ctx.
func (r *Rounds) Wait(ctx context.Context, interval time.Duration) error {
	pause := interval
	if r.failed > 0 {
		longest := max(interval, cmp.Or(r.Longest, LongestPause))
		pause = retry.Backoff{First: min(2*interval, longest), Max: longest, Factor: 2}.Pause(r.failed)
	}
	return retry.Sleep(ctx, retry.Jitter(pause, Jitter))
}

// Ended is told how looking has ended. what is looked for, and hint is what a person can do about the error.
func (r *Rounds) Ended(log logr.Logger, what string, err error, hint string) {
	switch {
	case err == nil && r.failed > 0:
		log.Info("what nobody tells of can be found again", "what", what)
		r.unseen.Store(nil)
	case err != nil && r.failed == 0:
		logging.Warn(log, "what nobody tells of cannot be found: trying again",
			"what", what, "error", err, "hint", hint)
		r.since = time.Now()
	}
	if err != nil {
		r.unseen.Store(new(what + ", since " + r.since.UTC().Format("2006-01-02 15:04:05Z") + ": " + err.Error()))
	}
	if r.failed++; err == nil {
		r.failed = 0
	}
}

// Unseen says what is not found at present, since when, and why; empty: nothing.
func (r *Rounds) Unseen() string {
	if text := r.unseen.Load(); text != nil {
		return *text
	}
	return ""
}
