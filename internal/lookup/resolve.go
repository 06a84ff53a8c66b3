package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Resolver finds out whose an instance is. Its methods may be called concurrently; the fields must not change
// meanwhile.
type Resolver struct {
	*Lookup
	Cluster *cluster.Cluster
	Policy  decision.Policy
	// ClusterName is this cluster's name in the tags of its instances; can be empty.
	ClusterName string
	// StartupTaints are the keys of taints that a node loses at the end of its startup.
	StartupTaints []string
	// Observer and the log are told, once for each instance and cause, of notices about nodes of this cluster that are
	// not acted on; the observer is not with DryRun.
	Observer report.Observer
	DryRun   bool

	memory memory
}

// NewResolver returns one that asks by l, with the log of l.
func NewResolver(l *Lookup, nodes *cluster.Cluster, policy decision.Policy) *Resolver {
	return &Resolver{
		Lookup: l, Cluster: nodes, Policy: policy,
		memory: memory{accounts: map[string]bool{}, ignored: report.NewTold(mostIgnored)},
	}
}

// Found says whose an instance is, and which Nodes it has.
type Found struct {
	Ownership decision.Ownership
	Refs      []cluster.Ref // the one that is ready comes first
	Ready     bool          // the first is, and its startup is over
	Intent    intent.Intent // of the first; zero if it has none that can be read
	State     decision.InstanceState
	Launched  time.Time         // the last time; zero: not known
	NotSpot   bool              // EC2 says so
	Labels    map[string]string // of the first
	// Unsure: no Node says that the instance is of this cluster, only its managed tag, and its tags name a cluster whose
	// name may be another one.
	Unsure bool
}

// Ref is the first of the Nodes; zero if there is none.
func (f *Found) Ref() cluster.Ref {
	if len(f.Refs) == 0 {
		return cluster.Ref{}
	}
	return f.Refs[0]
}

// ofNodes is the resolution of an instance that has Nodes.
func (r *Resolver) ofNodes(id string, nodes []*corev1.Node) *Found {
	ready := cluster.Ready(nodes[0]) && !cluster.AwaitsStartup(nodes[0], r.StartupTaints)
	f := &Found{Ownership: decision.Ours, Ready: ready, Labels: nodes[0].Labels}
	for _, node := range nodes {
		ref := cluster.RefOf(node)
		ref.Instance = id // also where the node has no provider id
		f.Refs = append(f.Refs, ref)
	}
	f.Intent, _, _ = cluster.ReadIntent(nodes[0]) // what cannot be read has no notices
	if inst, known, _ := r.Known(id); known {     // how it was bought does not change
		f.NotSpot = inst.NotSpot()
	}
	return f
}

// asked adds what EC2 says of the instance. Of several accounts, EC2 shows the instances of the role's alone.
func (r *Resolver) asked(f *Found, inst *instance.Instance, known bool) *Found {
	f.Launched, f.NotSpot = inst.LastLaunch(), known && inst.NotSpot()
	switch {
	case known && inst.Alive():
		f.State = decision.Running
	case inst.State == "stopping" || inst.State == "shutting-down":
		f.State = decision.Stopping
	case known || len(r.Policy.Accounts) <= 1:
		f.State = decision.Gone
	}
	return f
}

// Resolve finds out whose an instance is, by what is not older than maxAge. EC2 is not asked about a new spot warning
// or recommendation for a known node, unless the tag check is on. A notice about the past, one about a change that is
// hours ahead, and one that ends a drain or takes a change back is compared with what EC2 says now.
func (r *Resolver) Resolve(
	ctx context.Context, n *notice.Notice, id string, maxAge time.Duration,
) (*Found, error) {
	q := r.questionOf(*n, id, maxAge)
	if q.answered != nil {
		return q.answered, nil
	}
	asking, cancel := context.WithTimeout(ctx, q.timeout)
	inst, known, err := r.Look(asking, id, q.maxAge, len(q.nodes) > 0)
	cancel()
	if err != nil {
		return r.withoutAnswer(*n, id, q.nodes, err)
	}
	found, maxAge := r.resolved(*n, id, q, inst, known)
	if found == nil { // the answer is too old to go by
		return r.Resolve(ctx, n, id, maxAge)
	}
	return found, nil
}

// A question is what EC2 has to be asked to find out whose an instance is.
type question struct {
	answered *Found         // there is none to be asked; nil: there is
	nodes    []*corev1.Node // of the instance
	doubtful bool           // EC2 may know better than the notice
	maxAge   time.Duration
	timeout  time.Duration
}

func (r *Resolver) questionOf(n notice.Notice, id string, maxAge time.Duration) *question {
	nodes := r.Cluster.ByInstance(id)
	switch {
	case r.Policy.Elsewhere(n):
		r.WarnOfOtherAccount(n)
		r.reportIgnored(n, id, nodes,
			"it is of account "+n.Account+" and region "+n.Region, "event-accounts names the accounts to act for")
		return &question{answered: &Found{Ownership: decision.Elsewhere}}
	case n.Runs && !slices.ContainsFunc(nodes, CarriesNotice): // each launch tells so
		return &question{answered: &Found{}}
	}
	q := &question{nodes: nodes, doubtful: doubts(n) && len(nodes) > 0, maxAge: maxAge, timeout: Timeout}
	switch {
	case q.doubtful:
		q.maxAge = min(maxAge, Fresh)
	case len(nodes) > 0 && (r.Policy.ManagedTag == "" || n.Reported):
		q.answered = r.ofNodes(id, nodes)
	}
	if q.doubtful && !n.Gone && !n.Ended { // without an answer the message is believed, and soon
		q.timeout = DoubtTimeout
	}
	return q
}

// lacksTag reports whether an instance with these tags is not this program's to drain. One is whose Node has a pod that
// reports what the metadata says.
func (r *Resolver) lacksTag(n notice.Notice, tags map[string]string) bool {
	return !n.Reported && r.Policy.LacksTag(tags)
}

// doubts reports whether a notice is compared with what EC2 says now.
func doubts(n notice.Notice) bool {
	return n.Gone || n.Ended || n.Kind == notice.StateChange || n.Kind == notice.ScheduledChange ||
		n.Kind != notice.ASGLaunch && decision.Late(n, time.Now())
}

// resolved says whose an instance is by the answer of EC2; nil: the answer has to be younger than maxAge for that.
func (r *Resolver) resolved(
	n notice.Notice, id string, q *question, inst *instance.Instance, known bool,
) (found *Found, maxAge time.Duration) {
	nodes, doubtful := q.nodes, q.doubtful
	if len(nodes) == 0 && known {
		nodes = r.NodesNamedLike(*inst)
		if doubtful = doubts(n) && len(nodes) > 0; doubtful && q.maxAge > Fresh {
			return nil, Fresh
		}
	}
	mine := len(nodes) > 0 || r.Cluster.RecentlyDeleted(id) || known && r.expected(*inst)
	lacksTag := known && r.lacksTag(n, inst.Tags)
	if lacksTag || !mine {
		early := r.isEarly(n, id, *inst, known)
		if most := maxAgeOfDenial(early, known, len(nodes) > 0); q.maxAge > most { // EC2 may show more by now
			return nil, most
		}
		switch {
		case early && known:
			return &Found{Ownership: decision.Unknown}, 0
		case lacksTag:
			r.reportIgnored(n, id, nodes, "it has no tag "+r.Policy.ManagedTag,
				fmt.Sprintf("aws ec2 create-tags --resources %s --tags 'Key=%s,Value='", id, r.Policy.ManagedTag))
			return &Found{Ownership: decision.Unmanaged}, 0
		}
	}
	switch {
	case len(nodes) == 0:
		return r.resolvedWithoutNode(n, q, inst, known, mine)
	case doubtful:
		return r.asked(r.ofNodes(id, nodes), inst, known), 0
	}
	found = r.ofNodes(id, nodes)
	found.Launched, found.NotSpot = inst.LastLaunch(), inst.NotSpot() // the answer may be old: a later launch is possible
	return found, 0
}

// maxAgeOfDenial is how old an answer may be by which an instance is not ours.
func maxAgeOfDenial(early, known, node bool) time.Duration {
	switch {
	case early && !known:
		return Fresh
	case early, node:
		return KeptShort
	}
	return Kept
}

// resolvedWithoutNode is resolved for an instance that has no Node and does not lack the managed tag.
func (r *Resolver) resolvedWithoutNode(
	n notice.Notice, q *question, inst *instance.Instance, known, mine bool,
) (found *Found, maxAge time.Duration) {
	switch {
	// EC2 shows a new instance a little later than Auto Scaling announces it.
	case !known && n.Kind == notice.ASGLaunch && !n.Time.IsZero() && time.Since(n.Time) < decision.Young:
		return &Found{Ownership: decision.Pending}, 0
	case !mine:
		return &Found{Ownership: decision.Foreign}, 0
	case known && (inst.Alive() || isStarting(n, inst.State)):
		return &Found{
			Ownership: decision.Pending, Launched: inst.LastLaunch(), NotSpot: inst.NotSpot(), Unsure: r.unsure(*inst),
		}, 0
	case q.maxAge > Fresh: // it may have been started since
		return nil, Fresh
	}
	return &Found{Ownership: decision.Departed}, 0
}

// shownWithin is how soon after its launch EC2 shows the tags of an instance.
const shownWithin = time.Minute

// isEarly reports whether EC2 was last asked before it has to show the instance, which is there when its notice is, or
// before it has to show its tags. What names a cluster are its tags.
func (r *Resolver) isEarly(n notice.Notice, id string, inst instance.Instance, known bool) bool {
	_, _, asked := r.Known(id)
	ours, others := clusterOf(inst.Tags, r.ClusterName)
	switch launched := inst.LastLaunch(); {
	case !known:
		return asked.Before(n.Time)
	case ours, others, launched.IsZero():
		return false
	default:
		return asked.Sub(launched) < shownWithin
	}
}

// isStarting reports whether a notice tells of the launch of an instance that EC2 still shows in its warm pool.
func isStarting(n notice.Notice, state string) bool {
	return n.Kind == notice.ASGLaunch && n.Hook.Origin == notice.WarmPool && !decision.Late(n, time.Now()) &&
		(state == "stopped" || state == "stopping")
}

// CarriesNotice reports whether a Node carries a notice.
func CarriesNotice(node *corev1.Node) bool {
	i, _, _ := cluster.ReadIntent(node) // what cannot be read has none
	return len(i.Entries) > 0
}

// withoutAnswer is the resolution of an instance that EC2 has said nothing about.
func (r *Resolver) withoutAnswer(n notice.Notice, id string, nodes []*corev1.Node, err error) (*Found, error) {
	if announces := !n.Gone && !n.Ended && !n.Runs; announces && len(nodes) > 0 && r.mayBelieve(n, id) {
		return r.ofNodes(id, nodes), nil
	}
	if !errors.Is(err, instance.ErrDenied) || r.Policy.ManagedTag != "" {
		return nil, err
	}
	switch {
	case len(nodes) > 0: // there is nothing but the message to go by
		return r.ofNodes(id, nodes), nil
	case !r.Cluster.RecentlyDeleted(id):
		return &Found{Ownership: decision.Unknown}, nil
	case n.Kind == notice.ASGLaunch: // it is started again
		return &Found{Ownership: decision.Pending}, nil
	}
	return &Found{Ownership: decision.Departed}, nil
}

// tagKept is how old an answer about the managed tag may be while EC2 gives none.
const tagKept = 24 * time.Hour

// mayBelieve reports whether a notice about an instance with a Node needs no answer of EC2. The managed tag hardly ever
// changes: an old answer about it is good enough.
func (r *Resolver) mayBelieve(n notice.Notice, id string) bool {
	if r.Policy.ManagedTag == "" || n.Reported {
		return true
	}
	inst, known, asked := r.Known(id)
	return known && time.Since(asked) < tagKept && !r.Policy.LacksTag(inst.Tags)
}

// expected reports whether an instance without a Node, which has the managed tag, belongs to this cluster.
func (r *Resolver) expected(inst instance.Instance) bool {
	ours, others := clusterOf(inst.Tags, r.ClusterName)
	switch {
	case r.ClusterName != "" && others && !ours: // clusters may share the managed tag
		return false
	case r.Policy.ManagedTag != "":
		return true
	case r.ClusterName != "":
		return ours
	}
	return time.Since(inst.Launched) < decision.Young
}

// unsure is [Found.Unsure] of an expected instance.
func (r *Resolver) unsure(inst instance.Instance) bool {
	_, named := clusterOf(inst.Tags, "")
	return named && r.ClusterName == "" && !r.Cluster.RecentlyDeleted(inst.ID)
}

// clusterOf reports whether the tags of an instance name the cluster, and another one.
func clusterOf(tags map[string]string, clusterName string) (ours, others bool) {
	const owner = "kubernetes.io/cluster/"
	for key, value := range tags {
		name, isOwner := strings.CutPrefix(key, owner)
		switch {
		case isOwner:
		case key == "aws:eks:cluster-name" || key == "eks:cluster-name":
			name = value
		default:
			continue
		}
		ours = ours || name == clusterName
		others = others || name != clusterName
	}
	return ours, others
}

// NodesNamedLike returns the node that has the name of the instance, if its provider id, such as
// k3s has it, names no instance.
func (r *Resolver) NodesNamedLike(inst instance.Instance) []*corev1.Node {
	node := r.Cluster.ByName(NodeName(inst.PrivateDNSName, inst.Tags, r.ClusterName))
	if node == nil || cluster.InstanceID(node) != "" {
		return nil
	}
	return []*corev1.Node{node}
}

// NodeName is the name by which the Node of an instance is found whose provider id names no instance; empty: there is
// none, as where the tags are those of another cluster. clusterName is [Resolver.ClusterName].
func NodeName(privateDNSName string, tags map[string]string, clusterName string) string {
	if ours, others := clusterOf(tags, clusterName); clusterName != "" && others && !ours {
		return ""
	}
	return privateDNSName
}

// mostIgnored bounds the instances that ignored remembers: there are more of them than
// nodes in the largest cluster.
const mostIgnored = 8192

// memory is what people have been told of.
type memory struct {
	ignored *report.Told // instances, with the cause

	mu       sync.Mutex
	accounts map[string]bool // and regions, whose notices are not acted on
}

// WarnOfOtherAccount warns, once for each account and region, that their notices are not acted on.
func (r *Resolver) WarnOfOtherAccount(n notice.Notice) {
	const most = 100 // a sender can make up any name
	from := n.Account + " " + n.Region
	r.memory.mu.Lock()
	told := r.memory.accounts[from] || len(r.memory.accounts) >= most
	if !told {
		r.memory.accounts[from] = true
	}
	r.memory.mu.Unlock()
	if !told {
		logging.Warn(r.Log, "notices of another account or region are ignored (logged once for each account and region)",
			"account", n.Account, "region", n.Region, "actsOn", r.Policy.Accounts, "ownRegion", r.Policy.Region,
			"hint", "if this cluster's instances are in that account, name it in event-accounts")
	}
}

// reportIgnored tells, once for each instance and cause, that a notice about a node of this
// cluster is not acted on, and how to change that.
func (r *Resolver) reportIgnored(n notice.Notice, id string, nodes []*corev1.Node, why, hint string) {
	if len(nodes) == 0 || n.Ended || n.Gone || n.Kind == notice.ASGLaunch {
		return
	}
	if r.memory.ignored.Before(id + why) {
		return
	}
	ref := cluster.RefOf(nodes[0])
	logging.Warn(r.Log, "a notice about a node of this cluster is ignored (logged once for each instance)",
		"node", ref.Name, "instance", id, "kind", n.Kind, "event", n.ID, "why", why, "hint", hint)
	if !r.DryRun {
		r.Observer.Stepped(report.Step{
			Node: ref, Kind: report.Ignore,
			Detail: n.Kind.String() + " of instance " + id + ", " + why + " (" + hint + ")",
		})
	}
}
