package options

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueueURLIsTakenApart(t *testing.T) {
	const path = "/123456789012/workers"
	for _, tt := range []struct {
		host   string
		form   hostForm
		region string
	}{
		{"https://sqs.us-east-1.amazonaws.com", hostRegional, "us-east-1"},
		{"https://SQS.US-EAST-1.amazonaws.com", hostRegional, "us-east-1"},
		{"https://sqs.cn-north-1.amazonaws.com.cn", hostRegional, "cn-north-1"},
		{"https://sqs.us-gov-west-1.amazonaws.com", hostRegional, "us-gov-west-1"},
		{"https://sqs.us-iso-east-1.c2s.ic.gov", hostRegional, "us-iso-east-1"},
		{"https://sqs.eusc-de-east-1.amazonaws.eu", hostRegional, "eusc-de-east-1"},
		{"https://sqs-fips.us-west-2.amazonaws.com", hostFIPS, "us-west-2"},
		{"https://sqs.eu-west-1.api.aws", hostDualStack, "eu-west-1"},
		{"https://sqs.cn-north-1.api.amazonwebservices.com.cn", hostDualStack, "cn-north-1"},
		{"https://sqs-fips.us-west-2.api.aws", hostOther, "us-west-2"},
		{"https://ap-northeast-2.queue.amazonaws.com", hostLegacy, "ap-northeast-2"},
		{"https://queue.amazonaws.com", hostLegacy, "us-east-1"},
		{"https://queue.amazonaws.com.example.com", hostOther, ""},
		{"https://vpce-0abc-1def.sqs.us-east-2.vpce.amazonaws.com", hostInterface, "us-east-2"},
		{"https://vpce-0abc-1def-us-east-2a.sqs.us-east-2.vpce.amazonaws.com", hostInterface, "us-east-2"},
		{"https://vpce-0abc-1def.sqs-fips.us-east-2.vpce.amazonaws.com", hostInterface, "us-east-2"},
		{"http://sqs.us-east-1.localhost.localstack.cloud:4566", hostOther, "us-east-1"},
		{"http://127.0.0.1:9324", hostOther, ""},
		{"http://[::1]:9324", hostOther, ""},
		{"https://queue.example.com", hostOther, ""},
		{"https://sqs.example.com", hostOther, ""},
		{"https://notsqs.us-east-1.example.com", hostOther, ""},
	} {
		t.Run(tt.host, func(t *testing.T) {
			got, err := ParseQueueURL(tt.host + path)
			if err != nil {
				t.Fatal(err)
			}
			want := QueueURL{
				Text: tt.host + path, base: tt.host, form: tt.form, Region: tt.region,
				Account: "123456789012", Name: "workers",
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(QueueURL{})); diff != "" {
				t.Errorf("parseQueueURL (-want +got):\n%s", diff)
			}
		})
	}
}

func TestQueueURLIsRefused(t *testing.T) {
	for _, tt := range []struct{ text, why string }{
		{"workers", "does not start with http:// or https://"},
		{"arn:aws:sqs:us-east-1:123456789012:workers", "does not start with http:// or https://"},
		{"sqs.us-east-1.amazonaws.com/123456789012/workers", "does not start with http:// or https://"},
		{"https:///123456789012/workers", "names no host"},
		{"https://:443/123456789012/workers", "names no host"},
		{"https://sqs.us-east-1.amazonaws.com", "has no account id and queue name as its path"},
		{"https://sqs.us-east-1.amazonaws.com/workers", "has no account id and queue name as its path"},
		{"https://sqs.us-east-1.amazonaws.com/12345/workers", "has no account id and queue name as its path"},
		{"https://sqs.us-east-1.amazonaws.com/123456789012/workers/", "has no account id and queue name as its path"},
		{"https://sqs.us-east-1.amazonaws.com/123456789012/work ers", "has no account id and queue name as its path"},
		{"https://sqs.us-east-1.amazonaws.com/123456789012/workers?a=b", "has more than a host and a path"},
		{"https://me:hush@sqs.us-east-1.amazonaws.com/123456789012/workers", "holds a user name or password"},
		{"https://sqs.us-east-1.amazonaws.com:port/123456789012/workers", "is not a URL"},
		{"\x00", "is not a URL"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			_, err := ParseQueueURL(tt.text)
			if err == nil || err.Error() != tt.why {
				t.Errorf("parseQueueURL: %v, want %q", err, tt.why)
			}
		})
	}
}

func TestEndpointFollowsTheQueuesHostUnlessTheSDKWouldChooseIt(t *testing.T) {
	for _, tt := range []struct {
		url             string
		fips, dualStack bool
		want            string
	}{
		{"https://sqs.us-east-1.amazonaws.com/123456789012/q", false, false, ""},
		{"https://sqs.us-east-1.amazonaws.com/123456789012/q", true, true, ""},
		{"https://us-east-1.queue.amazonaws.com/123456789012/q", false, false, ""},
		{"https://queue.amazonaws.com/123456789012/q", false, false, ""},
		{"https://sqs-fips.us-east-1.amazonaws.com/123456789012/q", false, false, "https://sqs-fips.us-east-1.amazonaws.com"},
		{"https://sqs-fips.us-east-1.amazonaws.com/123456789012/q", true, false, ""},
		{"https://sqs.us-east-1.api.aws/123456789012/q", false, false, "https://sqs.us-east-1.api.aws"},
		{"https://sqs.us-east-1.api.aws/123456789012/q", false, true, ""},
		{"https://vpce-0a.sqs.us-east-1.vpce.amazonaws.com/123456789012/q", false, false, "https://vpce-0a.sqs.us-east-1.vpce.amazonaws.com"},
		{"http://127.0.0.1:9324/123456789012/q", false, false, "http://127.0.0.1:9324"},
	} {
		q, err := ParseQueueURL(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.endpoint(tt.fips, tt.dualStack); got != tt.want {
			t.Errorf("%s: endpoint(FIPS %t, dual-stack %t) = %q, want %q", tt.url, tt.fips, tt.dualStack, got, tt.want)
		}
	}
}
