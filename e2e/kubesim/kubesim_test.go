package kubesim

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// start starts a server with some nodes of three pods each, and returns a client that speaks that encoding.
func start(t *testing.T, o Options, encoding string, nodes ...string) (*Server, kubernetes.Interface) {
	t.Helper()
	s := Start(o)
	t.Cleanup(s.Stop)
	for _, name := range nodes {
		s.AddNode(NodeSpec{Name: name, Pods: 3, Stop: 20 * time.Millisecond, Spare: name == "spare"})
	}
	config := s.Config()
	config.ContentType, config.AcceptContentTypes = encoding, encoding
	return s, kubernetes.NewForConfigOrDie(config)
}

func evict(ctx context.Context, kube kubernetes.Interface, pod string, options *metav1.DeleteOptions) error {
	return kube.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "default"}, DeleteOptions: options,
	})
}

func names(list *corev1.PodList) (all []string) {
	for k := range list.Items {
		all = append(all, list.Items[k].Name)
	}
	return all
}

// next is the next event of a watch, with what matters of its pod.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, more := <-w.ResultChan():
		if !more {
			return "ended"
		}
		switch o := e.Object.(type) {
		case *corev1.Pod:
			text := fmt.Sprintf("%s %s %s", e.Type, o.Name, o.Status.Phase)
			if slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }) {
				text += " disrupted"
			}
			if o.DeletionTimestamp != nil {
				text += " stopping"
			}
			return text
		case *corev1.Node:
			return fmt.Sprintf("%s %s %t", e.Type, o.Name, o.Spec.Unschedulable)
		}
		return fmt.Sprint(e.Type, " ", apierrors.FromObject(e.Object))
	case <-time.After(5 * time.Minute):
		t.Fatal("no event")
		return ""
	}
}

func each(t *testing.T, test func(t *testing.T, encoding string)) {
	t.Helper()
	for _, encoding := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			test(t, encoding)
		})
	}
}

func TestPodsAreListedByNodeAndInPages(t *testing.T) {
	each(t, func(t *testing.T, encoding string) {
		_, kube := start(t, Options{}, encoding, "a", "b")
		pods := kube.CoreV1().Pods("")
		list, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=b"})
		if want := []string{"b-00", "b-01", "b-02"}; err != nil || !slices.Equal(names(list), want) {
			t.Fatalf("%v, %v", names(list), err)
		}
		if p := list.Items[0]; p.Spec.NodeName != "b" || p.UID == "" || p.ResourceVersion == "" || metav1.GetControllerOf(&p) == nil {
			t.Errorf("%+v", p)
		}
		var paged []string
		for options := (metav1.ListOptions{Limit: 4}); ; {
			page, err := pods.List(t.Context(), options)
			if err != nil || len(page.Items) > 4 {
				t.Fatalf("%d pods, %v", len(page.Items), err)
			}
			paged = append(paged, names(page)...)
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
		if want := []string{"a-00", "a-01", "a-02", "b-00", "b-01", "b-02"}; !slices.Equal(paged, want) {
			t.Errorf("in pages: %v", paged)
		}
		if list, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=,status.phase=Pending", Limit: 50}); err != nil || len(list.Items) != 0 {
			t.Errorf("pods without a node: %v, %v", names(list), err)
		}
	})
}

func TestAWatchGoesOnFromAList(t *testing.T) {
	each(t, func(t *testing.T, encoding string) {
		_, kube := start(t, Options{}, encoding, "a", "b")
		pods := kube.CoreV1().Pods("default")
		list, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=a"})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range []string{"b-00", "a-01"} {
			if err := evict(t.Context(), kube, pod, nil); err != nil {
				t.Fatal(err)
			}
		}
		w, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=a", ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		var got []string
		for range 4 {
			got = append(got, next(t, w))
		}
		want := []string{
			"MODIFIED a-01 Running disrupted", "MODIFIED a-01 Running disrupted stopping",
			"MODIFIED a-01 Failed disrupted stopping", "DELETED a-01 Failed disrupted stopping",
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAWatchCanBeginWithAllObjects(t *testing.T) {
	each(t, func(t *testing.T, encoding string) {
		s, kube := start(t, Options{}, encoding, "a", "b")
		w, err := kube.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
			SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		got := []string{next(t, w), next(t, w)}
		e := <-w.ResultChan()
		if e.Type != watch.Bookmark || e.Object.(*corev1.Node).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
			t.Errorf("%+v instead of the bookmark", e)
		}
		s.RemoveNode("a")
		got = append(got, next(t, w))
		if diff := gocmp.Diff([]string{"ADDED a false", "ADDED b false", "DELETED a false"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAWatchThatIsTooOldExpires(t *testing.T) {
	s, kube := start(t, Options{EventsKept: 5}, runtime.ContentTypeProtobuf, "a", "b", "c")
	w, err := kube.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1001"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if got := next(t, w); !strings.HasPrefix(got, "ERROR too old resource version") {
		t.Error(got)
	}
	if got := next(t, w); got != "ended" {
		t.Error(got)
	}
	if got := s.Peaks().Expired; got != 1 {
		t.Errorf("%d watches have expired", got)
	}
}

func TestAPodIsEvictedOnlyAsItIsNamed(t *testing.T) {
	_, kube := start(t, Options{}, runtime.ContentTypeProtobuf, "a")
	p, err := kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a-00"})
	if err != nil || len(p.Items) != 1 {
		t.Fatal(err)
	}
	preconditions := func(uid types.UID, version string) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
	}
	uid, version := p.Items[0].UID, p.Items[0].ResourceVersion
	if err := evict(t.Context(), kube, "a-00", preconditions("another", version)); !apierrors.IsConflict(err) {
		t.Errorf("another UID: %v", err)
	}
	if err := evict(t.Context(), kube, "a-00", preconditions(uid, "1")); !apierrors.IsConflict(err) {
		t.Errorf("another version: %v", err)
	}
	if err := evict(t.Context(), kube, "a-00", preconditions(uid, version)); err != nil {
		t.Error(err)
	}
	if err := evict(t.Context(), kube, "absent", nil); !apierrors.IsNotFound(err) {
		t.Errorf("no such pod: %v", err)
	}
}

func TestTheSchedulerBindsAtItsRate(t *testing.T) {
	const rate = 50
	s, kube := start(t, Options{Tier: Tier{PodsPerSecond: rate}}, runtime.ContentTypeProtobuf, "a", "b", "spare")
	begin := time.Now()
	for _, pod := range []string{"a-00", "a-01", "a-02", "b-00", "b-01", "b-02"} {
		if err := evict(t.Context(), kube, pod, nil); err != nil {
			t.Fatal(err)
		}
	}
	made := s.Replacements()
	if took := made.LastBound.Sub(begin); made.Created != 6 || took < 6*time.Second/rate {
		t.Errorf("%+v after %s", made, took)
	}
	for s.Replacements().Bound < 6 {
		if time.Since(begin) > 5*time.Minute {
			t.Fatalf("%+v", s.Replacements())
		}
		<-time.After(time.Millisecond)
	}
	if took := time.Since(begin); took < 6*time.Second/rate {
		t.Errorf("6 pods are bound after %s", took)
	}
	list, err := kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=spare"})
	if err != nil || len(list.Items) != 9 {
		t.Errorf("%v, %v", names(list), err)
	}
	s.RemoveReplacements()
	if list, err := kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=spare"}); err != nil || len(list.Items) != 3 {
		t.Errorf("%v, %v", names(list), err)
	}
}

func TestWhatIsRefusedSaysWhenToTryAgain(t *testing.T) {
	s, kube := start(t, Options{Tier: Tier{Seats: 1}, Level: Level{Shares: 1, AllShares: 1}}, runtime.ContentTypeProtobuf, "a")
	s.flow.enter(t.Context(), read)
	begin := time.Now()
	err := kube.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/a").MaxRetries(0).Do(t.Context()).Error()
	status, ok := err.(apierrors.APIStatus)
	if !apierrors.IsTooManyRequests(err) || !ok || status.Status().Details.RetryAfterSeconds != 1 {
		t.Errorf("%v", err)
	}
	if got := s.Requests(begin, time.Now()); got["get nodes 429"] != 1 {
		t.Errorf("%v", got)
	}
	s.flow.leave(read)
	if _, err := kube.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if diff := gocmp.Diff(Peaks{Seats: 1, Connections: 1}, s.Peaks()); diff != "" {
		t.Error(diff)
	}
}

func TestAnObserverIsTold(t *testing.T) {
	told := make(chan string, 10)
	_, kube := start(t, Options{Observe: func(what Happening, node string) {
		told <- fmt.Sprint(map[Happening]string{Cordoned: "cordoned ", PodStops: "stops ", PodGone: "gone "}[what], node)
	}}, runtime.ContentTypeJSON, "a")
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	for range 2 {
		if _, err := kube.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := evict(t.Context(), kube, "a-00", nil); err != nil {
		t.Fatal(err)
	}
	got := []string{<-told, <-told, <-told}
	if diff := gocmp.Diff([]string{"cordoned a", "stops a", "gone a"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNotSimulatedIsNotThere(t *testing.T) {
	s, kube := start(t, Options{}, runtime.ContentTypeProtobuf)
	begin := time.Now()
	if _, err := kube.CoreV1().Secrets("default").Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	if got := s.Requests(begin, time.Now()); got["GET /api/v1/namespaces/default/secrets/x "+fmt.Sprint(http.StatusNotFound)] != 1 {
		t.Errorf("%v", got)
	}
}
