package doctor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/policy"
)

const (
	eventBridge = "events.amazonaws.com"
	sns         = "sns.amazonaws.com"
	// spotNotice is the shortest notice that there is.
	spotNotice = 2 * time.Minute
)

func credentials(f *Facts) verdict {
	switch {
	case denied(f.Caller.Err):
		return unknown("who calls AWS", f.Caller.Err)
	case f.Caller.Err != nil:
		return fail("give the ServiceAccount a role, by EKS Pod Identity or by the annotation of IRSA; beside the cluster set AWS_PROFILE",
			"AWS does not say who calls it: %v", f.Caller.Err)
	}
	return ok("AWS is called as %s", f.Caller.Value.ARN)
}

func credentialsSource(f *Facts) verdict {
	c := f.Caller.Value
	switch {
	case f.Caller.Err != nil && c.Source == "":
		return unknown("where the credentials come from", f.Caller.Err)
	case c.Shadowed:
		return warn("remove the annotation eks.amazonaws.com/role-arn from the ServiceAccount and restart the pods",
			"the credentials come from IRSA, and the EKS Pod Identity association of the ServiceAccount is not used")
	case c.Source == SourceInstance:
		return warn("give the ServiceAccount a role of its own",
			"the credentials are those of the node's role, which every pod of the node can use")
	case c.Source == SourceStatic:
		return warn("give the ServiceAccount a role: static keys have no end, and are easily copied",
			"the credentials are %s", SourceStatic)
	}
	return ok("the credentials come from %s", c.Source)
}

func account(f *Facts) verdict {
	if f.Caller.Err != nil {
		return unknown("whether the queue is in the account of the caller", f.Caller.Err)
	}
	if f.Caller.Value.Account != f.Options.Account {
		return warn("run the handler with a role of the queue's account, which is taken for that of the instances",
			"the caller is of account %s, the queue of %s: instances are looked up in the first, notices of all but the second are foreign", f.Caller.Value.Account, f.Options.Account)
	}
	return ok("the caller and the queue are of account %s", f.Options.Account)
}

func permissions(f *Facts) verdict {
	var needed, useful, unsure []string
	for _, p := range f.Permissions {
		switch {
		case p.Err == nil:
		case denied(p.Err) && p.Needed:
			needed = append(needed, p.Action)
		case denied(p.Err):
			useful = append(useful, p.Action)
		default:
			unsure = append(unsure, fmt.Sprintf("%s (%v)", p.Action, p.Err))
		}
	}
	const hint = "add what is missing to the role's policy; deploy/iam/policy.json is all of it"
	switch {
	case len(needed) > 0:
		return fail(hint, "the role lacks %s", list(append(needed, useful...)))
	case len(useful) > 0:
		return warn(hint, "the role lacks %s: the rest works", list(useful))
	case len(unsure) > 0:
		return verdict{Unknown, "whether the role has " + list(unsure), ""}
	case len(f.Permissions) == 0:
		return verdict{Unknown, "what the role may do was not tried", ""}
	}
	return ok("the role has the %s that could be tried", count(len(f.Permissions), "permission"))
}

func queue(f *Facts) verdict {
	switch {
	case errors.Is(f.Queue.Err, ErrAbsent):
		return fail("check queue-url and aws-region, or make the queue", "there is no queue %s in %s", f.Options.QueueName, f.Options.Region)
	case denied(f.Queue.Err):
		return verdict{Unknown, "the queue's attributes cannot be read: " + f.Queue.Err.Error(), "allow it: without it the handler deletes nothing that it cannot read, and nobody sees a wrong attribute"}
	case f.Queue.Err != nil:
		return fail("check queue-url, aws-region and aws-endpoint, and that the queue can be reached from here", "the queue does not answer: %v", f.Queue.Err)
	}
	return ok("the queue is %s", f.Queue.Value.ARN)
}

// ofQueue is a check that needs the queue's attributes.
func ofQueue(subject string, run func(*Facts, Queue) verdict) func(*Facts) verdict {
	return func(f *Facts) verdict {
		if f.Queue.Err != nil {
			return unknown(subject, f.Queue.Err)
		}
		return run(f, f.Queue.Value)
	}
}

// setAttribute is the command that sets an attribute of the queue.
func setAttribute(f *Facts, attribute string) string {
	return "aws sqs set-queue-attributes --queue-url " + f.Options.QueueURL + " --attributes " + attribute
}

var queueType = ofQueue("the type of the queue", func(_ *Facts, q Queue) verdict {
	if q.FIFO {
		return fail("make a standard queue: notices may come in any order, and twice",
			"the queue is a FIFO queue: while one notice of a message group is worked on, the others wait")
	}
	return ok("it is a standard queue")
})

var queueDelay = ofQueue("the queue's delivery delay", func(f *Facts, q Queue) verdict {
	fix := setAttribute(f, "DelaySeconds=0")
	switch {
	case q.Delay > spotNotice/4:
		return fail(fix, "the queue delays every message by %s, of the 2 minutes of a spot warning", q.Delay)
	case q.Delay > 0:
		return warn(fix, "the queue delays every message by %s", q.Delay)
	}
	return ok("messages are not delayed")
})

var queueRetention = ofQueue("the queue's retention", func(f *Facts, q Queue) verdict {
	const least, most = 2 * time.Minute, time.Hour
	fix := setAttribute(f, "MessageRetentionPeriod=300")
	switch {
	case q.Retention < least:
		return fail(fix, "messages are kept for %s: a notice is gone before another replica can take it over", q.Retention)
	case q.Retention > most && !f.Options.DeleteForeign:
		return warn(fix+", or set delete-sqs-msg-if-node-not-found",
			"messages are kept for %s: those of instances that are not of this cluster come back all the time", q.Retention)
	}
	return ok("messages are kept for %s", q.Retention)
})

var queueVisibility = ofQueue("the queue's visibility timeout", func(f *Facts, q Queue) verdict {
	switch {
	case q.Visibility > spotNotice:
		return warn(setAttribute(f, "VisibilityTimeout=30"), "the queue hides a message for %s: whoever looks into it, with the console for one, hides a spot warning from the handler until it is too late", q.Visibility)
	case f.Options.Visibility >= q.Retention:
		return warn("make sqs-msg-visibility-timeout-sec less than the retention",
			"a message is hidden for %s and kept for %s: after a crash it does not come back", f.Options.Visibility, q.Retention)
	}
	return ok("a message is hidden for %s at a time, by others for %s", f.Options.Visibility, q.Visibility)
})

var queueRedrive = ofQueue("the queue's redrive policy", func(_ *Facts, q Queue) verdict {
	const least = 3
	switch {
	case q.MaxReceives == 0:
		return warn("give the queue a dead-letter queue, with 10 receives at most",
			"the queue has no dead-letter queue: what cannot be read is deleted, and nobody can look at it")
	case q.MaxReceives < least:
		return warn("raise maxReceiveCount to 10", "a message goes to the dead-letter queue after %s: a restart of the handler is a receive too", count(q.MaxReceives, "receive"))
	}
	return ok("a message goes to the dead-letter queue after %s", count(q.MaxReceives, "receive"))
})

var queueKey = ofQueue("the queue's key", func(f *Facts, q Queue) verdict {
	if q.KeyID == "" {
		return ok("the queue is not encrypted with a key of KMS")
	}
	const sse = "use SSE-SQS (SqsManagedSseEnabled), or a key of your own whose policy lets events.amazonaws.com use kms:GenerateDataKey and kms:Decrypt"
	if strings.HasSuffix(q.KeyID, "alias/aws/sqs") {
		return fail(sse, "the queue is encrypted with the key that AWS manages: EventBridge cannot use it, and drops what it cannot deliver")
	}
	k := f.Key.Value
	switch {
	case errors.Is(f.Key.Err, ErrAbsent):
		return fail(sse, "the queue's key %s does not exist", q.KeyID)
	case f.Key.Err != nil:
		return unknown("the queue's key "+q.KeyID, f.Key.Err)
	case k.AWSManaged:
		return fail(sse, "the queue is encrypted with a key that AWS manages: EventBridge cannot use it, and drops what it cannot deliver")
	case k.State != "Enabled":
		return fail("enable the key, or use another", "the queue's key %s is in the state %s", q.KeyID, k.State)
	case k.Policy.Err != nil:
		return unknown("whether EventBridge may use the queue's key "+q.KeyID, k.Policy.Err)
	}
	p, err := policy.Parse(k.Policy.Value)
	if err != nil {
		return unknown("the policy of the queue's key", err)
	}
	worst := policy.Allowed
	for _, action := range []string{"kms:GenerateDataKey", "kms:Decrypt"} {
		worst = min(worst, p.Evaluate(request(f, action, k.ARN, anyRule(f, f.Options.Account))))
	}
	switch worst {
	case policy.Allowed:
		return ok("EventBridge may use the queue's key")
	case policy.Unclear:
		return verdict{Unknown, "whether EventBridge may use the queue's key: its policy has conditions that are not read here", ""}
	case policy.Refused, policy.Denied:
	}
	return fail(sse, "the policy of the queue's key does not let EventBridge use it: no event arrives")
})

// request is what EventBridge asks for; source is the ARN of the rule.
func request(f *Facts, action, resource, source string) policy.Request {
	return policy.Request{
		Service: eventBridge, Action: action, Resource: resource,
		Context: map[string]string{"aws:sourcearn": source, "aws:sourceaccount": f.Options.Account, "aws:securetransport": "true"},
	}
}

// anyRule is the ARN of a rule as an account may have it.
func anyRule(f *Facts, account string) string {
	return "arn:" + f.partition() + ":events:" + f.Options.Region + ":" + account + ":rule/any"
}

var queuePolicy = ofQueue("the queue's policy", func(f *Facts, q Queue) verdict {
	const fix = "allow sqs:SendMessage to the service events.amazonaws.com, on the condition that aws:SourceArn is one of your rules"
	p, err := policy.Parse(q.Policy)
	if err != nil {
		return unknown("the queue's policy", err)
	}
	sources := map[string]string{"a rule": anyRule(f, f.Options.Account)}
	if f.Rules.Err == nil && len(f.Rules.Value) > 0 {
		sources = map[string]string{}
		for _, r := range f.Rules.Value {
			sources["rule "+r.Name] = r.ARN
		}
	}
	var out, unclear []string
	for name, arn := range sources {
		switch p.Evaluate(request(f, "sqs:SendMessage", q.ARN, arn)) {
		case policy.Refused, policy.Denied:
			out = append(out, name)
		case policy.Unclear:
			unclear = append(unclear, name)
		case policy.Allowed:
		}
	}
	switch {
	case len(out) > 0 && f.Rules.Err != nil && q.Policy != "" && p.Names(eventBridge):
		return unknown("whether the queue's policy lets your rules in", f.Rules.Err)
	case len(out) > 0 && q.Policy == "":
		return fail(fix, "the queue has no policy: EventBridge may not send to it, and drops what it cannot deliver")
	case len(out) > 0:
		return fail(fix, "the queue's policy does not let %s of EventBridge in", list(out))
	case len(unclear) > 0:
		return verdict{Unknown, "whether the queue's policy lets " + list(unclear) + " in: it has conditions that are not read here", ""}
	}
	return ok("the queue's policy lets EventBridge in")
})

var queuePolicyOpen = ofQueue("whom the queue's policy lets in", func(f *Facts, q Queue) verdict {
	p, err := policy.Parse(q.Policy)
	if err != nil {
		return unknown("whom the queue's policy lets in", err)
	}
	const stranger = "000000000000"
	foreign := request(f, "sqs:SendMessage", q.ARN, anyRule(f, stranger))
	foreign.Context["aws:sourceaccount"] = stranger
	anybody := foreign
	anybody.Service = "anybody"
	switch {
	case p.Evaluate(anybody) == policy.Allowed:
		return fail("name the principal events.amazonaws.com", "the queue's policy lets everybody in: whoever sends a message can have a node drained")
	case p.Evaluate(foreign) == policy.Allowed:
		return warn("add the condition that aws:SourceArn is one of your rules", "the queue's policy lets rules of any account in: whoever has one can have a node drained")
	}
	return ok("the queue's policy lets no rule of another account in")
})
