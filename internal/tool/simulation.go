package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// A Simulation sends a notice for a node and follows its drain.
type Simulation struct {
	Kind notice.Kind // one that is Sendable
	Node string
	Yes  bool // do not ask
	// Print the notice and send nothing.
	PrintOnly bool
	// JSON is the form of the result; it leaves no room for a question.
	JSON bool
}

// Run simulates the notice. An error says why nothing was sent, or why the drain did
// not end as it should.
func (sim Simulation) Run(ctx context.Context, session *Session, term Terminal) error {
	if session.Queue.None() {
		return errors.New("the handler has no queue (queue-url is none), so there is nothing to send a notice to: " +
			"use what-if, or interrupt a spot instance with AWS Fault Injection Service")
	}
	t, err := session.targetNamed(ctx, sim.Kind, sim.Node)
	if err != nil {
		return err
	}
	if err := t.connectAWS(ctx); err != nil {
		return err
	}
	if !sim.PrintOnly {
		t.readLease(ctx)
	}
	text := term.Out
	if sim.PrintOnly || sim.JSON {
		text = term.ErrOut
	}
	if _, err := io.WriteString(text, t.origin.text(t.identity)); err != nil {
		return err
	}
	if err := t.lookUp(ctx); err != nil {
		return err
	}
	if sim.PrintOnly {
		_, err := io.WriteString(term.Out, t.noticeAt(time.Now()).Body())
		return err
	}
	view, err := rehearsal.Read(ctx, t.client, t.node.Name)
	if err != nil {
		return err
	}
	if err := sim.confirm(ctx, t, view, term); err != nil {
		return err
	}
	return t.sendAndFollow(ctx, sim, view, term)
}

// confirm says what would happen now and asks whether to go on. It returns an error if
// the handler would not act on the notice, or if the answer is no.
func (sim Simulation) confirm(ctx context.Context, t *target, view *rehearsal.Snapshot, term Terminal) error {
	now, err := t.rehearse(view, time.Now())
	if err != nil {
		return err
	}
	if err := t.whyRefused(now); err != nil {
		return err
	}
	if t.idle != "" {
		return errors.New(t.idle)
	}
	f := forecast{target: t, outcome: now, at: time.Now()}
	for _, use := range f.usesOfLimits(ctx) {
		if isFull(&use) {
			return errors.New(useText(&use))
		}
	}
	if r := t.origin.release; r != nil && !r.ready {
		return fmt.Errorf("no replica of %s is ready: nobody would act on the notice", r)
	}
	if sim.Yes {
		return nil
	}
	question := fmt.Sprintf("this will drain %s: %s; continue?", sim.Node, now.Summary())
	if t.cordonsOnly(now) {
		question = fmt.Sprintf("this will cordon %s, and its pods stay there (%s); continue?", sim.Node, now.Rule)
	}
	yes, err := term.ask(ctx, question)
	switch {
	case err != nil:
		return fmt.Errorf("nothing was sent: %w", err)
	case !yes:
		return errors.New("nothing was sent: answer y, or set --yes")
	}
	return nil
}

// readLease finds out whether the handler is paused, whether somebody leads, and which pod. It notes if the Lease
// cannot be read.
func (s *Session) readLease(ctx context.Context) {
	if !s.LeaderElect { // each pod of the handler leads
		s.leader = types.NamespacedName{Namespace: s.PodNamespace, Name: s.PodName}
	}
	s.lease = types.NamespacedName{Namespace: s.viewer().namespace, Name: s.LeaseName}
	l, err := s.client.CoordinationV1().Leases(s.lease.Namespace).Get(ctx, s.lease.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		l = lease.LookAgain(ctx, s.client.CoordinationV1(), l)
		why, paused := lease.Paused(l)
		since := deserted(l)
		switch {
		case paused:
			s.idle = overview.PausedText(why)
		case since != "" && s.LeaderElect && !s.Queue.None(): // without a queue the pods on the nodes drain
			s.idle = fmt.Sprintf("nobody leads, so no notice is acted on: %s of the Lease %s/%s", since, l.Namespace, l.Name)
		}
		if pod := holderOf(l); pod != "" && s.LeaderElect {
			s.leader = types.NamespacedName{Namespace: l.Namespace, Name: pod}
		}
	case s.origin.release != nil && apierrors.IsNotFound(err):
		if s.LeaderElect && !s.Queue.None() {
			s.idle = fmt.Sprintf("nobody has led so far, so no notice is acted on: there is no Lease %s", s.lease)
		}
	default:
		s.origin.note(fmt.Sprintf("it is not known whether the handler is paused: %v", err))
	}
}

// viewer returns what asks the leader of the session's handler.
func (s *Session) viewer() *Viewer {
	v := &Viewer{client: s.client, namespace: s.namespace, lease: s.LeaseName}
	if r := s.origin.release; r != nil {
		v.namespace = r.namespace
	}
	return v
}

// whyRefused returns an error if the handler would not act on the notice, so that there
// would be nothing to follow.
func (t *target) whyRefused(o outcome) error {
	why, remedy := t.whyIgnored(o)
	switch {
	case why != "":
		return fmt.Errorf("the handler would ignore the notice: %s\n    %s", why, remedy)
	case o.Follows:
		return fmt.Errorf("node %s was drained already, and this notice would only be a consequence of that: "+
			"the handler starts no second drain\n    kubectl uncordon %[1]s", t.node.Name)
	case t.kind == notice.CapacityBlockExpiration:
		return fmt.Errorf("the notice is about all instances of a Capacity Block: the handler would drain other nodes too\n"+
			"    simulate %s, which is about one instance", notice.CapacityReservationInterruption.Dashed())
	case o.Intent.ReplacesFirst():
		return fmt.Errorf("rule %s has the group replace the instance, and so terminate it, before the drain\n"+
			"    what-if says what it would do", o.Rule)
	case o.begin().After(time.Now()):
		return fmt.Errorf("rule %s lets the drain begin at %s: nothing is to be seen before", o.Rule,
			o.begin().UTC().Format(time.RFC3339))
	case t.DryRun:
		return errors.New("the handler would only log the notice, because dry-run is on")
	}
	return nil
}
