package whatif_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/whatif"
)

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func pod(namespace, name, app string, grace int64, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": app},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: app, Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "a", TerminationGracePeriodSeconds: &grace},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, e := range edit {
		e(p)
	}
	return p
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }
func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: new(true)}}
}

func notReady(p *corev1.Pod) { p.Status.Conditions = nil }

func budget(name, app string, allowed int32, edit ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, DesiredHealthy: 1},
	}
	for _, e := range edit {
		e(b)
	}
	return b
}

func ask(t *testing.T, client *fake.Clientset, terms drain.Terms) *whatif.Answer {
	t.Helper()
	a, err := whatif.Ask(t.Context(), client, whatif.Question{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Terms: terms, Start: now, End: now.Add(2 * time.Minute), Grace: -1,
		Filter: drain.Filter{IgnoreDaemonSets: true, DeleteEmptyDir: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheAnswerIsAStoryWithTheBudgetsInIt(t *testing.T) {
	client := fake.NewClientset(
		pod("default", "web-1", "web", 30), pod("default", "web-2", "web", 30), pod("default", "lone", "lone", 600, bare),
		pod("kube-system", "agent", "agent", 30, ofDaemonSet), pod("default", "two", "two", 10),
		budget("web", "web", 1), budget("one", "two", 5), budget("other", "two", 5),
	)
	a := ask(t, client, drain.Terms{Deadline: now.Add(2 * time.Minute)})
	var out strings.Builder
	if err := a.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `     after  event            pod
       0 s  evicted          lone                                      gets 120 s of its 600 s; no controller
       0 s  evicted          web-1                                     grace 30 s
      85 s  deleted          web-2                                     grace 30 s; budget default/web allows 1
     105 s  deleted          two                                       grace 10 s; budget default/one allows 5; budget default/other allows 5; two budgets on one pod never clear
            stays            kube-system/agent                         of a DaemonSet, or static

4 pods would have to leave; 1 without a controller: nothing makes it anew; 2 blocked by a budget; 2 deleted, not evicted; 1 with less than its grace
nothing is left at the deadline, after 120 s
This is the worst case: every pod takes all of its grace, and no budget frees up.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := a.Brief(), "4 pods, 1 without a controller, longest grace 600 s"; got != want {
		t.Errorf("in short %q, want %q", got, want)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" {
			t.Errorf("it does %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

func TestWithoutADeadlineWhatABudgetBlocksIsLeft(t *testing.T) {
	a := ask(t, fake.NewClientset(pod("default", "web-1", "web", 30), budget("web", "web", 0)), drain.Terms{})
	if got := a.Sum().Left; len(got) != 1 || got[0] != "web-1" {
		t.Errorf("left: %q", got)
	}
}

func TestABudgetLetsPodsGoThatAreNotReadyIfItsPolicySaysSo(t *testing.T) {
	always := policyv1.AlwaysAllow
	for name, tt := range map[string]struct {
		edit    func(*policyv1.PodDisruptionBudget)
		blocked int
	}{
		"not by default, with too few that are healthy": {func(*policyv1.PodDisruptionBudget) {}, 1},
		"by default, with enough":                       {func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 1 }, 0},
		"always":                                        {func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &always }, 0},
	} {
		a := ask(t, fake.NewClientset(pod("default", "web-1", "web", 30, notReady), budget("web", "web", 0, tt.edit)), drain.Terms{})
		if got := a.Sum().Blocked; got != tt.blocked {
			t.Errorf("%s: %d blocked, want %d", name, got, tt.blocked)
		}
	}
}

func TestBudgetsThatMayNotBeReadAreSaidToBeUnread(t *testing.T) {
	client := fake.NewClientset(pod("default", "web-1", "web", 30))
	client.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", nil)
	})
	var out strings.Builder
	if err := ask(t, client, drain.Terms{}).Print(&out); err != nil || !strings.Contains(out.String(), "budgets were not looked at: permission list poddisruptionbudgets.policy is missing") {
		t.Errorf("error %v, output %s", err, &out)
	}
}
