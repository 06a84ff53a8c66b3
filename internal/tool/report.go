package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Report returns what is known of drains that have ended: those of a node, or of all nodes if that is empty, since
// a time, or all if that is zero. Where the leader does not answer it is what nodes carry, and what the Events of the
// node say; Missing says why. The error says that the API server does not tell even that.
func (v *Viewer) Report(ctx context.Context, node string, since time.Time) (*overview.Report, error) {
	r := &overview.Report{At: time.Now(), Node: node, Since: since}
	l, err := v.leader(ctx)
	if err == nil {
		var h overview.History
		if err = v.ask(ctx, l, overview.HistoryPath, &h); err == nil {
			r.Episodes, r.KnownSince = overview.Select(h.Episodes, node, since), h.Since
			made, alone := l.CreationTimestamp.Time, ptr.Deref(l.Spec.LeaseTransitions, 0) == 0 // nobody else has led
			if !since.IsZero() && alone && made.After(since) && len(h.Episodes) < report.Kept {
				r.Since, r.KnownSince = made, made
			}
			r.Current = v.current(ctx, l, node)
			if node != "" && len(r.Episodes) == 0 && r.Current == nil {
				return r, v.mustExist(ctx, node)
			}
			return r, nil
		}
	}
	missing, ok := errors.AsType[unreachable](err)
	if !ok {
		return nil, err
	}
	r.Missing = missing.why
	if err := v.carriedReport(ctx, r); err != nil {
		return nil, fmt.Errorf("%w; the leader was not asked either: %s", err, r.Missing)
	}
	return r, nil
}

// mustExist returns an error if there is no such Node, and nil if that cannot be found out.
func (v *Viewer) mustExist(ctx context.Context, node string) error {
	list, err := v.client.CoreV1().Nodes().List(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: node}))
	if err == nil && len(list.Items) == 0 {
		return fmt.Errorf("there is no node %s, and no drain of one is known", node)
	}
	return nil
}

// current returns the drain of the node that is in progress. That there is no answer now spoils no report.
func (v *Viewer) current(ctx context.Context, l *leader, node string) *overview.Node {
	var o overview.Overview
	if node == "" || v.ask(ctx, l, overview.StatusPath, &o) != nil {
		return nil
	}
	if at := slices.IndexFunc(o.Nodes, func(n overview.Node) bool { return n.Name == node }); at >= 0 {
		return &o.Nodes[at]
	}
	return nil
}

// carriedReport adds to a report what nodes carry, and the Events of its node.
func (v *Viewer) carriedReport(ctx context.Context, r *overview.Report) error {
	options := metav1.ListOptions{} // a node that was given back has no label, and tells of its last drain
	if r.Node != "" {
		options = metav1.SingleObject(metav1.ObjectMeta{Name: r.Node})
	}
	list, err := v.client.CoreV1().Nodes().List(ctx, options)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for k := range list.Items {
		node := &list.Items[k]
		if i, ok, err := cluster.ReadIntent(node); ok && err == nil {
			r.Episodes = append(r.Episodes, report.EpisodesOf(cluster.RefOf(node), i)...)
		}
		if r.Node != "" {
			r.Current = carriedBy(node, r.At)
		}
	}
	slices.SortFunc(r.Episodes, func(a, b overview.Episode) int {
		return cmp.Or(b.Ended.Compare(a.Ended), cmp.Compare(a.Node, b.Node))
	})
	r.Episodes = overview.Select(r.Episodes, r.Node, r.Since)
	if r.Node == "" {
		return nil
	}
	r.Events, err = v.events(ctx, r.Node)
	if apierrors.IsForbidden(err) {
		r.Missing += "; and you lack the permission to list the Events of nodes, which are in namespace default"
		return nil
	}
	return err
}

// events returns the Events of a node, the oldest first. Those of nodes are in the namespace default.
func (v *Viewer) events(ctx context.Context, node string) (all []overview.Event, err error) {
	about := fields.Set{"involvedObject.kind": "Node", "involvedObject.name": node}
	list, err := v.client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: about.String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of node %s: %w", node, err)
	}
	for _, e := range list.Items {
		last := cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
		all = append(all, overview.Event{At: last, Reason: e.Reason, Text: e.Message})
	}
	slices.SortStableFunc(all, func(a, b overview.Event) int { return a.At.Compare(b.At) })
	return all, nil
}
