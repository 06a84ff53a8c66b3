package instance

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// Tagged returns the ids of the running instances that have the tag, whatever its value.
// It asks EC2 at each call, in pages of 200 instances, so that a large account takes
// time, not memory.
func (d *Directory) Tagged(ctx context.Context, tag string) ([]string, error) {
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{
			{Name: aws.String("tag-key"), Values: []string{tag}},
			{Name: aws.String("instance-state-name"), Values: []string{"running"}},
		},
		MaxResults: aws.Int32(batchSize),
	}
	var ids []string
	for {
		// No notice waits for this: it goes after all look-ups.
		if err := d.limiter.Wait(ctx, pace.Priority{Class: pace.Aside}); err != nil {
			return nil, err
		}
		page, err := d.call(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("list the instances with tag %s: %w", tag, err)
		}
		for _, reservation := range page.Reservations {
			for _, i := range reservation.Instances {
				ids = append(ids, aws.ToString(i.InstanceId))
			}
		}
		if aws.ToString(page.NextToken) == "" {
			return ids, nil
		}
		in.NextToken = page.NextToken
	}
}
