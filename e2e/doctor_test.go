package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// run runs a command of the binary with the handler's rights and options, and
// returns its exit status and what it wrote.
func (s *scenario) run(stdin string, args ...string) (status int, out, errOut string) {
	s.Helper()
	args = append(slices.Clone(args), "--release=none") // the replicas are no pods
	otherRights.Store(s.name, true)
	kubeconfig, err := shared.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	ctx, cancel := context.WithTimeout(s.ctx, soon)
	defer cancel()
	cmd := release.Replica{
		Program: program, Kubeconfig: kubeconfig, Namespace: s.name, QueueURL: s.aws.QueueURL(queueName), Endpoint: s.endpoint,
		AccessKeyID: "AKIDCOMMAND", Args: args,
	}.Command(ctx)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		s.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// A finding is a check of doctor.
type finding struct{ ID, Status, What string }

// findings are all checks of doctor.
func (s *scenario) findings(args ...string) ([]finding, int) {
	s.Helper()
	status, out, errOut := s.run("", slices.Concat([]string{"doctor", "--output=json"}, args)...)
	var report struct{ Checks []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		s.Fatalf("%v in %s%s", err, out, errOut)
	}
	return report.Checks, status
}

// finding is one check of doctor.
func (s *scenario) finding(id string) finding {
	s.Helper()
	all, _ := s.findings()
	for _, f := range all {
		if f.ID == id {
			return f
		}
	}
	return finding{}
}

// diagnosis are the checks of doctor that are not well, with their status.
func (s *scenario) diagnosis(args ...string) (map[string]string, int) {
	s.Helper()
	all, status := s.findings(args...)
	sick := map[string]string{}
	for _, c := range all {
		switch {
		case c.ID == "nodes": // the cluster is shared: those of other scenarios have no instance here
			if !strings.Contains(c.What, " are covered") {
				s.Errorf("nodes: %s", c.What)
			}
		case strings.HasPrefix(c.ID, "rule-capacity-") && c.Status == "unknown": // nor does anybody know in what reservation they are
			if !strings.Contains(c.What, "whether an instance behind a node is in ") {
				s.Errorf("%s: %s", c.ID, c.What)
			}
		case c.ID == "credentials-source": // static, and rightly not liked
			if c.Status != "warning" && !strings.HasSuffix(c.What, "; it does not run as the handler") {
				s.Errorf("credentials: %s", c.What)
			}
		case c.ID == "other-handlers" && c.Status == "warning": // another scenario has brought one along, for its own queue
		case c.Status != "ok":
			sick[c.ID] = c.Status
		}
	}
	return sick, status
}

// allowRules is a policy that lets rules of the account in, and use a key.
const allowRules = `{"Statement": {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": ["sqs:SendMessage", "kms:GenerateDataKey", "kms:Decrypt"],
	"Resource": "*", "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/*"}}}}`

// healthyQueue are the attributes of a queue that nothing is wrong with.
func (s *scenario) healthyQueue() map[string]string {
	return map[string]string{
		"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "MaximumMessageSize": "1048576", "KmsMasterKeyId": "",
		"Policy": allowRules, "RedrivePolicy": `{"deadLetterTargetArn": "` + s.aws.QueueARN("dead") + `", "maxReceiveCount": 10}`,
	}
}

// rule lets events of the sources in, and has a queue for those it cannot deliver.
func rule(sources ...string) awssim.Rule {
	return awssim.Rule{Name: "all", Queue: queueName, DeadLetters: "dead", Pattern: `{"source": ["` + strings.Join(sources, `", "`) + `"]}`}
}

func TestDoctorFindsWhatIsBrokenAndNothingElse(t *testing.T) {
	tier.Full(t, "27 runs of doctor; internal/doctor has each pitfall")
	s := newScenario(t)
	n := s.nodes(1)[0]
	hook := awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}
	all := rule("aws.ec2", "aws.health", "aws.autoscaling")
	heal := func() {
		s.Helper()
		s.must(s.aws.Apply(awssim.State{
			Queues:    []awssim.Queue{{Name: queueName, Attributes: s.healthyQueue()}, {Name: "dead", Attributes: map[string]string{"MessageRetentionPeriod": "1209600", "Policy": allowRules}}},
			Instances: []awssim.Instance{{ID: n.instance, Lifecycle: "spot", Tags: managed}},
			Groups:    []awssim.Group{{Name: "workers", Instances: []string{n.instance}, Tags: managed}},
			Hooks:     []awssim.Hook{hook},
			Keys:      []awssim.Key{{ID: "k", Policy: allowRules}},
			Rules:     []awssim.Rule{all},
		}))
	}
	heal()
	s.handlerPod(n.name)
	if sick, status := s.diagnosis(); len(sick) > 0 || status != 3 { // for the static keys
		t.Fatalf("status %d, not well: %v", status, sick)
	}
	attribute := func(name, value string) func() {
		return func() {
			s.must(s.aws.CreateQueue(awssim.Queue{Name: queueName, Attributes: map[string]string{name: value}}))
		}
	}
	put := func(r awssim.Rule) func() { return func() { s.must(s.aws.PutRule(r)) } }
	deny := func(service, action, code string) func() {
		return func() {
			s.must(s.aws.SetFault(awssim.Fault{ID: "deny", Service: service, Action: action, Code: code, Status: 403}))
		}
	}
	disabled := all
	disabled.Disabled = true
	every := func(status string, ids ...string) map[string]string {
		m := map[string]string{}
		for _, id := range ids {
			m[id] = status
		}
		return m
	}
	for _, tt := range []struct {
		name   string
		ail    func()
		want   map[string]string
		status int
	}{
		{"a delay of 90 s", attribute("DelaySeconds", "90"), every("failed", "queue-delay"), 1},
		{"a retention of a minute", attribute("MessageRetentionPeriod", "60"), every("failed", "queue-retention"), 1},
		{"a retention of five minutes", attribute("MessageRetentionPeriod", "300"), every("warning", "queue-retention"), 3},
		{"no dead-letter queue", attribute("RedrivePolicy", ""), every("warning", "queue-redrive"), 3},
		{"a queue that is too small", attribute("MaximumMessageSize", "2048"), every("failed", "queue-size"), 1},
		{"AWS's own key", attribute("KmsMasterKeyId", "alias/aws/sqs"), every("failed", "queue-key"), 1},
		{"a key that nobody has", attribute("KmsMasterKeyId", "lost"), map[string]string{"queue-key": "failed", "queue-decrypt": "unknown"}, 1},
		{"a key that the role may not use", func() {
			attribute("KmsMasterKeyId", "k")()
			deny("kms", "Decrypt", "AccessDeniedException")()
		}, every("unknown", "queue-decrypt"), 4},
		{"a key of one's own", attribute("KmsMasterKeyId", "k"), nil, 3},
		{"a queue that EventBridge may not write to", attribute("Policy", ""), every("failed", "queue-policy"), 1},
		{"a policy for everybody", attribute("Policy", `{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}}`), every("failed", "queue-policy-open"), 1},
		{"a rule with a typo", put(rule("aws.ec2", "aws.health", "aws.auto-scaling")), every("warning", "rule-asg-terminate"), 3}, // the sweep finds them
		{"a rule that is disabled", put(disabled), map[string]string{
			"rule-spot": "failed", "rule-rebalance": "warning", "rule-state-change": "warning", "rule-health": "warning", "rule-asg-terminate": "warning",
		}, 1},
		{"a launch hook that nobody hears of", func() {
			put(awssim.Rule{Name: "all", Queue: queueName, DeadLetters: "dead", Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"], "detail-type": [{"anything-but": "EC2 Instance-launch Lifecycle Action"}]}`})()
			s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "join", Transition: awssim.Launching}))
		}, every("warning", "rule-asg-launch"), 3},
		{"no tag on the group", func() { s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{n.instance}})) }, every("warning", "group-tag"), 3},
		{"no right to receive", deny("sqs", "ReceiveMessage", "AccessDenied"), every("failed", "permissions"), 1},
		{"no right to complete", deny("autoscaling", "CompleteLifecycleAction", "AccessDenied"), every("failed", "permissions"), 1},
		{"rules that may not be read", deny("events", "*", "AccessDeniedException"), every("unknown",
			"rule-spot", "rule-rebalance", "rule-state-change", "rule-health", "rule-asg-terminate", "rule-asg-launch", "rule-targets"), 4},
	} {
		tt.ail()
		sick, status := s.diagnosis()
		if tt.want == nil {
			tt.want = map[string]string{}
		}
		if diff := cmp.Diff(tt.want, sick); diff != "" || status != tt.status {
			t.Errorf("%s: status %d, want %d; not well (-want +got):\n%s", tt.name, status, tt.status, diff)
		}
		s.aws.RemoveFault("deny")
		heal()
	}

	if sick, status := s.diagnosis("--event-accounts=210987654321"); sick["event-accounts"] != "failed" || sick["account"] != "failed" || status != 1 {
		t.Errorf("where notices of another account alone are acted on: status %d, not well: %v", status, sick)
	}

	// What is in the cluster is looked at with the handler's own rights.
	s.pod("slow", n.name, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
	if sick, _ := s.diagnosis(); sick["hook-timeout"] != "warning" {
		t.Errorf("with a pod that takes 10 minutes to stop, not well: %v", sick)
	}
	s.pod("nth", n.name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "QUEUE_URL", Value: s.aws.QueueURL(queueName)}}
	})
	if sick, _ := s.diagnosis(); sick["other-handlers"] != "failed" {
		t.Errorf("with another handler on the queue, not well: %v", sick)
	}
	// The cluster outlives the scenario, and doctor sees all of it.
	s.must(s.kube.CoreV1().Pods(s.name).Delete(s.ctx, "nth", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	role := `[{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "watch"]}]`
	_, err := s.kube.RbacV1().ClusterRoles().Patch(s.ctx, s.name, types.JSONPatchType, []byte(role), metav1.PatchOptions{})
	s.must(err)
	s.eventually("doctor misses the right to patch nodes", func() bool {
		sick, status := s.diagnosis()
		return sick["rbac"] == "failed" && status == 1
	})
	for _, w := range s.writes() {
		if !strings.HasPrefix(w.Resource, "selfsubject") {
			t.Errorf("doctor did %s %s %s", w.Verb, w.Resource, w.Name)
		}
	}
}

// handlerPod is a pod of the release, which leads. What it would do is none of doctor's business.
func (s *scenario) handlerPod(on string) {
	s.Helper()
	s.pod("handler", on, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": release.Name}
		p.Spec.ServiceAccountName = release.Name
		p.Spec.TerminationGracePeriodSeconds = new(int64(20))
	})
	_, err := s.kube.CoordinationV1().Leases(s.name).Create(s.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: release.Name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("handler"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

// shippedPolicy is deploy/iam/policy.json for the scenario's queue, without the
// statements of some ids.
func (s *scenario) shippedPolicy(without ...string) string {
	s.Helper()
	policy, err := release.Policy(filepath.Join("..", "deploy", "iam", "policy.json"), account, queueName, "dead")
	s.must(err)
	var document struct{ Statement []map[string]any }
	s.must(json.Unmarshal([]byte(policy), &document))
	document.Statement = slices.DeleteFunc(document.Statement, func(statement map[string]any) bool { return slices.Contains(without, statement["Sid"].(string)) })
	text, err := json.Marshal(document)
	s.must(err)
	return string(text)
}

func TestDoctorSeesBothSidesInOneRun(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.handlerPod(n.name)
	all := rule("aws.ec2", "aws.health", "aws.autoscaling")
	s.must(s.aws.Apply(awssim.State{
		Queues:    []awssim.Queue{{Name: queueName, Attributes: s.healthyQueue()}, {Name: "dead", Attributes: map[string]string{"Policy": allowRules, "MessageRetentionPeriod": "1209600"}}},
		Instances: []awssim.Instance{{ID: n.instance, Lifecycle: "spot", Tags: managed}},
		Groups:    []awssim.Group{{Name: "workers", Instances: []string{n.instance}, Tags: managed}},
		Hooks:     []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}},
		Rules:     []awssim.Rule{all},
	}))
	role := func(policy string) {
		s.must(s.aws.PutRole(awssim.Role{Name: "handler", AccessKeyID: "AKIDCOMMAND", Policy: policy}))
	}

	// In the pod, with the shipped role.
	role(s.shippedPolicy())
	if sick, status := s.diagnosis(); len(sick) > 0 || status != 3 { // for the static keys
		t.Errorf("all is well: status %d, not well: %v", status, sick)
	}
	if status, out, errOut := s.run("", "doctor", "--accept=credentials-source,nodes,other-handlers"); status != 0 {
		t.Errorf("with the warnings accepted: status %d\n%s%s", status, out, errOut)
	}
	if status, _, errOut := s.run("", "doctor", "--accept=nope"); status != 2 || !strings.Contains(errOut, `there is no check with the id "nope": credentials, `) {
		t.Errorf("with an id of no check: status %d: %s", status, errOut)
	}
	s.aws.RemoveRule("all")
	if sick, status := s.diagnosis(); sick["rule-spot"] != "failed" || sick["rule-asg-terminate"] != "warning" || status != 1 {
		t.Errorf("without a rule: status %d, not well: %v", status, sick)
	}
	role(s.shippedPolicy("DoctorReads", "DoctorReadsQueues"))
	if sick, status := s.diagnosis(); sick["rule-spot"] != "unknown" || status != 4 {
		t.Errorf("without doctor's permissions: status %d, not well: %v", status, sick)
	}
	status, out, errOut := s.run("", "doctor")
	last := out[strings.LastIndexByte(strings.TrimSpace(out), '\n')+1:]
	if status != 4 || !strings.HasPrefix(last, "? ") || strings.Count(out, "events:ListRuleNamesByTarget") != 1 {
		t.Errorf("without doctor's permissions: status %d\n%s%s", status, out, errOut)
	}

	// Beside the cluster, with an administrator's rights in both.
	s.must(s.aws.PutRule(all))
	s.must(s.aws.PutRole(awssim.Role{Name: "handler", AccessKeyID: "AKIDHANDLER", Policy: s.shippedPolicy()}))
	admin := "--kubeconfig=" + shared.Kubeconfig()
	if sick, status := s.diagnosis(admin); sick["permissions"] != "unknown" || status != 4 {
		t.Errorf("beside: status %d, not well: %v", status, sick)
	}
	status, out, errOut = s.run("", "doctor", admin)
	for _, want := range []string{
		"? permissions: what the handler's role has permission for: doctor does not run with that role\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("beside: status %d, no %q in\n%s%s", status, want, out, errOut)
		}
	}
	s.hasAllRights(out)
	s.must(s.kube.RbacV1().ClusterRoleBindings().Delete(s.ctx, s.name, metav1.DeleteOptions{}))
	s.eventually("doctor misses the rights in the cluster", func() bool {
		sick, status := s.diagnosis(admin)
		return sick["rbac"] == "failed" && status == 1
	})
}

func TestDoctorTellsPeopleWhatToDo(t *testing.T) {
	tier.Full(t, "internal/doctor has the text")
	s := newScenario(t)
	s.must(s.aws.PutInstance(awssim.Instance{ID: s.nodes(1)[0].instance, Lifecycle: "spot", Tags: managed}))
	status, out, errOut := s.run("", "doctor")
	if status != 1 {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
	for _, want := range []string{
		"credentials\n-----------\n√ credentials: AWS is called as arn:aws:iam::123456789012:user/AKIDCOMMAND\n",
		"‼ credentials-source: the credentials are static keys in the environment\n",
		"× queue-policy: the queue has no policy: EventBridge has no permission to send to it, and drops what it cannot deliver\n    allow sqs:SendMessage to the service events.amazonaws.com",
		"    see https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/doctor.md#queue-policy\n",
		"× rule-spot: no rule sends spot interruption warnings to the queue: spot instances go away without a drain\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	s.hasAllRights(out)
}

// hasAllRights checks what doctor says of the rights of the handler. It needs two more where another scenario has made
// TargetGroupBindings known.
func (s *scenario) hasAllRights(doctor string) {
	s.Helper()
	line := "√ rbac: system:serviceaccount:" + s.name + ":node-termination-handler has the %d rights that the handler needs\n"
	if !strings.Contains(doctor, fmt.Sprintf(line, 18)) && !strings.Contains(doctor, fmt.Sprintf(line, 20)) {
		s.Errorf("no %q with 18 or 20 in\n%s", line, doctor)
	}
}

func TestSimulateSendsEachKindAndFollowsItToTheEnd(t *testing.T) {
	s := newScenario(t)
	kinds := []string{"spot", "rebalance", "state-change", "health", "asg-terminate"}
	nodes := s.nodes(len(kinds))
	s.must(s.aws.Apply(awssim.State{
		Groups: []awssim.Group{{Name: "workers", Instances: []string{nodes[4].instance}}},
		Hooks:  []awssim.Hook{{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}},
	}))
	for _, n := range nodes {
		s.pod("pod-"+n.name, n.name, func(p *corev1.Pod) { p.Annotations[sandbox.StopAfter] = stopAfter(500 * time.Millisecond) })
	}
	s.leader()
	type result struct {
		kind, out, errOut string
		status            int
	}
	results := make(chan result, len(kinds))
	for k, kind := range kinds {
		go func() {
			r := result{kind: kind}
			r.status, r.out, r.errOut = s.run("y\n", "simulate", kind, "--node", nodes[k].name)
			results <- r
		}()
	}
	for range kinds {
		r := <-results
		at := slices.Index(kinds, r.kind)
		n := nodes[at]
		if r.status != 0 {
			t.Errorf("%s: status %d\n%s%s", r.kind, r.status, r.out, r.errOut)
			continue
		}
		t.Logf("simulate %s:\n%s", r.kind, r.out)
		rest := r.out
		for _, want := range []string{
			"With the options of the command line and the environment (as --release none says); in AWS as arn:aws:iam::123456789012:user/AKIDCOMMAND; " +
				"in Kubernetes with the rights of system:serviceaccount:" + s.name + ":node-termination-handler.\n",
			fmt.Sprintf("this will drain %s: 1 pod, 1 without a controller, longest grace 30 s; continue? [y/N]", n.name),
			"notice sent about instance " + n.instance + "\n", "drained, 0 of 1 pod left\n", "undo: kubectl uncordon " + n.name,
		} {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: no %q in\n%s", r.kind, want, r.out)
				break
			}
			rest = after
		}
		if !s.cordoned(n.name) || s.podExists("pod-"+n.name) {
			t.Errorf("%s: node %s was not drained", r.kind, n.name)
		}
	}
	s.eventually("all messages are deleted", func() bool { return len(s.aws.Messages(queueName)) == 0 })
	for _, i := range s.aws.Instances() {
		if i.State != "running" {
			t.Errorf("instance %s is %s: simulate must not touch it", i.ID, i.State)
		}
	}
}

func TestSimulateSendsNothingUnlessItMay(t *testing.T) {
	tier.Full(t, "internal/tool has the refusals")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.must(s.aws.PutInstance(awssim.Instance{ID: s.id(1)}))
	s.join(s.name+"-untagged", s.id(1))
	for _, tt := range []struct {
		name, stdin string
		args        []string
		status      int
		want        string
	}{
		{"without a yes", "\n", []string{"spot", "--node", n.name}, 1, "nothing was sent: answer y, or set --yes"},
		{"without anybody to ask", "", []string{"spot", "--node", n.name}, 1, "nothing was sent"},
		{"for show", "", []string{"spot", "--node", n.name, "--dry-run"}, 0, `"detail": {"instance-id": "` + n.instance + `", "instance-action": "terminate"}`},
		{"for a node that is not there", "", []string{"spot", "--node", "none", "--yes"}, 1, `get node none: nodes "none" not found`},
		{"for an instance without the tag", "", []string{"spot", "--node", s.name + "-untagged", "--yes"}, 1, "has no tag aws-node-termination-handler/managed"},
		{"for a group that is none", "", []string{"asg-terminate", "--node", n.name, "--yes"}, 1, "is in no Auto Scaling group"},
	} {
		status, out, errOut := s.run(tt.stdin, append([]string{"simulate"}, tt.args...)...)
		if status != tt.status || !strings.Contains(out+errOut, tt.want) {
			t.Errorf("%s: status %d, want %d and %q\n%s%s", tt.name, status, tt.status, tt.want, out, errOut)
		}
	}
	if m := s.aws.Messages(queueName); len(m) > 0 {
		t.Errorf("messages were sent: %+v", m)
	}
	s.untouched(n, 0)
}

func TestWhatIfSaysWhatWouldHappenAndDoesNothing(t *testing.T) {
	tier.Full(t, "internal/rehearsal and internal/tool have it")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 2, grace(30, 0)) // before there is another node that they could go to
	s.budget("web", "web", 2)
	s.must(s.aws.PutInstance(awssim.Instance{ID: s.id(1)}))
	s.join(s.name+"-untagged", s.id(1))
	odd := s.name + "-odd" // no notice can name its instance
	s.join(odd, "i-0dd")
	s.pod("slow", n.name, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
	before := s.getNode(n.name)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"spot"}, []string{", spot-interruption: the node must be empty in 120 s", "gets 118 s of its 600 s; no controller", "pods would have to leave; 1 without a controller", "nothing is left at the deadline, after 120 s"}},
		{nil, []string{", spot-interruption: "}},
		{[]string{"REBALANCE_RECOMMENDATION"}, []string{", rebalance-recommendation: nothing is forced", "left after 120 s: " + s.name + "/slow"}},
		{[]string{"StateChange"}, []string{"PodDisruptionBudgets do not count", "deleted"}},
	} {
		status, out, errOut := s.run("", slices.Concat([]string{"what-if", "--node", n.name}, tt.args)...)
		if status != 3 { // nothing makes that pod anew
			t.Errorf("%q: status %d: %s", tt.args, status, errOut)
		}
		t.Logf("what-if %q:\n%s", tt.args, out)
		for _, want := range append(tt.want, "would not be created again: "+s.name+"/slow") {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in\n%s", tt.args, want, out)
			}
		}
	}
	_, out, errOut := s.run("", "what-if", "--node", n.name)
	for _, want := range []string{"budget " + s.name + "/web allows 0", "blocked by a PodDisruptionBudget"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s%s", want, out, errOut)
		}
	}

	status, out, errOut := s.run("", "what-if", "--node", s.name+"-untagged")
	for _, want := range []string{
		"the handler would ignore the notice: instance " + s.id(1) + " has no tag aws-node-termination-handler/managed\n",
		"\n    aws ec2 create-tags --region us-east-1 --resources " + s.id(1) + " --tags 'Key=aws-node-termination-handler/managed,Value='\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("without the tag: status %d, no %q in\n%s%s", status, want, out, errOut)
		}
	}

	status, out, errOut = s.run("", "what-if", "--all", "--output=json")
	var all struct {
		Nodes []struct {
			Node, Ignored string
			Uncontrolled  []string
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 3 {
		t.Fatalf("all nodes: status %d, %v in %s%s", status, err, out, errOut)
	}
	at := func(name string) int {
		for k := range all.Nodes {
			if all.Nodes[k].Node == name {
				return k
			}
		}
		t.Fatalf("node %s is not among all nodes: %+v", name, all.Nodes)
		return 0
	}
	with, without := at(n.name), at(s.name+"-untagged")
	if all.Nodes[with].Ignored != "" || !slices.Contains(all.Nodes[with].Uncontrolled, s.name+"/slow") || !strings.Contains(all.Nodes[without].Ignored, "has no tag") {
		t.Errorf("of all nodes: %+v and %+v", all.Nodes[with], all.Nodes[without])
	}
	if strings.Contains(out, odd) {
		t.Errorf("a node whose instance no notice can name is among all nodes:\n%s", out)
	}
	if status, _, errOut := s.run("", "what-if", "--node", odd); status != 1 || !strings.Contains(errOut, "i-0dd is not an instance id") {
		t.Errorf("about node %s: status %d, %s", odd, status, errOut)
	}

	if after := s.getNode(n.name); after.Spec.Unschedulable || len(after.Annotations) != len(before.Annotations) {
		t.Errorf("the node was changed: %+v", after)
	}
	for _, w := range s.writes() {
		if !strings.HasPrefix(w.Resource, "selfsubject") {
			t.Errorf("what-if wrote: %+v", w)
		}
	}
	for _, call := range s.aws.Calls() {
		if call.Action != "DescribeInstances" && call.Action != "GetCallerIdentity" {
			t.Errorf("what-if asked AWS: %+v", call)
		}
	}
}

// The question is asked where stdin stays open, as on a terminal.
func TestCtrlCEndsTheQuestionOfSimulateAtOnce(t *testing.T) {
	tier.Full(t, "it is about seconds; cmd has the second Ctrl-C")
	s := newScenario(t)
	n := s.nodes(1)[0]
	ctx, cancel := context.WithTimeout(s.ctx, soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "simulate", "spot", "--node="+n.name, "--release=none", "--aws-endpoint="+s.endpoint, "--queue-url="+s.aws.QueueURL(queueName), "--aws-region="+release.Region)
	cmd.Env = []string{"KUBECONFIG=" + shared.Kubeconfig(), "AWS_ACCESS_KEY_ID=AKIDLAPTOP", "AWS_SECRET_ACCESS_KEY=x", "HOME=" + t.TempDir()}
	stdin, err := cmd.StdinPipe()
	s.must(err)
	defer stdin.Close()
	var out release.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	s.must(cmd.Start())
	s.eventually("it asks", func() bool { return strings.HasSuffix(out.String(), "continue? [y/N] ") })
	pulse := s.feel()
	s.must(cmd.Process.Signal(os.Interrupt))
	asked := time.Now()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v:\n%s", err, &out)
	}
	pulse.atMost(time.Since(asked), 5*time.Second, "the end")
	if !strings.Contains(out.String(), "nothing was sent: interrupt") {
		t.Errorf("it said:\n%s", &out)
	}
	s.untouched(n, 0)
}

// The options of a handler are those of its Deployment, not those of whoever asks.
func TestTheToolsGoByTheOptionsOfTheDeployment(t *testing.T) {
	tier.Full(t, "internal/tool reads the options of a release")
	s := newScenario(t)
	nodes := s.nodes(2)
	n := nodes[0]
	s.pod("web", n.name)
	labels := map[string]string{"app.kubernetes.io/name": release.Name}
	_, err := s.kube.AppsV1().Deployments(s.name).Create(s.ctx, &appsv1.Deployment{
		// Without the label: others look for theirs in the same cluster.
		ObjectMeta: metav1.ObjectMeta{Name: "drainer"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeName: nodes[1].name,
				Containers: []corev1.Container{{
					Name: release.Name, Image: "r.example.com/" + release.Name, Args: []string{"--cordon-only", "--leader-elect=false"},
					Env: []corev1.EnvVar{{Name: "QUEUE_URL", Value: s.aws.QueueURL(queueName)}, {Name: "AWS_REGION", Value: release.Region}},
				}},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("a replica is ready", func() bool {
		d, err := s.kube.AppsV1().Deployments(s.name).Get(s.ctx, "drainer", metav1.GetOptions{})
		s.must(err)
		return d.Status.ReadyReplicas == 1
	})
	run := func(args ...string) (int, string) {
		cmd := exec.CommandContext(s.ctx, program, append(args, "--node="+n.name, "--release="+s.name+"/drainer", "--aws-endpoint="+s.endpoint)...)
		cmd.Env = []string{
			"KUBECONFIG=" + shared.Kubeconfig(), "AWS_ACCESS_KEY_ID=AKIDLAPTOP", "AWS_SECRET_ACCESS_KEY=x", "HOME=" + t.TempDir(),
			"QUEUE_URL=https://sqs.eu-west-1.amazonaws.com/210987654321/mine", "AWS_REGION=eu-west-1", "CORDON_ONLY=false", "CHECK_TAG_BEFORE_DRAINING=false",
		}
		out, err := cmd.CombinedOutput()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			s.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	whose := "With the options of Deployment " + s.name + "/drainer; in AWS as arn:aws:iam::123456789012:user/AKIDLAPTOP; in Kubernetes with the rights of "
	if status, out := run("what-if", "spot"); status != 3 || !strings.HasPrefix(out, whose) || !strings.Contains(out, "its pods would stay (cordon-only)") {
		t.Errorf("what-if: status %d\n%s", status, out)
	}
	if status, out := run("what-if", "spot", "--cordon-only=false"); !strings.Contains(out, `cordon-only: "false" (from --cordon-only), but Deployment `+s.name+`/drainer has "true"; this answer uses the command line`) ||
		!strings.Contains(out, "1 pod would have to leave") {
		t.Errorf("what-if by another option: status %d\n%s", status, out)
	}
	if status, out := run("simulate", "spot", "--cordon-only=false", "--yes"); status != 2 || !strings.Contains(out, ", but Deployment "+s.name+"/drainer has") {
		t.Errorf("simulate by another option: status %d\n%s", status, out)
	}
	if status, out := run("simulate", "spot", "--dry-run"); status != 0 || !strings.Contains(out, whose) || !strings.Contains(out, n.instance) {
		t.Errorf("simulate for show: status %d\n%s", status, out)
	}
	if status, out := run("simulate", "spot"); status != 1 || !strings.Contains(out, "this will cordon "+n.name+", and its pods stay there (cordon-only); continue? [y/N]") {
		t.Errorf("simulate: status %d\n%s", status, out)
	}
	s.untouched(n, 1)
	if m := s.aws.Messages(queueName); len(m) > 0 {
		t.Errorf("messages were sent: %+v", m)
	}
}
