package loadbalancer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// Interval is the time between two looks at a target group. A target drains for minutes.
	Interval = 10 * time.Second
	// leastPatience is enough for three looks.
	leastPatience = 3 * Interval
	// firstLook is how long the first look waits for further drains, which share it.
	firstLook = time.Second
	// AWS does not publish the limit of the account. The AWS Load Balancer Controller uses it too.
	callsPerSecond = 5
	callBurst      = 5
	callTimeout    = 10 * time.Second
	// deniedPause is how long a missing permission is not asked for again: a person grants it.
	deniedPause = 10 * time.Minute
	// outage is how many calls in a row have failed when the log says so.
	outage = 3

	// Permission is what the role needs.
	Permission = "elasticloadbalancing:DescribeTargetHealth"
)

// lost are the pauses after a call that has failed, throttled after one for which there were too many.
var (
	lost      = retry.Backoff{First: 2 * time.Second, Max: 30 * time.Second, Factor: 2, Jitter: 0.5}
	throttled = retry.Backoff{First: Interval, Max: time.Minute, Factor: 2, Jitter: 0.5}
)

// API is the call of Elastic Load Balancing that Targets makes: a function, so that the linker can drop the client's
// other methods.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetHealth.html
type API func(
	context.Context, *elb.DescribeTargetHealthInput, ...func(*elb.Options),
) (*elb.DescribeTargetHealthOutput, error)

// Metrics counts the calls that are denied. Its method is called concurrently and must not block.
type Metrics interface{ TargetsDenied() }

// Targets tells when machines have left their target groups. One call answers for all machines of a group:
// without the parameter Targets it returns those that are registered or drain. With it, each target would
// have to be named with the port of its Service, and one that was terminated fails the whole call.
//
// Set the exported fields before the first use. The methods may be called concurrently.
type Targets struct {
	Client API
	// Groups returns the target groups that a node with these labels may be in; see [Watch.GroupsOf].
	Groups func(ctx context.Context, node map[string]string) ([]TargetGroup, error)
	// Region is that of the client: groups of others are not waited for. Empty: not compared.
	Region  string
	Log     logr.Logger
	Metrics Metrics // nil: none

	pacing  sync.Once
	limiter *pace.Limiter

	mu      sync.Mutex
	groups  map[string]*group // by ARN
	changed chan struct{}     // closed and replaced after each look
	denied  bool              // the log has said so
}

// A group is what is known of a target group. Targets.mu guards it.
type group struct {
	waiters int
	stop    context.CancelFunc // of the looks; nil: nobody looks
	asked   time.Time          // when the last answer was asked for; zero: there was none
	next    time.Time          // the next look is not earlier
	failed  int                // calls in a row
	targets map[string]state   // of the last answer, by instance; those that are not used are left out
	none    bool               // there is no such group, or the role lacks the permission to ask
}

// A state is that of the target with which the most is to be waited for.
type state uint8

const (
	outside  state = iota // not registered, or not used
	draining              // it gets no new connections
	serving               // registered, and nobody takes it out
)

// A Machine is what waits.
type Machine struct {
	Instance string
	Node     map[string]string // the labels of its Node
	// Since is when the node was excluded: older answers do not count.
	Since time.Time
	// Patience ends the wait for groups that do not drain the machine: nobody takes it out of them. A wait has time
	// for three looks in any case.
	Patience time.Time
}

// Await returns when the machine is in none of the target groups of its node, or unused there. It returns the names of
// those in which it is still, and the cause of ctx if that ends before: then also of those about which
// nothing is known. The error is nil where only [Machine.Patience] has ended.
//
// It calls waits, once, with the names of the groups, when it knows that there is something to wait for.
func (t *Targets) Await(ctx context.Context, m Machine, waits func(groups []string)) (left []string, err error) {
	t.pacing.Do(func() {
		t.limiter, t.groups, t.changed = pace.New(callsPerSecond, callBurst), map[string]*group{}, make(chan struct{})
	})
	groups, err := t.of(ctx, m)
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	t.join(ctx, groups)
	defer t.leave(groups)
	lastHope := m.Patience
	if soon := time.Now().Add(leastPatience); lastHope.Before(soon) {
		lastHope = soon
	}
	patience := time.NewTimer(time.Until(lastHope))
	defer patience.Stop()
	for told := false; ; {
		t.mu.Lock()
		changed := t.changed
		used, unknown, drains := t.look(groups, m)
		t.mu.Unlock()
		all := slices.Concat(used, unknown)
		slices.Sort(all)
		switch {
		case len(all) == 0:
			return nil, nil
		case ctx.Err() != nil:
			return all, context.Cause(ctx)
		case !drains && !time.Now().Before(lastHope):
			return all, nil
		case len(used) > 0 && !told:
			told = true
			waits(used)
		}
		select {
		case <-changed:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
}

// of returns the groups that count for the machine.
func (t *Targets) of(ctx context.Context, m Machine) ([]TargetGroup, error) {
	groups, err := t.Groups(ctx, m.Node)
	if errors.Is(err, errTooManyGroups) {
		logging.Warn(t.Log, "the node has too many target groups: not all of them are waited for",
			"instance", m.Instance, "most", maxGroups)
		err = nil
	}
	return slices.DeleteFunc(groups, func(g TargetGroup) bool { return t.Region != "" && g.Region != t.Region }), err
}

// look returns the names of the groups in which the machine is, and of those of which nothing is known. drains: it
// drains in one at least. The caller holds mu.
func (t *Targets) look(groups []TargetGroup, m Machine) (used, unknown []string, drains bool) {
	for _, named := range groups {
		switch g := t.groups[named.ARN]; {
		case g.none:
		case g.asked.IsZero() || g.asked.Before(m.Since):
			unknown = append(unknown, named.Name)
		case g.targets[m.Instance] != outside:
			used = append(used, named.Name)
			drains = drains || g.targets[m.Instance] == draining
		}
	}
	return used, unknown, drains
}

// join counts a waiter of each group, and begins to look at those that nobody looks at.
func (t *Targets) join(ctx context.Context, groups []TargetGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.groups, func(_ string, g *group) bool { return g.waiters == 0 && !now.Before(g.next) })
	for _, named := range groups {
		g := t.groups[named.ARN]
		if g == nil {
			g = &group{next: now.Add(firstLook)}
			t.groups[named.ARN] = g
		}
		if g.waiters++; g.stop == nil {
			var looking context.Context
			looking, g.stop = context.WithCancel(context.WithoutCancel(ctx)) // others may wait for longer
			go t.keepLooking(looking, named, g)
		}
	}
}

// leave counts it out. Nobody looks where nobody waits.
func (t *Targets) leave(groups []TargetGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, named := range groups {
		if g := t.groups[named.ARN]; g != nil {
			if g.waiters--; g.waiters == 0 {
				g.stop()
				g.stop = nil
			}
		}
	}
}

func (t *Targets) keepLooking(ctx context.Context, named TargetGroup, g *group) {
	for {
		t.mu.Lock()
		next := g.next
		t.mu.Unlock()
		if retry.Sleep(ctx, time.Until(next)) != nil || t.limiter.Wait(ctx, pace.Priority{}) != nil {
			return
		}
		asked := time.Now()
		targets, err := t.describe(ctx, named.ARN)
		if ctx.Err() != nil {
			return
		}
		t.note(named, g, asked, targets, err)
	}
}

// describe returns what the machines of a group are.
func (t *Targets) describe(ctx context.Context, arn string) (map[string]state, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errCallTimeout)
	defer cancel()
	out, err := t.Client(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &arn}, once)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	targets := map[string]state{}
	for _, d := range out.TargetHealthDescriptions {
		if d.Target == nil || d.TargetHealth == nil {
			continue
		}
		id := aws.ToString(d.Target.Id) // one instance may be a target with several ports
		targets[id] = max(targets[id], stateOf(d.TargetHealth.State))
	}
	return targets, nil
}

var errCallTimeout = errors.New("no answer from Elastic Load Balancing in time")

// once turns the retries of the SDK off: the next look is the retry.
func once(o *elb.Options) { o.Retryer = aws.NopRetryer{} }

// stateOf is the state of a target by its name.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html
func stateOf(s types.TargetHealthStateEnum) state {
	switch s {
	case types.TargetHealthStateEnumUnused:
		return outside
	case types.TargetHealthStateEnumDraining, types.TargetHealthStateEnumUnhealthyDraining:
		return draining
	case types.TargetHealthStateEnumInitial, types.TargetHealthStateEnumHealthy, types.TargetHealthStateEnumUnhealthy,
		types.TargetHealthStateEnumUnavailable:
	}
	return serving
}

// note notes the answer to a look, and decides when the next one is.
func (t *Targets) note(named TargetGroup, g *group, asked time.Time, targets map[string]state, err error) {
	code, denied := awserr.Code(err), awserr.Denied(err)
	if denied && !awserr.Unsupported(err) && t.Metrics != nil {
		t.Metrics.TargetsDenied()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g.none = false
	switch {
	case err == nil:
		if g.failed >= outage {
			t.Log.Info("a load balancer answers again", "targetGroup", named.Name)
		}
		g.asked, g.targets, g.failed, g.next = asked, targets, 0, asked.Add(Interval)
		t.denied = false
	case denied:
		g.none, g.failed, g.next = true, 0, asked.Add(deniedPause)
		if !t.denied {
			why := "drains do not wait for load balancers: the role of this controller lacks a permission"
			if awserr.Unsupported(err) {
				why = "drains do not wait for load balancers: the server does not have a call"
			}
			logging.Warn(t.Log, why, "permission", Permission, "targetGroup", named.Name, "error", err)
		}
		t.denied = true
	case code == "TargetGroupNotFound", code == "ValidationError":
		g.none, g.failed, g.next = true, 0, asked.Add(Interval)
	default:
		g.failed++
		pauses := lost
		if awsretry.IsErrorThrottles(awsretry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary {
			pauses = throttled
		}
		pause := pauses.Pause(g.failed)
		g.next = time.Now().Add(pause)
		if g.failed == outage {
			logging.Warn(t.Log, "a load balancer does not answer: drains wait for it in vain",
				"targetGroup", named.Name, "error", err)
		}
	}
	close(t.changed)
	t.changed = make(chan struct{})
}
