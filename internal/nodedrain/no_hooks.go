package nodedrain

import (
	"context"
	"errors"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// NoHooks are the lifecycle hooks of the IMDS mode: there are none, because the metadata names no
// hook. A node may carry the hook of a handler with a queue, which does what is to be done about it.
// It implements [Hooks].
type NoHooks struct{}

// Limits are not known.
func (NoHooks) Limits(context.Context, intent.Hook) (notice.HookLimits, error) {
	return notice.HookLimits{}, nil
}

// Hold does nothing.
func (NoHooks) Hold(ctx context.Context, _ intent.Hook) { <-ctx.Done() }

// Waits is false.
func (NoHooks) Waits(context.Context, intent.Hook) (bool, error) { return false, nil }

// Ended is false.
func (NoHooks) Ended(context.Context, intent.Hook) (bool, error) { return false, nil }

// errNotOurs is why a hook is not completed that a handler with a queue has recorded.
var errNotOurs = errors.New("a handler without a queue completes no hooks")

// Complete leaves the hook as it is.
func (NoHooks) Complete(context.Context, intent.Hook) error { return errNotOurs }
