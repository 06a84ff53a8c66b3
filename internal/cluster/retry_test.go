package cluster

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// In a storm thousands of patches wait for their turn for longer than one try may take. That is no failure.
func TestWhoHasHadNoTurnAsksAgainAtOnceAndSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		begin, tries := time.Now(), 0
		err := Retry(t.Context(), log.Logger(), "write the intent", func(ctx context.Context) error {
			if tries++; tries > 10 {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("patch node a: %w: %w", ErrNoTurn, context.Cause(ctx))
		})
		if err != nil || log.String() != "" || time.Since(begin) != 10*tryTimeout {
			t.Errorf("%v after %s, and the log says %s", err, time.Since(begin), log.String())
		}
	})
}
