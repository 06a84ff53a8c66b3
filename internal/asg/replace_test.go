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
		text string
	}{
		"no answer":                 {within(errors.New("connection refused")), "", ""},
		"a fault of Auto Scaling":   {call("Auto Scaling", 500, "InternalFailure"), "", ""},
		"throttled":                 {call("Auto Scaling", 400, "Throttling"), "", ""},
		"a proxy answers":           {within(&smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: 403}}, Err: errors.New("no XML")}), "", ""},
		"STS refuses the role":      {within(call("STS", 403, "AccessDenied")), "", ""},
		"the permission is missing": {call("Auto Scaling", 403, "AccessDenied"), decision.WhyReplacementRight, "permission autoscaling:SetInstanceHealth is missing: no"},
		"the server lacks the call": {call("Auto Scaling", 400, "InvalidAction"), decision.WhyReplacementRight, "the server does not have autoscaling:SetInstanceHealth: no"},
		"the request is wrong":      {call("Auto Scaling", 400, "ValidationError"), decision.WhyReplacementFails, "SetInstanceHealth: ValidationError: no"},
	} {
		var got decision.Why
		var text string
		if refusal, ok := errors.AsType[*Refusal](explain("autoscaling:SetInstanceHealth", test.err)); ok {
			got, text = refusal.Why, refusal.Text
		}
		if got != test.want || text != test.text {
			t.Errorf("%s: %q, %q, want %q, %q", name, got, text, test.want, test.text)
		}
	}
}
