package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// Pause pauses the handler, and writes what is left in progress. why is for others; empty: what was said before stays.
func (v *Viewer) Pause(ctx context.Context, out io.Writer, why string) error {
	l, err := v.findLease(ctx)
	if err != nil {
		return err
	}
	before, paused := lease.Paused(l)
	text := before
	if !paused || why != "" {
		text = sinceOf(before) + strings.TrimSuffix(": "+why, ": ")
		if err := v.setPaused(ctx, l, &text); err != nil {
			return err
		}
	}
	if paused {
		fmt.Fprintf(out, "The handler was paused already (%s).\n", overview.Clean(before))
	}
	fmt.Fprintf(out, "Paused, by the Lease %s/%s.\n", l.Namespace, l.Name)
	const means = `Within some seconds no node is drained any more. Drains stop where they are: pods that were
asked to leave go on to end, and nodes stay cordoned. AWS goes on: machines end at their deadlines,
and hooks time out.

`
	fmt.Fprint(out, means)
	if since := deserted(lease.LookAgain(ctx, v.client.CoordinationV1(), l)); since != "" {
		fmt.Fprintf(out, "But %s of the Lease %s/%s: no handler goes by it now, and who leads by it next begins paused.\n"+
			"If a handler drains nodes all the same, it has another Lease: see kubectl get leases -A.\n\n",
			since, l.Namespace, l.Name)
	}
	o, err := v.Overview(ctx)
	if err != nil { // it is paused all the same
		fmt.Fprintf(out, "What is left in progress is not known: %s\n", overview.CleanText(err.Error()))
		return nil
	}
	_, err = io.WriteString(out, o.Table(overview.Style{}))
	return err
}

// deserted says that nobody renews a Lease, and since when; empty: somebody does.
func deserted(l *coordinationv1.Lease) string {
	if l.Spec.RenewTime == nil {
		return "there has never been a holder"
	}
	if silent := time.Since(l.Spec.RenewTime.Time); silent > leaderless {
		return "there was no renewal for " + overview.Length(silent)
	}
	return ""
}

// sinceOf is the beginning of the words of a pause: since when it is.
func sinceOf(before string) string {
	const since = "since "
	if at, _, _ := strings.Cut(before, ": "); strings.HasPrefix(at, since) {
		return at
	}
	return since + time.Now().UTC().Format(time.RFC3339)
}

// Resume ends the pause, and says how it was.
func (v *Viewer) Resume(ctx context.Context, out io.Writer) error {
	l, err := v.findLease(ctx)
	if err != nil {
		return err
	}
	why, paused := lease.Paused(l)
	if !paused {
		fmt.Fprintln(out, "The handler is not paused.")
		return nil
	}
	if err := v.setPaused(ctx, l, nil); err != nil {
		return err
	}
	fmt.Fprintf(out, "Resumed, by the Lease %s/%s: the handler goes on with what nodes carry, and with the notices "+
		"that wait. It was paused (%s).\n", l.Namespace, l.Name, overview.Clean(why))
	if since := deserted(lease.LookAgain(ctx, v.client.CoordinationV1(), l)); since != "" {
		fmt.Fprintf(out, "But %s of the Lease %s/%s, so nobody leads, and nothing goes on before a replica does: "+
			"check that the handler's pods run.\n", since, l.Namespace, l.Name)
	}
	return nil
}

// setPaused sets the annotation of the Lease, or removes it where text is nil.
func (v *Viewer) setPaused(ctx context.Context, l *coordinationv1.Lease, text *string) error {
	annotations := map[string]*string{lease.PausedAnnotation: text}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}}) // of texts alone
	leases := v.client.CoordinationV1().Leases(l.Namespace)
	_, err := leases.Patch(ctx, l.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you lack the permission to patch the Lease %s/%s: docs/stop.md has the rights: %w",
			l.Namespace, l.Name, err)
	}
	if err != nil {
		return fmt.Errorf("patch the Lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	return nil
}
