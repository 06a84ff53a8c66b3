package retry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// LongestPause is how long a [Search] that fails is not repeated at most, unless its interval is longer. A person
// grants a missing permission, or makes a VPC endpoint.
const LongestPause = 10 * time.Minute

// SearchJitter spreads the searches of many clusters in one account, which share its rate limits.
const SearchJitter = 0.1

// A Search looks again and again for what nobody tells. It is a safety net: of several failures it logs the first and
// the end, and it pauses twice as long after each. Only Unseen may be called concurrently.
type Search struct {
	failed int // so many times in a row
	unseen atomic.Pointer[string]
}

// Wait returns when it is time to look, or with the cause of ctx.
func (s *Search) Wait(ctx context.Context, interval time.Duration) error {
	pause := interval
	if s.failed > 0 {
		longest := max(interval, LongestPause)
		pause = Backoff{First: min(2*interval, longest), Max: longest, Factor: 2}.Pause(s.failed)
	}
	return Sleep(ctx, Jitter(pause, SearchJitter))
}

// Ended is told how looking has ended. what is looked for, and hint is what a person can do about the error.
func (s *Search) Ended(log logr.Logger, what string, err error, hint string) {
	switch {
	case err == nil && s.failed > 0:
		log.Info(what + " can be found again")
		s.unseen.Store(nil)
	case err != nil && s.failed == 0:
		logging.Warn(log, what+" cannot be found: trying again, less and less often", "error", err, "hint", hint)
		s.unseen.Store(new(what + ", since " + time.Now().UTC().Format("2006-01-02 15:04:05Z") + ": " + err.Error()))
	}
	if s.failed++; err == nil {
		s.failed = 0
	}
}

// Unseen says what is not found at present, since when, and why; empty: nothing.
func (s *Search) Unseen() string {
	if text := s.unseen.Load(); text != nil {
		return *text
	}
	return ""
}
