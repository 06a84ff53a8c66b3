package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
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

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
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
			"MessageRetentionPeriod": "345600", "RedrivePolicy": `{"deadLetterTargetArn": "` + s.aws.QueueARN("dead") + `", "maxReceiveCount": "10"}`,
			"Policy": allowRules, "KmsMasterKeyId": "alias/queues",
		}}, {Name: "dead", Attributes: map[string]string{"MessageRetentionPeriod": "1209600", "Policy": allowRules}}},
		Keys:      []awssim.Key{{ID: "k-1", Alias: "alias/queues", Policy: allowRules}},
		Rules:     []awssim.Rule{{Name: "all", Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]}`, Queue: "nth", DeadLetters: "dead"}},
		Instances: []awssim.Instance{{ID: instance, Lifecycle: "spot", Tags: map[string]string{tag: ""}}},
		Groups:    []awssim.Group{{Name: "workers", Instances: []string{instance}, Tags: map[string]string{tag: ""}}},
		Hooks:     []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}},
	}))
	s.kube = fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + instance}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{
			NodeName: "a", TerminationGracePeriodSeconds: new(int64(60)),
			Containers: []corev1.Container{{Image: "nginx", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: "nth-1"}, Spec: corev1.PodSpec{
			NodeName: "a", ServiceAccountName: "nth", TerminationGracePeriodSeconds: new(int64(20)), Containers: []corev1.Container{{Image: "r/node-termination-handler:1"}},
		}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}},
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
	s.Gatherer = doctor.Gatherer{
		Patience: 5 * time.Minute,
		Options: doctor.Options{
			QueueURL: s.aws.QueueURL("nth"), QueueName: "nth", Account: "123456789012", Region: "us-east-1", Partition: "aws", EventAccounts: []string{"123456789012"}, CheckTag: true, ManagedTag: tag, Poll: true,
			Visibility: 20 * time.Second, LeaderElect: true, EmitEvents: true, Namespace: "nth", Lease: "a-lease", HeartbeatInterval: 30 * time.Second, HeartbeatUntil: time.Hour,
		},
		AWS:     doctor.AWS{Config: cfg},
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

// wantBecauseOf expects that all that is not well has the one cause.
func wantBecauseOf(t *testing.T, cause string, sick map[string]doctor.Finding) {
	t.Helper()
	for id, f := range sick {
		if id != cause && f.Because != cause {
			t.Errorf("%s has a cause of its own: %+v", id, f)
		}
	}
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
		{"events", "*", "AccessDeniedException", []string{"rule-spot", "rule-rebalance", "rule-state-change", "rule-health", "rule-asg-terminate", "rule-asg-launch", "rule-targets"}},
		{"kms", "DescribeKey", "AccessDeniedException", []string{"queue-key"}},
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
		delete(sick, "permissions")
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
		{"autoscaling", "DescribeAutoScalingGroups", "AccessDenied", doctor.Warning},
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

func TestThePermissionsOfAReplacementAreTriedWhereARuleAsksForOne(t *testing.T) {
	for _, action := range []string{"DescribeAutoScalingInstances", "SetInstanceHealth"} {
		for first, want := range map[bool]doctor.Status{true: doctor.Warning, false: doctor.Unknown} { // of what is well, nothing is known here
			s := newSite(t)
			s.Policy = func(context.Context) (doctor.Policy, error) {
				return doctor.Policy{Rules: decision.Rules{Nodes: []decision.NodeRule{{Name: "r", Do: decision.Draining, ReplaceFirst: first}}}}, nil
			}
			s.must(s.aws.SetFault(awssim.Fault{ID: "no", Service: "autoscaling", Action: action, Code: "AccessDenied", Status: http.StatusForbidden}))
			if f := s.sick()["permissions"]; f.Status != want || first && !strings.Contains(f.What, "lacks autoscaling:"+action) {
				t.Errorf("%s, first %t: %+v", action, first, f)
			}
		}
	}
}

func TestWhatDoesNotAnswerIsUnknownWhenTheTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Patience = 3 * time.Second
		s.must(s.aws.SetFault(awssim.Fault{ID: "hang", Service: "events", Hang: true}))
		if f := s.sick()["rule-spot"]; f.Status != doctor.Unknown || !strings.Contains(f.What, "no answer within 3s") {
			t.Errorf("rule-spot: %+v", f)
		}
	})
}

// A leader is judged by when its Lease was read, and by whether it is renewed, whatever the clocks say.
func TestALeaderLeadsHoweverLongTheOtherAnswersTake(t *testing.T) {
	for name, behind := range map[string]time.Duration{"the same clock": 0, "a clock an hour behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Patience = 2 * time.Minute
				s.must(s.aws.SetFault(awssim.Fault{ID: "hang", Service: "events", Hang: true}))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s.lease(func(l *coordinationv1.LeaseSpec) { l.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-behind)} })
				go func() {
					for retry.Sleep(ctx, time.Second) == nil {
						s.lease(func(l *coordinationv1.LeaseSpec) { l.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-behind)} })
					}
				}()
				if f, sick := s.sick()["lease"]; sick {
					t.Errorf("lease: %+v", f)
				}
			})
		})
	}
}

func TestAQueueThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	s := newSite(t)
	s.Options.QueueURL = s.aws.QueueURL("other")
	sick := s.sick()
	if f := sick["queue"]; f.Status != doctor.Failed || !strings.Contains(f.What, "there is no queue") {
		t.Errorf("queue: %+v", f)
	}
	wantBecauseOf(t, "queue", sick)
}

func TestAQueueThatHangsIsNotBlamedOnOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Patience = 3 * time.Second // the queue has a third of it
		s.must(s.aws.SetFault(awssim.Fault{ID: "hang", Service: "sqs", Hang: true}))
		sick := s.sick()
		if f := sick["queue"]; f.Status != doctor.Failed || !strings.Contains(f.What, "sqs:GetQueueAttributes: no answer within 1s") {
			t.Errorf("queue: %+v", f)
		}
		for id, f := range sick {
			if id != "queue" && (f.Status != doctor.Unknown || f.Because != "queue") {
				t.Errorf("%s: %+v", id, f)
			}
		}
		if f, is := sick["rule-spot"]; is {
			t.Errorf("rule-spot: %+v", f)
		}
	})
}

// printed is what people see of it.
func (s *site) printed() string {
	s.Helper()
	var out strings.Builder
	s.must(doctor.Print(&out, doctor.Examine(s.Gather(s.Context())), doctor.Style{}))
	return out.String()
}

func TestWithoutCredentialsDoctorSaysSoInSixLines(t *testing.T) {
	for name, err := range map[string]error{
		"none anywhere": fmt.Errorf("failed to refresh cached credentials, %w", fmt.Errorf("no EC2 IMDS role found, %w", errors.New("access disabled to EC2 IMDS"))),
		"refused by STS": &smithy.OperationError{ServiceID: "STS", OperationName: "AssumeRoleWithWebIdentity", Err: &smithy.GenericAPIError{
			Code: "AccessDenied", Message: "Not authorized to perform sts:AssumeRoleWithWebIdentity",
		}},
	} {
		s := newSite(t)
		s.AWS.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, err })
		out := s.printed()
		if lines := strings.Count(out, "\n"); lines > 6 {
			t.Errorf("%s: %d lines:\n%s", name, lines, out)
		}
		for _, want := range []string{"× credentials: there are no credentials of AWS: ", "checks are not asked because of this: ", " 1 failed, "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
		if calls := s.aws.Calls(); len(calls) > 0 {
			t.Errorf("%s: AWS was asked: %+v", name, calls)
		}
	}
}

func TestARegionThatIsNotTheEndpointsIsNamed(t *testing.T) {
	s := newSite(t)
	s.must(s.aws.SetFault(awssim.Fault{ID: "region", Code: "SignatureDoesNotMatch", Status: http.StatusForbidden, Message: "Credential should be scoped to a valid region."}))
	sick := s.sick()
	if f := sick["credentials"]; f.Status != doctor.Failed || !strings.Contains(f.Hint, "aws-region") {
		t.Errorf("credentials: %+v", f)
	}
	wantBecauseOf(t, "credentials", sick)
}

func TestAQueuesAttributesAreRead(t *testing.T) {
	s := newSite(t)
	s.must(s.aws.CreateQueue(awssim.Queue{Name: "nth", Attributes: map[string]string{
		"DelaySeconds": "90", "MessageRetentionPeriod": "60", "KmsMasterKeyId": "alias/aws/sqs",
		"RedrivePolicy": `{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 1}`, "Policy": "",
	}}))
	got := map[string]string{}
	for id, f := range s.sick() {
		got[id] = f.Status.String()
	}
	want := map[string]string{
		"queue-delay": "failed", "queue-retention": "failed",
		"queue-key": "failed", "queue-redrive": "warning", "queue-policy": "failed",
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
	for _, id := range []string{"handler", "nodes", "rbac", "lease", "other-handlers", "group-hook"} {
		if sick[id].Status != doctor.Unknown || sick[id].Because != "api-server" {
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
	s.Options.HookNames = nil
	if hook, err := s.TerminationHook(s.Context(), "workers"); err != nil || hook.Name != "theirs" {
		t.Errorf("of two hooks the one that ends first: %+v, error %v", hook, err)
	}
	s.Options.HookNames = []string{"another"}
	if f := s.sick()["group-hook"]; f.Status != doctor.Warning {
		t.Errorf("without a hook of ours: %+v", f)
	}
}

func TestInstancesOfAnAccountWhoseNoticesAreIgnoredAreFound(t *testing.T) {
	s := newSite(t)
	s.Options.EventAccounts = []string{"210987654321"}
	sick := s.sick()
	if f := sick["event-accounts"]; f.Status != doctor.Failed || !strings.HasSuffix(f.What, ": a (123456789012)") {
		t.Errorf("event-accounts: %+v", f)
	}
}

func TestARegionIsReadFromTheNode(t *testing.T) {
	for _, tt := range []struct{ label, providerID, want string }{
		{"", "aws:///us-east-1a/" + instance, "us-east-1"},
		{"", "aws:///us-west-2-lax-1a/" + instance, "us-west-2"},
		{"", "aws:///us-east-1-wl1-bos-wlz-1/" + instance, "us-east-1"},
		{"", "aws:///us-gov-west-1b/" + instance, "us-gov-west-1"},
		{"eu-west-1", "aws:///us-east-1a/" + instance, "eu-west-1"},
		{"", "aws:///" + instance, ""},
		{"", "eks-hybrid:///us-west-2/cluster/mi-0", ""},
		{"", "", ""},
	} {
		node := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: tt.providerID}}
		if tt.label != "" {
			node.Labels = map[string]string{corev1.LabelTopologyRegion: tt.label}
		}
		if got := doctor.RegionOf(node); got != tt.want {
			t.Errorf("region of %+v is %q, want %q", tt, got, tt.want)
		}
	}
}

func TestANodeThatIsCordonedOrNotReadyTakesNoPod(t *testing.T) {
	for name, tt := range map[string]struct {
		cordoned bool
		ready    corev1.ConditionStatus
		want     bool
	}{
		"a node that is ready":     {false, corev1.ConditionTrue, false},
		"a node that is cordoned":  {true, corev1.ConditionTrue, true},
		"a node that is not ready": {false, corev1.ConditionUnknown, true},
	} {
		node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: tt.cordoned}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: tt.ready}},
		}}
		if got := doctor.NodeOf(node).Full; got != tt.want {
			t.Errorf("%s: full %t", name, got)
		}
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

func TestACrashingHandlerIsFoundWithItsLastLine(t *testing.T) {
	s := newSite(t)
	pod, err := s.kube.CoreV1().Pods("nth").Get(s.Context(), "nth-1", metav1.GetOptions{})
	s.must(err)
	crash := func(message string) {
		pod.Status = corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
			ContainerStatuses: []corev1.ContainerStatus{{
				RestartCount:         5,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error", Message: message}},
			}},
		}
		_, err := s.kube.CoreV1().Pods("nth").UpdateStatus(s.Context(), pod, metav1.UpdateOptions{})
		s.must(err)
	}
	for message, want := range map[string]string{
		"2 mistakes:\nqueue-url: is required\n": "pod nth-1 has ended 5 times, with status 2: queue-url: is required",
		"":                                      "pod nth-1 has ended 5 times, with status 2",
	} {
		crash(message)
		if f := s.sick()["handler"]; f.Status != doctor.Failed || !strings.HasSuffix(f.What, want) {
			t.Errorf("with the message %q: %+v", message, f)
		}
	}
}

func TestAHandlerIsFoundInAnyNamespaceByItsQueue(t *testing.T) {
	s := newSite(t)
	s.as("admin")
	s.must(s.kube.CoreV1().Pods("nth").Delete(s.Context(), "nth-1", metav1.DeleteOptions{}))
	_, err := s.kube.AppsV1().Deployments("elsewhere").Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "handler", Namespace: "elsewhere"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Image: "r/node-termination-handler:1", Env: []corev1.EnvVar{{Name: "QUEUE_URL", Value: s.Options.QueueURL}}}},
		}}},
	}, metav1.CreateOptions{})
	s.must(err)
	if f := s.sick()["handler"]; f.Status != doctor.Failed || !strings.Contains(f.What, "elsewhere/handler has no pod") {
		t.Errorf("handler: %+v", f)
	}
}

// as has the API server say that somebody calls it.
func (s *site) as(user string) {
	s.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authnv1.SelfSubjectReview{Status: authnv1.SelfSubjectReviewStatus{UserInfo: authnv1.UserInfo{Username: user}}}, nil
	})
}

func TestAPersonAsksForTheHandlersRightsAndNotForTheirOwn(t *testing.T) {
	s := newSite(t)
	s.as("admin")
	var groups []string
	s.kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authzv1.SubjectAccessReview)
		groups = review.Spec.Groups
		allowed := review.Spec.User == "system:serviceaccount:nth:nth" && review.Spec.ResourceAttributes.Subresource != "eviction"
		return true, &authzv1.SubjectAccessReview{Status: authzv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil
	})
	sick := s.sick()
	if f := sick["rbac"]; f.Status != doctor.Failed || f.What != "system:serviceaccount:nth:nth has no permission to create pods/eviction" {
		t.Errorf("rbac: %+v", f)
	}
	if diff := cmp.Diff([]string{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:nth"}, groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	// What the role may do, only a call with it tells.
	f := sick["permissions"]
	if f.Status != doctor.Unknown || f.Because != "doctor does not run with that role" || len(f.Commands) != 1 ||
		f.Commands[0] != "kubectl -n nth exec nth-1 -- /node-termination-handler doctor" {
		t.Errorf("permissions: %+v", f)
	}

	// Who may not ask for others knows nothing of them.
	s.kube.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}, "", nil)
	})
	if f := s.sick()["rbac"]; f.Status != doctor.Unknown ||
		!strings.Contains(f.What, "permission create subjectaccessreviews.authorization.k8s.io is missing") {
		t.Errorf("rbac: %+v", f)
	}
}

// SQS asks KMS with the role's permissions, and only when there is a message.
func TestTheRoleNeedsTheKeyOfTheQueue(t *testing.T) {
	const others = `{"Effect": "Allow", "NotAction": "kms:Decrypt", "Resource": "*"}`
	decrypts := func(condition string) string {
		return `{"Statement": [` + others + `, {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "arn:aws:kms:us-east-1:123456789012:key/k-1", "Condition": {` + condition + `}}]}`
	}
	const throughSQS = `"StringEquals": {"kms:ViaService": "sqs.us-east-1.amazonaws.com"}`
	for _, tt := range []struct {
		name, policy string
		want         doctor.Status
	}{
		{"a role without it", `{"Statement": [` + others + `]}`, doctor.Unknown},
		{"a role with it", decrypts(""), doctor.OK},
		{"a role that has it through SQS alone", decrypts(throughSQS), doctor.Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			own := fmt.Sprintf(`{"Statement": [%s, {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*", "Resource": "*"}]}`,
				strings.TrimSuffix(strings.TrimPrefix(allowRules, `{"Statement": `), "}"))
			s.must(s.aws.SetKeyPolicy("k-1", own))
			s.role(tt.policy)
			if f := s.sick()["queue-decrypt"]; f.Status != tt.want && (tt.want != doctor.OK || f.ID != "") {
				t.Errorf("%+v", f)
			}
		})
	}
}

// role gives a role to the caller, with this policy.
func (s *site) role(policy string) {
	s.Helper()
	credentials, err := s.AWS.Credentials.Retrieve(s.Context())
	s.must(err)
	s.must(s.aws.PutRole(awssim.Role{Name: "handler", AccessKeyID: credentials.AccessKeyID, Policy: policy}))
}

func TestTheRightsOfTheRoleMayDependOnATagOfTheGroup(t *testing.T) {
	s := newSite(t)
	s.role(`{"Statement": [
		{"Effect": "Allow", "Action": ["sqs:*", "ec2:*", "autoscaling:Describe*"], "Resource": "*"},
		{"Effect": "Allow", "Action": ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"], "Resource": "*",
			"Condition": {"Null": {"aws:ResourceTag/kubernetes.io/cluster/prod": "false"}}}]}`)
	if f := s.sick()["permissions"]; f.Status != doctor.Failed || !strings.Contains(f.What, "autoscaling:CompleteLifecycleAction") {
		t.Errorf("without the tag: %+v", f)
	}
	s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{instance}, Tags: map[string]string{tag: "", "kubernetes.io/cluster/prod": "owned"}}))
	if f, is := s.sick()["permissions"]; is {
		t.Errorf("with the tag: %+v", f)
	}
}

// Each group has its own tags, and the role may be for some of them.
func TestTheRightsOfTheRoleAreAskedForOnEachGroup(t *testing.T) {
	s := newSite(t)
	s.role(`{"Statement": [
		{"Effect": "Allow", "Action": ["sqs:*", "ec2:*", "autoscaling:Describe*"], "Resource": "*"},
		{"Effect": "Allow", "Action": ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"],
			"Resource": "arn:aws:autoscaling:us-east-1:123456789012:*:autoScalingGroupName/workers"}]}`)
	if f, is := s.sick()["permissions"]; is {
		t.Errorf("with the one group: %+v", f)
	}
	const other = "i-00000000000000abc"
	s.must(s.aws.PutInstance(awssim.Instance{ID: other, Tags: map[string]string{tag: ""}}))
	s.must(s.aws.PutGroup(awssim.Group{Name: "another", Instances: []string{other}, Tags: map[string]string{tag: ""}}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "another", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}))
	s.must(s.kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + other}}))
	f := s.sick()["permissions"]
	if f.Status != doctor.Failed || !strings.Contains(f.What, "autoscaling:CompleteLifecycleAction on the Auto Scaling group another") ||
		strings.Contains(f.What, "workers") {
		t.Errorf("with another group: %+v", f)
	}
}

// EKS completes the hooks of its groups, and the handler leaves them to it.
func TestTheHooksOfManagedNodeGroupsAreLeftToEKS(t *testing.T) {
	s := newSite(t)
	s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{instance}, Tags: map[string]string{tag: "", "eks:nodegroup-name": "blue"}}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "Launch-LC-Hook", Transition: awssim.Launching, HeartbeatTimeout: 5 * time.Minute}))
	s.must(s.aws.PutRule(awssim.Rule{Name: "all", Pattern: `{"source": ["aws.ec2", "aws.health"]}`, Queue: "nth", DeadLetters: "dead"}))
	if sick := s.sick(); len(sick) > 0 {
		t.Errorf("not well: %+v", sick)
	}
	s.must(s.aws.PutRule(awssim.Rule{Name: "all", Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]}`, Queue: "nth", DeadLetters: "dead"}))
	if f := s.sick()["group-hook"]; f.Status != doctor.Warning || !strings.Contains(f.What, "the handler completes the hooks of EKS too") {
		t.Errorf("with a rule that tells of them: %+v", f)
	}
	s.must(s.aws.PutRule(awssim.Rule{Name: "all", Pattern: `{"source": ["aws.ec2", "aws.health"]}`, Queue: "nth", DeadLetters: "dead"}))
	s.Options.HookNames = []string{"drain"}
	if f := s.sick()["rule-asg-terminate"]; f.Status != doctor.Failed {
		t.Errorf("with the name of the hook: %+v", f)
	}
}

func TestAThousandNodesAreLookedAtInFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		const nodes, groups = 1000, 50
		members := make([][]string, groups)
		for k := range nodes {
			id := fmt.Sprintf("i-%017x", k)
			s.must(s.aws.PutInstance(awssim.Instance{ID: id, Tags: map[string]string{tag: ""}}))
			members[k%groups] = append(members[k%groups], id)
			s.must(s.kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + id}}))
		}
		for k := range groups {
			name := fmt.Sprintf("group-%d", k)
			s.must(s.aws.PutGroup(awssim.Group{Name: name, Instances: members[k], Tags: map[string]string{tag: ""}}))
			s.must(s.aws.PutHook(awssim.Hook{Group: name, Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}))
		}
		// An answer of AWS takes 100 ms and more from another continent.
		s.must(s.aws.SetFault(awssim.Fault{ID: "far", Latency: 300 * time.Millisecond}))
		before, start := len(s.aws.Calls()), time.Now()
		if sick := s.sick(); len(sick) > 0 {
			t.Errorf("not well: %+v", sick)
		}
		took, calls := time.Since(start), len(s.aws.Calls())-before
		t.Logf("%s, %d calls", took, calls)
		if took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if most := 2*groups + nodes/200 + 20; calls > most { // two calls a group: for its hooks, and whether they may be completed
			t.Errorf("%d calls, want %d at most", calls, most)
		}
	})
}
