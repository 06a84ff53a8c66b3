// Package follow watches the nodes and pods of a cluster, and says what happens to them as a timeline has it.
package follow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

// A Watch is the part of a cluster that a story is about.
type Watch struct {
	Client     typedcorev1.CoreV1Interface
	Namespaces []string // of the pods
}

// Run sends what happens to nodes and pods after it has returned. It stops when ctx ends; the
// group that it returns is done then. Events have to be received until that.
func (w Watch) Run(ctx context.Context, events chan<- timeline.Event) (*sync.WaitGroup, error) {
	send := func(happened []timeline.Event) {
		for _, e := range happened {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
	}
	onNodes := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) { send(nodeEvents(before.(*corev1.Node), now.(*corev1.Node), time.Now())) },
	}
	onPods := cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(now any, isInInitialList bool) {
			if !isInInitialList {
				send(podEvents(&corev1.Pod{}, now.(*corev1.Pod), time.Now()))
			}
		},
		UpdateFunc: func(before, now any) { send(podChanges(before.(*corev1.Pod), now.(*corev1.Pod), time.Now())) },
		DeleteFunc: func(last any) {
			if unseen, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = unseen.Obj
			}
			send(podGone(last.(*corev1.Pod), time.Now()))
		},
	}
	informers := []cache.Controller{informer(kube.ListWatch(w.Client, w.Client.Nodes(), ""), &corev1.Node{}, onNodes)}
	for _, namespace := range w.Namespaces {
		informers = append(informers, informer(kube.ListWatch(w.Client, w.Client.Pods(namespace), ""), &corev1.Pod{}, onPods))
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

// informer calls handler with what happens to objects.
func informer(objects cache.ListerWatcher, kind runtime.Object, handler cache.ResourceEventHandler) cache.Controller {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: objects, ObjectType: kind, Handler: handler,
	})
	return informer
}

func nodeEvents(before, now *corev1.Node, at time.Time) []timeline.Event {
	if !now.Spec.Unschedulable || before.Spec.Unschedulable {
		return nil
	}
	return []timeline.Event{{Time: at, Kind: timeline.NodeCordoned, Node: now.Name}}
}

// podChanges returns the events of a change. The next pod of a StatefulSet has the same name as
// the last; after an interruption a watch shows it as a change of that one.
func podChanges(before, now *corev1.Pod, at time.Time) []timeline.Event {
	if before.UID == now.UID {
		return podEvents(before, now, at)
	}
	return append(podGone(before, at), podEvents(&corev1.Pod{}, now, at)...)
}

// podGone returns the event of a pod whose object is gone. It counts as gone since it has ended.
func podGone(pod *corev1.Pod, at time.Time) []timeline.Event {
	if evacuation.Ended(pod) {
		return nil
	}
	return []timeline.Event{{Time: at, Kind: timeline.PodGone, Node: pod.Spec.NodeName, Pod: evacuation.NameOf(pod)}}
}

func podEvents(before, now *corev1.Pod, at time.Time) []timeline.Event {
	e := timeline.Event{Time: at, Node: now.Spec.NodeName, Pod: evacuation.NameOf(now)}
	switch {
	case !evacuation.Ended(before) && evacuation.Ended(now):
		e.Kind = timeline.PodGone
	case before.DeletionTimestamp == nil && now.DeletionTimestamp != nil:
		e.Kind = timeline.PodDeleted
		if slices.ContainsFunc(now.Status.Conditions, isEviction) {
			e.Kind = timeline.PodEvicted
		}
	case !evacuation.Ready(before) && evacuation.Ready(now):
		e.Kind = timeline.PodReady
	default:
		return nil
	}
	return []timeline.Event{e}
}

// isEviction reports whether the condition is what the eviction API leaves behind.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
func isEviction(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
}
