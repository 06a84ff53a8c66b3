package asg

import (
	"errors"
	"strings"

	"github.com/aws/smithy-go"
)

// validationError is the code of every request that Auto Scaling finds wrong.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
const validationError = "ValidationError"

// gone reports whether err says that there is nothing left to complete or to
// keep alive: the action has ended, or its hook or group was deleted, which
// ends the action too.
//
// Auto Scaling declares no errors of their own for these. They are
// validationError like others, so only the text tells them apart; its beginning
// is all that is compared.
func gone(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorCode() != validationError {
		return false
	}
	for _, beginning := range []string{
		"No active Lifecycle Action found", // … with instance ID i-…, … with token …
		"No Lifecycle Hook found",
		"AutoScalingGroup name not found",
	} {
		if strings.HasPrefix(api.ErrorMessage(), beginning) {
			return true
		}
	}
	return false
}

// invalid reports whether err says that the request itself is wrong, so that
// the same request can never succeed.
func invalid(err error) bool {
	if _, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		return true // found by the SDK before it was sent
	}
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && api.ErrorCode() == validationError
}

// denied reports whether err says that the role may not make this call.
//
// The code alone does not tell. The SDK may ask STS for credentials within a
// call, and a role that cannot be assumed is AccessDenied too; its error then
// holds that of another service.
func denied(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode() {
	case "AccessDenied", "AccessDeniedException":
	default:
		return false
	}
	outer, ok := errors.AsType[*smithy.OperationError](err)
	if !ok {
		return true
	}
	inner, ok := errors.AsType[*smithy.OperationError](outer.Err)
	return !ok || inner.ServiceID == outer.ServiceID
}
