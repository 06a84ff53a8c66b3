package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// What fails is tried again after firstPause, then twice as long each time, up to lastPause.
	firstPause = 500 * time.Millisecond
	lastPause  = 10 * time.Second
	// worthAWarning is the pause from which a failure is logged as a warning: the third
	// failure in a row. A conflict or a throttled request has succeeded by then.
	worthAWarning = 4 * firstPause
	// tryTimeout bounds one try, so that a server that hangs costs one try.
	tryTimeout = 15 * time.Second
)

// Retry tries until it succeeds, or the Node is gone, or ctx ends; the error then wraps the
// cause of ctx. A message is held meanwhile: returning it to the queue would count as one
// more receive, and too many of them move it to the dead-letter queue.
func Retry(ctx context.Context, log logr.Logger, doing string, try func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, tryTimeout)
			defer cancel()
			return try(ctx)
		}()
		if err == nil || errors.Is(err, ErrNodeGone) {
			return err
		}
		if errors.Is(err, ErrNoTurn) && ctx.Err() == nil {
			tries = 0 // it was not tried
			continue
		}
		if ended := PauseAfter(ctx, log, err, doing, tries); ended != nil {
			return fmt.Errorf("%s: %w (the last try: %w)", doing, ended, err)
		}
	}
}

// PauseAfter logs that something has failed for the n-th time in a row, and returns when it is to be tried again, or
// the cause of ctx.
func PauseAfter(ctx context.Context, log logr.Logger, err error, doing string, n int) error {
	pause := retry.Backoff{First: firstPause, Max: lastPause, Factor: 2}.Pause(n)
	switch {
	case ctx.Err() != nil:
	case pause >= worthAWarning:
		logging.Warn(log, "trying again", "error", err, "doing", doing, "in", pause.String())
	default:
		log.Info("trying again", "error", err, "doing", doing, "in", pause.String())
	}
	return retry.Sleep(ctx, pause)
}
