package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
)

// A permission is what the ClusterRole, or the Role of the Lease, has to allow.
type permission struct {
	group, resource, subresource string
	verbs                        []string
	namespace, name              string // empty: all
}

// permissions are those without which the handler cannot do its work. Kubernetes
// Events are none of them: without theirs nothing but the Events is missing.
func permissions(c *config, namespace string) []permission {
	var all []permission
	for _, a := range doctor.Accesses(doctor.Options{LeaderElect: c.leaderElect, Lease: c.leaseName}) {
		p := permission{group: a.Group, resource: a.Resource, subresource: a.Subresource, name: a.Name}
		if a.Namespaced {
			p.namespace = namespace
		}
		if last := len(all) - 1; last >= 0 && all[last].String() == p.String() && all[last].name == p.name {
			all[last].verbs = append(all[last].verbs, a.Verb)
			continue
		}
		p.verbs = []string{a.Verb}
		all = append(all, p)
	}
	return all
}

// String names what p is about, as kubectl auth can-i does.
func (p permission) String() string {
	s := p.resource
	if p.subresource != "" {
		s += "/" + p.subresource
	}
	if p.group != "" {
		s += " of " + p.group
	}
	if p.namespace != "" {
		s += " in " + p.namespace
	}
	return s
}

// lacks are the permissions that are missing, with the verbs that are.
type lacks []permission

func (l lacks) Error() string {
	var missing []string
	for _, p := range l {
		missing = append(missing, strings.Join(p.verbs, ", ")+" "+p.String())
	}
	return fmt.Sprintf("this ServiceAccount may not %s; the ClusterRole and the Role in deploy/manifests allow it", strings.Join(missing, "; "))
}

// checkPermissions asks the API server for each verb of permissions and returns
// those that are denied as an error of type lacks. Any other error is that of the
// question, and may heal.
func checkPermissions(ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface, permissions []permission) error {
	denied := make([][]string, len(permissions)) // verbs
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range permissions {
		group.Go(func() error {
			for _, verb := range p.verbs {
				review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Group: p.group, Resource: p.resource, Subresource: p.subresource, Verb: verb, Namespace: p.namespace, Name: p.name,
					},
				}}
				answer, err := reviews.Create(ctx, review, metav1.CreateOptions{})
				if err != nil {
					return fmt.Errorf("ask whether this ServiceAccount may %s %s: %w", verb, p, err)
				}
				if !answer.Status.Allowed {
					denied[i] = append(denied[i], verb)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var missing lacks
	for i, verbs := range denied {
		if len(verbs) > 0 {
			p := permissions[i]
			p.verbs = verbs
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return missing
	}
	return nil
}
