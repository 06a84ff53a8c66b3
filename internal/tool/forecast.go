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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// A WhatIf asks what a notice would do to a node, or to each node of the cluster by itself.
type WhatIf struct {
	Kind notice.Kind // one that is Sendable
	Node string      // empty with All
	All  bool
	JSON bool
}

// Run prints what would happen, and reports whether pods would be lost.
func (w WhatIf) Run(ctx context.Context, s *Session, out io.Writer) (lost bool, err error) {
	targets, view, err := w.targets(ctx, s)
	if err != nil {
		return false, err
	}
	now := time.Now().Truncate(time.Second)
	s.lookForPause(ctx)
	s.lookUpAll(ctx, targets)
	var all []forecast
	for _, t := range targets {
		f, err := t.forecast(view, now)
		if err != nil {
			return false, err
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, worstFirst)
	switch {
	case w.JSON:
		err = writeForecasts(out, s, w.Kind, all)
	case w.All:
		err = printForecasts(out, s, w.Kind, all)
	default:
		err = all[0].write(out)
	}
	return slices.ContainsFunc(all, func(f forecast) bool { return len(f.lost()) > 0 }), err
}

// targets returns the nodes that are asked about, and what is known of their pods.
func (w WhatIf) targets(ctx context.Context, s *Session) (all []*target, view *rehearsal.Snapshot, err error) {
	if w.All {
		nodes, failed := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if failed != nil {
			return nil, nil, fmt.Errorf("list the nodes: %w", failed)
		}
		for k := range nodes.Items {
			if n := &nodes.Items[k]; onEC2(n) {
				all = append(all, s.target(w.Kind, n))
			}
		}
		if len(all) == 0 {
			return nil, nil, errors.New("no node of the cluster is an EC2 instance")
		}
		view, err = rehearsal.ReadAll(ctx, s.client)
	} else {
		t, failed := s.targetNamed(ctx, w.Kind, w.Node)
		if failed != nil {
			return nil, nil, failed
		}
		all = []*target{t}
		view, err = rehearsal.Read(ctx, s.client, w.Node)
	}
	if err == nil {
		view.ReadTargets(ctx, s.client, loadbalancer.OfCluster(s.client.CoreV1().RESTClient()))
	}
	return all, view, err
}

// onEC2 reports whether an instance can be behind the node.
func onEC2(n *corev1.Node) bool {
	d := doctorNode(n)
	return (notice.IsInstanceID(d.InstanceID) || d.ProviderID == "") &&
		n.Labels["eks.amazonaws.com/compute-type"] != "fargate"
}

// lookUpAll asks AWS what the handler would ask about the nodes. It notes what remains
// unknown.
func (s *Session) lookUpAll(ctx context.Context, targets []*target) {
	if !slices.ContainsFunc(targets, (*target).asksAWS) {
		return
	}
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	if s.Region == "" { // there is no queue to name it
		s.Region = targets[0].notice.Region
	}
	instances, err := s.instancesOf(ctx, targets)
	if err != nil {
		what := "whether instances have the tag " + s.ManagedTag + " is unknown; the answer assumes that they have it"
		if !s.CheckTag {
			what = "the instances are unknown"
		}
		s.origin.note(fmt.Sprintf("%s: %v", what, err))
	}
	hooks := hookCache{}
	var without []string // nodes
	var why error        // of the first
	for _, t := range targets {
		instance, known := instances[t.node.Name]
		if err == nil && !known {
			s.origin.note(t.absentError().Error())
		}
		if known {
			t.setInstance(instance)
		}
		if t.kind != notice.ASGTerminate {
			continue
		}
		if err := t.lookUpHook(ctx, hooks); err != nil {
			without, why = append(without, t.node.Name), cmp.Or(why, err)
		}
	}
	if len(without) > 0 {
		s.origin.note(fmt.Sprintf(
			"the hook of %s is unknown; the answer assumes a timeout of node-termination-grace-period: %v; the nodes: %s",
			overview.Count(len(without), "node"), why, strings.Join(evacuation.Names(without, 5), ", ")))
	}
}

// instancesOf returns the instances of the nodes by the name of the node.
func (s *Session) instancesOf(ctx context.Context, targets []*target) (map[string]doctor.Instance, error) {
	if err := s.connectAWS(ctx); err != nil {
		return nil, err
	}
	var nodes []doctor.Node
	for _, t := range targets {
		nodes = append(nodes, doctorNode(t.node))
	}
	return s.gatherer.InstancesBehind(ctx, nodes)
}

// A forecast is what would become of a node.
type forecast struct {
	*target
	plan
	at time.Time // of the notice
}

func (t *target) forecast(view *rehearsal.Snapshot, now time.Time) (forecast, error) {
	r, err := t.rehearse(view, now)
	return forecast{t, r, now}, err
}

// whyNotDrained says why the handler would move no pod; empty if it would.
func (f forecast) whyNotDrained() string {
	why, _ := f.whyIgnored(f.outcome)
	switch {
	case why != "":
		return "the handler would ignore the notice: " + why
	case f.paused != "":
		return f.paused
	case f.DryRun:
		return "the handler would do nothing: dry-run is on"
	case f.cordonsOnly(f.outcome):
		return fmt.Sprintf("the node would be cordoned, and its pods would stay (%s)", f.Rule)
	}
	return ""
}

// lost returns the pods that would be lost. If the handler moves none, these are all pods that
// would have to leave.
func (f forecast) lost() []string {
	if f.whyNotDrained() == "" {
		return f.Summary().Lost
	}
	if f.kind == notice.RebalanceRecommendation || f.Why == decision.WhyNotSpot {
		return nil // nothing goes away
	}
	return f.Summary().Names
}

func worstFirst(a, b forecast) int {
	x, y := a.Summary(), b.Summary()
	return cmp.Or(
		-cmp.Compare(len(a.lost()), len(b.lost())), -cmp.Compare(x.Blocked, y.Blocked), -cmp.Compare(x.Forced, y.Forced),
		-cmp.Compare(len(a.down()), len(b.down())), -cmp.Compare(x.Pods, y.Pods),
		cmp.Compare(a.node.Name, b.node.Name),
	)
}
