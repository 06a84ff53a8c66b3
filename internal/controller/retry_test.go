package controller

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// In a storm thousands of patches wait for their turn for longer than one try may take. That is no failure.
func TestWhoHasHadNoTurnAsksAgainAtOnceAndSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		begin, tries := time.Now(), 0
		err := new(Controller).retry(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "write the intent", func(ctx context.Context) error {
			if tries++; tries > 10 {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("patch node a: %w: %w", cluster.ErrNoTurn, context.Cause(ctx))
		})
		if err != nil || log.Len() > 0 || time.Since(begin) != 10*tryTimeout {
			t.Errorf("%v after %s, and the log says %s", err, time.Since(begin), log.String())
		}
	})
}
