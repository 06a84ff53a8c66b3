package awserr

import (
	"errors"
	"fmt"
	"testing"

	"github.com/aws/smithy-go"
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
	}{
		"none":                     {nil, "", false, false},
		"no answer":                {call("SQS", errors.New("connection refused")), "", false, false},
		"another answer":           {call("SQS", answer("Throttling")), "Throttling", false, false},
		"SQS denies the call":      {call("SQS", answer("AccessDenied")), "AccessDenied", true, false},
		"so does ELB":              {call("Elastic Load Balancing v2", answer("AccessDeniedException")), "AccessDeniedException", true, false},
		"EC2 denies the call":      {call("EC2", answer("UnauthorizedOperation")), "UnauthorizedOperation", true, false},
		"an entry of a batch":      {answer("AccessDenied"), "AccessDenied", true, false},
		"STS refuses the role":     {call("Auto Scaling", call("STS", answer("AccessDenied"))), "AccessDenied", false, true},
		"so it does, in words":     {call("Auto Scaling", fmt.Errorf("get identity: get credentials: %w", answer("AccessDenied"))), "AccessDenied", false, true},
		"there are no credentials": {call("SQS", errors.New("get identity: get credentials: no EC2 IMDS role found")), "", false, true},
		"a call to STS is denied":  {call("STS", answer("AccessDenied")), "AccessDenied", true, false},
	} {
		if Code(test.err) != test.code || Denied(test.err) != test.denied || NoCredentials(test.err) != test.noCredentials {
			t.Errorf("%s: %q, denied %t, no credentials %t", name, Code(test.err), Denied(test.err), NoCredentials(test.err))
		}
	}
}
