package doctor

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	eventBridge = "events.amazonaws.com"
	snsService  = "sns.amazonaws.com"
	// spotNotice is the shortest time that a notice gives.
	spotNotice = 2 * time.Minute
)

// ofQueue makes a check that needs the queue's attributes.
func ofQueue(subject string, run func(*Facts, Queue) Finding) func(*Facts) Finding {
	return func(f *Facts) Finding {
		if f.Queue.Err != nil {
			return unknown(subject, blocked("queue", f.Queue.Err))
		}
		return run(f, f.Queue.Value)
	}
}

// setAttribute is the command that sets an attribute of the queue.
func setAttribute(f *Facts, attribute string) string {
	return "aws sqs set-queue-attributes --queue-url " + f.Options.QueueURL + " --attributes " + attribute
}

var queueType = ofQueue("the type of the queue", func(_ *Facts, q Queue) Finding {
	if q.FIFO {
		return fail("create a standard queue: notices may arrive in any order, and twice",
			"the queue is a FIFO queue: while one notice of a message group is in flight, the others wait")
	}
	return ok("it is a standard queue")
})

var queueDelay = ofQueue("the queue's delivery delay", func(f *Facts, q Queue) Finding {
	fix := setAttribute(f, "DelaySeconds=0")
	switch {
	case q.Delay > spotNotice/4:
		return fail(fix, "the queue delays every message by %s, of the 2 minutes of a spot warning", q.Delay)
	case q.Delay > 0:
		return warn(fix, "the queue delays every message by %s", q.Delay)
	}
	return ok("messages are not delayed")
})

// leastRetention is long enough for another replica to receive a message that one had: SQS hides
// it for some 20 s, and a replica that crashed is replaced within a minute.
const leastRetention = 2 * time.Minute

// enoughRetention is four days, as in the templates: scheduled changes come days ahead, and a
// weekend may pass in which no replica runs.
const enoughRetention = 4 * 24 * time.Hour

var queueRetention = ofQueue("the queue's retention", func(f *Facts, q Queue) Finding {
	// It leaves somebody the time to mend what keeps both replicas from running.
	const least = time.Hour
	fix := setAttribute(f, "MessageRetentionPeriod="+strconv.Itoa(int(enoughRetention/time.Second)))
	switch {
	case q.Retention < leastRetention:
		return fail(fix, "messages are kept for %s: a notice expires before another replica can take it over", q.Retention)
	case q.Retention < least:
		return warn(fix, "messages are kept for %s: if no replica runs for longer, scheduled changes and hooks are lost "+
			"that leave hours or days", q.Retention)
	}
	return ok("messages are kept for %s", q.Retention)
})

// queueSize finds a queue whose limit is less than the size of what AWS sends. SQS refuses larger
// messages, and EventBridge drops what a target refuses.
var queueSize = ofQueue("the largest message that the queue takes", func(f *Facts, q Queue) Finding {
	const (
		// AWS Health lists the instances in its event, up to this size.
		// https://docs.aws.amazon.com/health/latest/ug/pagnation-of-health-events.html
		health = 256 << 10
		// The event of a lifecycle action has the hook's metadata (1,023 characters), the name of
		// the group (255) twice and the name of the hook (255), in an envelope of half a KiB.
		// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
		lifecycle = 4 << 10
	)
	fix := setAttribute(f, "MaximumMessageSize="+strconv.Itoa(health))
	switch {
	case q.MaxSize == 0:
		return unclear("", "the queue does not say how large a message it takes")
	case q.MaxSize < lifecycle:
		return fail(fix, "the queue takes messages of %d bytes at most: events of lifecycle actions and of AWS Health that "+
			"are larger are dropped", q.MaxSize)
	case q.MaxSize < health:
		return warn(fix, "the queue takes messages of %d KiB at most: AWS Health sends up to %d KiB, and what is larger is "+
			"dropped", q.MaxSize>>10, health>>10)
	}
	return ok("the queue takes messages of up to %d KiB", q.MaxSize>>10)
})

// redriveCommand is the command that sets the redrive policy of the queue.
func redriveCommand(f *Facts, target string) string {
	return setAttribute(f, "'"+jsonText(map[string]string{
		"RedrivePolicy": jsonText(map[string]any{"deadLetterTargetArn": target, "maxReceiveCount": enoughReceives}),
	})+"'")
}

// jsonText encodes a value that can always be encoded.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// enoughReceives is the number of receives that a message needs to outlive restarts and changes of
// the leader, each of which is a receive. It still moves a message that cannot be read before its
// retention ends.
const enoughReceives = 10

var queueRedrive = ofQueue("the queue's redrive policy", func(f *Facts, q Queue) Finding {
	// last is how long it takes until a message that cannot be read was received that often.
	last := time.Duration(q.MaxReceives) * f.Options.Visibility
	switch {
	case q.MaxReceives == 0:
		const suffix = "-dead-letters"
		return warn("aws sqs create-queue --queue-name "+f.Options.QueueName+suffix+
			" --attributes MessageRetentionPeriod=1209600 && "+redriveCommand(f, q.ARN+suffix),
			"the queue has no dead-letter queue: messages that cannot be read are deleted, and nobody can look at them")
	case q.MaxReceives < enoughReceives:
		return warn(redriveCommand(f, q.DeadLetters),
			"a message goes to the dead-letter queue after %s: a restart of the handler is a receive too",
			overview.Count(q.MaxReceives, "receive"))
	case last >= q.Retention && q.Retention >= leastRetention && f.Options.Visibility < q.Retention:
		return warn(redriveCommand(f, q.DeadLetters),
			"nothing reaches the dead-letter queue: it takes %s, which take %s, and messages are kept for %s",
			overview.Count(q.MaxReceives, "receive"), last, q.Retention)
	}
	return ok("a message goes to the dead-letter queue after %s", overview.Count(q.MaxReceives, "receive"))
})

// errNoRules says why nobody knows yet what a policy means for the rules.
var errNoRules = errors.New("no rule has the queue as its target yet")

// anyRule is the ARN of a rule as an account could have it.
func anyRule(f *Facts, account string) string {
	return "arn:" + f.Options.Partition + ":events:" + f.Options.Region + ":" + account + ":rule/any"
}

var queuePolicy = ofQueue("the queue's policy", func(f *Facts, q Queue) Finding {
	const subject = "whether the queue's policy lets your rules in"
	p, err := iampolicy.Parse(q.Policy)
	if err != nil {
		return unknown(subject, err)
	}
	all, unseen := senders(f)
	out, unsure := refusedSenders(p, all, "sqs:SendMessage", q.ARN)
	rules := len(ofKind(all, eventBridge))
	fix := "allow sqs:SendMessage to the service events.amazonaws.com, on the condition that aws:SourceArn is one " +
		"of your rules"
	if rules == 0 {
		fix = "allow sqs:SendMessage to what sends"
	}
	who := list(out)
	if rules == len(all) {
		who += " of EventBridge"
	}
	switch {
	case len(out) == 0 && unsure != nil:
		return unknown(subject, unsure)
	case len(out) == 0:
		return ok("the queue's policy lets %s in", describe(all))
	case q.Policy == "":
		document := `{"Version":"2012-10-17","Statement":[` + letIn(f, q.ARN, all) + `]}`
		return fail(fix+": "+setAttribute(f, "'"+jsonText(map[string]string{"Policy": document})+"'"),
			"the queue has no policy: %s has no permission to send to it, and drops what it cannot deliver", describe(all))
	case unseen != nil && (p.Names(eventBridge) || hiddenRules(f) != nil):
		return unknown(subject, unseen)
	}
	return fail(fix+"; add the statement "+letIn(f, q.ARN, all), "the queue has a policy that does not let %s in", who)
})

var queuePolicyOpen = ofQueue("whom the queue's policy lets in", func(f *Facts, q Queue) Finding {
	p, err := iampolicy.Parse(q.Policy)
	if err != nil {
		return unknown("whom the queue's policy lets in", err)
	}
	const stranger = "000000000000"
	anyRole := func(account string) iampolicy.Request {
		return roleSender("arn:"+f.Options.Partition+":iam::"+account+":role/any").request("sqs:SendMessage", q.ARN)
	}
	foreign := ruleSender("a rule", anyRule(f, stranger)).request("sqs:SendMessage", q.ARN)
	anybody := anyRole(stranger)
	switch {
	case p.Evaluate(anybody) == iampolicy.Allowed:
		return fail("name the principal events.amazonaws.com",
			"the queue's policy lets everybody in: whoever sends a message can get a node drained")
	case p.Evaluate(foreign) == iampolicy.Allowed:
		return warn("add the condition that aws:SourceArn is one of your rules",
			"the queue's policy lets rules of any account in: whoever has one can get a node drained")
	}
	within := "; in its own account an IAM policy with sqs:SendMessage is enough, unless a Deny is added"
	if p.Evaluate(anyRole(f.Options.Account)) == iampolicy.Denied {
		within = ", and no identity of its own account that it does not name"
	}
	if roles := deliveryRoles(f); len(roles) > 0 {
		within += "; whoever has one of these can send: " + describe(roles)
	}
	return ok("the queue's policy lets no rule of another account in%s", within)
})
