// Package instance looks up EC2 instances, in batches and with a cache.
package instance

import (
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// An Instance is what DescribeInstances said about it. It is plain data, and shared by
// all callers: nobody may change its Tags.
type Instance struct {
	ID    string
	State string // as EC2 names it: pending, running, shutting-down, terminated, stopping, stopped

	Tags     map[string]string // among them aws:autoscaling:groupName
	Launched time.Time         // the latest launch: a stopped instance that starts again has a new one

	Type             string
	Lifecycle        string // spot, scheduled, capacity-block; empty for an on-demand instance
	AvailabilityZone string

	// Empty where the instance has none, or none any more: EC2 takes the names
	// and addresses of a terminated instance away.
	PrivateDNSName, PublicDNSName string
	PrivateIPv4, PublicIPv4       string
}

func fromEC2(in types.Instance) Instance {
	out := Instance{
		ID:             aws.ToString(in.InstanceId),
		Tags:           make(map[string]string, len(in.Tags)),
		Launched:       aws.ToTime(in.LaunchTime),
		Type:           string(in.InstanceType),
		Lifecycle:      string(in.InstanceLifecycle),
		PrivateDNSName: aws.ToString(in.PrivateDnsName),
		PublicDNSName:  aws.ToString(in.PublicDnsName),
		PrivateIPv4:    aws.ToString(in.PrivateIpAddress),
		PublicIPv4:     aws.ToString(in.PublicIpAddress),
	}
	if in.State != nil {
		out.State = string(in.State.Name)
	}
	if in.Placement != nil {
		out.AvailabilityZone = aws.ToString(in.Placement.AvailabilityZone)
	}
	for _, tag := range in.Tags {
		out.Tags[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return out
}
