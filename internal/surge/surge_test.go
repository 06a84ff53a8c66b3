package surge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const podUID = "6c2f0c7e-1111-4222-8333-944445555666"

func owner(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name + "-uid"), Controller: new(true)}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1-x", UID: podUID, OwnerReferences: owner("ReplicaSet", "db-1")}}
}

func replicaSet() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1", UID: "db-1-uid", OwnerReferences: owner("Deployment", "db")}}
}

// deployment is one as the API server completes it, with its pod available.
func deployment(edit ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "db-uid", ResourceVersion: "7", Generation: 3},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Strategy: rolling(intstr.FromString("25%"), intstr.FromString("25%")),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"node-termination-handler/leave": "surged", "other": "x"}}},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1},
	}
	for _, e := range edit {
		e(d)
	}
	return d
}

func rolling(surge, unavailable intstr.IntOrString) appsv1.DeploymentStrategy {
	return appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
	}
}

// patches are the bodies of the patches that a client was asked for.
func patches(client *fake.Clientset) (bodies []string) {
	for _, action := range client.Actions() {
		if p, ok := action.(clienttesting.PatchAction); ok {
			bodies = append(bodies, string(p.GetPatch()))
		}
	}
	return bodies
}

const wantPatch = `{"metadata":{"uid":"db-uid","resourceVersion":"7"},"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/surged-for":"` + podUID + `"}}}}}`

func TestARolloutIsBegunOnceForAPod(t *testing.T) {
	client := fake.NewClientset(replicaSet(), deployment())
	for range 3 { // leaders, one after the other
		if err := (Deployments{Client: client, Gate: pace.NewGate(1, 1)}).Surge(t.Context(), pod()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{wantPatch}, patches(client)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	got, err := client.AppsV1().Deployments("ns").Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := deployment(func(d *appsv1.Deployment) { d.Spec.Template.Annotations[Annotation] = podUID })
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("the Deployment (-want +got):\n%s", diff)
	}
}

// The rollout that was begun goes on: it is no other one, and is not refused for what it has come to.
func TestARolloutThatWasBegunForThePodIsNoObstacle(t *testing.T) {
	client := fake.NewClientset(replicaSet(), deployment(func(d *appsv1.Deployment) {
		d.Spec.Template.Annotations[Annotation] = podUID
		d.Generation, d.Status.Replicas, d.Spec.Paused = 4, 2, true
	}))
	if err := (Deployments{Client: client}).Surge(t.Context(), pod()); err != nil || patches(client) != nil {
		t.Errorf("Surge = %v, patches %q", err, patches(client))
	}
}

func TestWhyAPodGetsNoReplacementFirst(t *testing.T) {
	with := func(edit func(*appsv1.Deployment)) []runtime.Object {
		return []runtime.Object{replicaSet(), deployment(edit)}
	}
	strategy := func(surge, unavailable string) []runtime.Object {
		return with(func(d *appsv1.Deployment) { d.Spec.Strategy = rolling(intstr.Parse(surge), intstr.Parse(unavailable)) })
	}
	for name, tt := range map[string]struct {
		pod     func(*corev1.Pod)
		objects []runtime.Object
		want    string // empty: it gets one
	}{
		"nobody owns it":                 {pod: func(p *corev1.Pod) { p.OwnerReferences = nil }, want: "it belongs to no Deployment"},
		"a StatefulSet":                  {pod: func(p *corev1.Pod) { p.OwnerReferences = owner("StatefulSet", "db") }, want: "it belongs to no Deployment"},
		"a ReplicaSet of another group":  {pod: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }, want: "it belongs to no Deployment"},
		"no ReplicaSet any more":         {objects: []runtime.Object{deployment()}, want: "ReplicaSet db-1, which it belongs to, does not exist any more"},
		"another ReplicaSet of the name": {pod: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" }, want: "ReplicaSet db-1, which it belongs to, does not exist any more"},
		"a ReplicaSet of its own": {
			objects: []runtime.Object{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1", UID: "db-1-uid"}}, deployment()},
			want:    "it belongs to ReplicaSet db-1, which belongs to no Deployment",
		},
		"no Deployment any more":         {objects: []runtime.Object{replicaSet()}, want: "Deployment db, which it belongs to, does not exist any more"},
		"another Deployment of the name": {objects: with(func(d *appsv1.Deployment) { d.UID = "new" }), want: "Deployment db, which it belongs to, does not exist any more"},
		"a Deployment that goes":         {objects: with(func(d *appsv1.Deployment) { d.DeletionTimestamp = new(metav1.Now()) }), want: "Deployment db is being deleted"},
		"no consent of its owner":        {objects: with(func(d *appsv1.Deployment) { d.Spec.Template.Annotations = nil }), want: "the pod template of Deployment db has no annotation node-termination-handler/leave: surged"},
		"several replicas":               {objects: with(func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }), want: "Deployment db has 3 replicas, not 1"},
		"none":                           {objects: with(func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(0)) }), want: "Deployment db has 0 replicas, not 1"},
		"one by default":                 {objects: with(func(d *appsv1.Deployment) { d.Spec.Replicas = nil })},
		"a pause":                        {objects: with(func(d *appsv1.Deployment) { d.Spec.Paused = true }), want: "Deployment db is paused"},
		"Recreate": {objects: with(func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		}), want: "Deployment db has the strategy Recreate"},
		"no surge":                       {objects: strategy("0", "1"), want: "Deployment db has maxSurge 0"},
		"no surge in percent":            {objects: strategy("0%", "1"), want: "Deployment db has maxSurge 0%"},
		"the least surge":                {objects: strategy("1%", "0")},
		"the pod may go first":           {objects: strategy("1", "1"), want: "Deployment db has maxUnavailable 1, so that its pod may go first"},
		"the same in percent":            {objects: strategy("1", "100%"), want: "Deployment db has maxUnavailable 100%, so that its pod may go first"},
		"the most that keeps it":         {objects: strategy("100%", "99%")},
		"the defaults":                   {objects: with(func(d *appsv1.Deployment) { d.Spec.Strategy = appsv1.DeploymentStrategy{} })},
		"a change nobody has seen":       {objects: with(func(d *appsv1.Deployment) { d.Generation++ }), want: "another rollout of Deployment db has not finished"},
		"a rollout that has just begun":  {objects: with(func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 0 }), want: "another rollout of Deployment db has not finished"},
		"an old pod that is still there": {objects: with(func(d *appsv1.Deployment) { d.Status.Replicas = 2 }), want: "another rollout of Deployment db has not finished"},
		"for a pod before":               {objects: with(func(d *appsv1.Deployment) { d.Spec.Template.Annotations[Annotation] = "another"; d.Status.Replicas = 2 }), want: "another rollout of Deployment db has not finished"},
		"its replacement of before":      {objects: with(func(d *appsv1.Deployment) { d.Spec.Template.Annotations[Annotation] = "another" })},
		"a pod that is not available":    {objects: with(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }), want: "the pod of Deployment db is not available"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.objects == nil {
				tt.objects = with(func(*appsv1.Deployment) {})
			}
			p := pod()
			if tt.pod != nil {
				tt.pod(p)
			}
			for k, object := range tt.objects { // the client of the program makes them smaller
				switch o := object.(type) {
				case *appsv1.Deployment:
					tt.objects[k] = TrimDeployment(o)
				case *appsv1.ReplicaSet:
					tt.objects[k] = TrimReplicaSet(o)
				}
			}
			client := fake.NewClientset(tt.objects...)
			err := Deployments{Client: client}.Surge(t.Context(), p)
			if tt.want == "" {
				if diff := cmp.Diff([]string{wantPatch}, patches(client)); diff != "" || err != nil {
					t.Errorf("Surge = %v, patches (-want +got):\n%s", err, diff)
				}
				return
			}
			if _, refused := errors.AsType[Refusal](err); !refused || err.Error() != tt.want || patches(client) != nil {
				t.Errorf("Surge = %v, patches %q, want %s", err, patches(client), tt.want)
			}
		})
	}
}

// What may work later is tried again, and nothing else.
func TestARequestThatFailsIsMadeAgainIfThatMayHelp(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: `admission webhook "w.example.com" denied the request: not on a Friday`,
	}}
	for name, tt := range map[string]struct {
		verb, resource string
		err            error
		applied        bool // all the same: the answer was lost
		fails          bool
		tries          int
	}{
		"a conflict":                     {verb: "patch", resource: "deployments", err: apierrors.NewConflict(deployments, "db", errors.New("changed")), tries: 2},
		"an answer that was lost":        {verb: "patch", resource: "deployments", err: errors.New("connection reset"), applied: true, tries: 1},
		"a request that was lost":        {verb: "patch", resource: "deployments", err: errors.New("connection reset"), tries: 2},
		"a busy server":                  {verb: "get", resource: "replicasets", err: apierrors.NewTooManyRequests("busy", 1), tries: 1},
		"a fault of the server":          {verb: "get", resource: "deployments", err: apierrors.NewInternalError(errors.New("oops")), tries: 1},
		"no permission to get":           {verb: "get", resource: "replicasets", err: apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "replicasets"}, "db-1", errors.New("no")), fails: true},
		"no permission to patch":         {verb: "patch", resource: "deployments", err: apierrors.NewForbidden(deployments, "db", errors.New("no")), fails: true, tries: 1},
		"a webhook that refuses":         {verb: "patch", resource: "deployments", err: webhook, fails: true, tries: 1},
		"a Deployment that is not valid": {verb: "patch", resource: "deployments", err: apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "db", nil), fails: true, tries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(replicaSet(), deployment())
				failed := false
				client.PrependReactor(tt.verb, tt.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					if failed {
						return false, nil, nil
					}
					failed = true
					if tt.applied {
						done := deployment(func(d *appsv1.Deployment) { d.Spec.Template.Annotations[Annotation] = podUID })
						if err := client.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"), done, "ns"); err != nil {
							t.Error(err)
						}
					}
					return true, nil, tt.err
				})
				err := Deployments{Client: client, Gate: pace.NewGate(1, 1)}.Surge(t.Context(), pod())
				if tt.fails != errors.Is(err, tt.err) || !tt.fails && err != nil {
					t.Errorf("Surge = %v", err)
				}
				if n := len(patches(client)); n != tt.tries {
					t.Errorf("%d patches, want %d", n, tt.tries)
				}
			})
		})
	}
}

func TestTheTriesHaveAnEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		limit, want time.Duration
	}{
		"after a minute":         {time.Hour, time.Minute},
		"or when the drain says": {10 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(replicaSet(), deployment())
				tries := 0
				client.PrependReactor("get", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) {
					tries++
					return true, nil, fmt.Errorf("no answer to try %d", tries)
				})
				ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
				defer cancel()
				begin := time.Now()
				err := Deployments{Client: client}.Surge(ctx, pod())
				if took := time.Since(begin); took != tt.want || err == nil || !strings.Contains(err.Error(), "get ReplicaSet db-1: no answer to try") {
					t.Errorf("after %s: %v", took, err)
				}
				if tries < 5 || tries > 30 {
					t.Errorf("%d tries", tries)
				}
			})
		})
	}
}
