package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	smithylog "github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	"github.com/go-logr/logr"
	"golang.org/x/net/http/httpproxy"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// awsClients are the clients of the four services. All but that of SQS are single
// calls, as functions: because text/template looks methods up by name, the linker keeps every
// method of a type that an interface holds, and EC2's client has seven hundred: 19 MB.
type awsClients struct {
	sqs       *sqs.Client
	instances describeInstances
	statuses  describeInstanceStatus
	targets   describeTargetHealth
	scaling   autoScaling
}

// newAWSClients returns the clients that the options ask for. Each of their tries is counted.
func newAWSClients(
	ctx context.Context, o *options.Options, log logr.Logger, m *telemetry.Metrics,
) (awsClients, error) {
	counted := awsconfig.WithAPIOptions([]func(*middleware.Stack) error{m.AWS})
	cfg, err := AWSConfig(ctx, o, counted, awsconfig.WithLogger(logging.AWS(log)))
	if err != nil {
		return awsClients{}, err
	}
	groups, machines := autoscaling.NewFromConfig(cfg), ec2.NewFromConfig(cfg)
	return awsClients{
		sqs:       SQSClient(cfg, o),
		instances: machines.DescribeInstances,
		statuses:  machines.DescribeInstanceStatus,
		targets:   elb.NewFromConfig(cfg).DescribeTargetHealth,
		scaling: autoScaling{
			groups.DescribeAutoScalingGroups, groups.DescribeAutoScalingInstances, groups.SetInstanceHealth,
			groups.DescribeLifecycleHooks, groups.RecordLifecycleActionHeartbeat, groups.CompleteLifecycleAction,
		},
	}, nil
}

// A call is one operation of a client of the SDK.
type call[In, Out, Options any] func(context.Context, *In, ...func(*Options)) (*Out, error)

type describeInstances call[ec2.DescribeInstancesInput, ec2.DescribeInstancesOutput, ec2.Options]

// DescribeInstances implements instance.API.
func (d describeInstances) DescribeInstances(
	ctx context.Context, in *ec2.DescribeInstancesInput, opts ...func(*ec2.Options),
) (*ec2.DescribeInstancesOutput, error) {
	return d(ctx, in, opts...)
}

type describeInstanceStatus call[
	ec2.DescribeInstanceStatusInput, ec2.DescribeInstanceStatusOutput, ec2.Options]

// DescribeInstanceStatus implements instance.StatusAPI.
func (d describeInstanceStatus) DescribeInstanceStatus(
	ctx context.Context, in *ec2.DescribeInstanceStatusInput, opts ...func(*ec2.Options),
) (*ec2.DescribeInstanceStatusOutput, error) {
	return d(ctx, in, opts...)
}

type describeTargetHealth call[elb.DescribeTargetHealthInput, elb.DescribeTargetHealthOutput, elb.Options]

// DescribeTargetHealth implements loadbalancer.API.
func (d describeTargetHealth) DescribeTargetHealth(
	ctx context.Context, in *elb.DescribeTargetHealthInput, opts ...func(*elb.Options),
) (*elb.DescribeTargetHealthOutput, error) {
	return d(ctx, in, opts...)
}

// scaling is a call of Auto Scaling.
type scaling[In, Out any] = call[In, Out, autoscaling.Options]

// autoScaling implements asg.API and replacement.API.
type autoScaling struct {
	groups    scaling[autoscaling.DescribeAutoScalingGroupsInput, autoscaling.DescribeAutoScalingGroupsOutput]
	instances scaling[autoscaling.DescribeAutoScalingInstancesInput, autoscaling.DescribeAutoScalingInstancesOutput]
	health    scaling[autoscaling.SetInstanceHealthInput, autoscaling.SetInstanceHealthOutput]
	hooks     scaling[autoscaling.DescribeLifecycleHooksInput, autoscaling.DescribeLifecycleHooksOutput]
	heartbeat scaling[
		autoscaling.RecordLifecycleActionHeartbeatInput, autoscaling.RecordLifecycleActionHeartbeatOutput]
	complete scaling[autoscaling.CompleteLifecycleActionInput, autoscaling.CompleteLifecycleActionOutput]
}

// DescribeAutoScalingGroups implements asg.API and replacement.API.
func (s autoScaling) DescribeAutoScalingGroups(
	ctx context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, opts ...func(*autoscaling.Options),
) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	return s.groups(ctx, in, opts...)
}

// DescribeLifecycleHooks implements asg.API.
func (s autoScaling) DescribeLifecycleHooks(
	ctx context.Context, in *autoscaling.DescribeLifecycleHooksInput, opts ...func(*autoscaling.Options),
) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	return s.hooks(ctx, in, opts...)
}

// RecordLifecycleActionHeartbeat implements asg.API.
func (s autoScaling) RecordLifecycleActionHeartbeat(
	ctx context.Context, in *autoscaling.RecordLifecycleActionHeartbeatInput, opts ...func(*autoscaling.Options),
) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	return s.heartbeat(ctx, in, opts...)
}

// CompleteLifecycleAction implements asg.API.
func (s autoScaling) CompleteLifecycleAction(
	ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, opts ...func(*autoscaling.Options),
) (*autoscaling.CompleteLifecycleActionOutput, error) {
	return s.complete(ctx, in, opts...)
}

// DescribeAutoScalingInstances implements replacement.API.
func (s autoScaling) DescribeAutoScalingInstances(
	ctx context.Context, in *autoscaling.DescribeAutoScalingInstancesInput, opts ...func(*autoscaling.Options),
) (*autoscaling.DescribeAutoScalingInstancesOutput, error) {
	return s.instances(ctx, in, opts...)
}

// SetInstanceHealth implements replacement.API.
func (s autoScaling) SetInstanceHealth(
	ctx context.Context, in *autoscaling.SetInstanceHealthInput, opts ...func(*autoscaling.Options),
) (*autoscaling.SetInstanceHealthOutput, error) {
	return s.health(ctx, in, opts...)
}

// AWSConfig loads the SDK's default configuration: environment, profile, web identity
// (IRSA), container credentials (EKS Pod Identity), instance role. What more says comes on
// top of the options.
func AWSConfig(
	ctx context.Context, o *options.Options, more ...func(*awsconfig.LoadOptions) error,
) (aws.Config, error) {
	const (
		connections = 64 // to one service: in a storm many receives and batches are in flight
		connectTime = 5 * time.Second
		// The SDK bounds no call. A call for credentials outlives those who wait for it, and
		// if its answer was lost, all later calls would wait for it too. The longest answer
		// is that of a long poll.
		answerTime = 30 * time.Second
	)
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.Proxy = proxyOf(httpproxy.FromEnvironment())
		t.MaxIdleConnsPerHost = connections
		t.ResponseHeaderTimeout = answerTime
	}).WithDialerOptions(func(d *net.Dialer) {
		d.Timeout = connectTime
	})
	load := append([]func(*awsconfig.LoadOptions) error{
		awsconfig.WithRegion(o.Region),
		awsconfig.WithHTTPClient(transport),
		// Otherwise it makes a client of its own.
		awsconfig.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = transport }),
		awsconfig.WithRetryMode(aws.RetryModeStandard),
		awsconfig.WithAppID(options.ProgramName),
		awsconfig.WithLogger(smithylog.Nop{}),
	}, more...)
	if o.AWSEndpoint != "" {
		load = append(load, awsconfig.WithBaseEndpoint(o.AWSEndpoint))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return cfg, fmt.Errorf("load the AWS configuration: %w", err)
	}
	return cfg, nil
}

// proxyOf returns the proxy of a request, as http.ProxyFromEnvironment does. What hands out credentials has an address
// of the machine itself: EKS Pod Identity, ECS, the instance metadata. No proxy reaches it, and none is to see the
// answer.
func proxyOf(env *httpproxy.Config) func(*http.Request) (*url.URL, error) {
	// https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
	local := netip.MustParsePrefix("fd00:ec2::/32")
	proxy := env.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) {
		address, err := netip.ParseAddr(r.URL.Hostname())
		if err == nil && (address.IsLinkLocalUnicast() || local.Contains(address)) {
			return nil, nil
		}
		return proxy(r.URL)
	}
}

// SQSClient returns a client of the service that has the queue.
func SQSClient(cfg aws.Config, o *options.Options) *sqs.Client {
	return sqs.NewFromConfig(cfg, func(s *sqs.Options) {
		if o.SQSEndpoint != "" {
			s.BaseEndpoint = &o.SQSEndpoint
		}
	})
}
