package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// Values that people use in NTH's IMDS mode, installed as they stand. The pod of the DaemonSet becomes
// a process with its environment and its token.
func TestTheDaemonSetOfTheChartDrainsItsNodeWithTheValuesThatPeopleHave(t *testing.T) {
	tier.Full(t, "four releases of Helm; e2e/helm renders the chart")
	t.Parallel()
	for _, tt := range []struct {
		file   string
		labels map[string]string // of the node, beside that of the scenario
		posts  string            // what the webhook gets; empty: there is none

		monitored bool // they ask for a PodMonitor
	}{
		{file: "values/imds-spot-daemonset", labels: map[string]string{"karpenter.sh/capacity-type": "spot", "karpenter.sh/initialized": "true"}},
		{file: "found/imds-slack", labels: map[string]string{"lifecycle": "Ec2Spot"}, posts: ":warning: *"},
		{file: "found/nth-example-imds-linux", monitored: true},
		{file: "values/imds-windows", labels: map[string]string{"team": "shop"}, monitored: true},
	} {
		t.Run(tt.file, func(t *testing.T) {
			c := newChartScenario(t)
			c.namespaceEnforces("privileged") // for the network of the node
			c.openAccount(awssim.Options{})
			n := c.nodes(1)[0]
			labels := map[string]string{"home": c.name}
			maps.Copy(labels, tt.labels)
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
			c.must(err)
			_, err = c.kube.CoreV1().Nodes().Patch(c.ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
			c.must(err)
			if tt.monitored {
				c.prometheusOperator()
			}
			metadata := awssim.NewMetadata(awssim.MetadataOptions{Instance: n.instance, Started: time.Now().Add(-time.Hour)})
			url, err := metadata.Listen(c.ctx, "127.0.0.1:0")
			c.must(err)
			c.helm("--values", filepath.Join("helm", "testdata", tt.file+".yaml"), "--set=linuxNodeSelector.home="+c.name)

			hook := c.webhook(nil)
			env := []string{"INSTANCE_METADATA_URL=" + url}
			if tt.posts != "" {
				env = append(env, "WEBHOOK_URL="+hook.URL)
			}
			h := c.runOnNode(n, env...)
			c.scenario.pod("web", n.name)
			metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
			c.eventually("the node is drained", func() bool {
				return h.isExited() || c.getNode(n.name).Labels["node-termination-handler/state"] == "drained" && !c.podExists("web")
			})
			if h.isExited() || !c.cordoned(n.name) {
				t.Errorf("the log:\n%s", h.log.String())
			}
			if tt.posts != "" {
				c.posted(hook, tt.posts)
			}
		})
	}
}

// podOnNode is the release's pod on a node.
func (c *chartScenario) podOnNode(n node) (pod corev1.Pod) {
	c.Helper()
	c.eventually("a pod of the release runs on the node", func() bool {
		pods, err := c.kube.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=daemonset,app.kubernetes.io/instance=" + c.release,
			FieldSelector: "status.phase=Running,spec.nodeName=" + n.name,
		})
		c.must(err)
		if len(pods.Items) > 0 {
			pod = pods.Items[0]
		}
		return len(pods.Items) > 0
	})
	return pod
}

// runOnNode runs the binary as the release's pod on a node would.
func (c *chartScenario) runOnNode(n node, env ...string) *handler {
	c.Helper()
	pod := c.podOnNode(n)
	kubeconfig, err := c.cluster.PodKubeconfig(c.ctx, &pod)
	c.must(err)
	container := pod.Spec.Containers[0]
	h := c.process()
	h.cmd = exec.CommandContext(context.WithoutCancel(c.ctx), program, container.Args...)
	h.cmd.Env = slices.Concat(c.environment(pod, container), []string{
		"KUBECONFIG=" + kubeconfig, "PROBES_SERVER_PORT=" + strconv.Itoa(h.probes), "PROMETHEUS_SERVER_PORT=" + strconv.Itoa(h.metrics),
	}, env)
	h.begin()
	return h
}

// One command, and nothing in AWS: a pod of the Deployment and one of the DaemonSet become processes with their
// environments and their tokens.
func TestTheReleaseWithoutAQueueDrainsANode(t *testing.T) {
	tier.Full(t, "two releases of Helm; both_modes_test.go plays the binary")
	for name, reportOnly := range map[string]bool{"the pods may drain": false, "the pods only report": true} {
		t.Run(name, func(t *testing.T) {
			playNoQueue(t, reportOnly)
		})
	}
}

func playNoQueue(t *testing.T, reportOnly bool) {
	c := newChartScenario(t)
	if reportOnly {
		otherRights.Store(c.namespace, true)
	}
	c.namespaceEnforces("privileged") // for the network of the node
	c.openAccount(awssim.Options{})
	n := c.nodes(1)[0]
	c.home(map[string]string{"leads": c.name})
	labels := map[string]string{"home": c.name, "warned": c.name}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	c.must(err)
	_, err = c.kube.CoreV1().Nodes().Patch(c.ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	c.must(err)
	metadata := awssim.NewMetadata(awssim.MetadataOptions{Instance: n.instance, Started: time.Now().Add(-time.Hour)})
	url, err := metadata.Listen(c.ctx, "127.0.0.1:0")
	c.must(err)
	c.helm("--values", filepath.Join("helm", "testdata", "values", "no-queue.yaml"),
		"--set=nodeSelector.leads="+c.name, "--set=linuxNodeSelector.warned="+c.name, fmt.Sprintf("--set=reportOnly=%t", reportOnly))

	leader, pod := c.runPod(), c.runOnNode(n, "INSTANCE_METADATA_URL="+url)
	leader.awaitLead()
	c.scenario.pod("web", n.name)
	metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
	c.eventually("the node is drained", func() bool {
		return leader.isExited() || pod.isExited() || c.state(n) == "drained" && !c.podExists("web")
	})
	if l, p := leader.metric(drains), pod.isExited(); l != 1 || p {
		t.Errorf("the leader has counted %v drains; the pod on the node has exited: %t:\n%s%s", l, p, leader.log.String(), pod.log.String())
	}
	if e := leader.episode(n); e.Outcome != "drained" || e.Pods == nil || e.Pods.Evicted != 1 {
		t.Errorf("the leader tells of %+v", e)
	}
	if asked := c.aws.Counts(); len(asked) > 0 {
		t.Errorf("AWS was asked: %v", asked)
	}

	// What somebody may who has broken into the node, and has the token of the pod there.
	stolen := c.podOnNode(n)
	kubeconfig, err := c.cluster.PodKubeconfig(c.ctx, &stolen)
	c.must(err)
	holder := c.holder(kubeconfig)
	_, err = holder.CoreV1().Pods(metav1.NamespaceAll).List(c.ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsForbidden(err) != reportOnly {
		t.Errorf("to list the pods of the cluster: %v", err)
	}
	if !reportOnly {
		return
	}
	for _, patch := range []string{
		`{"spec":{"unschedulable":false}}`, `{"metadata":{"labels":{"node-termination-handler/state":"draining"}}}`,
		`{"metadata":{"annotations":{"node-termination-handler/intent":"{}"}}}`,
		`{"spec":{"taints":[{"key":"aws-node-termination-handler/spot-itn","effect":"NoSchedule"}]}}`,
	} {
		refused(t, patch, tryPatch(c.scenario, holder, n.name, patch), "the handler may not change ")
	}
	c.must(tryPatch(c.scenario, holder, n.name, `{"metadata":{"annotations":{"node-termination-handler/reported":null}}}`))
}
