package doctor

// deadLetterQueues are dead-letter queues by their ARNs.
type deadLetterQueues map[string]Answer[DeadLetterQueue]

// A DeadLetterQueue receives what SQS or EventBridge gives up.
type DeadLetterQueue struct {
	Queue
	Key Answer[Key] // of a queue that has one
}
