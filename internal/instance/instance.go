// Package instance looks up EC2 instances, in batches and with a cache.
package instance

import (
	"cmp"
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

	Type      string
	Lifecycle string // how it was bought: spot, scheduled, capacity-block, on-demand; empty: not known
	Host      string // the Dedicated Host that it runs on; empty: none

	PrivateDNSName string // empty where it has none any more: EC2 takes the name of a terminated instance away
}

// How an instance was bought. EC2 has no word for the second; it is that of the instance metadata.
const (
	Spot     = string(types.InstanceLifecycleTypeSpot)
	onDemand = "on-demand"
)

// LastLaunch is when the instance was started last. It is in whole seconds, as events are.
func (i *Instance) LastLaunch() time.Time { return i.Launched.Truncate(time.Second) }

// NotSpot reports whether the instance is known to be no spot instance.
func (i *Instance) NotSpot() bool { return i.Lifecycle != "" && i.Lifecycle != Spot }

// Alive reports whether the instance runs, or is about to.
func (i *Instance) Alive() bool { return i.State == "pending" || i.State == "running" }

func fromEC2(in types.Instance) Instance {
	out := Instance{
		ID:             aws.ToString(in.InstanceId),
		Tags:           make(map[string]string, len(in.Tags)),
		Launched:       aws.ToTime(in.LaunchTime),
		Type:           string(in.InstanceType),
		Lifecycle:      cmp.Or(string(in.InstanceLifecycle), onDemand),
		PrivateDNSName: aws.ToString(in.PrivateDnsName),
	}
	if in.State != nil {
		out.State = string(in.State.Name)
	}
	if in.Placement != nil {
		out.Host = aws.ToString(in.Placement.HostId)
	}
	for _, tag := range in.Tags {
		out.Tags[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return out
}
