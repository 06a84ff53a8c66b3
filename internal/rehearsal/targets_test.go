package rehearsal_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// bound are the TargetGroupBindings of a cluster; nil: it has no such resource.
type bound []loadbalancer.Binding

func (b bound) List(context.Context, metav1.ListOptions) (*loadbalancer.Bindings, error) {
	if b == nil {
		return nil, errors.New("not found")
	}
	return &loadbalancer.Bindings{Items: b}, nil
}

func (bound) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errors.New("nobody watches")
}

func TestPodsThatAreTargetsNeedTimeToLeave(t *testing.T) {
	binding := func(service, targetType string) loadbalancer.Binding {
		return loadbalancer.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
			Spec:       loadbalancer.Spec{TargetType: targetType, ServiceRef: loadbalancer.ServiceRef{Name: service}},
		}
	}
	service := func(app string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": app}},
		}
	}
	sleeps := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 15}}}}}
	}
	for name, tt := range map[string]struct {
		pod      *corev1.Pod
		bindings bound
		want     bool
	}{
		"a target with a short grace":   {pod("default", "p", "web", 30), bound{binding("web", "ip")}, true},
		"one with a long grace":         {pod("default", "p", "web", 35), bound{binding("web", "ip")}, false},
		"one that sleeps":               {pod("default", "p", "web", 30, sleeps), bound{binding("web", "ip")}, false},
		"one that stays":                {pod("default", "p", "web", 30, ofDaemonSet), bound{binding("web", "ip")}, false},
		"its node is the target":        {pod("default", "p", "web", 30), bound{binding("web", "instance")}, false},
		"another service":               {pod("default", "p", "web", 30), bound{binding("api", "ip")}, false},
		"a service that is not there":   {pod("default", "p", "web", 30), bound{binding("gone", "ip")}, false},
		"the same in another namespace": {pod("shop", "p", "web", 30), bound{binding("web", "ip")}, false},
		"without such a controller":     {pod("default", "p", "web", 30), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(tt.pod, service("web"), service("api"))
			view, err := rehearsal.ReadAll(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			view.ReadTargets(t.Context(), client, tt.bindings)
			report := view.Run(rehearsal.Request{
				Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, Start: now, End: now.Add(time.Minute), Grace: -1,
				Filter: drain.Filter{IgnoreDaemonSets: true},
			})
			if remarks := report.PodReports()[0].Remarks; strings.Contains(remarks, "its connections may be cut") != tt.want {
				t.Errorf("remarks %q", remarks)
			}
		})
	}
}
