package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/kubesim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// levels are the priority levels that the handler can have, by the name of the option.
var levels = map[string]kubesim.Level{
	"service-accounts": kubesim.ServiceAccounts, "kube-system": kubesim.KubeSystem, "own": kubesim.Own,
}

// simulated is a simulated API server, in this process.
type simulated struct {
	server *kubesim.Server
	dir    string
	record atomic.Pointer[record] // that is told what happens
}

func startSimulated(o options) (_ *simulated, err error) {
	tier, known := kubesim.Tiers[o.simulate]
	if !known {
		return nil, fmt.Errorf("-simulate is one of %v", slices.Sorted(maps.Keys(kubesim.Tiers)))
	}
	level, known := levels[o.level]
	if !known {
		return nil, fmt.Errorf("-level is one of %v", slices.Sorted(maps.Keys(levels)))
	}
	c := &simulated{}
	if c.dir, err = os.MkdirTemp("", "storm-"); err != nil {
		return nil, err
	}
	latency := kubesim.Typical
	if tier == (kubesim.Tier{}) {
		latency = kubesim.Latency{}
	}
	c.server = kubesim.Start(kubesim.Options{
		Tier: tier, Level: level, Latency: latency, NodeWatches: o.nodeWatches, PodWatches: o.podWatches, Observe: c.observe,
	})
	config := c.server.Config()
	err = sandbox.WriteKubeconfig(c.kubeconfig(), config.Host, config.CAData, "storm", config.BearerToken)
	if err != nil {
		c.stop()
	}
	return c, err
}

func (c *simulated) stop() {
	c.server.Stop()
	_ = os.RemoveAll(c.dir) // it is in the way of nobody
}

func (c *simulated) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// parallel is what the seats allow, and no more than the handler's gate does.
func (c *simulated) parallel() int {
	const most = 512
	return min(cmp.Or(c.server.Seats(), most), most)
}

func (c *simulated) addNode(_ context.Context, n node, pods nodePods) error {
	c.server.AddNode(kubesim.NodeSpec{
		Name: n.name, ProviderID: n.providerID(), Pods: pods.count, Stop: pods.stop, Spare: pods.spare,
	})
	return nil
}

func (c *simulated) awaitRunning(context.Context) error { return nil } // they do

func (c *simulated) removeNode(_ context.Context, name string) error {
	c.server.RemoveNode(name)
	return nil
}

func (c *simulated) watch(_ context.Context, r *record) error {
	c.record.Store(r)
	return nil
}

func (c *simulated) observe(what kubesim.Happening, node string) {
	r := c.record.Load()
	if r == nil {
		return
	}
	switch what {
	case kubesim.Cordoned:
		r.noteCordoned(node)
	case kubesim.PodStops:
		r.noteEvicted(node)
	case kubesim.PodGone:
		r.noteGone(node)
	}
}

func (c *simulated) forget() {
	c.record.Store(nil)
	c.server.RemoveReplacements()
}

func (c *simulated) calls(from, to time.Time) (map[string]int, error) {
	return c.server.Requests(from, to), nil
}

func (c *simulated) replacements() replacements {
	made := c.server.Replacements()
	return replacements{count: made.Created, last: made.LastBound}
}

func (c *simulated) peaks() []string {
	p := c.server.Peaks()
	return []string{
		fmt.Sprintf("at most %d seats of %d", p.Seats, c.server.Seats()),
		fmt.Sprintf("at most %.2f s until a request had its seats", p.Wait.Seconds()),
		fmt.Sprintf("at most %d changes that a watch of all pods had still to get", p.Behind),
		fmt.Sprintf("%d watches expired", p.Expired),
		fmt.Sprintf("%d connections opened", p.Connections),
	}
}
