package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// The members of a quorum ask for more time than a spot warning leaves, and stop in three seconds. All three are warned at
// once: no two of them may be away at the same time.
func TestAQuorumKeepsItsMajorityThoughItsGraceDoesNotFitIntoTheNotice(t *testing.T) {
	tier.Full(t, "a budget has its share within a minute; internal/drain plays it in virtual time")
	t.Parallel()
	for _, grace := range []time.Duration{180 * time.Second, 7 * 24 * time.Hour} {
		t.Run(grace.String(), func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(3)
			s.quorum("db", grace, 3*time.Second)
			for k := range nodes {
				s.node(fmt.Sprintf("%s-spare-%d", s.name, k), s.id(10+k))
			}
			h := s.alone()
			pulse, sent := s.feel(), time.Now()
			var messages []string
			var deadline time.Time
			for _, n := range nodes {
				var message string
				message, deadline = s.warn(n, 2*time.Minute)
				messages = append(messages, message)
			}
			fewest := 3
			s.eventually("the drains end", func() bool {
				fewest = min(fewest, s.available("db"))
				return !slices.ContainsFunc(messages, func(m string) bool { return !s.isDeleted(m) })
			})
			var last time.Time
			for k := range nodes {
				requests := s.requests(fmt.Sprintf("db-%d", k))
				accepted := slices.IndexFunc(requests, request.accepted)
				if accepted < 0 || !requests[accepted].evicts {
					t.Errorf("requests for db-%d: %v, want an eviction that is accepted", k, requests)
				} else if at := requests[accepted].at; at.After(last) {
					last = at
				}
			}
			report(t, "grace %s: %d of 3 available at worst, the last evicted after %s", grace, fewest, last.Sub(sent).Round(time.Second))
			if fewest < 2 {
				t.Errorf("%d of three were available at worst", fewest)
			}
			pulse.before(last, deadline, "the last was evicted")
			if n := h.sum("node_termination_handler_drains_total"); n != 3 {
				t.Errorf("%v drains are counted, want 3, each once", n)
			}
			if n := h.metric(drains); n != 3 {
				pulse.judge("%v drains in time are counted, want 3", n)
			}
		})
	}
}

// quorum runs a StatefulSet of three pods, each on a node of its own, of which one may be away, and waits until they are ready.
func (s *scenario) quorum(name string, grace, stops time.Duration) {
	s.Helper()
	labels := map[string]string{"app": name}
	apart := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}
	_, err := s.kube.AppsV1().StatefulSets(s.name).Create(s.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(3)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{sandbox.StopAfter: stopAfter(stops)}},
				Spec: corev1.PodSpec{
					NodeSelector:                  map[string]string{"scenario": s.name},
					TerminationGracePeriodSeconds: new(seconds(grace)),
					Affinity:                      &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart}},
					Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.PolicyV1().PodDisruptionBudgets(s.name).Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the quorum is ready, and its budget counts", func() bool {
		b, err := s.kube.PolicyV1().PodDisruptionBudgets(s.name).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return s.available(name) == 3 && b.Status.CurrentHealthy == 3 && b.Status.DisruptionsAllowed == 1
	})
}

// available is how many pods of an app are ready, and not stopping.
func (s *scenario) available(app string) (n int) {
	s.Helper()
	pods, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	s.must(err)
	for k := range pods.Items {
		p := &pods.Items[k]
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if ready && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}
