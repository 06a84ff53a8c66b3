package doctor

import "k8s.io/apimachinery/pkg/labels"

// A Budget is a PodDisruptionBudget.
type Budget struct {
	Namespace, Name string
	// Selector matches its pods; nil matches none.
	Selector labels.Selector
	// Expected is the number of pods that it counts. Desired of them have to stay healthy.
	Expected, Desired int
	// Uncounted says why its pods cannot be counted; empty: they can.
	Uncounted string
}

func (b *Budget) String() string { return b.Namespace + "/" + b.Name }

func (b *Budget) covers(p *Pod) bool {
	return b.Namespace == p.Namespace && b.Selector != nil && b.Selector.Matches(labels.Set(p.Labels))
}

// never reports whether the budget allows no disruption however healthy its pods are.
func (b *Budget) never() bool {
	return b.Uncounted != "" || b.Expected > 0 && b.Desired >= b.Expected
}

// deadLetterQueues are dead-letter queues by their ARNs.
type deadLetterQueues map[string]Answer[DeadLetterQueue]

// A DeadLetterQueue receives what SQS or EventBridge gives up.
type DeadLetterQueue struct {
	Queue
	Key Answer[Key] // of a queue that has one
}
