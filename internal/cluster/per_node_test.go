package cluster

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkForANodeIsDoneOnceMoreIfItIsAskedForMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes PerNode
		var slow, other atomic.Int32
		work := func() {
			slow.Add(1)
			time.Sleep(time.Minute)
		}
		for range 3 { // the first, and one more
			nodes.Do("a", work)
		}
		nodes.Do("b", func() { other.Add(1) })
		synctest.Wait()
		if slow.Load() != 1 || other.Load() != 1 {
			t.Errorf("begun %d times, and that of another node %d times", slow.Load(), other.Load())
		}
		nodes.Wait()
		if slow.Load() != 2 {
			t.Errorf("done %d times, want 2", slow.Load())
		}
		nodes.Do("a", func() { panic("of the test") })
		nodes.Wait()
		nodes.Do("a", func() { slow.Add(1) })
		nodes.Wait()
		if slow.Load() != 3 {
			t.Error("no work is done after a panic")
		}
	})
}
