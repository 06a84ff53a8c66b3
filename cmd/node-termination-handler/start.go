package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// startTime bounds what must work once before the process goes on.
const startTime = 25 * time.Second

// A check is something that must work once. /readyz names it until then.
type check struct {
	part string
	run  func(context.Context) error
}

// begin makes all checks at once, and returns the first error of what does not work.
func begin(ctx context.Context, probes *health, checks []check) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("no answer within %s", startTime))
	defer cancel()
	for _, c := range checks {
		probes.set(c.part, "not checked yet")
	}
	probes.set("start", "")
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range checks {
		group.Go(func() error {
			if err := c.run(ctx); err != nil {
				return err
			}
			probes.set(c.part, "")
			return nil
		})
	}
	return group.Wait()
}

// queueWorks finds what keeps the queue from being served.
func queueWorks(ctx context.Context, c *config, s *queue.Server) error {
	if err := s.Check(ctx); err != nil || c.dryRun {
		return err
	}
	return s.Allowed(ctx)
}

// instancesWork finds what keeps instances from being looked up, where each of them is.
func instancesWork(ctx context.Context, c *config, instances *instance.Directory) error {
	if !c.checkTag {
		return nil
	}
	return instances.Allowed(ctx)
}

// allowed finds out whether the handler has the rights that it needs: a watch does
// not say why it does not begin, and an eviction says so too late. It asks for the
// rights, and for next to nothing of all that is watched, because a cluster may
// not answer the first. It tries again what may heal, until ctx ends, and returns
// its last answer then.
func allowed(ctx context.Context, client kubeClients, needed rights) error {
	const patience = startTime - 5*time.Second // those who wait for a watch have less to say
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	one := metav1.ListOptions{Limit: 1}
	for _, step := range []struct {
		doing string
		try   func() error
	}{
		{"check the rights", func() error {
			err := needed.check(ctx, client.authorization.SelfSubjectAccessReviews())
			if apierrors.IsForbidden(err) {
				return nil
			}
			return err
		}},
		{"list the nodes", func() error {
			_, err := client.CoreV1().Nodes().List(ctx, one)
			return err
		}},
		{"list the volume attachments", func() error {
			_, err := client.StorageV1().VolumeAttachments().List(ctx, one)
			return err
		}},
	} {
		var last error
		for {
			err := step.try()
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				last = err
			}
			var missing lacks
			refused := errors.As(err, &missing) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
			if refused || sleep(ctx, time.Second) != nil {
				return fmt.Errorf("%s: %w", step.doing, cmp.Or(last, err))
			}
		}
	}
	return nil
}
