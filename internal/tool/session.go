package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// requestTimeout is how long a tool waits for an answer of the API server, and
// awsTimeout for all that it asks of AWS, before it goes on.
const (
	requestTimeout = 10 * time.Second
	awsTimeout     = 20 * time.Second
)

// A Session has what a tool works with: the options of a handler, the cluster and the
// AWS account.
type Session struct {
	*options.Options
	origin    *Origin
	namespace string // of the handler, if origin has no release
	file      doctor.Policy
	client    kube.Client
	aws       aws.Config // empty before connectAWS, as is gatherer
	gatherer  *doctor.Gatherer
	identity  identity
	idle      string               // why the handler acts on no notice; empty: it does, or nobody has looked
	leader    types.NamespacedName // the pod that drains nodes; zero: it is not known
	lease     types.NamespacedName // of the handler; zero before readLease
}

// NewSession connects to the cluster. The logs of the Kubernetes libraries are discarded:
// what they say is in the answers.
func NewSession(ctx context.Context, c *options.Options, origin *Origin) (*Session, error) {
	logging.Redirect(logr.Discard())
	client, err := connect(c)
	if err != nil {
		return nil, err
	}
	s := &Session{Options: c, origin: origin, client: client}
	_, s.namespace, _ = app.RESTConfig(c) // connect has its error
	s.identity.kubernetes = kubernetesIdentity(ctx, client)
	return s, s.readPolicy(ctx)
}

// connectAWS prepares to ask AWS and finds out under which identity.
func (s *Session) connectAWS(ctx context.Context) error {
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	var err error
	if s.aws, err = app.AWSConfig(ctx, s.Options); err != nil {
		return err
	}
	s.gatherer = NewGatherer(s.aws, s.Options, "")
	caller, err := s.gatherer.Caller(ctx)
	if caller.Source == "" && err != nil {
		return errors.New("no AWS credentials were found; run doctor for details")
	}
	s.identity.aws = cmp.Or(caller.ARN, "an unknown identity")
	return nil
}

func withAWSTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, awsTimeout, fmt.Errorf("no answer within %s", awsTimeout))
}

// connect returns clients for the cluster.
func connect(c *options.Options) (*kube.Clients, error) {
	config, _, err := app.RESTConfig(c)
	if err != nil {
		return nil, err
	}
	config.Timeout = requestTimeout
	config.Wrap(newTrimmer().Wrap)
	return kube.New(config)
}

// newTrimmer makes smaller what tenants write and the handler's role may list: a tool may run in the handler's
// container.
func newTrimmer() *kube.Trimmer {
	const largeBytes = 8 << 20 // those that are decoded at once
	return kube.NewTrimmer(largeBytes,
		kube.TrimmedResource("api/v1", "pods", rehearsal.TrimPod),
		kube.TrimmedResource("apis/policy/v1", "poddisruptionbudgets", rehearsal.TrimBudget),
		loadbalancer.OfCluster(nil).Trimmed(loadbalancer.Trim),
	)
}

// kubernetesIdentity returns whose rights the client has.
func kubernetesIdentity(ctx context.Context, client kube.Client) string {
	reviews := client.AuthenticationV1().SelfSubjectReviews()
	review, err := reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "an unknown user"
	}
	return review.Status.UserInfo.Username
}

// NewGatherer returns what asks AWS and the cluster for the facts that doctor judges,
// with the options c and the credentials of cfg. version is that of this program.
func NewGatherer(cfg aws.Config, c *options.Options, version string) *doctor.Gatherer {
	const timeout = 30 * time.Second
	logging.Redirect(logr.Discard()) // what they say is in the answers
	g := &doctor.Gatherer{
		Patience: timeout,
		Options: doctor.Options{
			QueueURL: c.Queue.Text, QueueName: c.Queue.Name, Account: c.Queue.Account,
			Region: c.Region, Partition: partitionOf(c.Region), EventAccounts: c.EventAccounts, NoQueue: c.Queue.None(),
			CheckTag: c.CheckTag, ManagedTag: c.ManagedTag, ClusterName: c.ClusterName, Visibility: c.VisibilityTimeout,
			HeartbeatInterval: c.HeartbeatInterval, HeartbeatUntil: c.HeartbeatUntil, HookNames: c.HookNames,
			Poll: c.StatusInterval > 0, Excludes: c.ExcludeFromLoadBalancers != decision.ExcludeNone,
			LeaderElect: c.LeaderElect, DryRun: c.DryRun, Sweep: c.SweepInterval > 0,
			EmitEvents: c.EmitEvents, Conditions: c.NodeConditions,
			Surge: c.SurgeSingletons, ByKarpenter: c.DrainByKarpenter,
			Lease: c.LeaseName, Version: version,
		},
		AWS: doctor.AWS{Config: cfg, SQSEndpoint: c.SQSEndpoint},
	}
	_, g.Options.Namespace, _ = app.RESTConfig(c) // connect has its error
	clients, err := connect(c)
	if err != nil {
		g.Cluster.Err = err
		return g
	}
	g.Cluster.Client, g.Cluster.Version = clients, clients.Version
	g.Cluster.Bindings = loadbalancer.OfCluster(clients.CoreV1().RESTClient())
	return g
}

// partitionOf returns the partition of a region.
// https://docs.aws.amazon.com/general/latest/gr/rande.html
func partitionOf(region string) string {
	for _, p := range []struct{ prefix, partition string }{
		{"cn-", "aws-cn"},
		{"us-gov-", "aws-us-gov"},
		{"us-iso-", "aws-iso"},
		{"us-isob-", "aws-iso-b"},
		{"eu-isoe-", "aws-iso-e"},
		{"us-isof-", "aws-iso-f"},
		{"eusc-", "aws-eusc"},
	} {
		if strings.HasPrefix(region, p.prefix) {
			return p.partition
		}
	}
	return "aws"
}
