package controller

import (
	"bytes"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
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

// Thousands of messages may wait, each for hours.
func TestAMessageWaitsOnOneGoroutine(t *testing.T) {
	const other = "i-0000000000000ffff"
	ignoresTerminations := decision.NodeRule{Name: "no-scale-in", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Ignoring, Before: -1}
	for where, begin := range map[string]func(s *story){
		"awaitNode": func(s *story) {
			s.must(s.aws.PutInstance(awssim.Instance{ID: other, Lifecycle: "spot", Tags: map[string]string{"managed": ""}}))
			s.send(s.body("spot-interruption", other))
		},
		"awaitReady": func(s *story) {
			s.change(theNode, func(n *corev1.Node) { n.Status.Conditions = nil })
			s.launch(time.Hour)
		},
		"awaitAll": func(s *story) { s.send(s.body("rebalance-recommendation", theID)) },
		"completeUncarried": func(s *story) {
			s.send(s.body("rebalance-recommendation", theID))
			s.after(time.Second)
			s.terminate(time.Hour)
		},
	} {
		t.Run(where, func(t *testing.T) {
			tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
				s.drain.takes = time.Hour
				s.lead()
				begin(s)
				s.after(time.Minute)
				var dump bytes.Buffer
				s.must(pprof.Lookup("goroutine").WriteTo(&dump, 1))
				goroutines, found := 0, false
				for group := range strings.SplitSeq(dump.String(), "\n\n") {
					labels, stack, _ := strings.Cut(group, "\n#\t")
					if !strings.Contains(labels, `"message":`) || strings.Contains(stack, ".holdOpen.") { // which is a claim of its own
						continue
					}
					n, _, _ := strings.Cut(labels, " @")
					alike, err := strconv.Atoi(n)
					s.must(err)
					goroutines += alike
					found = found || strings.Contains(stack, where)
				}
				if goroutines != s.left() || !found {
					t.Errorf("%d goroutines have %d messages, and one is in %s: %t\n%s", goroutines, s.left(), where, found, dump.String())
				}
			}, ignoresTerminations)
		})
	}
}
