package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/controller"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/whatif"
)

// sendable are the notices that simulate sends, and what-if asks about.
var sendable = []sample.Kind{sample.Spot, sample.Rebalance, sample.StateChange, sample.Health, sample.ASGTerminate}

// kindWords are the kinds for the command line.
func kindWords() string {
	var words []string
	for _, k := range sendable {
		words = append(words, string(k))
	}
	return strings.Join(words, "|")
}

// parseKind takes the one argument of a command.
func parseKind(args []string) (sample.Kind, mistakes) {
	if len(args) == 0 {
		return "", mistakes{{"the notice", "is missing: one of " + kindWords()}}
	}
	for _, k := range sendable {
		if args[0] == string(k) {
			return k, leftOver(args[1:])
		}
	}
	return "", append(mistakes{{fmt.Sprintf("%q", args[0]), "is no notice: one of " + kindWords()}}, leftOver(args[1:])...)
}

// nodeFlag adds the flag that names the node.
func nodeFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("node", "", "Name of the node. Required.")
}

// A scene is a notice for a node that nobody has sent so far.
type scene struct {
	*config
	client   kubeClients
	aws      aws.Config // empty before lookUp, as is gatherer
	gatherer *doctor.Gatherer
	node     *corev1.Node
	notice   sample.Notice
	tags     map[string]string // of the instance; nil: not known
	limits   asg.Limits        // of the hook; zero: not known
}

// setScene finds the node. lookUp finds what is behind it.
func setScene(ctx context.Context, c *config, kind sample.Kind, name string) (*scene, error) {
	klog.SetLogger(logr.Discard())
	s := &scene{config: c}
	var err error
	if s.client, err = commandClients(c, commandPatience); err != nil {
		return nil, err
	}
	if s.node, err = s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	s.notice = sample.Notice{
		Kind: kind, ID: string(uuid.NewUUID()), Instance: cluster.InstanceID(s.node),
		Partition: partitionOf(c.region), Account: c.queue.account, Region: c.region, Zone: s.node.Labels[corev1.LabelTopologyZone],
		Token: string(uuid.NewUUID()),
	}
	if s.notice.Zone == "" {
		s.notice.Zone = c.region + "a"
	}
	return s, nil
}

// lookUp asks EC2 about the node's instance, and Auto Scaling about its hook.
func (s *scene) lookUp(ctx context.Context) error {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %s", patience))
	defer cancel()
	var err error
	if s.aws, err = awsConfig(ctx, s.config); err != nil {
		return err
	}
	s.gatherer = gathererOf(s.aws, s.config)
	if s.notice.Instance != "" && !s.checkTag && s.notice.Kind != sample.ASGTerminate {
		return nil // as for the handler: nothing to ask
	}
	instance, err := s.gatherer.Instance(ctx, doctor.Node{Name: s.node.Name, ProviderID: s.node.Spec.ProviderID, InstanceID: s.notice.Instance})
	if err != nil {
		return fmt.Errorf("find the instance of node %s: %w", s.node.Name, err)
	}
	s.notice.Instance, s.tags = instance.ID, instance.Tags
	if s.notice.Kind != sample.ASGTerminate {
		return nil
	}
	if s.notice.Group = instance.Tags[doctor.GroupTag]; s.notice.Group == "" {
		return fmt.Errorf("instance %s of node %s is in no Auto Scaling group", instance.ID, s.node.Name)
	}
	hook, err := s.gatherer.TerminationHook(ctx, s.notice.Group)
	if err != nil {
		return fmt.Errorf("find the hook: %w", err)
	}
	s.notice.Hook, s.limits = hook.Name, asg.Limits{Timeout: hook.Timeout, Global: hook.Global}
	return nil
}

// at is the notice as if it were sent at a time.
func (s *scene) at(when time.Time) sample.Notice {
	const retirement = 10 * time.Minute // a real one is days ahead; this shows that it is waited for
	n := s.notice
	n.Time, n.Start = when, when.Add(retirement)
	return n
}

// outcome is what the notice would mean for the node if it were sent at a time.
func (s *scene) outcome(when time.Time) (controller.Outcome, error) {
	n := s.at(when)
	if n.Instance == "" {
		n.Instance = "i-00000000000000000" // what it would be called does not matter
	}
	if n.Hook == "" {
		n.Group, n.Hook = "unknown", "unknown"
	}
	parsed, err := notice.Parse(n.Body())
	if err != nil {
		return controller.Outcome{}, fmt.Errorf("write the notice: %w", err)
	}
	carried, _, err := cluster.ReadIntent(s.node)
	if err != nil {
		carried = cluster.Intent{} // the handler replaces what cannot be read
	}
	return controller.Preview(parsed, s.limits, newController(s.config, logr.Discard()).Policy, carried, when), nil
}

// rehearse plays the drain through that the notice would bring if it were sent at a time.
func (s *scene) rehearse(ctx context.Context, when time.Time) (controller.Outcome, *whatif.Answer, error) {
	o, err := s.outcome(when)
	if err != nil {
		return o, nil, err
	}
	end := o.Terms.Deadline
	if end.IsZero() {
		end = when.Add(s.nodeGracePeriod)
	}
	answer, err := whatif.Ask(ctx, s.client, whatif.Question{
		Node: s.node, Terms: o.Terms, Start: when, End: end, Filter: filterOf(s.config), Grace: s.podGracePeriod,
		Self: types.NamespacedName{Namespace: s.podNamespace, Name: s.podName},
	})
	return o, answer, err
}

// unmanaged is why the handler would leave a notice of the instance alone; nil if it would not.
func (s *scene) unmanaged() error {
	if _, tagged := s.tags[s.managedTag]; s.checkTag && s.tags != nil && !tagged {
		return fmt.Errorf("instance %s has no tag %s: the handler leaves its notices alone", s.notice.Instance, s.managedTag)
	}
	return nil
}

// missingNode is the mistake of having named no node; none if there is one.
func missingNode(name string) mistakes {
	if name != "" {
		return nil
	}
	return mistakes{{"node", "is required: the name of a node"}}
}

// partitionOf is the partition of a region.
// https://docs.aws.amazon.com/general/latest/gr/rande.html
func partitionOf(region string) string {
	for _, p := range []struct{ prefix, partition string }{
		{"cn-", "aws-cn"}, {"us-gov-", "aws-us-gov"}, {"us-iso-", "aws-iso"}, {"us-isob-", "aws-iso-b"}, {"eu-isoe-", "aws-iso-e"}, {"us-isof-", "aws-iso-f"}, {"eusc-", "aws-eusc"},
	} {
		if strings.HasPrefix(region, p.prefix) {
			return p.partition
		}
	}
	return "aws"
}
