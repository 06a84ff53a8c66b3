package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const (
	// The environment of the process of its own that serves the queue: its endpoint,
	// and the file for what it took.
	floodEndpoint, floodReport = "QUEUE_TEST_FLOOD_ENDPOINT", "QUEUE_TEST_FLOOD_REPORT"

	// A pod has 256 MiB by default, and a queue is not all that it is about.
	floodMemory = 128 << 20
	// floodDeliveries is how many are enough.
	floodDeliveries = 200
)

// SQS takes bodies of 1 MiB from whoever may send, and gives ten of them at once to
// each receiver.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
func TestAFloodOfTheLargestBodiesFitsIntoAPod(t *testing.T) {
	if race.Enabled() {
		t.Skip("measures memory, of which the race detector takes a multiple")
	}
	if os.Getenv("GOMEMLIMIT") != "" || os.Getenv("GOGC") != "" {
		t.Skip("the environment says how memory is managed")
	}
	const size, messages = 1 << 20, 300
	spot, err := os.ReadFile("../notice/testdata/events/spot-interruption.json")
	if err != nil {
		t.Fatal(err)
	}
	long := func(unit string, size int) string {
		text, err := json.Marshal(strings.Repeat(unit, size/len(unit)))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(string(spot), `"id":`, `"more":`+string(text)+`,"id":`, 1)
	}
	for name, body := range map[string]string{
		"of letters":                   long("x", size-2048),
		"of quotes, twice as long":     long(`"`, size/2-2048),
		"of what is just small enough": long("[", 500<<10),
	} {
		t.Run(name, func(t *testing.T) {
			sim := awssim.New(awssim.Options{})
			t.Cleanup(sim.Close)
			endpoint, err := sim.Listen(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if err := sim.CreateQueue(awssim.Queue{Name: "notices"}); err != nil {
				t.Fatal(err)
			}
			for range messages {
				if _, err := sim.SendMessage("notices", body); err != nil {
					t.Fatal(err)
				}
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			report := filepath.Join(t.TempDir(), "report")
			child := exec.CommandContext(t.Context(), self, "-test.run=^TestServeAFlood$")
			child.Env = append(os.Environ(), floodEndpoint+"="+endpoint, floodReport+"="+report)
			if out, err := child.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text, err := os.ReadFile(report)
			if err != nil {
				t.Fatal(err)
			}
			var peak, deliveries int64
			if _, err := fmt.Sscan(string(text), &peak, &deliveries); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			t.Logf("%d deliveries of bodies with %d bytes: at most %d MiB resident", deliveries, len(body), peak>>20)
			if deliveries < floodDeliveries {
				t.Errorf("%d deliveries, want %d", deliveries, floodDeliveries)
			}
			if peak > floodMemory {
				t.Errorf("%d MiB resident, want %d at most", peak>>20, floodMemory>>20)
			}
		})
	}
}

// TestServeAFlood is the process that the test above starts. It serves the queue of an
// endpoint until it has seen floodDeliveries, with the garbage collector of the
// product, and writes how much memory was resident at most.
func TestServeAFlood(t *testing.T) {
	endpoint := os.Getenv(floodEndpoint)
	if endpoint == "" {
		t.Skip("a test starts it")
	}
	debug.SetGCPercent(50)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var deliveries atomic.Int64
	s := &Server{
		Client: sqs.NewFromConfig(aws.Config{
			Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: transport},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "AKIASIMULATED", SecretAccessKey: "secret"}, nil
			}),
		}),
		URL:        endpoint + "/123456789012/notices",
		Visibility: time.Second, // what was left comes back soon
		Handler: handlerFunc(func(_ context.Context, m Message) error {
			_, err := notice.Parse(m.Body)
			m.Release()
			if deliveries.Add(1) == floodDeliveries {
				cancel()
			}
			return Leave(err)
		}),
	}
	if err := s.Serve(ctx); err != nil {
		t.Error(err)
	}
	peak, err := peakMemory()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv(floodReport), fmt.Append(nil, peak, deliveries.Load()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// peakMemory is how many bytes of this process were resident at most.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			_, err := fmt.Sscan(text, &kib)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in %q", status)
}
