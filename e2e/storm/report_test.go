package main

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/storm/figures"
)

// A run without settings can be compared with others of its size.
func TestOnlyWhatMakesAStormAnotherIsASetting(t *testing.T) {
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.Int("nodes", 100, "")
	flags.String("record", "", "")
	flags.Duration("stop", time.Second, "")
	flags.Duration("latency", 0, "")
	flags.Bool("tag-check", true, "")
	if err := flags.Parse([]string{"-nodes=5", "-record=x", "-stop=1s", "-latency=15ms", "-tag-check=false"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"latency": "15ms", "tag-check": "false"}, settings(flags)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheHandlersVersionIsRead(t *testing.T) {
	version := []byte("node-termination-handler (devel)\ncommit: 8ed45c2040cf (modified)\nbuilt with: go1.26.8 for linux/amd64\n")
	for prefix, want := range map[string]string{"commit: ": "8ed45c2040cf (modified)", "built with: ": "go1.26.8 for linux/amd64", "none: ": ""} {
		if got := lineAfter(version, prefix); got != want {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

func TestCallsOfTheStormAreCounted(t *testing.T) {
	receive := awssim.CallKey{Service: "sqs", Action: "ReceiveMessage"}
	throttled := awssim.CallKey{Service: "ec2", Action: "DescribeInstances", Code: "RequestLimitExceeded"}
	leads := awssim.CallKey{Service: "sqs", Action: "GetQueueAttributes"}
	got := awsCalls(map[awssim.CallKey]int{receive: 1, leads: 1}, map[awssim.CallKey]int{receive: 4, leads: 1, throttled: 2})
	want := map[string]int{"sqs ReceiveMessage": 3, "ec2 DescribeInstances RequestLimitExceeded": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheTableHasWhatWasMeasured(t *testing.T) {
	var out strings.Builder
	err := printRun(&out, figures.Run{
		Nodes: 10, Messages: 20, Rest: 10, Missed: 1, CPU: 1.5,
		Cordoned:   timesOf(spread{time.Second, 3 * time.Second}, spread{time.Second}, spread{2 * time.Second}),
		Memory:     figures.Memory{Rest: 25 << 20, Anonymous: 12 << 20, Peak: 54 << 20},
		AWSAtRest:  map[string]int{"sqs ReceiveMessage": 1},
		AWS:        map[string]int{"sqs DeleteMessageBatch": 3},
		Kubernetes: map[string]int{"patch nodes": 20, "create events": 80, "update leases": 5, "create pods/eviction 429": 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	table := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"cordoned 3.00 s 3.00 s 3.00 s 3.00 s 1.50 s 2.00 1.00 s 2.00 s",
		"missed their deadline 1",
		"25 MiB 54 MiB 12 MiB at rest",
		"CPU of the handler 1.50 s",
		"AWS sqs ReceiveMessage 1 2.00 in 20 s at rest",
		"AWS sqs DeleteMessageBatch 3 1.50 for 10 messages",
		"Kubernetes create pods/eviction 429 5 0.50 a node",
		"without Events and Lease 25 2.50 a node",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}
