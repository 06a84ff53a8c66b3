package controller

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestFourThousandInstancesInOneMessageAreLookedUpInTurn(t *testing.T) {
	tell(t, func(s *story) {
		s.lead()
		before := runtime.NumGoroutine()
		var entities strings.Builder
		for k := range 4_000 {
			fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},`, k)
		}
		begin := time.Now()
		s.send(s.body("health-retirement-two-instances", theID, `"affectedEntities": [`, `"affectedEntities": [`+entities.String()))
		most := 0
		for !s.node().Spec.Unschedulable && time.Since(begin) < time.Minute {
			s.after(100 * time.Millisecond)
			most = max(most, runtime.NumGoroutine()-before)
		}
		s.Logf("cordoned after %s, with %d more goroutines at most", time.Since(begin), most)
		if n := s.calls("DescribeInstances"); time.Since(begin) > 20*time.Second || n > 30 || most > 3*lookUpsAtOnce {
			t.Errorf("the one that is ours was cordoned after %s, %d look-ups and with %d more goroutines", time.Since(begin), n, most)
		}
		s.after(45 * time.Second)
		if s.left() != 1 || len(s.drain.all()) != 1 { // the others may be another cluster's
			t.Errorf("%d messages left after %d drains", s.left(), len(s.drain.all()))
		}
	})
}
