package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
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

// Nobody led when the pod began, and the machine has stopped and started in the middle of it. Its metadata has no
// recommendation then, so the pod reports none.
func TestWhatThePodHasNotFinishedIsRevertedWhenTheMachineComesBack(t *testing.T) {
	t.Parallel()
	for name, began := range map[string]lease.State{"nobody led": lease.Vacant, "there was no Lease": lease.Absent} {
		for when, leads := range map[string]time.Duration{"before": 0, "after": 10 * time.Second, "never": -1} {
			t.Run(name+", a leader comes "+when, func(t *testing.T) {
				tell(t, func(s *story) {
					s.change(theNode, boots("first"))
					p := s.onNode(time.Hour)
					p.says(began)
					p.restart()
					p.metadata.Recommend(time.Now())
					s.after(time.Minute)
					p.wantDrains(0, 1)
					p.stop()
					lead := func() { p.says(lease.Held); s.lead() }
					if leads == 0 {
						lead()
					}
					s.must(s.aws.SetInstanceState(theID, "stopping"))
					s.change(theNode, notReady)
					s.after(10 * time.Minute)
					s.must(s.aws.SetInstanceState(theID, "pending"))
					s.after(20 * time.Second)
					s.must(s.aws.SetInstanceState(theID, "running"))
					p.metadata = awssim.NewMetadata(awssim.MetadataOptions{Instance: theID, Started: time.Now()})
					s.change(theNode, boots("second"))
					p.restart()
					if leads > 0 {
						s.after(leads)
						lead()
					}
					s.after(time.Hour)
					if i := s.intent(); s.isCordoned(theNode) || len(i.Entries) > 0 || i.Cordoned || len(s.node().Labels) > 0 {
						t.Errorf("cordoned %t, labels %v, intent %+v", s.isCordoned(theNode), s.node().Labels, i)
					}
				})
			})
		}
	}
}
