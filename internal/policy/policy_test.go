package policy_test

import (
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/policy"
)

const (
	queue = "arn:aws:sqs:us-east-1:123456789012:interruptions"
	rule  = "arn:aws:events:us-east-1:123456789012:rule/spot"
)

var send = policy.Request{
	Service: "events.amazonaws.com", Action: "sqs:SendMessage", Resource: queue,
	Context: map[string]string{"aws:sourcearn": rule, "aws:sourceaccount": "123456789012", "aws:securetransport": "true"},
}

func document(statements string) string {
	return `{"Version": "2012-10-17", "Statement": [` + statements + `]}`
}

func TestAPolicyLetsThroughWhatAWSWould(t *testing.T) {
	const (
		allow = `{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "` + queue + `"`
		deny  = `{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*"`
	)
	for name, tt := range map[string]struct {
		document string
		want     policy.Verdict
	}{
		"none":                          {"", policy.Refused},
		"for the service":               {document(allow + `}`), policy.Allowed},
		"for several":                   {document(`{"Effect": "Allow", "Principal": {"Service": ["sns.amazonaws.com", "events.amazonaws.com"]}, "Action": ["sqs:Send*"], "Resource": ["*"]}`), policy.Allowed},
		"one statement without a list":  {`{"Statement": ` + allow + `}}`, policy.Allowed},
		"for another service":           {document(`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*"}`), policy.Refused},
		"for an account":                {document(`{"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sqs:*", "Resource": "*"}`), policy.Refused},
		"for everybody":                 {document(`{"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": "*"}`), policy.Allowed},
		"for every AWS account":         {document(`{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sqs:SendMessage", "Resource": "*"}`), policy.Allowed},
		"for another action":            {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:ReceiveMessage", "Resource": "*"}`), policy.Refused},
		"for another queue":             {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "arn:aws:sqs:us-east-1:123456789012:other"}`), policy.Refused},
		"for all but another queue":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "NotResource": "arn:aws:sqs:us-east-1:123456789012:other"}`), policy.Allowed},
		"for the rule":                  {document(allow + `, "Condition": {"ArnEquals": {"aws:SourceArn": ["` + rule + `"]}}}`), policy.Allowed},
		"for rules of a pattern":        {document(allow + `, "Condition": {"ArnLike": {"AWS:SourceArn": "arn:aws:events:*:123456789012:rule/*"}}}`), policy.Allowed},
		"for another rule":              {document(allow + `, "Condition": {"ArnEquals": {"aws:SourceArn": "` + rule + `2"}}}`), policy.Refused},
		"for the account":               {document(allow + `, "Condition": {"StringEquals": {"aws:SourceAccount": "123456789012"}}}`), policy.Allowed},
		"for all but the account":       {document(allow + `, "Condition": {"StringNotEquals": {"aws:SourceAccount": "123456789012"}}}`), policy.Refused},
		"with two conditions, one met":  {document(allow + `, "Condition": {"StringEquals": {"aws:SourceAccount": "123456789012"}, "ArnEquals": {"aws:SourceArn": "x"}}}`), policy.Refused},
		"with a condition we cannot":    {document(allow + `, "Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}}`), policy.Unclear},
		"with a key we do not know":     {document(allow + `, "Condition": {"StringEquals": {"aws:SourceOrgID": "o-1"}}}`), policy.Unclear},
		"unclear first, clear behind":   {document(allow + `, "Condition": {"DateLessThan": {"x": "y"}}},` + allow + `}`), policy.Allowed},
		"with a key it does not carry":  {document(allow + `, "Condition": {"StringEquals": {"aws:SourceVpce": "vpce-1"}}}`), policy.Refused},
		"… if it exists":                {document(allow + `, "Condition": {"StringEqualsIfExists": {"aws:SourceVpce": "vpce-1"}}}`), policy.Allowed},
		"where a key must be missing":   {document(allow + `, "Condition": {"Null": {"aws:SourceArn": "true"}}}`), policy.Refused},
		"where a key must be there":     {document(allow + `, "Condition": {"Null": {"aws:SourceArn": false}}}`), policy.Allowed},
		"denied without TLS":            {document(allow + `},` + deny + `, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}`), policy.Allowed},
		"denied":                        {document(allow + `},` + deny + `}`), policy.Denied},
		"denied from outside of a VPC":  {document(allow + `},` + deny + `, "Condition": {"StringNotEquals": {"aws:SourceVpce": "vpce-1"}}}`), policy.Denied},
		"denied perhaps":                {document(allow + `},` + deny + `, "Condition": {"DateLessThan": {"x": "y"}}}`), policy.Unclear},
		"denied to all but somebody":    {document(allow + `},{"Effect": "Deny", "NotPrincipal": {"AWS": "x"}, "Action": "*", "Resource": "*"}`), policy.Unclear},
		"a key's policy, of itself":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:sendmessage"}`), policy.Allowed},
		"one letter for a question":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessag?", "Resource": "*"}`), policy.Allowed},
		"no letter for a question mark": {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage?", "Resource": "*"}`), policy.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Parse(tt.document)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Evaluate(send); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestWhatIsNoPolicyIsAnError(t *testing.T) {
	for _, text := range []string{"no JSON", `{"Statement": [{"Principal": "me"}]}`, `{"Statement": 5}`} {
		if _, err := policy.Parse(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func TestNamesTellsOfServicesWhateverTheConditions(t *testing.T) {
	p, err := policy.Parse(document(`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Condition": {"X": {"y": "z"}}}`))
	if err != nil || !p.Names("sns.amazonaws.com") || p.Names("events.amazonaws.com") {
		t.Errorf("names %v %v, error %v", p.Names("sns.amazonaws.com"), p.Names("events.amazonaws.com"), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*", "Condition": {"Bool": {"a": ["b"]}}}`))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policy.Parse(text)
		if err != nil {
			return
		}
		if v := p.Evaluate(policy.Request{}); v > policy.Allowed {
			t.Errorf("verdict %d", v)
		}
	})
}
