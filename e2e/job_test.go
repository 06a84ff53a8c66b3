package e2e

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
)

// job runs one pod on the scenario's nodes. It may not fail once, but disruptions do not count.
func (s *scenario) job(name string, edit ...func(*corev1.PodTemplateSpec)) corev1.Pod {
	s.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:          batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			}}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"scenario": s.name}, RestartPolicy: corev1.RestartPolicyNever,
					TerminationGracePeriodSeconds: new(int64(2)),
					Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
				},
			},
		},
	}
	for _, e := range edit {
		e(&job.Spec.Template)
	}
	_, err := s.kube.BatchV1().Jobs(s.name).Create(s.ctx, job, metav1.CreateOptions{})
	s.must(err)
	var running []corev1.Pod
	s.eventually("the pod of the Job runs", func() bool {
		pods, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + name, FieldSelector: "status.phase=Running"})
		s.must(err)
		running = pods.Items
		return len(running) == 1
	})
	return running[0]
}

// The instance stops already, so the pod of the Job is deleted and not evicted.
func TestAForcedPodDoesNotCountAgainstTheBackoffLimitOfItsJob(t *testing.T) {
	tier.Full(t, "20 s; internal/drain has the order")
	s := newScenario(t)
	s.alone()
	n := s.nodes(1)[0]
	pod := s.job("batch")
	replacement := s.node(s.name+"-z", s.id(25))
	message := s.send(s.body("state-change-stopping", n.instance))
	s.awaitDeleted(soon, message)
	requests := s.requests(pod.Name)
	if len(requests) != 1 || requests[0].evicts {
		t.Errorf("requests %v for the pod of the Job, want one deletion", requests)
	}
	s.eventually("the Job has another pod", func() bool {
		for _, p := range s.podsOn(replacement.name) {
			if p.Labels["app"] == "batch" && p.Status.Phase == corev1.PodRunning {
				return true
			}
		}
		return false
	})
	job, err := s.kube.BatchV1().Jobs(s.name).Get(s.ctx, "batch", metav1.GetOptions{})
	s.must(err)
	if job.Status.Failed != 0 || job.Status.Active != 1 || job.Status.Conditions != nil {
		t.Errorf("the Job has the status %+v", job.Status)
	}
	for _, w := range s.writes() {
		if w.Verb == "patch" && w.Resource == "pods" && w.Subresource == "status" {
			return
		}
	}
	t.Errorf("no pod got the condition %s", drain.DisruptionReason)
}
