package controller

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// One set of rules can serve many clusters: its topic hands each notice to the queue of each.
func TestATopicHandsANoticeToTheQueueOfEachCluster(t *testing.T) {
	t.Parallel()
	for name, metadata := range map[string]bool{"of a rule": false, "of a custom event bus": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				const topic, other = "arn:aws:sns:us-east-1:123456789012:interruptions", "other-cluster"
				s.must(s.aws.CreateQueue(awssim.Queue{Name: other}))
				s.aws.Subscribe(topic, queueName)
				s.aws.Subscribe(topic, other)
				s.must(s.aws.PutRule(awssim.Rule{Name: "all", Topic: topic, WithMetadata: metadata}))
				s.edit = func(c *Config) { c.DeleteForeign = true }
				s.lead()
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: "i-0fedcba9876543210", LaunchTime: time.Now().Add(-time.Hour)})) // of the other cluster
				s.must(s.aws.SetInstanceState("i-0fedcba9876543210", "shutting-down"))
				s.after(5 * time.Second)
				if s.left() != 0 || !asBefore(s.node()) || len(s.aws.Messages(other)) != 1 {
					t.Errorf("%d messages left, %d in the other queue", s.left(), len(s.aws.Messages(other)))
				}
				s.must(s.aws.SetInstanceState(theID, "shutting-down"))
				s.after(40 * time.Second)
				if i := s.intent(); s.left() != 0 || !i.Finished() || len(s.drain.all()) != 1 {
					t.Errorf("%d messages left, %d drains, intent %+v", s.left(), len(s.drain.all()), i)
				}
				if n := len(s.aws.Messages(other)); n != 2 {
					t.Errorf("%d messages in the other queue, want both", n)
				}
			})
		})
	}
}

// Its own handler drains it, and needs the time of its hook.
func TestTheHookOfAnotherClustersInstanceIsLeftToIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tags    map[string]string
		cluster string
		want    awssim.Outcome
	}{
		"of a cluster, and nobody has said which is ours": {map[string]string{"managed": "", "kubernetes.io/cluster/blue": "owned"}, "", awssim.Active},
		"of this cluster":  {map[string]string{"managed": "", "kubernetes.io/cluster/blue": "owned"}, "blue", awssim.Completed},
		"of no cluster":    {map[string]string{"managed": ""}, "", awssim.Completed},
		"of other cluster": {map[string]string{"managed": "", "kubernetes.io/cluster/green": "owned"}, "blue", awssim.Active},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.edit = func(c *Config) { c.ClusterName, c.DeleteForeign = test.cluster, true }
				s.remove(theNode)
				s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Tags: test.tags}))
				s.lead()
				s.terminate(time.Hour)
				s.after(10 * time.Minute)
				s.wantHook(test.want)
				if s.left() != 0 {
					t.Errorf("%d messages left", s.left())
				}
			})
		})
	}
}

// Clusters may share the managed tag: whose an instance without a Node is, the tag of its cluster says.
func TestAnInstanceOfAnotherClusterIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tags map[string]string
		held bool
	}{
		{map[string]string{"managed": "", "kubernetes.io/cluster/theirs": "owned"}, false},
		{map[string]string{"managed": "", "aws:eks:cluster-name": "theirs"}, false},
		{map[string]string{"managed": "", "kubernetes.io/cluster/ours": "owned"}, true},
		{map[string]string{"managed": "", "kubernetes.io/cluster/ours": "shared", "kubernetes.io/cluster/theirs": "shared"}, true},
		{map[string]string{"managed": ""}, true},
	} {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.ClusterName, c.DeleteForeign = "ours", true }
			s.remove(theNode)
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: tt.tags}))
			s.lead()
			s.send(s.body("rebalance-recommendation", theID))
			s.after(time.Minute)
			if held := s.left() > 0; held != tt.held {
				t.Errorf("tags %v: the message is held: %t, want %t", tt.tags, held, tt.held)
			}
		})
	}
}
