package instance

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// reservationPattern keeps wildcards out of the filter, as idPattern does.
var reservationPattern = regexp.MustCompile(`^cr-[0-9a-f]{8,17}$`)

// reservationsKept is more than an account has that end at one time.
const reservationsKept = 32

// members are the instances of a Capacity Reservation.
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
	select {
	case d.listing <- struct{}{}:
		defer func() { <-d.listing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if known, ok := d.reservations.Get(id); ok {
		if m := known.(members); time.Since(m.asked) < maxAge {
			return m.instances, nil
		}
	}
	asked := time.Now()
	all, err := d.list(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list the instances of %s: %w", id, err)
	}
	d.reservations.Add(id, members{all, asked})
	return all, nil
}

// list asks EC2 for the instances of a Capacity Reservation, page by page.
func (d *Directory) list(ctx context.Context, id string) ([]Instance, error) {
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{
			{Name: aws.String("capacity-reservation-id"), Values: []string{id}},
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
