package rehearsal_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
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

func rehearse(t *testing.T, client *fake.Clientset, terms evacuation.Terms) *rehearsal.Report {
	t.Helper()
	view, err := rehearsal.Read(t.Context(), client, "a")
	if err != nil {
		t.Fatal(err)
	}
	return view.Run(rehearsal.Request{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Terms: terms, Start: now, End: now.Add(2 * time.Minute), Grace: -1,
		Filter: drain.Filter{IgnoreDaemonSets: true, DeleteEmptyDir: true},
	})
}

func TestTheReportIsAStoryWithTheBudgetsInIt(t *testing.T) {
	client := fake.NewClientset(
		pod("default", "web-1", "web", 30), pod("default", "web-2", "web", 30), pod("default", "lone", "lone", 600, bare),
		pod("kube-system", "agent", "agent", 30, ofDaemonSet), pod("default", "two", "two", 10),
		budget("web", "web", 1), budget("one", "two", 5), budget("other", "two", 5),
	)
	a := rehearse(t, client, evacuation.Terms{Deadline: now.Add(2 * time.Minute)})
	var out strings.Builder
	if err := a.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `     after  event            pod
       0 s  evicted          lone                                      gets 118 s of its 600 s; no controller
       0 s  evicted          web-1                                     grace 30 s
      85 s  deleted          web-2                                     grace 30 s; budget default/web allows 1
     105 s  deleted          two                                       grace 10 s; budget default/one allows 5; budget default/other allows 5; two budgets on one pod never clear
            stays            kube-system/agent                         of a DaemonSet, or static

4 pods would have to leave; 1 without a controller; 2 blocked by a PodDisruptionBudget; 2 deleted, not evicted
default/two has 1 replica: down during the drain
would not be created again: lone
would be killed before the end of their grace periods: lone
nothing is left at the deadline, after 120 s
This is the worst case of a drain that begins at once: every pod uses its whole grace period, and no PodDisruptionBudget allows more evictions later. Admission webhooks and policies are not asked.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := a.Summary().String(), "4 pods, 1 without a controller, longest grace 600 s"; got != want {
		t.Errorf("in short %q, want %q", got, want)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" {
			t.Errorf("it does %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

// Which pods leave when, and because of what.
func TestTheReportSaysWhenAPodLeavesAndWhoWantsItSo(t *testing.T) {
	with := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
	}
	critical := func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) }
	view, err := rehearsal.Read(t.Context(), fake.NewClientset(
		pod("default", "web", "web", 10), pod("default", "db", "db", 10), pod("default", "lone", "lone", 10, with(decision.LeaveAnnotation, "first")),
		pod("default", "job", "job", 10, with(decision.LeaveAnnotation, "last")), pod("default", "wrong", "wrong", 10, with(decision.LeaveAnnotation, "soon")),
		pod("default", "single", "single", 10, with(decision.LeaveAnnotation, "surged")), pod("default", "platforms", "platforms", 10),
		pod("default", "shipper", "shipper", 10, ofDaemonSet, with(decision.LeaveAnnotation, "end")), pod("default", "agent", "agent", 10, ofDaemonSet),
		pod("kube-system", "dns", "dns", 10, critical, with(decision.LeaveAnnotation, "first")),
	), "a")
	if err != nil {
		t.Fatal(err)
	}
	report := view.Run(rehearsal.Request{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Terms: evacuation.Terms{Deadline: now.Add(2 * time.Minute)}, Start: now, End: now.Add(2 * time.Minute), Grace: -1,
		Rules: decision.Rules{Pods: []decision.PodRule{{
			Name: "databases", Leave: decision.LeaveAfter, Order: 10,
			Pods: []decision.Selector{{{Key: "app", Operator: decision.In, Values: []string{"db"}}}},
		}, {
			Name: "singletons", Leave: decision.LeaveSurged,
			Pods: []decision.Selector{{{Key: "app", Operator: decision.In, Values: []string{"platforms"}}}},
		}}},
		Surge: true,
	})
	var got []string
	for _, p := range report.PodReports() {
		after := ""
		if p.After != nil {
			after = fmt.Sprint(*p.After)
		}
		got = append(got, strings.Join([]string{after, p.Event, p.Name, p.Remarks}, " | "))
	}
	want := []string{
		"0 | evicted | lone | grace 10 s; leaves first (node-termination-handler/leave)",
		"10 | evicted | web | grace 10 s",
		`10 | evicted | wrong | grace 10 s; its annotation node-termination-handler/leave: "soon" is ignored: it is none of now, first, last, end, surged, never`,
		"20 | evicted | db | grace 10 s; leaves after the others, by order 10 (databases)",
		"30 | evicted | dns | grace 10 s; after the workloads",
		"105 | evicted | job | grace 10 s; leaves last (node-termination-handler/leave)",
		"105 | evicted | platforms | grace 10 s; leaves last (singletons)",
		"105 | evicted | shipper | grace 10 s; leaves at the end (node-termination-handler/leave)",
		"105 | evicted | single | grace 10 s; leaves last (node-termination-handler/leave); sooner, if its Deployment can roll out a replacement first",
		" | stays | agent | it belongs to a DaemonSet: ignore-daemon-sets is false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWithoutADeadlineWhatABudgetBlocksIsLeft(t *testing.T) {
	a := rehearse(t, fake.NewClientset(pod("default", "web-1", "web", 30), budget("web", "web", 0)), evacuation.Terms{})
	if got := a.Summary().Left; len(got) != 1 || got[0] != "web-1" {
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
		a := rehearse(t, fake.NewClientset(pod("default", "web-1", "web", 30, notReady), budget("web", "web", 0, tt.edit)), evacuation.Terms{})
		if got := a.Summary().Blocked; got != tt.blocked {
			t.Errorf("%s: %d blocked, want %d", name, got, tt.blocked)
		}
	}
}

// The eviction API refuses a pod that two budgets cover, whatever they say of pods that are not ready.
func TestTwoBudgetsBlockAPodThatIsNotReady(t *testing.T) {
	always := policyv1.AlwaysAllow
	lets := func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &always }
	a := rehearse(t, fake.NewClientset(pod("default", "web-1", "web", 30, notReady), budget("web", "web", 0, lets), budget("more", "web", 0, lets)), evacuation.Terms{})
	if got := a.Summary().Blocked; got != 1 {
		t.Errorf("%d blocked, want 1", got)
	}
}

func TestBudgetsThatMayNotBeReadAreSaidToBeUnread(t *testing.T) {
	client := fake.NewClientset(pod("default", "web-1", "web", 30))
	client.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", nil)
	})
	a := rehearse(t, client, evacuation.Terms{})
	var out strings.Builder
	if err := a.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"         ?  ?                web-1 ", "PodDisruptionBudgets could not be read: permission list poddisruptionbudgets.policy is missing",
		"nothing is left after 120 s, unless a PodDisruptionBudget blocks it",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "evicted  ") {
		t.Errorf("an eviction that a budget may block is told as a fact:\n%s", &out)
	}
	if r := a.PodReports(); len(r) != 1 || r[0].Event != "?" || r[0].After != nil {
		t.Errorf("for programs: %+v", r)
	}
}

func TestAPodThatNothingMakesAnewIsNamedAndOneThatGetsTooLittleTimeIsCut(t *testing.T) {
	client := fake.NewClientset(
		pod("default", "well", "well", 30), pod("default", "bare", "bare", 30, bare), pod("default", "slow", "slow", 600),
		pod("default", "blocked", "blocked", 30), budget("b", "blocked", 0),
		pod("default", "kept", "kept", 30, func(p *corev1.Pod) { p.Annotations = map[string]string{decision.LeaveAnnotation: "never"} }),
	)
	for name, tt := range map[string]struct {
		terms       evacuation.Terms
		cut, stayed []string
	}{
		"with a deadline": {evacuation.Terms{Deadline: now.Add(2 * time.Minute)}, []string{"slow"}, []string{"kept"}},
		// Nothing takes the instance away: what a budget keeps there is not lost.
		"without one": {evacuation.Terms{}, nil, nil},
	} {
		got := rehearse(t, client, tt.terms).Summary()
		if diff := cmp.Diff([][]string{nil, {"bare"}, tt.cut, tt.stayed}, [][]string{got.Lost, got.Uncontrolled, got.Cut, got.Stayed}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A grace period that is longer than the notice: the pod gets what the notice has, or, where its budget keeps it, what is
// left after the budget's share.
func TestAGraceLongerThanTheNoticeIsCutAndItsBudgetHasItsShare(t *testing.T) {
	client := fake.NewClientset(pod("default", "free", "free", 180), pod("default", "kept", "kept", 180), budget("b", "kept", 0))
	a := rehearse(t, client, evacuation.Terms{Deadline: now.Add(2 * time.Minute), NoticedAt: now, BudgetShare: .5})
	var out strings.Builder
	if err := a.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `     after  event            pod
       0 s  evicted          free                                      gets 118 s of its 180 s
      58 s  deleted          kept                                      gets 60 s of its 180 s; budget default/b allows 0

2 pods would have to leave; 1 blocked by a PodDisruptionBudget; 1 deleted, not evicted
default/free has 1 replica: down during the drain
default/kept has 1 replica: down during the drain
would be killed before the end of their grace periods: free, kept
nothing is left at the deadline, after 120 s
This is the worst case of a drain that begins at once: every pod uses its whole grace period, and no PodDisruptionBudget allows more evictions later. Admission webhooks and policies are not asked.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// As the drain does not wait for it, and does not ask it again.
func TestAPodThatHasEndedIsNotLost(t *testing.T) {
	kept := func(p *corev1.Pod) { p.Finalizers = []string{"workflows.argoproj.io/status"} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	confirmed := func(p *corev1.Pod) { // the fake client deletes no such pod by itself
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(now.Add(time.Hour))), new(int64(0))
	}
	objects := []runtime.Object{
		pod("default", "kept", "kept", 600, bare, kept, ended), pod("default", "confirmed", "confirmed", 600, bare, kept, confirmed),
		pod("default", "done", "done", 600, bare, ended), pod("default", "web", "web", 30),
	}
	for name, tt := range map[string]struct {
		terms evacuation.Terms
		end   string
	}{
		"with a deadline": {evacuation.Terms{Deadline: now.Add(2 * time.Minute)}, "nothing is left at the deadline, after 120 s\n"},
		"without one":     {evacuation.Terms{}, "nothing is left after 120 s\n"},
	} {
		var out strings.Builder
		if err := rehearse(t, fake.NewClientset(objects...), tt.terms).Print(&out); err != nil {
			t.Fatal(err)
		}
		want := `     after  event            pod
       0 s  evicted          done                                      it has ended
       0 s  evicted          web                                       grace 30 s
            has ended        confirmed                                 kept by its finalizers
            has ended        kept                                      kept by its finalizers

1 pod would have to leave; 3 ended before: not waited for
default/web has 1 replica: down during the drain
` + tt.end + `This is the worst case of a drain that begins at once: every pod uses its whole grace period, and no PodDisruptionBudget allows more evictions later. Admission webhooks and policies are not asked.
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The drain waits for volumes of pods that have left, which no pod that stays uses.
func TestTheReportTellsOfVolumesThatTheDrainMayWaitFor(t *testing.T) {
	claiming := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, name := range names {
				source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
			}
		}
	}
	db, web := pod("default", "db", "db", 30, claiming("data", "shared")), pod("default", "web", "web", 30, claiming("data", "cache"))
	agent := pod("default", "agent", "agent", 30, ofDaemonSet, claiming("log", "shared"))
	const line = "then the drain may wait until volumes are detached, for up to 6 minutes"
	soon := evacuation.Terms{Deadline: now.Add(2 * time.Minute)}
	for name, tt := range map[string]struct {
		pods  []runtime.Object
		edit  func(*rehearsal.Request)
		terms evacuation.Terms
		want  string // empty: no such line
	}{
		"no deadline":                {pods: []runtime.Object{db, web, agent}, want: line + ": those of the claims default/cache, default/data\n"},
		"a deadline":                 {pods: []runtime.Object{db, web, agent}, terms: soon, want: line + ", but not past the deadline: those of the claims default/cache, default/data\n"},
		"the pod that stays, alone":  {pods: []runtime.Object{agent}},
		"no claim":                   {pods: []runtime.Object{pod("default", "plain", "plain", 30)}},
		"a pod is left at the end":   {pods: []runtime.Object{db, pod("default", "slow", "slow", 600)}},
		"our own pod leaves last":    {pods: []runtime.Object{db}, edit: func(r *rehearsal.Request) { r.Self = types.NamespacedName{Namespace: "default", Name: "db"} }},
		"no volume is attached":      {pods: []runtime.Object{db}, edit: func(r *rehearsal.Request) { r.Node.Status.VolumesAttached = nil }},
		"the handler waits for none": {pods: []runtime.Object{db}, edit: func(r *rehearsal.Request) { r.Volumes = false }},
	} {
		view, err := rehearsal.Read(t.Context(), fake.NewClientset(tt.pods...), "a")
		if err != nil {
			t.Fatal(err)
		}
		request := rehearsal.Request{
			Node: &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Status:     corev1.NodeStatus{VolumesAttached: []corev1.AttachedVolume{{Name: "kubernetes.io/csi/ebs.csi.aws.com^vol-1"}}},
			},
			Terms: tt.terms, Start: now, End: now.Add(2 * time.Minute), Grace: -1, Volumes: true, Filter: drain.Filter{IgnoreDaemonSets: true},
		}
		if tt.edit != nil {
			tt.edit(&request)
		}
		var out strings.Builder
		if err := view.Run(request).Print(&out); err != nil || strings.Contains(out.String(), line) != (tt.want != "") || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}

// Ten seconds before the deadline it is forced, with a grace period of which it needs but a part.
func TestTheLeaderIsNotLost(t *testing.T) {
	client := fake.NewClientset(pod("default", "handler", "handler", 20), budget("handler", "handler", 0))
	view, err := rehearsal.Read(t.Context(), client, "a")
	if err != nil {
		t.Fatal(err)
	}
	end := now.Add(2 * time.Minute)
	s := view.Run(rehearsal.Request{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Self: types.NamespacedName{Namespace: "default", Name: "handler"},
		Terms: evacuation.Terms{Deadline: end}, Start: now, End: end, Grace: -1,
	}).Summary()
	if s.Forced != 1 || len(s.Left) > 0 || len(s.Lost) > 0 {
		t.Errorf("%+v, want one that is forced and none that is lost", s)
	}
}

// The Job controller and the garbage collector remove their own.
func TestAFinalizerThatKeepsAPodIsNamed(t *testing.T) {
	with := func(finalizers ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Finalizers = finalizers }
	}
	client := fake.NewClientset(
		pod("default", "backup", "backup", 30, with("example.com/backup", "batch.kubernetes.io/job-tracking")),
		pod("default", "job", "job", 30, with("batch.kubernetes.io/job-tracking", "foregroundDeletion", "orphan")),
	)
	for end, terms := range map[string]evacuation.Terms{
		"nothing is left at the deadline, after 120 s": {Deadline: now.Add(2 * time.Minute)}, "nothing is left after 120 s": {},
	} {
		a := rehearse(t, client, terms)
		var out strings.Builder
		if err := a.Print(&out); err != nil || !strings.Contains(out.String(), end+", but the objects that finalizers keep\n") || strings.Contains(out.String(), "lost") {
			t.Errorf("%v\n%s", err, &out)
		}
		got := []string{a.PodReports()[0].Remarks, a.PodReports()[1].Remarks}
		want := []string{"grace 30 s; finalizer example.com/backup keeps the object until somebody removes it", "grace 30 s"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestAWorkloadWithAllItsPodsOnTheNodeIsDownWhileTheyMove(t *testing.T) {
	ofDeployment := func(p *corev1.Pod) {
		p.Labels["pod-template-hash"] = "6d4"
		p.OwnerReferences[0].Name += "-6d4"
	}
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "b" }
	ofJob := func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }
	client := fake.NewClientset(
		pod("default", "one", "one", 30, ofDeployment), pod("default", "two-a", "two", 30), pod("default", "two-b", "two", 30, elsewhere),
		pod("default", "pair-a", "pair", 30), pod("default", "pair-b", "pair", 30),
		pod("default", "held-a", "held", 30), pod("default", "held-b", "held", 30), budget("held", "held", 0),
		pod("default", "turns-a", "turns", 30), pod("default", "turns-b", "turns", 30), budget("turns", "turns", 1),
		pod("default", "job", "job", 30, ofJob), pod("default", "agent", "agent", 30, ofDaemonSet), pod("default", "bare", "bare", 30, bare),
		pod("default", "far", "far", 30, elsewhere),
	)
	// The fake client does not select by field.
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, err := client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		selected := list.(*corev1.PodList)
		fields := action.(clienttesting.ListAction).GetListRestrictions().Fields
		selected.Items = slices.DeleteFunc(selected.Items, func(p corev1.Pod) bool { return !fields.Matches(labels.Set{"spec.nodeName": p.Spec.NodeName}) })
		return true, selected, nil
	})
	// A budget that allows none keeps both of held until they are forced together.
	want := []rehearsal.Down{{Name: "default/held", Replicas: 2}, {Name: "default/one", Replicas: 1}, {Name: "default/pair", Replicas: 2}}
	r := rehearse(t, client, evacuation.Terms{Deadline: now.Add(2 * time.Minute)})
	if diff := cmp.Diff(want, r.Down); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var printed strings.Builder
	if err := r.Print(&printed); err != nil || !strings.Contains(printed.String(), "default/pair has all 2 replicas on this node: down during") {
		t.Errorf("%v\n%s", err, &printed)
	}
	all, err := rehearsal.ReadAll(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	b := all.Run(rehearsal.Request{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, Start: now, End: now.Add(time.Minute), Grace: -1})
	if diff := cmp.Diff([]rehearsal.Down{{Name: "default/far", Replicas: 1}}, b.Down); diff != "" {
		t.Errorf("of another node (-want +got):\n%s", diff)
	}
}

func TestWhatIsLeftWithoutADeadlineIsWaitedForWithoutEnd(t *testing.T) {
	client := fake.NewClientset(pod("default", "slow", "slow", 600))
	for name, tt := range map[string]struct {
		terms evacuation.Terms
		want  string
	}{
		"with a deadline": {evacuation.Terms{Deadline: now.Add(2 * time.Minute)}, "nothing is left at the deadline, after 120 s\n"},
		"without one":     {evacuation.Terms{}, "left after 120 s: slow; without a deadline the drain waits until they leave\n"},
	} {
		var out strings.Builder
		if err := rehearse(t, client, tt.terms).Print(&out); err != nil || !strings.Contains(out.String(), "\n"+tt.want) {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}
