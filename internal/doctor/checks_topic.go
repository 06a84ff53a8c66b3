package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// topics are topics of SNS by their ARNs.
type topics map[string]Answer[Topic]

// A Topic of SNS.
type Topic struct {
	Policy string
	KeyID  string // empty: no key of KMS
	Key    Answer[Key]
	// Subscription is that of the queue; nil: it has none.
	Subscription *Subscription
}

// A Subscription hands on to the queue what is published to a topic.
type Subscription struct {
	ARN        string // empty while it is pending
	Pending    bool   // nobody has confirmed it, and nothing is handed on
	Filter     string // a filter policy; empty: everything is handed on
	FilterBody bool   // the filter is about the message; else about its attributes, of which events have none
}

// takes reports whether an event that is published to the topic comes to the queue. A filter policy
// is written as event patterns are. One that cannot be read takes nothing: see unreadTopic.
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-filtering-scope.html
func (s *Subscription) takes(event string) bool {
	if s == nil || s.Filter == "" {
		return s != nil
	}
	if !s.FilterBody {
		event = "{}"
	}
	return matches(s.Filter, event)
}

// unreadTopic says why nobody knows what comes by way of SNS; nil: it is known.
func unreadTopic(f *Facts) error {
	for _, arn := range slices.Sorted(maps.Keys(f.Topics)) {
		t := f.Topics[arn]
		if t.Err != nil && !errors.Is(t.Err, ErrAbsent) {
			return t.Err
		}
		if s := t.Value.Subscription; s != nil && s.Filter != "" {
			if _, err := eventpattern.Parse(s.Filter); err != nil {
				return fmt.Errorf("the filter of the subscription to %s: %w", arn, err)
			}
		}
	}
	if f.policy().Names(snsService) && len(f.Topics) == 0 {
		return errTopic
	}
	return nil
}

// errTopic says why the rules are unknown if any topic of SNS may send to the queue.
var errTopic = errors.New("SNS may do so, and the queue's policy does not name its topic")

// topic checks the way from the rules through SNS to the queue.
func topic(f *Facts) Finding {
	const subject = "whether topics of SNS hand on to the queue"
	if f.Queue.Err != nil {
		return unknown(subject, blocked("queue", f.Queue.Err))
	}
	for _, arn := range slices.Sorted(maps.Keys(f.Topics)) {
		fault, hint, err := topicFault(f, arn)
		switch {
		case fault != "":
			// It matters less beside rules that send to the queue themselves.
			straight := slices.ContainsFunc(f.Rules.Value, func(r Rule) bool { return r.Topic == "" && r.Enabled })
			return bad(failedIf(!straight), hint, "nothing comes by the topic %s: %s", arn, fault)
		case err != nil:
			return unknown(subject, err)
		}
	}
	switch err := unreadTopic(f); {
	case err != nil:
		return unknown(subject, err)
	case len(f.Topics) == 0:
		return ok("no topic of SNS sends to the queue")
	}
	return ok("%s of SNS hands on what rules publish", list(slices.Collect(maps.Keys(f.Topics))))
}

// topicFault says why a topic does not bring events to the queue, and what to do about it.
func topicFault(f *Facts, arn string) (fault, hint string, err error) {
	t := f.Topics[arn].Value
	subscribe := "aws sns subscribe --topic-arn " + arn + " --protocol sqs --notification-endpoint " + f.Queue.Value.ARN +
		" --attributes RawMessageDelivery=true"
	switch err := f.Topics[arn].Err; {
	case errors.Is(err, ErrAbsent):
		return "it does not exist", "make the topic, or remove it from the queue's policy", nil
	case err != nil:
		return "", "", err
	case t.Subscription == nil:
		return "the queue is not subscribed to it", subscribe, nil
	case t.Subscription.Pending:
		return "the queue's subscription is not confirmed",
			"subscribe as the account of the queue, which needs no confirmation: " + subscribe, nil
	}
	var publishers []sender
	for _, r := range sending(f.Rules.Value) {
		if r.Topic == arn {
			publishers = append(publishers, r.senders()...)
		}
	}
	p, err := iampolicy.Parse(t.Policy)
	if err != nil {
		return "", "", err
	}
	out, unsure := refusedSenders(p, publishers, "sns:Publish", arn)
	if len(out) > 0 {
		return "its policy does not let " + list(out) + " publish",
			"allow sns:Publish to the service events.amazonaws.com, on the condition that aws:SourceArn is one of your " +
				"rules", nil
	}
	if t.KeyID != "" && len(publishers) > 0 {
		if fault, err = keyFault(f, t.KeyID, t.Key, publishers, nil); fault != "" {
			return "its key " + fault, "use no key, or one of your own whose policy lets events.amazonaws.com use " +
				"kms:GenerateDataKey and kms:Decrypt", nil
		}
	}
	return "", "", cmp.Or(err, unsure)
}
