package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// An Unfinished is a node whose intent has work left.
type Unfinished struct {
	Ref    Ref
	Intent intent.Intent
	// Claimed are the instances that the intent names where the node has no provider id to prove it: that of its notices,
	// and those of hooks, which were dropped from the intent.
	Claimed []string
	// ClaimsHooks: there were such hooks.
	ClaimsHooks bool
}

// Unfinished returns the nodes whose intent has work left. It asks the API server for those that are labelled so,
// because the watch may lack the last writes of the previous leader, and for those that the watch shows without their
// label: others may take labels off. unreadable names each node whose intent cannot be read; these are not returned,
// and there is nothing to try again.
func (c *Cluster) Unfinished(ctx context.Context) (found []Unfinished, unreadable, err error) {
	const unfinished = StateLabel + " in (" + StateDraining + "," + StateWaiting + ")"
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		LabelSelector: unfinished, FieldSelector: c.seen.String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the nodes with %s: %w", unfinished, err)
	}
	list.Items = append(list.Items, c.readAll(ctx, c.unlabelled())...)
	var errs []error
	for k := range list.Items {
		node := &list.Items[k]
		raw, ok, err := readAnnotation(node)
		switch {
		case err != nil:
			errs = append(errs, err)
		case ok && !raw.Finished() && c.Serves(raw):
			u := Unfinished{Ref: RefOf(node), Intent: raw.ForInstance(InstanceID(node), taintPrefix).Current(time.Now())}
			if u.Ref.Instance == "" {
				if raw.Instance != "" {
					u.Claimed = append(u.Claimed, raw.Instance)
				}
				u.ClaimsHooks = len(raw.Hooks) > 0
				for _, h := range raw.Hooks {
					u.Claimed = append(u.Claimed, h.Instance)
				}
			}
			found = append(found, u)
		}
	}
	return found, errors.Join(errs...), nil
}

// readAll reads Nodes, without those that are gone, many at once. All drains wait for it, so one that is not read soon
// is as the watch shows it by then.
func (c *Cluster) readAll(ctx context.Context, refs []Ref) (there []corev1.Node) {
	const atOnce, soon = 32, 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	nodes := make([]*corev1.Node, len(refs))
	var reading errgroup.Group
	reading.SetLimit(atOnce)
	for k, ref := range refs {
		reading.Go(func() error {
			node, err := c.Read(ctx, ref)
			there := err == nil
			if err != nil && !errors.Is(err, ErrNodeGone) {
				node, there = c.Look(ref)
			}
			if there {
				nodes[k] = node
			}
			return nil
		})
	}
	_ = reading.Wait()
	for _, node := range nodes {
		if node != nil {
			there = append(there, *node)
		}
	}
	return there
}

// ReadClaimed reads what a node without a provider id carries, and remembers that it is the instance of the ref, as EC2
// has told. It writes nothing: somebody may have uncordoned the node.
func (c *Cluster) ReadClaimed(ctx context.Context, ref Ref) (intent.Intent, error) {
	ref = c.Identify(ref)
	node, err := c.Read(ctx, ref)
	if err != nil {
		return intent.Intent{}, err
	}
	i, ok, err := readAnnotation(node)
	if !ok || err != nil { // there is nothing to go on with
		return intent.Intent{}, ErrNodeGone
	}
	return i.ForInstance(cmp.Or(InstanceID(node), ref.Instance), taintPrefix).Current(time.Now()), nil
}

// unlabelled are the nodes with work left that have lost the label which says so.
func (c *Cluster) unlabelled() (refs []Ref) {
	c.All(func(node *corev1.Node) {
		if state := node.Labels[StateLabel]; state == StateDraining || state == StateWaiting {
			return
		}
		if i, ok, err := readAnnotation(node); ok && err == nil && !i.Finished() && c.Serves(i) {
			refs = append(refs, RefOf(node))
		}
	})
	return refs
}

// Carried calls visit for each notice that a node carries which this handler carries out or reverts, according to the
// watch. The nodes are shared and trimmed.
func (c *Cluster) Carried(visit func(node *corev1.Node, e intent.Entry)) {
	c.intents(func(*corev1.Node) bool { return true }, c.Reverts, func(node *corev1.Node, i intent.Intent) {
		for _, e := range i.Entries[:min(len(i.Entries), intent.MaxEntries)] { // a kubelet can write more
			visit(node, e)
		}
	})
}

// intents calls visit for each intent that can be read, of these nodes and that is ours, according to the watch. of
// takes less time than to read an intent.
func (c *Cluster) intents(
	of func(*corev1.Node) bool, ours func(intent.Intent) bool, visit func(*corev1.Node, intent.Intent),
) {
	c.All(func(node *corev1.Node) {
		if node.Annotations[IntentAnnotation] == "" || !of(node) {
			return
		}
		if i, ok, err := ReadIntent(node); ok && err == nil && ours(i) {
			visit(node, i)
		}
	})
}

// Unseen says on which nodes with a label of ours the intent cannot be read, so that nobody does what it asks for;
// empty: on none.
func (c *Cluster) Unseen() string {
	var names []string
	c.All(func(node *corev1.Node) {
		if _, _, err := ReadIntent(node); err != nil && node.Labels[StateLabel] != "" {
			names = append(names, node.Name)
		}
	})
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("what is left to do on %d of the nodes, such as %s: the annotation %s cannot be read; "+
		"if the node has to stay, remove it and uncordon the node", len(names), slices.Min(names), IntentAnnotation)
}

// Deaf says on which nodes the pod gets no answer of the instance metadata, so that its notices are missed; empty: on
// none. to is the Lease that they report to, as namespace/name.
func (c *Cluster) Deaf(to string) string {
	var names []string
	var since time.Time
	c.Reported(func(node *corev1.Node) {
		if r, err := ReadReport(node); err == nil && r.To == to && !r.Deaf.IsZero() {
			names, since = append(names, node.Name), intent.Earlier(since, r.Deaf)
		}
	})
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("notices of %d of the nodes, such as %s: "+
		"the pod there gets no answer of the instance metadata, since %s",
		len(names), slices.Min(names), since.Format(time.RFC3339))
}

// Reported calls visit for each node whose pod has reported something, according to the watch. The nodes are shared and
// trimmed.
func (c *Cluster) Reported(visit func(node *corev1.Node)) {
	c.All(func(node *corev1.Node) {
		if node.Annotations[ReportAnnotation] != "" {
			visit(node)
		}
	})
}

// EachIntent calls visit for each node that carries an intent for this queue, according to the watch.
func (c *Cluster) EachIntent(visit func(ref Ref, i intent.Intent)) {
	c.intents(func(*corev1.Node) bool { return true }, c.Serves,
		func(node *corev1.Node, i intent.Intent) { visit(RefOf(node), i) })
}

// ReadyCordoned calls visit for each node that is ready and cordoned, and carries an intent of this handler, according
// to the watch.
func (c *Cluster) ReadyCordoned(visit func(ref Ref, i intent.Intent)) {
	c.intents(func(node *corev1.Node) bool { return node.Spec.Unschedulable && Ready(node) }, c.Reverts,
		func(node *corev1.Node, i intent.Intent) { visit(RefOf(node), i) })
}

// Labelled are the names of the nodes that have a label, according to the watch.
func (c *Cluster) Labelled(key string) (names []string) {
	c.All(func(node *corev1.Node) {
		if _, is := node.Labels[key]; is {
			names = append(names, node.Name)
		}
	})
	slices.Sort(names)
	return names
}

// Uncordoned returns the nodes that somebody else has uncordoned after their drain, or while the next
// drain is held back: the intent still says that we cordoned them.
func (c *Cluster) Uncordoned() (refs []Ref) {
	c.intents(func(node *corev1.Node) bool { return !node.Spec.Unschedulable }, c.Reverts,
		func(node *corev1.Node, i intent.Intent) {
			if i.UncordonedAfter(false) || i.UncordonedHeldBack(false) {
				refs = append(refs, RefOf(node))
			}
		})
	return refs
}

// ReadyAgain reports whether the node became ready after we had tainted it out of
// service. It compares the times of the kubelet's clock alone, which may differ from ours.
func (c *Cluster) ReadyAgain(ref Ref) bool {
	node, there := c.Look(ref)
	if !there || !Ready(node) {
		return false
	}
	i, ok, err := ReadIntent(node)
	return ok && err == nil && !i.OutOfServiceAt.IsZero() && !ReadySince(node).Equal(i.ReadyAt)
}
