// Package delivery sends the messages of the webhook: one about each notice that is acted on, and
// one about the end of each drain.
package delivery

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/redact"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/report/describe"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

const (
	// queueLength is how many messages can wait: more interruptions than any reader of a
	// channel takes in.
	queueLength = 1000
	// workers is how many messages are sent at the same time. Chat services accept about one a
	// second, and one that hangs must not hold up the rest.
	workers = 4
	// A message that was not accepted is sent again until it is resendFor old: by then people know
	// from elsewhere.
	resendFor = 5 * time.Minute
	// postTimeout limits one request.
	postTimeout = 10 * time.Second
	// stopTime is how long messages are still sent after the process was told to stop.
	stopTime = time.Second
	// remembered is how many notices are remembered as sent: SQS may deliver them again.
	remembered = 4096
)

// backoff is the pause before a message that was not accepted is sent again.
var backoff = retry.Backoff{First: time.Second, Max: 30 * time.Second, Factor: 2, Jitter: 0.2}

// Options are what a Sender needs to know.
type Options struct {
	// URL is where messages are posted to; a secret, as are the headers and the proxy.
	URL string
	// Proxy of the requests; nil: the one of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
	Proxy    *url.URL
	Headers  map[string]string
	Template webhook.Template
	// Phases are those that messages are posted about.
	Phases []webhook.Phase
	// Node returns the node of that name as it was last seen, nil if there is none.
	// It makes no request.
	Node func(name string) *corev1.Node
	// Where returns the account and the region of instances whose notice does not say; empty: unknown.
	Where func() (account, region string)
	// Pods lists the names of the pods on a node, for templates that ask for them;
	// can be nil.
	Pods func(ctx context.Context, node string) []string
	// Delivered is told what became of each message. It may be called concurrently.
	Delivered func(report.Delivery)
	Log       logr.Logger
}

// A Sender posts a message about each notice that a node is cordoned or drained for, and
// about the end of each drain. It sends a message once in the life of the process; another
// leader may repeat it. Its methods may be called concurrently. Only Run blocks.
type Sender struct {
	options Options
	client  *http.Client
	queue   chan message

	// latest has the latest decision about each node, a report.Decision by UID: the reason for its
	// drain. It is empty if no message is sent about the end of a drain.
	latest *lru.Cache
	sent   *report.Told // the occasions that messages were sent for

	dropping atomic.Bool // the last message found the queue full
	failing  atomic.Bool // the server has not taken the last one that it was sent

	mu sync.Mutex
	// quietUntil is when the server accepts messages again, by its Retry-After.
	quietUntil time.Time
}

// A message is one that waits to be sent.
type message struct {
	webhook.Interruption
	queued time.Time
}

// An occasion is what one message is sent for: a notice about a node.
type occasion struct {
	kind notice.Kind
	id   string
	time time.Time // if there is no id; copies of an event have the same id and another time
	node types.UID
}

// New returns a Sender that sends nothing before Run.
func New(o Options) *Sender {
	proxy := http.ProxyFromEnvironment
	if o.Proxy != nil {
		proxy = http.ProxyURL(o.Proxy)
	}
	const connectTime = 5 * time.Second
	return &Sender{
		options: o,
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:                  proxy,
				OnProxyConnectResponse: redact.CheckProxy,
				DialContext:            (&net.Dialer{Timeout: connectTime}).DialContext,
				TLSHandshakeTimeout:    connectTime,
				ForceAttemptHTTP2:      true,
				MaxIdleConnsPerHost:    workers,
				IdleConnTimeout:        time.Minute,
			},
			CheckRedirect: stayAtHost,
			Timeout:       postTimeout,
		},
		queue:  make(chan message, queueLength),
		latest: lru.New(remembered),
		sent:   report.NewTold(remembered),
	}
}

// Decided implements report.Observer.
func (s *Sender) Decided(d report.Decision) {
	told := d.Why == decision.WhyNotifiedByRule
	if d.DryRun || d.Action != decision.Cordon && d.Action != decision.Drain && !told {
		return
	}
	if !told && slices.ContainsFunc(s.options.Phases, func(p webhook.Phase) bool { return p != webhook.PhaseReceived }) {
		s.latest.Add(d.Node.UID, d)
	}
	if !d.Repeated && !s.sent.Before(occasionOf(d)) {
		s.send(interruptionOf(d, describe.MachineOf(s.options.Node(d.Node.Name))))
	}
}

// Drained implements report.Observer.
func (s *Sender) Drained(d report.Drain) {
	if d.Outcome == intent.CalledOff {
		return
	}
	node := s.options.Node(d.Node.Name)
	s.send(ended(interruptionOf(s.latestAbout(d.Node, node), describe.MachineOf(node)), d))
}

// latestAbout is the latest decision about a node. If another leader made it, it is what the
// intent of the node says of it. node can be nil.
func (s *Sender) latestAbout(ref cluster.Ref, node *corev1.Node) report.Decision {
	if d, ok := s.latest.Get(ref.UID); ok {
		return d.(report.Decision)
	}
	d := report.Decision{Node: ref, Instance: ref.Instance}
	if node == nil {
		return d
	}
	if i, ok, err := cluster.ReadIntent(node); ok && err == nil && len(i.Entries) > 0 {
		last := i.Entries[len(i.Entries)-1]
		d.Notice.Kind, d.Notice.Time, d.Deadline = last.Kind, last.Time, last.Deadline
		if len(last.IDs) > 0 {
			d.Notice.ID = last.IDs[len(last.IDs)-1]
		}
		if last.Kind == notice.ASGTerminate && len(i.Hooks) > 0 {
			d.Notice.Hook.Group = i.Hooks[len(i.Hooks)-1].Group
		}
	}
	return d
}

// send puts a message into the queue if its phase is wanted. It drops the message if the queue is full.
func (s *Sender) send(i webhook.Interruption) {
	if !slices.Contains(s.options.Phases, i.Phase) {
		return
	}
	account, region := s.options.Where()
	i.AccountId, i.Region = cmp.Or(i.AccountId, account), cmp.Or(i.Region, region)
	select {
	case s.queue <- message{i, time.Now()}:
		s.dropping.Store(false)
	default:
		s.options.Delivered(report.Dropped)
		if !s.dropping.Swap(true) {
			logging.Warn(s.options.Log, "too many messages wait for the webhook: they are dropped until there is room again",
				"event", i.EventID, "node", i.NodeName)
		}
	}
}

func occasionOf(d report.Decision) occasion {
	o := occasion{kind: d.Notice.Kind, id: d.Notice.ID, node: d.Node.UID}
	if o.id == "" {
		o.time = d.Notice.Time
	}
	return o
}

// Stepped implements report.Observer; there is no message about it.
func (s *Sender) Stepped(report.Step) {}

// Recorded implements report.Observer; there is no message about it.
func (s *Sender) Recorded(intent.Entry) {}

// Run sends messages until ctx ends, and then those that still wait for stopTime at most.
func (s *Sender) Run(ctx context.Context) {
	sending, stop := retry.WithDelayedCancel(ctx, stopTime)
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { s.work(ctx, sending) })
	}
	all.Wait()
	s.client.CloseIdleConnections()
}

// work delivers messages until ctx has ended and none waits. Requests are made
// under sending.
func (s *Sender) work(ctx, sending context.Context) {
	for {
		select {
		case m := <-s.queue:
			s.deliver(ctx, sending, m)
			continue
		default:
		}
		select {
		case m := <-s.queue:
			s.deliver(ctx, sending, m)
		case <-ctx.Done():
			return
		}
	}
}

// errTooOld is the error of a message that has waited too long for others.
var errTooOld = errors.New("too many messages were before it")

// deliver sends one message, and sends it again until it is accepted, is refused for good, or is
// too old. After ctx has ended it sends it once.
func (s *Sender) deliver(ctx, sending context.Context, m message) {
	log := s.options.Log.WithValues("event", m.EventID, "node", m.NodeName, "phase", m.Phase)
	body, err := s.options.Template.Render(sending, m.Interruption, s.options.Pods)
	if err != nil {
		s.options.Delivered(report.Failed)
		logging.Warn(log, "execute the webhook's template", "error", err)
		return
	}
	err = errTooOld
	for try := 1; ; try++ {
		s.awaitQuiet(ctx)
		last := ctx.Err() != nil
		final := time.Since(m.queued) > resendFor
		if !final {
			final, err = s.post(sending, body)
		}
		if err == nil {
			s.options.Delivered(report.Sent)
			if s.failing.Swap(false) {
				log.Info("the webhook takes messages again")
			}
			return
		}
		if !errors.Is(err, errTooOld) && !s.failing.Swap(true) {
			logging.Warn(log, "the webhook does not take messages: each is tried for five minutes (logged once)", "error", err)
		}
		if final || last {
			s.options.Delivered(report.Failed)
			logging.Warn(log, "the webhook has not taken a message", "error", err)
			return
		}
		wait := backoff.Pause(try)
		log.V(1).Info("the webhook has not taken a message yet, trying again", "error", err, "in", wait.String())
		_ = retry.Sleep(ctx, wait) // the last try is made after the end of ctx
	}
}
