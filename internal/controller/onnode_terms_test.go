package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// makeAnew makes the story's Node anew, as a kubelet does that registers again.
func (s *story) makeAnew(uid string) {
	s.Helper()
	s.remove(theNode)
	s.after(3 * time.Second)
	n := aNode(theNode, theID)
	n.UID, n.CreationTimestamp = types.UID(uid), metav1.Now()
	_, err := s.kube.CoreV1().Nodes().Create(s.Context(), n, metav1.CreateOptions{})
	s.must(err)
}

// However long ago the pod has reported it of the Node before: a rule may ignore it.
func TestALeaderHasItsTimeToTakeAReportOfTheNextNode(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		p := s.onNode(time.Second)
		p.interrupts()
		s.after(30 * time.Second)
		s.makeAnew("uid 2")
		s.after(time.Minute)
		p.wantDrains(0, 0)
		if s.isCordoned(theNode) {
			t.Error("a rule ignores the notice, and the Node that was made anew is cordoned")
		}
	}, decision.NodeRule{Name: "never", Kinds: []notice.Kind{notice.SpotInterruption}, Do: decision.Ignoring})
}

// It was announced and called off while the handler was paused.
func TestTheLeaderDoesNotDrainForAChangeThatWasCalledOffBeforeItLed(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"canceled", "completed"} {
		tell(t, func(s *story) {
			p := s.onNode(time.Second)
			p.says(lease.Stopped)
			p.schedules(100*time.Hour, "active")
			s.after(time.Hour)
			p.schedules(100*time.Hour, state)
			s.after(time.Minute)
			p.says(lease.Held)
			s.lead()
			s.after(5 * time.Minute)
			p.wantDrains(0, 0)
			if s.isCordoned(theNode) {
				t.Error("the node is cordoned")
			}
		})
	}
}
