package controller

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"
	"time"
)

func TestAGoroutineDumpNamesTheNodeOfEachWaitingMessage(t *testing.T) {
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		var dump bytes.Buffer
		s.must(pprof.Lookup("goroutine").WriteTo(&dump, 1))
		var waiting, draining bool
		for goroutine := range strings.SplitSeq(dump.String(), "\n\n") {
			labels, stack, _ := strings.Cut(goroutine, "\n#\t")
			waiting = waiting || strings.Contains(stack, "awaitAll") && strings.Contains(labels, `"node":"`+theNode+`"`) && strings.Contains(labels, `"message":`)
			draining = draining || strings.Contains(stack, "evacuate") && strings.Contains(labels, `"node":"`+theNode+`"`)
		}
		if !waiting || !draining {
			t.Errorf("the message that waits is named: %t, the drain: %t\n%s", waiting, draining, dump.String())
		}
	})
}
