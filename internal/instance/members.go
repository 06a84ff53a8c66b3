package instance

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// These keep wildcards out of the filter, as idPattern does.
var (
	reservationPattern = regexp.MustCompile(`^cr-[0-9a-f]{8,17}$`)
	hostPattern        = regexp.MustCompile(`^h-[0-9a-f]{8,17}$`)
)

// membersKept is more than an account has Capacity Reservations that end at one time.
const membersKept = 32

// members are the instances of a Capacity Reservation, or of Dedicated Hosts.
type members struct {
	instances []Instance
	asked     time.Time
}

// InReservation returns the instances of a Capacity Reservation that are not on their way
// to terminate. An answer younger than maxAge is returned without a call. What EC2 says of
// the instances is remembered, so that a Get right after it makes no call. An error wraps
// ErrDenied if the role lacks the permission. Nobody may change what is returned.
func (d *Directory) InReservation(ctx context.Context, id string, maxAge time.Duration) ([]Instance, error) {
	if !reservationPattern.MatchString(id) {
		return nil, fmt.Errorf("list the instances of %q: not the id of a Capacity Reservation", id)
	}
	return d.membersOf(ctx, "capacity-reservation-id", []string{id}, maxAge)
}

// OnHosts returns the instances on Dedicated Hosts, 200 at most, in the manner of InReservation.
func (d *Directory) OnHosts(ctx context.Context, ids []string, maxAge time.Duration) ([]Instance, error) {
	for _, id := range ids {
		if !hostPattern.MatchString(id) {
			return nil, fmt.Errorf("list the instances of %q: not the id of a Dedicated Host", id)
		}
	}
	return d.membersOf(ctx, "host-id", ids, maxAge)
}

func (d *Directory) membersOf(
	ctx context.Context, filter string, ids []string, maxAge time.Duration,
) ([]Instance, error) {
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
	all, err := d.list(ctx, filter, ids)
	if err != nil {
		return nil, fmt.Errorf("list the instances of %s: %w", key, err)
	}
	d.members.Add(key, members{all, asked})
	return all, nil
}

// list asks EC2 for the instances that pass the filter, page by page.
func (d *Directory) list(ctx context.Context, filter string, values []string) ([]Instance, error) {
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{
			{Name: aws.String(filter), Values: values},
			{Name: aws.String("instance-state-name"), Values: []string{"pending", "running", "stopping", "stopped"}},
		},
		MaxResults: aws.Int32(pageSize),
	}
	if err := d.limiter.Wait(ctx, pace.Priority{}); err != nil {
		return nil, err
	}
	var all []Instance
	err := d.pages(ctx, in, pace.Priority{}, func(inst Instance, asked time.Time) {
		d.answers.Add(inst.ID, &answer{instance: inst, found: true, asked: asked})
		all = append(all, inst)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
