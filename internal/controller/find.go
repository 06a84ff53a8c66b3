package controller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// finding is whose an instance is, and its node if it has one.
type finding struct {
	whose  whose
	ref    cluster.Ref
	ready  bool           // the node's
	intent cluster.Intent // the node's; zero if it has none that can be read
}

func found(node *corev1.Node) finding {
	f := finding{whose: ours, ref: cluster.RefOf(node), ready: cluster.Ready(node)}
	if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
		f.intent = i
	}
	return f
}

// find finds out whose an instance is. Nothing is asked of EC2 for a known node without the tag check, nor for what is in its cache.
func (c *Controller) find(ctx context.Context, n notice.Notice, id string, maxAge time.Duration) (finding, error) {
	if c.elsewhere(n) {
		return finding{whose: foreign}, nil
	}
	node := c.Cluster.ByInstance(id)
	if c.ManagedTag == "" {
		switch {
		case node != nil:
			return found(node), nil
		case c.Cluster.Left(id):
			return finding{whose: departed}, nil
		}
	}
	inst, known, err := c.lookUp(ctx, id, maxAge)
	switch {
	case errors.Is(err, instance.ErrDenied) && c.ManagedTag == "":
		return finding{whose: unknown}, nil
	case err != nil:
		return finding{}, err
	}
	if node == nil && known {
		node = c.namesake(inst)
	}
	_, tagged := inst.Tags[c.ManagedTag]
	switch {
	case known && c.ManagedTag != "" && !tagged:
		return finding{whose: unmanaged}, nil
	case node != nil:
		return found(node), nil
	case c.Cluster.Left(id):
		return finding{whose: departed}, nil
	case !known:
		// EC2 shows a new instance a little later than Auto Scaling announces it.
		if n.Kind == notice.ASGLaunch && !n.Time.IsZero() && time.Since(n.Time) < young {
			return finding{whose: pending}, nil
		}
		return finding{whose: foreign}, nil
	case !c.expected(inst, tagged):
		return finding{whose: foreign}, nil
	case inst.State == "pending" || inst.State == "running":
		return finding{whose: pending}, nil
	}
	return finding{whose: departed}, nil
}

// lookUp asks EC2 about an instance. Where the role may not ask and need not, which is without the
// tag check, that is logged once, and EC2 is not bothered again for a while.
func (c *Controller) lookUp(ctx context.Context, id string, maxAge time.Duration) (instance.Instance, bool, error) {
	if c.ManagedTag != "" {
		return c.Instances.Get(ctx, id, maxAge)
	}
	c.mu.Lock()
	err := c.denied
	again := !time.Now().Before(c.askAgain)
	c.mu.Unlock()
	if err != nil && !again {
		return instance.Instance{}, false, err
	}
	inst, known, err := c.Instances.Get(ctx, id, maxAge)
	if err != nil && !errors.Is(err, instance.ErrDenied) {
		return inst, known, err
	}
	c.mu.Lock()
	first := err != nil && c.denied == nil
	c.denied, c.askAgain = err, time.Now().Add(settled)
	c.mu.Unlock()
	if first {
		c.Log.Info("messages about instances that have no Node here are left in the queue: EC2 cannot be asked whose they are", "why", err.Error())
	}
	return inst, known, err
}

// elsewhere reports whether the notice is about another account or region.
func (c *Controller) elsewhere(n notice.Notice) bool {
	return c.Account != "" && n.Account != "" && n.Account != c.Account ||
		c.Region != "" && n.Region != "" && n.Region != c.Region
}

// expected reports whether an instance without a Node belongs to this cluster.
func (c *Controller) expected(inst instance.Instance, tagged bool) bool {
	switch {
	case c.ManagedTag != "" && tagged:
		return true
	case c.ClusterName != "":
		_, owned := inst.Tags["kubernetes.io/cluster/"+c.ClusterName]
		return owned || inst.Tags["aws:eks:cluster-name"] == c.ClusterName || inst.Tags["eks:cluster-name"] == c.ClusterName
	}
	return c.ManagedTag == "" && time.Since(inst.Launched) < young
}

// namesake is the node without a provider id that is named like the instance.
func (c *Controller) namesake(inst instance.Instance) *corev1.Node {
	if inst.PrivateDNSName == "" {
		return nil
	}
	node := c.Cluster.ByName(inst.PrivateDNSName)
	if node == nil || node.Spec.ProviderID != "" {
		return nil
	}
	return node
}

// changes remembers when scheduled changes were called off, for instances whose
// announcement SQS delivers after that. Bounded: this order is rare.
type changes struct{ ended *utilcache.LRUExpireCache }

func newChanges() changes {
	const size = 4096
	return changes{utilcache.NewLRUExpireCache(size)}
}

func (c changes) add(n notice.Notice, id string) {
	const ttl = time.Hour // an announcement later than that does not come from disorder
	c.ended.Add(n.Change+" "+id, n.Time, ttl)
}

// has reports whether the change was called off for the instance after this announcement.
func (c changes) has(n notice.Notice, id string) bool {
	if n.Kind != notice.ScheduledChange || n.Ended {
		return false
	}
	when, ok := c.ended.Get(n.Change + " " + id)
	return ok && !n.Time.After(when.(time.Time))
}
