package main

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

// watch sends what happens from now on, to nodes, to the pods of the default
// namespace and to the account's messages and hooks, until ctx ends and the group
// that it returns is through. Events have to be received, or they stop coming.
func watch(ctx context.Context, client kubernetes.Interface, aws *awssim.Server, events chan<- timeline.Event) (*sync.WaitGroup, error) {
	send := func(happened ...timeline.Event) {
		for _, e := range happened {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceDefault))
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) { send(nodeEvents(before.(*corev1.Node), now.(*corev1.Node), time.Now())...) },
	})
	if err != nil {
		return nil, err
	}
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(now any, isInInitialList bool) {
			if !isInInitialList {
				send(podEvents(&corev1.Pod{}, now.(*corev1.Pod), time.Now())...)
			}
		},
		UpdateFunc: func(before, now any) { send(podEvents(before.(*corev1.Pod), now.(*corev1.Pod), time.Now())...) },
		DeleteFunc: func(last any) {
			if unseen, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = unseen.Obj
			}
			pod := last.(*corev1.Pod)
			send(timeline.Event{Time: time.Now(), Kind: timeline.PodGone, Node: pod.Spec.NodeName, Pod: pod.Name})
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, errors.New("the nodes and pods could not be listed")
		}
	}
	var all sync.WaitGroup
	all.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	all.Go(func() { watchEffects(ctx, aws, send) })
	return &all, nil
}

// watchEffects sends what happens to messages and hooks until ctx ends. The
// simulator is in this process and remembers all of it: asking often costs
// nothing, and nothing is missed.
func watchEffects(ctx context.Context, aws *awssim.Server, send func(...timeline.Event)) {
	const pause = 20 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for seen := len(aws.Effects()); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		effects := aws.Effects()
		for _, effect := range effects[seen:] {
			send(effectEvents(effect)...)
		}
		seen = len(effects)
	}
}

func nodeEvents(before, now *corev1.Node, at time.Time) []timeline.Event {
	if before.Spec.Unschedulable || !now.Spec.Unschedulable {
		return nil
	}
	return []timeline.Event{{Time: at, Kind: timeline.NodeCordoned, Node: now.Name}}
}

func podEvents(before, now *corev1.Pod, at time.Time) []timeline.Event {
	e := timeline.Event{Time: at, Node: now.Spec.NodeName, Pod: now.Name}
	switch {
	case before.DeletionTimestamp == nil && now.DeletionTimestamp != nil:
		e.Kind = timeline.PodDeleted
		// The eviction API leaves this behind:
		// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
		if c := condition(now, corev1.DisruptionTarget); c != nil && c.Reason == "EvictionByEvictionAPI" {
			e.Kind = timeline.PodEvicted
		}
	case !isReady(before) && isReady(now):
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

// kinds are the effects that are part of the story.
var kinds = map[awssim.EffectKind]timeline.Kind{
	awssim.ActionCompleted: timeline.HookCompleted,
	awssim.ActionTimedOut:  timeline.HookTimedOut,
	awssim.MessageDeleted:  timeline.MessageDeleted,
}

func effectEvents(effect awssim.Effect) []timeline.Event {
	kind := kinds[effect.Kind]
	if kind == timeline.None {
		return nil
	}
	return []timeline.Event{{Time: effect.Time, Kind: kind, Hook: effect.Hook, Result: effect.Result, Message: effect.MessageID}}
}
