package kubesim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// A pod is one version of a pod: what differs between pods. The rest is the same for all.
type pod struct {
	name      string // in the namespace default
	uid       types.UID
	node      string // empty: it waits for the scheduler
	version   uint64
	created   time.Time
	phase     corev1.PodPhase
	disrupted bool      // it has the condition DisruptionTarget
	deletion  time.Time // when its grace period ends; zero: it is not stopping
	grace     int64     // of the deletion, in seconds
	stop      time.Duration
	workload  int // which of the ReplicaSets it belongs to
}

func (p *pod) resourceVersion() uint64   { return p.version }
func (p *pod) fields() fieldSet          { return fieldSet{pod: p} }
func (p *pod) labels() labels.Set        { return p.build().Labels }
func (p *pod) encodable() runtime.Object { return p.typed() }
func (p *pod) key() string               { return p.name }

func (p *pod) typed() *corev1.Pod {
	built := p.build()
	built.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return &built
}

// podGrace is the grace period of all pods, in seconds.
const podGrace = 30

// workloads is how many ReplicaSets the pods belong to.
const workloads = 500

// build makes the Pod, of the size that a pod of one container has with the volume of its token, 2 KB.
func (p *pod) build() corev1.Pod {
	workload, created := fmt.Sprintf("app-%d", p.workload), metav1.NewTime(p.created)
	built := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.name, GenerateName: workload + "-5d9c7b8f6d-", Namespace: metav1.NamespaceDefault, UID: p.uid,
			ResourceVersion: strconv.FormatUint(p.version, 10), CreationTimestamp: created,
			Labels: map[string]string{"app.kubernetes.io/name": workload, "pod-template-hash": "5d9c7b8f6d"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: workload + "-5d9c7b8f6d",
				UID: types.UID("replicaset-" + workload), Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: podSpec,
		Status: corev1.PodStatus{
			Phase: p.phase, QOSClass: corev1.PodQOSBurstable,
		},
	}
	built.Spec.NodeName = p.node
	if p.node != "" {
		built.Status.HostIP, built.Status.PodIP, built.Status.StartTime = "10.0.12.34", "10.0.56.78", &created
		built.Status.Conditions = runningConditions
		built.Status.ContainerStatuses = runningContainers
	}
	if p.disrupted {
		built.Status.Conditions = append(slices.Clip(built.Status.Conditions), corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			Message: "Eviction API: evicting",
		})
	}
	if !p.deletion.IsZero() {
		built.DeletionTimestamp, built.DeletionGracePeriodSeconds = new(metav1.NewTime(p.deletion)), new(p.grace)
	}
	return built
}

// What all pods have. It is shared, and only read.
var (
	podSpec           = newPodSpec()
	runningConditions = newConditions()
	runningContainers = []corev1.ContainerStatus{{
		Name: "app", Ready: true, Started: new(true), Image: podSpec.Containers[0].Image,
		ImageID:     "registry.example.com/team/app@sha256:" + strings.Repeat("0123456789abcdef", 4),
		ContainerID: "containerd://" + strings.Repeat("0123456789abcdef", 4),
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
)

func newConditions() (all []corev1.PodCondition) {
	for _, kind := range []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
	} {
		all = append(all, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	return all
}

func newPodSpec() corev1.PodSpec {
	env := make([]corev1.EnvVar, 8)
	for k := range env {
		env[k] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: "a value of some forty characters or so"}
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("512Mi"),
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz"}}}
	return corev1.PodSpec{
		ServiceAccountName: "default", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
		SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: new(int64(podGrace)), Priority: new(int32(0)),
		Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/team/app:v1.2.3", Env: env,
			Resources:     corev1.ResourceRequirements{Requests: room, Limits: room},
			LivenessProbe: probe, ReadinessProbe: probe,
			VolumeMounts: []corev1.VolumeMount{{
				Name: "kube-api-access", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount",
			}},
		}},
		Tolerations: []corev1.Toleration{tolerated(corev1.TaintNodeNotReady), tolerated(corev1.TaintNodeUnreachable)},
		Volumes: []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(420)), Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
			}},
		}}},
	}
}

// tolerated is what every pod gets for a taint of a node that is away.
func tolerated(taint string) corev1.Toleration {
	return corev1.Toleration{
		Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
		TolerationSeconds: new(int64(300)),
	}
}

// A node is one version of a Node.
type node struct {
	*corev1.Node

	version uint64
}

func (n *node) resourceVersion() uint64   { return n.version }
func (n *node) fields() fieldSet          { return fieldSet{node: n} }
func (n *node) labels() labels.Set        { return n.Labels }
func (n *node) encodable() runtime.Object { return n.Node }
func (n *node) key() string               { return n.Name }

// newNode makes a ready Node as EKS has them: with its labels, and the images that are on it.
func newNode(spec NodeSpec, uid types.UID, now time.Time) *corev1.Node {
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Name, UID: uid, CreationTimestamp: metav1.NewTime(now),
			Labels: map[string]string{
				corev1.LabelHostname: spec.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelInstanceTypeStable: "m7i.2xlarge", corev1.LabelTopologyRegion: "us-east-1",
				corev1.LabelTopologyZone: "us-east-1a", "eks.amazonaws.com/capacityType": "SPOT",
				"eks.amazonaws.com/nodegroup": "storm",
			},
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec:   corev1.NodeSpec{ProviderID: spec.ProviderID},
		Status: nodeStatus,
	}
}

// nodeStatus is that of all nodes, shared.
var nodeStatus = newNodeStatus()

func newNodeStatus() corev1.NodeStatus {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("58"),
	}
	status := corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.12.34"},
			{Type: corev1.NodeInternalDNS, Address: "ip-10-0-12-34.ec2.internal"},
		},
		NodeInfo: corev1.NodeSystemInfo{
			BootID: "a7b8c9d0-0000-4000-8000-000000000000", KubeletVersion: "v1.36.0", OperatingSystem: "linux",
			Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.1.4", OSImage: "Amazon Linux 2023",
		},
	}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady,
	} {
		is := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			is = corev1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, corev1.NodeCondition{Type: kind, Status: is, Reason: "Kubelet"})
	}
	const images = 20
	for k := range images {
		status.Images = append(status.Images, corev1.ContainerImage{SizeBytes: 100 << 20, Names: []string{
			fmt.Sprintf("registry.example.com/team/app-%d@sha256:%s", k, strings.Repeat("0123456789abcdef", 4)),
			fmt.Sprintf("registry.example.com/team/app-%d:v1.2.3", k),
		}})
	}
	return status
}

// fieldSet has the fields of an object that can be selected by. It implements fields.Fields.
type fieldSet struct {
	pod  *pod
	node *node
}

// Has implements fields.Fields.
func (s fieldSet) Has(field string) bool { return s.Get(field) != "" }

// Get implements fields.Fields.
func (s fieldSet) Get(field string) string {
	switch {
	case s.node != nil && field == "metadata.name":
		return s.node.Name
	case s.pod == nil:
		return ""
	}
	switch field {
	case "metadata.name":
		return s.pod.name
	case "metadata.namespace":
		return metav1.NamespaceDefault
	case "spec.nodeName":
		return s.pod.node
	case "status.phase":
		return string(s.pod.phase)
	}
	return ""
}
