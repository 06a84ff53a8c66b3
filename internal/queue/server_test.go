package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serving is a server under test with all that can be seen of it.
type serving struct {
	*Server
	q    *fakeQueue
	seen *recorder
	stop func() error // ends Serve's context and returns what Serve returned
}

// story runs a server on a fake queue in virtual time, from its start until
// told returns. A goroutine that is left over then fails the test.
func story(t *testing.T, s *Server, tell func(t *testing.T, s serving)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q, r := newFakeQueue(), newRecorder()
		s.Client, s.URL, s.Metrics, s.Log = q, q.url(), r, r.log.Logger()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		stop := sync.OnceValue(func() error {
			cancel()
			return <-served
		})
		synctest.Wait()
		tell(t, serving{s, q, r, stop})
		if err := stop(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		synctest.Wait()
		s.messages.mu.Lock()
		defer s.messages.mu.Unlock()
		if len(s.messages.inFlight) != 0 || s.messages.batcher.unsettled != 0 || s.messages.reserved != 0 || s.messages.bodies != 0 || len(s.large) != 0 || len(s.messages.batcher.open) != 0 || s.messages.receivers != 0 || s.messages.extending {
			t.Errorf("left behind: bodies %d, large answers %d, in flight %d, unsettled %d, reserved %d, open %d, receivers %d, extending %v",
				s.messages.bodies, len(s.large), len(s.messages.inFlight), s.messages.batcher.unsettled, s.messages.reserved, len(s.messages.batcher.open), s.messages.receivers, s.messages.extending)
		}
	})
}

// elapse lets virtual time pass, and then all happen that happens at that time.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// oneProcessor keeps the race detector from crashing where many goroutines live
// and die in one bubble (https://go.dev/issue/78156). It finds races all the same.
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// recorder keeps what a server reports.
type recorder struct {
	mu    sync.Mutex
	tally tally
	log   logtest.Log
}

type tally struct {
	settled                                    map[Outcome]int
	denied                                     map[Action]int
	received, receiveFailed, extended, refused int
}

func newRecorder() *recorder {
	return &recorder{tally: tally{settled: map[Outcome]int{}, denied: map[Action]int{}}}
}

func (r *recorder) Received(n int)             { r.note(func() { r.tally.received += n }) }
func (r *recorder) ReceiveFailed()             { r.note(func() { r.tally.receiveFailed++ }) }
func (r *recorder) Settled(o Outcome, _ error) { r.note(func() { r.tally.settled[o]++ }) }
func (r *recorder) Extended(n int)             { r.note(func() { r.tally.extended += n }) }
func (r *recorder) ExtendRefused(n int)        { r.note(func() { r.tally.refused += n }) }
func (r *recorder) Denied(a Action)            { r.note(func() { r.tally.denied[a]++ }) }

// counted returns a copy of the tally.
func (r *recorder) counted() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.tally
	c.settled, c.denied = maps.Clone(c.settled), maps.Clone(c.denied)
	return c
}

func (r *recorder) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// logged returns the lines, but those for debugging, that contain text.
func (r *recorder) logged(text string) (lines []string) {
	for _, e := range r.log.Entries("") {
		if line := e.String(); e.Level != "debug" && strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (r *recorder) wantSettled(t *testing.T, want map[Outcome]int) {
	t.Helper()
	if diff := cmp.Diff(want, r.counted().settled); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// handlerFunc is a function as a [Handler].
type handlerFunc func(ctx context.Context, m Message) error

// Handle calls f.
func (f handlerFunc) Handle(ctx context.Context, m Message) error { return f(ctx, m) }

// returning is a handler that returns err after a while, or at once when its
// context ends.
func returning(err error, after time.Duration) Handler {
	return handlerFunc(func(ctx context.Context, _ Message) error {
		_ = retry.Sleep(ctx, after)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	})
}

// deliveries is a handler that notes when it was called for each message, and
// returns err after a while.
type deliveries struct {
	after time.Duration
	err   error

	mu   sync.Mutex
	seen map[string][]time.Time
}

func (d *deliveries) Handle(ctx context.Context, m Message) error {
	d.mu.Lock()
	if d.seen == nil {
		d.seen = map[string][]time.Time{}
	}
	d.seen[m.ID] = append(d.seen[m.ID], time.Now())
	d.mu.Unlock()
	return returning(d.err, d.after).Handle(ctx, m)
}

func (d *deliveries) of(id string) []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen[id])
}

func TestHandlerSeesTheMessage(t *testing.T) {
	var got Message
	s := &Server{Handler: handlerFunc(func(_ context.Context, m Message) error { got = m; return nil })}
	story(t, s, func(t *testing.T, s serving) {
		sent := time.Now()
		id := s.q.send("hello")[0]
		synctest.Wait()
		want := Message{ID: id, Body: "hello", Sent: sent, ReceiveCount: 1}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Message{})); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
	})
}

func TestHeldMessageStaysInvisibleForAnHourAndIsDeletedOnce(t *testing.T) {
	story(t, &Server{Handler: returning(nil, time.Hour)}, func(t *testing.T, s serving) {
		id := s.q.send("body")[0]
		synctest.Wait()
		for range 3599 {
			elapse(time.Second)
			if hidden := s.q.hidden(id); hidden < 5*time.Second {
				t.Fatalf("after %v the message is hidden for %v only", time.Since(s.q.messages[0].sent), hidden)
			}
		}
		if left := s.q.left(); len(left) != 1 {
			t.Fatalf("deleted before its handler returned")
		}
		elapse(2 * time.Second)
		if left := s.q.left(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if s.seen.counted().received != 1 {
			t.Errorf("delivered %d times, want once", s.seen.counted().received)
		}
		if calls := len(s.q.made("ChangeMessageVisibilityBatch")); calls > 70 {
			t.Errorf("%d extensions in an hour, want about one a minute", calls)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 1})
	})
}

func TestMessageIsExtendedInTimeWhateverItsVisibility(t *testing.T) {
	for _, visibility := range []time.Duration{time.Second, 2 * time.Second, 20 * time.Second, 119 * time.Second, 10 * time.Minute} {
		t.Run(visibility.String(), func(t *testing.T) {
			story(t, &Server{Handler: returning(nil, time.Hour), Visibility: visibility}, func(t *testing.T, s serving) {
				s.q.send("body")
				elapse(61 * time.Minute)
				if s.seen.counted().received != 1 {
					t.Errorf("delivered %d times, want once", s.seen.counted().received)
				}
				s.seen.wantSettled(t, map[Outcome]int{Deleted: 1})
			})
		})
	}
}

func TestRedeliveryJoinsTheHandlerThatRunsAndItsReceiptIsUsed(t *testing.T) {
	d := &deliveries{after: 10 * time.Minute}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		id := s.q.send("body")[0]
		synctest.Wait()
		for range 3 {
			elapse(time.Second)
			s.q.redeliver(id)
			synctest.Wait()
		}
		elapse(9 * time.Minute)
		if calls, n := len(d.of(id)), s.seen.counted().received; calls != 1 || n != 4 {
			t.Errorf("%d handlers for %d deliveries, want 1 for 4", calls, n)
		}
		elapse(time.Minute)
		if left := s.q.left(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 1})
	})
}

func TestRedeliveryDuringTheDeleteIsDeletedWithItsOwnReceipt(t *testing.T) {
	d := &deliveries{}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"DeleteMessageBatch": 100 * time.Millisecond} })
		id := s.q.send("body")[0]
		elapse(50 * time.Millisecond)
		if n := len(s.q.made("DeleteMessageBatch")); n != 1 {
			t.Fatalf("%d deletes, want 1 under way", n)
		}
		s.q.redeliver(id)
		elapse(time.Second)
		if left := s.q.left(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if n := len(s.q.made("DeleteMessageBatch")); n != 2 {
			t.Errorf("%d deletes, want a second with the new receipt", n)
		}
		if n := len(d.of(id)); n != 1 {
			t.Errorf("handled %d times, want once", n)
		}
	})
}

func TestErrorGivesTheMessageBackWithAGrowingDelay(t *testing.T) {
	d := &deliveries{err: errors.New("the API server is away")}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		id := s.q.send("body")[0]
		elapse(3 * time.Minute)
		seen := d.of(id)
		for i := 1; i < len(seen); i++ {
			longest := min(time.Second<<(i-1), maxNackDelay)
			if gap := seen[i].Sub(seen[i-1]); gap < longest/2 || gap > longest {
				t.Errorf("delivery %d came %v after the one before, want %v to %v", i+1, gap, longest/2, longest)
			}
		}
		if len(seen) < 8 {
			t.Errorf("%d deliveries in three minutes, want 8 at least", len(seen))
		}
	})
}

func TestGiveBackDelayIsBounded(t *testing.T) {
	for _, test := range []struct {
		receives       int
		least, longest time.Duration
	}{
		{0, time.Second, time.Second}, // SQS did not say
		{1, time.Second, time.Second},
		{2, time.Second, 2 * time.Second},
		{3, 2 * time.Second, 4 * time.Second},
		{5, 8 * time.Second, 16 * time.Second},
		{6, 15 * time.Second, 30 * time.Second},
		{1000, 15 * time.Second, 30 * time.Second},
	} {
		t.Run(fmt.Sprint(test.receives), func(t *testing.T) {
			seen := map[time.Duration]bool{}
			for range 1000 {
				seen[nackDelay(test.receives)] = true
			}
			all := slices.Sorted(maps.Keys(seen))
			if all[0] != test.least || all[len(all)-1] != test.longest {
				t.Errorf("delays from %v to %v, want %v to %v", all[0], all[len(all)-1], test.least, test.longest)
			}
		})
	}
}

func TestLeaveMakesNoCallAndTheMessageComesBackToOthers(t *testing.T) {
	d := &deliveries{err: fmt.Errorf("decide: %w", Leave(errors.New("of another cluster")))}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		id := s.q.send("body")[0]
		synctest.Wait()
		if hidden := s.q.hidden(id); hidden != defaultVisibility {
			t.Errorf("hidden for %v, want the %v of the receive", hidden, defaultVisibility)
		}
		if n, _ := s.InFlight(); n != 0 {
			t.Errorf("%d in flight, want 0", n)
		}
		elapse(30 * time.Second)
		if n := len(d.of(id)); n != 2 {
			t.Errorf("%d deliveries in 30s, want 2", n)
		}
		if n := len(s.q.made("DeleteMessageBatch")) + len(s.q.made("ChangeMessageVisibilityBatch")); n != 0 {
			t.Errorf("%d calls for a message that was left", n)
		}
		s.seen.wantSettled(t, map[Outcome]int{Left: 2})
	})
}

func TestRejectedMessageIsLeftToTheRedrivePolicyOrDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		attributes map[string]string
		fail       func(string) error
		deleted    bool
	}{
		"with a redrive policy":               {attributes: map[string]string{"RedrivePolicy": `{"maxReceiveCount":3}`}},
		"without one":                         {deleted: true},
		"where the attributes cannot be read": {fail: failing("GetQueueAttributes", errAccessDenied)},
	} {
		t.Run(name, func(t *testing.T) {
			why := Reject(errors.New("not JSON"))
			story(t, &Server{Handler: returning(why, 0)}, func(t *testing.T, s serving) {
				s.q.set(func() { s.q.attributes, s.q.fail = test.attributes, test.fail })
				if err := s.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.q.send(strings.Repeat("noise\n", 100))
				elapse(5 * time.Second)
				if deleted := len(s.q.left()) == 0; deleted != test.deleted {
					t.Errorf("deleted = %v, want %v", deleted, test.deleted)
				}
				if n := len(s.q.made("ChangeMessageVisibilityBatch")); n != 0 {
					t.Errorf("%d changes of visibility", n)
				}
				s.seen.wantSettled(t, map[Outcome]int{Rejected: 1})
				lines := s.seen.logged("message rejected")
				if len(lines) != 1 || !strings.Contains(lines[0], "message-1") || !strings.Contains(lines[0], "not JSON") || len(lines[0]) > 1000 {
					t.Errorf("logged %q", lines)
				}
			})
		})
	}
}

func TestRejectedMessageThatComesBackIsLoggedMoreAndMoreSeldom(t *testing.T) {
	story(t, &Server{Handler: returning(Reject(errors.New("not JSON")), 0)}, func(t *testing.T, s serving) {
		s.q.send("noise")
		elapse(time.Hour)
		if n := len(s.seen.logged("message rejected")); n < 5 || n > 8 {
			t.Errorf("%d lines in an hour, want one for each doubling of 180 receives", n)
		}
	})
}

func TestRejectBeforeCheckLeavesTheMessage(t *testing.T) {
	story(t, &Server{Handler: returning(Reject(errors.New("not JSON")), 0)}, func(t *testing.T, s serving) {
		s.q.send("noise")
		elapse(5 * time.Second)
		if len(s.q.left()) != 1 {
			t.Error("deleted without knowing of the redrive policy")
		}
	})
}

func TestPanickingHandlerGivesItsMessageBack(t *testing.T) {
	calls := 0
	handler := handlerFunc(func(context.Context, Message) error {
		if calls++; calls == 1 {
			panic("nil map")
		}
		return nil
	})
	story(t, &Server{Handler: handler}, func(t *testing.T, s serving) {
		s.q.send("body")
		elapse(5 * time.Second)
		s.seen.wantSettled(t, map[Outcome]int{GivenBack: 1, Deleted: 1})
		lines := s.seen.logged("handler panicked")
		if len(lines) != 1 || !strings.Contains(lines[0], "nil map") || !strings.Contains(lines[0], "server_test.go") {
			t.Errorf("logged %q, want the panic with its stack", lines)
		}
	})
}

func TestShutdownGivesBackAtOnceAndDeletesWhatIsDone(t *testing.T) {
	var cause error
	var once sync.Once
	handler := handlerFunc(func(ctx context.Context, m Message) error {
		<-ctx.Done()
		once.Do(func() { cause = context.Cause(ctx) })
		if m.Body == "done" {
			return nil
		}
		return context.Cause(ctx)
	})
	story(t, &Server{Handler: handler}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		s.q.send(append(slices.Repeat([]string{"undone"}, 25), "done")...)
		elapse(10 * time.Second)
		start := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("Serve returned %v after its context ended", took)
		}
		if !errors.Is(cause, ErrStopping) || !errors.Is(cause, context.Canceled) {
			t.Errorf("cause = %v", cause)
		}
		s.seen.wantSettled(t, map[Outcome]int{GivenBack: 25, Deleted: 1})
		for _, id := range s.q.left() {
			if hidden := s.q.hidden(id); hidden > stopNackDelay {
				t.Errorf("%s is hidden for another %v", id, hidden)
			}
		}
		if n := len(s.q.made("ChangeMessageVisibilityBatch")); n > 3+3 {
			t.Errorf("%d changes of visibility for 25 messages", n)
		}
	})
}

func TestShutdownTellsHandlersItsCause(t *testing.T) {
	lost := errors.New("lease lost")
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var cause error
		s := &Server{Client: q, URL: q.url(), Handler: handlerFunc(func(ctx context.Context, _ Message) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return cause
		})}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(lost) })
		q.send("body")
		if err := s.Serve(ctx); err != nil {
			t.Errorf("Serve = %v", err)
		}
		if !errors.Is(cause, ErrStopping) || !errors.Is(cause, lost) {
			t.Errorf("cause = %v", cause)
		}
	})
}

func TestShutdownGivesBackWithinEightSecondsWhatAHandlerDoesNotLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		q, r := newFakeQueue(), newRecorder()
		s := &Server{Client: q, URL: q.url(), Log: r.log.Logger(), Metrics: r, Handler: handlerFunc(func(context.Context, Message) error {
			<-release
			return nil
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		id := q.send("body")[0]
		start := time.Now()
		if err := s.Serve(ctx); err != nil {
			t.Errorf("Serve = %v", err)
		}
		if took := time.Since(start) - time.Minute; took > 8*time.Second {
			t.Errorf("Serve returned %v after its context ended", took)
		}
		if hidden := q.hidden(id); hidden > stopNackDelay || len(q.left()) != 1 {
			t.Errorf("hidden for %v, left %v", hidden, q.left())
		}
		close(release) // what the handler returns now deletes nothing
		synctest.Wait()
		if len(q.left()) != 1 || len(q.made("DeleteMessageBatch")) != 0 {
			t.Error("deleted after Serve had returned")
		}
		r.wantSettled(t, map[Outcome]int{GivenBack: 1})
	})
}

func TestTheVisibilityOfMessagesLastsUntilAServerHasStopped(t *testing.T) {
	// Leases are looked at eight times in a visibility timeout.
	for _, lease := range []time.Duration{defaultVisibility, 2 * defaultVisibility, 4 * defaultVisibility, maxLease} {
		if least := lease - renewAfter(lease, defaultVisibility) - defaultVisibility/8; least < handlersStop+settleStop {
			t.Errorf("a message with a lease of %v may be hidden for another %v, and the server takes %v to stop", lease, least, handlersStop+settleStop)
		}
	}
}

func TestShutdownReturnsWithinEightSecondsWhileSQSHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r := newFakeQueue(), newRecorder()
		s := &Server{Client: q, URL: q.url(), Log: r.log.Logger(), Metrics: r, Handler: returning(nil, time.Hour)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		q.send(slices.Repeat([]string{"body"}, 15)...)
		time.AfterFunc(30*time.Second, func() { q.set(func() { q.fail = func(string) error { return errHang } }) })
		start := time.Now()
		if err := s.Serve(ctx); err == nil || !strings.Contains(err.Error(), "15 messages") {
			t.Errorf("Serve = %v, want an error that tells of 15 messages", err)
		}
		if took := time.Since(start) - time.Minute; took > 8*time.Second {
			t.Errorf("Serve returned %v after its context ended", took)
		}
		synctest.Wait()
		r.wantSettled(t, map[Outcome]int{Unsettled: 15})
	})
}

func TestMessageThatArrivesWhileStoppingGoesBackUnhandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, d, r := newFakeQueue(), &deliveries{}, newRecorder()
		s := &Server{Client: lateQueue{q}, URL: q.url(), Handler: d, Metrics: r}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute+time.Second, cancel)
		if err := s.Serve(ctx); err != nil {
			t.Errorf("Serve = %v", err)
		}
		if n := len(d.of("message-1")); n != 0 {
			t.Errorf("handled %d times", n)
		}
		r.wantSettled(t, map[Outcome]int{GivenBack: 1})
		if hidden := q.hidden("message-1"); hidden > stopNackDelay {
			t.Errorf("hidden for another %v", hidden)
		}
	})
}

// slowQueue has done what a receive asks for before its answer is on the way.
type slowQueue struct{ *fakeQueue }

func (q slowQueue) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	out, err := q.fakeQueue.ReceiveMessage(ctx, in, opts...)
	select {
	case <-time.After(50 * time.Millisecond):
		return out, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Were the answer not waited for, its messages would be invisible to the next
// leader until their visibility has run out.
func TestShutdownGivesBackWhatAReceiveUnderWayBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, d := newFakeQueue(), &deliveries{}
		s := &Server{Client: slowQueue{q}, URL: q.url(), Handler: d}
		q.send("a", "b")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		if err := s.Serve(ctx); err != nil {
			t.Errorf("Serve = %v", err)
		}
		for _, id := range q.left() {
			if n := len(d.of(id)); n != 0 {
				t.Errorf("%s was handled %d times", id, n)
			}
			if hidden := q.hidden(id); hidden > stopNackDelay {
				t.Errorf("%s is hidden for another %v", id, hidden)
			}
		}
		if n := len(q.left()); n != 2 {
			t.Errorf("%d messages are left, want 2", n)
		}
	})
}

func TestStormOf500MessagesTakesThreeCallsForTen(t *testing.T) {
	oneProcessor(t)
	handler := handlerFunc(func(ctx context.Context, m Message) error {
		took, err := time.ParseDuration(m.Body)
		_ = retry.Sleep(ctx, took)
		return err
	})
	story(t, &Server{Handler: handler}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		s.q.forget()
		var bodies []string
		for n := range 500 { // drains end one after another, until 15 s have passed
			bodies = append(bodies, (time.Second + time.Duration(n)*28*time.Millisecond).String())
		}
		s.q.send(bodies...)
		elapse(19 * time.Second)
		if left := len(s.q.left()); left != 0 {
			t.Errorf("%d messages are left", left)
		}
		total := 0
		for _, n := range s.q.counts() {
			total += n
		}
		t.Logf("%d calls: %v", total, s.q.counts())
		if total > 150 {
			t.Errorf("%d calls for 500 messages, want 150 at most: %v", total, s.q.counts())
		}
	})
}

func TestAtRestThereIsOneLongPollAndNothingElse(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		s.q.send(make([]string, 100)...)
		elapse(time.Minute + time.Second)
		s.q.forget()
		elapse(10 * time.Minute)
		if diff := cmp.Diff(map[string]int{"ReceiveMessage": 30}, s.q.counts()); diff != "" {
			t.Errorf("calls in ten minutes (-want +got):\n%s", diff)
		}
		for _, c := range s.q.made("ReceiveMessage") {
			if c.wait != longPoll {
				t.Errorf("a receive that waits %v", c.wait)
			}
		}
	})
}

func TestRefusedExtensionIsNoErrorAndTheHandlerGoesOn(t *testing.T) {
	story(t, &Server{Handler: returning(nil, time.Hour)}, func(t *testing.T, s serving) {
		ids := s.q.send("expires", "stays")
		elapse(15 * time.Second)
		s.q.expire(ids[0])
		elapse(2 * time.Hour)
		if s.seen.counted().refused != 1 {
			t.Errorf("%d extensions refused, want 1", s.seen.counted().refused)
		}
		if lines := s.seen.logged(""); len(lines) != 0 {
			t.Errorf("logged %q", lines)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 2})
	})
}

func TestMessageHeldForMoreThanTwelveHoursComesBackAndJoins(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 40*time.Hour)}, func(t *testing.T, s serving) {
		s.q.send("body")
		elapse(41 * time.Hour)
		if s.seen.counted().received != 4 {
			t.Errorf("%d deliveries in 40 hours, want 4", s.seen.counted().received)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 1})
	})
}

func TestFailedExtensionIsTriedAgainBeforeTheVisibilityEnds(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 10*time.Minute)}, func(t *testing.T, s serving) {
		s.q.send("a", "b", "c")
		failures := 0
		s.q.set(func() {
			s.q.fail = func(call string) error {
				if call == "ChangeMessageVisibilityBatch" && time.Now().Second()%10 < 5 {
					failures++
					return errors.New("retry quota exceeded")
				}
				return nil
			}
			s.q.failEntry = func(call, id string) *types.BatchResultErrorEntry {
				if call == "ChangeMessageVisibilityBatch" && id == "message-2" && time.Now().Second()%10 < 7 {
					return &types.BatchResultErrorEntry{Code: aws.String("ThrottlingException"), SenderFault: true}
				}
				return nil
			}
		})
		elapse(9 * time.Minute)
		s.q.set(func() {
			if failures == 0 {
				t.Error("no extension failed")
			}
		})
		if n := s.seen.counted().received; n != 3 {
			t.Errorf("%d deliveries, want 3", n)
		}
		if lines := s.seen.logged("extending visibility"); len(lines) == 0 || len(lines) > 2*54 {
			t.Errorf("%d lines", len(lines))
		}
	})
}

func TestWithoutThePermissionToExtendMessagesComeBackAndJoin(t *testing.T) {
	d := &deliveries{after: 5*time.Minute + 10*time.Second}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("ChangeMessageVisibilityBatch", errAccessDenied) })
		id := s.q.send("body")[0]
		elapse(5 * time.Minute)
		if calls, n := len(d.of(id)), s.seen.counted().received; calls != 1 || n < 14 {
			t.Errorf("%d handlers, %d deliveries, want 1 and one each 20s", calls, n)
		}
		if lines := s.seen.logged(""); len(lines) != 1 || !strings.Contains(lines[0], "sqs:ChangeMessageVisibility") {
			t.Errorf("logged %q, want one line that names the action", lines)
		}
		if n := s.seen.counted().denied[ChangeMessageVisibility]; n < 1 || n > 6 {
			t.Errorf("denied %d times in five minutes, want a try a minute", n)
		}
		elapse(30 * time.Second)
		if left := s.q.left(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 1})

		s.q.set(func() { s.q.fail = nil })
		s.q.send("after the permission was granted")
		elapse(2 * time.Minute)
		if lines := s.seen.logged("the visibility of messages can be extended again"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestWithoutThePermissionToExtendAnErrorLeavesTheMessageToItsVisibility(t *testing.T) {
	d := &deliveries{err: errors.New("the API server is away")}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("ChangeMessageVisibilityBatch", errAccessDenied) })
		id := s.q.send("body")[0]
		elapse(50 * time.Second)
		if n := len(d.of(id)); n != 3 {
			t.Errorf("%d deliveries in 50s, want 3", n)
		}
		s.seen.wantSettled(t, map[Outcome]int{GivenBack: 3})
		if lines := s.seen.logged(""); len(lines) != 1 {
			t.Errorf("logged %q, want one line", lines)
		}
	})
}

func TestReceiveErrorsBackOffAreLoggedSparselyAndRecover(t *testing.T) {
	d := &deliveries{}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("ReceiveMessage", errors.New("retry quota exceeded")) })
		elapse(20 * time.Second) // the long poll under way is not touched
		s.q.forget()
		elapse(10 * time.Minute)
		made := s.q.made("ReceiveMessage")
		for i := 1; i < len(made); i++ {
			if gap := made[i].at.Sub(made[i-1].at); gap < receiveBackoff.First || gap > receiveBackoff.Max {
				t.Errorf("%v between two tries", gap)
			}
		}
		if len(made) < 60 || len(made) > 75 {
			t.Errorf("%d tries in ten minutes, want one each 10s", len(made))
		}
		if lines := s.seen.logged("SQS fails"); len(lines) < 9 || len(lines) > 11 || !strings.Contains(lines[0], "retry quota exceeded") {
			t.Errorf("%d lines in ten minutes, want one a minute: %q", len(lines), lines)
		} else if !strings.Contains(lines[0], "warn ") || !strings.Contains(lines[1], "error ") {
			t.Errorf("%q, want a failure to be a warning, and an outage of a minute an error", lines[:2])
		}
		if age := time.Since(s.LastReceive()); age < 10*time.Minute {
			t.Errorf("last receive %v ago", age)
		}

		if since, why := s.Failing(); time.Since(since) < 10*time.Minute || !strings.Contains(why, "retry quota exceeded") {
			t.Errorf("receives fail since %s: %q", since, why)
		}

		s.q.set(func() { s.q.fail = nil })
		id := s.q.send("body")[0]
		elapse(receiveBackoff.Max)
		if since, why := s.Failing(); !since.IsZero() || why != "" {
			t.Errorf("receives fail since %s: %q, though SQS is back", since, why)
		}
		if len(d.of(id)) != 1 {
			t.Error("not received after SQS was back")
		}
		if lines := s.seen.logged("SQS works again"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if s.seen.counted().receiveFailed == 0 {
			t.Error("failures not counted")
		}
	})
}

func TestReceiveThatGetsNoAnswerIsGivenUp(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		elapse(time.Second)
		s.q.set(func() { s.q.fail = failing("ReceiveMessage", errHang) })
		elapse(time.Minute)
		if s.seen.counted().receiveFailed != 1 {
			t.Errorf("%d failures in a minute, want one after 30s", s.seen.counted().receiveFailed)
		}
		if since, why := s.Failing(); time.Since(since) < 40*time.Second || !strings.Contains(why, "deadline exceeded") {
			t.Errorf("receives fail since %s: %q", since, why)
		}
	})
}

// A receive that fails says little: the next one tells only after a long poll.
func TestReceivesFailOnceSQSIsSilentOrHasFailedThrice(t *testing.T) {
	type receive struct {
		takes  time.Duration
		answer bool
	}
	no := receive{time.Second, false}
	for name, tt := range map[string]struct {
		receives []receive     // one after the other
		others   time.Duration // ago, another receiver was answered; zero: none was
		fails    time.Duration // for how long; zero: they do not
	}{
		"answered":                 {[]receive{{20 * time.Second, true}}, 0, 0},
		"cut off in a long poll":   {[]receive{{15 * time.Second, false}}, 0, 0},
		"failed twice":             {[]receive{no, no}, 0, 0},
		"failed three times":       {[]receive{no, no, no}, 0, 3 * time.Second},
		"answered in between":      {[]receive{no, no, {time.Second, true}, no}, 0, 0},
		"silent":                   {[]receive{{30 * time.Second, false}}, 0, 30 * time.Second},
		"silent to one of several": {[]receive{{30 * time.Second, false}}, 10 * time.Second, 0},
		"silent, then answered":    {[]receive{{30 * time.Second, false}, {20 * time.Second, true}}, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var h health
			for _, r := range tt.receives {
				began := time.Now()
				time.Sleep(r.takes - tt.others)
				if tt.others > 0 {
					h.noteReceive()
					time.Sleep(tt.others)
				}
				if r.answer {
					h.noteReceive()
				} else {
					h.noteFailure(errors.New("why"), began)
				}
			}
			since, why := h.failing()
			if tt.fails == 0 && !since.IsZero() || tt.fails > 0 && (time.Since(since) != tt.fails || why != "why") {
				t.Errorf("%s: failing since %s, %q, want for %s", name, since, why, tt.fails)
			}
		})
	}
}

func TestDeniedReceiveNamesTheActionAndGoesOn(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("ReceiveMessage", errAccessDenied) })
		elapse(time.Minute)
		if lines := s.seen.logged("sqs:ReceiveMessage"); len(lines) != 1 {
			t.Errorf("logged %q", s.seen.logged(""))
		}
		if s.seen.counted().denied[ReceiveMessage] < 5 {
			t.Errorf("denied %d times", s.seen.counted().denied[ReceiveMessage])
		}
	})
}

func TestFailedDeleteIsTriedAgainForItsEntryAlone(t *testing.T) {
	failures := 0
	story(t, &Server{Handler: returning(nil, time.Second)}, func(t *testing.T, s serving) {
		s.q.set(func() {
			s.q.failEntry = func(call, id string) *types.BatchResultErrorEntry {
				if id != "message-3" || failures == 2 {
					return nil
				}
				failures++
				return &types.BatchResultErrorEntry{Code: aws.String("InternalError"), Message: aws.String("try again")}
			}
		})
		s.q.send(make([]string, 5)...)
		elapse(5 * time.Second)
		var entries []int
		for _, c := range s.q.made("DeleteMessageBatch") {
			entries = append(entries, c.entries)
		}
		if diff := cmp.Diff([]int{5, 1, 1}, entries); diff != "" {
			t.Errorf("entries of each delete (-want +got):\n%s", diff)
		}
		s.seen.wantSettled(t, map[Outcome]int{Deleted: 5})
		if lines := s.seen.logged(""); len(lines) != 0 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestDeleteThatKeepsFailingLetsTheMessageComeBack(t *testing.T) {
	d := &deliveries{}
	story(t, &Server{Handler: d}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("DeleteMessageBatch", errors.New("reset")) })
		id := s.q.send("body")[0]
		elapse(10 * time.Second)
		if n := len(s.q.made("DeleteMessageBatch")); n != settleTries {
			t.Errorf("%d tries, want %d", n, settleTries)
		}
		s.seen.wantSettled(t, map[Outcome]int{Unsettled: 1})
		if lines := s.seen.logged("could not be deleted or returned"); len(lines) != 1 || !strings.Contains(lines[0], id) {
			t.Errorf("logged %q", lines)
		}
		s.q.set(func() { s.q.fail = nil })
		elapse(15 * time.Second)
		if len(d.of(id)) != 2 || len(s.q.left()) != 0 {
			t.Errorf("%d deliveries, left %v", len(d.of(id)), s.q.left())
		}
	})
}

func TestDeniedDeleteIsNotTriedAgainAndNamesTheAction(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.fail = failing("DeleteMessageBatch", errAccessDenied) })
		s.q.send("body")
		elapse(10 * time.Second)
		if n := len(s.q.made("DeleteMessageBatch")); n != 1 {
			t.Errorf("%d tries, want 1", n)
		}
		if lines := s.seen.logged("sqs:DeleteMessage"); len(lines) != 1 {
			t.Errorf("logged %q", s.seen.logged(""))
		}
	})
}

func TestMessagesThatEndTogetherShareACallWithoutWaiting(t *testing.T) {
	story(t, &Server{Handler: returning(nil, time.Second)}, func(t *testing.T, s serving) {
		s.q.send(make([]string, 23)...)
		elapse(time.Second)
		if left := len(s.q.left()); left != 0 {
			t.Errorf("%d messages are left at the moment their handlers end", left)
		}
		if n := len(s.q.made("DeleteMessageBatch")); n > 4 {
			t.Errorf("%d deletes for 23 messages", n)
		}
	})
}

func TestMessageWaitsASecondForOthersToShareItsCall(t *testing.T) {
	handler := handlerFunc(func(ctx context.Context, m Message) error {
		took, err := time.ParseDuration(m.Body)
		_ = retry.Sleep(ctx, took)
		return err
	})
	story(t, &Server{Handler: handler}, func(t *testing.T, s serving) {
		s.q.send("1s", "1200ms", "10s")
		elapse(1900 * time.Millisecond)
		if n := len(s.q.left()); n != 3 {
			t.Errorf("%d messages are left within the second, want 3", n)
		}
		elapse(200 * time.Millisecond)
		if n, calls := len(s.q.left()), len(s.q.made("DeleteMessageBatch")); n != 1 || calls != 1 {
			t.Errorf("%d messages are left after %d calls, want 1 after 1", n, calls)
		}
	})
}

func TestNothingIsReceivedThatCannotBeHeld(t *testing.T) {
	running, most := 0, 0
	var mu sync.Mutex
	handler := handlerFunc(func(ctx context.Context, _ Message) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		_ = retry.Sleep(ctx, time.Minute)
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	})
	story(t, &Server{Handler: handler, MaxInFlight: 35}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		s.q.send(make([]string, 200)...)
		elapse(50 * time.Second)
		if n, oldest := s.InFlight(); n != 30 || time.Since(oldest) < 49*time.Second {
			t.Errorf("%d in flight since %v, want 30: three receives fit into 35", n, time.Since(oldest))
		}
		if age := time.Since(s.Alive()); age > 0 {
			t.Errorf("waiting for room counts as a receive %v ago", age)
		}
		if age := time.Since(s.LastReceive()); age < 49*time.Second {
			t.Errorf("the last receive is told to be %v old", age)
		}
		if since, why := s.Failing(); time.Since(since) < 49*time.Second || !strings.HasPrefix(why, "30 messages are in flight") {
			t.Errorf("waiting for room since %s: %q", since, why)
		}
		receives := len(s.q.made("ReceiveMessage"))
		elapse(8 * time.Minute)
		if left := len(s.q.left()); left != 0 {
			t.Errorf("%d messages are left", left)
		}
		if most > 35 {
			t.Errorf("%d messages in flight at once, want 35 at most", most)
		}
		if receives > 5 {
			t.Errorf("%d receives for three batches", receives)
		}
	})
}

// apart gives each delivery a body of its own, as SQS does.
type apart struct{ *fakeQueue }

func (q apart) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	out, err := q.fakeQueue.ReceiveMessage(ctx, in, opts...)
	if err == nil {
		for k := range out.Messages {
			out.Messages[k].Body = aws.String(strings.Clone(*out.Messages[k].Body))
		}
	}
	return out, err
}

func TestLargeBodiesAreNotKeptWhileTheirHandlersRun(t *testing.T) {
	const size, messages = 1 << 20, 64
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	synctest.Test(t, func(t *testing.T) {
		q, r := newFakeQueue(), newRecorder()
		release := make(chan error)
		s := &Server{Client: apart{q}, URL: q.url(), Metrics: r, Log: r.log.Logger(), Handler: handlerFunc(func(_ context.Context, m Message) error {
			if len(m.Body) != size {
				t.Errorf("a body of %d bytes", len(m.Body))
			}
			m.Release()
			return <-release
		})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		body := strings.Repeat("x", size)
		before := heap()
		for range messages {
			q.send(body)
		}
		elapse(30 * time.Second)
		if n, _ := s.InFlight(); n != messages {
			t.Errorf("%d messages are in flight, want %d", n, messages)
		}
		if grown := heap() - before; grown > messages*size/4 {
			t.Errorf("%d bytes for %d messages of %d", grown, messages, size)
		}
		for range messages {
			release <- Reject(errors.New("unreadable"))
		}
		elapse(5 * time.Second)
		if lines := r.logged("rejected"); len(lines) != messages || len(lines[0]) > 1024 {
			t.Errorf("%d lines, the first of them: %.2000s", len(lines), lines[0])
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestNoMoreIsReceivedThanBodiesFitInMemory(t *testing.T) {
	const size, messages = 1 << 20, 100
	var release chan error
	var read atomic.Bool
	handler := handlerFunc(func(_ context.Context, m Message) error {
		if read.Load() {
			m.Release()
		}
		return <-release
	})
	story(t, &Server{Handler: handler}, func(t *testing.T, s serving) {
		release = make(chan error) // of the test's virtual time
		body := strings.Repeat("x", size)
		for range messages {
			s.q.send(body)
		}
		elapse(time.Minute)
		// Those of the receives that were under way when the last byte was taken are more.
		if n, _ := s.InFlight(); n < maxBodies/size || n > maxBodies/size+batchSize {
			t.Errorf("%d messages are in flight, want the %d that there is room for", n, maxBodies/size)
		}
		if age := time.Since(s.Alive()); age > 0 {
			t.Errorf("it is silent for %s: that it waits is no failure of SQS", age)
		}
		release <- nil
		elapse(5 * time.Second)
		if n, _ := s.InFlight(); n < maxBodies/size || len(s.q.left()) != messages-1 {
			t.Errorf("%d messages are in flight and %d left after one was handled", n, len(s.q.left()))
		}
		read.Store(true)
		for range messages - 1 {
			release <- nil
		}
		elapse(5 * time.Second)
		if left := len(s.q.left()); left != 0 {
			t.Errorf("%d messages are left", left)
		}
	})
}

func TestReceivesAskForFewerMessagesWhereBodiesAreLarge(t *testing.T) {
	oneProcessor(t)
	const large, small = 1 << 20, 2 << 10
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		asked := func() (asked []int) {
			for _, c := range s.q.made("ReceiveMessage") {
				asked = append(asked, c.entries)
			}
			s.q.forget()
			return asked
		}
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		bodies := slices.Repeat([]string{strings.Repeat("x", large)}, 100)
		s.q.send(bodies...)
		elapse(19 * time.Second)
		got := asked()
		if tens := slices.Index(got, 1); tens < 1 || tens > 2 || slices.Max(got[tens:len(got)-defaultReceivers]) > 1 {
			t.Errorf("asked for %v messages, want ten at a time once or twice, and then single ones", got)
		}
		s.q.send(slices.Repeat([]string{strings.Repeat("x", small)}, 500)...)
		elapse(19 * time.Second)
		if got := asked(); len(got) > 70 || len(s.q.left()) > 0 {
			t.Errorf("%d receives for 500 small messages after that, %d are left; asked for %v", len(got), len(s.q.left()), got)
		}
	})
}

func TestAStopEndsTheReceiversOfAStorm(t *testing.T) {
	oneProcessor(t)
	story(t, &Server{Handler: returning(nil, 0)}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		s.q.send(slices.Repeat([]string{"x"}, 5000)...)
		elapse(200 * time.Millisecond)
		s.q.forget()
		start := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %s", took)
		}
		for _, c := range s.q.made("ReceiveMessage") {
			if c.at.After(start) {
				t.Errorf("a receive %s after the stop", c.at.Sub(start))
			}
		}
	})
}

func TestReceiversComeWithAStormAndGoWithIt(t *testing.T) {
	oneProcessor(t)
	story(t, &Server{Handler: returning(nil, 0), Receivers: 4}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		s.q.send(make([]string, 2000)...)
		elapse(150 * time.Millisecond)
		if n := s.receiving(); n != 4 {
			t.Errorf("%d receivers in the storm, want 4", n)
		}
		elapse(10 * time.Second)
		if n := s.receiving(); n != 1 {
			t.Errorf("%d receivers after it, want 1", n)
		}
		s.q.send("a", "b", "c")
		synctest.Wait()
		if n := s.receiving(); n != 1 {
			t.Errorf("%d receivers for three messages, want 1", n)
		}
	})
}

func (s *Server) receiving() int {
	s.messages.mu.Lock()
	defer s.messages.mu.Unlock()
	return s.messages.receivers
}

func TestTenThousandForeignMessagesPassAtTwoThousandASecond(t *testing.T) {
	oneProcessor(t)
	story(t, &Server{Handler: returning(Leave(nil), 0)}, func(t *testing.T, s serving) {
		s.q.set(func() { s.q.latency = map[string]time.Duration{"": 15 * time.Millisecond} })
		start := time.Now()
		s.q.send(make([]string, 10_000)...)
		for s.seen.counted().settled[Left] < 10_000 {
			elapse(10 * time.Millisecond)
		}
		took := time.Since(start)
		t.Logf("%v: %.0f messages a second", took, 10_000/took.Seconds())
		if took > 5*time.Second {
			t.Errorf("10,000 messages took %v, want 5s at most", took)
		}
	})
}

func TestCheckTellsWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		suffix     string // of the URL
		attributes map[string]string
		fail       error
		want       []string // in the error; none: no error
		warned     []string // in the one line logged; none: no line
	}{
		"all is well": {attributes: map[string]string{"DelaySeconds": "0", "RedrivePolicy": "{}"}},
		"queue missing": {
			fail: &types.QueueDoesNotExist{Message: aws.String("The specified queue does not exist.")},
			want: []string{"GetQueueAttributes", "/notices", "aws-region"},
		},
		"wrong region": {
			fail: &smithy.GenericAPIError{Code: "InvalidSignatureException", Message: "Credential should be scoped to a valid region"},
			want: []string{"GetQueueAttributes", "/notices", "valid region", "aws-region"},
		},
		"no credentials": {
			fail: errors.New("no EC2 IMDS role found"),
			want: []string{"GetQueueAttributes", "/notices", "no EC2 IMDS role found"},
		},
		"no answer":      {fail: errHang, want: []string{"GetQueueAttributes", "deadline"}},
		"no permission":  {fail: errAccessDenied, warned: []string{"sqs:GetQueueAttributes"}},
		"delivery delay": {attributes: map[string]string{"DelaySeconds": "90"}, warned: []string{"1m30s", "two minutes"}},
		"FIFO queue":     {suffix: ".fifo", warned: []string{"FIFO"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, r := newFakeQueue(), newRecorder()
				q.attributes = test.attributes
				q.fail = failing("GetQueueAttributes", test.fail)
				s := &Server{Client: q, URL: q.url() + test.suffix, Log: r.log.Logger(), Metrics: r}
				err := s.Check(t.Context())
				if (err != nil) != (test.want != nil) {
					t.Fatalf("Check = %v", err)
				}
				for _, want := range test.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("Check = %q, want it to tell of %q", err, want)
					}
				}
				lines := r.logged("")
				if len(lines) != min(len(test.warned), 1) {
					t.Fatalf("logged %q", lines)
				}
				for _, want := range test.warned {
					if !strings.Contains(lines[0], want) {
						t.Errorf("logged %q, want it to tell of %q", lines[0], want)
					}
				}
			})
		})
	}
}

func TestAPermissionThatIsMissingFromTheStartEndsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r := newFakeQueue(), newRecorder()
		q.fail = failing("ReceiveMessage", errAccessDenied)
		s := &Server{Client: q, URL: q.url(), Handler: returning(nil, 0), Probation: 10 * time.Second, Log: r.log.Logger(), Metrics: r}
		if err := s.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), "the role lacks sqs:ReceiveMessage") {
			t.Errorf("Serve = %v, want an error that names the action", err)
		}
	})
}

func TestAPermissionThatIsTakenAwayDoesNotEndServing(t *testing.T) {
	story(t, &Server{Handler: returning(nil, 0), Probation: time.Hour}, func(t *testing.T, s serving) {
		elapse(time.Minute)
		s.q.set(func() { s.q.fail = failing("ReceiveMessage", errAccessDenied) })
		elapse(10 * time.Minute)
		s.q.set(func() { s.q.fail = nil })
		s.q.send("a")
		elapse(15 * time.Second)
		if left := s.q.left(); len(left) != 0 {
			t.Errorf("%d messages are left", len(left))
		}
	})
}

func TestTheActionsThatAreMissingAreNamedBeforeTheFirstReceive(t *testing.T) {
	for call, test := range map[string]struct {
		code, lacks string
		fatal       bool
	}{
		"DeleteMessageBatch":           {"AccessDenied", "sqs:DeleteMessage", true},
		"ChangeMessageVisibilityBatch": {"AccessDenied", "sqs:ChangeMessageVisibility", false},
		"ReceiveMessage":               {"AccessDenied", "", false}, // not asked: it might bring a message
	} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, q := newSimulatedQueue(t, awssim.Queue{})
				if err := q.sim.SetFault(awssim.Fault{Action: call, Status: 403, Code: test.code}); err != nil {
					t.Fatal(err)
				}
				r := newRecorder()
				c := Client{API: client, URL: q.url(), Log: r.log.Logger()}
				err := c.CheckPermissions(t.Context())
				if (err != nil) != test.fatal {
					t.Fatalf("CheckPermissions = %v", err)
				}
				told := strings.Join(r.logged(""), "\n")
				if err != nil {
					told = err.Error()
				}
				if !strings.Contains(told, test.lacks) || (told == "") != (test.lacks == "") {
					t.Errorf("told %q, want it to name %q", told, test.lacks)
				}
			})
		})
	}
}

// What STS denies is no permission of the queue: the role itself is missing.
func TestARoleThatSTSDoesNotGiveIsNoMissingPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r := newFakeQueue(), newRecorder()
		q.fail = failing("GetQueueAttributes", &smithy.OperationError{
			ServiceID: "SQS", OperationName: "GetQueueAttributes",
			Err: fmt.Errorf("get identity: %w", &smithy.OperationError{ServiceID: "STS", OperationName: "AssumeRoleWithWebIdentity", Err: errAccessDenied}),
		})
		s := &Server{Client: q, URL: q.url(), Log: r.log.Logger(), Metrics: r}
		if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no AWS credentials") {
			t.Errorf("Check = %v, want an error about STS", err)
		}
	})
}

// reasons keeps why messages were settled.
type reasons struct {
	Metrics
	told chan error
}

func (r reasons) Settled(_ Outcome, why error) { r.told <- why }

func TestTheReasonOfAnOutcomeIsWhatTheHandlerReturned(t *testing.T) {
	broken := errors.New("broken")
	for _, returned := range []error{nil, broken, Leave(broken), Reject(broken)} {
		synctest.Test(t, func(t *testing.T) {
			q := newFakeQueue()
			q.send("a")
			told := make(chan error, 1)
			s := &Server{Client: q, URL: q.url(), Metrics: reasons{Discard, told}, Handler: returning(returned, time.Second)}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = s.Serve(ctx)
			}()
			if why := <-told; !errors.Is(why, returned) {
				t.Errorf("returned %v, settled because of %v", returned, why)
			}
			cancel()
			<-done
		})
	}
}
