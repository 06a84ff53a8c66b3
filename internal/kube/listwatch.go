package kube

import (
	"context"
	"errors"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// client-go starts a watch again at once if it was cut within its first events. Where
	// a load balancer cuts each watch, that is hundreds of times a second.
	watchesPerSecond = 2
	watchBurst       = 5
	// A watch starts within milliseconds. client-go would wait for as long as the
	// connection lives.
	watchTimeout = 10 * time.Second
	// A list of thousands of objects takes seconds.
	listTimeout = 30 * time.Second
)

var (
	errListTimeout  = errors.New("the list was not answered in time")
	errWatchTimeout = errors.New("the watch was not answered in time")
)

// Objects is the part of a typed client that lists and watches, such as
// CoreV1().Nodes().
type Objects[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch returns what an informer or a reflector lists and watches by: those of objects
// that a field selector selects; empty: all. Unlike that of client-go it has time limits:
// 30 s for a list, 10 s for the answer to a watch, which then lives as long as its context.
// It starts two watches a second at most, after a burst of five.
//
// client says whether a watch can also list: client-go asks for its method
// IsWatchListSemanticsUnSupported, which fake clients have.
func ListWatch[L runtime.Object](client any, objects Objects[L], selector string) cache.ListerWatcher {
	starts := pace.New(watchesPerSecond, watchBurst)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, errListTimeout)
			defer cancel()
			opts.FieldSelector = selector
			return objects.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			err := starts.Wait(ctx, pace.Priority{})
			var started watch.Interface
			if err == nil {
				opts.FieldSelector = selector
				started, err = startWatch(ctx, objects, opts)
			}
			if err != nil && ctx.Err() != nil {
				return nil, io.EOF // the informer ends, which is no error to log
			}
			return started, err
		},
	}, client)
}

// startWatch starts a watch. It is to be answered within 10 s, and then lives as long as its context, or until it is
// stopped.
func startWatch[L runtime.Object](
	ctx context.Context, objects Objects[L], opts metav1.ListOptions,
) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(watchTimeout, func() { cancel(errWatchTimeout) })
	defer timer.Stop()
	started, err := objects.Watch(ctx, opts)
	if err != nil {
		cancel(err)
		return nil, err
	}
	return releasing{started, cancel}, nil
}

// releasing is a watch that ends its context when it is stopped. client-go stops each
// watch that has ended, but the context of its informer lives as long as the process,
// and would keep a child of each watch for as long.
type releasing struct {
	watch.Interface
	release context.CancelCauseFunc
}

// Stop implements [watch.Interface].
func (r releasing) Stop() {
	r.Interface.Stop()
	r.release(context.Canceled)
}
