package iampolicy_test

import (
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// AWS compares the six parts of ARNs one by one, so that a wildcard does not reach over a colon between
// them. What a request has of a key that is not known here is not known either.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
func TestAPolicyThatAWSWouldNotTakeForOursIsNotAllowed(t *testing.T) {
	const allow = `{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*", "Condition": `
	for name, condition := range map[string]string{
		"an ARN of five parts":          `{"ArnLike": {"aws:SourceArn": "arn:aws:events:*:rule/*"}}`,
		"no key of an organization":     `{"Null": {"aws:SourceOrgID": "true"}}`,
		"no key that nobody knows here": `{"Null": {"aws:PrincipalServiceName": "true"}}`,
	} {
		p, err := iampolicy.Parse(document(allow + condition + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Evaluate(send); got == iampolicy.Allowed {
			t.Errorf("%s: %s", name, got)
		}
	}
}
