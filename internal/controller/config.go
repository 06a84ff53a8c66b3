package controller

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Instances tells what EC2 knows of an instance; see package instance. An answer may
// be as old as maxAge. found is false when EC2 does not know the id; an error says nothing.
type Instances interface {
	Get(ctx context.Context, id string, maxAge time.Duration) (i instance.Instance, found bool, err error)
	// GetUrgent is Get for what must not wait for the ids of strangers.
	GetUrgent(ctx context.Context, id string, maxAge time.Duration) (i instance.Instance, found bool, err error)
	// Known is the last answer, however old, without asking.
	Known(id string) (i instance.Instance, found bool, asked time.Time)
	// InReservation are the instances of a Capacity Reservation that do not terminate already.
	InReservation(ctx context.Context, id string, maxAge time.Duration) ([]instance.Instance, error)
}

// Hooks speaks to Auto Scaling about lifecycle hooks; see package asg.
type Hooks interface {
	Limits(ctx context.Context, h intent.Hook) (notice.HookLimits, error)
	Hold(ctx context.Context, h intent.Hook)
	Waits(ctx context.Context, h intent.Hook) (bool, error)
	Ended(ctx context.Context, h intent.Hook) (bool, error)
	Complete(ctx context.Context, h intent.Hook) error
}

// Replacements speaks to Auto Scaling about other instances in the place of those that go; see package
// replacement.
type Replacements interface {
	Members(ctx context.Context, ids ...string) (map[string]replacement.Member, error)
	Group(ctx context.Context, name string) (replacement.Group, error)
	Desired(ctx context.Context, group string) (int, error)
	MarkUnhealthy(ctx context.Context, id string) error
	Launch(ctx context.Context, group, zone, token string) (id string, err error)
	Terminate(ctx context.Context, id string, decrement bool) error
}

// Drainer gets the pods off a node; see package drain.
type Drainer interface {
	Drain(ctx context.Context, o *drain.Request) (*drain.Result, error)
	// Remaining lists the pods that would have to leave a node.
	Remaining(ctx context.Context, node string) ([]string, error)
}

// A PolicyFile has the rules of a file that may change. Its methods may be called concurrently.
type PolicyFile interface {
	// Rules are those of now. They are not changed any more.
	Rules() *decision.Rules
	// Changed returns a channel that is closed when there are other rules.
	Changed() <-chan struct{}
}

// Config is what a controller is made of.
type Config struct {
	Cluster   *cluster.Cluster
	Instances Instances
	Hooks     Hooks
	Drainer   Drainer
	// LoadBalancers are waited for before a drain is called drained; nil: they are not.
	LoadBalancers LoadBalancers
	// Replacements gets nodes replaced before their drains, where a rule asks for it; nil: they are not.
	Replacements Replacements
	// Replacer asks Karpenter; nil: nobody asks it.
	Karpenter Karpenter
	Observer  report.Observer
	// Blocked is told what a drain waits for, beside pods; nil: nobody wants to know.
	Blocked func(drain.Blocked)
	// Ended is told of each episode that ends; nil: nobody wants to know. It must not block, and is called
	// concurrently.
	Ended func(overview.Episode)
	Log   *slog.Logger // nil: no log

	// Policy are the options about decisions.
	decision.Policy
	// PolicyFile has the rules of the policy file; nil: there is none.
	PolicyFile PolicyFile
	// MaxUnready is how many nodes may be not ready or cordoned for drains that can
	// wait: a number, or a percentage of all nodes. Zero: no bound.
	MaxUnready intstr.IntOrString
	// StartupTaints are the keys of taints that a node loses at the end of its startup: with one of
	// them it is not ready for a launch hook to be completed. Taints whose keys begin with
	// readiness.k8s.io/ are of this sort too.
	StartupTaints []string
	// ClusterName is this cluster's name in the tags of its instances; can be empty.
	ClusterName string
	// Leader tells whether a handler with a queue serves the same nodes, and leads: this one, in IMDS
	// mode, leaves the drains to it that it has heard of. Nil: this handler has the queue.
	Leader Leader
	// DryRun decides and logs, and writes nothing.
	DryRun bool
	// CompletionDelay is waited between the end of a drain and the completion of its hooks.
	CompletionDelay time.Duration
	// OutOfServiceTaint puts the out-of-service taint on nodes whose instance has stopped.
	OutOfServiceTaint bool
	// Workers bounds the drains that are not urgent and run at once; 0: no bound.
	Workers int
}

const (
	// answerKept is how old an answer of EC2 may be where it hardly changes: whose an
	// instance is. answerKeptShort is for an instance whose Node is waited for.
	answerKept      = 10 * time.Minute
	answerKeptShort = 15 * time.Second
	// blockKept is how old an answer may be to which instances a Capacity Block has. Some may
	// be launched until its end, and a message about a foreign block comes back again and again.
	blockKept = time.Minute
	// askStateAgain is when EC2 is asked again after it has contradicted a new notice.
	askStateAgain = 5 * time.Second
	// answerFresh is for an answer that something is destroyed by, or that a message is
	// compared with. All who ask within this time share the answer.
	answerFresh = 500 * time.Millisecond
	// doubtTimeout is how long EC2 is asked for the present state of an instance before
	// the message is believed: an instance that stops is there for seconds.
	doubtTimeout = 3 * time.Second
	// tagKept is how old an answer about the managed tag may be while EC2 gives none.
	tagKept = 24 * time.Hour
	// What fails is tried again after firstPause, then twice as long each time, up to lastPause.
	firstPause = 500 * time.Millisecond
	lastPause  = 10 * time.Second
	// worthAWarning is the pause from which a failure is logged as a warning: the third
	// failure in a row. A conflict or a throttled request has succeeded by then.
	worthAWarning = 4 * firstPause
	// lookUpsAtOnce bounds the look-ups for messages that name several instances: a
	// body can name thousands, and EC2 takes 200 in one request.
	lookUpsAtOnce = 200
	// crowdsAtOnce bounds the messages that are looked up at once and name several
	// instances. Each holds 150 KB of ids at most.
	crowdsAtOnce = 64
	// tryTimeout bounds one try, so that a server that hangs costs one try.
	tryTimeout = 15 * time.Second
)

// New returns a controller that begins with Run.
func New(cfg Config) *Controller {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{
		Config:        cfg,
		toRun:         make(chan *nodeDrain),
		resumed:       make(chan struct{}),
		drains:        map[types.UID]*nodeDrain{},
		otherAccounts: map[string]bool{},
		ignored:       lru.New(mostIgnored),
		lookUps:       make(chan struct{}, lookUpsAtOnce),
		crowds:        make(chan struct{}, crowdsAtOnce),
		awaited:       map[*time.Time]bool{},
		cancelled:     newCancelledChanges(),
	}
	if cfg.Workers > 0 {
		c.workers = make(chan struct{}, cfg.Workers)
	}
	c.ruleLimits = newRuleLimits(cfg.Cluster.UnavailableAmong)
	if cfg.MaxUnready != (intstr.IntOrString{}) {
		c.unready = newUnreadyLimit(cfg.MaxUnready, cfg.Cluster.Unavailable)
	}
	return c
}
