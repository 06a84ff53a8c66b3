package tool

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// forecasts are those of a cluster of four nodes: one is Karpenter's, and ready for it, one has a pod
// that is slow, the instance of one lacks the tag, one is empty.
func forecasts(t *testing.T, kind notice.Kind, environ ...string) (*Session, []forecast) {
	t.Helper()
	c, err := parseOptions(nil, append(environ, "QUEUE_URL="+testQueue))
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Options: c, origin: &Origin{why: "as --release none says"}, identity: identity{aws: "me", kubernetes: "admin"}}
	pod := func(name, node string, grace int64) *corev1.Pod {
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, Controller: new(true)}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	view, err := rehearsal.ReadAll(t.Context(), fake.NewClientset(pod("web", "well", 30), pod("db", "slow", 600), pod("a", "untagged", 1), pod("b", "untagged", 1)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	var all []forecast
	for k, name := range []string{"empty", "well", "slow", "untagged"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/i-0000000000000000" + string(rune('0'+k))}}
		if name == "well" {
			node.Labels = map[string]string{decision.NodePoolLabel: "pool"}
		}
		sc := s.target(kind, node)
		sc.tags = map[string]string{c.ManagedTag: ""}
		if name == "untagged" {
			sc.tags = map[string]string{}
		}
		p, err := sc.forecast(view, now)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, worstFirst)
	return s, all
}

func TestEveryNodeHasALineTheWorstFirst(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption)
	var out strings.Builder
	if err := printForecasts(&out, s, notice.SpotInterruption, all); err != nil {
		t.Fatal(err)
	}
	want := `With the options of the command line and the environment (as --release none says); in AWS as me; in Kubernetes with the rights of admin.
spot-interruption for each node separately, the worst first:

  node      pods  lost   cut  blocked  deleted
  untagged     2     2     0        0        0  the handler would ignore the notice: instance i-00000000000000003 has no tag aws-node-termination-handler/managed; aws ec2 create-tags --region us-east-1 --resources i-00000000000000003 --tags 'Key=aws-node-termination-handler/managed,Value='
  slow         1     0     1        0        0  cut short: db
  well         1     0     0        0        0
  empty        0     0     0        0        0

1 of 4 nodes would lose pods, 2 in all; 1 pod would be cut short; 0 would not be created again; 2 workloads would be down during the drain: default/db, default/web
what-if --node NAME shows one node pod by pod. This is the worst case of a drain that begins at once: every pod uses its whole grace period. Admission webhooks and policies are not asked.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhereNoneWouldBeDrainedItIsNotSaidHowTheirDrainsGo(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption, "DRY_RUN=true")
	var out strings.Builder
	if err := printForecasts(&out, s, notice.SpotInterruption, all); err != nil {
		t.Fatal(err)
	}
	if want := "\n3 of 4 nodes would lose pods, 4 in all; none would be drained\n"; !strings.Contains(out.String(), want) {
		t.Errorf("it does not say %q:\n%s", want, &out)
	}
}

func TestANodeWhoseNoticeIsIgnoredIsToldHowToPutThatRight(t *testing.T) {
	_, all := forecasts(t, notice.SpotInterruption)
	var out strings.Builder
	if err := all[0].write(&out); err != nil {
		t.Fatal(err)
	}
	want := `untagged, spot-interruption: the handler would ignore the notice: instance i-00000000000000003 has no tag aws-node-termination-handler/managed
    aws ec2 create-tags --region us-east-1 --resources i-00000000000000003 --tags 'Key=aws-node-termination-handler/managed,Value='
would be lost with the instance: a, b
`
	if _, got, _ := strings.Cut(out.String(), "\n"); got != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestANodeThatIsLeftAloneIsToldHowToEndThat(t *testing.T) {
	c, err := parseOptions(nil, []string{"QUEUE_URL=" + testQueue, "CHECK_TAG_BEFORE_DRAINING=false"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{decision.LeaveAloneLabel: ""}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/i-0123456789abcdef0"},
	}
	view, err := rehearsal.ReadAll(t.Context(), fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	f, err := (&Session{Options: c}).target(notice.SpotInterruption, node).forecast(view, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	why, remedy := f.whyIgnored(f.outcome)
	if why != "its label node-termination-handler/leave-alone says so" || remedy != "kubectl label node a node-termination-handler/leave-alone-" {
		t.Errorf("%q, %q", why, remedy)
	}
}

// Without a queue only a pod of the DaemonSet tells of a notice.
func TestWithoutAQueueANodeWithoutAReporterIsNotDrained(t *testing.T) {
	c, err := parseOptions(nil, []string{"QUEUE_URL=none"})
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Options: c, origin: &Origin{why: "as --release none says"}, lease: types.NamespacedName{Namespace: "nth", Name: c.LeaseName}}
	reporter := func(node, namespace string, ready corev1.ConditionStatus) *corev1.Pod {
		env := []corev1.EnvVar{{Name: "ENABLE_SQS_TERMINATION_DRAINING", Value: "false"}, {Name: "LEADER_ELECT_RESOURCE_NAME", Value: c.LeaseName}}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "on-" + node},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Env: env}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	view, err := rehearsal.ReadAll(t.Context(), fake.NewClientset(
		reporter("told", "nth", corev1.ConditionTrue), reporter("starting", "nth", corev1.ConditionFalse), reporter("others", "elsewhere", corev1.ConditionTrue),
	))
	if err != nil {
		t.Fatal(err)
	}
	for name, drained := range map[string]bool{"told": true, "starting": false, "others": false, "alone": false} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "aws:///x/i-0123456789abcdef0"}}
		f, err := s.target(notice.SpotInterruption, node).forecast(view, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if why := f.whyNotDrained(); (why == "") != drained || !drained && !strings.Contains(why, "no pod that is ready on the node reads its metadata") {
			t.Errorf("%s: not drained because %q", name, why)
		}
	}
}

func TestWhatIfSaysWhichNodeKarpenterWouldDrain(t *testing.T) {
	for kind, until := range map[notice.Kind]string{
		notice.SpotInterruption:        "and is told to be done 1m53s after the notice",
		notice.RebalanceRecommendation: "and takes the time that it needs",
	} {
		for option, want := range map[string]bool{"true": true, "false": false} {
			_, all := forecasts(t, kind, "DRAIN_BY_KARPENTER="+option)
			for _, f := range all {
				var out strings.Builder
				if err := f.write(&out); err != nil {
					t.Fatal(err)
				}
				want := want && f.node.Name == "well"
				if got := strings.Contains(out.String(), "Karpenter would be asked to replace and drain the node, "+until); got != want || (f.report().By == "karpenter") != want {
					t.Errorf("%s, option %s: by %q\n%s", kind, option, f.report().By, out.String())
				}
			}
		}
	}
}

func TestWhatIfTellsProgramsTheSame(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption)
	var out strings.Builder
	if err := writeForecasts(&out, s, notice.SpotInterruption, all); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Options, AWS, Kubernetes, Kind string
		Notes                          []string
		Lost, Cut                      int
		Nodes                          []struct {
			Node, Instance, Ignored, Remedy, Why string
			DeadlineSeconds                      float64
			Pods                                 []struct{ Namespace, Name, Event string }
			Lost, Cut, Left, Down                []string
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "spot-interruption" || got.Lost != 2 || got.Cut != 1 || got.AWS != "me" || got.Kubernetes != "admin" || got.Notes == nil || len(got.Nodes) != 4 {
		t.Errorf("all in all: %+v", got)
	}
	if n := got.Nodes[0]; n.Node != "untagged" || n.Why != "instance-not-managed" || n.Ignored == "" || n.Remedy == "" || len(n.Pods) != 0 {
		t.Errorf("of the one that is ignored: %+v", n)
	}
	n := got.Nodes[1]
	if n.Node != "slow" || n.DeadlineSeconds != 120 || len(n.Pods) != 1 || n.Pods[0].Event != "evicted" || len(n.Lost) != 0 || !slices.Equal(n.Cut, []string{"db"}) || !slices.Equal(n.Down, []string{"default/db"}) {
		t.Errorf("of the one that is slow: %+v", n)
	}
	if strings.Contains(out.String(), "null") {
		t.Errorf("a list that is null:\n%s", &out)
	}
}

func TestPodsThatNobodyMovesAreLostWithTheInstance(t *testing.T) {
	for name, tt := range map[string]struct {
		kind    notice.Kind
		environ []string
		want    map[string]int
	}{
		"cordon-only":          {notice.SpotInterruption, []string{"CORDON_ONLY=true"}, map[string]int{"untagged": 2, "slow": 1, "well": 1, "empty": 0}},
		"dry-run":              {notice.SpotInterruption, []string{"DRY_RUN=true"}, map[string]int{"untagged": 2, "slow": 1, "well": 1, "empty": 0}},
		"nothing goes away":    {notice.RebalanceRecommendation, nil, map[string]int{"untagged": 0, "slow": 0, "well": 0, "empty": 0}},
		"the tag is not asked": {notice.SpotInterruption, []string{"CHECK_TAG_BEFORE_DRAINING=false"}, map[string]int{"untagged": 0, "slow": 0, "well": 0, "empty": 0}},
	} {
		_, all := forecasts(t, tt.kind, tt.environ...)
		got := map[string]int{}
		for _, p := range all {
			got[p.node.Name] = len(p.lost())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhileTheHandlerIsPausedNoPodIsMoved(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption)
	s.client = fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "nth", Name: s.LeaseName, Annotations: map[string]string{lease.PausedAnnotation: "enough"},
	}})
	s.origin.release = &Release{namespace: "nth"}
	s.readLease(t.Context())
	for _, f := range all {
		if why := f.whyNotDrained(); f.node.Name == "well" && (!strings.HasPrefix(why, "the handler is paused (enough)") || len(f.lost()) != 1) {
			t.Errorf("%q, lost %v", why, f.lost())
		}
	}
}

func TestWhileNobodyLeadsNoPodIsMoved(t *testing.T) {
	for name, tt := range map[string]struct {
		silent  time.Duration
		environ []string
		lost    int
	}{
		"an hour":                   {time.Hour, nil, 1},
		"a moment":                  {5 * time.Second, nil, 0},
		"an hour, and nobody needs": {time.Hour, []string{"LEADER_ELECT=false"}, 0},
	} {
		s, all := forecasts(t, notice.SpotInterruption, tt.environ...)
		s.client = fake.NewClientset(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: s.LeaseName},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("handler-1_x"), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-tt.silent)))},
		})
		s.origin.release = &Release{namespace: "nth"}
		s.readLease(t.Context())
		for _, f := range all {
			if why := f.whyNotDrained(); f.node.Name == "well" && (len(f.lost()) != tt.lost || (tt.lost > 0) != strings.HasPrefix(why, "nobody leads")) {
				t.Errorf("%s: %q, lost %v, want %d", name, why, f.lost(), tt.lost)
			}
		}
	}
}

// A tool may run in a pod of the handler that stands by: the leader drains the node, and its pod leaves last.
func TestThePodThatLeavesLastIsTheLeaders(t *testing.T) {
	s, _ := forecasts(t, notice.SpotInterruption, "POD_NAME=handler-2", "NAMESPACE=nth")
	handler := func(name string) *corev1.Pod {
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "handler", Controller: new(true)}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec:       corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	client := fake.NewClientset(handler("handler-1"), handler("handler-2"), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: s.LeaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("handler-1_x")},
	})
	s.client, s.origin.release = client, &Release{namespace: "nth"}
	view, err := rehearsal.ReadAll(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	s.readLease(t.Context())
	f, err := s.target(notice.SpotInterruption, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).forecast(view, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, fate := range f.Fates {
		got[fate.Pod.Name] = fate.Self
	}
	if diff := cmp.Diff(map[string]bool{"handler-1": true, "handler-2": false}, got); diff != "" {
		t.Errorf("pods that leave by themselves (-want +got):\n%s", diff)
	}
}

func TestAnInstanceThatEC2DoesNotKnowIsToldWithWhoAskedWhere(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption)
	s.identity.aws = "arn:aws:iam::1:user/me"
	want := "EC2 in us-east-1, asked as arn:aws:iam::1:user/me, does not know instance i-00000000000000003 of node untagged: is it in another account or region?"
	if got := all[0].absentError().Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	all[0].notice.Instance, all[0].node.Spec.ProviderID = "", ""
	if got := all[0].absentError().Error(); !strings.Contains(got, "an instance with the private DNS name untagged") {
		t.Errorf("without a provider id: %q", got)
	}
}

// A provider id of k3s names no instance, and neither does that of another cloud: the name of the node tells.
func TestANodeWithAnotherProviderIDIsFoundByItsName(t *testing.T) {
	s, _ := forecasts(t, notice.SpotInterruption)
	s.client = fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: corev1.NodeSpec{ProviderID: "gce://project/zone/far"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "near"}, Spec: corev1.NodeSpec{ProviderID: "k3s://near"}},
	)
	account := awssim.New(awssim.Options{})
	defer account.Close()
	if err := account.PutInstance(awssim.Instance{ID: "i-0123456789abcdef0", PrivateDNSName: "near"}); err != nil {
		t.Fatal(err)
	}
	s.gatherer = &doctor.Gatherer{AWS: doctor.AWS{Config: account.Config()}}
	for name, want := range map[string]struct{ instance, err string }{
		"near": {"i-0123456789abcdef0", ""},
		"far": {"", "EC2 in us-east-1, asked as me, does not know an instance with the private DNS name far, as the provider id gce://project/zone/far is none of EC2, " +
			"of node far: is it in another account or region?"},
	} {
		node, err := s.targetNamed(t.Context(), notice.SpotInterruption, name)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if err := node.lookUp(t.Context()); err != nil {
			text = err.Error()
		}
		if node.notice.Instance != want.instance || text != want.err || node.mayBeElsewhere() != (want.err != "") || !mayBeOnEC2(node.node) {
			t.Errorf("%s: instance %q, error %q", name, node.notice.Instance, text)
		}
	}
}

func TestTheResultOfASimulationIsForProgramsToo(t *testing.T) {
	s, all := forecasts(t, notice.SpotInterruption)
	s.origin.notes = []string{"a note"}
	all[1].notice.ID = "e-1"
	sent := sentNotice{target: all[1].target}
	var out strings.Builder
	if err := sent.writeResult(&out, progress{taken: true, outcome: intent.Missed, left: []string{"p"}}, errors.New("boom")); err != nil {
		t.Fatal(err)
	}
	want := `{
  "options": "options of the command line and the environment (as --release none says)",
  "aws": "me",
  "kubernetes": "admin",
  "notes": [
    "a note"
  ],
  "kind": "spot-interruption",
  "event": "e-1",
  "node": "slow",
  "outcome": "missed",
  "left": [
    "p"
  ],
  "error": "boom",
  "undo": "kubectl uncordon slow"
}
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNothingIsSentWhereThereIsNoQueue(t *testing.T) {
	s := &Session{Options: &options.Options{Queue: options.QueueURL{Text: "none"}}}
	if err := (Simulation{}).Run(t.Context(), s, Terminal{}); err == nil || !strings.Contains(err.Error(), "the handler has no queue") {
		t.Errorf("%v", err)
	}
}

// What a full limit holds back is not drained at once: what-if says so, and simulate does not send what would wait.
func TestAFullLimitIsToldBeforeTheNotice(t *testing.T) {
	for name, full := range map[string]bool{"full": true, "with room": false} {
		t.Run(name, func(t *testing.T) {
			s, all := forecasts(t, notice.RebalanceRecommendation, "MAX_UNREADY_NODES=1")
			out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "out", UID: "out"}, Spec: corev1.NodeSpec{Unschedulable: full}}
			out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			server := newAPIServer(t, map[string]any{nodesPath: &corev1.NodeList{Items: []corev1.Node{*out}}})
			s.client = server.viewer(t).client
			f := all[0]
			f.uses = f.usesOfLimits(t.Context())
			var text strings.Builder
			if err := f.write(&text); err != nil {
				t.Fatal(err)
			}
			if says := strings.Contains(text.String(), "of at most 1: out; the drain would wait"); says != full {
				t.Errorf("what-if says:\n%s", text.String())
			}
			view, err := rehearsal.ReadAll(t.Context(), fake.NewClientset())
			if err != nil {
				t.Fatal(err)
			}
			if err := (Simulation{Node: f.node.Name, Yes: true}).confirm(t.Context(), f.target, view, Terminal{}); (err != nil) != full {
				t.Errorf("simulate: %v", err)
			}
		})
	}
}

func TestWhatIfSaysThatTheNodeIsBeingDrained(t *testing.T) {
	_, all := forecasts(t, notice.RebalanceRecommendation)
	f := all[slices.IndexFunc(all, func(f forecast) bool { return f.node.Name == "well" })]
	for _, finished := range []time.Time{{}, time.Now()} {
		spot := intent.Entry{Kind: notice.SpotInterruption, Time: time.Now(), Deadline: time.Now().Add(time.Minute)}
		i := intent.Intent{Version: 1, Cordoned: true, Entries: []intent.Entry{spot}, FinishedAt: finished}
		carried, err := i.Encode()
		if err != nil {
			t.Fatal(err)
		}
		f.node.Annotations = map[string]string{cluster.IntentAnnotation: carried}
		var text strings.Builder
		if err := f.write(&text); err != nil {
			t.Fatal(err)
		}
		if says := strings.Contains(text.String(), "being drained already, for spot-interruption: status shows"); says != finished.IsZero() {
			t.Errorf("finished %s: what-if says\n%s", finished, text.String())
		}
	}
}

func TestExplainSaysHowFarALimitIsUsedUp(t *testing.T) {
	for want, use := range map[string]holdback.Use{
		"limit of r: nodes with zone=a that are out of use now: 2 of at most 2: a, b; the drain would wait": {Rule: "r", Per: "zone=a", Most: 2, Nodes: []string{"a", "b"}},
		"limit of r: nodes that are out of use now: 1 of at most 2: a; there is room":                       {Rule: "r", Most: 2, Nodes: []string{"a"}},
		"max-unready-nodes: nodes that are out of use now: 0 of at most 1; there is room":                   {Most: 1},
	} {
		if diff := cmp.Diff(want, useText(&use)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheForecastForProgramsNamesTheClaimsThatMayBeWaitedFor(t *testing.T) {
	_, all := forecasts(t, notice.SpotInterruption)
	f := all[slices.IndexFunc(all, func(f forecast) bool { return f.node.Name == "well" })]
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	f.Fates[0].Pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
	if got := f.report().AwaitedClaims; len(got) > 0 {
		t.Errorf("without a volume on the node: %v", got)
	}
	f.node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/ebs.csi.aws.com^vol-1"}}
	if diff := cmp.Diff([]string{"default/data"}, f.report().AwaitedClaims); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
