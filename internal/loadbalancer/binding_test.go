package loadbalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

func typesState(name string) types.TargetHealthStateEnum { return types.TargetHealthStateEnum(name) }

var resource = schema.GroupResource{Group: "elbv2.k8s.aws", Resource: "targetgroupbindings"}

// api is an API server that may have Bindings.
type api struct {
	mu       sync.Mutex
	err      error // of lists and watches
	bindings []Binding
	watching *watch.FakeWatcher
	lists    int
}

func (a *api) List(context.Context, metav1.ListOptions) (*Bindings, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	if a.err != nil {
		return nil, a.err
	}
	return &Bindings{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: a.bindings}, nil
}

func (a *api) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return nil, a.err
	}
	a.watching = watch.NewFake()
	return a.watching, nil
}

// turn changes what the API server answers. A watch ends.
func (a *api) turn(err error, bindings ...Binding) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.bindings = err, bindings
	if a.watching != nil {
		a.watching.Stop()
		a.watching = nil
	}
}

func arn(name string) string {
	return "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/" + name + "/73e2d6bc24d8a067"
}

func binding(name string, change ...func(*Binding)) Binding {
	b := Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u"}, Spec: Spec{TargetGroupARN: arn(name)}}
	for _, c := range change {
		c(&b)
	}
	return b
}

// watched is a Watch of an API server, in virtual time. warnings are those of its log.
func watched(t *testing.T, a *api, story func(w *Watch, names func() string, warnings func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		w := NewWatch(a, log.Logger())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		names := func() string {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			groups, err := w.GroupsOf(ctx, map[string]string{"pool": "web"})
			if err != nil {
				return err.Error()
			}
			var all []string
			for _, g := range groups {
				all = append(all, g.Name)
			}
			return strings.Join(all, " ")
		}
		story(w, names, func() int {
			synctest.Wait()
			return len(log.Entries("", "level", "warn"))
		})
		stop()
		<-done
	})
}

func TestTheGroupsOfANode(t *testing.T) {
	selector := func(pool string) func(*Binding) {
		return func(b *Binding) {
			b.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
		}
	}
	a := &api{bindings: []Binding{
		binding("web", func(b *Binding) { b.Spec.TargetType = TypeInstance }),
		binding("twice"), binding("twice", func(b *Binding) { b.Name = "again" }),
		binding("pods", func(b *Binding) { b.Spec.TargetType = TypeIP }),
		binding("selected", selector("web")), binding("elsewhere", selector("batch")),
		binding("wrong", func(b *Binding) {
			b.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "pool", Operator: "Near"}}}
		}),
		binding("none", func(b *Binding) { b.Spec.TargetGroupARN = "" }),
		binding("forged", func(b *Binding) { b.Spec.TargetGroupARN = arn("a\nb") }),
	}}
	watched(t, a, func(_ *Watch, names func() string, _ func() int) {
		if got := names(); got != "selected twice web" {
			t.Errorf("%q", got)
		}
	})
}

func TestBindingsComeAndGo(t *testing.T) {
	missing := apierrors.NewNotFound(resource, "")
	forbidden := apierrors.NewForbidden(resource, "", errors.New("RBAC"))
	a := &api{err: missing}
	watched(t, a, func(_ *Watch, names func() string, warnings func() int) {
		want := func(what, want string, warned int) {
			t.Helper()
			time.Sleep(3 * absentPause)
			if got := names(); got != want || warnings() != warned {
				t.Errorf("%s: %q, want %q; %d warnings, want %d", what, got, want, warnings(), warned)
			}
		}
		if begin, got := time.Now(), names(); got != "" || time.Since(begin) > 0 {
			t.Errorf("without the resource: %q after %v", got, time.Since(begin))
		}
		want("without the resource", "", 0)
		if a.lists > 5 {
			t.Errorf("%d lists in three minutes", a.lists)
		}
		a.turn(nil, binding("web"))
		want("with the resource", "web", 0)
		a.mu.Lock()
		a.watching.Add(new(binding("api")))
		a.mu.Unlock()
		want("with one more", "api web", 0)
		a.turn(missing)
		want("when it has gone", "", 0)
		a.turn(nil, binding("web"))
		want("when it is back", "web", 0)
		a.turn(forbidden)
		want("without the rights", "", 1)
		want("for long", "", 1)
		a.turn(nil, binding("web"))
		want("with the rights", "web", 1)
	})
}

func TestAClusterThatDoesNotAnswerHasNoBindings(t *testing.T) {
	watched(t, &api{err: apierrors.NewInternalError(errors.New("no"))}, func(_ *Watch, names func() string, _ func() int) {
		begin := time.Now()
		if got := names(); got != "" || time.Since(begin) > 15*time.Second {
			t.Errorf("%q after %v", got, time.Since(begin))
		}
	})
}

func TestANodeHasNotTooManyGroups(t *testing.T) {
	a := &api{}
	for n := range 2 * maxGroups {
		a.bindings = append(a.bindings, binding(fmt.Sprintf("g-%03d", n)))
	}
	watched(t, a, func(w *Watch, _ func() string, _ func() int) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute) // of the bubble
		defer cancel()
		groups, err := w.GroupsOf(ctx, nil)
		if len(groups) != maxGroups || !errors.Is(err, errTooManyGroups) {
			t.Errorf("%d groups, %v", len(groups), err)
		}
		targets := Targets{Groups: w.GroupsOf, Log: logr.Discard()}
		if groups, err = targets.of(ctx, Machine{}); len(groups) != maxGroups || err != nil {
			t.Errorf("%d groups are waited for, %v", len(groups), err)
		}
	})
}

func TestManyNewBindingsDoNotPushAnOlderOneOut(t *testing.T) {
	old := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	a := &api{bindings: []Binding{binding("web", func(b *Binding) { b.CreationTimestamp = metav1.NewTime(old) })}}
	for n := range 2 * maxGroups {
		a.bindings = append(a.bindings, binding(fmt.Sprintf("a-%03d", n), func(b *Binding) {
			b.CreationTimestamp = metav1.NewTime(old.Add(time.Hour))
		}))
	}
	watched(t, a, func(w *Watch, _ func() string, _ func() int) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		groups, err := w.GroupsOf(ctx, nil)
		if len(groups) != maxGroups || !errors.Is(err, errTooManyGroups) || groups[maxGroups-1].Name != "web" {
			t.Errorf("%d groups, the last is %s, %v", len(groups), groups[len(groups)-1].Name, err)
		}
	})
}

func TestCopiesShareNothing(t *testing.T) {
	list := &Bindings{Items: []Binding{binding("web", func(b *Binding) {
		b.Spec.NodeSelector, b.Labels = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}}, map[string]string{"a": "b"}
	})}}
	clone := list.DeepCopyObject().(*Bindings)
	if diff := cmp.Diff(list, clone); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	clone.Items[0].Spec.NodeSelector.MatchLabels["pool"], clone.Items[0].Labels["a"] = "batch", "c"
	if !list.Items[0].Selects(map[string]string{"pool": "web"}) || list.Items[0].Labels["a"] != "b" {
		t.Error("a copy shares the maps of its original")
	}
}

func TestABindingIsKeptWithWhatIsReadAlone(t *testing.T) {
	const arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/0123456789abcdef"
	large := strings.Repeat("x", 1_400_000)
	meta := metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid", ResourceVersion: "7"}
	selector := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"pool": value}}
	}
	normal := Binding{ObjectMeta: meta, Spec: Spec{TargetGroupARN: arn, TargetType: TypeInstance, NodeSelector: selector("a"), ServiceRef: ServiceRef{Name: "web"}}}
	annotated := normal
	annotated.Annotations, annotated.Labels = map[string]string{"note": large}, map[string]string{"a": "b"}
	hostile := annotated
	hostile.Spec = Spec{TargetGroupARN: large, TargetType: large, NodeSelector: selector(large), ServiceRef: ServiceRef{Name: large}}
	if diff := cmp.Diff(&normal, Trim(&annotated)); diff != "" {
		t.Errorf("trimmed (-want +got):\n%s", diff)
	}
	small := Trim(&hostile)
	if text, err := json.Marshal(small); err != nil || len(text) > 1<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if small.Selects(map[string]string{"pool": large}) || small.OfInstances() {
		t.Errorf("%+v selects nodes", small.Spec)
	}
}

func TestOfTooManyBindingsTheFirstAreKept(t *testing.T) {
	var log logtest.Log
	w := NewWatch(nil, log.Logger())
	store := seen{w.bindings, w}
	began := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	binding := func(k int) any {
		made := metav1.NewTime(began.Add(time.Duration(k) * time.Second))
		return &Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(k), CreationTimestamp: made}}
	}
	all := []any{binding(maxBindings + 1)} // its name, or its namespace, is the first
	for k := range maxBindings {
		all = append(all, binding(k))
	}
	if err := errors.Join(store.Replace(all, "7"), store.Add(binding(-1)), store.Update(binding(-2)), store.Update(binding(0))); err != nil {
		t.Fatal(err)
	}
	if n := len(w.bindings.ListKeys()); n != maxBindings {
		t.Errorf("%d are kept, want %d", n, maxBindings)
	}
	if _, there, _ := w.bindings.GetByKey(fmt.Sprint("ns/", maxBindings-1)); !there {
		t.Error("the youngest one pushes an older one out")
	}
	if err := errors.Join(store.Delete(binding(0)), store.Add(binding(-1))); err != nil {
		t.Fatal(err)
	}
	if _, there, _ := w.bindings.GetByKey("ns/-1"); !there {
		t.Error("there is room for one, and it is not kept")
	}
	if n := strings.Count(log.String(), "too many TargetGroupBindings"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, log.String())
	}
}
