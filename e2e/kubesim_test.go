package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/node-termination-handler/node-termination-handler/e2e/kubesim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// The measurements of large storms stand on a simulated API server.
func TestTheSimulatedAPIServerAnswersAsTheRealOne(t *testing.T) {
	tier.Full(t, "only storms stand on it")
	t.Parallel()
	if version := os.Getenv(sandbox.Variable); version != "" {
		t.Skipf("the simulated one is not of Kubernetes %s", version)
	}
	const stop = 20 * time.Second // some requests have to come before a pod is gone
	name := fmt.Sprint("as-the-real-one-", number.Add(1))
	if _, err := shared.AddNode(t.Context(), sandbox.NodeSpec{Name: name, ProviderID: "aws:///us-east-1a/i-00000000000a5ea1"}); err != nil {
		t.Fatal(err)
	}
	for k := range 3 {
		_, err := shared.Client().CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%02d", name, k), Namespace: "default", Annotations: map[string]string{sandbox.StopAfter: stop.String()},
			},
			Spec: corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	running := metav1.ListOptions{FieldSelector: "spec.nodeName=" + name + ",status.phase=Running"}
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, soon, true, func(ctx context.Context) (bool, error) {
		list, err := shared.Client().CoreV1().Pods("").List(ctx, running)
		return err == nil && len(list.Items) == 3, err
	})
	if err != nil {
		t.Fatalf("the pods do not run: %v", err)
	}
	simulated := kubesim.Start(kubesim.Options{})
	t.Cleanup(simulated.Stop)
	simulated.AddNode(kubesim.NodeSpec{Name: name, ProviderID: "aws:///us-east-1a/i-00000000000a5ea1", Pods: 3, Stop: stop})

	want, got := answers(t, shared.Config(), name), answers(t, simulated.Config(), name)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-the real one +the simulated one\n%s", diff)
	}
	for _, line := range []string{"patch with an old version: Conflict false", "evicted: DELETED disrupted stopping"} {
		if !slices.Contains(want, line) {
			t.Errorf("the real one does not say %q:\n%s", line, strings.Join(want, "\n"))
		}
	}
}

// answers plays a sequence of requests about a node with three pods, and returns what was answered.
func answers(t *testing.T, config *rest.Config, name string) (said []string) {
	t.Helper()
	ctx := t.Context()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	kube := kubernetes.NewForConfigOrDie(config)
	say := func(what string, err error, more ...any) {
		answer := string(apierrors.ReasonForError(err))
		if err == nil {
			answer = "ok"
		} else if answer == "" {
			answer = err.Error()
		}
		said = append(said, strings.TrimSpace(fmt.Sprintln(append([]any{what + ":", answer}, more...)...)))
	}
	nodes, pods := kube.CoreV1().Nodes(), kube.CoreV1().Pods("default")
	onNode := "spec.nodeName=" + name

	_, err := nodes.Get(ctx, "no-such-node", metav1.GetOptions{})
	say("get what is not there", err)
	n, err := nodes.Get(ctx, name, metav1.GetOptions{})
	say("get", err, n.Kind, n.Spec.ProviderID)
	// Without a version it is the present one: somebody else may write the node in between, as its kubelet does.
	patch := func(what string, uid types.UID, version string, annotation *string) {
		p := &corev1.Node{}
		err := retry.OnError(retry.DefaultRetry, func(err error) bool { return version == "" && apierrors.IsConflict(err) }, func() error {
			n, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{
				"metadata": map[string]any{
					"uid": uid, "resourceVersion": cmp.Or(version, n.ResourceVersion), "annotations": map[string]*string{"storm": annotation},
				},
				"spec": map[string]any{"unschedulable": annotation != nil},
			})
			if err != nil {
				return err
			}
			p, err = nodes.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
			return err
		})
		say(what, err, p.Spec.Unschedulable, p.Annotations["storm"])
	}
	patch("patch", n.UID, "", new("x"))
	patch("patch with an old version", n.UID, n.ResourceVersion, new("y"))
	patch("patch of another node", "another", "", new("z"))
	patch("patch back", n.UID, "", nil)
	status := func(what string, uid types.UID) {
		body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"conditions":[{"type":"Storm","status":"True"}]}}`, uid)
		p, err := nodes.Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		say(what, err, slices.ContainsFunc(p.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "Storm" }), len(p.Status.Conditions) > 1)
	}
	status("condition", n.UID)
	status("condition of another node", "another")

	// A watch cache that is behind by more than 3 s asks for another try, which is no answer to compare.
	behind := func(err error) bool { return apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) }
	var w watch.Interface
	err = retry.OnError(retry.DefaultBackoff, behind, func() (err error) {
		w, err = nodes.Watch(ctx, metav1.ListOptions{
			FieldSelector: "metadata.name=" + name, SendInitialEvents: new(true), AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		return err
	})
	if err != nil {
		t.Fatalf("watch with initial events: %v", err)
	}
	say("watch with initial events", err)
	for range 2 {
		e := <-w.ResultChan()
		n, _ := e.Object.(*corev1.Node)
		said = append(said, fmt.Sprintf("initial event: %s %q %s", e.Type, n.Name, n.Annotations[metav1.InitialEventsAnnotationKey]))
	}
	w.Stop()

	list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: onNode})
	say("list by node", err, len(list.Items), list.Kind)
	page, err := pods.List(ctx, metav1.ListOptions{FieldSelector: onNode, Limit: 2})
	say("first page", err, len(page.Items), page.Continue != "")
	page, err = pods.List(ctx, metav1.ListOptions{FieldSelector: onNode, Limit: 2, Continue: page.Continue})
	say("last page", err, len(page.Items), page.Continue != "")
	one, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name + "-00"})
	say("list by name", err, len(one.Items))

	evict := func(what, pod string, uid types.UID, version string) {
		options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
		if version != "" {
			options.Preconditions.ResourceVersion = &version
		}
		say(what, kube.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "default"}, DeleteOptions: options,
		}))
	}
	first, second := &list.Items[0], &list.Items[1]
	evict("evict what is not there", "no-such-pod", "x", "")
	evict("evict another pod", first.Name, "another", "")
	evict("evict with an old version", first.Name, first.UID, "1")
	evict("evict", first.Name, first.UID, first.ResourceVersion)
	evict("evict again", first.Name, first.UID, "")
	say("delete", pods.Delete(ctx, second.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(second.UID))}))
	say("delete another pod", pods.Delete(ctx, second.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("another")}))
	watched := metav1.ListOptions{FieldSelector: onNode, ResourceVersion: list.ResourceVersion}
	said = append(said, podEvents(ctx, t, kube, "evicted", first.Name, watched)...)
	said = append(said, podEvents(ctx, t, kube, "deleted", second.Name, watched)...)
	say("delete what is gone", pods.Delete(ctx, second.Name, metav1.DeleteOptions{}))

	leases := kube.CoordinationV1().Leases("default")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err = leases.Get(ctx, name, metav1.GetOptions{})
	say("get a lease that is not there", err)
	made, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	say("create a lease", err, made.Kind)
	_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	say("create it again", err)
	made.Spec.HolderIdentity = new("me")
	updated, err := leases.Update(ctx, made, metav1.UpdateOptions{})
	say("update it", err, *updated.Spec.HolderIdentity)
	made.Spec.HolderIdentity = new("another")
	_, err = leases.Update(ctx, made, metav1.UpdateOptions{})
	say("update it from an old version", err)

	review, err := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}},
	}, metav1.CreateOptions{})
	say("ask for a right", err, review.Status.Allowed)
	_, err = kube.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "storm-", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: name},
	}, metav1.CreateOptions{})
	say("create an Event", err)
	say("get what no API server has", kube.CoreV1().RESTClient().Get().AbsPath("/apis/example.com/v1/things").Do(ctx).Error())
	return said
}

// podEvents are what a watch tells of a pod until it is gone, each state once: kubelets write more often than the
// simulated one.
func podEvents(ctx context.Context, t *testing.T, kube kubernetes.Interface, what, pod string, options metav1.ListOptions) (said []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	w, err := kube.CoreV1().Pods("default").Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			return append(said, fmt.Sprint(what, ": ", apierrors.FromObject(e.Object)))
		}
		if p.Name != pod {
			continue
		}
		line := what + ": " + string(e.Type)
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }) {
			line += " disrupted"
		}
		if p.DeletionTimestamp != nil {
			line += " stopping"
		}
		said = append(said, line)
		if e.Type == watch.Deleted {
			break
		}
	}
	return slices.Compact(said)
}
