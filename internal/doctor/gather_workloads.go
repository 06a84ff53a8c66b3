package doctor

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// isKarpenters reports whether Karpenter made the node. Its releases before 0.32 had another
// label.
func isKarpenters(n *corev1.Node) bool {
	return n.Labels["karpenter.sh/nodepool"] != "" || n.Labels["karpenter.sh/provisioner-name"] != ""
}

// deadLetters returns the dead-letter queues of the queue, of its subscriptions and of the rules'
// targets, by ARN. Those of rules that send to a topic belong to whoever has the topic.
func (a *AWS) deadLetters(
	ctx context.Context, url string, q Answer[Queue], rules Answer[[]Rule], through topics,
) deadLetterQueues {
	if q.Err != nil && !denied(q.Err) {
		return nil // they would not answer either
	}
	arns := []string{q.Value.DeadLetters}
	for _, r := range rules.Value {
		for _, t := range r.Targets {
			if r.Topic == "" {
				arns = append(arns, t.DeadLetters)
			}
		}
	}
	for _, topic := range through {
		if s := topic.Value.Subscription; s != nil {
			arns = append(arns, s.DeadLetters)
		}
	}
	found := deadLetterQueues{}
	for _, arn := range slices.Compact(sorted(arns)) {
		if arn != "" {
			found[arn] = a.deadLetterQueue(ctx, sibling(url, arn))
		}
	}
	return found
}

func (a *AWS) deadLetterQueue(ctx context.Context, url string) Answer[DeadLetterQueue] {
	q := a.queue(ctx, url)
	if q.Err != nil {
		return Answer[DeadLetterQueue]{Err: q.Err}
	}
	d := DeadLetterQueue{Queue: q.Value}
	if d.KeyID != "" {
		d.Key = a.key(ctx, d.KeyID, d.ARN)
	}
	return Answer[DeadLetterQueue]{Value: d}
}

// sibling is the URL of the queue with an ARN, made from the URL of another queue. A dead-letter
// queue is in the same region.
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-rule-event-delivery.html#eb-rule-dlq
func sibling(url, arn string) string {
	parts := strings.Split(arn, ":")
	if len(parts) != 6 {
		return arn // SQS will say that there is none
	}
	for range 2 { // the account and the name
		url = url[:max(0, strings.LastIndexByte(url, '/'))]
	}
	return url + "/" + parts[4] + "/" + parts[5]
}

// sortHooks separates the hooks with one of the names from the others. Of the others it returns
// the names of termination hooks.
func sortHooks(all Answer[[]Hook], names []string) (ours Answer[[]Hook], others []string) {
	ours.Err = all.Err
	for _, h := range all.Value {
		switch {
		case len(names) == 0 || slices.Contains(names, h.Name):
			ours.Value = append(ours.Value, h)
		case h.Terminating:
			others = append(others, h.Name)
		}
	}
	return ours, others
}
