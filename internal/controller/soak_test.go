package controller

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

var soak = flag.Int("soak", 900, "how many notices TestNothingGrowsWithTheNoticesSeen handles")

// make soak handles 100,000.
func TestNothingGrowsWithTheNoticesSeen(t *testing.T) {
	if race.Enabled() {
		t.Skip("measures memory, of which the race detector takes a multiple")
	}
	tell(t, func(s *story) {
		s.drain.takes = 0
		metrics := telemetry.New()
		s.edit = func(c *Config) { c.Observer, c.Log = metrics, logr.Discard() }
		s.must(s.aws.CreateQueue(awssim.Queue{Name: queueName, Attributes: map[string]string{"MessageRetentionPeriod": "300"}}))
		s.lead()
		// The first part fills what is bounded: caches, rings, pools.
		measure := func(from, to int) (heap uint64, goroutines, series int) {
			for k := from; k < to; k++ {
				id := theID
				if k%2 == 1 { // foreign
					id = fmt.Sprintf("i-%017x", k)
				}
				s.send(s.body("spot-interruption", id, "7d5a1d4c-7f2b-4f3e-9d1a", fmt.Sprintf("%08d-7f2b-4f3e-9d1a", k)))
				if k%100 == 99 {
					s.after(10 * time.Second)
				}
			}
			s.after(10 * time.Minute) // foreign messages come back until their retention ends
			s.kube.ClearActions()     // the fake remembers every request
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			page := httptest.NewRecorder()
			metrics.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			for line := range strings.Lines(page.Body.String()) {
				if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "go_") {
					series++
				}
			}
			return m.HeapAlloc, runtime.NumGoroutine(), series
		}
		third := *soak / 3
		measure(0, third)
		heap1, goroutines1, series1 := measure(third, 2*third)
		heap2, goroutines2, series2 := measure(2*third, 3*third)
		t.Logf("after %d and %d notices: heap %d and %d KiB, goroutines %d and %d, series %d and %d",
			2*third, 3*third, heap1>>10, heap2>>10, goroutines1, goroutines2, series1, series2)
		if heap2 > heap1+heap1/4+(4<<20) || goroutines2 > goroutines1+5 || series2 != series1 {
			t.Error("something grows with the notices seen")
		}
	})
}
