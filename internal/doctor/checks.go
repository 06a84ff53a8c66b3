package doctor

// checks are the checks in the order in which their findings are printed. Each has an entry in
// docs/doctor.md under its id.
var checks = []check{
	{"credentials", groupIdentity, inAWS, credentials},
	{"credentials-source", groupIdentity, inAWS, credentialsSource},
	{"account", groupIdentity, inAWS | needed, account},
	{"permissions", groupIdentity, inAWS | needed, permissions},

	{"queue", groupQueue, needed, queue},
	{"queue-type", groupQueue, inAWS | needed, queueType},
	{"queue-delay", groupQueue, inAWS | needed, queueDelay},
	{"queue-retention", groupQueue, inAWS | needed, queueRetention},
	{"queue-size", groupQueue, inAWS | needed, queueSize},
	{"queue-redrive", groupQueue, inAWS, queueRedrive},
	{"queue-key", groupQueue, inAWS | needed, queueKey},
	{"queue-decrypt", groupQueue, inAWS | needed, queueDecrypt},
	{"queue-policy", groupQueue, inAWS | needed, queuePolicy},
	{"queue-policy-open", groupQueue, inAWS, queuePolicyOpen},

	{"rule-spot", groupRules, inAWS | needed, ruleSpot},
	{"rule-rebalance", groupRules, inAWS, ruleRebalance},
	{"rule-state-change", groupRules, inAWS, ruleStateChange},
	{"rule-health", groupRules, inAWS, ruleHealth},
	{"rule-capacity-reservation", groupRules, inAWS, ruleCapacityReservation},
	{"rule-capacity-block", groupRules, inAWS, ruleCapacityBlock},
	{"rule-asg-terminate", groupRules, inAWS | needed, ruleTerminate},
	{"rule-asg-launch", groupRules, inAWS, ruleLaunch},
	{"topic", groupRules, inAWS, topic},
	{"rule-targets", groupRules, inAWS | needed, ruleTargets},

	{"api-server", groupCluster, needed, apiServer},
	{"handler", groupCluster, needed, handlerRuns},
	{"rbac", groupCluster, needed, rbac},
	{"lease", groupCluster, needed, leadership},
	{"other-handlers", groupCluster, 0, otherHandlers},
	{"policy", groupCluster, 0, policyFits},

	{"nodes", groupNodes, needed, nodes},
	{"event-accounts", groupNodes, inAWS | needed, eventAccounts},
	{"group-tag", groupNodes, inAWS, groupTag},
	{"group-hook", groupNodes, inAWS, groupHook},
	{"hook-timeout", groupNodes, inAWS, hookTimeout},
	{"hook-launch", groupNodes, inAWS, hookLaunch},
}

// A check makes one finding: run says what it says about the facts, and is pure.
type check struct {
	id     string
	group  string
	traits traits
	run    func(*Facts) Finding
}

// traits are a set of what is true of a check.
type traits uint8

const (
	// needed: unless it passes, a node might not be drained in time. If it is unknown, so is that.
	needed traits = 1 << iota
	// inAWS: it is about what only a handler with a queue has.
	inAWS
)
