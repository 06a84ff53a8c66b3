package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// An Access is one right in the cluster.
type Access struct {
	Group, Resource, Subresource, Verb string
	// Namespaced rights are those in the namespace of the Lease.
	Namespaced bool
	Name       string // of the only object that the right is about; empty: all objects
}

// String is the right in the words of kubectl auth can-i.
func (a Access) String() string {
	text := a.Verb + " " + a.Resource
	if a.Group != "" {
		text += "." + a.Group
	}
	if a.Subresource != "" {
		text += "/" + a.Subresource
	}
	return text
}

// allow returns the rights to a resource, such as pods or pods/eviction.
func allow(group, resource string, verbs ...string) (all []Access) {
	resource, subresource, _ := strings.Cut(resource, "/")
	for _, verb := range verbs {
		all = append(all, Access{Group: group, Resource: resource, Subresource: subresource, Verb: verb})
	}
	return all
}

// OnNode are the rights that a handler needs which serves the node that it runs on. RBAC cannot
// limit them to that node.
func OnNode() []Access {
	return slices.Concat(Reporting(), allow("", "pods", "list", "watch", "delete"), allow("", "pods/eviction", "create"))
}

// Reporting are the rights of a handler that only reports to the leader what is to be done about its node.
func Reporting() []Access { return allow("", "nodes", "get", "list", "watch", "patch") }

// Accesses are the rights that the handler needs in the cluster: those that deploy/ grants.
// lease is the name of its Lease; empty: it stands for no election. events: it writes Events.
func Accesses(lease string, events bool) []Access {
	all := slices.Concat(OnNode(), // and which volumes are attached:
		allow("", "persistentvolumeclaims", "get"), allow("storage.k8s.io", "volumeattachments", "list", "watch"))
	if events {
		all = append(all, allow("", "events", "create", "patch")...)
	}
	if lease != "" {
		for _, a := range allow("coordination.k8s.io", "leases", "create", "get", "update") {
			if a.Namespaced = true; a.Verb != "create" { // which knows no names
				a.Name = lease
			}
			all = append(all, a)
		}
	}
	return all
}

// Disrupting is the right to say of a Job's pod, before it is deleted, that it is disrupted. A handler works
// without it.
func Disrupting() []Access { return allow("", "pods/status", "patch") }

// Conditions is the right to say on a node how far its drain is. A handler works without it.
func Conditions() []Access { return allow("", "nodes/status", "patch") }

// Surging are the further rights that a handler needs which begins rollouts of Deployments.
func Surging() []Access {
	return append(allow("apps", "replicasets", "get"), allow("apps", "deployments", "get", "patch")...)
}

// LoadBalancers are the further rights of a handler that waits for load balancers. Without them it does not wait.
func LoadBalancers() []Access { return allow("elbv2.k8s.aws", "targetgroupbindings", "list", "watch") }

// Delegating are the further rights that a handler needs which has Karpenter drain its nodes.
func Delegating() []Access { return allow("karpenter.sh", "nodeclaims", "get", "patch", "delete") }

// Granted asks the API server whether its caller has the right. The namespace matters to
// namespaced rights only.
func (a Access) Granted(
	ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface, namespace string,
) (bool, error) {
	review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a.attributes(namespace)},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

// GrantedTo asks the same for a ServiceAccount, by its name as a user. Its groups are those
// that its token gives it.
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
func (a Access) GrantedTo(
	ctx context.Context, user string, reviews typedauthorizationv1.SubjectAccessReviewInterface, namespace string,
) (bool, error) {
	groups := []string{"system:serviceaccounts", "system:authenticated"}
	if parts := strings.Split(user, ":"); len(parts) == 4 {
		groups = append(groups, "system:serviceaccounts:"+parts[2])
	}
	review, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: groups, ResourceAttributes: a.attributes(namespace),
		},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

func (a Access) attributes(namespace string) *authorizationv1.ResourceAttributes {
	attributes := &authorizationv1.ResourceAttributes{
		Group: a.Group, Resource: a.Resource, Subresource: a.Subresource, Verb: a.Verb, Name: a.Name,
	}
	if a.Namespaced {
		attributes.Namespace = namespace
	}
	return attributes
}

// MissingAccess is the error of [CheckAccess] that names the rights that are missing.
type MissingAccess []string

func (m MissingAccess) Error() string {
	const text = "this ServiceAccount must be allowed to %s; the ClusterRole and the Role in deploy/manifests allow it"
	return fmt.Sprintf(text, strings.Join(m, ", "))
}

// questionPause is the pause before the API server is asked for a right again.
var questionPause = retry.Backoff{First: 200 * time.Millisecond, Max: 5 * time.Second, Factor: 2, Jitter: 0.5}

// CheckAccess asks the API server for each right at once, and returns all that are denied as
// one error of type [MissingAccess]. A question that fails with an error that heals is asked again by itself, until ctx
// ends. So what was answered is kept, and any other error says why a question has no answer. What was denied until then
// is missing, whatever else has no answer. The namespace is that of the Lease.
func CheckAccess(
	ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface, namespace string, needed []Access,
	heals func(error) bool,
) error {
	denied := make([]bool, len(needed))
	group, ctx := errgroup.WithContext(ctx)
	for i, access := range needed {
		group.Go(func() error {
			for tries := 1; ; tries++ {
				granted, err := access.Granted(ctx, reviews, namespace)
				if err == nil {
					denied[i] = !granted
					return nil
				}
				err = fmt.Errorf("ask whether this ServiceAccount may %s: %w", access, err)
				if !heals(err) || retry.Sleep(ctx, questionPause.Pause(tries)) != nil {
					return err
				}
			}
		})
	}
	err := group.Wait()
	if err != nil && !heals(err) {
		return err
	}
	var missing MissingAccess
	for i, access := range needed {
		if !denied[i] {
			continue
		}
		text := access.String()
		if access.Namespaced {
			text += " in " + namespace
		}
		missing = append(missing, text)
	}
	if len(missing) > 0 {
		return missing
	}
	return err
}

// Why is what the API server says of a request that has failed. Of one that is forbidden it leaves out whose it was:
// these names are long, and what follows would be cut.
func Why(err error) string {
	if _, why, found := strings.Cut(err.Error(), " is forbidden: "); found && apierrors.IsForbidden(err) {
		return "forbidden: " + why
	}
	return err.Error()
}
