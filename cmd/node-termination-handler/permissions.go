package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
)

// rights are those without which the handler cannot do its work, some of them in a
// namespace. Kubernetes Events are none of them: without theirs nothing but the
// Events is missing.
type rights struct {
	needed    []doctor.Access
	namespace string // of the Lease
}

func rightsNeeded(c *config, namespace string) rights {
	return rights{doctor.Accesses(doctor.Options{LeaderElect: c.leaderElect, Lease: c.leaseName}), namespace}
}

// lacks says which rights are missing.
type lacks []string

func (l lacks) Error() string {
	return fmt.Sprintf("this ServiceAccount may not %s; the ClusterRole and the Role in deploy/manifests allow it", strings.Join(l, ", "))
}

// check asks the API server for each right and returns those that are denied as
// an error of type lacks. Any other error is that of the question, and may heal.
func (r rights) check(ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface) error {
	granted := make([]bool, len(r.needed))
	group, ctx := errgroup.WithContext(ctx)
	for i, access := range r.needed {
		group.Go(func() (err error) {
			if granted[i], err = access.Granted(ctx, reviews, r.namespace); err != nil {
				return fmt.Errorf("ask whether this ServiceAccount may %s: %w", access, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var missing lacks
	for i, access := range r.needed {
		if granted[i] {
			continue
		}
		text := access.String()
		if access.Namespaced {
			text += " in " + r.namespace
		}
		missing = append(missing, text)
	}
	if len(missing) > 0 {
		return missing
	}
	return nil
}
