package asg

import (
	"errors"
	"net/http"
	"testing"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

func TestOnlyAutoScalingItselfRefusesForGood(t *testing.T) {
	call := func(service string, status int, code string) error {
		return &smithy.OperationError{ServiceID: service, OperationName: "Do", Err: &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
			Err:      &smithy.GenericAPIError{Code: code, Message: "no"},
		}}
	}
	within := func(err error) error {
		return &smithy.OperationError{ServiceID: "Auto Scaling", OperationName: "SetInstanceHealth", Err: err}
	}
	for name, test := range map[string]struct {
		err  error
		want decision.Why
	}{
		"no answer":                 {within(errors.New("connection refused")), ""},
		"a fault of Auto Scaling":   {call("Auto Scaling", 500, "InternalFailure"), ""},
		"throttled":                 {call("Auto Scaling", 400, "Throttling"), ""},
		"a proxy answers":           {within(&smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: 403}}, Err: errors.New("no XML")}), ""},
		"STS refuses the role":      {within(call("STS", 403, "AccessDenied")), ""},
		"the permission is missing": {call("Auto Scaling", 403, "AccessDenied"), decision.WhyReplacementRight},
		"the request is wrong":      {call("Auto Scaling", 400, "ValidationError"), decision.WhyReplacementFails},
	} {
		var got decision.Why
		if refusal, ok := errors.AsType[*Refusal](explain("autoscaling:SetInstanceHealth", test.err)); ok {
			got = refusal.Why
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
