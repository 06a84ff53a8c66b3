package nodedrain

import (
	"context"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A node is what a part of a drain sees of the drain: what the node carries, and how to change it.
type node interface {
	Ref() cluster.Ref
	// current returns the intent, and a channel that is closed when the intent changes.
	current() (intent.Intent, <-chan struct{})
	// onChange calls look now and after each change; see [Drain.onChange].
	onChange(look func()) (remove func())
	// rewrite changes the intent on the node, and tries until that is done. The error is the cause of ctx, or says that
	// the Node is gone.
	rewrite(ctx context.Context, change func(intent.Intent) intent.Intent) error
	// learn changes the intent of the drain at once, and then that of the node.
	learn(ctx context.Context, change func(intent.Intent) intent.Intent) error
	// say notes how far the drain has come, and what it waits for beside its pods.
	say(stage overview.Stage, waits ...overview.Wait)
	// goOn carries something out beside the stages of the drain. It has to end with them.
	goOn(do func())
}
