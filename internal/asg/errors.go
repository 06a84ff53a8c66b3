package asg

import (
	"errors"
	"strings"

	"github.com/aws/smithy-go"
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

// isInvalid reports whether err says that the request itself is wrong: the same request
// can never succeed.
func isInvalid(err error) bool {
	if _, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		return true // the SDK has found it before it sent the request
	}
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && api.ErrorCode() == validationError
}

// isDenied reports whether err says that the role may not make this call.
//
// The code alone does not say so. The SDK may ask STS for credentials within a call, and
// a role that cannot be assumed is AccessDenied too. The error then wraps an error of
// another service.
func isDenied(err error) bool {
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
