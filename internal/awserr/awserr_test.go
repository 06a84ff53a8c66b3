package awserr

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

func TestAnErrorIsOfTheCallOrOfItsCredentials(t *testing.T) {
	answer := func(code string) error { return &smithy.GenericAPIError{Code: code, Message: "no"} }
	call := func(service string, err error) error {
		return &smithy.OperationError{ServiceID: service, OperationName: "Do", Err: err}
	}
	for name, test := range map[string]struct {
		err                   error
		code                  string
		denied, noCredentials bool
		unsupported           bool
	}{
		"none":                     {nil, "", false, false, false},
		"no answer":                {call("SQS", errors.New("connection refused")), "", false, false, false},
		"another answer":           {call("SQS", answer("Throttling")), "Throttling", false, false, false},
		"SQS denies the call":      {call("SQS", answer("AccessDenied")), "AccessDenied", true, false, false},
		"so does ELB":              {call("Elastic Load Balancing v2", answer("AccessDeniedException")), "AccessDeniedException", true, false, false},
		"EC2 denies the call":      {call("EC2", answer("UnauthorizedOperation")), "UnauthorizedOperation", true, false, false},
		"an entry of a batch":      {answer("AccessDenied"), "AccessDenied", true, false, false},
		"STS refuses the role":     {call("Auto Scaling", call("STS", answer("AccessDenied"))), "AccessDenied", false, true, false},
		"so it does, in words":     {call("Auto Scaling", fmt.Errorf("get identity: get credentials: %w", answer("AccessDenied"))), "AccessDenied", false, true, false},
		"there are no credentials": {call("SQS", errors.New("get identity: get credentials: no EC2 IMDS role found")), "", false, true, false},
		"a call to STS is denied":  {call("STS", answer("AccessDenied")), "AccessDenied", true, false, false},
		"SQS lacks the call":       {call("SQS", answer("InvalidAction")), "InvalidAction", true, false, true},
		"so does another server":   {call("EC2", &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: 501}}, Err: errors.New("<html>")}), "", true, false, true},
	} {
		if Code(test.err) != test.code || Denied(test.err) != test.denied || NoCredentials(test.err) != test.noCredentials || Unsupported(test.err) != test.unsupported {
			t.Errorf("%s: %q, denied %t, no credentials %t, unsupported %t", name, Code(test.err), Denied(test.err), NoCredentials(test.err), Unsupported(test.err))
		}
	}
}
