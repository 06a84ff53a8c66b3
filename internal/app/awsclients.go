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

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// awsClients are the clients of the four services. All but that of SQS are single calls, as functions; see
// [instance.API].
type awsClients struct {
	sqs       *sqs.Client
	instances instance.API
	statuses  instance.StatusAPI
	targets   loadbalancer.API
	scaling   asg.API
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
	machines := ec2.NewFromConfig(cfg)
	return awsClients{
		sqs:       SQSClient(cfg, o),
		instances: machines.DescribeInstances,
		statuses:  machines.DescribeInstanceStatus,
		targets:   elb.NewFromConfig(cfg).DescribeTargetHealth,
		scaling:   asg.Of(autoscaling.NewFromConfig(cfg)),
	}, nil
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
