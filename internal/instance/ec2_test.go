package instance

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
)

// fakeEC2 answers DescribeInstances as EC2 does: an unknown id fails a call by
// ids and not one by filter, a filter takes 200 values, an answer that does not
// fit comes in pages.
type fakeEC2 struct {
	latency  time.Duration
	pageSize int // 0 is what the caller asked for

	mu        sync.Mutex
	instances map[string]types.Instance
	faults    []error // of the next calls; nil is none
	calls     []call
}

type call struct {
	at  time.Time
	ids []string
}

func newFakeEC2(ids ...string) *fakeEC2 {
	f := &fakeEC2{instances: map[string]types.Instance{}}
	for _, id := range ids {
		f.launch(types.Instance{InstanceId: aws.String(id)})
	}
	return f
}

func (f *fakeEC2) launch(in types.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instances[aws.ToString(in.InstanceId)] = in
}

func (f *fakeEC2) failNext(faults ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, faults...)
}

func (f *fakeEC2) made() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeEC2) DescribeInstances(ctx context.Context, in *ec2.DescribeInstancesInput, _ ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error) {
	asked := slices.Clone(in.InstanceIds)
	for _, filter := range in.Filters {
		if aws.ToString(filter.Name) != "instance-id" {
			return nil, refusal("InvalidParameterValue", "unknown filter "+aws.ToString(filter.Name))
		}
		if len(filter.Values) > 200 {
			return nil, refusal("FilterLimitExceeded", "The maximum number of filter values specified on a single call is 200")
		}
		asked = append(asked, filter.Values...)
	}
	f.mu.Lock()
	f.calls = append(f.calls, call{at: time.Now(), ids: asked})
	var fault error
	if len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	f.mu.Unlock()
	if f.latency > 0 {
		select {
		case <-ctx.Done():
			return nil, operation(&smithy.CanceledError{Err: ctx.Err()})
		case <-time.After(f.latency):
		}
	}
	if fault != nil {
		return nil, operation(fault)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range in.InstanceIds {
		if _, ok := f.instances[id]; !ok {
			return nil, refusal("InvalidInstanceID.NotFound", fmt.Sprintf("The instance ID '%s' does not exist", id))
		}
	}
	var found []types.Instance
	for _, id := range slices.Sorted(maps.Keys(f.instances)) {
		if slices.Contains(asked, id) && id > aws.ToString(in.NextToken) {
			found = append(found, f.instances[id])
		}
	}
	out := &ec2.DescribeInstancesOutput{}
	if size := cmp.Or(f.pageSize, int(aws.ToInt32(in.MaxResults))); len(found) > size {
		found = found[:size]
		out.NextToken = found[size-1].InstanceId
	}
	for _, i := range found {
		out.Reservations = append(out.Reservations, types.Reservation{Instances: []types.Instance{i}})
	}
	return out, nil
}

func refusal(code, message string) error {
	return operation(&smithy.GenericAPIError{Code: code, Message: message})
}

func operation(err error) error {
	return &smithy.OperationError{ServiceID: "EC2", OperationName: "DescribeInstances", Err: err}
}
