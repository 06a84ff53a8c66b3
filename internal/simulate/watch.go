// Package simulate follows a notice that somebody has sent to see what happens:
// it watches the cluster and tells the story until the end.
package simulate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

// A Watch is what of a cluster is part of a story.
type Watch struct {
	Client     typedcorev1.CoreV1Interface
	Namespaces []string // of the pods
	// Replaces reports whether a pod can stand in for one that has to leave; nil: every pod can.
	Replaces func(*corev1.Pod) bool
	// Event returns the id of the notice whose work is followed, empty while it is
	// not known. nil: no work is followed.
	Event func() string
}

// Run sends what happens from its return on to nodes and pods, until ctx ends and
// the group that it returns is through. Events have to be received until then.
func (w Watch) Run(ctx context.Context, events chan<- timeline.Event) (*sync.WaitGroup, error) {
	send := func(happened []timeline.Event) {
		for _, e := range happened {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
	}
	informers := []cache.Controller{watching(w.Client, "nodes", metav1.NamespaceAll, &corev1.Node{}, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) { send(w.nodeEvents(before.(*corev1.Node), now.(*corev1.Node), time.Now())) },
	})}
	for _, namespace := range w.Namespaces {
		informers = append(informers, watching(w.Client, "pods", namespace, &corev1.Pod{}, cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(now any, isInInitialList bool) {
				if !isInInitialList {
					send(w.podEvents(&corev1.Pod{}, now.(*corev1.Pod), time.Now()))
				}
			},
			UpdateFunc: func(before, now any) { send(w.podEvents(before.(*corev1.Pod), now.(*corev1.Pod), time.Now())) },
			DeleteFunc: func(last any) {
				if unseen, ok := last.(cache.DeletedFinalStateUnknown); ok {
					last = unseen.Obj
				}
				pod := last.(*corev1.Pod)
				send([]timeline.Event{{Time: time.Now(), Kind: timeline.PodGone, Node: pod.Spec.NodeName, Pod: PodName(pod)}})
			},
		}))
	}
	var all sync.WaitGroup
	for _, informer := range informers {
		all.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, informer := range informers {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil, fmt.Errorf("list the nodes and pods: %w", context.Cause(ctx))
		}
	}
	return &all, nil
}

// watching is an informer of a resource of the core group.
func watching(client typedcorev1.CoreV1Interface, resource, namespace string, kind runtime.Object, handler cache.ResourceEventHandler) cache.Controller {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.RESTClient(), resource, namespace, fields.Everything()),
		ObjectType:    kind,
		Handler:       handler,
	})
	return informer
}

// PodName is a pod's name in a story: without its namespace where kubectl needs none.
func PodName(pod *corev1.Pod) string {
	if pod.Namespace == metav1.NamespaceDefault {
		return pod.Name
	}
	return pod.Namespace + "/" + pod.Name
}

func (w Watch) nodeEvents(before, now *corev1.Node, at time.Time) []timeline.Event {
	var events []timeline.Event
	carried, took := w.carried(now)
	// A node that somebody had cordoned before is as good as cordoned by the notice.
	if now.Spec.Unschedulable && (!before.Spec.Unschedulable || took) {
		events = append(events, timeline.Event{Time: at, Kind: timeline.NodeCordoned, Node: now.Name})
	}
	if took && carried.HeldBack {
		events = append(events, timeline.Event{Time: at, Kind: timeline.NodeHeldBack, Node: now.Name})
	}
	if took && carried.Finished() {
		events = append(events, timeline.Event{Time: at, Kind: timeline.WorkFinished, Node: now.Name})
	}
	return events
}

// carried is what the node carries, if the notice that is followed is a part of it.
func (w Watch) carried(node *corev1.Node) (cluster.Intent, bool) {
	if w.Event == nil {
		return cluster.Intent{}, false
	}
	event := w.Event()
	i, _, err := cluster.ReadIntent(node)
	if err != nil || event == "" {
		return cluster.Intent{}, false
	}
	return i, slices.ContainsFunc(i.Entries, func(e cluster.Entry) bool { return slices.Contains(e.IDs, event) })
}

func (w Watch) podEvents(before, now *corev1.Pod, at time.Time) []timeline.Event {
	e := timeline.Event{Time: at, Node: now.Spec.NodeName, Pod: PodName(now)}
	switch {
	case before.DeletionTimestamp == nil && now.DeletionTimestamp != nil:
		e.Kind = timeline.PodDeleted
		// The eviction API leaves this behind:
		// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
		if c := condition(now, corev1.DisruptionTarget); c != nil && c.Reason == "EvictionByEvictionAPI" {
			e.Kind = timeline.PodEvicted
		}
	case !isReady(before) && isReady(now) && (w.Replaces == nil || w.Replaces(now)):
		e.Kind = timeline.PodReady
	default:
		return nil
	}
	return []timeline.Event{e}
}

func isReady(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for k := range pod.Status.Conditions {
		if pod.Status.Conditions[k].Type == kind {
			return &pod.Status.Conditions[k]
		}
	}
	return nil
}

// Controllers are what made the pods, by UID: of these a replacement is expected.
func Controllers(pods []*corev1.Pod) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			all[owner.UID] = true
		}
	}
	return all
}
