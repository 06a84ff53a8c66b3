package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/rehearsal"
)

// sendable are the notices that simulate sends and what-if asks about, as samples have them.
var sendable = map[notice.Kind]sample.Kind{
	notice.SpotInterruption:        sample.Spot,
	notice.RebalanceRecommendation: sample.Rebalance,
	notice.StateChange:             sample.StateChange,
	notice.ScheduledChange:         sample.Health,
	notice.ASGTerminate:            sample.ASGTerminate,

	notice.CapacityReservationInterruption: sample.CapacityReservation,
	notice.CapacityBlockExpiration:         sample.CapacityBlock,
}

// Sendable reports whether there is a sample of such a notice.
func Sendable(kind notice.Kind) bool {
	_, ok := sendable[kind]
	return ok
}

// A target is a node, and a notice for it that nobody has sent so far.
type target struct {
	*Session
	node    *corev1.Node
	kind    notice.Kind
	notice  sample.Notice
	tags    map[string]string // of the instance; nil: not known
	notSpot bool              // EC2 says so of the instance
	limits  notice.HookLimits // of the hook; zero: not known
	code    string            // of a scheduled change; empty: the sample's
	start   time.Duration     // from the notice to the scheduled change; zero: as noticeAt says
}

// target returns the target without asking AWS; lookUp does that.
func (s *Session) target(kind notice.Kind, node *corev1.Node) *target {
	region := cmp.Or(doctor.RegionOf(node), s.Region)
	return &target{Session: s, node: node, kind: kind, notice: sample.Notice{
		Kind: sendable[kind], ID: string(uuid.NewUUID()), Instance: cluster.InstanceID(node),
		Partition: partitionOf(region), Account: cmp.Or(s.EventAccounts...), Region: region,
		Zone: cmp.Or(node.Labels[corev1.LabelTopologyZone], region+"a"), Token: string(uuid.NewUUID()),
	}}
}

// targetNamed returns the target for the node with the name.
func (s *Session) targetNamed(ctx context.Context, kind notice.Kind, name string) (*target, error) {
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	if id := cluster.InstanceID(node); id != "" && !notice.IsInstanceID(id) {
		return nil, fmt.Errorf("node %s: no notice can name its instance: its provider id is %q, and %s is not "+
			"an instance id (i- and 8 to 17 hex digits)", name, node.Spec.ProviderID, id)
	}
	return s.target(kind, node), nil
}

// asksAWS reports whether the handler would ask AWS about the node.
func (t *target) asksAWS() bool {
	return !t.ByMetadata() && (t.notice.Instance == "" || t.CheckTag || t.kind == notice.ASGTerminate)
}

// lookUp asks EC2 about the node's instance, and Auto Scaling about its hook.
func (t *target) lookUp(ctx context.Context) error {
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	if !t.asksAWS() {
		return nil
	}
	instances, err := t.gatherer.InstancesBehind(ctx, []doctor.Node{doctor.NodeOf(t.node)})
	if err != nil {
		return fmt.Errorf("find the instance of node %s: %w", t.node.Name, err)
	}
	instance, known := instances[t.node.Name]
	if !known {
		return t.absentError()
	}
	t.setInstance(instance)
	if t.kind == notice.ASGTerminate {
		return t.lookUpHook(ctx, map[string]doctor.Answer[doctor.Hook]{})
	}
	return nil
}

// lookUpHook asks Auto Scaling about the hook of the instance, whose tags are known, once for each group. known has the
// hooks of the groups that were asked for.
func (t *target) lookUpHook(ctx context.Context, known map[string]doctor.Answer[doctor.Hook]) error {
	if t.tags == nil {
		return errors.New("its instance is unknown")
	}
	if t.notice.Group = t.tags[doctor.GroupTag]; t.notice.Group == "" {
		return fmt.Errorf("instance %s of node %s is in no Auto Scaling group", t.notice.Instance, t.node.Name)
	}
	answer, asked := known[t.notice.Group]
	if !asked {
		answer.Value, answer.Err = t.gatherer.TerminationHook(ctx, t.notice.Group)
		known[t.notice.Group] = answer
	}
	if answer.Err != nil {
		return fmt.Errorf("find the hook: %w", answer.Err)
	}
	hook := answer.Value
	t.notice.Hook, t.limits = hook.Name, notice.HookLimits{Timeout: hook.Timeout, Global: hook.Global}
	return nil
}

// setInstance records what EC2 says about the instance.
func (t *target) setInstance(instance doctor.Instance) {
	t.notice.Instance, t.tags, t.notice.Reservation = instance.ID, instance.Tags, instance.Reservation
	t.notice.Account = cmp.Or(instance.Account, t.notice.Account)
	t.notSpot = !instance.Spot
}

// mayBeElsewhere reports whether the node has a provider id that is none of EC2, and no instance is known that has its
// name.
func (t *target) mayBeElsewhere() bool {
	return t.notice.Instance == "" && t.node.Spec.ProviderID != ""
}

// absentError says who looked for the instance, and where; or that nobody did.
func (t *target) absentError() error {
	what := "an instance with the private DNS name " + t.node.Name
	switch {
	case t.notice.Instance != "":
		what = "instance " + t.notice.Instance
	case t.mayBeElsewhere():
		what += ", as the provider id " + t.node.Spec.ProviderID + " is none of EC2,"
	}
	return fmt.Errorf("EC2 in %s, asked as %s, does not know %s of node %s: is it in another account or region?",
		t.Region, t.identity.aws, what, t.node.Name)
}

// noticeAt returns the notice as if it were sent at a time.
func (t *target) noticeAt(when time.Time) sample.Notice {
	const retirement = 10 * time.Minute // a real one is days ahead; this is enough to see that the handler waits
	n := t.notice
	n.Time, n.Start = when, when.Add(cmp.Or(t.start, retirement))
	return n
}

// parsedAt returns the notice as the handler would read it.
func (t *target) parsedAt(when time.Time) (notice.Notice, error) {
	n := t.noticeAt(when)
	n.Instance = cmp.Or(n.Instance, "i-00000000000000000") // any id will do
	n.Reservation = cmp.Or(n.Reservation, "cr-00000000000000000")
	if n.Hook == "" {
		n.Group, n.Hook = "unknown", "unknown"
	}
	parsed, err := notice.Parse(n.Body())
	if err != nil {
		return notice.Notice{}, fmt.Errorf("write the notice: %w", err)
	}
	if t.ByMetadata() { // the metadata names no hook
		parsed.Hook = notice.Hook{}
	}
	if t.code != "" && parsed.Kind == notice.ScheduledChange {
		parsed.Detail = t.code
	}
	return parsed.OnType(t.node.Labels[corev1.LabelInstanceTypeStable]), nil
}

// preview returns what the notice would mean for the node if it were sent at a time.
func (t *target) preview(when time.Time) (outcome, error) {
	parsed, err := t.parsedAt(when)
	if err != nil {
		return outcome{}, err
	}
	carried, _, _ := cluster.ReadIntent(t.node) // the handler replaces what cannot be read
	subject := decision.Subject{
		Tags: t.tags, NotSpot: t.notSpot, Limits: t.limits, Carried: carried, Cordoned: t.node.Spec.Unschedulable,
		Labels: t.node.Labels,
	}
	p := t.policy().Preview(parsed, subject, when)
	by, _ := t.policy().Drains(p.Intent, t.node.Labels)
	return outcome{Preview: p, parsed: parsed, Terms: nodedrain.TermsOf(p.Intent), By: by}, nil
}

// An outcome is what a notice would mean for a node, and for its drain.
type outcome struct {
	decision.Preview
	parsed notice.Notice
	Terms  evacuation.Terms
	By     intent.By // who would get the pods off the node

	unreported bool // no pod on the node tells the leader, and nothing else does

	*rehearsal.Report // of its pods; nil before rehearse
}

// begin is when the drain would begin; zero: at once.
func (o outcome) begin() time.Time { return o.Intent.Terms().NotBefore }

// cordonsOnly reports whether the node would be cordoned, and that is all.
func (t *target) cordonsOnly(o outcome) bool { return decision.CordonsOnly(o.Intent, t.policy()) }

// rehearse plays the drain that the notice would start if it were sent at a time.
func (t *target) rehearse(view *rehearsal.Snapshot, when time.Time) (outcome, error) {
	o, err := t.preview(when)
	if err != nil {
		return o, err
	}
	start := when
	if begin := o.begin(); begin.After(when) { // the drain counts its notice from then on
		start = begin
		o.Terms.NoticedAt, o.Terms.CordonedAt = begin, begin
	}
	end := cmp.Or(o.Terms.Deadline, start.Add(t.NodeGracePeriod))
	o.unreported = t.Queue.None() && !slices.ContainsFunc(view.On(t.node.Name), func(p *corev1.Pod) bool {
		return doctor.PodOf(p).ReportsTo(t.lease.Namespace, t.lease.Name)
	})
	o.Report = view.Run(rehearsal.Request{
		Node: t.node, Terms: o.Terms, Start: start, End: end,
		Surge: t.SurgeSingletons, Filter: app.Filter(t.Options), Rules: t.file.Rules, Grace: t.PodGracePeriod,
		Self: t.leader, Volumes: !t.IMDS,
	})
	return o, nil
}

// whyIgnored says why the handler would ignore the notice, and what would change that;
// empty if it would not ignore it.
func (t *target) whyIgnored(o outcome) (why, remedy string) {
	n := t.notice
	switch {
	case t.ByMetadata() && !app.Reports(t.Options, t.kind):
		return "without a queue nobody tells of it: no pod looks for it in the metadata",
			"compare docs/imds.md, and the options enable-… of the IMDS mode"
	case o.unreported:
		return "no pod that is ready on the node reads its metadata, and there is no queue",
			"look at the pods of the DaemonSet"
	case !o.Ignored:
	case o.Rule == decision.RuleLeaveAlone:
		return "its label " + decision.LeaveAloneLabel + " says so",
			"kubectl label node " + t.node.Name + " " + decision.LeaveAloneLabel + "-"
	case o.Why == decision.WhyIgnoredByRule, o.Why == decision.WhyNotifiedByRule:
		return fmt.Sprintf("rule %s of the policy says so (%s)", o.Rule, o.Why), ""
	case o.Why == decision.WhyNotSpot:
		return fmt.Sprintf("EC2 says that instance %s is no spot instance, and only those get such a notice", n.Instance),
			"simulate " + notice.ScheduledChange.Dashed() + ", which any instance can get"
	case o.Why == decision.WhyUnmanaged:
		return fmt.Sprintf("instance %s has no tag %s", n.Instance, t.ManagedTag),
			fmt.Sprintf("aws ec2 create-tags --region %s --resources %s --tags 'Key=%s,Value='",
				n.Region, n.Instance, t.ManagedTag)
	case n.Region != t.Region:
		return fmt.Sprintf("node %s is in %s and the queue in %s", t.node.Name, n.Region, t.Region),
			"install a handler with a queue in " + n.Region
	default:
		accounts := strings.Join(t.EventAccounts, ",")
		return fmt.Sprintf("it would be of account %s, which is not in event-accounts (%s)", n.Account, accounts),
			"set event-accounts to " + strings.Join(append(slices.Clone(t.EventAccounts), n.Account), ",")
	}
	return "", ""
}
