package app

import (
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// A proxy in the environment is for what AWS answers, and not for what hands out credentials on the machine.
func TestNoProxyIsAskedForCredentials(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.corp:3128")
	t.Setenv("HTTPS_PROXY", "http://proxy.corp:3128")
	t.Setenv("NO_PROXY", "vpce.corp")
	cfg, err := AWSConfig(t.Context(), &options.Options{Region: "eu-west-1"})
	if err != nil {
		t.Fatal(err)
	}
	proxy := cfg.HTTPClient.(*awshttp.BuildableClient).GetTransport().Proxy
	for address, want := range map[string]bool{
		"https://sqs.eu-west-1.amazonaws.com/":      true,
		"http://10.0.0.7/":                          true,
		"https://sqs.vpce.corp/":                    false,
		"http://169.254.170.23/v1/credentials":      false, // EKS Pod Identity
		"http://[fd00:ec2::23]/v1/credentials":      false,
		"http://169.254.170.2/v2/credentials/x":     false, // ECS
		"http://169.254.169.254/latest/meta-data/":  false, // the instance metadata
		"http://[fd00:ec2::254]/latest/meta-data/":  false,
		"http://[fe80::a9fe:a9fe%25eth0]:80/latest": false,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := proxy(request)
		if err != nil || (got != nil) != want {
			t.Errorf("the proxy for %s is %v, %v, want one: %t", address, got, err, want)
		}
	}
}
