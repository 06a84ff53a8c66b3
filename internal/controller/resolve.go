package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A resolution says whose an instance is, and which Nodes it has.
type resolution struct {
	ownership decision.Ownership
	refs      []cluster.Ref // the one that is ready comes first
	ready     bool          // the first is, and its startup is over
	intent    intent.Intent // of the first; zero if it has none that can be read
	state     decision.InstanceState
	launched  time.Time
	notSpot   bool              // EC2 says so
	labels    map[string]string // of the first
}

// ref is the first of the Nodes; zero if there is none.
func (f *resolution) ref() cluster.Ref {
	if len(f.refs) == 0 {
		return cluster.Ref{}
	}
	return f.refs[0]
}

// ofNodes is the resolution of an instance that has Nodes.
func (c *Controller) ofNodes(id string, nodes []*corev1.Node) *resolution {
	ready := cluster.Ready(nodes[0]) && !cluster.AwaitsStartup(nodes[0], c.StartupTaints)
	f := &resolution{ownership: decision.Ours, ready: ready, labels: nodes[0].Labels}
	for _, node := range nodes {
		ref := cluster.RefOf(node)
		ref.Instance = id // also where the node has no provider id
		f.refs = append(f.refs, ref)
	}
	if i, ok, err := cluster.ReadIntent(nodes[0]); ok && err == nil {
		f.intent = i
	}
	return f
}

// asked adds what EC2 says of the instance.
func (f *resolution) asked(inst *instance.Instance, known bool) *resolution {
	f.launched, f.notSpot = inst.LastLaunch(), known && inst.NotSpot()
	switch {
	case known && inst.Alive():
		f.state = decision.Running
	case inst.State == "stopping" || inst.State == "shutting-down":
		f.state = decision.Stopping
	default:
		f.state = decision.Gone
	}
	return f
}

// resolve finds out whose an instance is. EC2 is not asked about a new spot warning or
// recommendation for a known node, unless the tag check is on. A notice about the past, one about a change that is
// hours ahead, and one that ends a drain or takes a change back is compared with what EC2 says now.
func (c *Controller) resolve(
	ctx context.Context, n *notice.Notice, id string, maxAge time.Duration,
) (*resolution, error) {
	q := c.questionOf(*n, id, maxAge)
	if q.answered != nil {
		return q.answered, nil
	}
	asking, cancel := context.WithTimeout(ctx, q.timeout)
	inst, known, err := c.Lookup.Look(asking, id, q.maxAge, len(q.nodes) > 0)
	cancel()
	if err != nil {
		return c.withoutAnswer(*n, id, q.nodes, err)
	}
	found, maxAge := c.resolved(*n, id, q, inst, known)
	if found == nil { // the answer is too old to go by
		return c.resolve(ctx, n, id, maxAge)
	}
	return found, nil
}

// A question is what EC2 has to be asked to find out whose an instance is.
type question struct {
	answered *resolution    // there is none to be asked; nil: there is
	nodes    []*corev1.Node // of the instance
	doubtful bool           // EC2 may know better than the notice
	maxAge   time.Duration
	timeout  time.Duration
}

func (c *Controller) questionOf(n notice.Notice, id string, maxAge time.Duration) *question {
	nodes := c.Cluster.ByInstance(id)
	switch {
	case c.Elsewhere(n):
		c.reportElsewhere(n, id, nodes)
		return &question{answered: &resolution{ownership: decision.Elsewhere}}
	case n.Runs && !slices.ContainsFunc(nodes, carriesNotice): // each launch tells so
		return &question{answered: &resolution{}}
	}
	q := &question{nodes: nodes, doubtful: doubts(n) && len(nodes) > 0, maxAge: maxAge, timeout: lookup.Timeout}
	switch {
	case q.doubtful:
		q.maxAge = min(maxAge, lookup.Fresh)
	case len(nodes) > 0 && c.ManagedTag == "":
		q.answered = c.ofNodes(id, nodes)
		if inst, known, _ := c.Lookup.Known(id); known { // how it was bought does not change
			q.answered.notSpot = inst.NotSpot()
		}
	}
	if q.doubtful && !n.Gone && !n.Ended { // without an answer the message is believed, and soon
		q.timeout = lookup.DoubtTimeout
	}
	return q
}

// doubts reports whether a notice is compared with what EC2 says now.
func doubts(n notice.Notice) bool {
	return n.Gone || n.Ended || n.Kind == notice.StateChange || n.Kind == notice.ScheduledChange ||
		n.Kind != notice.ASGLaunch && decision.Late(n, time.Now())
}

// resolved says whose an instance is by the answer of EC2; nil: the answer has to be younger than maxAge for that.
func (c *Controller) resolved(
	n notice.Notice, id string, q *question, inst *instance.Instance, known bool,
) (found *resolution, maxAge time.Duration) {
	nodes, doubtful := q.nodes, q.doubtful
	if len(nodes) == 0 && known {
		nodes = c.nodesNamedLike(*inst)
		if doubtful = doubts(n) && len(nodes) > 0; doubtful && q.maxAge > lookup.Fresh {
			return nil, lookup.Fresh
		}
	}
	_, tagged := inst.Tags[c.ManagedTag]
	switch {
	case known && c.LacksTag(inst.Tags):
		c.reportUntagged(n, id, nodes)
		return &resolution{ownership: decision.Unmanaged}, 0
	case doubtful:
		return c.ofNodes(id, nodes).asked(inst, known), 0
	case len(nodes) > 0:
		f := c.ofNodes(id, nodes)
		f.launched, f.notSpot = inst.LastLaunch(), inst.NotSpot() // the answer may be old: a later launch is possible
		return f, 0
	}
	mine := c.Cluster.RecentlyDeleted(id) || known && c.expected(*inst, tagged)
	switch {
	// EC2 shows a new instance a little later than Auto Scaling announces it.
	case !known && n.Kind == notice.ASGLaunch && !n.Time.IsZero() && time.Since(n.Time) < decision.Young:
		return &resolution{ownership: decision.Pending}, 0
	case !mine:
		return &resolution{ownership: decision.Foreign}, 0
	case known && inst.Alive():
		return &resolution{ownership: decision.Pending, launched: inst.LastLaunch(), notSpot: inst.NotSpot()}, 0
	case q.maxAge > lookup.Fresh: // it may have been started since
		return nil, lookup.Fresh
	}
	return &resolution{ownership: decision.Departed}, 0
}

func carriesNotice(node *corev1.Node) bool {
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && len(i.Entries) > 0
}

// withoutAnswer is the resolution of an instance that EC2 has said nothing about.
func (c *Controller) withoutAnswer(n notice.Notice, id string, nodes []*corev1.Node, err error) (*resolution, error) {
	if announces := !n.Gone && !n.Ended && !n.Runs; announces && len(nodes) > 0 && c.mayBelieve(id) {
		return c.ofNodes(id, nodes), nil
	}
	if !errors.Is(err, instance.ErrDenied) || c.ManagedTag != "" {
		return nil, err
	}
	switch {
	case len(nodes) > 0: // there is nothing but the message to go by
		return c.ofNodes(id, nodes), nil
	case !c.Cluster.RecentlyDeleted(id):
		return &resolution{ownership: decision.Unknown}, nil
	case n.Kind == notice.ASGLaunch: // it is started again
		return &resolution{ownership: decision.Pending}, nil
	}
	return &resolution{ownership: decision.Departed}, nil
}

// mayBelieve reports whether a notice about an instance with a Node needs no answer of EC2. The managed tag hardly ever
// changes: an old answer about it is good enough.
func (c *Controller) mayBelieve(id string) bool {
	if c.ManagedTag == "" {
		return true
	}
	inst, known, asked := c.Lookup.Known(id)
	return known && time.Since(asked) < tagKept && !c.LacksTag(inst.Tags)
}

// expected reports whether an instance without a Node belongs to this cluster.
func (c *Controller) expected(inst instance.Instance, tagged bool) bool {
	ours, others := c.clusterOf(inst)
	switch {
	case c.ClusterName != "" && others && !ours: // clusters may share the managed tag
		return false
	case c.ManagedTag != "" && tagged:
		return true
	case c.ClusterName != "":
		return ours
	}
	return c.ManagedTag == "" && time.Since(inst.Launched) < decision.Young
}

// clusterOf reports whether an instance has a tag of this cluster, and one of another cluster.
func (c *Controller) clusterOf(inst instance.Instance) (ours, others bool) {
	const owner = "kubernetes.io/cluster/"
	for key, value := range inst.Tags {
		name, isOwner := strings.CutPrefix(key, owner)
		switch {
		case isOwner:
		case key == "aws:eks:cluster-name" || key == "eks:cluster-name":
			name = value
		default:
			continue
		}
		ours = ours || name == c.ClusterName
		others = others || name != c.ClusterName
	}
	return ours, others
}

// nodesNamedLike returns the node that has the name of the instance, if its provider id, such as
// k3s has it, names no instance.
func (c *Controller) nodesNamedLike(inst instance.Instance) []*corev1.Node {
	if ours, others := c.clusterOf(inst); inst.PrivateDNSName == "" || c.ClusterName != "" && others && !ours {
		return nil
	}
	node := c.Cluster.ByName(inst.PrivateDNSName)
	if node == nil || cluster.InstanceID(node) != "" {
		return nil
	}
	return []*corev1.Node{node}
}
