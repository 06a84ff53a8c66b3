package tool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
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
	origin   *Origin
	file     policySource
	client   kube.Client
	aws      aws.Config // empty before connectAWS, as is gatherer
	gatherer *doctor.Gatherer
	identity identity
	paused   string // what it means that the handler is paused; empty: it is not, or nobody has looked
}

// NewSession connects to the cluster. The logs of the Kubernetes libraries are discarded:
// what they say is in the answers.
func NewSession(ctx context.Context, c *options.Options, origin *Origin) (*Session, error) {
	klog.SetLogger(logr.Discard())
	client, err := connect(c, requestTimeout)
	if err != nil {
		return nil, err
	}
	who := identity{kubernetes: kubernetesIdentity(ctx, client)}
	s := &Session{Options: c, origin: origin, client: client, identity: who}
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
	s.identity.aws, err = awsIdentity(ctx, s.aws)
	return err
}

func withAWSTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, awsTimeout, fmt.Errorf("no answer within %s", awsTimeout))
}

// connect returns clients for the cluster. timeout bounds a request; zero is for watches.
func connect(c *options.Options, timeout time.Duration) (*kube.Clients, error) {
	config, _, err := app.RESTConfig(c)
	if err != nil {
		return nil, err
	}
	config.Timeout = timeout
	return kube.New(config)
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

// awsIdentity returns who calls AWS with the configuration; errNoCredentials if nobody does.
func awsIdentity(ctx context.Context, cfg aws.Config) (string, error) {
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return "", errNoCredentials
	}
	out, err := sts.NewFromConfig(cfg).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "an unknown identity", nil
	}
	return aws.ToString(out.Arn), nil
}

var errNoCredentials = errors.New("no AWS credentials were found; run doctor for details")
