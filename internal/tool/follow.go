package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline/follow"
)

// sendAndFollow sends the notice and prints what happens, to the end.
func (t *target) sendAndFollow(ctx context.Context, sim Simulation, view *rehearsal.Snapshot, term Terminal) error {
	// The times of events are whole seconds. A notice that is sent between two of them
	// has lost a part of its time already.
	sent := time.Now().Truncate(time.Second).Add(time.Second)
	planned, err := t.rehearse(view, sent)
	if err != nil {
		return err
	}
	expected, leaving := t.expect(planned, sent)
	var event atomic.Pointer[string] // EventBridge replaces the id of the notice
	event.Store(&t.notice.ID)
	events, stop, err := t.watch(ctx, leaving, func() string { return aws.ToString(event.Load()) })
	if err != nil {
		return err
	}
	defer stop()
	if err := retry.Sleep(ctx, time.Until(sent)); err != nil {
		return fmt.Errorf("nothing was sent: %w", err)
	}
	id, err := t.send(ctx, sim.Via, t.noticeAt(sent))
	if err != nil {
		return err
	}
	event.Store(&id)
	out := timeline.Printer{Out: term.Out, Colour: timeline.ColourWanted(IsTerminal(term.Out), os.Getenv)}
	if sim.JSON {
		out.Out = io.Discard
	}
	result, err := t.follow(ctx, id, expected, events, out)
	if errors.Is(err, follow.ErrNotTaken) {
		err = t.takeBack(ctx, sim, id, term, err)
	}
	var failed error
	switch {
	case sim.JSON:
		failed = t.writeResult(term.Out, id, result, err)
	case !errors.Is(err, errTakenBack): // also where it did not end well
		_, failed = fmt.Fprintf(term.Out, "undo: kubectl uncordon %s\n", t.node.Name)
	}
	return cmp.Or(failed, err)
}

// expect returns what the timeline has to know of the notice, and the pods that will leave.
func (t *target) expect(planned outcome, sent time.Time) (timeline.Notice, []*corev1.Pod) {
	expected := timeline.Notice{
		Name: t.kind.Dashed(), Instance: t.notice.Instance, Node: t.node.Name, Sent: sent, Deadline: planned.Terms.Deadline,
	}
	var leaving []*corev1.Pod
	for _, f := range planned.Fates {
		if f.Stays || f.Self || f.Ended || t.cordonsOnly(planned) {
			continue
		}
		leaving = append(leaving, f.Pod)
		expected.Pods = append(expected.Pods, evacuation.NameOf(f.Pod))
		if metav1.GetControllerOf(f.Pod) != nil {
			expected.Moves++
		}
	}
	return expected, leaving
}

// watch watches the cluster for what concerns the pods. event returns the id of the
// notice. stop ends the watch and waits for its end.
func (t *target) watch(
	ctx context.Context, pods []*corev1.Pod, event func() string,
) (events chan timeline.Event, stop func(), err error) {
	clients, err := connect(t.Options, 0)
	if err != nil {
		return nil, nil, err
	}
	var namespaces []string
	for _, pod := range pods {
		if !slices.Contains(namespaces, pod.Namespace) {
			namespaces = append(namespaces, pod.Namespace)
		}
	}
	controllers := follow.Controllers(pods)
	ctx, cancel := context.WithCancel(ctx)
	events = make(chan timeline.Event)
	watches, err := follow.Watch{
		Client: clients.CoreV1(), Namespaces: namespaces, Event: event,
		Replaces: func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner != nil && controllers[owner.UID]
		},
	}.Run(ctx, events)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return events, func() { cancel(); watches.Wait() }, nil
}

// follow prints the events until the drain is over, or until it should be. It returns
// follow.ErrNotTaken if no handler has taken the notice.
func (t *target) follow(
	ctx context.Context, id string, expected timeline.Notice, events chan timeline.Event, out timeline.Printer,
) (follow.Result, error) {
	const (
		taken  = time.Minute      // for a handler to receive the notice
		settle = 30 * time.Second // for the successors of pods: within that most have pulled their images
		late   = 15 * time.Second // for the last events after the deadline
	)
	end := expected.Deadline.Add(late)
	if expected.Deadline.IsZero() {
		end = expected.Sent.Add(t.NodeGracePeriod + late)
	}
	out.Heading(fmt.Sprintf("%s %s: %s", t.kind.Dashed(), id, deadlineText(expected.Deadline, expected.Sent)))
	return follow.Story{Notice: expected, Taken: taken, Settle: settle, End: end, Out: out}.Follow(ctx, events)
}

// A simulationResult is the end of a simulation for programs.
type simulationResult struct {
	originReport
	Kind  string `json:"kind"`
	Event string `json:"event"`
	Node  string `json:"node"`
	follow.Result
	Error string `json:"error,omitempty"`
	Undo  string `json:"undo"`
}

func (t *target) writeResult(out io.Writer, id string, r follow.Result, err error) error {
	result := simulationResult{
		originReport: t.originReport(), Kind: t.kind.Dashed(), Event: id, Node: t.node.Name, Result: r,
		Undo: "kubectl uncordon " + t.node.Name,
	}
	if err != nil {
		result.Error = err.Error()
	}
	return WriteJSON(out, result)
}

// deadlineText says when a node has to be empty.
func deadlineText(deadline, now time.Time) string {
	if deadline.IsZero() {
		return "nothing is forced"
	}
	return "the node must be empty in " + rehearsal.Seconds(deadline.Sub(now))
}
