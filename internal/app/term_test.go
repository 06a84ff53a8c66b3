package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/go-logr/logr"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/controller"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// eviction answers evictions, and counts them.
type eviction struct {
	refuse func(ctx context.Context) error
	tries  int
}

// Evictions implements typedpolicyv1.EvictionsGetter.
func (e *eviction) Evictions(string) typedpolicyv1.EvictionInterface { return e }

// Evict implements typedpolicyv1.EvictionInterface.
func (e *eviction) Evict(ctx context.Context, _ *policyv1.Eviction) error {
	e.tries++
	return e.refuse(ctx)
}

// hangingQueue answers nothing, and tells when it is asked for messages.
type hangingQueue struct {
	queue.API
	begin    time.Time
	received chan time.Duration
}

// GetQueueAttributes and the other implement queue.API.
func (h hangingQueue) GetQueueAttributes(ctx context.Context, _ *sqs.GetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// ReceiveMessage is the other.
func (h hangingQueue) ReceiveMessage(ctx context.Context, _ *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	h.received <- time.Since(h.begin)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// The other replica waits for room on a node, and the budget of the two spares this one.
func TestALeaderThatCannotLeaveItsNodeLeadsAgain(t *testing.T) {
	refusals := map[string]func(ctx context.Context) error{
		"the budget refuses": func(context.Context) error {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests}}
		},
		"nobody answers": func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube := fake.NewClientset()
				evictions := eviction{refuse: refuse}
				elector := lease.Elector{Client: kube.CoordinationV1(), Namespace: "ns", Name: "lease", Identity: "we", Log: logr.Discard()}
				ctx, cancel := context.WithCancel(t.Context())
				gaveWay, terms := time.Time{}, 0
				work := func(ctx context.Context) error {
					if terms++; terms == 1 {
						gaveWay = time.Now()
						return nodedrain.ErrGiveWay
					}
					if without := time.Since(gaveWay); without < evictTime || without > evictTime+5*time.Second {
						t.Errorf("nobody led for %s", without)
					}
					cancel()
					<-ctx.Done()
					return context.Cause(ctx)
				}
				err := keepLeading(ctx, logr.Discard(), func(ctx context.Context) error { return elector.Run(ctx, work) }, func(ctx context.Context) {
					evictSelf(ctx, logr.Discard(), &evictions, types.NamespacedName{Namespace: "ns", Name: "self"})
				})
				if !errors.Is(err, context.Canceled) || terms != 2 {
					t.Errorf("keepLeading = %v after %d terms", err, terms)
				}
				if name == "the budget refuses" && evictions.tries != 5 {
					t.Errorf("%d evictions, want one every two seconds", evictions.tries)
				}
			})
		})
	}
}

func TestALeaderThatWasEvictedWaitsForItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		evictions := eviction{refuse: func(context.Context) error { return nil }}
		terms := 0
		err := keepLeading(ctx, logr.Discard(), func(context.Context) error {
			terms++
			return nodedrain.ErrGiveWay
		}, func(ctx context.Context) {
			evictSelf(ctx, logr.Discard(), &evictions, types.NamespacedName{Namespace: "ns", Name: "self"})
		})
		if !errors.Is(err, context.DeadlineExceeded) || terms != 1 || evictions.tries != 1 {
			t.Errorf("keepLeading = %v after %d terms and %d evictions", err, terms, evictions.tries)
		}
	})
}

// The check of a term hangs, and a message waits.
func TestTheFirstReceiveOfATermWaitsForNoCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		hangs := hangingQueue{received: make(chan time.Duration, 100), begin: begin}
		ended := make(chan error, 1)
		go func() {
			ctrl := controller.New(controller.Config{Config: nodedrain.Config{DryRun: true}})
			server := &queue.Server{Client: hangs, URL: "queue", Handler: ctrl, Visibility: 20 * time.Second}
			ended <- lead(ctx, logr.Discard(), ctrl, serving(server.Serve, checking(logr.Discard(), server)))
		}()
		if after := <-hangs.received; after > 0 {
			t.Errorf("the first receive is made after %s", after)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("lead = %v", err)
		}
	})
}
