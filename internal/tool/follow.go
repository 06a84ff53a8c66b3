package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// lookPause is the time between two looks at the node and its pods.
	lookPause = time.Second
	// takenWithin is how long a handler may take to receive the notice.
	takenWithin = time.Minute
	// mostLate is how long after its deadline the end of a drain may be recorded.
	mostLate = 15 * time.Second
)

// errNotTaken says that no handler acted on the notice in time.
var errNotTaken = errors.New("no handler has taken the notice")

// sendAndFollow sends the notice and prints what happens, to the end.
func (t *target) sendAndFollow(ctx context.Context, sim Simulation, view *rehearsal.Snapshot, term Terminal) error {
	// The times of events are whole seconds. A notice that is sent between two of them
	// has lost a part of its time already.
	sent := time.Now().Truncate(time.Second).Add(time.Second)
	planned, err := t.rehearse(view, sent)
	if err != nil {
		return err
	}
	if err := retry.Sleep(ctx, time.Until(sent)); err != nil {
		return fmt.Errorf("nothing was sent: %w", err)
	}
	s := sentNotice{target: t, sent: sent, deadline: planned.Terms.Deadline, leaving: t.leavers(planned), out: term.Out}
	if err := t.send(ctx, t.noticeAt(sent)); err != nil {
		return err
	}
	if sim.JSON {
		s.out = io.Discard
	}
	last, err := s.follow(ctx)
	if errors.Is(err, errNotTaken) {
		err = fmt.Errorf("%w; it stays in the queue: a handler may still act on it, until the queue's retention ends", err)
	}
	became, cut := s.pods(ctx, last)
	err = orCutShort(err, cut, t.node.Name)
	var failed error
	if sim.JSON {
		failed = s.writeResult(term.Out, last, err)
	} else { // also where it did not end well
		_, failed = fmt.Fprintf(term.Out, "%sundo: kubectl uncordon %s\n", became, t.node.Name)
	}
	return cmp.Or(failed, err)
}

// leavers are the names of the pods that have to leave.
func (t *target) leavers(planned outcome) map[types.UID]string {
	all := map[types.UID]string{}
	for _, f := range planned.Fates {
		if !f.Stays && !f.Ended && !t.cordonsOnly(planned) {
			all[f.Pod.UID] = evacuation.NameOf(f.Pod)
		}
	}
	return all
}

// A sentNotice is a notice that was sent.
type sentNotice struct {
	*target
	sent     time.Time
	deadline time.Time            // zero: nothing is forced
	leaving  map[types.UID]string // the names of the pods that have to leave
	blocked  string               // what refused to let pods go, as the leader said last
	out      io.Writer
}

// A progress is how far a drain has come. The zero value: no handler has the notice.
type progress struct {
	taken, heldBack bool
	outcome         intent.Outcome // empty: it has not ended
	left            []string       // the pods that are still there
	blocked         string         // what refuses to let pods go; empty: nothing, or it is not known
}

// follow prints how far the drain is, each time that it has come further, until it has ended, or should have. The error
// is errNotTaken if no handler has taken the notice.
func (s *sentNotice) follow(ctx context.Context) (last progress, err error) {
	fmt.Fprintf(s.out, "\n%s %s: %s\n", s.kind.Dashed(), s.notice.ID, deadlineText(s.deadline, s.sent))
	end := cmp.Or(s.deadline, s.sent.Add(s.NodeGracePeriod)).Add(mostLate)
	row := func(text string) { fmt.Fprintf(s.out, "%8s  %s\n", rehearsal.Seconds(time.Since(s.sent)), text) }
	printed := s.describe(last)
	row(printed)
	for {
		now, failed := s.look(ctx)
		isCalledOff := failed == nil && last.taken && !now.taken // it leaves nothing on the node
		if failed == nil && !isCalledOff {
			last = now
		}
		if text := s.describe(last); text != printed {
			printed = text
			row(text)
		}
		switch {
		case isCalledOff:
			return last, fmt.Errorf("the drain was called off; kubectl nth report --node %s says why", s.node.Name)
		case last.outcome == intent.Drained, last.outcome == intent.Cordoned:
			return last, nil
		case last.outcome != "":
			return last, fmt.Errorf("the drain has ended, and the node was not drained in time: %s; "+
				"kubectl nth report --node %s says why", s.describe(last), s.node.Name)
		case !last.taken && time.Since(s.sent) >= takenWithin:
			return last, fmt.Errorf("%w within %.0f s", errNotTaken, takenWithin.Seconds())
		case time.Now().After(end):
			return last, fmt.Errorf("the drain has not ended within %.0f s: %s", end.Sub(s.sent).Seconds(), s.describe(last))
		}
		if why := retry.Sleep(ctx, lookPause); why != nil {
			return last, fmt.Errorf("the notice was sent, and is not followed any more (%w); the drain goes on: "+
				"kubectl get node %s -L %s", why, s.node.Name, cluster.StateLabel)
		}
	}
}

// look finds out how far the drain is. Where the API server does not answer, the next look will tell.
func (s *sentNotice) look(ctx context.Context) (p progress, err error) {
	node, err := s.client.CoreV1().Nodes().Get(ctx, s.node.Name, metav1.GetOptions{})
	if err != nil {
		return p, err
	}
	carried, _, err := cluster.ReadIntent(node)
	isOurs := func(e intent.Entry) bool { return slices.Contains(e.IDs, s.notice.ID) }
	if err != nil || !slices.ContainsFunc(carried.Entries, isOurs) {
		return p, err
	}
	onNode := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node.Name).String()}
	list, err := s.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, onNode)
	if err != nil {
		return p, err
	}
	p = progress{taken: true, heldBack: carried.HeldBack, outcome: carried.Outcome}
	for _, pod := range list.Items {
		if name, leaves := s.leaving[pod.UID]; leaves && !evacuation.Ended(&pod) {
			p.left = append(p.left, name)
		}
	}
	if p.outcome == "" && len(p.left) > 0 {
		s.askWhatBlocks(ctx)
		p.blocked = s.blocked
	}
	return p, nil
}

// askWhatBlocks asks the leader what refuses to let pods go. Where it does not answer, it is what it was.
func (s *sentNotice) askWhatBlocks(ctx context.Context) {
	v := s.viewer()
	l, err := v.leader(ctx)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	n := v.current(ctx, l, s.node.Name)
	if n == nil {
		return
	}
	s.blocked = ""
	if w := n.Refusal(); w != nil {
		s.blocked = overview.Clean(w.Why)
	}
}

// describe says how far the drain is.
func (s *sentNotice) describe(p progress) string {
	text := "node cordoned"
	switch {
	case !p.taken:
		return "notice sent about instance " + s.notice.Instance
	case p.outcome != "":
		text = string(p.outcome)
	case p.heldBack:
		text = "node held back"
	}
	text += fmt.Sprintf(", %d of %s left", len(p.left), overview.Count(len(s.leaving), "pod"))
	if p.blocked != "" {
		text += "; it waits: " + p.blocked
	}
	if p.outcome != "" && len(p.left) > 0 {
		text += ": " + strings.Join(p.left, ", ")
	}
	return text
}

// orCutShort is err, or says how many pods were killed too early.
func orCutShort(err error, cut int, node string) error {
	if err != nil || cut == 0 {
		return err
	}
	return fmt.Errorf("the node was drained, but %d of its pods were killed before the end of their grace periods; "+
		"kubectl nth report --node %s names them", cut, node)
}

// pods is a line about what became of the pods, in the words of report; empty: the drain has not ended, or the leader
// does not say. It says so a moment after the node does.
func (s *sentNotice) pods(ctx context.Context, last progress) (text string, cut int) {
	if last.outcome == "" {
		return "", 0
	}
	v := s.viewer()
	l, err := v.leader(ctx)
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	for ; err == nil; err = retry.Sleep(ctx, lookPause) {
		var h overview.History
		if v.ask(ctx, l, overview.HistoryPath, &h) != nil {
			break
		}
		r := overview.Report{Episodes: overview.Select(h.Episodes, s.node.Name, s.sent)}
		r.Episodes = slices.DeleteFunc(r.Episodes, func(e overview.Episode) bool { return !e.Tells(s.notice.ID) })
		switch text = r.Pods(); {
		case text != "":
			for k := range r.Episodes {
				if p := r.Episodes[k].Pods; p != nil {
					cut += p.Cut
				}
			}
			return strings.ReplaceAll(text, "*", "") + "\n", cut
		case len(r.Episodes) > 0 && last.outcome == intent.Cordoned:
			return "", 0
		case len(r.Episodes) > 0 && r.Episodes[0].Outcome == string(last.outcome):
			return "What became of the pods is not known.\n", 0
		}
	}
	return "", 0
}

// A simulationResult is the end of a simulation for programs.
type simulationResult struct {
	originReport
	Kind    string         `json:"kind"`
	Event   string         `json:"event"`
	Node    string         `json:"node"`
	Outcome intent.Outcome `json:"outcome,omitempty"` // of the drain; absent: it has not ended
	Left    []string       `json:"left"`              // pods that are still there
	Error   string         `json:"error,omitempty"`
	Undo    string         `json:"undo"`
}

func (s *sentNotice) writeResult(out io.Writer, last progress, err error) error {
	result := simulationResult{
		originReport: s.originReport(), Kind: s.kind.Dashed(), Event: s.notice.ID, Node: s.node.Name,
		Outcome: last.outcome, Left: orEmpty(last.left), Undo: "kubectl uncordon " + s.node.Name,
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
