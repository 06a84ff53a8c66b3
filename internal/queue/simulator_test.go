package queue

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// simulatedQueue is a queue of the simulator, behind the real SDK client.
type simulatedQueue struct {
	t   *testing.T
	sim *awssim.Server
}

func newSimulatedQueue(t *testing.T, config awssim.Queue) (*sqs.Client, simulatedQueue) {
	t.Helper()
	sim := awssim.New(awssim.Options{})
	t.Cleanup(sim.Close)
	q := simulatedQueue{t, sim}
	config.Name = "notices"
	if err := sim.CreateQueue(config); err != nil {
		t.Fatal(err)
	}
	return sqs.NewFromConfig(sim.Config()), q
}

func (q simulatedQueue) url() string { return q.sim.QueueURL("notices") }

func (q simulatedQueue) send(bodies ...string) (ids []string) {
	q.t.Helper()
	for _, body := range bodies {
		id, err := q.sim.SendMessage("notices", body)
		if err != nil {
			q.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func (q simulatedQueue) left() (ids []string) {
	for _, m := range q.sim.Messages("notices") {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestSimulatedQueueKeepsTheContract(t *testing.T) {
	testContract(t, func(t *testing.T) (API, control) { return newSimulatedQueue(t, awssim.Queue{}) })
}

func TestErrorsOfTheRealClientAreUnderstood(t *testing.T) {
	for name, test := range map[string]struct {
		fault   awssim.Fault
		missing bool
		want    string // in the error, or in the line logged
		fatal   bool
	}{
		"denied":        {fault: awssim.Fault{Status: 403, Code: "AccessDenied"}, want: "sqs:GetQueueAttributes"},
		"denied, newer": {fault: awssim.Fault{Status: 400, Code: "AccessDeniedException"}, want: "sqs:GetQueueAttributes"},
		"no queue":      {missing: true, want: "no such queue in the region", fatal: true},
		"no KMS grant":  {fault: awssim.Fault{Status: 400, Code: "KMS.AccessDeniedException"}, want: "kms:Decrypt", fatal: true},
		"no answer":     {fault: awssim.Fault{Hang: true}, want: "deadline exceeded", fatal: true},
		"no such call":  {fault: awssim.Fault{Status: 400, Code: "InvalidAction"}, want: "the server does not have this call"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, q := newSimulatedQueue(t, awssim.Queue{})
				test.fault.Action = "GetQueueAttributes"
				if err := q.sim.SetFault(test.fault); err != nil {
					t.Fatal(err)
				}
				r := newRecorder()
				s := &Server{Client: client, URL: q.url(), Log: r.log.Logger()}
				if test.missing {
					s.URL += "-elsewhere"
				}
				err := s.Check(t.Context())
				if (err != nil) != test.fatal {
					t.Fatalf("Check = %v", err)
				}
				told := strings.Join(r.logged(""), "\n")
				if err != nil {
					told = err.Error()
				}
				if !strings.Contains(told, test.want) || !strings.Contains(told, "GetQueueAttributes") {
					t.Errorf("told %q, want it to tell of %q", told, test.want)
				}
			})
		})
	}
}

// The answer of a server that takes the place of SQS and speaks its older protocol.
func TestAServerOfTheOlderProtocolIsNamed(t *testing.T) {
	const answer = `<?xml version="1.0"?><ErrorResponse><Error><Type>Sender</Type><Code>InvalidAction</Code></Error></ErrorResponse>`
	client := sqs.New(sqs.Options{
		Region: "us-east-1", Credentials: aws.AnonymousCredentials{},
		HTTPClient: smithyhttp.ClientDoFunc(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusBadRequest, Header: http.Header{"Content-Type": {"text/xml"}}, Body: io.NopCloser(strings.NewReader(answer)), Request: r,
			}, nil
		}),
	})
	err := (&Server{Client: client, URL: "https://sqs.example.com/1/nth"}).Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "sqs GetQueueAttributes on https://sqs.example.com/1/nth (the server does not speak the JSON protocol of SQS") {
		t.Errorf("Check = %v", err)
	}
}

// Whatever SQS does, every message is handled, never by two handlers at once,
// and is gone in the end.
func TestEveryMessageIsHandledAndDeletedThroughFaultsOfEveryKind(t *testing.T) {
	for name, fault := range map[string]awssim.Fault{
		"no fault":       {},
		"resets":         {Probability: 0.3, Reset: true},
		"answers lost":   {Probability: 0.3, Reset: true, AfterEffect: true},
		"server errors":  {Probability: 0.3, Status: 503},
		"broken answers": {Probability: 0.3, Half: true},
		"hanging":        {Probability: 0.1, Hang: true},
		"throttled":      {Rate: 10, Burst: 10},
		"slow":           {Latency: time.Second},
		"cannot extend":  {Action: "ChangeMessageVisibilityBatch", Status: 403, Code: "AccessDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, q := newSimulatedQueue(t, awssim.Queue{Duplicates: 0.1, Resurrections: 0.1})
				fault.Service = "sqs"
				if err := q.sim.SetFault(fault); err != nil {
					t.Fatal(err)
				}

				var mu sync.Mutex
				running, done := map[string]bool{}, map[string]int{}
				handler := handlerFunc(func(ctx context.Context, m Message) error {
					mu.Lock()
					defer mu.Unlock()
					if running[m.ID] {
						t.Errorf("two handlers for %s", m.ID)
					}
					running[m.ID] = true
					mu.Unlock()
					_ = retry.Sleep(ctx, time.Duration(len(m.Body))*time.Second)
					mu.Lock()
					running[m.ID] = false
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					if len(m.Body)%3 == 0 && m.ReceiveCount == 1 {
						return fmt.Errorf("not at the first time")
					}
					done[m.ID]++
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan struct{})
				s := &Server{Client: client, URL: q.url(), Handler: handler}
				go func() {
					defer close(served)
					_ = s.Serve(ctx)
				}()

				var bodies []string
				for n := range 100 {
					bodies = append(bodies, strings.Repeat("s", 1+n%45))
				}
				ids := q.send(bodies...)
				elapse(15 * time.Minute)
				if left := q.left(); len(left) != 0 {
					t.Errorf("%d messages are left", len(left))
				}
				cancel()
				<-served
				slices.Sort(ids)
				for _, id := range ids {
					if done[id] == 0 {
						t.Errorf("%s was not handled", id)
					}
				}
			})
		})
	}
}

// The first call is refused for the time of its signature, and the SDK mends that.
func TestAClockThatIsWrongIsToldAndDoesNotHoldTheQueueUp(t *testing.T) {
	for name, test := range map[string]struct {
		skew    time.Duration
		refused int
		want    string // in the one line logged; empty: none
	}{
		"by a second":        {time.Second, 0, ""},
		"by twenty":          {20 * time.Second, 0, "-"},
		"5 minutes ahead":    {-5*time.Minute - time.Second, 1, "5m"},
		"5 minutes behind":   {5*time.Minute + time.Second, 1, "-5m"},
		"a quarter of a day": {-6 * time.Hour, 1, "6h0m"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, q := newSimulatedQueue(t, awssim.Queue{})
				if err := q.sim.SetFault(awssim.Fault{ID: "clock", Skew: test.skew}); err != nil {
					t.Fatal(err)
				}
				r := newRecorder()
				s := &Server{Client: client, URL: q.url(), Log: r.log.Logger(), Handler: returning(nil, 0)}
				if err := s.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				served := make(chan error)
				go func() { served <- s.Serve(ctx) }()
				q.send("a", "b")
				elapse(time.Minute)
				refused := 0
				for _, c := range q.sim.Calls() {
					if c.Code == "InvalidSignatureException" {
						refused++
					} else if c.Code != "" {
						t.Errorf("%s ended with %s", c.Action, c.Code)
					}
				}
				if left := q.left(); len(left) > 0 || refused != test.refused {
					t.Errorf("%d messages are left, and %d calls were refused, want %d", len(left), refused, test.refused)
				}
				lines := r.logged("clock")
				if test.want == "" && len(lines) > 0 || test.want != "" && (len(lines) != 1 || !strings.Contains(lines[0], "ahead="+test.want)) {
					t.Errorf("logged %q, want one line with %q", lines, test.want)
				}
				q.sim.RemoveFault("clock")
				elapse(time.Minute)
				if again := r.logged("that of AWS again"); test.want != "" && len(again) != 1 {
					t.Errorf("the end was logged %q", again)
				}
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
