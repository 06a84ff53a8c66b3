package tool

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestANoticeThatTheHandlerWouldLeaveAloneIsToldWithItsRemedy(t *testing.T) {
	const hub = "EVENT_ACCOUNTS=210987654321"
	managed := map[string]string{"aws-node-termination-handler/managed": ""}
	for _, tt := range []struct {
		name            string
		environ         []string
		account, region string
		tags            map[string]string
		notSpot         bool
		why, remedy     string // parts; empty: it acts
	}{
		{name: "of the queue's account", account: "123456789012", tags: managed},
		{name: "of a node that does not say its region", account: "123456789012"},
		{
			name: "of another account", account: "210987654321", tags: managed,
			why: "of account 210987654321, which is not in event-accounts (123456789012)", remedy: "set event-accounts to 123456789012,210987654321",
		},
		{name: "of an account that is named", environ: []string{hub}, account: "210987654321", tags: managed},
		{name: "of one of two", environ: []string{hub + ",123456789012"}, account: "123456789012", tags: managed},
		{
			name: "of the queue's account, which is not named", environ: []string{hub}, account: "123456789012", tags: managed,
			why: "of account 123456789012, which is not in event-accounts (210987654321)", remedy: "set event-accounts to 210987654321,123456789012",
		},
		{name: "of another region", account: "123456789012", region: "eu-west-1", tags: managed, why: "node a is in eu-west-1 and the queue in us-east-1", remedy: "a queue in eu-west-1"},
		{name: "of the queue's region", account: "123456789012", region: "us-east-1", tags: managed},
		{
			name: "without the tag", account: "123456789012", tags: map[string]string{},
			why:    "instance i-0123456789abcdef0 has no tag aws-node-termination-handler/managed",
			remedy: "aws ec2 create-tags --region us-east-1 --resources i-0123456789abcdef0 --tags 'Key=aws-node-termination-handler/managed,Value='",
		},
		{name: "without the tag, unchecked", environ: []string{"CHECK_TAG_BEFORE_DRAINING=false"}, account: "123456789012", tags: map[string]string{}},
		{name: "with tags that are not known", account: "123456789012"},
		{
			name: "of an instance that is not spot", account: "123456789012", tags: managed, notSpot: true,
			why: "EC2 says that instance i-0123456789abcdef0 is no spot instance, and only those get such a notice", remedy: "simulate scheduled-change, which any instance can get",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseOptions(nil, append(tt.environ, "QUEUE_URL="+testQueue))
			if err != nil {
				t.Fatal(err)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///x/i-0123456789abcdef0"}}
			if tt.region != "" {
				node.Labels = map[string]string{corev1.LabelTopologyRegion: tt.region}
			}
			s := (&Session{Options: c}).target(notice.SpotInterruption, node)
			s.setInstance(doctor.Instance{ID: s.notice.Instance, Account: tt.account, Tags: tt.tags, Spot: !tt.notSpot})
			o, err := s.preview(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			why, remedy := s.whyIgnored(o)
			if o.Ignored != (tt.why != "") || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) || !strings.Contains(remedy, tt.remedy) {
				t.Errorf("ignored %t: %q, want %q; remedy %q, want %q", o.Ignored, why, tt.why, remedy, tt.remedy)
			}
			if err := s.whyRefused(o); (err != nil) != (tt.why != "") {
				t.Errorf("simulate refuses with %v", err)
			}
			replaced := o
			replaced.Intent = intent.Intent{HeldBack: true, Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation, Terms: intent.Terms{Rule: "first", ReplaceFirst: true}}}}
			if s.whyRefused(replaced) == nil {
				t.Error("simulate sends what would have the group replace the instance")
			}
			if o.Follows = true; s.whyRefused(o) == nil {
				t.Error("simulate sends what would bring nothing")
			}
		})
	}
}

// Without a queue a node is drained for what its pod looks for in the metadata, and for nothing else.
func TestInIMDSModeOnlyWhatItsOptionsAskForIsDrained(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///x/i-0123456789abcdef0"}}
	for _, tt := range []struct {
		kind notice.Kind
		env  string
		told bool
	}{
		{notice.SpotInterruption, "", true},
		{notice.SpotInterruption, "ENABLE_SPOT_INTERRUPTION_DRAINING=false", false},
		{notice.RebalanceRecommendation, "", false},
		{notice.RebalanceRecommendation, "ENABLE_REBALANCE_MONITORING=true", true},
		{notice.StateChange, "", false},
	} {
		c, err := parseOptions(nil, []string{"ENABLE_SQS_TERMINATION_DRAINING=false", "NODE_NAME=a", cmp.Or(tt.env, "WORKERS=1")})
		if err != nil {
			t.Fatal(err)
		}
		s := (&Session{Options: c}).target(tt.kind, node)
		o, err := s.preview(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if why, _ := s.whyIgnored(o); (why == "") != tt.told || s.asksAWS() {
			t.Errorf("%s, %s: ignored because %q; asks AWS: %t", tt.kind, tt.env, why, s.asksAWS())
		}
	}
}

func TestWithoutAQueueOnlyTheMetadataTells(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///x/i-0123456789abcdef0"}}
	for kind, told := range map[notice.Kind]bool{
		notice.SpotInterruption: true, notice.ScheduledChange: true, notice.ASGTerminate: true, notice.RebalanceRecommendation: false,
		notice.StateChange: false, notice.CapacityReservationInterruption: false, notice.CapacityBlockExpiration: false,
	} {
		c, err := parseOptions(nil, []string{"QUEUE_URL=none"})
		if err != nil {
			t.Fatal(err)
		}
		s := (&Session{Options: c}).target(kind, node)
		o, err := s.preview(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if why, _ := s.whyIgnored(o); (why == "") != told || s.asksAWS() {
			t.Errorf("%s: ignored because %q; asks AWS: %t", kind, why, s.asksAWS())
		}
		if kind == notice.ASGTerminate && !o.Terms.Deadline.IsZero() {
			t.Errorf("a termination has the deadline %s of a hook that the metadata does not name", o.Terms.Deadline)
		}
	}
}
