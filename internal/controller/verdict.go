package controller

import (
	"errors"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// errDryRun leaves a message alone because nothing may be written.
var errDryRun error = leaveError{decision.WhyDryRun}

// leaveError leaves a message to other readers of the queue.
type leaveError struct{ why decision.Why }

func (e leaveError) Error() string { return string(e.why) }

// Reason is the error as a metric label.
func (e leaveError) Reason() string { return string(e.why) }

func isLeave(err error) bool {
	_, left := errors.AsType[leaveError](err)
	return left
}

// verdictOf is the answer to the queue for a message, given the error for each of its
// instances. One failure returns the message to the queue; one instance that is not ours
// leaves the message to other readers.
func verdictOf(errs ...error) error {
	var left error
	for _, err := range errs {
		if isLeave(err) {
			left = queue.Leave(err)
		} else if err != nil {
			return err
		}
	}
	return left
}
