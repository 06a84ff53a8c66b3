package instance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// EC2 allows 200 values in one filter.
	batchSize = 200
	// A batch is asked about when for batchPause no more ids have come, which is
	// longer than receives of a crowd are apart, and after batchWindow whatever
	// comes: a node waits for its cordon meanwhile.
	batchPause  = 25 * time.Millisecond
	batchWindow = 200 * time.Millisecond
	// The most EC2 allows, so that a batch is one page unless EC2 cuts it.
	pageSize = 1000
	// Covers the three tries of the SDK at an API that answers within a second.
	callTimeout = 10 * time.Second

	// EC2 gives an account 20 DescribeInstances with filters a second in a
	// region, after a burst of 100. Autoscalers and cloud controllers live on
	// these too; a quarter of them still finds 1,000 instances a second here.
	callsPerSecond = 5
	callBurst      = 10

	// Some 50 MB if each of them has twenty tags; what has left is asked again.
	answersKept = 20_000
)

// API is the part of EC2 that a Directory uses.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
type API interface {
	DescribeInstances(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)
}

// ErrDenied is wrapped by the error of a look-up that the role does not allow.
var ErrDenied = errors.New("permission ec2:DescribeInstances is missing on all resources")

// A Directory looks instances up by id, in batches, and remembers the answers,
// among them that there is no such instance. Its methods may be called
// concurrently.
type Directory struct {
	client  API
	limiter *pace.Limiter
	answers *lru.Cache // of answer, by id

	mu    sync.Mutex
	asked map[string]*batch // by id: the batch that will answer
	open  *batch            // the one that takes more ids; may be nil
}

// NewDirectory returns a Directory that has no answers yet.
func NewDirectory(client API) *Directory {
	return &Directory{
		client:  client,
		limiter: pace.New(callsPerSecond, callBurst),
		answers: lru.New(answersKept),
		asked:   map[string]*batch{},
	}
}

type answer struct {
	instance Instance
	found    bool
	asked    time.Time
}

// A batch is one look-up of many ids. It runs for as long as somebody waits for
// it, on no one caller's context.
type batch struct {
	full    chan struct{} // closed when no further id fits
	pause   *time.Timer   // fires when none has come for batchPause
	done    chan struct{} // closed when answers and err are set
	answers map[string]answer
	err     error
	nobody  context.CancelCauseFunc
	ids     []string // guarded by Directory.mu, as is callers
	callers int
}

var errNobodyWaits = errors.New("nobody waits for the answer any more")

// idPattern keeps wildcards out of the filter: EC2 would take i-* for a
// question about every instance of the region.
var idPattern = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)

// Get returns what EC2 says of the instance, and whether there is one of that
// id in this account and region. EC2 shows an instance for about an hour after
// it has terminated, and may not show one that was launched seconds ago.
//
// An answer younger than maxAge is returned without a call; a look-up that is
// under way is joined, whatever maxAge. A failed look-up is an error, never
// "not found", and is not remembered. If ctx ends first, Get returns its cause,
// and those who wait for the same look-up do not notice.
func (d *Directory) Get(ctx context.Context, id string, maxAge time.Duration) (inst Instance, found bool, err error) {
	if !idPattern.MatchString(id) {
		return Instance{}, false, fmt.Errorf("look up instance %q: not an instance id", id)
	}
	if known, ok := d.answers.Get(id); ok {
		if a := known.(answer); time.Since(a.asked) < maxAge {
			return a.instance, a.found, nil
		}
	}
	b := d.join(ctx, id)
	defer d.leave(b)
	select {
	case <-b.done:
	case <-ctx.Done():
		return Instance{}, false, fmt.Errorf("look up instance %s: %w", id, context.Cause(ctx))
	}
	if b.err != nil {
		return Instance{}, false, fmt.Errorf("look up instance %s: %w", id, b.err)
	}
	a := b.answers[id]
	return a.instance, a.found, nil
}

// Allowed returns an error if the role may not look instances up. It makes a dry
// run; what may heal is no error.
func (d *Directory) Allowed(ctx context.Context) error {
	_, err := d.call(ctx, &ec2.DescribeInstancesInput{DryRun: aws.Bool(true)})
	if errors.Is(err, ErrDenied) {
		return err
	}
	return nil
}

// join returns the batch that will answer for id, with the caller counted in.
func (d *Directory) join(ctx context.Context, id string) *batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.asked[id]
	if b == nil {
		if d.open == nil {
			d.open = d.start(ctx)
		}
		b = d.open
		b.pause.Reset(batchPause)
		b.ids = append(b.ids, id)
		d.asked[id] = b
		if len(b.ids) == batchSize {
			close(b.full)
			d.open = nil
		}
	}
	b.callers++
	return b
}

// leave counts the caller out. A batch that has lost its last one is called
// off, so that none outlives the work it is for.
func (d *Directory) leave(b *batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.callers--
	if b.callers == 0 {
		d.forget(b)
		b.nobody(errNobodyWaits)
	}
}

// forget makes the next question about an id of b start anew.
func (d *Directory) forget(b *batch) {
	if d.open == b {
		d.open = nil
	}
	for _, id := range b.ids {
		if d.asked[id] == b {
			delete(d.asked, id)
		}
	}
}

func (d *Directory) start(ctx context.Context) *batch {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b := &batch{full: make(chan struct{}), pause: time.NewTimer(batchPause), done: make(chan struct{}), nobody: cancel}
	go d.run(ctx, b)
	return b
}

func (d *Directory) run(ctx context.Context, b *batch) {
	defer close(b.done)
	defer b.pause.Stop()

	window := time.NewTimer(batchWindow)
	defer window.Stop()
	select {
	case <-ctx.Done():
	case <-b.full:
	case <-b.pause.C:
	case <-window.C:
	}
	// Whoever comes while the batch waits its turn still gets on it.
	if b.err = d.limiter.Wait(ctx, pace.Priority{}); b.err != nil {
		return
	}
	d.mu.Lock()
	if d.open == b {
		d.open = nil
	}
	ids := b.ids
	d.mu.Unlock()

	// The age of an answer counts from the question: what happened since may or
	// may not be in it.
	asked := time.Now()
	found, err := d.describe(ctx, ids)
	if err != nil {
		b.err = err
	} else {
		b.answers = make(map[string]answer, len(ids))
		for _, id := range ids {
			inst, ok := found[id]
			b.answers[id] = answer{instance: inst, found: ok, asked: asked}
			d.answers.Add(id, b.answers[id])
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(b)
}

// describe returns those of ids that EC2 knows. It asks by filter: asked by
// InstanceIds, EC2 refuses the whole call for one unknown id.
func (d *Directory) describe(ctx context.Context, ids []string) (map[string]Instance, error) {
	in := &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{{Name: aws.String("instance-id"), Values: ids}},
		MaxResults: aws.Int32(pageSize),
	}
	found := make(map[string]Instance, len(ids))
	for {
		page, err := d.call(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, reservation := range page.Reservations {
			for _, i := range reservation.Instances {
				inst := fromEC2(i)
				found[inst.ID] = inst
			}
		}
		if aws.ToString(page.NextToken) == "" {
			return found, nil
		}
		in.NextToken = page.NextToken
		if err := d.limiter.Wait(ctx, pace.Priority{}); err != nil {
			return nil, err
		}
	}
}

var errCallTimeout = fmt.Errorf("no answer within %v", callTimeout)

func (d *Directory) call(ctx context.Context, in *ec2.DescribeInstancesInput) (*ec2.DescribeInstancesOutput, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errCallTimeout)
	defer cancel()
	out, err := d.client.DescribeInstances(ctx, in)
	if err == nil {
		return out, nil
	}
	// EC2 alone has this code; STS, which may be asked for credentials within the
	// call, says AccessDenied.
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "UnauthorizedOperation" {
		return nil, fmt.Errorf("ec2 DescribeInstances: %w: %w", ErrDenied, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, fmt.Errorf("ec2 DescribeInstances: %w", err)
}
