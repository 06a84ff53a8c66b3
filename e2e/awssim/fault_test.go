package awssim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func (w *world) describeAll() error {
	_, err := w.ec2.DescribeInstances(w.ctx, &ec2.DescribeInstancesInput{})
	return err
}

func (w *world) describeGroups() error {
	_, err := w.autoscaling.DescribeAutoScalingGroups(w.ctx, &autoscaling.DescribeAutoScalingGroupsInput{})
	return err
}

func (w *world) sendBySDK() error {
	_, err := w.sqs.SendMessage(w.ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("hello")})
	return err
}

func TestAFaultHarmsTheCallsThatItMatches(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault                 awssim.Fault
		sqs, ec2, autoscaling bool // harmed
	}{
		"every call":              {awssim.Fault{}, true, true, true},
		"a service":               {awssim.Fault{Service: "ec2"}, false, true, false},
		"a pattern of services":   {awssim.Fault{Service: "*s*"}, true, false, true},
		"a pattern of actions":    {awssim.Fault{Action: "Describe*"}, false, true, true},
		"an action of a service":  {awssim.Fault{Service: "sqs", Action: "SendMessage"}, true, false, false},
		"an action of no service": {awssim.Fault{Service: "sqs", Action: "Describe*"}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				test.fault.Code = "AccessDenied"
				w.ok(w.server.SetFault(test.fault))
				got := []bool{w.sendBySDK() != nil, w.describeAll() != nil, w.describeGroups() != nil}
				if diff := cmp.Diff([]bool{test.sqs, test.ec2, test.autoscaling}, got); diff != "" {
					t.Errorf("harmed sqs, ec2, autoscaling (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestErrorsOfFaultsReachTheSDKOfEveryService(t *testing.T) {
	t.Parallel()
	calls := map[string]func(w *world) error{"sqs": (*world).sendBySDK, "ec2": (*world).describeAll, "autoscaling": (*world).describeGroups}
	for service, call := range calls {
		for name, test := range map[string]struct {
			fault  awssim.Fault
			code   string
			status int
		}{
			"a code and a status": {awssim.Fault{Status: 403, Code: "AccessDenied"}, "AccessDenied", 403},
			"a code alone":        {awssim.Fault{Code: "Unheard"}, "Unheard", 400},
			"status 500 alone":    {awssim.Fault{Status: 500}, "InternalFailure", 500},
			"status 503 alone":    {awssim.Fault{Status: 503}, "ServiceUnavailable", 503},
		} {
			t.Run(service+", "+name, func(t *testing.T) {
				t.Parallel()
				inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
					w.ok(w.server.SetFault(test.fault))
					wantError(t, call(w), test.code, test.status)
				})
			})
		}
	}
}

func TestThrottlingIsATokenBucketWithTheErrorOfItsService(t *testing.T) {
	t.Parallel()
	for service, test := range map[string]struct {
		call   func(w *world) error
		code   string
		status int
	}{
		"sqs":         {(*world).sendBySDK, "RequestThrottled", 403},
		"ec2":         {(*world).describeAll, "RequestLimitExceeded", 503},
		"autoscaling": {(*world).describeGroups, "Throttling", 400},
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				w.ok(w.server.SetFault(awssim.Fault{Service: service, Rate: 10, Burst: 3}))
				for range 3 {
					w.ok(test.call(w))
				}
				wantError(t, test.call(w), test.code, test.status)
				time.Sleep(100 * time.Millisecond)
				w.ok(test.call(w))
				wantError(t, test.call(w), test.code, test.status)
				time.Sleep(time.Hour)
				for range 3 {
					w.ok(test.call(w))
				}
				wantError(t, test.call(w), test.code, test.status)
			})
		})
	}
}

func TestTheSDKRetriesWhatPasses(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]awssim.Fault{
		"throttling":        {Rate: 1, Burst: 1},
		"a server error":    {Status: 500, Count: 2},
		"resets":            {Reset: true, Count: 2},
		"a silent endpoint": {Hang: true, HangFor: time.Second, Count: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				fault.Action = "DescribeAutoScalingGroups"
				w.ok(w.server.SetFault(fault))
				config := w.server.Config()
				config.RetryMaxAttempts = 10
				client := autoscaling.NewFromConfig(config)
				for range 2 {
					_, err := client.DescribeAutoScalingGroups(w.ctx, &autoscaling.DescribeAutoScalingGroupsInput{})
					w.ok(err)
				}
				if calls := len(w.server.Calls()); calls < 3 {
					t.Errorf("%d calls were made, want some to be retried", calls)
				}
			})
		})
	}
}

func TestACountEndsAFault(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.SetFault(awssim.Fault{ID: "x", Service: "ec2", Code: "Bad", Count: 2}))
		w.ok(w.describeGroups()) // does not count
		for range 2 {
			wantError(t, w.describeAll(), "Bad", 400)
		}
		w.ok(w.describeAll())
		w.ok(w.server.SetFault(awssim.Fault{ID: "x", Service: "ec2", Code: "Worse"}))
		wantError(t, w.describeAll(), "Worse", 400)
		if !w.server.RemoveFault("x") || w.server.RemoveFault("x") {
			t.Error("RemoveFault did not find the fault once")
		}
		w.ok(w.describeAll())
	})
}

func TestAProbabilityIsTheSameForASeed(t *testing.T) {
	t.Parallel()
	pattern := func(seed uint64) (harmed string) {
		inBubble(t, awssim.Options{Seed: seed}, awssim.Queue{}, func(w *world) {
			w.ok(w.server.SetFault(awssim.Fault{Code: "Bad", Probability: 0.3}))
			for range 200 {
				harmed += fmt.Sprint(w.describeAll() != nil)[:1]
			}
		})
		return harmed
	}
	first := pattern(1)
	if first != pattern(1) {
		t.Error("one seed gave two patterns")
	}
	if first == pattern(2) {
		t.Error("two seeds gave one pattern")
	}
	if share := strings.Count(first, "t"); share < 40 || share > 80 {
		t.Errorf("%d of 200 calls were harmed, want about 60", share)
	}
}

func TestLatenciesAddUpBeforeTheCallTakesEffect(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.SetFault(awssim.Fault{ID: "a", Latency: 2 * time.Second}))
		w.ok(w.server.SetFault(awssim.Fault{ID: "b", Latency: time.Second}))
		w.ok(w.sendBySDK())
		if sent := w.server.Messages("q")[0].Sent; sent.Sub(w.start) != 3*time.Second || time.Since(w.start) != 3*time.Second {
			t.Errorf("sent after %s, answered after %s, want 3s", sent.Sub(w.start), time.Since(w.start))
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		_, err := w.sqs.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("late")})
		if !errors.Is(err, context.DeadlineExceeded) || len(w.server.Messages("q")) != 1 {
			t.Errorf("SendMessage = %v, and %d messages, want the deadline and 1", err, len(w.server.Messages("q")))
		}
	})
}

// TestLostAnswers sends a message and tells what the client and the queue see of it.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault awssim.Fault
		is    error // of the client
		code  string
		sent  int
		took  time.Duration
	}{
		"reset":                {awssim.Fault{Reset: true}, syscall.ECONNRESET, "Reset", 0, 0},
		"reset after effect":   {awssim.Fault{Reset: true, AfterEffect: true}, syscall.ECONNRESET, "Reset", 1, 0},
		"hang":                 {awssim.Fault{Hang: true}, context.DeadlineExceeded, "Hang", 0, time.Minute},
		"hang, after effect":   {awssim.Fault{Hang: true, AfterEffect: true}, context.DeadlineExceeded, "Hang", 1, time.Minute},
		"hang, for a while":    {awssim.Fault{Hang: true, HangFor: 5 * time.Second}, syscall.ECONNRESET, "Hang", 0, 5 * time.Second},
		"half":                 {awssim.Fault{Half: true}, io.ErrUnexpectedEOF, "Half", 1, 0},
		"error, after effect":  {awssim.Fault{Status: 500, AfterEffect: true}, nil, "InternalFailure", 1, 0},
		"error":                {awssim.Fault{Status: 500}, nil, "InternalFailure", 0, 0},
		"error in wrong type":  {awssim.Fault{Status: 500, ContentType: "text/html"}, nil, "InternalFailure", 0, 0},
		"half of an error":     {awssim.Fault{Status: 500, Half: true}, io.ErrUnexpectedEOF, "Half", 0, 0},
		"latency, then a hang": {awssim.Fault{Latency: 2 * time.Second, Hang: true, HangFor: time.Second}, syscall.ECONNRESET, "Hang", 0, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				w.ok(w.server.SetFault(test.fault))
				ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
				defer cancel()
				_, err := w.sqs.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("hello")})
				var api smithy.APIError
				if test.is != nil && !errors.Is(err, test.is) || test.is == nil && !errors.As(err, &api) {
					t.Errorf("error = %v, want %v", err, test.is)
				}
				if took := time.Since(w.start); took != test.took {
					t.Errorf("took %s, want %s", took, test.took)
				}
				if code := w.server.Calls()[0].Code; code != test.code {
					t.Errorf("recorded code = %q, want %q", code, test.code)
				}
				if sent := len(w.server.Messages("q")); sent != test.sent {
					t.Errorf("%d messages were sent, want %d", sent, test.sent)
				}
			})
		})
	}
}

func TestTheDateHeaderAndTheContentTypeCanBeWrong(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.SetFault(awssim.Fault{Skew: -20 * time.Minute, ContentType: "text/html"}))
		body := strings.NewReader("Action=DescribeInstances&Version=2016-11-15")
		request, err := http.NewRequestWithContext(w.ctx, http.MethodPost, awssim.MemoryEndpoint, body)
		w.ok(err)
		answer, err := w.server.Transport().RoundTrip(request)
		w.ok(err)
		defer answer.Body.Close()
		if got, want := answer.Header.Get("Date"), "Fri, 31 Dec 1999 23:40:00 GMT"; got != want {
			t.Errorf("Date = %q, want %q", got, want)
		}
		if got := answer.Header.Get("Content-Type"); got != "text/html" {
			t.Errorf("Content-Type = %q", got)
		}
	})
}

func TestAPatternThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	if server.SetFault(awssim.Fault{Service: "["}) == nil || server.PutRule(awssim.Rule{DetailType: "["}) == nil {
		t.Error("a pattern that cannot be read was taken")
	}
}

// TestOverSockets checks what the in-memory transport imitates: the real one, in real time.
func TestOverSockets(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	t.Cleanup(server.Close)
	if err := server.CreateQueue(awssim.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	config := server.Config()
	config.HTTPClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	config.BaseEndpoint = aws.String(listener.URL)
	config.RetryMaxAttempts = 1
	client := sqs.NewFromConfig(config)
	url, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("q")})
	if err != nil {
		t.Fatal(err)
	}
	if want := listener.URL + "/123456789012/q"; *url.QueueUrl != want {
		t.Errorf("queue URL = %s, want %s", *url.QueueUrl, want)
	}
	send := func() error {
		_, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url.QueueUrl, MessageBody: aws.String("hello")})
		return err
	}
	harm := func(fault awssim.Fault) {
		if err := server.SetFault(fault); err != nil {
			t.Fatal(err)
		}
	}

	harm(awssim.Fault{Reset: true})
	if err := send(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("with a reset: %v", err)
	}
	harm(awssim.Fault{Half: true})
	if err := send(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("with half an answer: %v", err)
	}
	server.RemoveFault("")
	output, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: url.QueueUrl, WaitTimeSeconds: 20})
	if err != nil || len(output.Messages) != 1 {
		t.Errorf("ReceiveMessage = %v, want the message whose answer was cut", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url.QueueUrl, WaitTimeSeconds: 20})
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ReceiveMessage of a client that left = %v", err)
	}
	_, err = client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("nobody")})
	if _, ok := errors.AsType[*types.QueueDoesNotExist](err); !ok {
		t.Errorf("GetQueueUrl = %v, want *types.QueueDoesNotExist", err)
	}
}
