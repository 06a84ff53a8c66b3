package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/flight"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// EC2 allows 200 values in one filter.
	batchSize = 200
	// A batch is sent when no further id has come for batchPause, which is longer than the
	// time between two receives in a storm, and at the latest after batchWindow: a node
	// waits for its cordon meanwhile.
	batchPause  = 25 * time.Millisecond
	batchWindow = 200 * time.Millisecond
	// The most that EC2 allows, so that a batch is one page unless EC2 makes it smaller.
	pageSize = 1000
	// Enough for the three tries of the SDK with an API that answers within a second.
	callTimeout = 10 * time.Second

	// EC2 allows an account 20 calls of DescribeInstances with filters a second in a
	// region, after a burst of 100. Autoscalers and cloud controllers use these too. A
	// quarter of them is enough to look up 1,000 instances a second.
	callsPerSecond = 5
	callBurst      = 10

	// Some 50 MB if each instance has twenty tags. Others are looked up again.
	answersKept = 20_000
)

// API is the call of EC2 that a Directory makes. It is a function: because text/template looks methods up by name, the
// linker keeps every method of a client that an interface holds, and that of EC2 has seven hundred: 19 MB.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
type API func(
	context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options),
) (*ec2.DescribeInstancesOutput, error)

// ErrDenied is wrapped by the error of a look-up for which the role lacks the permission.
var ErrDenied = errors.New("permission ec2:DescribeInstances is missing on all resources")

// A Directory looks up instances by id, in batches. It remembers the answers, also that
// there is no such instance. Its methods may be called concurrently.
type Directory struct {
	client  API
	limiter *pace.Limiter
	answers *lru.Cache // of answer, by id
	listed  *lru.Cache // the same, of instances that have a tag: nobody asked for them
	// listing has room for one list of members: a crowd of them delays other look-ups by
	// one call at most.
	listing chan struct{}
	members *lru.Cache // by what they are members of

	mu    sync.Mutex
	lanes [2]lane // ordinary and urgent
}

// A lane has the look-ups of one priority. Look-ups of different priorities do not share
// a batch, because the batch has one priority.
type lane struct {
	asked map[string]*batch // the batch that will answer, by id
	open  *batch            // the batch that takes further ids; may be nil
}

const (
	ordinary = iota
	urgent
)

var priorities = [2]pace.Priority{ordinary: {}, urgent: {Class: pace.Urgent}}

// NewDirectory returns a Directory that has no answers yet.
func NewDirectory(client API) *Directory {
	return &Directory{
		client:  client,
		limiter: pace.New(callsPerSecond, callBurst),
		answers: lru.New(answersKept), listed: lru.New(answersKept),
		listing: make(chan struct{}, 1), members: lru.New(membersKept),
		lanes: [2]lane{ordinary: {asked: map[string]*batch{}}, urgent: {asked: map[string]*batch{}}},
	}
}

type answer struct {
	instance Instance
	found    bool
	asked    time.Time
}

// A batch is one look-up of many ids.
type batch struct {
	call  *flight.Call[map[string]*answer] // its waiters are the callers
	full  chan struct{}                    // closed when no further id fits
	pause *time.Timer                      // fires when no id has come for batchPause
	lane  int                              // ordinary or urgent
	ids   []string                         // guarded by Directory.mu, as is sent
	sent  bool                             // EC2 is asked: no further id can come
}

// Get returns what EC2 says about the instance, and whether there is one with that id in
// this account and region. EC2 shows an instance for about an hour after it has
// terminated, and might not show one that was launched seconds ago.
//
// An answer younger than maxAge is returned without a call. A look-up in flight is
// joined, whatever maxAge is. A failed look-up is an error, never "not found", and is
// not remembered. If ctx ends first, the error wraps its cause, and others that wait
// for the same look-up do not notice.
//
// It hurries for an instance that a Node of the cluster waits for. Such look-ups go before
// the others, in batches of their own: a crowd of unknown instances delays them by one
// call at most. It must not hurry for ids that only a message has named, because messages
// can name ids without end, and urgent look-ups at the full rate starve the others.
func (d *Directory) Get(
	ctx context.Context, id string, maxAge time.Duration, hurry bool,
) (inst Instance, found bool, err error) {
	if !notice.IsInstanceID(id) { // EC2 would answer i-* with every instance of the region
		return inst, false, fmt.Errorf("look up instance %q: not an instance id", id)
	}
	if inst, found, asked := d.Known(id); time.Since(asked) < maxAge {
		return inst, found, nil
	}
	lane := ordinary
	if hurry {
		lane = urgent
	}
	answers, err := d.join(ctx, id, lane).Wait(ctx)
	if err != nil {
		return inst, false, fmt.Errorf("look up instance %s: %w", id, err)
	}
	a := answers[id]
	return a.instance, a.found, nil
}

// Known returns the last answer about the instance, however old, without a call. found
// is false if EC2 had no such instance. asked is when the question was sent, and zero if
// there is no answer: the instance was never looked up, or the cache has dropped it. The
// answers of Tagged count too.
func (d *Directory) Known(id string) (inst Instance, found bool, asked time.Time) {
	var last answer
	for _, known := range []*lru.Cache{d.answers, d.listed} {
		if a, ok := known.Get(id); ok && a.(*answer).asked.After(last.asked) {
			last = *a.(*answer)
		}
	}
	return last.instance, last.found, last.asked
}

// Allowed makes a dry run of a look-up. Its error is that of a look-up, which wraps
// ErrDenied if the role lacks the permission.
func (d *Directory) Allowed(ctx context.Context) error {
	_, err := d.ask(ctx, &ec2.DescribeInstancesInput{DryRun: aws.Bool(true)})
	if awserr.Code(err) == "DryRunOperation" {
		return nil // the look-up would have succeeded
	}
	return err
}

// join counts the caller as a waiter for a look-up of id. It is one that has the id
// already, if that goes no later than the caller's own lane would, or else the next one
// of that lane.
func (d *Directory) join(ctx context.Context, id string, lane int) *flight.Call[map[string]*answer] {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.lanes[urgent].asked[id]
	if other := d.lanes[ordinary].asked[id]; b == nil && other != nil && (lane == ordinary || other.sent) {
		b = other
	}
	if b != nil && b.call.Join() {
		return b.call
	}
	l := &d.lanes[lane]
	if l.open == nil || !l.open.call.Join() {
		l.open = d.start(ctx, lane)
	}
	b = l.open
	b.pause.Reset(batchPause)
	b.ids = append(b.ids, id)
	l.asked[id] = b
	if len(b.ids) == batchSize {
		close(b.full)
		l.open = nil
	}
	return b.call
}

// start begins a batch, with the caller as its first waiter. The caller holds mu.
func (d *Directory) start(ctx context.Context, lane int) *batch {
	b := &batch{lane: lane, full: make(chan struct{}), pause: time.NewTimer(batchPause)}
	b.call = flight.Start(ctx, func(ctx context.Context, _ func(error)) (map[string]*answer, error) {
		defer d.forget(b)
		return d.run(ctx, b)
	})
	return b
}

// forget has the next question about an id of b join another batch. One may have taken
// the place of b already, if b was cancelled.
func (d *Directory) forget(b *batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.lanes[b.lane]
	if l.open == b {
		l.open = nil
	}
	for _, id := range b.ids {
		if l.asked[id] == b {
			delete(l.asked, id)
		}
	}
}

func (d *Directory) run(ctx context.Context, b *batch) (map[string]*answer, error) {
	defer b.pause.Stop()

	window := time.NewTimer(batchWindow)
	defer window.Stop()
	select {
	case <-ctx.Done():
	case <-b.full:
	case <-b.pause.C:
	case <-window.C:
	}
	// While the batch waits for its turn, further ids can still join it.
	if err := d.limiter.Wait(ctx, priorities[b.lane]); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if l := &d.lanes[b.lane]; l.open == b {
		l.open = nil
	}
	b.sent = true
	ids := b.ids
	d.mu.Unlock()

	// The age of an answer counts from the question: the answer may lack what happened
	// after that.
	asked := time.Now()
	found := make(map[string]Instance, len(ids))
	in := &ec2.DescribeInstancesInput{ // EC2 refuses a whole call by InstanceIds if it does not know one of them
		Filters:    []types.Filter{{Name: aws.String("instance-id"), Values: ids}},
		MaxResults: aws.Int32(pageSize),
	}
	err := d.pages(ctx, in, priorities[b.lane], func(inst Instance, _ time.Time) { found[inst.ID] = inst })
	if err != nil {
		return nil, err
	}
	answers := make(map[string]*answer, len(ids))
	for _, id := range ids {
		inst, ok := found[id]
		answers[id] = &answer{instance: inst, found: ok, asked: asked}
		d.answers.Add(id, answers[id])
	}
	return answers, nil
}

// pages calls visit for each instance of all pages of the answer, with the time when its page
// was asked for. The caller has waited for the first page's turn.
func (d *Directory) pages(
	ctx context.Context, in *ec2.DescribeInstancesInput, p pace.Priority, visit func(inst Instance, asked time.Time),
) error {
	for {
		asked := time.Now()
		page, err := d.ask(ctx, in)
		if err != nil {
			return err
		}
		for _, reservation := range page.Reservations {
			for _, i := range reservation.Instances {
				visit(fromEC2(i), asked)
			}
		}
		if in.NextToken = page.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
		if err := d.limiter.Wait(ctx, p); err != nil {
			return err
		}
	}
}

func (d *Directory) ask(ctx context.Context, in *ec2.DescribeInstancesInput) (*ec2.DescribeInstancesOutput, error) {
	return bounded(ctx, "ec2 DescribeInstances", ErrDenied, d.client, in)
}

var errCallTimeout = fmt.Errorf("no answer within %v", callTimeout)

// An unsupported is a denied call that the server does not have.
type unsupported struct{ denied, err error }

func (u unsupported) Error() string { return "the server does not have this call: " + u.err.Error() }

// Unwrap is for errors.Is and errors.As.
func (u unsupported) Unwrap() []error { return []error{u.denied, u.err} }

// bounded makes one call, and gives up after callTimeout. The error begins with what was called. It wraps denied if
// the role lacks the permission.
func bounded[In, Out any](
	ctx context.Context, what string, denied error,
	ask func(context.Context, *In, ...func(*ec2.Options)) (*Out, error), in *In,
) (*Out, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errCallTimeout)
	defer cancel()
	out, err := ask(ctx, in)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return out, nil
	case awserr.Unsupported(err):
		err = unsupported{denied, err}
	case awserr.Denied(err):
		err = fmt.Errorf("%w: %w", denied, err)
	case cause != nil:
		err = cause
	}
	return out, fmt.Errorf("%s: %w", what, err)
}
