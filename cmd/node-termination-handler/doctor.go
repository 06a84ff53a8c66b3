package main

import (
	"context"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
)

// The forms of doctor's output.
const (
	outputText = "text"
	outputJSON = "json"
)

func (p *program) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with the installation.",
		Long: `Looks at everything that has to be right on the day of an interruption: credentials, the queue and
its policy, the rules of EventBridge, rights in AWS and in the cluster, every node and its Auto
Scaling group. It reads the options of the handler, runs in its pod or beside the cluster, before or
after installing, and changes nothing. Each line that is not well says what to do.

Exit status: 0 all is well, as far as it may be asked; 1 something is broken; 3 there are warnings.`,
	}
	output := cmd.Flags().String("output", outputText, "Form of the output: text, or json for programs.")
	check := func(args []string) mistakes {
		wrong := leftOver(args)
		if *output != outputText && *output != outputJSON {
			wrong = append(wrong, mistake{"output", "takes text or json"})
		}
		return wrong
	}
	p.withOptionsAnd(cmd, &config{}, check, func(ctx context.Context, c *config) error {
		return examine(ctx, c, cmd.OutOrStdout(), *output == outputJSON)
	})
	return cmd
}

// examine prints the findings. The error is the exit status, or that of writing.
func examine(ctx context.Context, c *config, out io.Writer, asJSON bool) error {
	cfg, err := awsConfig(ctx, c)
	if err != nil {
		return err
	}
	findings := doctor.Examine(gathererOf(cfg, c).Gather(ctx))
	write := doctor.Print
	if asJSON {
		write = doctor.PrintJSON
	}
	if err := write(out, findings); err != nil {
		return err
	}
	switch doctor.Worst(findings) {
	case doctor.Failed:
		return statusError(exitFailed)
	case doctor.Warning:
		return statusError(exitWarned)
	case doctor.OK, doctor.Unknown:
	}
	return nil
}

// gathererOf asks with the options and the credentials of the handler.
func gathererOf(cfg aws.Config, c *config) *doctor.Gatherer {
	const patience = 30 * time.Second
	klog.SetLogger(logr.Discard()) // its news are in the answers
	queue, instances, groups := sqsClient(cfg, c), ec2.NewFromConfig(cfg), autoscaling.NewFromConfig(cfg)
	keys, events := kms.NewFromConfig(cfg), eventbridge.NewFromConfig(cfg)
	g := &doctor.Gatherer{
		Patience: patience,
		Options: doctor.Options{
			QueueURL: c.queue.text, QueueName: c.queue.name, Account: c.queue.account, Region: c.region,
			CheckTag: c.checkTag, ManagedTag: c.managedTag, DeleteForeign: c.deleteIfNodeNotFound, Visibility: c.visibilityTimeout,
			HeartbeatInterval: c.heartbeatInterval, HeartbeatUntil: c.heartbeatUntil, HookNames: c.hookNames,
			LeaderElect: c.leaderElect, EmitEvents: c.emitEvents, Lease: c.leaseName,
		},
		AWS: doctor.AWS{
			Credentials:       cfg.Credentials,
			GetCallerIdentity: sts.NewFromConfig(cfg).GetCallerIdentity,

			GetQueueAttributes: queue.GetQueueAttributes, ReceiveMessage: queue.ReceiveMessage,
			DeleteMessage: queue.DeleteMessage, ChangeMessageVisibility: queue.ChangeMessageVisibility,

			DescribeKey: keys.DescribeKey, GetKeyPolicy: keys.GetKeyPolicy,

			ListRuleNamesByTarget: events.ListRuleNamesByTarget, DescribeRule: events.DescribeRule, ListTargetsByRule: events.ListTargetsByRule,

			DescribeInstances: instances.DescribeInstances,

			DescribeAutoScalingGroups: groups.DescribeAutoScalingGroups, DescribeLifecycleHooks: groups.DescribeLifecycleHooks,
			CompleteLifecycleAction: groups.CompleteLifecycleAction, RecordLifecycleActionHeartbeat: groups.RecordLifecycleActionHeartbeat,
		},
	}
	if _, g.Options.Namespace, g.Cluster.Err = c.kube(); g.Cluster.Err == nil {
		var clients kubeClients
		clients, g.Cluster.Err = commandClients(c, commandPatience)
		g.Cluster.Client, g.Cluster.Version = clients, clients.version
	}
	return g
}
