// Package follow watches the cluster after a notice was sent, and prints the timeline of
// what happens to its node and pods until the work is done.
package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

// A Story is a notice that was sent, and how long to wait for what follows.
type Story struct {
	Notice timeline.Notice
	Out    timeline.Printer
	// Taken is how long a handler may need to act on the notice. End is when the story ends at the
	// latest.
	Taken time.Duration
	End   time.Time
	// Settle is how long to wait after the work is done for pods to come up elsewhere: a
	// StatefulSet makes the next pod only when the old one is gone.
	Settle time.Duration
}

// ErrNotTaken says that no handler acted on the notice in time.
var ErrNotTaken = errors.New("no handler has taken the notice")

// A Result is what became of the notice.
type Result struct {
	timeline.Tally
	// Missing is what did not happen, and Troubles what should not have.
	Missing  []string `json:"missing,omitempty"`
	Troubles []string `json:"troubles,omitempty"`
}

// untilQuiet is how long nothing happens before it is said what is waited for.
const untilQuiet = 15 * time.Second

// Follow prints what happens until the end of the story. The error says what did not happen in
// time, or what went wrong.
func (s Story) Follow(ctx context.Context, events <-chan timeline.Event) (Result, error) {
	var story timeline.Timeline
	s.Out.Row(story.Begin(s.Notice))
	err := s.follow(ctx, events, &story)
	result := Result{Tally: story.Tally(), Missing: story.Missing(), Troubles: story.Troubles()}
	switch {
	case err != nil:
	case len(result.Troubles) > 0:
		err = fmt.Errorf("this should not have happened:%s", list(result.Troubles))
	default:
		s.Out.End(story.Summary())
		if n := story.Unmoved(); n > 0 {
			fmt.Fprintf(s.Out.Out, "Not ready elsewhere yet: %d of the pods that left. See kubectl get pods -A.\n", n)
		}
	}
	return result, err
}

func (s Story) follow(ctx context.Context, events <-chan timeline.Event, story *timeline.Timeline) error {
	over := time.NewTimer(time.Until(s.End))
	defer over.Stop()
	nobody := time.NewTimer(s.Taken)
	defer nobody.Stop()
	quiet := time.NewTicker(untilQuiet)
	defer quiet.Stop()
	for len(story.Missing()) > 0 {
		select {
		case e := <-events:
			printed, taken := s.observe(story, e)
			if taken {
				nobody.Stop()
			}
			if printed {
				quiet.Reset(untilQuiet)
			}
		case now := <-quiet.C:
			for _, row := range story.Waits(now) {
				s.Out.Row(row)
			}
		case <-nobody.C:
			return fmt.Errorf("%w within %.0f s", ErrNotTaken, s.Taken.Seconds())
		case <-over.C:
			return fmt.Errorf("this did not happen within %.0f s:%s", s.End.Sub(s.Notice.Sent).Seconds(), list(story.Missing()))
		case <-ctx.Done():
			return fmt.Errorf("the notice was sent, and is not followed any more (%w); the drain goes on: kubectl get node %s "+
				"-L %s",
				context.Cause(ctx), s.Notice.Node, cluster.StateLabel)
		}
	}
	settled := time.NewTimer(s.Settle)
	defer settled.Stop()
	for story.Unmoved() > 0 {
		select {
		case e := <-events:
			s.observe(story, e)
		case <-settled.C:
			return nil // the summary says how many have moved
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// observe prints the new rows, and reports whether there are some, and whether they show that a handler has the notice.
func (s Story) observe(story *timeline.Timeline, e timeline.Event) (printed, taken bool) {
	for _, row := range story.Observe(e) {
		printed = true
		taken = taken || row.Kind == timeline.NodeCordoned || row.Kind == timeline.NodeHeldBack
		s.Out.Row(row)
	}
	return printed, taken
}

// list puts each item on a line of its own.
func list(what []string) string { return "\n  " + strings.Join(what, "\n  ") }

// A Watch is the part of a cluster that a story is about.
type Watch struct {
	Client     typedcorev1.CoreV1Interface
	Namespaces []string // of the pods
	// Replaces reports whether a pod can replace one that has to leave; nil: every pod can.
	Replaces func(*corev1.Pod) bool
	// Event returns the id of the notice to follow; empty while it is not known. nil: the work on
	// nodes is not followed.
	Event func() string
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
		UpdateFunc: func(before, now any) { send(w.nodeEvents(before.(*corev1.Node), now.(*corev1.Node), time.Now())) },
	}
	onPods := cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(now any, isInInitialList bool) {
			if !isInInitialList {
				send(w.podEvents(&corev1.Pod{}, now.(*corev1.Pod), time.Now()))
			}
		},
		UpdateFunc: func(before, now any) { send(w.podChanges(before.(*corev1.Pod), now.(*corev1.Pod), time.Now())) },
		DeleteFunc: func(last any) {
			if unseen, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = unseen.Obj
			}
			send(podGone(last.(*corev1.Pod), time.Now()))
		},
	}
	informers := []cache.Controller{informer(kube.ListWatch(w.Client, w.Client.Nodes()), &corev1.Node{}, onNodes)}
	for _, namespace := range w.Namespaces {
		informers = append(informers, informer(kube.ListWatch(w.Client, w.Client.Pods(namespace)), &corev1.Pod{}, onPods))
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

func (w Watch) nodeEvents(before, now *corev1.Node, at time.Time) []timeline.Event {
	var events []timeline.Event
	carried, took := w.carried(now)
	// A node that was cordoned before the notice counts as cordoned by it.
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

// carried returns the intent of the node, if the notice that is followed is part of it.
func (w Watch) carried(node *corev1.Node) (intent.Intent, bool) {
	if w.Event == nil {
		return intent.Intent{}, false
	}
	event := w.Event()
	i, _, err := cluster.ReadIntent(node)
	if err != nil || event == "" {
		return intent.Intent{}, false
	}
	return i, slices.ContainsFunc(i.Entries, func(e intent.Entry) bool { return slices.Contains(e.IDs, event) })
}

// podChanges returns the events of a change. The next pod of a StatefulSet has the same name as
// the last; after an interruption a watch shows it as a change of that one.
func (w Watch) podChanges(before, now *corev1.Pod, at time.Time) []timeline.Event {
	if before.UID == now.UID {
		return w.podEvents(before, now, at)
	}
	return append(podGone(before, at), w.podEvents(&corev1.Pod{}, now, at)...)
}

// podGone returns the event of a pod whose object is gone. It counts as gone since it has ended.
func podGone(pod *corev1.Pod, at time.Time) []timeline.Event {
	if evacuation.Ended(pod) {
		return nil
	}
	return []timeline.Event{{Time: at, Kind: timeline.PodGone, Node: pod.Spec.NodeName, Pod: evacuation.NameOf(pod)}}
}

func (w Watch) podEvents(before, now *corev1.Pod, at time.Time) []timeline.Event {
	e := timeline.Event{Time: at, Node: now.Spec.NodeName, Pod: evacuation.NameOf(now)}
	switch {
	case !evacuation.Ended(before) && evacuation.Ended(now):
		e.Kind = timeline.PodGone
	case before.DeletionTimestamp == nil && now.DeletionTimestamp != nil:
		e.Kind = timeline.PodDeleted
		if slices.ContainsFunc(now.Status.Conditions, isEviction) {
			e.Kind = timeline.PodEvicted
		}
	case !evacuation.Ready(before) && evacuation.Ready(now) && (w.Replaces == nil || w.Replaces(now)):
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

// Controllers returns the UIDs of the controllers of pods: these make replacements.
func Controllers(pods []*corev1.Pod) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			all[owner.UID] = true
		}
	}
	return all
}
