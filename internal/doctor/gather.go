package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A Gatherer asks AWS and the cluster for the facts.
type Gatherer struct {
	Options Options
	AWS     AWS
	Cluster Cluster
	// Policy reads the policy file of the handler. The error is [ErrAbsent] if it has none, or a
	// [PolicyError]. Nil: it has none.
	Policy func(context.Context) (Policy, error)
	// Patience limits the whole Gather: what has no answer by then is unknown. A question that
	// others wait for gets a third of it.
	Patience time.Duration
}

// Gather asks everything at the same time, as far as no question needs the answer of another. It
// returns when the last question has been answered, or Patience is over. It does not ask what
// cannot be answered because something else does not work. It changes nothing.
func (g *Gatherer) Gather(ctx context.Context) *Facts {
	ctx, cancel := within(ctx, g.Patience)
	defer cancel()
	f := &Facts{Options: g.Options}
	a, c, o := &g.AWS, &g.Cluster, g.Options

	var all sync.WaitGroup
	// ask asks a question when those before it have been answered. It returns what is closed when this one has.
	ask := func(question func(), before ...<-chan struct{}) <-chan struct{} {
		answered := make(chan struct{})
		all.Go(func() {
			defer close(answered)
			for _, earlier := range before {
				<-earlier
			}
			question()
		})
		return answered
	}
	// soon gives a question a third of the time, because others wait for it.
	soon := func(question func(context.Context)) func() {
		return func() {
			ctx, cancel := within(ctx, g.Patience/3)
			defer cancel()
			question(ctx)
		}
	}

	sts := ask(soon(func(ctx context.Context) { f.Caller = unless(ctx, f.noAWS(), a.caller) }))
	server := ask(soon(func(ctx context.Context) { f.User = answer(c.user(ctx)) }))
	policy := ask(func() { f.Policy = answer(g.policy(ctx)) })

	nodes := ask(func() { f.Nodes = unless(ctx, f.noCluster(), c.nodes) }, server)
	pods := ask(func() { f.Pods = unless(ctx, f.noCluster(), c.pods) }, server)
	deployments := ask(func() { f.Deployments = unless(ctx, f.noCluster(), c.deployments) }, server)
	targetGroups := ask(func() { f.TargetGroups = unless(ctx, f.noCluster(), c.targetGroups) }, server)
	ask(func() { f.Lease = unless(ctx, f.noCluster(), g.lease) }, server)

	// Whose rights and whose role matter.
	handler := ask(func() { f.Beside = f.beside() }, sts, server, pods, deployments)
	ask(func() { c.reviews(ctx, f) }, handler)

	queue := ask(soon(func(ctx context.Context) { f.Queue = unless(ctx, f.noAWS(), g.queue) }), sts)
	ask(func() {
		if id := f.Queue.Value.KeyID; id != "" {
			f.Key = answer(a.key(ctx, id, f.Queue.Value.ARN))
		}
	}, queue)
	ask(func() {
		if id := f.Queue.Value.KeyID; id != "" && f.Beside == nil {
			f.Decrypt = answer(a.mayDecrypt(ctx, keyARN(id, f.Queue.Value.ARN)))
		}
	}, queue, handler)
	topics := ask(func() { f.Topics = a.topics(ctx, f.Queue.Value) }, queue)
	ask(func() {
		f.Rules = unless(ctx, f.noRules(), func(ctx context.Context) ([]Rule, error) {
			return a.rules(ctx, cmp.Or(f.Queue.Value.ARN, o.queueARN()), f.Topics)
		})
	}, queue, topics)

	instances := ask(func() {
		f.Instances = unless(ctx, cmp.Or(f.noAWS(), f.Nodes.Err), func(ctx context.Context) ([]Instance, error) {
			return a.instances(ctx, f.Nodes.Value)
		})
	}, sts, nodes)
	groups := ask(func() {
		f.Groups = unless(ctx, f.Instances.Err, func(ctx context.Context) ([]Group, error) {
			return a.groups(ctx, f.Instances.Value, o.HookNames)
		})
	}, instances)
	ask(func() { f.Permissions = a.permissions(ctx, f) }, queue, groups, targetGroups, handler, policy)

	all.Wait()
	f.Now = time.Now()
	return f
}

func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
}

// answer keeps what a question returns.
func answer[T any](value T, err error) Answer[T] { return Answer[T]{value, err} }

// unless asks, unless there is a reason why it cannot be answered.
func unless[T any](ctx context.Context, reason error, ask func(context.Context) (T, error)) Answer[T] {
	if reason != nil {
		return Answer[T]{Err: reason}
	}
	return answer(ask(ctx))
}

// errNoQueue is why AWS is not asked.
var errNoQueue = errors.New("there is no queue")

// noAWS is why AWS cannot be asked; nil if it can.
func (f *Facts) noAWS() error {
	if f.Options.NoQueue {
		return blocked("queue", errNoQueue)
	}
	return f.Caller.Value.Unusable
}

// noRules is why EventBridge cannot be asked; nil if it can.
func (f *Facts) noRules() error {
	if errors.Is(f.Queue.Err, ErrAbsent) {
		return blocked("queue", f.Queue.Err)
	}
	return f.noAWS()
}

// noCluster is why the API server cannot be asked; nil if it can.
func (f *Facts) noCluster() error {
	if denied(f.User.Err) {
		return nil
	}
	return blocked("api-server", f.User.Err)
}

func (g *Gatherer) policy(ctx context.Context) (Policy, error) {
	if g.Policy == nil {
		return Policy{}, ErrAbsent
	}
	p, err := g.Policy(ctx)
	if _, wrong := errors.AsType[*PolicyError](err); wrong || errors.Is(err, ErrAbsent) {
		return p, err
	}
	return p, refused(ctx, "get configmaps", err)
}

// isBeside reports whether doctor runs with another identity than the handler: as a person, or in a
// pod with another ServiceAccount. A role that only pods can get is taken for the handler's.
func (f *Facts) isBeside() bool {
	user, source := f.User.Value.Name, f.Caller.Value.Source
	inPod := strings.HasPrefix(user, "system:serviceaccount:") ||
		user == "" && (source == SourceIRSA || source == SourcePodIdentity)
	h, known := f.handler()
	return !inPod || known && user != "" && user != h.subject()
}

// errBeside is why nobody knows what the handler's role may do.
var errBeside = errors.New("doctor does not run with that role")

// beside says why the permissions of the caller tell nothing of those of the handler; nil: they are the same.
func (f *Facts) beside() error {
	if f.noAWS() != nil || !f.isBeside() {
		return nil
	}
	if _, known := f.handler(); !known {
		return cmp.Or(f.noCluster(), blocked("handler", ErrAbsent))
	}
	return errBeside
}

// queueARN is the ARN of the queue in the options. Rules can be looked up by it if the queue does
// not answer.
func (o Options) queueARN() string {
	return "arn:" + o.Partition + ":sqs:" + o.Region + ":" + o.Account + ":" + o.QueueName
}
