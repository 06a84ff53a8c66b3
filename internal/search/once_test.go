package search

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatIsForgottenWhileItGoesOnMayBeFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once, end, begun := NewOnce[string](), make(chan struct{}), 0
		begin := func() {
			once.Begin("a", func() (time.Duration, error) {
				begun++
				<-end
				return AsLongAsFound, nil
			})
			synctest.Wait()
		}
		forget := func() (goesOn bool) {
			once.Forget(func(_ string, is bool) bool { goesOn = is; return true })
			return goesOn
		}
		begin()
		if !forget() {
			t.Error("what goes on has ended")
		}
		close(end)
		once.Wait()
		if begin(); begun != 2 {
			t.Errorf("begun %d times, want 2", begun)
		}
		if forget() {
			t.Error("what has ended goes on")
		}
	})
}
