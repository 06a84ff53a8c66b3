package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

// run runs a command of the binary with the handler's rights and environment,
// and returns its exit status and what it wrote.
func (s *scenario) run(stdin string, args ...string) (status int, out, errOut string) {
	s.Helper()
	otherRights.Store(s.name, true)
	kubeconfig, err := shared.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Minute)
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

// diagnosis are the checks of doctor that are not well, with their status.
func (s *scenario) diagnosis(args ...string) (map[string]string, int) {
	s.Helper()
	status, out, errOut := s.run("", slices.Concat([]string{"doctor", "--output=json"}, args)...)
	var report struct {
		Checks []struct{ ID, Status, What string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		s.Fatalf("%v in %s%s", err, out, errOut)
	}
	sick := map[string]string{}
	for _, c := range report.Checks {
		switch {
		case c.ID == "nodes": // the cluster is shared: those of other scenarios have no instance here
			if !strings.Contains(c.What, " are covered") {
				s.Errorf("nodes: %s", c.What)
			}
		case c.ID == "credentials-source": // static, and rightly not liked
			if c.Status != "warning" {
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
		"VisibilityTimeout": "30", "MessageRetentionPeriod": "300", "DelaySeconds": "0", "KmsMasterKeyId": "", "FifoQueue": "",
		"Policy": allowRules, "RedrivePolicy": `{"deadLetterTargetArn": "` + s.aws.QueueARN("dead") + `", "maxReceiveCount": 10}`,
	}
}

// rule lets events of the sources in, and has a queue for those it cannot deliver.
func rule(name string, sources ...string) awssim.Rule {
	return awssim.Rule{Name: name, Queue: queueName, DeadLetters: "dead", Pattern: `{"source": ["` + strings.Join(sources, `", "`) + `"]}`}
}

func TestDoctorFindsWhatIsBrokenAndNothingElse(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	hook := awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}
	all := rule("all", "aws.ec2", "aws.health", "aws.autoscaling")
	heal := func() {
		s.Helper()
		s.must(s.aws.Apply(awssim.State{
			Queues:    []awssim.Queue{{Name: queueName, Attributes: s.healthyQueue()}, {Name: "dead"}},
			Instances: []awssim.Instance{{ID: n.instance, Tags: managed}},
			Groups:    []awssim.Group{{Name: "workers", Instances: []string{n.instance}, Tags: managed}},
			Hooks:     []awssim.Hook{hook},
			Keys:      []awssim.Key{{ID: "k", Policy: allowRules}},
			Rules:     []awssim.Rule{all},
		}))
	}
	heal()
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
	dropping := all
	dropping.DeadLetters = ""
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
		{"a visibility timeout of hours", attribute("VisibilityTimeout", "7200"), every("warning", "queue-visibility"), 3},
		{"no dead-letter queue", attribute("RedrivePolicy", ""), every("warning", "queue-redrive"), 3},
		{"a FIFO queue", attribute("FifoQueue", "true"), every("failed", "queue-type", "rule-targets"), 1},
		{"AWS's own key", attribute("KmsMasterKeyId", "alias/aws/sqs"), every("failed", "queue-key"), 1},
		{"a key that nobody has", attribute("KmsMasterKeyId", "lost"), every("failed", "queue-key"), 1},
		{"a key of one's own", attribute("KmsMasterKeyId", "k"), nil, 3},
		{"a queue that EventBridge may not write to", attribute("Policy", ""), every("failed", "queue-policy"), 1},
		{"a policy for everybody", attribute("Policy", `{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}}`), every("failed", "queue-policy-open"), 1},
		{"a rule with a typo", put(rule("all", "aws.ec2", "aws.health", "aws.auto-scaling")), every("failed", "rule-asg-terminate"), 1},
		{"a rule that is disabled", put(disabled), map[string]string{
			"rule-spot": "failed", "rule-rebalance": "warning", "rule-state-change": "warning", "rule-health": "warning", "rule-asg-terminate": "failed",
		}, 1},
		{"a target without a dead-letter queue", put(dropping), every("warning", "rule-dead-letters"), 3},
		{"a launch hook that nobody hears of", func() {
			put(awssim.Rule{Name: "all", Queue: queueName, DeadLetters: "dead", Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"], "detail-type": [{"anything-but": "EC2 Instance-launch Lifecycle Action"}]}`})()
			s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "join", Transition: awssim.Launching}))
		}, every("failed", "rule-asg-launch"), 1},
		{"no tag on the group", func() { s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{n.instance}})) }, every("warning", "group-tag"), 3},
		{"no right to receive", deny("sqs", "ReceiveMessage", "AccessDenied"), every("failed", "permissions"), 1},
		{"no right to complete", deny("autoscaling", "CompleteLifecycleAction", "AccessDenied"), every("failed", "permissions"), 1},
		{"rules that may not be read", deny("events", "*", "AccessDeniedException"), every("unknown",
			"rule-spot", "rule-rebalance", "rule-state-change", "rule-health", "rule-asg-terminate", "rule-asg-launch", "rule-targets", "rule-dead-letters"), 3},
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

func TestDoctorTellsPeopleWhatToDo(t *testing.T) {
	s := newScenario(t)
	status, out, errOut := s.run("", "doctor")
	if status != 1 {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
	for _, want := range []string{
		"credentials\n-----------\n√ AWS is called as arn:aws:iam::123456789012:user/AKIDCOMMAND\n",
		"‼ the credentials are static keys in the environment\n",
		"× the queue has no policy: EventBridge may not send to it, and drops what it cannot deliver\n    allow sqs:SendMessage to the service events.amazonaws.com",
		"    see docs/troubleshooting.md#queue-policy\n",
		"× no rule sends spot interruption warnings to the queue: spot instances go away undrained\n",
		"√ system:serviceaccount:" + s.name + ":node-termination-handler has the 16 rights that the handler needs\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
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
		gone := "pod evicted"
		if r.kind == "state-change" {
			gone = "pod deleted" // budgets are not asked
		}
		rest := r.out
		for _, want := range []string{
			fmt.Sprintf("this will drain %s: 1 pod, 1 without a controller, longest grace 30 s; go on? [y/N]", n.name),
			"notice sent      " + n.instance, "node cordoned    " + n.name, gone + "      " + s.name + "/pod-" + n.name,
			"node empty       " + n.name, "work finished    " + n.name,
			"1 notice, 1 node drained, 0 pods moved, 0 missed", n.name + " is still cordoned: kubectl uncordon " + n.name,
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

func TestSimulateThroughTheBusNeedsARuleForItsSource(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("pod", n.name)
	s.leader()
	s.must(s.aws.PutRule(rule("real", "aws.ec2")))
	status, _, errOut := s.run("", "simulate", "spot", "--node", n.name, "--via=eventbridge", "--yes")
	if status != 1 || !strings.Contains(errOut, "no rule with the queue as its target takes the source node-termination-handler.simulate") {
		t.Errorf("without a rule: status %d: %s", status, errOut)
	}
	s.untouched(n, 1)
	s.must(s.aws.PutRule(rule("simulated", "node-termination-handler.simulate")))
	if status, out, errOut := s.run("", "simulate", "spot", "--node", n.name, "--via=eventbridge", "--yes"); status != 0 {
		t.Errorf("with a rule: status %d\n%s%s", status, out, errOut)
	}
	if !s.cordoned(n.name) || s.podExists("pod") {
		t.Errorf("node %s was not drained", n.name)
	}
}

func TestSimulateSendsNothingUnlessItMay(t *testing.T) {
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
		{"without a yes", "\n", []string{"spot", "--node", n.name}, 1, "nothing was sent: answer y, or give --yes"},
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
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 2, grace(30, 0))
	s.budget("web", "web", 2)
	s.pod("slow", n.name, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
	before := s.getNode(n.name)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"spot"}, []string{", spot-interruption: the node has to be empty in 120 s", "gets 120 s of its 600 s; no controller", "3 pods would have to leave; 1 without a controller", "nothing is left at the deadline, after 120 s"}},
		{nil, []string{", spot-interruption: "}},
		{[]string{"rebalance"}, []string{", rebalance-recommendation: nothing is forced", "left after 120 s: " + s.name + "/slow"}},
		{[]string{"state-change"}, []string{"budgets are not asked", "deleted"}},
	} {
		status, out, errOut := s.run("", slices.Concat([]string{"what-if", "--node", n.name}, tt.args)...)
		if status != 0 {
			t.Errorf("%q: status %d: %s", tt.args, status, errOut)
		}
		t.Logf("what-if %q:\n%s", tt.args, out)
		// The handler itself does not need to read budgets, and may not.
		for _, want := range append(tt.want, "budgets were not looked at: permission list poddisruptionbudgets.policy is missing") {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in\n%s", tt.args, want, out)
			}
		}
	}
	_, out, errOut := s.run("", "what-if", "--node", n.name, "--kubeconfig="+shared.Kubeconfig())
	for _, want := range []string{"budget " + s.name + "/web allows 0", "2 blocked by a budget; 2 deleted, not evicted"} {
		if !strings.Contains(out, want) {
			t.Errorf("with an administrator's rights: no %q in\n%s%s", want, out, errOut)
		}
	}
	if after := s.getNode(n.name); after.Spec.Unschedulable || len(after.Annotations) != len(before.Annotations) {
		t.Errorf("the node was changed: %+v", after)
	}
	if w := s.writes(); len(w) > 0 {
		t.Errorf("what-if wrote: %+v", w)
	}
	if calls := s.aws.Calls(); len(calls) > 0 {
		t.Errorf("what-if asked AWS: %+v", calls)
	}
}
