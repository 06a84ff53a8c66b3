// Demo shows node-termination-handler at work: it starts a real control plane
// with four nodes and two Deployments, and two replicas of the built binary
// against simulated AWS endpoints. It lets the binary's own simulate send a spot
// interruption warning for one node, then an Auto Scaling group terminate another,
// then warns of a third and kills the leader in the middle of its drain;
// and prints what happens, as it happens.
//
//	demo -handler FILE [-manifests FILE] [-patience DURATION]
//	demo -handler FILE [-manifests FILE] -playground FILE
//
// A playground sends no notice. It keeps three nodes, one Deployment and both replicas running until it is interrupted,
// and writes the variables that lead the program's own commands there to a file.
//
// It takes Go, to compile the control plane the first time, and is run in the
// root of the source tree; see `make demo`. What it prints is what the API server
// and the simulator say, not the controller's log. Its status is 0 when all
// happened that should have, 1 when not, 2 for a mistake in the arguments.
// Nothing is left running, nor lying about, when it ends or is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// options are those of the command line.
type options struct {
	handler    string        // path of the binary
	manifests  string        // path
	patience   time.Duration // with a notice; 0: until its deadline
	playground string        // path of the file to write; empty: the demo
}

// run returns the exit status.
func run(ctx context.Context, args []string, out *os.File, errOut io.Writer) int {
	var o options
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&o.handler, "handler", "", "`path` of the node-termination-handler binary")
	flags.StringVar(&o.manifests, "manifests", "deploy/manifests/node-termination-handler.yaml",
		"`path` of the manifests with the RBAC")
	flags.DurationVar(&o.patience, "patience", 0, "how long to wait for the end of a notice; 0: until its deadline")
	flags.StringVar(&o.playground, "playground", "",
		"keep everything running, and write the variables that lead to it to this `file`")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case o.handler == "" || flags.NArg() > 0:
		flags.Usage()
		return 2
	}
	klog.SetLogger(logr.Discard()) // of our own client's, which has no news for anyone here
	d := demo{
		options: o,
		out:     timeline.Printer{Out: out, Colour: overview.ColourWanted(isTerminal(out), os.Getenv)},
	}
	err = d.run(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "demo: interrupted; nothing is left running")
		return 1
	default:
		fmt.Fprintf(errOut, "\ndemo: it did not work: %v\n", err)
		d.printLogs(errOut)
		return 1
	}
}

// isTerminal takes other character devices for terminals too: what they do not
// show, colours cannot spoil.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
