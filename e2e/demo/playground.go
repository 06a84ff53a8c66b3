package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

const (
	deadLettersName = "interruptions-dead-letters"

	// ofManifests is the queue that the manifests name, for their readers to replace.
	ofManifests = "https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE"

	// letRulesIn lets the account's rules send to its queues.
	letRulesIn = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow",
	"Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*",
	"Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:events:` + region + `:` + account + `:rule/*"}}}}`
)

// setUpAccount makes of the demo's AWS an account that doctor has nothing to say against: all rules,
// a queue for what cannot be delivered, and a group that tags its instances.
func (d *demo) setUpAccount() error {
	tags := map[string]string{managedTag: "true"}
	attributes := map[string]string{
		"MessageRetentionPeriod": "14400", "VisibilityTimeout": "30", "Policy": letRulesIn,
		"RedrivePolicy": `{"deadLetterTargetArn": "` + d.aws.QueueARN(deadLettersName) + `", "maxReceiveCount": 10}`,
	}
	return d.aws.Apply(awssim.State{
		Queues: []awssim.Queue{
			{Name: deadLettersName, Attributes: map[string]string{"MessageRetentionPeriod": "1209600", "Policy": letRulesIn}},
			{Name: queueName, Attributes: attributes},
		},
		Groups: []awssim.Group{{Name: groupName, Instances: []string{nodes[1].instance}, Tags: tags}},
		Rules: []awssim.Rule{{
			Name: "terminations", Queue: queueName, DeadLetters: deadLettersName,
			Pattern: `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]}`,
		}},
	})
}

// deployHandler creates the Deployment of the manifests. Its pods are no processes, but the
// commands read the options from it, and each replica is named after one of them.
func (d *demo) deployHandler(ctx context.Context) error {
	text, err := os.ReadFile(d.manifests)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), ofManifests) {
		return fmt.Errorf("%s does not name the queue %s, which the playground replaces by its own", d.manifests, ofManifests)
	}
	path := filepath.Join(d.cluster.Dir(), "playground.yaml")
	text = []byte(strings.ReplaceAll(string(text), ofManifests, d.aws.QueueURL(queueName)))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	if err := release.Apply(ctx, d.cluster, path, release.Name); err != nil {
		return err
	}
	return d.giveRole()
}

// giveRole lets the replicas do in AWS what the policy in deploy/iam allows.
func (d *demo) giveRole() error {
	path := filepath.Join(filepath.Dir(d.manifests), "..", "iam", "policy.json")
	policy, err := release.Policy(path, account, queueName, deadLettersName)
	if err != nil {
		return err
	}
	return d.aws.PutRole(awssim.Role{Name: release.Name, AccessKeyID: accessKeyID, Policy: policy})
}

// startPods starts a replica for each pod of the Deployment, once they run.
func (d *demo) startPods(ctx context.Context) error {
	waiting, cancel := context.WithTimeoutCause(ctx, soon, errors.New("they did not within "+soon.String()))
	defer cancel()
	err := poll(waiting, func(ctx context.Context) (bool, error) {
		pods, err := d.handlerPods(ctx)
		return len(pods) == replicas, err
	})
	if err != nil {
		return fmt.Errorf("wait until the pods of %s run: %w", release.Name, err)
	}
	return d.asPods(ctx)
}

// handlerPods are the pods of the Deployment that run, by name.
func (d *demo) handlerPods(ctx context.Context) (map[string]corev1.Pod, error) {
	list, err := d.cluster.Client().CoreV1().Pods(release.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", release.Name, err)
	}
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			pods[pod.Name] = pod
		}
	}
	return pods, nil
}

// asPods is the kubelet of the replicas: each runs as long as its pod.
func (d *demo) asPods(ctx context.Context) error {
	pods, err := d.handlerPods(ctx)
	if err != nil {
		return err
	}
	for _, r := range d.replicas {
		if _, runs := pods[r.name]; !runs && !r.evicted {
			r.evicted = true
			_ = r.process.Process.Signal(syscall.SIGTERM) // it may have ended
		}
		delete(pods, r.name)
	}
	for name, pod := range pods {
		if err := d.startReplica(ctx, name, "--node-name="+pod.Spec.NodeName); err != nil {
			return err
		}
		if d.staying {
			d.replicas[len(d.replicas)-1].log.Follow(d.out.Out)
		}
	}
	return nil
}

// backOff is after which time a replica that has failed starts again: the first pause of a kubelet.
const backOff = 10 * time.Second

// stay tells how to use the playground and returns when it is interrupted. A replica that has ended starts again while
// its pod runs.
func (d *demo) stay(ctx context.Context) error {
	if err := d.writeVariables(); err != nil {
		return err
	}
	defer func() { _ = os.Remove(d.playground) }() // somebody else may have
	d.say("")
	d.say("All of it runs until you press Ctrl-C. In another terminal, in this directory:")
	d.say("")
	d.say("    . %s", d.playground)
	d.say("    node-termination-handler doctor --accept permissions") // which only a pod can try
	d.say("    node-termination-handler what-if --all")
	d.say("    node-termination-handler simulate spot --node %s", nodes[0].name)
	d.say("    node-termination-handler status -w")
	d.say("    node-termination-handler report")
	d.say("")
	d.say("To see the other replica take over: kill -9 with the number of the process that leads.")
	d.say("")
	names := strings.Join(d.nodeNames(), " ")
	d.say("A storm, which takes all nodes at once, those of the replicas too:")
	d.say("")
	d.say("    for node in %s; do node-termination-handler simulate spot --node $node --yes >/dev/null & done", names)
	d.say("")
	d.say("With kubectl, which the first line compiles in some minutes if you have none; the last gives the nodes back:")
	d.say("")
	d.say("    alias kubectl=\"$(go -C hack/helm tool -n kubectl)\"")
	d.say("    kubectl get nodes -L node-termination-handler/state,node-termination-handler/kind")
	d.say("    kubectl nth status") // the same program
	d.say("    kubectl uncordon %s", names)
	d.say("")
	d.say("To let the group %s terminate the instance of %s:", groupName, nodes[1].name)
	d.say("")
	d.say("    curl -X POST $AWS_ENDPOINT/_awssim/lifecycle -d '{\"instanceID\": \"%s\"}'", nodes[1].instance)
	d.say("")
	d.say("What follows are the logs of the replicas. They run as long as the pods of their names.")
	d.staying = true
	d.showLeader(ctx)
	for _, r := range d.replicas {
		r.log.Follow(d.out.Out)
	}
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	again := make(chan *replica, replicas)
	for {
		select {
		case <-d.events: // nobody tells this story
		case r := <-d.ended:
			var pause time.Duration
			switch {
			case r.evicted:
			case r.failed():
				d.say("%s: it starts again after %s, as on its node", r.fate(), backOff)
				pause = backOff
			default:
				d.say("%s: it starts again, as on its node", r.fate())
			}
			time.AfterFunc(pause, func() {
				select {
				case again <- r:
				case <-ctx.Done():
				}
			})
		case r := <-again: // asPods starts it if its pod runs
			d.replicas = slices.DeleteFunc(d.replicas, func(other *replica) bool { return other == r })
		case <-ticker.C:
			d.showLeader(ctx)
			if err := d.asPods(ctx); err != nil && ctx.Err() == nil {
				d.say("the replicas cannot follow their pods, trying again: %v", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// showLeader leads the API server to the leader, and says where its page is, whenever another process leads.
func (d *demo) showLeader(ctx context.Context) {
	lease, err := d.cluster.Client().CoordinationV1().Leases(release.Name).Get(ctx, release.Name, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil { // asked again at the next tick
		return
	}
	port := lease.Labels["node-termination-handler/port"]
	address := net.JoinHostPort("127.0.0.1", port)
	holder, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	at := slices.IndexFunc(d.replicas, func(r *replica) bool { return r.name == holder })
	if at < 0 || address == d.shown {
		return
	}
	pod, err := d.cluster.Client().CoreV1().Pods(release.Name).Get(ctx, holder, metav1.GetOptions{})
	if err != nil {
		return
	}
	d.shown = address
	d.egress.Route(ctx, net.JoinHostPort(pod.Status.PodIP, port), address)
	d.say("%s leads, as process %d. Its page is http://%s", holder, d.replicas[at].process.Process.Pid, address)
}

// writeVariables writes what a shell reads to have the playground as its cluster and its account.
func (d *demo) writeVariables() error {
	directory, err := filepath.Abs(filepath.Dir(d.handler))
	if err != nil {
		return err
	}
	text := "# written by the playground of " + time.Now().Format(time.DateTime) + ", and removed at its end\n"
	for _, v := range [][2]string{
		{"KUBECONFIG", d.cluster.Kubeconfig()},
		{"NAMESPACE", release.Name},
		{"AWS_ENDPOINT", d.endpoint},
		{"AWS_REGION", region},
		{"AWS_ACCESS_KEY_ID", "AKIDPLAYGROUND"},
		{"AWS_SECRET_ACCESS_KEY", release.SecretAccessKey},
		{"AWS_EC2_METADATA_DISABLED", "true"},
	} {
		text += fmt.Sprintf("export %s='%s'\n", v[0], v[1])
	}
	text += fmt.Sprintf("export PATH='%s':\"$PATH\"\n", directory)
	if err := os.WriteFile(d.playground, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the variables: %w", err)
	}
	plugin := filepath.Join(directory, "kubectl-nth") // of an earlier playground, maybe
	if err := os.Symlink(filepath.Base(d.handler), plugin); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name the program for kubectl: %w", err)
	}
	return nil
}
