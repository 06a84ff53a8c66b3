package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// objects are listed and watched without any events. What hangs ends with its context.
type objects struct {
	hang  bool
	begun []context.Context // of the watches
	last  *watch.FakeWatcher
}

func (o *objects) List(ctx context.Context, _ metav1.ListOptions) (*corev1.PodList, error) {
	if o.hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return &corev1.PodList{}, nil
}

func (o *objects) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	if o.hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	o.begun, o.last = append(o.begun, ctx), watch.NewFake()
	return o.last, nil
}

func (o *objects) listWatch() cache.ListerWatcherWithContext {
	return cache.ToListerWatcherWithContext(ListWatch(nil, o, ""))
}

func TestWatchesThatEndAtOnceAreStartedTwiceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o objects
		lw := o.listWatch()
		for begin := time.Now(); time.Since(begin) < time.Minute; {
			if _, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(o.begun); n < 120 || n > 130 {
			t.Errorf("%d watches in a minute, want some 120", n)
		}
	})
}

func TestAWatchWithoutAnAnswerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := (&objects{hang: true}).listWatch().WatchWithContext(t.Context(), metav1.ListOptions{})
		if !errors.Is(err, errWatchTimeout) || time.Since(begin) != watchTimeout {
			t.Errorf("given up after %s with %v", time.Since(begin), err)
		}
	})
}

func TestAListWithoutAnAnswerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := (&objects{hang: true}).listWatch().ListWithContext(t.Context(), metav1.ListOptions{})
		if !errors.Is(err, errListTimeout) || time.Since(begin) != listTimeout {
			t.Errorf("given up after %s with %v", time.Since(begin), err)
		}
	})
}

func TestAWatchGoesOnUntilItsContextEndsOrItIsStopped(t *testing.T) {
	for name, end := range map[string]func(cancel func(), w watch.Interface){
		"its context ends": func(cancel func(), _ watch.Interface) { cancel() },
		"it is stopped":    func(_ func(), w watch.Interface) { w.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var o objects
				w, err := o.listWatch().WatchWithContext(ctx, metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if o.begun[0].Err() != nil {
					t.Error("the watch has ended")
				}
				end(cancel, w)
				synctest.Wait()
				if o.begun[0].Err() == nil {
					t.Error("the context of the watch is kept")
				}
				if stopped := name == "it is stopped"; o.last.IsStopped() != stopped {
					t.Errorf("the watch was stopped: %t, want %t", o.last.IsStopped(), stopped)
				}
			})
		})
	}
}
