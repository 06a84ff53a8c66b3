package main

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline/follow"
)

// watch sends what happens from now on, to nodes, to the pods of the default
// namespace and to the account's messages and hooks, until ctx ends and the group
// that it returns is through. Events have to be received, or they stop coming.
func watch(
	ctx context.Context, client kubernetes.Interface, aws *awssim.Server, events chan<- timeline.Event,
) (*sync.WaitGroup, error) {
	send := func(happened ...timeline.Event) {
		for _, e := range happened {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
	}
	all, err := follow.Watch{Client: client.CoreV1(), Namespaces: []string{metav1.NamespaceDefault}}.Run(ctx, events)
	if err != nil {
		return nil, err
	}
	all.Go(func() { watchEffects(ctx, aws, send) })
	return all, nil
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
	return []timeline.Event{
		{Time: effect.Time, Kind: kind, Hook: effect.Hook, Result: effect.Result, Message: effect.MessageID},
	}
}
