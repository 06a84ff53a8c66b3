package doctor_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/google/go-cmp/cmp"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
)

const (
	instance = "i-0123456789abcdef0"
	tag      = "aws-node-termination-handler/managed"
)

// site is a simulated account and a fake cluster in which all is well.
type site struct {
	*testing.T
	aws  *awssim.Server
	kube *fake.Clientset
	doctor.Gatherer
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, aws: awssim.New(awssim.Options{EnforcePolicies: true})}
	t.Cleanup(s.aws.Close)
	s.must(s.aws.Apply(awssim.State{
		Queues: []awssim.Queue{{Name: "nth", Attributes: map[string]string{
			"MessageRetentionPeriod": "300", "RedrivePolicy": `{"deadLetterTargetArn": "` + s.aws.QueueARN("dead") + `", "maxReceiveCount": "10"}`,
			"Policy": allowRules, "KmsMasterKeyId": "alias/queues",
		}}},
		Keys:      []awssim.Key{{ID: "k-1", Alias: "alias/queues", Policy: allowRules}},
		Rules:     []awssim.Rule{{Name: "all", Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]}`, Queue: "nth", DeadLetters: "dead"}},
		Instances: []awssim.Instance{{ID: instance, Tags: map[string]string{tag: ""}}},
		Groups:    []awssim.Group{{Name: "workers", Instances: []string{instance}, Tags: map[string]string{tag: ""}}},
		Hooks:     []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}},
	}))
	s.kube = fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + instance}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{
			NodeName: "a", TerminationGracePeriodSeconds: new(int64(60)),
			Containers: []corev1.Container{{Image: "nginx", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
		}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: "a-lease"}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("pod_x"), LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		}},
	)
	s.kube.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authzv1.SelfSubjectAccessReview{Status: authzv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	s.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authnv1.SelfSubjectReview{Status: authnv1.SelfSubjectReviewStatus{UserInfo: authnv1.UserInfo{Username: "system:serviceaccount:nth:nth"}}}, nil
	})
	cfg := s.aws.Config()
	cfg.RetryMaxAttempts = 1
	provider := cfg.Credentials
	cfg.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, err := provider.Retrieve(ctx)
		c.Source = "CredentialsEndpointProvider"
		return c, err
	})
	queue, groups := sqs.NewFromConfig(cfg), autoscaling.NewFromConfig(cfg)
	keys, events := kms.NewFromConfig(cfg), eventbridge.NewFromConfig(cfg)
	s.Gatherer = doctor.Gatherer{
		Patience: 10 * time.Second,
		Options: doctor.Options{
			QueueURL: s.aws.QueueURL("nth"), QueueName: "nth", Account: "123456789012", Region: "us-east-1", CheckTag: true, ManagedTag: tag,
			Visibility: 20 * time.Second, LeaderElect: true, EmitEvents: true, Namespace: "nth", Lease: "a-lease", HeartbeatInterval: 30 * time.Second, HeartbeatUntil: time.Hour,
		},
		AWS: doctor.AWS{
			Credentials: cfg.Credentials, GetCallerIdentity: sts.NewFromConfig(cfg).GetCallerIdentity,
			GetQueueAttributes: queue.GetQueueAttributes, ReceiveMessage: queue.ReceiveMessage,
			DeleteMessage: queue.DeleteMessage, ChangeMessageVisibility: queue.ChangeMessageVisibility,
			DescribeKey: keys.DescribeKey, GetKeyPolicy: keys.GetKeyPolicy,
			ListRuleNamesByTarget: events.ListRuleNamesByTarget, DescribeRule: events.DescribeRule, ListTargetsByRule: events.ListTargetsByRule,
			DescribeInstances:         ec2.NewFromConfig(cfg).DescribeInstances,
			DescribeAutoScalingGroups: groups.DescribeAutoScalingGroups, DescribeLifecycleHooks: groups.DescribeLifecycleHooks,
			CompleteLifecycleAction: groups.CompleteLifecycleAction, RecordLifecycleActionHeartbeat: groups.RecordLifecycleActionHeartbeat,
		},
		Cluster: doctor.Cluster{Client: s.kube, Version: func(context.Context) (string, error) { return "v1.36.3", nil }},
	}
	return s
}

const allowRules = `{"Statement": {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": ["sqs:SendMessage", "kms:GenerateDataKey", "kms:Decrypt"],
	"Resource": "*", "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/*"}}}}`

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// sick are the checks that are not well, with their status and words.
func (s *site) sick() map[string]doctor.Finding {
	s.Helper()
	sick := map[string]doctor.Finding{}
	for _, f := range doctor.Examine(s.Gather(s.Context())) {
		if f.Status != doctor.OK {
			sick[f.ID] = f
		}
	}
	return sick
}

func TestGatheringFindsAllWellAndTouchesNothing(t *testing.T) {
	s := newSite(t)
	id, err := s.aws.SendMessage("nth", "a message")
	s.must(err)
	actions, err := s.aws.StartTransition(instance, awssim.Terminating)
	s.must(err)
	before := len(s.aws.Effects())
	if sick := s.sick(); len(sick) > 0 {
		t.Errorf("not well: %+v", sick)
	}
	if after := s.aws.Effects(); len(after) != before {
		t.Errorf("it did something in AWS: %+v", after[before:])
	}
	if m := s.aws.Messages("nth"); m[0].ID != id || m[0].ReceiveCount != 0 || m[0].InFlight {
		t.Errorf("the message was touched: %+v", m)
	}
	if a := s.aws.LifecycleActions(); len(a) != 1 || a[0].Token != actions[0].Token || a[0].Outcome != awssim.Active || a[0].Heartbeats != 0 {
		t.Errorf("the lifecycle action was touched: %+v", a)
	}
	for _, action := range s.kube.Actions() {
		if verb := action.GetVerb(); verb != "get" && verb != "list" && !strings.HasPrefix(action.GetResource().Resource, "selfsubject") {
			t.Errorf("%s %s", verb, action.GetResource().Resource)
		}
	}
}

func TestMissingReadPermissionsLeaveChecksUnknown(t *testing.T) {
	for _, tt := range []struct {
		service, action, code string
		want                  []string
	}{
		{"events", "*", "AccessDeniedException", []string{"rule-spot", "rule-rebalance", "rule-state-change", "rule-health", "rule-asg-terminate", "rule-asg-launch", "rule-targets", "rule-dead-letters"}},
		{"kms", "*", "AccessDeniedException", []string{"queue-key"}},
		{"kms", "GetKeyPolicy", "AccessDeniedException", []string{"queue-key"}},
		{"sts", "*", "AccessDenied", []string{"credentials", "account"}},
		{"autoscaling", "DescribeAutoScalingGroups", "AccessDenied", []string{"group-tag"}},
	} {
		s := newSite(t)
		s.must(s.aws.SetFault(awssim.Fault{ID: "no", Service: tt.service, Action: tt.action, Code: tt.code, Status: http.StatusForbidden}))
		sick := s.sick()
		for _, id := range tt.want {
			if f := sick[id]; f.Status != doctor.Unknown || !strings.Contains(f.What, "permission "+tt.service+":") || f.Hint == "" {
				t.Errorf("%s %s: %s is %+v", tt.service, tt.action, id, f)
			}
		}
		if len(sick) != len(tt.want) {
			t.Errorf("%s %s: not well: %+v", tt.service, tt.action, sick)
		}
	}
}

func TestAPermissionOfTheHandlerThatIsMissingIsNamed(t *testing.T) {
	for _, tt := range []struct {
		service, action, code string
		want                  doctor.Status
	}{
		{"sqs", "ReceiveMessage", "AccessDenied", doctor.Failed},
		{"sqs", "DeleteMessage", "AccessDenied", doctor.Failed},
		{"sqs", "ChangeMessageVisibility", "AccessDenied", doctor.Warning},
		{"sqs", "GetQueueAttributes", "AccessDenied", doctor.Warning},
		{"ec2", "DescribeInstances", "UnauthorizedOperation", doctor.Failed},
		{"autoscaling", "DescribeLifecycleHooks", "AccessDenied", doctor.Warning},
		{"autoscaling", "CompleteLifecycleAction", "AccessDenied", doctor.Failed},
		{"autoscaling", "RecordLifecycleActionHeartbeat", "AccessDenied", doctor.Warning},
	} {
		s := newSite(t)
		s.must(s.aws.SetFault(awssim.Fault{ID: "no", Service: tt.service, Action: tt.action, Code: tt.code, Status: http.StatusForbidden}))
		if f := s.sick()["permissions"]; f.Status != tt.want || !strings.Contains(f.What, "lacks "+tt.service+":"+tt.action) {
			t.Errorf("%s %s: %+v", tt.service, tt.action, f)
		}
	}
}

func TestWhatDoesNotAnswerIsUnknownWhenTheTimeIsOver(t *testing.T) {
	s := newSite(t)
	s.Patience = 100 * time.Millisecond
	s.must(s.aws.SetFault(awssim.Fault{ID: "hang", Service: "events", Hang: true}))
	start := time.Now()
	if f := s.sick()["rule-spot"]; f.Status != doctor.Unknown || !strings.Contains(f.What, "no answer within 100ms") {
		t.Errorf("rule-spot: %+v", f)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestAQueueThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	s := newSite(t)
	s.Options.QueueURL = s.aws.QueueURL("other")
	if f := s.sick()["queue"]; f.Status != doctor.Failed || !strings.Contains(f.What, "there is no queue") {
		t.Errorf("queue: %+v", f)
	}
}

func TestAQueuesAttributesAreRead(t *testing.T) {
	s := newSite(t)
	s.must(s.aws.CreateQueue(awssim.Queue{Name: "nth", Attributes: map[string]string{
		"DelaySeconds": "90", "MessageRetentionPeriod": "60", "VisibilityTimeout": "43200", "FifoQueue": "true", "KmsMasterKeyId": "alias/aws/sqs",
		"RedrivePolicy": `{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 1}`, "Policy": "",
	}}))
	got := map[string]string{}
	for id, f := range s.sick() {
		got[id] = f.Status.String()
	}
	want := map[string]string{
		"queue-delay": "failed", "queue-retention": "failed", "queue-visibility": "warning", "queue-type": "failed",
		"queue-key": "failed", "queue-redrive": "warning", "queue-policy": "failed", "rule-targets": "failed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not well (-want +got):\n%s", diff)
	}
}

func TestAClusterThatCannotBeReachedDoesNotKeepTheRestFromBeingChecked(t *testing.T) {
	s := newSite(t)
	s.Cluster = doctor.Cluster{Err: fmt.Errorf("no kubeconfig")}
	sick := s.sick()
	if f := sick["api-server"]; f.Status != doctor.Failed || !strings.Contains(f.What, "no kubeconfig") {
		t.Errorf("api-server: %+v", f)
	}
	for _, id := range []string{"nodes", "rbac", "lease", "other-handlers", "group-hook"} {
		if sick[id].Status != doctor.Unknown {
			t.Errorf("%s: %+v", id, sick[id])
		}
	}
	if f, is := sick["queue-policy"]; is {
		t.Errorf("queue-policy: %+v", f)
	}
}

func TestHooksOfOthersDoNotCount(t *testing.T) {
	s := newSite(t)
	s.Options.HeartbeatInterval = 0
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "theirs", Transition: awssim.Terminating, HeartbeatTimeout: time.Second}))
	if f := s.sick()["hook-timeout"]; f.Status != doctor.Warning {
		t.Errorf("with a short hook: %+v", f)
	}
	s.Options.HookNames = []string{"drain"}
	if sick := s.sick(); len(sick) > 0 {
		t.Errorf("with a short hook of somebody else: %+v", sick)
	}
	if hook, err := s.TerminationHook(s.Context(), "workers"); err != nil || hook.Name != "drain" {
		t.Errorf("hook %+v, error %v", hook, err)
	}
	s.Options.HookNames = []string{"another"}
	if f := s.sick()["group-hook"]; f.Status != doctor.Warning {
		t.Errorf("without a hook of ours: %+v", f)
	}
}

func TestForbiddenListsAreUnknown(t *testing.T) {
	s := newSite(t)
	s.kube.PrependReactor("*", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	})
	if f := s.sick()["other-handlers"]; f.Status != doctor.Unknown || !strings.Contains(f.What, "permission list pods is missing") {
		t.Errorf("other-handlers: %+v", f)
	}
}
