package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	smithylog "github.com/aws/smithy-go/logging"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// What asks EKS Pod Identity for credentials has an HTTP client of its own in the SDK. A process reads the variables of
// a proxy once, so another one plays this.
func TestNoProxyIsAskedForTheCredentialsOfPodIdentity(t *testing.T) {
	const played = "PLAYS_POD_IDENTITY"
	if os.Getenv(played) != "" {
		cfg, err := AWSConfig(t.Context(), &options.Options{Region: "eu-west-1"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cfg.Credentials.Retrieve(ctx); err == nil {
			t.Error("there are credentials, and there is no agent")
		}
		return
	}
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusForbidden)
	}))
	defer proxy.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	play := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	play.Env = append(os.Environ(), played+"=1", "HTTP_PROXY="+proxy.URL, "NO_PROXY=", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://169.254.170.23/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN=x")
	if out, err := play.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the proxy was asked %d times", n)
	}
}

func TestWhatTheSDKWarnsOfIsInTheLog(t *testing.T) {
	var log logtest.Log
	clients, err := newAWSClients(t.Context(), &options.Options{Region: "eu-west-1"}, log.Logger(), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	clients.sqs.Options().Logger.Logf(smithylog.Warn, "a %s", "warning")
	if said := log.Entries("message of a library", "says", "a warning", "level", "warn"); len(said) != 1 || said[0].Logger != "aws" {
		t.Errorf("the log is:\n%s", log.String())
	}
}

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
