package controller

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/imds"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/onnode"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// leaseTakes is how long the Lease of a leader that has gone is held.
const leaseTakes = 15 * time.Second

// ofPods is the queue of what the pods on nodes begin without a leader.
const ofPods = "imds"

// A lifePod is the pod on a machine's node, in IMDS mode, while its kubelet is there.
type lifePod struct {
	w    *world
	m    *machine
	node string
	cut  atomic.Bool
	stop func()
}

// startPod starts the pod of a machine, in the place of the one before.
func (w *world) startPod(m *machine) {
	if !w.h.options.bothModes {
		return
	}
	w.stopPodOn(m)
	ctx, cancel := context.WithCancelCause(w.Context())
	p := &lifePod{w: w, m: m, node: w.now(m).node, stop: func() { cancel(errors.New("this pod ends")) }}
	w.mu.Lock()
	m.pod = p
	w.mu.Unlock()
	w.pods.Go(func() { p.run(ctx) })
	go func() {
		select {
		case <-w.ended:
			p.stop()
		case <-ctx.Done():
		}
	}()
}

// stopPodOn kills the pod of a machine.
func (w *world) stopPodOn(m *machine) {
	w.mu.Lock()
	p := m.pod
	m.pod = nil
	w.mu.Unlock()
	if p != nil {
		p.cut.Store(true)
		p.stop()
	}
}

func (p *lifePod) run(ctx context.Context) {
	w := p.w
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://kubernetes.invalid", Transport: between{w, &p.cut, w.api}, QPS: 500, Burst: 1000,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	})
	w.must(err)
	nodes, err := cluster.NewOfNode(client, pace.NewGate(64, 64), ofPods, w.marks(), p.node)
	w.must(err)
	volumes, err := drain.NewVolumes(client)
	w.must(err)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { nodes.Run(ctx) })
	all.Go(func() { volumes.Run(ctx) })
	if nodes.WaitForSync(ctx) != nil {
		return
	}
	policy := decision.Policy{NodeGracePeriod: gracePeriod}
	s := onnode.Server{
		Cluster: nodes, Node: p.node, Leader: p, Lease: theLease, Policy: policy, Log: w.log.WithValues("on", p.node), LastAnswer: time.Now,
		Term: func(ctx context.Context, drains bool, with func(onnode.Controller) imds.Handler) error {
			c := New(Config{Instances: ownMachine{p}, Config: nodedrain.Config{
				Cluster: nodes, Hooks: nodedrain.NoHooks{}, OnNode: true, Policy: policy, Log: w.log.WithValues("on", p.node),
				Drainer:  &drain.Drainer{Client: client, Filter: drain.Filter{IgnoreDaemonSets: true}, Grace: -1, Gate: pace.NewGate(64, 64), Volumes: volumes},
				Observer: telemetry.New(),
			}})
			return p.term(ctx, c, drains, with)
		},
	}
	if err := s.Run(ctx); ctx.Err() == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.violate(noHotLoop, "the pod on node %s has ended: %v", p.node, err)
	}
}

// term is a term of an onnode.Server.
func (p *lifePod) term(ctx context.Context, c *Controller, drains bool, with func(onnode.Controller) imds.Handler) error {
	var all sync.WaitGroup
	defer all.Wait()
	if drains {
		w, begin := p.w, time.Now()
		own := p.drainsAlready() // the leader's rules may ignore what it has begun for
		w.mu.Lock()
		w.takeovers++
		r := w.recordOf(p.node)
		fails := len(w.broken) > 0 // maybe since this moment
		if r != nil && r.provided && !own && !fails && w.calm(later(begin.Add(-heard), later(r.since, r.created)), begin) >= heard {
			w.violate(oneBrain, "the pod on node %s drains it; notices: %s", p.node, w.noticesOf(p.m))
		}
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			// A leader takes no report of a Node without a provider id.
			r := w.recordOf(p.node)
			if now := time.Now(); r != nil && r.provided && !own && w.calm(later(begin, r.since), now) >= heard {
				w.violate(oneBrain, "the pod on node %s has gone on for %s with its drain; notices: %s", p.node, now.Sub(begin), w.noticesOf(p.m))
			}
		}()
		all.Go(func() { _ = c.Run(ctx) }) // the cause of ctx
		select {
		case <-c.Registry.Resumed():
		case <-ctx.Done():
		}
	}
	p.poll(ctx, with(c.Unannounced()))
	return context.Cause(ctx)
}

// drainsAlready reports whether the node carries a drain that this pod has begun.
func (p *lifePod) drainsAlready() bool {
	n := &corev1.Node{}
	if !p.w.api.node(p.node, n) {
		return false
	}
	i, ok, err := cluster.ReadIntent(n)
	return ok && err == nil && !i.Finished() && !i.Serves(p.w.aws.QueueURL(queueName))
}

// poll hands each notice of the metadata over until that has succeeded, and then its end.
func (p *lifePod) poll(ctx context.Context, to imds.Handler) {
	const again = 5 * time.Second
	var mu sync.Mutex
	handled := map[string]bool{}
	var all sync.WaitGroup
	defer all.Wait()
	for {
		found, changed := p.w.metadataOf(p.m)
		failed := make(chan struct{}, 1)
		for _, n := range found {
			mu.Lock()
			known := handled[n.ID]
			handled[n.ID] = true
			mu.Unlock()
			if known {
				continue
			}
			all.Go(func() {
				if to.HandleNotice(ctx, n, func() {}) == nil {
					return
				}
				mu.Lock()
				delete(handled, n.ID)
				mu.Unlock()
				select {
				case failed <- struct{}{}:
				default:
				}
			})
		}
		var retry <-chan time.Time
		select {
		case <-changed:
		case <-failed:
			retry = time.After(again)
		case <-ctx.Done():
			return
		}
		if retry != nil {
			select {
			case <-retry:
			case <-ctx.Done():
				return
			}
		}
	}
}

// tellMetadata puts a notice into the metadata of a machine. Its life's end takes it out of there.
func (w *world) tellMetadata(m *machine, n notice.Notice, err error) {
	w.must(err)
	if !w.h.options.bothModes {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.metadataLife != m.life {
		m.metadata, m.metadataLife = nil, m.life
	}
	m.metadata = append(slices.DeleteFunc(m.metadata, func(have notice.Notice) bool { return have.Kind == n.Kind && have.Change == n.Change }), n)
	w.metadataChanged(m)
}

// metadataChanged wakes the pod of a machine. w.mu is held.
func (w *world) metadataChanged(m *machine) {
	if m.metadataNews != nil {
		close(m.metadataNews)
	}
	m.metadataNews = make(chan struct{})
}

// metadataOf is what the metadata of a machine tells, and a channel that is closed when it tells something else.
func (w *world) metadataOf(m *machine) ([]notice.Notice, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.metadataNews == nil {
		m.metadataNews = make(chan struct{})
	}
	if m.metadataLife != m.life {
		return nil, m.metadataNews
	}
	return slices.Clone(m.metadata), m.metadataNews
}

// tellSpot and tellRebalance are what EC2 writes into the metadata beside its events.
func (w *world) tellSpot(m *machine, action string, at time.Time) {
	body, err := json.Marshal(map[string]string{"action": action, "time": at.UTC().Format(time.RFC3339)})
	w.must(err)
	n, err := notice.OfSpotAction(string(body), m.id)
	w.tellMetadata(m, n, err)
}

func (w *world) tellRebalance(m *machine) {
	n, err := notice.OfRebalance(`{"noticeTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}`, m.id)
	w.tellMetadata(m, n, err)
}

// tellScheduled is what EC2 writes there of a scheduled event; over: it does not happen any more.
func (w *world) tellScheduled(m *machine, id, code string, at time.Time, over bool) {
	n := notice.Notice{
		Kind: notice.ScheduledChange, ID: "imds-" + id + at.UTC().Format("-20060102T150405Z"), Change: id, Time: time.Now().UTC(),
		Deadline: at.UTC(), Instances: []string{m.id}, Detail: code,
	}
	if over {
		n.ID, n.Deadline, n.Ended = n.ID+"-over", time.Time{}, true
	}
	w.tellMetadata(m, n, nil)
}

// Leadership implements onnode.Leader: it is what the Lease says.
func (p *lifePod) Leadership(context.Context) lease.State {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	for id := range p.w.broken {
		if strings.HasPrefix(id, "API") {
			return lease.Unknown
		}
	}
	if p.w.leads || len(p.w.leaders) > 0 && time.Since(p.w.leaders[len(p.w.leaders)-1]) < leaseTakes {
		return lease.Held
	}
	return lease.Vacant
}

// alone reports whether a pod may have begun a drain without a leader a moment ago: it knows of no limits and no rules.
// i is what its node carries then. No leader takes the report of a Node that has no provider id for two minutes, so that
// its pod drains it. w.mu is held.
func (w *world) alone(r *nodeRecord, i intent.Intent, now time.Time) bool {
	if !w.h.options.bothModes {
		return false
	}
	vacant := len(w.leaders) > 0 && !w.leads && now.Sub(w.leaders[len(w.leaders)-1]) >= leaseTakes
	unnamed := now.Sub(r.created) >= 2*time.Minute && (!r.provided || now.Sub(r.since) < nearly) && i.Serves(ofPods)
	return vacant || unnamed || w.troubled("API", recovered)
}

// ownMachine is what the pod on a machine knows of it. It implements Instances.
type ownMachine struct{ *lifePod }

func (o ownMachine) is(id string) (instance.Instance, bool) {
	m := o.w.now(o.m)
	return instance.Instance{ID: m.id, State: "running", Launched: m.began, PrivateDNSName: o.node}, m.id == id
}

func (o ownMachine) Get(_ context.Context, id string, _ time.Duration, _ bool) (instance.Instance, bool, error) {
	i, found := o.is(id)
	return i, found, nil
}

func (o ownMachine) Known(id string) (instance.Instance, bool, time.Time) {
	i, found := o.is(id)
	return i, found, time.Now()
}

func (ownMachine) Members(context.Context, string, []string, time.Duration) ([]instance.Instance, error) {
	return nil, nil
}
