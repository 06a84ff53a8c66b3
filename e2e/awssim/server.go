// Package awssim simulates SQS, EC2, EC2 Auto Scaling, target groups of Elastic Load Balancing,
// EventBridge, SNS, KMS, STS, the policies of roles and the instance metadata service
// for tests and demonstrations. One HTTP handler speaks their wire protocols, so
// that the unmodified AWS SDK clients talk to it, and keeps the semantics an
// interruption handler depends on: visibility timeouts, receipt handles, long
// polls, redrive, lifecycle actions that time out and can be completed once.
//
// Tests that run in virtual time make the Server inside their synctest bubble
// and reach it through [Server.Transport] or [Server.Config], which use neither
// sockets nor goroutines. Others use it as an [http.Handler] or call
// [Server.Listen]; a separate process is driven over the control API under
// /_awssim/, which mirrors the methods of Server.
//
// Nothing in the simulator runs on its own. Every call first brings the state
// to the present, event by event at the time each was due, and a long poll
// wakes for the next of them.
package awssim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Options are the choices of a simulated account; the zero value of each field
// selects the default given there.
type Options struct {
	// Account owns every queue, instance and group. Default 123456789012.
	Account string
	// Region stands in ARNs, zones and events. Default us-east-1.
	Region string
	// Seed makes identifiers and chances repeatable. Default 0, which is a seed too.
	Seed uint64
	// ShutdownTime is how long an instance is shutting-down or stopping before
	// it is terminated or stopped. Default 5 s.
	ShutdownTime time.Duration
	// TerminatedFor is how long EC2 goes on describing a terminated instance.
	// Default one hour, which is about what EC2 does.
	TerminatedFor time.Duration
	// QuietStaleHandles makes ChangeMessageVisibility succeed without effect on
	// a message that is visible again, as SQS has been observed to do. The
	// default is the documented error, MessageNotInflight.
	QuietStaleHandles bool
	// EnforcePolicies makes EventBridge and SNS deliver only where the policies of the topic, of the
	// queue and of its key let them, as in AWS. Without it all topics and queues take events.
	EnforcePolicies bool
	// Delivery says when an event that a rule takes is delivered: once after each
	// of the durations, never if there are none. It is called within the event, and
	// must not call the Server. Default: once, at once.
	Delivery func(body string) []time.Duration
	// CallsKept bounds Calls. Default 10,000.
	CallsKept int
	// EffectsKept bounds Effects. Default 50,000.
	EffectsKept int
}

// MemoryEndpoint is the base URL that SDK clients are given when they reach a
// Server through its Transport. The name cannot be resolved, so that a client
// which lost its transport fails instead of calling someone.
const MemoryEndpoint = "http://awssim.invalid"

// Server is a simulated AWS account. It is safe for concurrent use.
type Server struct {
	opts    Options
	control http.Handler
	closed  chan struct{}

	mu           sync.Mutex
	closing      bool
	endpoint     string
	listening    []*http.Server
	serving      sync.WaitGroup
	random       *rand.Rand
	changed      chan struct{} // closed and replaced when a waiting long poll should look again
	queues       map[string]*queue
	instances    map[string]*instance
	moving       map[string]*instance // those with a state change ahead
	groups       map[string]*group
	targetGroups map[string]*targetGroup
	actions      []*lifecycleAction // active ones, oldest first
	ended        ring[LifecycleAction]
	rules        map[string]Rule
	topics       map[string]*topic
	keys         map[string]Key
	roles        map[string]Role
	faults       []*rule
	calls        ring[Call]
	counts       map[CallKey]int
	effects      ring[Effect]
}

// New returns an empty account.
func New(opts Options) *Server {
	setDefault(&opts.Account, "123456789012")
	setDefault(&opts.Region, "us-east-1")
	setDefault(&opts.ShutdownTime, 5*time.Second)
	setDefault(&opts.TerminatedFor, time.Hour)
	setDefault(&opts.CallsKept, 10_000)
	setDefault(&opts.EffectsKept, 50_000)
	s := &Server{
		opts:         opts,
		closed:       make(chan struct{}),
		endpoint:     MemoryEndpoint,
		random:       rand.New(rand.NewPCG(opts.Seed, 0)),
		changed:      make(chan struct{}),
		queues:       map[string]*queue{},
		instances:    map[string]*instance{},
		moving:       map[string]*instance{},
		groups:       map[string]*group{},
		targetGroups: map[string]*targetGroup{},
		ended:        ring[LifecycleAction]{size: 10_000},
		rules:        map[string]Rule{},
		topics:       map[string]*topic{},
		keys:         map[string]Key{},
		roles:        map[string]Role{},
		calls:        ring[Call]{size: opts.CallsKept},
		counts:       map[CallKey]int{},
		effects:      ring[Effect]{size: opts.EffectsKept},
	}
	s.control = s.controlHandler()
	return s
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Listen serves on a TCP address, such as 127.0.0.1:0, until Close, and returns
// the endpoint to give to clients. From then on QueueURL uses that endpoint.
func (s *Server) Listen(ctx context.Context, address string) (endpoint string, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen for AWS calls: %w", err)
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		_ = listener.Close()
		return "", fmt.Errorf("listen for AWS calls: %w", http.ErrServerClosed)
	}
	s.endpoint = "http://" + listener.Addr().String()
	s.listening = append(s.listening, server)
	s.serving.Go(func() { _ = server.Serve(listener) }) // ends with ErrServerClosed, by Close
	return s.endpoint, nil
}

// Close ends long polls, with no message, and everything that Listen started.
// Calls that come later get HTTP status 503. State and records stay readable.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return
	}
	s.closing = true
	listening := s.listening
	close(s.closed)
	s.mu.Unlock()
	// Answers that are on their way may arrive; nothing waits any more, so that
	// this is soon over. Close has no caller's context to bound it.
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace) //nolint:forbidigo // see above
	defer cancel()
	for _, server := range listening {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}
	s.serving.Wait()
}

// closeGrace is how long Close waits for answers to arrive: long for a loopback connection, short
// for a person.
const closeGrace = 2 * time.Second

// ServeHTTP answers one AWS call, or one call of the control API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, controlPrefix) {
		s.control.ServeHTTP(w, r)
		return
	}
	s.serveAWS(w, r)
}

// serveAWS handles every AWS call: it finds out what is asked, applies the faults, performs the
// call, records it and answers.
func (s *Server) serveAWS(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	req, problem := readRequest(r)
	harm := s.harmFor(req.service, req.action)
	req.arrived = start.Add(harm.skew)

	var answer response
	switch {
	case problem != nil:
		answer = req.fail(problem)
	case !s.wait(r.Context(), harm.latency):
		answer = gone()
	case harm.err != nil && !harm.afterEffect:
		answer = req.fail(harm.err)
	case harm.cutsAnswer() && !harm.afterEffect:
		answer = response{code: harm.name()}
	default:
		answer = s.do(r.Context(), req)
		if harm.err != nil {
			answer = req.fail(harm.err)
		}
	}
	if harm.cutsAnswer() {
		answer.code = harm.name()
	}
	if harm.hang {
		s.hang(r.Context(), harm.hangFor)
	}
	s.recordCall(req, answer, start)
	answer.write(w, harm)
}

// do performs the call. The state is brought to the present first.
func (s *Server) do(ctx context.Context, req *request) response {
	select {
	case <-s.closed:
		return req.fail(&apiError{
			status: http.StatusServiceUnavailable, code: "ServiceUnavailable",
			message: "the simulator is closed",
		})
	default:
	}
	if req.region != "" && req.region != s.opts.Region {
		return req.fail(wrongRegion(req.service))
	}
	if off := req.arrived.Sub(req.signed).Abs(); req.accessKeyID != "" && off >= signatureLasts {
		return req.fail(wrongTime(req))
	}
	operation, ok := operations[req.service][req.action]
	if !ok {
		return req.fail(&apiError{
			status: http.StatusBadRequest, code: "InvalidAction",
			message: fmt.Sprintf("The action %s is not valid for this web service.", req.action),
		})
	}
	if problem := s.authorize(req); problem != nil {
		return req.fail(problem)
	}
	output, problem := operation(ctx, s, req)
	switch {
	case ctx.Err() != nil:
		return gone()
	case problem != nil:
		return req.fail(problem)
	}
	return req.succeed(output)
}

// operation performs one action and returns what to marshal.
type operation func(context.Context, *Server, *request) (output any, problem *apiError)

// operations are what the simulator can do, by service and action. An
// operation takes the lock itself, because ReceiveMessage has to wait.
var operations = map[string]map[string]operation{
	"sqs":         sqsOperations,
	"ec2":         ec2Operations,
	"autoscaling": autoscalingOperations,

	"elasticloadbalancing": elbOperations,
	"events":               eventsOperations,
	"kms":                  kmsOperations,
	"sns":                  snsOperations,
	"sts":                  {"GetCallerIdentity": getCallerIdentity},
}

// locked brings the state to the present and keeps it there while f runs.
func (s *Server) locked(f func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.settle(now)
	f(now)
}

// settle applies all changes that are due by now, in the order of their times. The messages of a
// queue are settled when somebody looks at it.
func (s *Server) settle(now time.Time) {
	for {
		at, apply := s.nextEvent()
		if apply == nil || at.After(now) {
			return
		}
		apply(at)
	}
}

// nextEvent returns the next change that time alone will bring to an instance
// or a lifecycle action.
func (s *Server) nextEvent() (at time.Time, apply func(at time.Time)) {
	for _, action := range s.actions {
		if due := action.due(); apply == nil || due.Before(at) {
			at, apply = due, func(at time.Time) { s.endAction(action, at, TimedOut, action.defaultResult) }
		}
	}
	first := ""
	for _, instance := range s.moving {
		// Two changes at the same time are ordered by id, so that runs can be repeated.
		sooner := instance.changes.Before(at) || instance.changes.Equal(at) && instance.ID < first
		if apply == nil || first == "" && instance.changes.Before(at) || first != "" && sooner {
			first = instance.ID
			at, apply = instance.changes, func(at time.Time) { s.moveOn(instance, at) }
		}
	}
	return at, apply
}

// wake makes every waiting long poll look again.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait waits for d. It returns false if the client left or the server closed before that.
func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.closed:
	}
	return false
}

// hang waits until the client leaves, the server closes or, if it is positive, d is over.
func (s *Server) hang(ctx context.Context, d time.Duration) {
	if d > 0 {
		s.wait(ctx, d)
		return
	}
	select {
	case <-ctx.Done():
	case <-s.closed:
	}
}

// uuid returns an identifier of the usual shape. It needs the lock.
func (s *Server) uuid() string {
	a, b := s.random.Uint64(), s.random.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000, b&0xffffffffffff)
}

// chance reports true for the given share of its calls, repeatably. It needs the lock.
func (s *Server) chance(share float64) bool {
	return share > 0 && s.random.Float64() < share
}

func (s *Server) arn(service, resource string) string {
	return "arn:aws:" + service + ":" + s.opts.Region + ":" + s.opts.Account + ":" + resource
}
