package controller

import (
	"context"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Config is what a controller is made of.
type Config struct {
	nodedrain.Config

	Instances lookup.Instances
	// StartupTaints are the keys of taints that a node loses at the end of its startup: with one of
	// them it is not ready for a launch hook to be completed. Taints whose keys begin with
	// readiness.k8s.io/ are of this sort too.
	StartupTaints []string
	// ClusterName is this cluster's name in the tags of its instances; can be empty.
	ClusterName string
	// Lease is this handler's, as namespace/name: it takes the reports of pods on nodes that name it. Empty: none.
	Lease string
	// OutOfServiceTaint puts the out-of-service taint on nodes whose instance has stopped.
	OutOfServiceTaint bool
}

const (
	// askStateAgain is when EC2 is asked again after it has contradicted a new notice.
	askStateAgain = 5 * time.Second
	// lookUpsAtOnce bounds the look-ups for messages that name several instances: a
	// body can name thousands, and EC2 takes 200 in one request.
	lookUpsAtOnce = 200
	// crowdsAtOnce bounds the messages that are looked up at once and name several
	// instances. Each holds 150 KB of ids at most.
	crowdsAtOnce = 64
	// mostTold bounds the notices that told remembers: there are more of them than nodes in the largest cluster.
	mostTold = 8192
	// mostStrange bounds the messages that strange remembers.
	mostStrange = 1024
)

// New returns a controller that begins with Run.
func New(cfg Config) *Controller {
	cfg.Lookup = lookup.New(cfg.Instances, cfg.ManagedTag != "", cfg.Log)
	resolver := lookup.NewResolver(cfg.Lookup, cfg.Cluster, cfg.Policy)
	resolver.ClusterName, resolver.StartupTaints = cfg.ClusterName, cfg.StartupTaints
	resolver.Observer, resolver.DryRun = cfg.Observer, cfg.DryRun
	cancelled := newCancelledChanges()
	cfg.Cancelled = cancelled.hasEntry
	registry := nodedrain.New(cfg.Config)
	return &Controller{
		Config:   cfg,
		Registry: registry,
		decider:  decider{cfg, registry, resolver, cancelled},
		told:     newOnce(mostTold),
		strange:  newOnce(mostStrange),
		lookUps:  make(chan struct{}, lookUpsAtOnce),
		crowds:   make(chan struct{}, crowdsAtOnce),
		awaited:  openHooks{deadlines: map[*time.Time]bool{}},
	}
}

// Run carries out what Handle begins, after the drains that the nodes carry from an earlier leader. It returns the
// cause of ctx when ctx ends, or ErrGiveWay. Nothing is written after it has returned.
func (c *Controller) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	if c.OutOfServiceTaint {
		beside.Go(func() { outOfService{c}.takeBack(ctx) })
	}
	if !c.DryRun && !c.OnNode && c.Lease != "" {
		beside.Go(func() { reports{c}.run(ctx) })
	}
	return c.Registry.Run(ctx)
}

// Load returns what is in progress. It may be called at any time.
func (c *Controller) Load() report.Load {
	l := c.Registry.Load()
	c.awaited.addTo(&l)
	return l
}
