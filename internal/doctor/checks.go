package doctor

// checks are all lines of the doctor, in the order in which they are printed.
// Each has an entry in docs/troubleshooting.md under its id.
var checks = []check{
	{"credentials", groupIdentity, credentials},
	{"credentials-source", groupIdentity, credentialsSource},
	{"account", groupIdentity, account},
	{"permissions", groupIdentity, permissions},

	{"queue", groupQueue, queue},
	{"queue-type", groupQueue, queueType},
	{"queue-delay", groupQueue, queueDelay},
	{"queue-retention", groupQueue, queueRetention},
	{"queue-visibility", groupQueue, queueVisibility},
	{"queue-redrive", groupQueue, queueRedrive},
	{"queue-key", groupQueue, queueKey},
	{"queue-policy", groupQueue, queuePolicy},
	{"queue-policy-open", groupQueue, queuePolicyOpen},

	{"rule-spot", groupRules, ruleSpot},
	{"rule-rebalance", groupRules, ruleRebalance},
	{"rule-state-change", groupRules, ruleStateChange},
	{"rule-health", groupRules, ruleHealth},
	{"rule-asg-terminate", groupRules, ruleTerminate},
	{"rule-asg-launch", groupRules, ruleLaunch},
	{"rule-targets", groupRules, ruleTargets},
	{"rule-dead-letters", groupRules, ruleDeadLetters},

	{"api-server", groupCluster, apiServer},
	{"rbac", groupCluster, rbac},
	{"lease", groupCluster, lease},
	{"other-handlers", groupCluster, otherHandlers},

	{"nodes", groupNodes, nodes},
	{"group-tag", groupNodes, groupTag},
	{"group-hook", groupNodes, groupHook},
	{"hook-timeout", groupNodes, hookTimeout},
}
