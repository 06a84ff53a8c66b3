package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
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
	// Progress is called every second with the questions that have no answer so far; nil: nobody
	// wants to know.
	Progress func(waitingFor []string)
}

// Gather asks everything at the same time, as far as no question needs the answer of another. It
// returns when the last question has been answered, or Patience is over. It does not ask what
// cannot be answered because something else does not work. It changes nothing.
func (g *Gatherer) Gather(ctx context.Context) *Facts {
	ctx, cancel := context.WithTimeoutCause(ctx, g.Patience, fmt.Errorf("no answer within %s", g.Patience))
	defer cancel()
	i := &inquiry{Gatherer: g, questions: &questions{limit: g.Patience / 3}}
	stop := g.report(ctx, i.questions)
	defer stop()
	i.askWho(ctx)
	i.askQueue(ctx)
	i.askCluster(ctx)
	i.askHandler(ctx)
	i.askInstances(ctx)
	return i.facts()
}

// An inquiry is the questions of one Gather. Each field waits for the answer of its question. A
// question may use the fields that were set before it was asked.
type inquiry struct {
	*Gatherer
	*questions

	caller func() Answer[Caller]
	user   func() Answer[User]

	queue      func() Answer[Queue]
	key        func() Answer[Key]
	decryptTry func() Answer[bool]
	queueTries func() []Permission
	topics     func() topics
	rules      func() Answer[[]Rule]

	nodes       func() Answer[[]Node]
	pods        func() Answer[[]Pod]
	lease       func() Answer[Lease]
	deployments func() Answer[[]Deployment]
	policy      func() Answer[Policy]

	release  func() release
	access   func() reviewed
	lastLine func() map[string]string // of the logs of pods that have exited, by pod

	instances func() Answer[[]Instance]
	groups    func() Answer[[]Group]
	hookTries func() []Permission
	pollTries func() []Permission

	targetGroups func() Answer[[]string]
	targetTries  func() []Permission

	role func() simulation
}

// askWho asks AWS and the API server as whom doctor runs. The answers tell whether either of them
// can be asked at all.
func (i *inquiry) askWho(ctx context.Context) {
	i.caller = ask(ctx, i.questions, "STS", func(ctx context.Context) Answer[Caller] {
		if i.Options.NoQueue {
			err := blocked("queue", errNoQueue)
			return Answer[Caller]{Value: Caller{Unusable: err}, Err: err}
		}
		ctx, cancel := i.soon(ctx)
		defer cancel()
		return i.AWS.caller(ctx)
	})
	i.user = ask(ctx, i.questions, "the API server", func(ctx context.Context) Answer[User] {
		ctx, cancel := i.soon(ctx)
		defer cancel()
		return i.Cluster.user(ctx)
	})
}

// errNoQueue is why AWS is not asked.
var errNoQueue = errors.New("there is no queue")

// noAWS is why AWS cannot be asked; nil if it can.
func (i *inquiry) noAWS() error { return i.caller().Value.Unusable }

// noCluster is why the API server cannot be asked; nil if it can.
func (i *inquiry) noCluster() error {
	if err := i.user().Err; !denied(err) {
		return blocked("api-server", err)
	}
	return nil
}

func (i *inquiry) askQueue(ctx context.Context) {
	i.queue = ask(ctx, i.questions, "SQS", func(ctx context.Context) Answer[Queue] {
		if err := i.noAWS(); err != nil {
			return Answer[Queue]{Err: err}
		}
		ctx, cancel := i.soon(ctx)
		defer cancel()
		return i.AWS.queue(ctx, i.Options.QueueURL)
	})
	i.key = ask(ctx, i.questions, "KMS", func(ctx context.Context) Answer[Key] {
		if i.queue().Value.KeyID == "" {
			return Answer[Key]{}
		}
		return i.AWS.key(ctx, i.queue().Value.KeyID, i.queue().Value.ARN)
	})
	i.decryptTry = ask(ctx, i.questions, "permission of KMS", func(ctx context.Context) Answer[bool] {
		id := i.queue().Value.KeyID
		if id == "" {
			return Answer[bool]{}
		}
		return i.AWS.triedDecrypt(ctx, keyARN(id, i.queue().Value.ARN))
	})
	i.queueTries = ask(ctx, i.questions, "permissions of SQS", func(ctx context.Context) []Permission {
		if err := i.queue().Err; err != nil && !denied(err) {
			return []Permission{{Err: blocked("queue", err)}}
		}
		ctx, cancel := i.soon(ctx)
		defer cancel()
		return i.AWS.queuePermissions(ctx, i.Options.QueueURL)
	})
	i.topics = ask(ctx, i.questions, "SNS", func(ctx context.Context) topics {
		return i.AWS.topics(ctx, i.queue().Value)
	})
	i.rules = ask(ctx, i.questions, "EventBridge", func(ctx context.Context) Answer[[]Rule] {
		if err := i.noAWS(); err != nil {
			return Answer[[]Rule]{Err: err}
		}
		if err := i.queue().Err; errors.Is(err, ErrAbsent) {
			return Answer[[]Rule]{Err: blocked("queue", err)}
		}
		return i.AWS.rules(ctx, cmp.Or(i.queue().Value.ARN, i.Options.queueARN()), i.topics())
	})
}

func (i *inquiry) askCluster(ctx context.Context) {
	i.nodes = askServer(ctx, i, "nodes", i.Cluster.nodes)
	i.pods = askServer(ctx, i, "pods", i.Cluster.pods)
	i.lease = askServer(ctx, i, "the Lease", func(ctx context.Context) Answer[Lease] {
		return i.Cluster.lease(ctx, i.Options.Namespace, i.Options.Lease)
	})
	i.targetGroups = askServer(ctx, i, "TargetGroupBindings", i.Cluster.targetGroups)
	i.deployments = askServer(ctx, i, "Deployments", i.Cluster.deployments)
	i.policy = ask(ctx, i.questions, "the policy file", func(ctx context.Context) Answer[Policy] {
		if i.Policy == nil {
			return Answer[Policy]{Err: ErrAbsent}
		}
		p, err := i.Policy(ctx)
		if err != nil && !errors.Is(err, ErrAbsent) {
			if _, wrong := errors.AsType[*PolicyError](err); !wrong {
				err = refused(ctx, "get configmaps", err)
			}
		}
		return Answer[Policy]{p, err}
	})
}

// askServer asks the API server, if it can be asked at all.
func askServer[T any](
	ctx context.Context, i *inquiry, what string, question func(context.Context) Answer[T],
) func() Answer[T] {
	return ask(ctx, i.questions, what, func(ctx context.Context) Answer[T] {
		if err := i.noCluster(); err != nil {
			return Answer[T]{Err: err}
		}
		return question(ctx)
	})
}

// askHandler asks for the release that all of this is about: its rights and its role matter.
func (i *inquiry) askHandler(ctx context.Context) {
	i.release = ask(ctx, i.questions, "the handler", func(context.Context) release {
		f := &Facts{Options: i.Options, User: i.user(), Pods: i.pods(), Deployments: i.deployments()}
		r := release{cluster: i.noCluster()}
		r.Handler, r.known = f.handler()
		r.beside = beside(i.user().Value.Name, i.caller().Value, r)
		return r
	})
	i.access = ask(ctx, i.questions, "rights in the cluster", func(ctx context.Context) reviewed {
		return i.reviews(ctx, i.release(), i.user().Value.Name)
	})
	i.lastLine = ask(ctx, i.questions, "the handler's log", func(ctx context.Context) map[string]string {
		lines := map[string]string{}
		for _, p := range i.release().Pods {
			if p.State.Exit != (Exit{}) && p.State.Exit.Message == "" {
				lines[p.Name] = i.Cluster.lastLine(ctx, p.Namespace, p.Name)
			}
		}
		return lines
	})
}

func (i *inquiry) askInstances(ctx context.Context) {
	i.instances = ask(ctx, i.questions, "EC2", func(ctx context.Context) Answer[[]Instance] {
		if err := i.noAWS(); err != nil {
			return Answer[[]Instance]{Err: err}
		}
		return i.AWS.instances(ctx, i.nodes())
	})
	i.groups = ask(ctx, i.questions, "Auto Scaling", func(ctx context.Context) Answer[[]Group] {
		return i.AWS.groups(ctx, i.instances(), i.Options.HookNames)
	})
	i.hookTries = ask(ctx, i.questions, "permissions of Auto Scaling", func(ctx context.Context) []Permission {
		return i.AWS.hookPermissions(ctx, i.groups(), i.Options)
	})
	i.pollTries = ask(ctx, i.questions, "permissions of EC2", func(ctx context.Context) []Permission {
		if err := i.noAWS(); err != nil {
			return []Permission{{Action: pollAction, Err: err}}
		}
		return i.AWS.pollPermissions(ctx, i.Options)
	})
	i.targetTries = ask(ctx, i.questions, "permissions of Elastic Load Balancing", func(ctx context.Context) []Permission {
		if err := i.noAWS(); err != nil || !i.Options.Excludes {
			return nil
		}
		return i.AWS.targetPermissions(ctx, i.targetGroups().Value)
	})
	i.role = ask(ctx, i.questions, "the handler's role", func(ctx context.Context) simulation {
		if i.noAWS() != nil {
			return simulation{}
		}
		return i.simulate(ctx, i.release(), i.caller().Value, i.groups().Value, i.key())
	})
}

// facts waits for all answers.
func (i *inquiry) facts() *Facts {
	f := &Facts{
		Options: i.Options,
		Caller:  i.caller(), Queue: i.queue(), Key: i.key(),
		Topics: i.topics(), Rules: i.rules(),
		User: i.user(), Access: i.access().answers, Rights: i.access().rights, Lease: i.lease(),
		Nodes: i.nodes(), Pods: i.pods(), Deployments: i.deployments(), Policy: i.policy(),
		TargetGroups: i.targetGroups(),
		Instances:    i.instances(), Groups: i.groups(), Role: i.role().role,
	}
	lines := i.lastLine()
	for k, p := range f.Pods.Value {
		if text := lines[p.Name]; text != "" && p.Namespace == i.release().Namespace {
			f.Pods.Value[k].State.Exit.Message = text
		}
	}
	f.Permissions = i.permissions(f)
	if f.Decrypt = i.decryptTry(); f.Role.Simulated {
		f.Decrypt = i.role().decrypt
	}
	f.Now = time.Now()
	return f
}

// permissions are the permissions of the handler's role: as IAM says, or, if doctor runs with that
// role, as calls that were tried say.
func (i *inquiry) permissions(f *Facts) []Permission {
	tries := slices.Concat(i.queueTries(), i.hookTries(), i.pollTries(), i.targetTries())
	if f.Role.Simulated {
		return i.role().permissions
	}
	tries = append(tries, Permission{Action: "sqs:GetQueueAttributes", Err: onlyDenial(f.Queue.Err)})
	if f.Nodes.Err == nil {
		describe := Permission{Action: "ec2:DescribeInstances", Needed: i.Options.CheckTag, Err: onlyDenial(f.Instances.Err)}
		tries = append(tries, describe)
	}
	return tries
}

// A release is the handler that was found, and how doctor is related to it.
type release struct {
	Handler
	known   bool
	cluster error // why it could not be looked for
	beside  bool  // doctor runs as somebody else
}

// beside reports whether doctor runs with another identity than the handler: as a person, or in a
// pod with another ServiceAccount. A role that only pods can get is taken for the handler's.
func beside(user string, c Caller, r release) bool {
	inPod := strings.HasPrefix(user, "system:serviceaccount:") || user == "" &&
		(c.Source == SourceIRSA || c.Source == SourcePodIdentity)
	return !inPod || r.known && user != "" && user != r.subject()
}

// reviewed are rights, and the user who has them.
type reviewed struct {
	answers map[kube.Access]Answer[bool]
	rights  Rights
}

// reviews asks for the handler's rights.
func (g *Gatherer) reviews(ctx context.Context, r release, user string) reviewed {
	switch {
	case r.cluster != nil:
		return reviewed{rights: Rights{Err: r.cluster}}
	case !r.beside:
		return reviewed{g.Cluster.access(ctx, g.Options, ""), Rights{Of: user}}
	case !r.known:
		return reviewed{rights: Rights{Err: blocked("handler", ErrAbsent)}}
	}
	o := g.Options
	o.Namespace = r.Namespace
	return reviewed{g.Cluster.access(ctx, o, r.subject()), Rights{Of: r.subject()}}
}

// A simulation is what IAM says about the handler's role.
type simulation struct {
	role        Role
	permissions []Permission
	decrypt     Answer[bool]
}

// simulate asks IAM for the permissions of the handler's role, if doctor does not run with that
// role.
func (g *Gatherer) simulate(
	ctx context.Context, r release, c Caller, groups []Group, key Answer[Key],
) (s simulation) {
	if !r.beside {
		return s
	}
	if r.cluster != nil {
		s.role.Err = r.cluster
		return s
	}
	if !r.known {
		s.role.Err = blocked("handler", ErrAbsent)
		return s
	}
	s.role.ARN, s.role.Err = g.Cluster.roleOf(ctx, r.Namespace, cmp.Or(r.ServiceAccount, "default"))
	switch {
	case s.role.Err != nil || hasRole(c.ARN, s.role.ARN):
		return s
	case s.role.ARN == "":
		s.role.Err = errors.New("its ServiceAccount names no role: EKS Pod Identity may, which doctor does not ask")
		return s
	}
	s.permissions, s.role.Err = g.AWS.simulated(ctx, s.role.ARN, groups, g.Options)
	if s.role.Simulated = s.role.Err == nil; s.role.Simulated {
		s.decrypt = g.AWS.simulatedDecrypt(ctx, s.role.ARN, key, g.Options)
	}
	return s
}

// hasRole reports whether a caller has assumed a role. The ARN of a session has the role's name
// without its path.
func hasRole(caller, role string) bool {
	parts, session := strings.Split(role, ":"), strings.Split(caller, ":")
	return len(parts) > 5 && len(session) > 5 && parts[4] == session[4] && roleName(role) == roleName(caller)
}

// report calls Progress every second until it is stopped.
func (g *Gatherer) report(ctx context.Context, q *questions) (stop func()) {
	if g.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				g.Progress(q.waiting())
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// queueARN is the ARN of the queue in the options. Rules can be looked up by it if the queue does
// not answer.
func (o Options) queueARN() string {
	return "arn:" + o.Partition + ":sqs:" + o.Region + ":" + o.Account + ":" + o.QueueName
}

// onlyDenial returns an error about a missing permission; other errors are reported by the checks
// that they belong to.
func onlyDenial(err error) error {
	if denied(err) {
		return err
	}
	return nil
}
