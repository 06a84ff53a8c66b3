package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/helm"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// Each values file is installed as it stands, by Helm, in a namespace where Pod
// Security's restricted standard is enforced. A pod of the release then becomes a
// process of the built binary, with the pod's environment and ServiceAccount.
func TestTheChartDrainsANodeWithTheValuesThatPeopleHave(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		file   string
		args   []string // for Helm
		region string
		queue  string
		sender string            // account of the notice; empty: the queue's
		labels map[string]string // of the nodes that it may run on
	}{
		{file: "queue-asg-webhook", region: "us-east-1", queue: "workers", labels: map[string]string{"lifecycle": "OnDemand"}},
		{file: "queue-karpenter-non-asg", region: "ap-northeast-2", queue: "nth-dev-sqs"},
		{
			file: "imds-spot-daemonset", region: "us-east-1", queue: "nth",
			args:   []string{"--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth"},
			labels: map[string]string{"karpenter.sh/capacity-type": "spot", "karpenter.sh/initialized": "true"},
		},
		{file: "everything", region: "eu-west-1", queue: "nth", sender: "210987654321"},
		{file: "brought-along", region: "eu-west-1", queue: "brought-along", sender: "210987654321"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			c := newChartScenario(t)
			c.openAccount(awssim.Options{Region: tt.region})
			c.home(tt.labels)
			switch tt.file {
			case "everything":
				c.prometheusOperator()
			case "queue-karpenter-non-asg":
				c.serviceAccount("aws-node-termination-handler")
			case "brought-along":
				c.broughtAlong()
			}
			if tt.queue != queueName {
				c.must(c.aws.CreateQueue(awssim.Queue{Name: tt.queue, Attributes: map[string]string{"VisibilityTimeout": "20"}}))
			}
			c.helm(append([]string{"--values", filepath.Join("helm", "testdata", "values", tt.file+".yaml")}, tt.args...)...)

			hook := c.webhook(nil)
			h := c.runPod("--webhook-url="+hook.URL, "--webhook-proxy=", "--json-logging")
			nodes := c.nodes(2)
			c.deployment("web", 4)
			message, err := c.aws.SendMessage(tt.queue, c.body("spot-interruption", nodes[0].instance, "us-east-1", tt.region, "123456789012", cmp.Or(tt.sender, "123456789012")))
			c.must(err)
			c.awaitDeleted(soon, message)
			if !c.cordoned(nodes[0].name) || len(c.podsOn(nodes[0].name)) > 0 {
				t.Errorf("node %s is not drained; the log:\n%s", nodes[0].name, h.log.String())
			}
			lease, err := c.kube.CoordinationV1().Leases(c.namespace).Get(c.ctx, c.release+"-node-termination-handler", metav1.GetOptions{})
			c.must(err)
			if holder := lease.Spec.HolderIdentity; holder == nil || !strings.HasPrefix(*holder, c.release) {
				t.Errorf("the Lease is held by %v, not by the pod", holder)
			}
			switch tt.file {
			case "everything":
				c.explainsPolicy(h, nodes[1])
			case "queue-asg-webhook":
				c.posted(hook, "INSTANCE INTERRUPTION NOTICE*", nodes[0].instance)
				if taints := c.getNode(nodes[0].name).Spec.Taints; !tainted(taints, "aws-node-termination-handler/spot-itn") {
					t.Errorf("taints of the node: %v", taints)
				}
			case "brought-along":
				call := c.posted(hook, "my own template for "+nodes[0].instance)
				if got := call.header.Get("Authorization"); got != "Bearer 123" {
					t.Errorf("header Authorization: %q", got)
				}
			}
		})
	}
}

// explainsPolicy checks that the handler and the tools have the policy of the release's ConfigMap.
func (c *chartScenario) explainsPolicy(h *handler, n node) {
	c.Helper()
	hasPolicy := func(e map[string]any) bool { return e["nodeRules"] == 2.0 && e["podRules"] == 1.0 }
	if !slices.ContainsFunc(h.logged(""), hasPolicy) {
		c.Errorf("the handler does not have the policy; the log:\n%s", h.log.String())
	}
	cmd := exec.CommandContext(c.ctx, program, "explain", "health", "--node", n.name, "--release", c.namespace+"/"+c.release+"-node-termination-handler",
		"--code=AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", "--kubeconfig", c.cluster.Kubeconfig(), "--aws-endpoint", c.endpoint)
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIDEXPLAIN", "AWS_SECRET_ACCESS_KEY=secret")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"of ConfigMap " + c.namespace + "/", "decides: drain at start-30m within nights"} {
		if !strings.Contains(string(out), want) {
			c.Errorf("explain: %v, and no %q in\n%s", err, want, out)
		}
	}
}

func tainted(taints []corev1.Taint, key string) bool {
	for _, t := range taints {
		if t.Key == key {
			return true
		}
	}
	return false
}

func TestAReleaseOfNTHIsUpgradedInPlaceWithItsOwnValues(t *testing.T) {
	tier.Full(t, "a minute of Helm; it breaks with the chart only, which e2e/helm renders")
	t.Parallel()
	for _, tt := range []struct {
		name, applies string
		reuses        bool // takes the values of the release, with the defaults of NTH's chart
	}{
		{name: "of Helm 3", applies: "--server-side=false"},
		{name: "of Helm 4", applies: "--server-side=true"},
		{name: "with --reuse-values", applies: "--server-side=true", reuses: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newChartScenario(t)
			c.release = "aws-node-termination-handler-" + c.name // holds the chart's name, as the usual release does
			c.namespaceEnforces("baseline")                      // NTH's pods are not restricted
			c.home(map[string]string{"lifecycle": "OnDemand"})
			// A queue of its own, or the handler of the other release would work on our node too.
			values := []string{
				"--values", filepath.Join("helm", "testdata", "values", "queue-asg-webhook.yaml"),
				"--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/" + c.name,
			}
			c.run(append([]string{"upgrade", "--install", tt.applies, c.release, filepath.Join("testdata", "nth-chart"), "--wait", "--timeout=5m"}, values...)...)
			deployments, accounts := c.kube.AppsV1().Deployments(c.namespace), c.kube.CoreV1().ServiceAccounts(c.namespace)
			before, err := deployments.Get(c.ctx, c.release, metav1.GetOptions{})
			c.must(err)
			account, err := accounts.Get(c.ctx, c.release, metav1.GetOptions{})
			c.must(err)

			if err := c.try(values...); err == nil || !strings.Contains(err.Error(), "field is immutable") {
				t.Errorf("without nameOverride: %v, want that the selector cannot be changed", err)
			}
			if tt.reuses {
				c.helm("--reuse-values", "--set=nameOverride=aws-node-termination-handler")
			} else {
				c.namespaceEnforces("restricted")
				c.helm(append(values, "--set=nameOverride=aws-node-termination-handler")...)
			}

			after, err := deployments.Get(c.ctx, c.release, metav1.GetOptions{})
			c.must(err)
			containers := after.Spec.Template.Spec.Containers
			if after.UID != before.UID || len(containers) != 1 || !strings.Contains(containers[0].Image, "/node-termination-handler:") || after.Status.ReadyReplicas != 2 {
				t.Errorf("the Deployment was not upgraded in place: %s, then %s with %+v", before.UID, after.UID, containers)
			}
			if now, err := accounts.Get(c.ctx, c.release, metav1.GetOptions{}); err != nil || now.UID != account.UID {
				t.Errorf("the ServiceAccount is another: %v", err)
			}
			if _, err := c.kube.RbacV1().ClusterRoles().Get(c.ctx, c.release, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the ClusterRole of NTH is still there: %v", err)
			}
			c.must(c.aws.CreateQueue(awssim.Queue{Name: c.name, Attributes: map[string]string{"VisibilityTimeout": "20"}}))
			c.runPod("--webhook-url=")
			n := c.nodes(1)[0]
			message, err := c.aws.SendMessage(c.name, c.body("spot-interruption", n.instance))
			c.must(err)
			c.awaitDeleted(soon, message)
			if !c.cordoned(n.name) {
				t.Error("the node is not cordoned")
			}

			c.namespaceEnforces("baseline")
			c.run("rollback", c.release, "1", "--wait", "--timeout=5m")
			back, err := deployments.Get(c.ctx, c.release, metav1.GetOptions{})
			c.must(err)
			if containers := back.Spec.Template.Spec.Containers; back.UID != before.UID || !strings.HasSuffix(containers[0].Image, "/aws-node-termination-handler:v1.25.0") {
				t.Errorf("after the rollback: %+v", containers)
			}
		})
	}
}

func TestReleasesOfOneNameCanBeInTwoNamespaces(t *testing.T) {
	tier.Full(t, "40 s of Helm; it breaks with the chart only, which e2e/helm renders")
	c := newChartScenario(t)
	c.home(nil)
	values := []string{"--set=flowSchema.create=true,queueURL=" + c.aws.QueueURL(queueName), "--set=awsRegion=" + region}
	c.helm(values...)
	first := c.namespace
	c.in(c.name + "-other")
	otherRights.Store(c.namespace, true) // its rights are taken away below
	c.helm(values...)
	c.runPod().awaitLead()
	c.run("uninstall", c.release, "--wait")
	c.in(first)
	c.runPod().awaitLead() // with its rights: those of the other release alone are gone
}

// The ClusterRole that NTH's chart made, which nobody but the user changes.
func TestWithTheClusterRoleOfNTHTheStartFailsAndListsWhatIsMissing(t *testing.T) {
	tier.Full(t, "25 s of Helm; TestAStartThatIsInVain has the message")
	c := newChartScenario(t)
	c.home(nil)
	c.serviceAccount("nth")
	_, err := c.kube.RbacV1().ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: c.namespace},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch", "update"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		},
	}, metav1.CreateOptions{})
	c.must(err)
	c.bind("nth", c.namespace)
	c.helm("--set=rbac.create=false,serviceAccount.create=false,serviceAccount.name=nth,queueURL="+c.aws.QueueURL(queueName), "--set=awsRegion="+region)
	h := c.runPod()
	c.eventually("it has exited", h.isExited)
	if status := h.cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("status %d", status)
	}
	for _, missing := range []string{"watch nodes,", "watch pods, delete pods,", "watch volumeattachments", "create leases", "update leases"} {
		if said := h.log.String(); !strings.Contains(said, missing) {
			t.Errorf("%q is not said to be missing:\n%s", missing, said)
		}
	}
}

// A chartScenario is a scenario whose handler is a release of the chart, in a
// namespace of its own.
type chartScenario struct {
	*scenario
	namespace, release string
	program            helm.Helm
	chart              string
	dir                string // for what is to be gone afterwards
}

func newChartScenario(t *testing.T) *chartScenario {
	t.Helper()
	t.Parallel()
	return newChartScenarioIn(t, shared)
}

func newChartScenarioIn(t *testing.T, cluster *sandbox.Cluster) *chartScenario {
	t.Helper()
	s := newScenarioIn(t, cluster)
	root, err := helm.Root()
	s.must(err)
	path, err := helm.Build(s.ctx, root)
	s.must(err)
	dir := t.TempDir()
	c := &chartScenario{
		scenario: s, release: s.name, chart: helm.Chart(root), dir: dir,
		program: helm.Helm{Program: path, Home: dir, Kubeconfig: cluster.Kubeconfig()},
	}
	c.in(s.name + "-nth")
	c.namespaceEnforces("restricted")
	return c
}

// in moves the release into a namespace, whose pods stay away from the nodes of
// other scenarios.
func (c *chartScenario) in(namespace string) {
	c.Helper()
	c.namespace = namespace
	_, err := c.kube.CoreV1().Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		c.must(err)
	}
	c.patchNamespace("annotations", "scheduler.alpha.kubernetes.io/node-selector", "home="+c.name)
}

func (c *chartScenario) namespaceEnforces(standard string) {
	c.Helper()
	c.patchNamespace("labels", "pod-security.kubernetes.io/enforce", standard)
}

func (c *chartScenario) patchNamespace(field, key, value string) {
	c.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{field: map[string]any{key: value}}})
	c.must(err)
	_, err = c.kube.CoreV1().Namespaces().Patch(c.ctx, c.namespace, types.MergePatchType, patch, metav1.PatchOptions{})
	c.must(err)
}

// home adds the nodes that the release runs on.
func (c *chartScenario) home(labels map[string]string) {
	c.Helper()
	all := map[string]string{"home": c.name}
	maps.Copy(all, labels)
	for _, name := range []string{"home-1", "home-2"} {
		_, err := c.cluster.AddNode(c.ctx, sandbox.NodeSpec{Name: c.name + "-" + name, Labels: all})
		c.must(err)
	}
}

// run runs Helm in the release's namespace.
func (c *chartScenario) run(args ...string) {
	c.Helper()
	_, err := c.program.Run(c.ctx, append(args, "--namespace", c.namespace)...)
	c.must(err)
}

// helm installs or upgrades the release and waits until it is ready.
func (c *chartScenario) helm(args ...string) {
	c.Helper()
	c.must(c.try(args...))
}

func (c *chartScenario) try(args ...string) error {
	_, err := c.program.Run(c.ctx, append([]string{
		"upgrade", "--install", c.release, c.chart, "--namespace", c.namespace, "--wait", "--timeout=5m", helm.Image,
	}, args...)...)
	return err
}

func (c *chartScenario) serviceAccount(name string) {
	c.Helper()
	_, err := c.kube.CoreV1().ServiceAccounts(c.namespace).Create(c.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	c.must(err)
}

func (c *chartScenario) bind(serviceAccount, clusterRole string) {
	c.Helper()
	_, err := c.kube.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.namespace, Name: serviceAccount}},
	}, metav1.CreateOptions{})
	c.must(err)
}

// broughtAlong makes what brought-along.yaml names.
func (c *chartScenario) broughtAlong() {
	c.Helper()
	c.serviceAccount("brought-along")
	c.bind("brought-along", "cluster-admin")
	_, err := c.kube.CoreV1().Secrets(c.namespace).Create(c.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook"},
		StringData: map[string]string{"webhookurl": "https://hooks.example.com/mine\n", "webhookheaders": `{"Authorization":"Bearer 123"}`},
	}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.kube.CoreV1().ConfigMaps(c.namespace).Create(c.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook"},
		Data:       map[string]string{"template": `{"text":"my own template for {{ .InstanceID }}"}`},
	}, metav1.CreateOptions{})
	c.must(err)
}

// runPod runs the binary as one of the release's pods would: with the pod's
// arguments, its environment, its files and its ServiceAccount. What the pod's
// network would give it comes on top: the simulated account, ports, and args.
func (c *chartScenario) runPod(args ...string) *handler {
	c.Helper()
	arguments, env := c.pod()
	h := c.process()
	h.cmd = exec.CommandContext(context.WithoutCancel(c.ctx), program, append(arguments,
		append([]string{fmt.Sprintf("--probes-server-port=%d", h.probes), fmt.Sprintf("--prometheus-server-port=%d", h.metrics)}, args...)...)...)
	h.cmd.Env = env
	h.begin()
	return h
}

// pod is the arguments and the environment of the release's newest pod, with the
// simulated account and the rights of its ServiceAccount.
func (c *chartScenario) pod() (args, env []string) {
	c.Helper()
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component!=daemonset,app.kubernetes.io/instance=" + c.release, FieldSelector: "status.phase=Running",
	})
	c.must(err)
	// After an upgrade one of the release before may still be stopping.
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(running) == 0 {
		c.Fatal("no pod of the release runs")
	}
	pod := slices.MaxFunc(running, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	container := pod.Spec.Containers[0]
	kubeconfig, err := c.cluster.ServiceAccountKubeconfig(c.ctx, c.namespace, pod.Spec.ServiceAccountName)
	c.must(err)
	return container.Args, append(c.environment(pod, container),
		"KUBECONFIG="+kubeconfig, "HOME="+c.TempDir(), "AWS_ENDPOINT_URL="+c.endpoint,
		"AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true")
}

// environment is what the kubelet makes of the container's variables, and of the
// files of its ConfigMaps.
func (c *chartScenario) environment(pod corev1.Pod, container corev1.Container) []string {
	c.Helper()
	var paths []string // of the container, each with ours
	for _, mount := range container.VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name != mount.Name || v.ConfigMap == nil {
				continue
			}
			config, err := c.kube.CoreV1().ConfigMaps(c.namespace).Get(c.ctx, v.ConfigMap.Name, metav1.GetOptions{})
			c.must(err)
			dir := c.TempDir()
			for name, text := range config.Data {
				c.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			paths = append(paths, mount.MountPath+"/", dir+"/")
		}
	}
	files := strings.NewReplacer(paths...)
	fields := map[string]string{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName}
	var env []string
	for _, e := range container.Env {
		value := files.Replace(e.Value)
		switch from := e.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil:
			value = fields[from.FieldRef.FieldPath]
		case from.SecretKeyRef != nil:
			secret, err := c.kube.CoreV1().Secrets(c.namespace).Get(c.ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
			c.must(err)
			value = string(secret.Data[from.SecretKeyRef.Key])
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// operator is held while somebody makes its kinds known.
var operator sync.Mutex

// prometheusOperator makes the API server know its kinds, by the operator's own
// definitions.
func (c *chartScenario) prometheusOperator() {
	c.Helper()
	operator.Lock()
	defer operator.Unlock()
	if _, err := c.kube.Discovery().ServerResourcesForGroupVersion("monitoring.coreos.com/v1"); err == nil {
		return // with -count=2
	}
	const module = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	download := exec.CommandContext(c.ctx, "go", "mod", "download", "-json", module)
	out, err := download.Output()
	c.must(err)
	var at struct{ Dir string }
	c.must(json.Unmarshal(out, &at))
	for _, kind := range []string{"podmonitors", "servicemonitors", "prometheusrules"} {
		path := filepath.Join(at.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml")
		c.must(release.Apply(c.ctx, c.cluster, path, kind+".monitoring.coreos.com"))
	}
	c.eventually("its kinds are served", func() bool {
		list, err := c.kube.Discovery().ServerResourcesForGroupVersion("monitoring.coreos.com/v1")
		return err == nil && len(list.APIResources) >= 3
	})
}

// posted waits for the webhook's first call, and checks what its body says.
func (c *chartScenario) posted(hook *webhook, texts ...string) call {
	c.Helper()
	c.eventually("the webhook is called", func() bool { return len(hook.calls()) > 0 })
	first := hook.calls()[0]
	for _, text := range texts {
		if !strings.Contains(first.body, text) {
			c.Errorf("the webhook got %s, without %q", first.body, text)
		}
	}
	return first
}
