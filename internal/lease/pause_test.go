package lease

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
)

// versioned are Leases of an API server that refuses an update which was made from another version, as each does and
// the fake does not.
func versioned() typedcoordinationv1.CoordinationV1Interface {
	kube := fake.NewClientset()
	gvr := coordinationv1.SchemeGroupVersion.WithResource("leases")
	kube.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		l := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
		there, err := kube.Tracker().Get(gvr, l.Namespace, l.Name)
		if err != nil {
			return true, nil, err
		}
		version := there.(*coordinationv1.Lease).ResourceVersion
		if l.ResourceVersion != version {
			return true, nil, apierrors.NewConflict(gvr.GroupResource(), l.Name, errors.New("it has changed"))
		}
		n, _ := strconv.Atoi(version)
		l.ResourceVersion = strconv.Itoa(n + 1)
		return true, l, kube.Tracker().Update(gvr, l, l.Namespace)
	})
	kube.PrependReactor("patch", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		there, err := kube.Tracker().Get(gvr, action.GetNamespace(), "lease")
		if err != nil {
			return true, nil, err
		}
		l := there.(*coordinationv1.Lease).DeepCopy()
		l.Annotations = nil
		if text := string(action.(clienttesting.PatchAction).GetPatch()); text != "" {
			l.Annotations = map[string]string{PausedAnnotation: text}
		}
		n, _ := strconv.Atoi(l.ResourceVersion)
		l.ResourceVersion = strconv.Itoa(n + 1)
		return true, l, kube.Tracker().Update(gvr, l, l.Namespace)
	})
	return kube.CoordinationV1()
}

// A leader that is paused stops within a renewal or two, keeps the Lease, and goes on when it is resumed. So does the
// next one.
func TestALeaderThatIsPausedDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := versioned()
		patch := func(why string) {
			t.Helper()
			if _, err := leases.Leases("ns").Patch(t.Context(), "lease", types.MergePatchType, []byte(why), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		leads := map[string]bool{}
		told := map[string]string{}
		run := func(name string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			elector := Elector{
				Client: leases, Namespace: "ns", Name: "lease", Identity: name, Log: logr.Discard(),
				Paused: func(why string, paused bool) {
					if told[name] = ""; paused {
						told[name] = why
					}
				},
			}
			go func() {
				ended <- elector.Run(ctx, func(ctx context.Context) error {
					leads[name] = true
					<-ctx.Done()
					leads[name] = false
					return context.Cause(ctx)
				})
			}()
			return func() {
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("%s ended with %v", name, err)
				}
			}
		}
		after := func(d time.Duration, what, leader, says string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			for _, name := range []string{"a", "b"} {
				if leads[name] != (name == leader) {
					t.Errorf("%s: %s leads: %t", what, name, leads[name])
				}
			}
			if told["a"]+told["b"] != says {
				t.Errorf("%s: told %q", what, told)
			}
		}
		stopA := run("a")
		after(5*time.Second, "at first", "a", "")
		stopB := run("b")
		patch("a bad rule")
		after(3*time.Second, "paused", "", "a bad rule")
		after(10*time.Minute, "paused for long", "", "a bad rule")
		l, err := leases.Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "a" || time.Since(l.Spec.RenewTime.Time) > 2*time.Second {
			t.Errorf("the Lease is %+v, %v; want a to keep it", l, err)
		}
		patch("")
		after(3*time.Second, "resumed", "a", "")
		patch("again")
		after(3*time.Second, "paused again", "", "again")
		stopA()
		after(10*time.Second, "the next leader", "", "again")
		patch("")
		after(3*time.Second, "the next leader, resumed", "b", "")
		stopB()
		after(time.Second, "the end", "", "")
	})
}

// One answer that does not come ends no pause.
func TestAPauseLastsWhileTheAPIServerIsSilent(t *testing.T) {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns", Annotations: map[string]string{PausedAnnotation: "why"}},
	}
	kube := fake.NewClientset(l)
	var refuse error
	kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return refuse != nil, nil, refuse })
	w := &Watcher{Client: kube.CoordinationV1(), Namespace: "ns", Name: "lease"}
	leases := coordinationv1.Resource("leases")
	for _, step := range []struct {
		refuse error
		want   State
	}{
		{errors.New("no answer"), Unknown},
		{nil, Stopped},
		{errors.New("no answer"), Stopped},
		{apierrors.NewForbidden(leases, "lease", nil), Stopped},
		{apierrors.NewNotFound(leases, "lease"), Absent},
		{errors.New("no answer"), Unknown},
	} {
		refuse = step.refuse
		if got := w.Leadership(t.Context()); got != step.want {
			t.Errorf("%v: %v, want %v", step.refuse, got, step.want)
		}
	}
}

func TestAPauseCountsForPodsOnNodesWhoeverLeads(t *testing.T) {
	for name, edit := range map[string]func(*coordinationv1.Lease){
		"somebody leads": func(*coordinationv1.Lease) {},
		"nobody leads":   func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") },
		"in dry-run":     func(l *coordinationv1.Lease) { l.Labels = map[string]string{DryRunLabel: "true"} },
		"without words":  func(l *coordinationv1.Lease) { l.Annotations[PausedAnnotation] = "" },
	} {
		l := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns", Annotations: map[string]string{PausedAnnotation: "why"}},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new("leader"), LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NewMicroTime(time.Now())),
			},
		}
		edit(l)
		w := &Watcher{Client: fake.NewClientset(l).CoordinationV1(), Namespace: "ns", Name: "lease"}
		if got := w.Leadership(t.Context()); got != Stopped {
			t.Errorf("%s: %v", name, got)
		}
	}
}
