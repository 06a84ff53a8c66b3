// Package awserr says what an error of the AWS SDK means where that is the same for all services.
package awserr

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Code is the code of AWS's answer; empty: there was none.
func Code(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}

// Message is the text of AWS's answer; empty: there was none.
func Message(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorMessage()
	}
	return ""
}

// Denied reports whether the call fails for all who ask as this process does: the role lacks the permission, or the
// call is [Unsupported]. STS refuses a role that cannot be assumed with the same code, but for all calls: see
// [NoCredentials].
func Denied(err error) bool {
	codes := []string{"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"} // the last is EC2's
	return slices.Contains(codes, Code(err)) && !NoCredentials(err) || Unsupported(err)
}

// Unsupported reports whether the server does not have the call, as servers that take AWS's place do not have all.
func Unsupported(err error) bool {
	codes := []string{
		"InvalidAction", "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", "UnknownOperation",
		"UnknownOperationException", "NotImplemented", "NotImplementedException",
	}
	if slices.Contains(codes, Code(err)) {
		return true
	}
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && answer.HTTPStatusCode() == http.StatusNotImplemented
}

// NoCredentials reports whether no call was made because the SDK got no credentials: STS refused them or did not
// answer, or no source of credentials is configured. The SDK has no type for that. Its error wraps one of another
// service, or says where it has failed.
func NoCredentials(err error) bool {
	if err == nil {
		return false
	}
	if outer, ok := errors.AsType[*smithy.OperationError](err); ok {
		if inner, ok := errors.AsType[*smithy.OperationError](outer.Err); ok && inner.ServiceID != outer.ServiceID {
			return true
		}
	}
	return strings.Contains(err.Error(), "get identity: ")
}
