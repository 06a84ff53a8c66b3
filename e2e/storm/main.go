// Storm measures how fast the handler gets hundreds of nodes cordoned and empty,
// against bare loops that do the same with nothing but the requests.
//
//	make storm NODES=100 PODS=10
//
// It starts a sandbox, adds nodes with pods, patches each node and evicts each
// pod in loops (the floor), sets the same up again, starts the built binary with
// its default options, sends all notices at once, measures the floor once more,
// since a machine's pace drifts, and prints one table. Times mean nothing between
// machines; the ratios to the floor do. With -record it also appends what it has
// measured to a file, of which package figures makes the figures of the docs.
//
// With -simulate the API server is a simulated one, of a control plane that is too
// large for the machine, see package kubesim:
//
//	make storm NODES=5000 PODS=15 IDLE=10000 ARGS='-simulate xl'
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are what a storm is made of.
type options struct {
	program   string
	manifests string
	nodes     int
	pods      int // on each node
	kind      string
	stop      time.Duration
	foreign   int
	latency   time.Duration
	ec2Rate   float64
	tagCheck  bool
	idle      int // nodes that stay out of it, each with as many pods
	busy      int // nodes that are interrupted before, and still draining
	busyKind  string
	busyStop  time.Duration
	busyLead  time.Duration
	keep      time.Duration
	record    string            // file; empty: none
	others    map[string]string // options that say more about the storm than nodes, pods, idle and kind
	args      []string
	logFile   string

	simulate    string // the tier of a simulated control plane; empty: a sandbox
	level       string
	nodeWatches int
	podWatches  int
}

func main() {
	var o options
	flag.StringVar(&o.program, "handler", "bin/node-termination-handler", "path of the built binary")
	flag.StringVar(&o.manifests, "manifests", "deploy/manifests/node-termination-handler.yaml", "what to install")
	flag.IntVar(&o.nodes, "nodes", 100, "nodes that are interrupted")
	flag.IntVar(&o.pods, "pods", 10, "pods on each node")
	flag.StringVar(&o.kind, "kind", "spot", "of the notices: spot, rebalance or state-change")
	flag.DurationVar(&o.stop, "stop", 100*time.Millisecond, "how long a pod takes to stop")
	flag.IntVar(&o.foreign, "foreign", 0, "messages about instances of others, sent with the notices")
	flag.DurationVar(&o.latency, "latency", 0, "of every AWS call")
	flag.Float64Var(&o.ec2Rate, "ec2-rate", 0, "EC2 calls a second before it throttles; 0: it does not")
	flag.BoolVar(&o.tagCheck, "tag-check", true, "leave the tag check on, as by default")
	flag.IntVar(&o.idle, "idle", 0, "nodes that are not interrupted")
	flag.IntVar(&o.busy, "busy", 0, "nodes that are interrupted before the others")
	flag.StringVar(&o.busyKind, "busy-kind", "rebalance", "how: spot, rebalance or state-change")
	flag.DurationVar(&o.busyStop, "busy-stop", time.Minute, "how long their pods take to stop")
	flag.DurationVar(&o.busyLead, "busy-lead", 3*time.Second, "how long before")
	flag.DurationVar(&o.keep, "rest", 15*time.Second, "how long to watch the handler at rest before the storm")
	flag.StringVar(&o.record, "record", "", "file to append what was measured to, as a line of JSON")
	flag.StringVar(&o.logFile, "log", "", "file for what the handler logs")
	flag.StringVar(&o.simulate, "simulate", "",
		"simulate an API server instead of starting one: none (no limits), default, xl, 2xl or 4xl")
	flag.StringVar(&o.level, "level", "service-accounts",
		"of the handler's priority in the simulated API server: service-accounts, kube-system, or own (of flowschema.yaml)")
	flag.IntVar(&o.nodeWatches, "node-watches", 20, "clients that watch all nodes, in the simulated API server's accounts")
	flag.IntVar(&o.podWatches, "pod-watches", 5, "clients that watch all pods, in the simulated API server's accounts")
	flag.Parse()
	o.others, o.args = settings(flag.CommandLine), flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}
