package controller

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// meanwhile changes the intent of the node just before the first patch of it for which at is true.
func (s *story) meanwhile(at func(next intent.Intent) bool, change func(i intent.Intent) intent.Intent) {
	done := false
	s.beforePatch.Store(new(clienttesting.ReactionFunc(func(action clienttesting.Action) (bool, runtime.Object, error) {
		var p struct {
			Metadata struct{ Annotations map[string]string }
		}
		s.must(json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &p))
		next, err := intent.Decode(p.Metadata.Annotations[cluster.IntentAnnotation])
		if done || err != nil || !at(next) {
			return false, nil, nil
		}
		done = true
		gvr := corev1.SchemeGroupVersion.WithResource("nodes")
		obj, err := s.kube.Tracker().Get(gvr, "", theNode)
		s.must(err)
		node := obj.(*corev1.Node).DeepCopy()
		i, _, err := cluster.ReadIntent(node)
		s.must(err)
		text, err := change(i).Encode()
		s.must(err)
		node.Annotations[cluster.IntentAnnotation] = text
		node.ResourceVersion += "0"
		s.must(s.kube.Tracker().Update(gvr, node, ""))
		return false, nil, nil
	})))
}

func withSpot(i intent.Intent) intent.Intent {
	now := time.Now().UTC()
	return i.With(intent.Entry{Kind: notice.SpotInterruption, IDs: []string{"imds-spot"}, Time: now, Deadline: now.Add(2 * time.Minute)}, nil, now).From("imds")
}

// A notice that the other handler records, while this one reverts the drain, is carried out.
func TestWhatTheOtherRecordsWhileADrainIsRevertedIsCarriedOut(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		change := notice.Notice{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", ID: "one", Instances: []string{theID}, Time: time.Now()}
		go func() { _ = s.c.HandleNotice(s.ctx, change, func() {}) }()
		s.after(5 * time.Second)
		s.meanwhile(func(next intent.Intent) bool { return len(next.Entries) == 0 }, withSpot)
		change.ID, change.Ended, change.Time = "two", true, time.Now()
		s.drain.take(time.Second)
		go func() { _ = s.c.HandleNotice(s.ctx, change, func() {}) }()
		s.after(time.Minute)
		if i := s.intent(); i.Outcome != intent.Drained || !i.Has(notice.SpotInterruption) || !s.node().Spec.Unschedulable {
			t.Errorf("the node carries %+v", i)
		}
	})
}

func TestWhatTheOtherRecordsWhileADrainIsCalledOffIsCarriedOut(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.meanwhile(func(next intent.Intent) bool { return len(next.Entries) == 0 }, withSpot)
		s.drain.take(time.Second)
		node := s.node()
		node.Spec.Unschedulable = false
		node.ResourceVersion += "0"
		_, err := s.kube.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
		s.must(err)
		s.after(time.Minute)
		if i := s.intent(); i.Outcome != intent.Drained || !i.Has(notice.SpotInterruption) || !s.node().Spec.Unschedulable {
			t.Errorf("cordoned %v, the node carries %+v", s.node().Spec.Unschedulable, i)
		}
		if s.left() != 0 {
			t.Error("the message is left")
		}
	})
}
