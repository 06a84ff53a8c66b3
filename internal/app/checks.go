package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// queueCheck finds what keeps the queue from being served. A replica that does not reach SQS
// does not stand for election: the other one may reach it.
func queueCheck(o *options.Options, q queue.Client, then ...check) check {
	return check{part: "queue", heals: awsHeals, then: then, run: func(ctx context.Context) error {
		if err := q.Check(ctx); err != nil || o.DryRun {
			return err
		}
		return q.CheckPermissions(ctx)
	}}
}

// instancesCheck finds what keeps instances from being looked up. A replica may lead without
// them: it finishes what nodes carry, and notices wait until EC2 answers.
func instancesCheck(o *options.Options, instances *instance.Directory) check {
	return check{
		part: "instances", background: true,
		heals: func(err error) bool { return !errors.Is(err, instance.ErrDenied) },
		run: func(ctx context.Context) error {
			if !o.CheckTag {
				return nil
			}
			return instances.Allowed(ctx)
		},
	}
}

// accesses are the rights without which the handler cannot do its work. The right to write
// Events is not among them: without it only the Events are missing. Nor is that of [kube.Disrupting], nor are
// those of surge-singletons: without them pods leave all the same, and the log says what is missing.
func accesses(o *options.Options) []kube.Access {
	switch {
	case o.IMDS && o.ReportOnly:
		return kube.Reporting()
	case o.IMDS:
		return kube.OnNode()
	}
	lease := ""
	if o.LeaderElect {
		lease = o.LeaseName
	}
	return kube.Accesses(lease, false)
}

// permissionsTimeout is how long the start-up waits for answers about rights, from an API server that is slow or fails
// now and then. A replica leads without an answer: it is a refusal that keeps it from its work, and no silence.
const permissionsTimeout = time.Minute

// permissionsCheck verifies the rights up front, because a forbidden watch fails without a
// message, and a forbidden eviction fails too late.
func permissionsCheck(client kube.Client, needed []kube.Access, namespace string, then ...check) check {
	return check{
		part: "permissions", background: true, timeout: permissionsTimeout, heals: kubeHeals, then: then,
		run: func(ctx context.Context) error {
			reviews := client.AuthorizationV1().SelfSubjectAccessReviews()
			err := kube.CheckAccess(ctx, reviews, namespace, needed, kubeHeals)
			if err != nil && !apierrors.IsForbidden(err) { // some clusters do not serve these reviews
				return fmt.Errorf("check the rights: %w", err)
			}
			return nil
		},
	}
}

// nodesCheck waits for the nodes.
func nodesCheck(client kube.Client, waitForSync func(context.Context) error) check {
	return syncCheck("nodes", "list the nodes", client.CoreV1().Nodes().List, waitForSync)
}

// volumesCheck waits for the volumes that are attached to nodes.
func volumesCheck(client kube.Client, waitForSync func(context.Context) error) check {
	list := client.StorageV1().VolumeAttachments().List
	return syncCheck("volumes", "list the volume attachments", list, waitForSync)
}

// syncCheck waits for the first list of a watch. The watch does not say why there is none: list
// lists one object, and does.
func syncCheck[L any](
	part, what string, list func(context.Context, metav1.ListOptions) (L, error), waitForSync func(context.Context) error,
) check {
	return check{part: part, heals: kubeHeals, run: func(ctx context.Context) error {
		if _, err := list(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return waitForSync(ctx)
	}}
}

// awsHeals reports whether a failed call to AWS may work later by itself: it had no answer, or
// half of one, or the answer says so.
func awsHeals(err error) bool {
	switch {
	case wrongAddress(err):
		return false
	case strings.Contains(err.Error(), "no EC2 IMDS role found"):
		// Where nothing else gives credentials, the SDK asks the instance metadata. The
		// instance has no role, or the hop limit or a network policy keeps pods from it. The
		// SDK has no type for this error.
		return false
	case errors.Is(err, context.DeadlineExceeded):
		return true
	}
	if _, undecodable := errors.AsType[*smithy.DeserializationError](err); undecodable {
		return true
	}
	// "This is often a transient error caused by network conditions. Retry the request".
	// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
	further := awsretry.RetryableErrorCode{Codes: map[string]struct{}{"IDPCommunicationError": {}}}
	retryable := awsretry.IsErrorRetryables(append(slices.Clone(awsretry.DefaultRetryables), further))
	return retryable.IsErrorRetryable(err) == aws.TrueTernary
}

// kubeHeals reports whether a failed request to the API server may work later by itself.
func kubeHeals(err error) bool {
	_, missing := errors.AsType[kube.MissingAccess](err)
	return !missing && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !wrongAddress(err)
}

// wrongAddress reports whether the server that was asked does not exist or is another one: DNS
// answers that there is no such name, or the certificate does not match.
func wrongAddress(err error) bool {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return true
	}
	_, other := errors.AsType[*tls.CertificateVerificationError](err)
	return other
}
