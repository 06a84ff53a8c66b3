// Node-termination-handler is a Kubernetes controller that drains nodes before AWS takes
// their instances away: it reads notices from an SQS queue, cordons and drains the node
// of each instance, completes its lifecycle hook, and only then deletes the message. See
// --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // for the windows of a policy: the image has no files but the program
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	// A second Ctrl-C ends the program at once, whatever it does. A second SIGTERM does not:
	// the handler returns its messages to the queue first.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	status := runAs(ctx, os.Args, os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
