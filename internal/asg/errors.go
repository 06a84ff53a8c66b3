package asg

import (
	"errors"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

// validationError is the code for every request that Auto Scaling finds wrong.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
const validationError = "ValidationError"

// isGone reports whether err says that there is nothing left to complete or to keep
// open: the action has ended, or its hook or group was deleted, which ends the action.
//
// Auto Scaling has no codes for these. They are validationError as others are, so only
// the text tells them apart. Only its beginning is compared.
func isGone(err error) bool {
	if awserr.Code(err) != validationError {
		return false
	}
	for _, beginning := range []string{
		"No active Lifecycle Action found", // … with instance ID i-…, … with token …
		"No Lifecycle Hook found",
		"AutoScalingGroup name not found",
	} {
		if strings.HasPrefix(awserr.Message(err), beginning) {
			return true
		}
	}
	return false
}

// isInvalid reports whether err says that the request itself is wrong: the same request
// can never succeed.
func isInvalid(err error) bool {
	if _, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		return true // the SDK has found it before it sent the request
	}
	return awserr.Code(err) == validationError
}
