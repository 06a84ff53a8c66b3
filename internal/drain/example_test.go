package drain_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
)

// The machine of node-1 is stopping already: its pods are deleted with their own grace, and budgets
// are not asked. The pod of the DaemonSet stays.
func ExampleDrainer_Drain() {
	client := cluster(podOf("ReplicaSet", "web-1", 30), podOf("DaemonSet", "logs-1", 30))
	drainer := &drain.Drainer{
		Client: kubetest.Evictable{Interface: client},
		Filter: drain.Filter{IgnoreDaemonSets: true},
		Grace:  -1, // the pods' own
		Observe: func(a evacuation.Answer) {
			fmt.Printf("%s: forced %t, grace %s, error %v\n", a.Pod.Name, a.Forced, a.Grace, a.Err)
		},
	}
	now := time.Now()
	result, err := drainer.Drain(context.Background(), &evacuation.Request{
		Node:  "node-1",
		Terms: evacuation.Terms{Deadline: now.Add(2 * time.Minute), IgnoreBudgets: true, CordonedAt: now.Add(-time.Minute)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("evicted %d, forced %d, missed %d\n", result.Evicted, result.Forced, len(result.Missed))

	// Output:
	// web-1: forced true, grace 30s, error <nil>
	// evicted 0, forced 1, missed 0
}

// A spot instance goes away in two minutes. A budget allows no disruption of db-1, so that it is deleted
// at the last moment that leaves it its grace; job-1 gets less than its grace from the start; dns-1 is
// critical to the system, and leaves after the others.
func ExampleSimulation() {
	start := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	dns := podOf("ReplicaSet", "dns-1", 10)
	dns.Spec.Priority = new(int32(2_000_000_000))
	simulation := drain.Simulation{
		Pods: []*corev1.Pod{
			podOf("ReplicaSet", "web-1", 30), podOf("StatefulSet", "db-1", 60), podOf("Job", "job-1", 600), dns,
		},
		Grace: -1,
		Terms: evacuation.Terms{Deadline: start.Add(2 * time.Minute)},
		Start: start,
		End:   start.Add(2 * time.Minute),
		Budgets: func(pod *corev1.Pod) []string {
			if pod.Name == "db-1" {
				return []string{"db"}
			}
			return nil
		},
		Allowed: map[string]int{"db": 0},
	}
	for _, o := range simulation.Run() {
		how := "evicted"
		if o.Forced {
			how = "deleted"
		}
		fmt.Printf("%s: %s after %s with a grace of %s\n", o.Pod.Name, how, o.Asked.Sub(start), o.Grace)
	}

	// Output:
	// job-1: evicted after 0s with a grace of 1m58s
	// web-1: evicted after 0s with a grace of 30s
	// db-1: deleted after 55s with a grace of 1m0s
	// dns-1: evicted after 1m45s with a grace of 10s
}

// podOf returns a pod of node-1 with a controller and a termination grace period, in seconds.
func podOf(controller, name string, grace int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "shop", UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: controller, Name: "owner", UID: "owner", Controller: new(true)},
			},
		},
		Spec:   corev1.PodSpec{NodeName: "node-1", TerminationGracePeriodSeconds: &grace},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// cluster returns a fake clientset with pods. Its watch starts with what happened since the list, as that of
// an API server does and that of the fake alone does not.
func cluster(pods ...*corev1.Pod) *fake.Clientset {
	client := fake.NewClientset()
	for _, pod := range pods {
		_ = client.Tracker().Add(pod) // it fails only for what is no object
	}
	client.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		for _, pod := range pods {
			if _, gone := client.Tracker().Get(a.GetResource(), pod.Namespace, pod.Name); gone != nil {
				w.(*watch.RaceFreeFakeWatcher).Delete(pod)
			}
		}
		return true, w, err
	})
	return client
}
