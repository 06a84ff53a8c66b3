package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// windows makes a pod one for nodes with Windows, which keep others away by a taint.
func windows(spec *corev1.PodSpec) {
	spec.OS = &corev1.PodOS{Name: corev1.Windows}
	if spec.NodeSelector == nil {
		spec.NodeSelector = map[string]string{}
	}
	spec.NodeSelector[corev1.LabelOSStable] = "windows"
	spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: "os", Value: "windows", Effect: corev1.TaintEffectNoSchedule})
}

// hostProcess makes it one that runs on the machine itself, as a network plugin does.
func hostProcess(spec *corev1.PodSpec) {
	windows(spec)
	spec.HostNetwork = true
	spec.SecurityContext = &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{
		HostProcess: new(true), RunAsUserName: new(`NT AUTHORITY\SYSTEM`),
	}}
}

// The handler runs on Linux, and talks to the API server alone.
func TestANodeWithWindowsIsDrainedFromLinux(t *testing.T) {
	tier.Full(t, "30 s; internal/drain has the table")
	s := newScenario(t)
	var nodes []node
	for k, name := range []string{"win-1", "win-2"} {
		n := node{s.name + "-" + name, s.id(k)}
		s.must(s.addWindows(n))
		nodes = append(nodes, n)
	}
	linux := s.node(s.name+"-linux", s.id(2))

	// Images of Windows start and stop slowly.
	const grace, stop = int64(90), 8 * time.Second
	s.deployment("web", 2, func(p *corev1.PodTemplateSpec) {
		windows(&p.Spec)
		p.Spec.TerminationGracePeriodSeconds = new(grace)
		p.Annotations = map[string]string{sandbox.StopAfter: stopAfter(stop)}
	})
	s.budget("web", "web", 1)
	agents := s.daemonSet("network", func(p *corev1.PodTemplateSpec) { hostProcess(&p.Spec) })
	if len(agents) != len(nodes) {
		t.Fatalf("%d pods of the DaemonSet, want one on each node with Windows", len(agents))
	}
	s.pod("single", nodes[0].name, func(p *corev1.Pod) { hostProcess(&p.Spec) })
	s.pod("linux", linux.name)

	s.alone("--taint-node")
	began := time.Now()
	message := s.send(s.body("spot-interruption", nodes[0].instance))
	s.eventually("the node is cordoned", func() bool { return s.cordoned(nodes[0].name) })
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	if took := time.Since(began); took < stop {
		t.Errorf("drained after %s, before a pod can have stopped", took)
	}
	after := s.getNode(nodes[0].name)
	if state := after.Labels[cluster.StateLabel]; state != cluster.StateDrained || !tainted(after.Spec.Taints, "os") {
		t.Errorf("the state is %q, the taints are %v", state, after.Spec.Taints)
	}
	for _, e := range s.evictions() {
		if e.Verb == "delete" {
			t.Errorf("pod %s was deleted, and not evicted", e.Name)
		}
	}
	for _, name := range append(agents, "linux") {
		if !s.podExists(name) {
			t.Errorf("pod %s is gone", name)
		}
	}
	if s.podExists("single") {
		t.Error("a host-process pod without a DaemonSet has stayed")
	}
	s.eventually("the application runs on the other node", func() bool { return s.readyReplicas("web") == 2 })
	if s.cordoned(nodes[1].name) || s.cordoned(linux.name) {
		t.Error("another node is cordoned too")
	}
}

// A pod with a longer grace period gets what time the machine has, on Windows too.
func TestAGraceOnWindowsIsCutToWhatIsLeftOfTheNotice(t *testing.T) {
	tier.Full(t, "45 s; internal/drain has the table")
	s := newScenario(t)
	n := node{s.name + "-win", s.id(0)}
	s.must(s.addWindows(n))
	s.pod("slow", n.name, func(p *corev1.Pod) {
		windows(&p.Spec)
		p.Spec.TerminationGracePeriodSeconds = new(int64(600))
		p.Annotations[sandbox.StopAfter] = stopAfter(10 * time.Minute)
	})
	s.alone()
	const left = 40 * time.Second // of the two minutes of a spot interruption
	s.send(s.bodyAt(time.Now().Add(left-2*time.Minute), "spot-interruption", n.instance))
	s.eventually("the pod is gone", func() bool { return !s.podExists("slow") })
	if asked := s.requests("slow"); len(asked) == 0 || asked[0].grace < 1 || asked[0].grace > int64(left.Seconds()) {
		t.Errorf("requests for the pod: %v, want one with a grace period of %s at most", asked, left)
	}
}

// addWindows adds the instance of a node with Windows and its ready Node, with the taint that keeps other pods away.
func (s *scenario) addWindows(n node) error {
	if err := s.aws.PutInstance(instanceOf(n)); err != nil {
		return err
	}
	_, err := s.cluster.AddNode(s.ctx, sandbox.NodeSpec{
		Name: n.name, ProviderID: "aws:///us-east-1a/" + n.instance,
		Labels: map[string]string{"scenario": s.name, corev1.LabelOSStable: "windows"},
		Taints: []corev1.Taint{{Key: "os", Value: "windows", Effect: corev1.TaintEffectNoSchedule}},
	})
	return err
}

// No kubelet of Windows is here: the API server, its controllers and the scheduler take the pods, and KWOK says that
// they run.
func TestTheChartPutsAPodOnEachNodeWithWindows(t *testing.T) {
	tier.Full(t, "30 s of Helm; e2e/helm renders the chart")
	c := newChartScenario(t)
	c.namespaceEnforces("privileged")
	c.home(nil)
	win := c.name + "-win"
	_, err := c.cluster.AddNode(c.ctx, sandbox.NodeSpec{
		Name: win, Labels: map[string]string{"home": c.name, corev1.LabelOSStable: "windows"},
		Taints: []corev1.Taint{{Key: "os", Value: "windows", Effect: corev1.TaintEffectNoSchedule}},
	})
	c.must(err)
	c.helm("--set=enableSqsTerminationDraining=false,targetNodeOs=linux windows", "--set=nodeSelector.home="+c.name)
	for name, want := range map[string]int32{"": 2, "-win": 1} {
		set, err := c.kube.AppsV1().DaemonSets(c.namespace).Get(c.ctx, c.release+"-node-termination-handler"+name, metav1.GetOptions{})
		c.must(err)
		if set.Status.NumberReady != want {
			t.Errorf("%s has %d pods that are ready, want %d", set.Name, set.Status.NumberReady, want)
		}
	}
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + win})
	c.must(err)
	if len(pods.Items) != 1 || !*pods.Items[0].Spec.SecurityContext.WindowsOptions.HostProcess {
		t.Errorf("on the node with Windows: %+v", pods.Items)
	}
}
