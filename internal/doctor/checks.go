package doctor

// checks are the checks in the order in which their findings are printed. Each has an entry in
// docs/doctor.md under its id.
var checks = []check{
	{"credentials", groupIdentity, credentials},
	{"credentials-source", groupIdentity, credentialsSource},
	{"account", groupIdentity, account},
	{"permissions", groupIdentity, permissions},

	{"queue", groupQueue, queue},
	{"queue-type", groupQueue, queueType},
	{"queue-delay", groupQueue, queueDelay},
	{"queue-retention", groupQueue, queueRetention},
	{"queue-size", groupQueue, queueSize},
	{"queue-redrive", groupQueue, queueRedrive},
	{"queue-key", groupQueue, queueKey},
	{"queue-decrypt", groupQueue, queueDecrypt},
	{"queue-policy", groupQueue, queuePolicy},
	{"queue-policy-open", groupQueue, queuePolicyOpen},

	{"rule-spot", groupRules, ruleSpot},
	{"rule-rebalance", groupRules, ruleRebalance},
	{"rule-state-change", groupRules, ruleStateChange},
	{"rule-health", groupRules, ruleHealth},
	{"rule-capacity-reservation", groupRules, ruleCapacityReservation},
	{"rule-capacity-block", groupRules, ruleCapacityBlock},
	{"rule-asg-terminate", groupRules, ruleTerminate},
	{"rule-asg-launch", groupRules, ruleLaunch},
	{"topic", groupRules, topic},
	{"rule-targets", groupRules, ruleTargets},

	{"api-server", groupCluster, apiServer},
	{"handler", groupCluster, handlerRuns},
	{"rbac", groupCluster, rbac},
	{"lease", groupCluster, leadership},
	{"other-handlers", groupCluster, otherHandlers},
	{"karpenter", groupCluster, karpenterDrains},
	{"policy", groupCluster, policyFits},

	{"nodes", groupNodes, nodes},
	{"event-accounts", groupNodes, eventAccounts},
	{"group-tag", groupNodes, groupTag},
	{"group-hook", groupNodes, groupHook},
	{"hook-timeout", groupNodes, hookTimeout},
	{"hook-launch", groupNodes, hookLaunch},
}

// needed are the checks without which a node may not be drained in time. If one of them is
// unknown, nobody can say that all is well.
var needed = map[string]bool{
	"account": true, "permissions": true,
	"queue": true, "queue-type": true, "queue-delay": true, "queue-retention": true, "queue-size": true, "queue-key": true,
	"queue-decrypt": true, "queue-policy": true,
	"rule-spot": true, "rule-asg-terminate": true, "rule-targets": true,
	"api-server": true, "handler": true, "rbac": true,
	"nodes": true, "event-accounts": true,
}
