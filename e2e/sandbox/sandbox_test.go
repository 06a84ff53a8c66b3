package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestTheServerAndItsNodesHaveTheVersionThatWasChosen(t *testing.T) {
	tier.Full(t, "a control plane of its own; make matrix plays it")
	versions, err := Versions()
	if err != nil {
		t.Fatal(err)
	}
	want, err := chosen(versions, os.Getenv(Variable))
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t)
	addNodes(t, c, "node-1")
	server, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if got := "v" + server.Major + "." + server.Minor; server.GitVersion != want.Release || got != "v"+want.Minor {
		t.Errorf("the server says %s, %s, want %s", server.GitVersion, got, want.Release)
	}
	node, err := c.Client().CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || node.Status.NodeInfo.KubeletVersion != want.Release {
		t.Errorf("the kubelet says %s, %v, want %s", node.Status.NodeInfo.KubeletVersion, err, want.Release)
	}
}

func TestAnEvictedPodComesUpElsewhereAndNothingIsLeftBehind(t *testing.T) {
	ctx := t.Context()
	c := startCluster(t)
	addNodes(t, c, "node-1", "node-2", "node-3")
	pods := createDeployment(t, c, "web", 6)
	victim := pods[0]

	setBudget(t, c, "web", 6, 0)
	if err := evict(ctx, c, victim); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the eviction that the budget does not allow = %v, want 429", err)
	}
	setBudget(t, c, "web", 5, 1)
	if err := evict(ctx, c, victim); err != nil {
		t.Fatalf("evict: %v", err)
	}
	eventually(t, "the evicted pod has a replacement", func() error {
		now := runningPods(t, c, "app=web")
		if len(now) != 6 {
			return fmt.Errorf("%d pods are running", len(now))
		}
		for _, pod := range now {
			if pod.UID == victim.UID {
				return errors.New("the evicted pod is still there")
			}
		}
		return nil
	})

	evictions := func(event AuditEvent) bool { return event.Subresource == "eviction" }
	var got []string
	eventually(t, "both evictions are in the audit log", func() error {
		events, err := c.Audit(evictions)
		if err != nil {
			return err
		}
		got = nil
		for _, event := range events {
			got = append(got, fmt.Sprintf("%s %s %s/%s %s/%s %d", event.User, event.Verb, event.Resource, event.Subresource, event.Namespace, event.Name, event.Code))
			if event.Received.IsZero() || event.Answered.Before(event.Received) || !strings.Contains(string(event.Request), `"kind":"Eviction"`) {
				t.Errorf("the audit event has no times or no body: %+v", event)
			}
		}
		if len(got) < 2 {
			return fmt.Errorf("%d are", len(got))
		}
		return nil
	})
	want := []string{
		"admin create pods/eviction default/" + victim.Name + " 429",
		"admin create pods/eviction default/" + victim.Name + " 201",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("evictions in the audit log (-want +got):\n%s", diff)
	}

	c.APIServer.Kill()
	if _, err := c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a killed API server answers")
	}
	if err := c.APIServer.Start(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the restarted API server has its controllers back", func() error {
		_, err := c.Client().CoreV1().Pods("default").Get(ctx, pods[2].Name, metav1.GetOptions{})
		return err
	})
	if err := c.Client().CoreV1().Pods("default").Delete(ctx, pods[2].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a pod deleted after the restart has a replacement", func() error {
		if now := runningPods(t, c, "app=web"); len(now) != 6 || slices.ContainsFunc(now, func(pod corev1.Pod) bool { return pod.UID == pods[2].UID }) {
			return fmt.Errorf("%d pods are running", len(now))
		}
		return nil
	})

	pids := c.pids()
	if len(pids) != 5 {
		t.Errorf("%d processes are running, want 5", len(pids))
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is alive after Stop", pid)
		}
	}
	if exists(c.Dir()) {
		t.Errorf("%s is there after Stop", c.Dir())
	}
	if err := c.Stop(); err != nil {
		t.Errorf("the second Stop = %v", err)
	}
}

func TestNodesAndPodsBehaveAsTold(t *testing.T) {
	c := startCluster(t)
	addNodes(t, c, "node-1")

	t.Run("a node is Ready when it is told to be", func(t *testing.T) {
		node, err := c.AddNode(t.Context(), NodeSpec{Name: "late", ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0", NotReady: true})
		if err != nil {
			t.Fatal(err)
		}
		if node.Spec.ProviderID != "aws:///eu-west-1a/i-0123456789abcdef0" {
			t.Errorf("providerID = %q", node.Spec.ProviderID)
		}
		for _, ready := range []bool{true, false, true} {
			if err := c.SetReady(t.Context(), "late", ready); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Client().CoreV1().Nodes().Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("a pod stops as its annotation says, within its grace", func(t *testing.T) {
		for _, test := range []struct {
			name      string
			stopAfter string
			grace     int64
			least     time.Duration
		}{ // what does not count would take longer than is waited for
			{name: "without", grace: 3600, least: 100 * time.Millisecond},
			{name: "seconds", stopAfter: "2s", grace: 3600, least: 2 * time.Second},
			{name: "milliseconds", stopAfter: "1500ms", grace: 3600, least: 1500 * time.Millisecond},
			{name: "grace", stopAfter: "10m", grace: 3, least: 3 * time.Second},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				pod := barePod("stops-" + test.name)
				pod.Spec.TerminationGracePeriodSeconds = &test.grace
				if test.stopAfter != "" {
					pod.Annotations = map[string]string{StopAfter: test.stopAfter}
				}
				createRunning(t, c, pod)
				start := time.Now()
				deletePod(t, c, pod.Name, nil)
				awaitGone(t, c, pod.Name)
				if took := time.Since(start); took < test.least {
					t.Errorf("it took %v to stop, want %v at least", took, test.least)
				}
			})
		}
	})

	t.Run("a second delete shortens the grace of a pod that is stopping", func(t *testing.T) {
		pod := barePod("shortened")
		pod.Annotations = map[string]string{StopAfter: "10m"}
		grace := int64(3600)
		pod.Spec.TerminationGracePeriodSeconds = &grace
		createRunning(t, c, pod)
		deletePod(t, c, pod.Name, nil)
		shorter := int64(2)
		deletePod(t, c, pod.Name, &shorter)
		awaitGone(t, c, pod.Name) // before the ten minutes are over
	})

	t.Run("a pod can run and not be ready", func(t *testing.T) {
		pod := barePod("unready")
		pod.Annotations = map[string]string{NotReady: ""}
		createRunning(t, c, pod)
		got, err := c.Client().CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if podReady(*got) {
			t.Error("it is ready")
		}
		delete(got.Annotations, NotReady)
		if _, err := c.Client().CoreV1().Pods("default").Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is ready", func() error {
			got, err := c.Client().CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
			if err == nil && !podReady(*got) {
				err = errors.New("it is not")
			}
			return err
		})
	})

	t.Run("a mirror pod runs", func(t *testing.T) {
		node, err := c.Client().CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod := barePod("mirror-node-1")
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller}}
		createRunning(t, c, pod)
	})

	t.Run("a DaemonSet has a pod on each node", func(t *testing.T) {
		addNodes(t, c, "node-2")
		template := podTemplate("agent")
		_, err := c.Client().AppsV1().DaemonSets("default").Create(t.Context(), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "agent"},
			Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has", func() error {
			var nodes []string
			for _, pod := range runningPods(t, c, "app=agent") {
				nodes = append(nodes, pod.Spec.NodeName)
			}
			slices.Sort(nodes)
			if diff := cmp.Diff([]string{"node-1", "node-2"}, nodes); diff != "" {
				return errors.New(diff)
			}
			return nil
		})
	})

	t.Run("a VolumeAttachment is left alone", func(t *testing.T) {
		volume := "pv-1"
		attachments := c.Client().StorageV1().VolumeAttachments()
		_, err := attachments.Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "by-hand"},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "ebs.csi.aws.com", NodeName: "node-1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// The controllers look at everything when they start.
		c.ControllerManager.Kill()
		if err := c.ControllerManager.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		createDeployment(t, c, "after-restart", 1)
		if _, err := attachments.Get(t.Context(), "by-hand", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("a paused kubelet leaves pods pending, and starts them when it goes on", func(t *testing.T) {
		if err := c.KWOK.Pause(); err != nil {
			t.Fatal(err)
		}
		pod := barePod("waiting")
		if _, err := c.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(time.Second): // for which it would run otherwise
		case <-t.Context().Done():
		}
		created, err := c.Client().CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || created.Status.Phase != corev1.PodPending {
			t.Errorf("the pod is %v, %v", created.Status.Phase, err)
		}
		if err := c.KWOK.Resume(); err != nil {
			t.Fatal(err)
		}
		awaitRunning(t, c, pod.Name)
	})

	t.Run("a ServiceAccount has its own rights", func(t *testing.T) {
		ctx := t.Context()
		if _, err := c.Client().CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "poor"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		path, err := c.ServiceAccountKubeconfig(ctx, "default", "poor")
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Discovery().ServerVersion(); err != nil {
			t.Errorf("the token is not good: %v", err)
		}
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("List of nodes = %v, want forbidden", err)
		}
		if _, err := c.ServiceAccountKubeconfig(ctx, "default", "nobody"); !apierrors.IsNotFound(err) {
			t.Errorf("the kubeconfig of an unknown ServiceAccount = %v, want not found", err)
		}
	})
}

func TestTwoClustersStartAtTheSameTime(t *testing.T) {
	tier.Full(t, "two control planes")
	var starting sync.WaitGroup
	clusters := make([]*Cluster, 2)
	for i := range clusters {
		starting.Go(func() {
			c, err := Start(t.Context(), Options{Out: os.Stderr})
			if err != nil {
				t.Error(err)
				return
			}
			clusters[i] = c
		})
	}
	starting.Wait()
	for i, c := range clusters {
		if c == nil {
			continue
		}
		defer c.Stop()
		if _, err := c.AddNode(t.Context(), NodeSpec{Name: fmt.Sprint("node-", i)}); err != nil {
			t.Error(err)
		}
		nodes, err := c.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 1 {
			t.Errorf("%d nodes, %v; want its own alone", len(nodes.Items), err)
		}
	}
}

func TestAComponentThatDoesNotComeUpIsNamedWithItsLogAndNothingIsLeft(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	temp, err := os.MkdirTemp("", "short-") // t.TempDir has a name too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp)
	t.Setenv("TMPDIR", temp)
	_, err = Start(t.Context(), Options{Out: os.Stderr, APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "start kube-apiserver") || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("Start = %v, want the API server's own words", err)
	}
	if left, _ := os.ReadDir(temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestNoComponentOutlivesAKilledProgram runs this test binary again as the
// program that is killed.
func TestNoComponentOutlivesAKilledProgram(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	if os.Getenv("SANDBOX_TEST_VICTIM") != "" {
		c, err := Start(t.Context(), Options{Out: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Scheduler.Pause(); err != nil { // it cannot see that its standard input ends
			t.Fatal(err)
		}
		// The system wakes up only what had stopped when its parent died.
		eventually(t, "the scheduler has stopped", func() error {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Scheduler.PID()))
			if err == nil && !strings.Contains(string(stat), ") T ") {
				return errors.New("it runs")
			}
			return nil // also where there is no /proc
		})
		fmt.Fprintln(os.Stdout, "pids:", strings.Trim(fmt.Sprint(c.pids()), "[]"))
		select {} // until killed
	}
	if _, err := Build(t.Context(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp("", "short-") // t.TempDir has a name too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp) // with what the killed program could not remove
	victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), "SANDBOX_TEST_VICTIM=1", "TMPDIR="+temp)
	victim.Stderr = os.Stderr
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if list, ok := strings.CutPrefix(lines.Text(), "pids: "); ok {
			for field := range strings.FieldsSeq(list) {
				var pid int
				if _, err := fmt.Sscan(field, &pid); err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
			break
		}
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	if len(pids) != 5 {
		t.Fatalf("%d processes were running, want 5", len(pids))
	}
	eventually(t, "all processes are gone", func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("%d is alive", pid)
			}
		}
		return nil
	})
}

// startCluster starts a cluster for the rest of the test.
func startCluster(t *testing.T) *Cluster {
	t.Helper()
	binaries, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	c, err := Start(t.Context(), Options{Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(start).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			c.DumpLogs(os.Stderr, 30)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func addNodes(t *testing.T, c *Cluster, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := c.AddNode(t.Context(), NodeSpec{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
}

func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

// barePod is a pod that nobody owns, bound to node-1.
func barePod(name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podTemplate(name).Spec}
	pod.Spec.NodeName = "node-1"
	return pod
}

// createDeployment returns the pods of a new Deployment when all run.
func createDeployment(t *testing.T, c *Cluster, name string, replicas int32) []corev1.Pod {
	t.Helper()
	template := podTemplate(name)
	_, err := c.Client().AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	eventually(t, "Deployment "+name+" is complete", func() error {
		if pods = runningPods(t, c, "app="+name); len(pods) != int(replicas) {
			return fmt.Errorf("%d of %d pods are running", len(pods), replicas)
		}
		return nil
	})
	return pods
}

// setBudget creates or changes the PodDisruptionBudget of an app, and returns
// when the controller manager has counted its pods and allows as many
// disruptions as given.
func setBudget(t *testing.T, c *Cluster, app string, minAvailable, allowed int32) {
	t.Helper()
	budgets := c.Client().PolicyV1().PodDisruptionBudgets("default")
	least := intstr.FromInt32(minAvailable)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	eventually(t, "the budget is set", func() error {
		current, err := budgets.Get(t.Context(), app, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = budgets.Create(t.Context(), budget, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		current.Spec = budget.Spec
		_, err = budgets.Update(t.Context(), current, metav1.UpdateOptions{})
		return err
	})
	eventually(t, "the budget allows what it should", func() error {
		budget, err := budgets.Get(t.Context(), app, metav1.GetOptions{})
		if err == nil && (budget.Status.ObservedGeneration != budget.Generation || budget.Status.DisruptionsAllowed != allowed) {
			err = fmt.Errorf("it allows %d", budget.Status.DisruptionsAllowed)
		}
		return err
	})
}

func evict(ctx context.Context, c *Cluster, pod corev1.Pod) error {
	return c.Client().CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
}

func createRunning(t *testing.T, c *Cluster, pod *corev1.Pod) {
	t.Helper()
	if _, err := c.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRunning(t, c, pod.Name)
}

func awaitRunning(t *testing.T, c *Cluster, name string) {
	t.Helper()
	eventually(t, "pod "+name+" runs", func() error {
		pod, err := c.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "") {
			err = fmt.Errorf("its phase is %s, its address %q", pod.Status.Phase, pod.Status.PodIP)
		}
		return err
	})
}

func deletePod(t *testing.T, c *Cluster, name string, grace *int64) {
	t.Helper()
	if err := c.Client().CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: grace}); err != nil {
		t.Fatal(err)
	}
}

func awaitGone(t *testing.T, c *Cluster, name string) {
	t.Helper()
	eventually(t, "pod "+name+" is gone", func() error {
		_, err := c.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
}

// runningPods are the Ready pods with the label that are not being deleted.
func runningPods(t *testing.T, c *Cluster, selector string) []corev1.Pod {
	t.Helper()
	list, err := c.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !podReady(pod) || pod.DeletionTimestamp != nil })
}

func podReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

// eventually returns when check returns nil, and fails the test when it never does.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 5*time.Minute, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("after 5 minutes it is not true that %s: %v", what, last)
	}
}

// alive says whether a process runs. One that has ended and waits for its parent
// to notice, as an orphan in a container without an init does for ever, does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func (c *Cluster) pids() []int {
	var pids []int
	for _, component := range c.components() {
		if pid := component.PID(); pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
