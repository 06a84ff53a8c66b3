// Command awssim runs the AWS simulator of package awssim as a program of its own:
// SQS, EC2, EC2 Auto Scaling, target groups, EventBridge, SNS and their like on one loopback port, for end-to-end
// tests and for whoever wants to point a cluster's controller at it.
//
//	go run ./e2e/awssim/cmd --listen 127.0.0.1:4566 --queue NAME [--state FILE.json] [--enforce-policies]
//
//	--listen ADDRESS  where to serve; port 0 takes a free one. Default 127.0.0.1:4566
//	--queue NAME      creates a queue, and a rule that sends it every event of
//	                  the simulator: lifecycle actions, instances' states
//	--state FILE      sets up what the file says: an object with queues,
//	                  instances, groups, hooks, targetGroups, keys, rules, topics, subscriptions, faults, as
//	                  GET /_awssim/state shows them
//	--enforce-policies  EventBridge and SNS send only where the policies of the topic, the
//	                  queue and its key let them, as in AWS
//
// It prints the endpoint, the URL of the queue and the environment variables
// that lead SDK clients here, in a form that a shell can evaluate. It
// ends on SIGTERM or SIGINT with status 0; a mistake in its arguments is
// status 2, anything else that goes wrong status 1.
//
// # The control API
//
// All of it is JSON, under /_awssim/. GET shows state, queues,
// queues/NAME/messages, instances, groups, hooks, target-groups, target-groups/NAME/targets, keys, rules, lifecycle,
// faults, calls (the last 10,000), counts (of all calls) and effects (what happened to
// messages, lifecycle actions and instances, with times). Field names are those
// of the Go types in package awssim; times are RFC 3339, durations like "30s".
//
// With A=http://127.0.0.1:4566/_awssim, put an instance, a group with it and a
// hook, and let the group terminate the instance; its event goes to the queue:
//
//	curl -X PUT $A/instances/i-0123456789abcdef0 -d '{
//	  "privateDNSName": "ip-10-0-0-1.ec2.internal",
//	  "tags": {"aws-node-termination-handler/managed": ""}}'
//	curl -X PUT $A/groups/workers -d '{"instances": ["i-0123456789abcdef0"]}'
//	curl -X PUT $A/groups/workers/hooks/drain -d '{
//	  "transition": "autoscaling:EC2_INSTANCE_TERMINATING", "heartbeatTimeout": "2m"}'
//	curl -X POST $A/lifecycle -d '{"instanceID": "i-0123456789abcdef0"}'
//	curl $A/lifecycle
//
// Send a message of any kind, see what is in the queue, and have a message
// delivered once more:
//
//	curl -X POST $A/queues/NAME/messages --data-binary @spot-interruption.json
//	curl $A/queues/NAME/messages
//	curl -X POST $A/queues/NAME/messages/ID/redeliver
//
// Another queue, with a dead-letter queue; one that delivers a tenth of its
// messages twice; the state of an instance, with the event that tells of it:
//
//	curl -X PUT $A/queues/dead
//	curl -X PUT $A/queues/jobs -d '{"attributes": {"VisibilityTimeout": "20",
//	  "RedrivePolicy": "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:123456789012:dead\",\"maxReceiveCount\":3}"}}'
//	curl -X PUT $A/queues/doubles -d '{"duplicates": 0.1}'
//	curl -X PUT $A/instances/i-0123456789abcdef0/state/stopping
//
// A target group, a target that is registered and one that is deregistered:
//
//	curl -X PUT $A/target-groups/web -d '{"deregistrationDelay": "30s"}'
//	curl -X PUT $A/target-groups/web/targets/i-0123456789abcdef0
//	curl -X DELETE $A/target-groups/web/targets/i-0123456789abcdef0
//
// A FIFO queue, a small one with a key, the policies of queue and key as files, and
// the end of a queue:
//
//	curl -X PUT $A/queues/orders.fifo -d '{"attributes": {"FifoQueue": "true", "ContentBasedDeduplication": "true"}}'
//	curl -X PUT $A/rules/orders -d '{"queue": "orders.fifo", "messageGroup": "all"}'
//	curl -X PUT $A/keys/k-1 -d '{"alias": "alias/queues"}'
//	curl -X PUT $A/queues/small -d '{"attributes": {"MaximumMessageSize": "2048", "KmsMasterKeyId": "alias/queues"}}'
//	curl -X PUT $A/queues/small/policy --data-binary @policy.json
//	curl -X PUT $A/keys/k-1/policy --data-binary @policy.json
//	curl -X DELETE $A/queues/small
//
// A topic, a rule that publishes to it, and a queue that gets what is published as it is:
//
//	curl -X POST $A/topics -d '{"arn": "arn:aws:sns:us-east-1:123456789012:notices"}'
//	curl -X PUT $A/rules/notices -d '{"topic": "arn:aws:sns:us-east-1:123456789012:notices"}'
//	curl -X POST $A/subscriptions -d '{
//	  "topicARN": "arn:aws:sns:us-east-1:123456789012:notices", "queue": "jobs", "raw": true}'
//
// Faults: slow EC2, throttled Auto Scaling, the next three deletions lost after
// they took effect, an SQS that never answers; and their end:
//
//	curl -X PUT $A/faults/slow     -d '{"service": "ec2", "latency": "800ms"}'
//	curl -X PUT $A/faults/throttle -d '{"service": "autoscaling", "rate": 5, "burst": 10}'
//	curl -X PUT $A/faults/lost     -d '{"service": "sqs", "action": "Delete*", "count": 3,
//	                                    "reset": true, "afterEffect": true}'
//	curl -X PUT $A/faults/silent   -d '{"service": "sqs", "hang": true}'
//	curl -X DELETE $A/faults/silent
//
// What was asked, how often, and what came of it:
//
//	curl $A/calls
//	curl $A/counts
//	curl $A/effects
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "awssim:", err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a mistake in the arguments.
type usageError struct{ error }

// run serves until ctx ends, which is no error. Help and the lines that tell
// where the simulator is go to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("awssim", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are reported by the caller, once
	listen := flags.String("listen", "127.0.0.1:4566", "`address` to serve on; port 0 takes a free one")
	queue := flags.String("queue", "", "`name` of a queue to create, which gets every event of the simulator")
	stateFile := flags.String("state", "", "JSON `file` with what to set up")
	enforce := flags.Bool("enforce-policies", false,
		"let EventBridge send only where the policies of the queue and of its key let it")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.Usage()
		return err
	case err != nil:
		return usageError{err}
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("arguments that are not flags: %s", strings.Join(flags.Args(), " "))}
	}

	server := awssim.New(awssim.Options{EnforcePolicies: *enforce})
	defer server.Close()
	if *queue != "" {
		setup := awssim.State{
			Queues: []awssim.Queue{{Name: *queue}},
			Rules:  []awssim.Rule{{Name: "every-event", Queue: *queue}},
		}
		if err := server.Apply(setup); err != nil {
			return err
		}
	}
	// The file comes second, so that what it says of the same queue holds.
	if *stateFile != "" {
		if err := applyFile(server, *stateFile); err != nil {
			return err
		}
	}
	endpoint, err := server.Listen(ctx, *listen)
	if err != nil {
		return err
	}
	announce(out, server, endpoint, *queue)
	<-ctx.Done()
	return nil
}

func applyFile(server *awssim.Server, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	defer file.Close()
	var state awssim.State
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&state); err != nil {
		return fmt.Errorf("read state from %s: %w", name, err)
	}
	if err := server.Apply(state); err != nil {
		return fmt.Errorf("apply state from %s: %w", name, err)
	}
	return nil
}

// announce tells where the simulator is. All but the variables is a comment to a shell.
func announce(out io.Writer, server *awssim.Server, endpoint, queue string) {
	fmt.Fprintf(out, "# AWS simulator at %s, control API at %s/_awssim/state\n", endpoint, endpoint)
	if queue != "" {
		fmt.Fprintf(out, "# queue: %s\n", server.QueueURL(queue))
	}
	fmt.Fprintf(out, "export AWS_ENDPOINT_URL=%s\n", endpoint)
	fmt.Fprintln(out, "export AWS_REGION=us-east-1")
	fmt.Fprintln(out, "export AWS_ACCESS_KEY_ID=AKIASIMULATED")
	fmt.Fprintln(out, "export AWS_SECRET_ACCESS_KEY=secret")
}
