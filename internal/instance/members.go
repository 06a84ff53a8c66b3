package instance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// membersKept is more than an account has Capacity Reservations that end at one time.
const membersKept = 32

// members are the instances of a Capacity Reservation, or of Dedicated Hosts.
type members struct {
	instances []Instance
	asked     time.Time
}

// Members returns the instances of a Capacity Reservation that are not on their way to terminate or, if hosts are
// given, those on these Dedicated Hosts, 200 at most. An answer younger than maxAge is returned without a call. What
// EC2 says of the instances is remembered, so that a Get right after it makes no call. An error wraps ErrDenied if the
// role lacks the permission. Nobody may change what is returned.
func (d *Directory) Members(
	ctx context.Context, reservation string, hosts []string, maxAge time.Duration,
) ([]Instance, error) {
	filter, ids, prefix, what := "capacity-reservation-id", []string{reservation}, "cr-", "Capacity Reservation"
	if len(hosts) > 0 {
		filter, ids, prefix, what = "host-id", hosts, "h-", "Dedicated Host"
	}
	for _, id := range ids {
		if !notice.IsID(id, prefix) {
			return nil, fmt.Errorf("list the instances of %q: not the id of a %s", id, what)
		}
	}
	select {
	case d.listing <- struct{}{}:
		defer func() { <-d.listing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	key := strings.Join(ids, " ")
	if known, ok := d.members.Get(key); ok {
		if m := known.(members); time.Since(m.asked) < maxAge {
			return m.instances, nil
		}
	}
	asked := time.Now()
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{
			{Name: aws.String(filter), Values: ids},
			{Name: aws.String("instance-state-name"), Values: []string{"pending", "running", "stopping", "stopped"}},
		},
		MaxResults: aws.Int32(pageSize),
	}
	var all []Instance
	err := d.list(ctx, in, pace.Priority{}, func(inst Instance, asked time.Time) {
		d.answers.Add(inst.ID, &answer{instance: inst, found: true, asked: asked})
		all = append(all, inst)
	})
	if err != nil {
		return nil, fmt.Errorf("list the instances of %s: %w", key, err)
	}
	d.members.Add(key, members{all, asked})
	return all, nil
}

// list waits for its turn, and calls visit as pages does.
func (d *Directory) list(
	ctx context.Context, in *ec2.DescribeInstancesInput, p pace.Priority, visit func(inst Instance, asked time.Time),
) error {
	if err := d.limiter.Wait(ctx, p); err != nil {
		return err
	}
	return d.pages(ctx, in, p, visit)
}

// Tagged returns the ids of the running instances that have the tag, with any value.
// It asks EC2 at each call, in pages of 200 instances, so that a large account takes
// time, not memory. No notice waits for this: it goes after all look-ups. Known knows the answers.
func (d *Directory) Tagged(ctx context.Context, tag string) (ids []string, err error) {
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{
			{Name: aws.String("tag-key"), Values: []string{tag}},
			{Name: aws.String("instance-state-name"), Values: []string{"running"}},
		},
		MaxResults: aws.Int32(batchSize),
	}
	last := pace.Priority{Class: pace.Aside}
	err = d.list(ctx, in, last, func(inst Instance, asked time.Time) {
		d.listed.Add(inst.ID, &answer{instance: inst, found: true, asked: asked})
		ids = append(ids, inst.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("list the instances with tag %s: %w", tag, err)
	}
	return ids, nil
}
