package options

// metadataOptions are about the IMDS mode.
func (c *Options) metadataOptions() []Option {
	kind := func(p *bool, name, env, helm, def, help string) Option {
		return Option{Names: Names{name, env, helm}, Mode: IMDSMode, Default: def, value: boolean(p), Help: help}
	}
	return []Option{
		{
			Group: groupMetadata, Names: Names{"metadata-url", "INSTANCE_METADATA_URL", "instanceMetadataURL"}, Mode: IMDSMode,
			Default: "http://169.254.169.254", value: notEmpty(address(&c.MetadataURL)),
			Help: "URL of the instance metadata service. By IPv6: http://[fd00:ec2::254].",
		},
		kind(&c.SpotDraining, "enable-spot-interruption-draining", "ENABLE_SPOT_INTERRUPTION_DRAINING",
			"enableSpotInterruptionDraining", "true", "Cordon and drain the node before a spot interruption."),
		kind(&c.ScheduledDraining, "enable-scheduled-event-draining", "ENABLE_SCHEDULED_EVENT_DRAINING",
			"enableScheduledEventDraining", "true",
			"Cordon and drain the node before a scheduled change of the instance, and uncordon it after the change."),
		kind(&c.LifecycleDraining, "enable-asg-lifecycle-draining", "ENABLE_ASG_LIFECYCLE_DRAINING",
			"enableASGLifecycleDraining", "true",
			"Cordon and drain the node when its Auto Scaling group is about to terminate the instance. The "+
				"lifecycle hook is not completed: it has to time out."),
		kind(&c.RebalanceMonitoring, "enable-rebalance-monitoring", "ENABLE_REBALANCE_MONITORING",
			"enableRebalanceMonitoring", "false", "Cordon the node when EC2 recommends to rebalance. A leader with a "+
				"queue drains it: there, use a rule with do: cordon."),
		kind(&c.RebalanceDraining, "enable-rebalance-draining", "ENABLE_REBALANCE_DRAINING",
			"enableRebalanceDraining", "false", "Cordon and drain the node when EC2 recommends to rebalance."),
		kind(&c.ReportOnly, "report-only", "REPORT_ONLY", "reportOnly", "false",
			"Only report to the leader, and never drain the node: while nobody leads, it is drained by nobody. In the chart, "+
				"the pods on the nodes may then read no pods and, with the admission policies, change nothing but one "+
				"annotation of their own node."),
	}
}
