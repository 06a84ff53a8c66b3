package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Gatherer asks AWS and the cluster for the facts.
type Gatherer struct {
	Options Options
	AWS     AWS
	Cluster Cluster
	// Patience bounds it all: what has no answer by then is unknown.
	Patience time.Duration
}

// Gather asks all at once, as far as one question does not need the answer of
// another, and returns when the last has been answered or Patience is over. It
// changes nothing.
func (g *Gatherer) Gather(ctx context.Context) *Facts {
	ctx, cancel := context.WithTimeoutCause(ctx, g.Patience, fmt.Errorf("no answer within %s", g.Patience))
	defer cancel()
	f := &Facts{Options: g.Options}
	var all sync.WaitGroup
	var caller, groups sync.WaitGroup // what others wait for
	caller.Go(func() { f.Caller = g.AWS.caller(ctx) })
	groups.Go(func() {
		f.Nodes = g.Cluster.nodes(ctx)
		f.Instances = g.AWS.instances(ctx, f.Nodes)
		f.Groups = g.AWS.groups(ctx, f.Instances, g.Options.HookNames)
	})
	all.Go(func() {
		f.Queue = g.AWS.queue(ctx, g.Options.QueueURL)
		if f.Queue.Err == nil && f.Queue.Value.KeyID != "" {
			f.Key = g.AWS.key(ctx, f.Queue.Value.KeyID)
		}
		arn := f.Queue.Value.ARN
		if arn == "" {
			caller.Wait() // it knows the partition
			arn = "arn:" + f.partition() + ":sqs:" + g.Options.Region + ":" + g.Options.Account + ":" + g.Options.QueueName
		}
		f.Rules = g.AWS.rules(ctx, arn)
	})
	all.Go(func() { f.Pods = g.Cluster.pods(ctx) })
	all.Go(func() { f.User = g.Cluster.user(ctx) })
	all.Go(func() { f.Access = g.Cluster.access(ctx, g.Options) })
	all.Go(func() { f.Lease = g.Cluster.lease(ctx, g.Options.Namespace, g.Options.Lease) })
	var queueTries []Permission
	all.Go(func() { queueTries = g.AWS.queuePermissions(ctx, g.Options.QueueURL) })
	groups.Wait()
	hookTries := g.AWS.hookPermissions(ctx, f.Groups, g.Options)
	caller.Wait()
	all.Wait()
	f.Permissions = append(queueTries, hookTries...)
	f.Permissions = append(f.Permissions, Permission{Action: "sqs:GetQueueAttributes", Err: onlyDenial(f.Queue.Err)})
	if f.Nodes.Err == nil {
		f.Permissions = append(f.Permissions, Permission{Action: "ec2:DescribeInstances", Needed: g.Options.CheckTag, Err: onlyDenial(f.Instances.Err)})
	}
	f.Now = time.Now()
	return f
}

// onlyDenial leaves other errors to the checks that they belong to.
func onlyDenial(err error) error {
	if denied(err) {
		return err
	}
	return nil
}
