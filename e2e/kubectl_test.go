package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/helm"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// sort is a label: the pods of two nodes that have the same are alike.
const sort = "sort"

// Two nodes have the same pods. kubectl itself drains one of them, the handler the other.
func TestTheHandlerAndKubectlDrainChooseTheSamePods(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ options, flags, stay []string }{
		"by default": {
			flags: []string{"--ignore-daemonsets", "--delete-emptydir-data"},
			stay:  alwaysStay(),
		},
		"without the data of an emptyDir": {
			options: []string{"--delete-local-data=false"},
			flags:   []string{"--ignore-daemonsets"},
			stay:    alwaysStay("scratch"),
		},
		"without DaemonSets": {
			options: []string{"--ignore-daemon-sets=false"},
			flags:   []string{"--delete-emptydir-data"},
			stay:    alwaysStay(),
		},
		"without both": {
			options: []string{"--ignore-daemon-sets=false", "--delete-local-data=false"},
			stay:    alwaysStay("scratch"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "by default" {
				tier.Full(t, "half a minute; internal/drain has the table")
			}
			s := newScenario(t)
			nodes := s.nodes(2)
			sorts := s.podsOfEachSort(nodes...)
			s.drainWithKubectl(nodes[0], tt.flags...)
			s.alone(tt.options...)
			message, _ := s.warn(nodes[1], 2*time.Minute)
			s.awaitDeleted(soon, message)
			for _, n := range nodes {
				if got := s.sortsOn(n); !slices.Equal(got, tt.stay) {
					t.Errorf("of the sorts %v there stay on node %s %v, want %v", sorts, n.name, got, tt.stay)
				}
			}
		})
	}
}

// alwaysStay are the sorts that nobody evicts by default, and others, in order.
func alwaysStay(others ...string) []string {
	all := append([]string{"daemon", "daemon-with-scratch", "static", "static-and-failed", "static-with-scratch"}, others...)
	slices.Sort(all)
	return all
}

// podsOfEachSort fills each node with a pod of each sort, and returns the sorts. Two sorts cannot be there: the controllers
// take away the pod of a DaemonSet that is gone, and one of a DaemonSet that has ended. internal/drain has both.
func (s *scenario) podsOfEachSort(nodes ...node) []string {
	s.Helper()
	on := func(n node, kind string) func(*corev1.PodTemplateSpec) {
		return func(t *corev1.PodTemplateSpec) {
			t.Labels[sort] = kind
			t.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
		}
	}
	s.daemonSet("daemon", func(t *corev1.PodTemplateSpec) { t.Labels[sort] = "daemon" })
	s.daemonSet("daemon-with-scratch", func(t *corev1.PodTemplateSpec) {
		p := &corev1.Pod{Spec: t.Spec}
		emptyDir(p)
		t.Labels[sort], t.Spec = "daemon-with-scratch", p.Spec
	})
	daemons, err := s.kube.AppsV1().DaemonSets(s.name).Get(s.ctx, "daemon", metav1.GetOptions{})
	s.must(err)
	// The garbage collector does not know the kinds of others, so a ConfigMap takes the place of one.
	custom, err := s.kube.CoreV1().ConfigMaps(s.name).Create(s.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "custom"}}, metav1.CreateOptions{})
	s.must(err)
	for _, n := range nodes {
		bare := func(kind string, edit ...func(*corev1.Pod)) string {
			name := n.name + "-" + kind
			label := func(p *corev1.Pod) { p.Labels = map[string]string{sort: kind} }
			s.pod(name, n.name, append(edit, label)...)
			return name
		}
		bare("bare")
		bare("scratch", emptyDir)
		bare("tolerant", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
		bare("critical", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" })
		bare("claimed", func(p *corev1.Pod) {
			claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
		})
		bare("custom", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: custom.Name, UID: custom.UID, Controller: new(true)}}
		})
		bare("owned-by-a-daemon-set", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: daemons.Name, UID: daemons.UID}}
		})
		s.end(bare("pending"), corev1.PodPending)
		s.job(n.name+"-job", on(n, "job"))
		bare("static", s.mirrors(n))
		bare("static-with-scratch", s.mirrors(n), emptyDir)
		bare("protected", func(p *corev1.Pod) { p.Annotations["karpenter.sh/do-not-disrupt"] = "true" })
		s.end(bare("unknown"), corev1.PodUnknown)
		s.end(bare("succeeded"), corev1.PodSucceeded)
		s.end(bare("failed"), corev1.PodFailed)
		s.end(bare("scratch-and-failed", emptyDir), corev1.PodFailed)
		s.end(bare("static-and-failed", s.mirrors(n)), corev1.PodFailed)
		s.deployment(n.name+"-replicated", 1, on(n, "replicated"))
		s.statefulSet(n.name+"-stateful", on(n, "stateful"))
	}
	sorts := s.sortsOn(nodes[0])
	for _, n := range nodes {
		if got := s.sortsOn(n); len(got) != 21 || !slices.Equal(got, sorts) {
			s.Fatalf("pods of the sorts %v on node %s, %v on node %s; want the same 21", got, n.name, sorts, nodes[0].name)
		}
	}
	return sorts
}

// sortsOn are the sorts of the pods on a node, in order.
func (s *scenario) sortsOn(n node) (sorts []string) {
	s.Helper()
	for _, p := range s.podsOn(n.name) {
		sorts = append(sorts, p.Labels[sort])
	}
	slices.Sort(sorts)
	return sorts
}

// end has the kubelet say that a pod has ended.
func (s *scenario) end(name string, phase corev1.PodPhase) {
	s.Helper()
	pods := s.kube.CoreV1().Pods(s.name)
	p, err := pods.Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	p.Status.Phase = phase
	_, err = pods.UpdateStatus(s.ctx, p, metav1.UpdateOptions{})
	s.must(err)
}

// statefulSet runs one pod, and waits until it is ready.
func (s *scenario) statefulSet(name string, edit func(*corev1.PodTemplateSpec)) {
	s.Helper()
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	edit(&template)
	sets := s.kube.AppsV1().StatefulSets(s.name)
	_, err := sets.Create(s.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the StatefulSet "+name+" is ready", func() bool {
		set, err := sets.Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return set.Status.ReadyReplicas == 1
	})
}

// refusals are the pods because of which kubectl refuses to drain a node.
var refusals = regexp.MustCompile(`cannot delete [^:]*: ([^\]\n]*)`)

// drainWithKubectl runs `kubectl drain`. If it refuses because of some pods, they are left out, as a person would.
func (s *scenario) drainWithKubectl(n node, flags ...string) {
	s.Helper()
	root, err := filepath.Abs("..")
	s.must(err)
	kubectl, err := helm.BuildKubectl(s.ctx, root)
	s.must(err)
	drain := func(more ...string) (string, error) {
		args := slices.Concat([]string{"--kubeconfig", s.cluster.Kubeconfig(), "drain", n.name, "--force", "--timeout=60s"}, flags, more)
		out, err := exec.CommandContext(s.ctx, kubectl, args...).CombinedOutput()
		return string(out), err
	}
	out, err := drain()
	if err == nil {
		return
	}
	var left []string
	for _, refusal := range refusals.FindAllStringSubmatch(out, -1) {
		for _, p := range s.podsOn(n.name) {
			if strings.Contains(refusal[1]+",", s.name+"/"+p.Name+",") {
				left = append(left, p.Labels[sort])
			}
		}
	}
	if len(left) == 0 {
		s.Fatalf("kubectl drain: %v\n%s", err, out)
	}
	if out, err = drain("--pod-selector=" + sort + " notin (" + strings.Join(left, ",") + ")"); err != nil {
		s.Fatalf("kubectl drain without the pods %v: %v\n%s", left, err, out)
	}
}
