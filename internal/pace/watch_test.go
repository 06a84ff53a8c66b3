package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchesThatEndAtOnceAreBegunTwiceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begun := NewWatches(), 0
		for begin := time.Now(); time.Since(begin) < time.Minute; begun++ {
			if _, err := BeginWatch(t.Context(), w, func(context.Context) (string, error) { return "", nil }); err != nil {
				t.Fatal(err)
			}
		}
		if begun < 120 || begun > 130 {
			t.Errorf("%d watches in a minute, want some 120", begun)
		}
	})
}

func TestAWatchThatDoesNotBeginIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := BeginWatch(t.Context(), NewWatches(), func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		if !errors.Is(err, errNoWatch) || time.Since(begin) != watchBegins {
			t.Errorf("given up after %s with %v", time.Since(begin), err)
		}
	})
}

func TestAListThatDoesNotEndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := List(t.Context(), func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		if !errors.Is(err, errNoList) || time.Since(begin) != listEnds {
			t.Errorf("given up after %s with %v", time.Since(begin), err)
		}
	})
}

func TestAWatchThatHasBegunGoesOnUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		watch, err := BeginWatch(ctx, NewWatches(), func(ctx context.Context) (context.Context, error) { return ctx, nil })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if watch.Err() != nil {
			t.Error("the watch has ended")
		}
		end()
		synctest.Wait()
		if watch.Err() == nil {
			t.Error("the watch goes on")
		}
	})
}
