package iampolicy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

const (
	queue = "arn:aws:sqs:us-east-1:123456789012:interruptions"
	rule  = "arn:aws:events:us-east-1:123456789012:rule/spot"
)

var send = iampolicy.Request{
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
		want     iampolicy.Verdict
	}{
		"none":                          {"", iampolicy.Refused},
		"for the service":               {document(allow + `}`), iampolicy.Allowed},
		"for several":                   {document(`{"Effect": "Allow", "Principal": {"Service": ["sns.amazonaws.com", "events.amazonaws.com"]}, "Action": ["sqs:Send*"], "Resource": ["*"]}`), iampolicy.Allowed},
		"one statement without a list":  {`{"Statement": ` + allow + `}}`, iampolicy.Allowed},
		"for another service":           {document(`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*"}`), iampolicy.Refused},
		"for an account":                {document(`{"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sqs:*", "Resource": "*"}`), iampolicy.Refused},
		"for everybody":                 {document(`{"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": "*"}`), iampolicy.Allowed},
		"for every AWS account":         {document(`{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sqs:SendMessage", "Resource": "*"}`), iampolicy.Allowed},
		"for another action":            {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:ReceiveMessage", "Resource": "*"}`), iampolicy.Refused},
		"for another queue":             {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "arn:aws:sqs:us-east-1:123456789012:other"}`), iampolicy.Refused},
		"for all but another queue":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "NotResource": "arn:aws:sqs:us-east-1:123456789012:other"}`), iampolicy.Allowed},
		"for the rule":                  {document(allow + `, "Condition": {"ArnEquals": {"aws:SourceArn": ["` + rule + `"]}}}`), iampolicy.Allowed},
		"for rules of a pattern":        {document(allow + `, "Condition": {"ArnLike": {"AWS:SourceArn": "arn:aws:events:*:123456789012:rule/*"}}}`), iampolicy.Allowed},
		"for another rule":              {document(allow + `, "Condition": {"ArnEquals": {"aws:SourceArn": "` + rule + `2"}}}`), iampolicy.Refused},
		"for the account":               {document(allow + `, "Condition": {"StringEquals": {"aws:SourceAccount": "123456789012"}}}`), iampolicy.Allowed},
		"for all but the account":       {document(allow + `, "Condition": {"StringNotEquals": {"aws:SourceAccount": "123456789012"}}}`), iampolicy.Refused},
		"with two conditions, one met":  {document(allow + `, "Condition": {"StringEquals": {"aws:SourceAccount": "123456789012"}, "ArnEquals": {"aws:SourceArn": "x"}}}`), iampolicy.Refused},
		"with a condition we cannot":    {document(allow + `, "Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}}`), iampolicy.Unclear},
		"with a key we do not know":     {document(allow + `, "Condition": {"StringEquals": {"aws:SourceOrgID": "o-1"}}}`), iampolicy.Unclear},
		"unclear first, clear behind":   {document(allow + `, "Condition": {"DateLessThan": {"x": "y"}}},` + allow + `}`), iampolicy.Allowed},
		"with a key it does not carry":  {document(allow + `, "Condition": {"StringEquals": {"aws:SourceVpce": "vpce-1"}}}`), iampolicy.Refused},
		"… if it exists":                {document(allow + `, "Condition": {"StringEqualsIfExists": {"aws:SourceVpce": "vpce-1"}}}`), iampolicy.Allowed},
		"where a key must be missing":   {document(allow + `, "Condition": {"Null": {"aws:SourceArn": "true"}}}`), iampolicy.Refused},
		"where a key must be there":     {document(allow + `, "Condition": {"Null": {"aws:SourceArn": false}}}`), iampolicy.Allowed},
		"denied without TLS":            {document(allow + `},` + deny + `, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}`), iampolicy.Allowed},
		"denied":                        {document(allow + `},` + deny + `}`), iampolicy.Denied},
		"denied from outside of a VPC":  {document(allow + `},` + deny + `, "Condition": {"StringNotEquals": {"aws:SourceVpce": "vpce-1"}}}`), iampolicy.Denied},
		"denied perhaps":                {document(allow + `},` + deny + `, "Condition": {"DateLessThan": {"x": "y"}}}`), iampolicy.Unclear},
		"denied to all but somebody":    {document(allow + `},{"Effect": "Deny", "NotPrincipal": {"AWS": "x"}, "Action": "*", "Resource": "*"}`), iampolicy.Unclear},
		"a key's policy, of itself":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:sendmessage"}`), iampolicy.Allowed},
		"one letter for a question":     {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessag?", "Resource": "*"}`), iampolicy.Allowed},
		"no letter for a question mark": {document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage?", "Resource": "*"}`), iampolicy.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := iampolicy.Parse(tt.document)
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
		if _, err := iampolicy.Parse(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func TestNamesTellsOfServicesWhateverTheConditions(t *testing.T) {
	p, err := iampolicy.Parse(document(`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Condition": {"X": {"y": "z"}}}`))
	if err != nil || !p.Names("sns.amazonaws.com") || p.Names("events.amazonaws.com") {
		t.Errorf("names %v %v, error %v", p.Names("sns.amazonaws.com"), p.Names("events.amazonaws.com"), err)
	}
}

// The statement of our templates: AWS says of each request whether a service makes it itself.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-principalisawsservice
func TestADenyForAllButServicesAndANamedRole(t *testing.T) {
	const named = "arn:aws:iam::123456789012:role/bus/deliver"
	p, err := iampolicy.Parse(document(`
		{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "` + queue + `"},
		{"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "` + queue + `", "Condition": {
			"BoolIfExists": {"aws:PrincipalIsAWSService": "false"}, "ArnNotEquals": {"aws:PrincipalArn": ["` + named + `"]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]iampolicy.Verdict{
		"events.amazonaws.com": iampolicy.Allowed, "sns.amazonaws.com": iampolicy.Allowed, named: iampolicy.Allowed,
		named + "2": iampolicy.Denied, "arn:aws:iam::123456789012:user/somebody": iampolicy.Denied,
	} {
		r := iampolicy.Request{Action: "sqs:SendMessage", Resource: queue, Context: map[string]string{}}
		if strings.HasPrefix(who, "arn:") {
			r.Principal, r.Context["aws:principalarn"] = who, who
		} else {
			r.Service = who
		}
		if got := p.Evaluate(r); got != want {
			t.Errorf("%s: %s, want %s", who, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(document(`{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*", "Condition": {"Bool": {"a": ["b"]}}}`))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := iampolicy.Parse(text)
		if err != nil {
			return
		}
		if v := p.Evaluate(iampolicy.Request{}); v > iampolicy.Allowed {
			t.Errorf("verdict %d", v)
		}
	})
}

func TestAPolicyOfARoleLetsTheRoleDoWhatItSays(t *testing.T) {
	p, err := iampolicy.Parse(`{"Statement": [
		{"Effect": "Allow", "Action": "sqs:ReceiveMessage", "Resource": "arn:aws:sqs:us-east-1:123456789012:q"},
		{"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*", "Condition": {"StringEquals": {"aws:RequestedRegion": "us-east-1"}}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		action, resource, region string
		want                     iampolicy.Verdict
	}{
		{"sqs:ReceiveMessage", "arn:aws:sqs:us-east-1:123456789012:q", "us-east-1", iampolicy.Allowed},
		{"sqs:ReceiveMessage", "arn:aws:sqs:us-east-1:123456789012:other", "us-east-1", iampolicy.Refused},
		{"sqs:DeleteMessage", "arn:aws:sqs:us-east-1:123456789012:q", "us-east-1", iampolicy.Refused},
		{"ec2:DescribeInstances", "*", "us-east-1", iampolicy.Allowed},
		{"ec2:DescribeInstances", "*", "eu-west-1", iampolicy.Refused},
	} {
		got := p.Evaluate(iampolicy.Request{Action: tt.action, Resource: tt.resource, Context: map[string]string{"aws:requestedregion": tt.region}})
		if got != tt.want {
			t.Errorf("%s on %s in %s: %s, want %s", tt.action, tt.resource, tt.region, got, tt.want)
		}
	}
}

func TestAPolicyOfAQueueLetsRolesIn(t *testing.T) {
	const role = "arn:aws:iam::210987654321:role/bus/deliver"
	allow := func(principal, condition string) string {
		return document(`{"Effect": "Allow", "Principal": ` + principal + `, "Action": "sqs:SendMessage", "Resource": "` + queue + `", "Condition": {` + condition + `}}`)
	}
	for name, tt := range map[string]struct {
		document string
		want     iampolicy.Verdict
		named    []string
	}{
		"the role":             {allow(`{"AWS": "`+role+`"}`, ""), iampolicy.Allowed, []string{role}},
		"several":              {allow(`{"AWS": ["x", "`+role+`"]}`, ""), iampolicy.Allowed, []string{"x", role}},
		"another role":         {allow(`{"AWS": "`+role+`2"}`, ""), iampolicy.Refused, []string{role + "2"}},
		"its account":          {allow(`{"AWS": "210987654321"}`, ""), iampolicy.Unclear, []string{"210987654321"}},
		"its account, by ARN":  {allow(`{"AWS": "arn:aws:iam::210987654321:root"}`, ""), iampolicy.Unclear, []string{"arn:aws:iam::210987654321:root"}},
		"another account":      {allow(`{"AWS": "123456789012"}`, ""), iampolicy.Refused, []string{"123456789012"}},
		"a service":            {allow(`{"Service": "events.amazonaws.com"}`, ""), iampolicy.Refused, nil},
		"for a rule":           {allow(`{"AWS": "`+role+`"}`, `"ArnEquals": {"aws:SourceArn": "`+rule+`"}`), iampolicy.Refused, []string{role}},
		"by a condition":       {allow(`"*"`, `"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::210987654321:role/bus/*"}`), iampolicy.Allowed, []string{"arn:aws:iam::210987654321:role/bus/*"}},
		"of an organization":   {allow(`"*"`, `"StringEquals": {"aws:PrincipalOrgID": "o-1"}`), iampolicy.Unclear, nil},
		"to another queue":     {document(`{"Effect": "Allow", "Principal": {"AWS": "` + role + `"}, "Action": "sqs:*", "Resource": "` + queue + `2"}`), iampolicy.Refused, nil},
		"to receive":           {document(`{"Effect": "Allow", "Principal": {"AWS": "` + role + `"}, "Action": "sqs:ReceiveMessage", "Resource": "*"}`), iampolicy.Refused, nil},
		"and denied to others": {document(`{"Effect": "Deny", "Principal": {"AWS": "x"}, "Action": "*", "Resource": "*"}, {"Effect": "Allow", "Principal": {"AWS": "` + role + `"}, "Action": "*", "Resource": "*"}`), iampolicy.Allowed, []string{role}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := iampolicy.Parse(tt.document)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Evaluate(iampolicy.Request{Principal: role, Action: "sqs:SendMessage", Resource: queue, Context: map[string]string{
				"aws:principalarn": role, "aws:principalaccount": "210987654321", "aws:securetransport": "true",
			}})
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if named := p.Principals("sqs:SendMessage", queue); !slices.Equal(named, tt.named) {
				t.Errorf("it names %q, want %q", named, tt.named)
			}
		})
	}
}

func TestSourcesAreThoseOfTheService(t *testing.T) {
	p, err := iampolicy.Parse(document(`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*", "Condition": {"ArnEquals": {"aws:SourceArn": ["b", "a"]}}},
		{"Effect": "Allow", "Principal": {"Service": ["SNS.amazonaws.com"]}, "Action": "sqs:SendMessage", "Resource": "*", "Condition": {"ArnNotEquals": {"aws:SourceArn": "c"}, "StringLike": {"AWS:SourceArn": "d"}}},
		{"Effect": "Deny", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "*", "Resource": "*", "Condition": {"ArnEquals": {"aws:SourceArn": "e"}}},
		{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "*", "Resource": "*", "Condition": {"ArnEquals": {"aws:SourceArn": "f"}}},
		{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*", "Condition": {"ArnEquals": {"aws:SourceArn": "g"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Sources("sns.amazonaws.com"), []string{"a", "b", "d", "g"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
