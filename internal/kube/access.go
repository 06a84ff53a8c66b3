package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
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

// volumeAttachments are the rights to find out which volumes are attached.
var volumeAttachments = []Access{
	{Resource: "persistentvolumeclaims", Verb: "get"},
	{Group: "storage.k8s.io", Resource: "volumeattachments", Verb: "list"},
	{Group: "storage.k8s.io", Resource: "volumeattachments", Verb: "watch"},
}

// OnNode are the rights that a handler needs which serves the node that it runs on. RBAC cannot
// limit them to that node.
func OnNode() []Access {
	return []Access{
		{Resource: "nodes", Verb: "get"},
		{Resource: "nodes", Verb: "list"},
		{Resource: "nodes", Verb: "watch"},
		{Resource: "nodes", Verb: "patch"},
		{Resource: "pods", Verb: "list"},
		{Resource: "pods", Verb: "watch"},
		{Resource: "pods", Verb: "delete"},
		{Resource: "pods", Subresource: "eviction", Verb: "create"},
	}
}

// Accesses are the rights that the handler needs in the cluster: those that deploy/ grants.
// lease is the name of its Lease; empty: it stands for no election. events: it writes Events.
func Accesses(lease string, events bool) []Access {
	const coordination = "coordination.k8s.io"
	all := append(OnNode(), volumeAttachments...)
	if events {
		all = append(all, Access{Resource: "events", Verb: "create"}, Access{Resource: "events", Verb: "patch"})
	}
	if lease != "" {
		all = append(all,
			Access{Group: coordination, Resource: "leases", Verb: "create", Namespaced: true},
			Access{Group: coordination, Resource: "leases", Verb: "get", Namespaced: true, Name: lease},
			Access{Group: coordination, Resource: "leases", Verb: "update", Namespaced: true, Name: lease})
	}
	return all
}

// Disrupting is the right to say of a Job's pod, before it is deleted, that it is disrupted. A handler works
// without it.
func Disrupting() []Access { return []Access{{Resource: "pods", Subresource: "status", Verb: "patch"}} }

// Conditions is the right to say on a node how far its drain is. A handler works without it.
func Conditions() []Access {
	return []Access{{Resource: "nodes", Subresource: "status", Verb: "patch"}}
}

// Surging are the further rights that a handler needs which begins rollouts of Deployments.
func Surging() []Access {
	const apps = "apps"
	return []Access{
		{Group: apps, Resource: "replicasets", Verb: "get"},
		{Group: apps, Resource: "deployments", Verb: "get"},
		{Group: apps, Resource: "deployments", Verb: "patch"},
	}
}

// LoadBalancers are the further rights of a handler that waits for load balancers. Without them it does not wait.
func LoadBalancers() []Access {
	const elb, bindings = "elbv2.k8s.aws", "targetgroupbindings"
	return []Access{
		{Group: elb, Resource: bindings, Verb: "list"},
		{Group: elb, Resource: bindings, Verb: "watch"},
	}
}

// Delegating are the further rights that a handler needs which has Karpenter drain its nodes.
func Delegating() []Access {
	const karpenter = "karpenter.sh"
	return []Access{
		{Group: karpenter, Resource: "nodeclaims", Verb: "get"},
		{Group: karpenter, Resource: "nodeclaims", Verb: "patch"},
		{Group: karpenter, Resource: "nodeclaims", Verb: "delete"},
	}
}

// Granted asks the API server whether its caller has the right. The namespace matters to
// namespaced rights only.
func (a Access) Granted(
	ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface, namespace string,
) (bool, error) {
	review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a.attributes(namespace)},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
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
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// attributes are those of a review.
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
	return fmt.Sprintf("this ServiceAccount may not %s; the ClusterRole and the Role in deploy/manifests allow it",
		strings.Join(m, ", "))
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
