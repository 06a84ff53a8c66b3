package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// errDryRun leaves a message alone because nothing may be written.
var errDryRun error = leaveError{decision.WhyDryRun}

// leaveError leaves a message to other readers of the queue.
type leaveError struct{ why decision.Why }

func (e leaveError) Error() string { return string(e.why) }

// Reason is the error as a metric label.
func (e leaveError) Reason() string { return string(e.why) }

func isLeave(err error) bool {
	_, left := errors.AsType[leaveError](err)
	return left
}

// verdictOf is the answer to the queue for a message, given the error for each of its
// instances. One failure returns the message to the queue; one instance that is not ours
// leaves the message to other readers.
func verdictOf(errs ...error) error {
	var left error
	for _, err := range errs {
		if isLeave(err) {
			left = queue.Leave(err)
		} else if err != nil {
			return err
		}
	}
	return left
}

// retry tries until it succeeds, or the Node is gone, or ctx ends; the error then wraps the
// cause of ctx. The message is held meanwhile: returning it to the queue would count as one
// more receive, and too many of them move it to the dead-letter queue.
func (c *Controller) retry(ctx context.Context, log *slog.Logger, doing string, try func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, tryTimeout)
			defer cancel()
			return try(ctx)
		}()
		if err == nil || errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
		if errors.Is(err, cluster.ErrNoTurn) && ctx.Err() == nil {
			tries = 0 // it was not tried
			continue
		}
		pause := retry.Backoff{First: firstPause, Max: lastPause, Factor: 2}.Pause(tries)
		if ctx.Err() == nil {
			level := slog.LevelInfo
			if pause >= worthAWarning {
				level = slog.LevelWarn
			}
			log.Log(ctx, level, "trying again", "error", err, "doing", doing, "in", pause.String())
		}
		if ended := retry.Sleep(ctx, pause); ended != nil {
			return fmt.Errorf("%s: %w (the last try: %w)", doing, ended, err)
		}
	}
}
