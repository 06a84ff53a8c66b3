package delivery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/reporttest"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

func noNode(string) *corev1.Node { return nil }

// A testSender counts what becomes of its messages.
type testSender struct {
	*Sender

	mu         sync.Mutex
	deliveries map[report.Delivery]int
}

// counts are the messages sent, failed and dropped.
func (s *testSender) counts() [3]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [3]int{s.deliveries[report.Sent], s.deliveries[report.Failed], s.deliveries[report.Dropped]}
}

func (s *testSender) delivered(d report.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliveries[d]++
}

func newTestSender(t testing.TB, edit func(*Options)) (*testSender, *logtest.Log) {
	t.Helper()
	parsed, err := webhook.ParseTemplate(webhook.DefaultTemplate)
	if err != nil {
		t.Fatal(err)
	}
	log := &logtest.Log{}
	sender := &testSender{deliveries: map[report.Delivery]int{}}
	o := Options{
		URL: "http://webhook.test/" + reporttest.Secret, Headers: map[string]string{"Content-type": "application/json", "X-Token": reporttest.Secret},
		Template: parsed, Phases: webhook.Phases, Node: noNode, Where: nowhere, Delivered: sender.delivered, Log: log.Logger(),
	}
	if edit != nil {
		edit(&o)
	}
	t.Cleanup(func() {
		if strings.Contains(log.String(), reporttest.Secret) {
			t.Errorf("the log holds a secret:\n%s", log.String())
		}
	})
	sender.Sender = New(o)
	return sender, log
}

// A post is one request that a server has seen.
type post struct {
	at   time.Duration // since the beginning
	body string
}

// A script answers requests in virtual time, and keeps them. It is the transport
// of a webhook: a synctest bubble holds no network.
type script struct {
	begin  time.Time
	answer func(n int, r *http.Request) (*http.Response, error) // n counts from 1

	mu    sync.Mutex
	posts []post
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.posts = append(s.posts, post{time.Since(s.begin), string(body)})
	n := len(s.posts)
	s.mu.Unlock()
	return s.answer(n, r)
}

func (s *script) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for _, p := range s.posts {
		all = append(all, p.at)
	}
	return all
}

func answer(code int, header ...string) *http.Response {
	h := http.Header{}
	for k := 0; k < len(header); k += 2 {
		h.Set(header[k], header[k+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: http.NoBody}
}

// inVirtualTime runs a webhook against a script, in a bubble. stop ends it and
// returns how long that took.
func inVirtualTime(t *testing.T, respond func(n int, r *http.Request) (*http.Response, error), story func(t *testing.T, w *testSender, s *script, stop func() time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, _ := newTestSender(t, nil)
		s := &script{begin: time.Now(), answer: respond}
		w.client.Transport = s
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		story(t, w, s, func() time.Duration {
			begin := time.Now()
			cancel()
			<-done
			return time.Since(begin)
		})
		cancel()
		<-done
	})
}

func TestAMessageIsSentOnceForANoticeAndANode(t *testing.T) {
	inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		for range 3 { // deliveries
			w.Decided(reporttest.Spot())
		}
		other := reporttest.Spot()
		other.Node.UID = types.UID("uid-2")
		w.Decided(other)
		later := reporttest.Spot()
		later.Notice.ID = "event-2"
		w.Decided(later)
		copied := later // as AWS Health sends one to its backup Region
		copied.Notice.Time = reporttest.Noon.Add(3 * time.Second)
		w.Decided(copied)
		synctest.Wait()
		if n := len(s.times()); n != 3 {
			t.Errorf("%d posts, want one for each notice and node: 3", n)
		}
	})
}

func TestOnlyWhatIsDoneToANodeIsSent(t *testing.T) {
	inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		for k := range int(decision.Reject) + 1 {
			d := reporttest.Spot()
			d.Action, d.Notice.ID = decision.Action(k), fmt.Sprint(k)
			w.Decided(d)
		}
		dry := reporttest.Spot()
		dry.DryRun = true
		w.Decided(dry)
		w.Stepped(report.Step{Node: dry.Node, Kind: report.Cordon, Why: decision.WhySpotInterruption})
		synctest.Wait()
		if n := len(s.times()); n != 2 {
			t.Errorf("%d posts, want those of cordon and drain", n)
		}
	})
}

// A drain in its phases, as the templates of their stories see it.
const phases = `{{ .Phase }} {{ .EventID }} {{ .Kind }} {{ .AutoScalingGroupName }} {{ .InstanceID }} {{ .NodeName }} {{ .AccountId }} {{ .NodeProcessed }} {{ .InProgress }} ` +
	`{{ .Deadline.Format "15:04" }} {{ .Evicted }} {{ .Forced }} {{ .Ended }} {{ .Missed }} {{ .Lost }} {{ .Unconfirmed }} {{ .Took }}: {{ .Description }}`

func TestEachPhaseIsToldIfItIsWanted(t *testing.T) {
	deadline := reporttest.Noon.Add(2 * time.Minute)
	const (
		received = "received event-1 SPOT_ITN  i-0123456789abcdef0 node-1 123456789012 false true 12:02 0 0 0 [] [] [] 0s: Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T12:02:00Z"
		drained  = "drained event-1 SPOT_ITN  i-0123456789abcdef0 node-1 123456789012 true false 12:02 7 1 0 [] [] [] 12s: The node is drained: 7 evicted, 1 deleted, in 12s; the instance goes away at 2026-11-20T12:02:00Z"
		missed   = "missed event-1 SPOT_ITN  i-0123456789abcdef0 node-1 123456789012 true false 12:02 7 0 0 [shop/web-0] [] [] 2m0s: Pods were still there at the deadline, 2026-11-20T12:02:00Z: shop/web-0 (1 missed, 7 evicted, 0 deleted, in 2m0s)"
		gone     = "gone event-1 SPOT_ITN  i-0123456789abcdef0 node-1 123456789012 true false 12:02 0 0 0 [] [shop/web-0] [] 1m0s: The instance or its Node went away with pods on it: shop/web-0 (1 lost, 0 evicted, 0 deleted, in 1m0s)"
		unsure   = "unconfirmed event-1 SPOT_ITN  i-0123456789abcdef0 node-1 123456789012 true false 12:02 0 0 1 [] [] [shop/web-0] 1m0s: Pods should have ended, but no kubelet confirms it: shop/web-0 (1 unconfirmed, 0 evicted, 0 deleted, 1 ended, in 1m0s)"
	)
	for _, test := range []struct {
		phases []webhook.Phase
		want   []string
	}{
		{nil, nil},
		{[]webhook.Phase{webhook.PhaseReceived}, []string{received}},
		{[]webhook.Phase{webhook.PhaseDrained}, []string{drained}},
		{[]webhook.Phase{webhook.PhaseMissed}, []string{missed}},
		{[]webhook.Phase{webhook.PhaseGone}, []string{gone}},
		{[]webhook.Phase{webhook.PhaseUnconfirmed}, []string{unsure}},
		{webhook.Phases, []string{received, drained, missed, gone, unsure}},
	} {
		t.Run(fmt.Sprint(test.phases), func(t *testing.T) {
			inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
				w.options.Template, w.options.Phases = mustParse(t, phases), test.phases
				w.Decided(reporttest.Spot())
				synctest.Wait()
				w.Drained(endOfDrain(intent.Drained, evacuation.Result{Evicted: 7, Forced: 1}, 12*time.Second+time.Millisecond, deadline))
				synctest.Wait()
				w.Drained(endOfDrain(intent.Missed, evacuation.Result{Evicted: 7, Missed: []string{"shop/web-0"}}, 2*time.Minute, deadline))
				synctest.Wait()
				w.Drained(endOfDrain(intent.Gone, evacuation.Result{Lost: []string{"shop/web-0"}}, time.Minute, deadline))
				synctest.Wait()
				w.Drained(endOfDrain(intent.Unconfirmed, evacuation.Result{Ended: 1, Unconfirmed: []string{"shop/web-0"}}, time.Minute, deadline))
				synctest.Wait()
				var got []string
				for _, p := range s.posts {
					got = append(got, p.body)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("messages (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTheEndOfADrainThatAnotherLeaderHadBegunIsToldAsItsNodeSays(t *testing.T) {
	const rest = " 123456789012 true false 12:02 7 0 0 [] [] [] 12s: The node is drained: 7 evicted, 0 deleted, in 12s; the instance goes away at 2026-11-20T12:02:00Z"
	node := reporttest.Node(t)
	for _, test := range []struct {
		name string
		node *corev1.Node
		edit func(*intent.Intent)
		want string
	}{
		{"a spot warning", node, func(*intent.Intent) {}, "drained event-2 SPOT_ITN  i-0123456789abcdef0 node-1" + rest},
		{"a hook", node, func(i *intent.Intent) {
			i.Entries = append(i.Entries, intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"event-3"}})
			i.Hooks = []intent.Hook{{Group: "group-1", Instance: "i-0123456789abcdef0"}}
		}, "drained event-3 ASG_LIFECYCLE group-1 i-0123456789abcdef0 node-1" + rest},
		{"a node that has gone meanwhile", nil, func(*intent.Intent) {}, "drained    i-0123456789abcdef0 node-1" + rest},
	} {
		t.Run(test.name, func(t *testing.T) {
			inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
				carried := intent.Intent{Version: 1, Entries: []intent.Entry{
					{Kind: notice.RebalanceRecommendation, IDs: []string{"event-0"}},
					{Kind: notice.SpotInterruption, IDs: []string{"event-1", "event-2"}},
				}}
				test.edit(&carried)
				text, err := json.Marshal(carried)
				if err != nil {
					t.Fatal(err)
				}
				node.Annotations[cluster.IntentAnnotation] = string(text)
				w.options.Template = mustParse(t, phases)
				w.options.Where = func() (account, region string) { return "123456789012", "" }
				w.options.Node = func(string) *corev1.Node { return test.node }
				w.Drained(endOfDrain(intent.Drained, evacuation.Result{Evicted: 7}, 12*time.Second, reporttest.Noon.Add(2*time.Minute)))
				synctest.Wait()
				if len(s.posts) != 1 || s.posts[0].body != test.want {
					t.Errorf("messages %v, want\n%s", s.posts, test.want)
				}
			})
		})
	}
}

func nowhere() (account, region string) { return "", "" }

func TestARedeliveredNoticeIsNotToldAgainButItsDrainIs(t *testing.T) {
	inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		w.options.Template = mustParse(t, "{{ .Phase }} {{ .EventID }}")
		d := reporttest.Spot()
		d.Repeated = true // the leader before has told it
		w.Decided(d)
		w.Drained(endOfDrain(intent.Drained, evacuation.Result{Evicted: 7}, 12*time.Second, d.Deadline))
		synctest.Wait()
		if len(s.posts) != 1 || s.posts[0].body != "drained event-1" {
			t.Errorf("messages %v, want the drain's end alone", s.posts)
		}
	})
}

func TestAFailedMessageIsTriedAgainWithGrowingPauses(t *testing.T) {
	fail := func(n int, _ *http.Request) (*http.Response, error) {
		switch n {
		case 1:
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		case 2:
			return answer(500), nil
		case 3:
			return nil, io.ErrUnexpectedEOF
		case 4:
			return answer(408), nil
		}
		return answer(204), nil
	}
	inVirtualTime(t, fail, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		w.Decided(reporttest.Spot())
		<-time.After(time.Minute)
		at := s.times()
		if len(at) != 5 {
			t.Fatalf("posts at %v, want five", at)
		}
		for k, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
			if got := at[k+1] - at[k]; got < pause || got > pause*6/5 {
				t.Errorf("pause %d is %s, want %s and at most a fifth more", k+1, got, pause)
			}
		}
		if diff := cmp.Diff([3]int{1, 0, 0}, w.counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

func TestAMessageThatNobodyTakesIsGivenUp(t *testing.T) {
	for _, test := range []struct {
		name  string
		code  int
		tries int // at least
		until time.Duration
	}{
		{"a server that fails is tried for minutes", 503, 12, resendFor},
		{"one that refuses is not asked again", 404, 1, time.Second},
		{"a redirect is none of our server's", 302, 1, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			respond := func(int, *http.Request) (*http.Response, error) { return answer(test.code), nil }
			inVirtualTime(t, respond, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
				w.Decided(reporttest.Spot())
				<-time.After(time.Hour)
				at := s.times()
				if len(at) < test.tries || at[len(at)-1] > test.until {
					t.Errorf("posts at %v, want at least %d within %s", at, test.tries, test.until)
				}
				for k := 1; k < len(at); k++ {
					if pause := at[k] - at[k-1]; pause > backoff.Max*6/5 {
						t.Errorf("a pause of %s", pause)
					}
				}
				if diff := cmp.Diff([3]int{0, 1, 0}, w.counts()); diff != "" {
					t.Errorf("counts (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestARetryAfterHoldsAllMessages(t *testing.T) {
	const quiet = 20 * time.Second
	for _, test := range []struct {
		name   string
		code   int
		header func() string
	}{
		{"seconds", 429, func() string { return "20" }},
		{"a date", 503, func() string { return time.Now().Add(quiet).UTC().Format(http.TimeFormat) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			respond := func(n int, _ *http.Request) (*http.Response, error) {
				if n == 1 {
					return answer(test.code, "Retry-After", test.header()), nil
				}
				return answer(200), nil
			}
			inVirtualTime(t, respond, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
				w.Decided(reporttest.Spot())
				synctest.Wait()
				other := reporttest.Spot()
				other.Notice.ID = "event-2"
				w.Decided(other)
				<-time.After(time.Minute)
				at := s.times()
				if len(at) != 3 || at[1] < quiet || at[2] < quiet {
					t.Errorf("posts at %v, want the second and third after %s", at, quiet)
				}
			})
		})
	}
}

func TestARetryAfterOfDaysHoldsNothingForLongerThanMinutes(t *testing.T) {
	respond := func(n int, _ *http.Request) (*http.Response, error) {
		if n == 1 {
			return answer(429, "Retry-After", "999999999"), nil
		}
		return answer(200), nil
	}
	inVirtualTime(t, respond, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		w.Decided(reporttest.Spot())
		<-time.After(time.Hour)
		if diff := cmp.Diff([]time.Duration{0, resendFor}, s.times()); diff != "" {
			t.Errorf("posts at (-want +got):\n%s", diff)
		}
	})
}

func TestAServerThatHangsHoldsNobodyUp(t *testing.T) {
	hang := func(_ int, r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	inVirtualTime(t, hang, func(t *testing.T, w *testSender, _ *script, stop func() time.Duration) {
		begin := time.Now()
		const all = queueLength + 500
		for k := range all {
			d := reporttest.Spot()
			d.Notice.ID = fmt.Sprint(k)
			w.Decided(d)
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("Decided has waited for %s", took)
		}
		if n := w.counts()[2]; n < 500-workers || n > 500 {
			t.Errorf("%d messages were dropped, want those beyond the queue", n)
		}
		<-time.After(time.Hour)
		if n := w.counts(); n[0] != 0 || n[1]+n[2] != all {
			t.Errorf("sent, failed, dropped: %v, want the fate of each of %d", n, all)
		}
		if took := stop(); took > 0 {
			t.Errorf("the end took %s with nothing to send", took)
		}
	})
}

func TestAtTheEndWhatWaitsIsTriedForASecond(t *testing.T) {
	t.Run("a server that works gets it all", func(t *testing.T) {
		slow := func(_ int, r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(100 * time.Millisecond):
				return answer(200), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		inVirtualTime(t, slow, func(t *testing.T, w *testSender, s *script, stop func() time.Duration) {
			for k := range 5 * workers {
				d := reporttest.Spot()
				d.Notice.ID = fmt.Sprint(k)
				w.Decided(d)
			}
			synctest.Wait()
			if took := stop(); took != 500*time.Millisecond {
				t.Errorf("the end took %s, want 500ms", took)
			}
			if diff := cmp.Diff([3]int{5 * workers, 0, 0}, w.counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("one that hangs keeps nobody", func(t *testing.T) {
		hang := func(_ int, r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		inVirtualTime(t, hang, func(t *testing.T, w *testSender, s *script, stop func() time.Duration) {
			for k := range 100 {
				d := reporttest.Spot()
				d.Notice.ID = fmt.Sprint(k)
				w.Decided(d)
			}
			synctest.Wait()
			if took := stop(); took > stopTime {
				t.Errorf("the end took %s, want %s at most", took, stopTime)
			}
			if diff := cmp.Diff([3]int{0, 100, 0}, w.counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("a pause is cut short", func(t *testing.T) {
		respond := func(n int, _ *http.Request) (*http.Response, error) {
			if n == 1 {
				return answer(429, "Retry-After", "100"), nil
			}
			return answer(200), nil
		}
		inVirtualTime(t, respond, func(t *testing.T, w *testSender, s *script, stop func() time.Duration) {
			w.Decided(reporttest.Spot())
			synctest.Wait()
			if took := stop(); took > 0 {
				t.Errorf("the end took %s", took)
			}
			if diff := cmp.Diff([3]int{1, 0, 0}, w.counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	})
}

func TestATemplateThatFailsFailsItsMessageAndNoOther(t *testing.T) {
	inVirtualTime(t, func(int, *http.Request) (*http.Response, error) { return answer(200), nil }, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		w.options.Template = mustParse(t, `{{ if eq .Kind "STATE_CHANGE" }}{{ fail "no" }}{{ end }}ok`)
		state := reporttest.Spot()
		state.Notice.Kind = notice.StateChange
		w.Decided(state)
		w.Decided(reporttest.Spot())
		synctest.Wait()
		if diff := cmp.Diff([3]int{1, 1, 0}, w.counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

// A stage is a real HTTP server whose answers follow each other, and the last for ever.
type stage struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string // method, host, path, headers, body
}

func newStage(t *testing.T, acts ...http.HandlerFunc) *stage {
	s := &stage{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		n := len(s.requests)
		s.requests = append(s.requests, fmt.Sprintf("%s %s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("X-Token"), body))
		s.mu.Unlock()
		acts[min(n, len(acts)-1)](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stage) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func withStatus(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// hangUp closes the connection without an answer.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func redirect(code int, to func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", to())
		w.WriteHeader(code)
	}
}

const testBody = `{"text":"hello"}`

func TestAMessageReachesAServerThatFailedBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t, withStatus(500), hangUp, withStatus(202))
	w, log := newTestSender(t, func(o *Options) {
		o.URL = s.URL + "/" + reporttest.Secret
		o.Template = mustParse(t, testBody)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	w.Decided(reporttest.Spot())
	for w.counts()[0] == 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	cancel()
	<-done
	want := "POST /hush application/json hush " + testBody
	if diff := cmp.Diff([]string{want, want, want}, s.seen()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	began := log.Said("the webhook does not take messages: each is tried for five minutes (logged once)")
	if len(began) != 1 || !strings.Contains(began[0], "500") || len(log.Said("the webhook takes messages again")) != 1 {
		t.Errorf("it says:\n%s", log)
	}
}

func TestARedirectIsFollowedOnTheSameHostAlone(t *testing.T) {
	t.Parallel()
	other := newStage(t, withStatus(200))
	for _, test := range []struct {
		name  string
		code  int
		to    string
		posts int
		err   string
	}{
		{"the body goes with a 307", 307, "/elsewhere", 2, ""},
		{"and with a 308", 308, "/elsewhere", 2, ""},
		{"after a 302 it would be a GET", 302, "/elsewhere", 1, "the answer was 302 Found: only a redirect to the same host is followed"},
		{"another host sees nothing", 307, other.URL + "/" + reporttest.Secret, 1, "the answer was 307 Temporary Redirect: only a redirect to the same host is followed"},
		{"nor another scheme", 308, "https://SELF/", 1, "the answer was 308 Permanent Redirect: only a redirect to the same host is followed"},
		{"nor one that cannot be read", 307, "http://[" + reporttest.Secret, 1, "the answer was not understood"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s *stage
			s = newStage(t, redirect(test.code, func() string { return strings.ReplaceAll(test.to, "SELF", strings.TrimPrefix(s.URL, "http://")) }), withStatus(200))
			w, _ := newTestSender(t, func(o *Options) { o.URL = s.URL + "/" + reporttest.Secret })
			_, err := w.post(t.Context(), []byte(testBody))
			if got := fmt.Sprint(err); got != test.err && (err != nil || test.err != "") {
				t.Errorf("error %q, want %q", got, test.err)
			}
			if got := s.seen(); len(got) != test.posts || !strings.HasSuffix(got[len(got)-1], " hush "+testBody) {
				t.Errorf("requests %q, want %d", got, test.posts)
			}
		})
	}
	if seen := other.seen(); len(seen) > 0 {
		t.Errorf("the other host has seen %q", seen)
	}
}

func TestAMessageGoesThroughTheProxyThatFailedBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t, withStatus(200))
	forward := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != "webhook.test" || r.Header.Get("Proxy-Authorization") == "" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		out, err := http.NewRequestWithContext(r.Context(), r.Method, s.URL+r.URL.Path, strings.NewReader(testBody))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		out.Header = r.Header
		response, err := s.Client().Do(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		w.WriteHeader(response.StatusCode)
	}
	proxy := newStage(t, withStatus(502), hangUp, forward)
	proxyURL, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxyURL.User = url.UserPassword("me", reporttest.Secret)
	w, _ := newTestSender(t, func(o *Options) { o.Proxy = proxyURL })
	for k, want := range []string{"the answer was 502 Bad Gateway", "the server has closed the connection without an answer", "<nil>"} {
		final, err := w.post(t.Context(), []byte(testBody))
		if got := fmt.Sprint(err); got != want || final {
			t.Errorf("try %d: %q, final %v, want %q", k+1, got, final, want)
		}
	}
	if diff := cmp.Diff([]string{"POST /hush application/json hush " + testBody}, s.seen()); diff != "" {
		t.Errorf("requests behind the proxy (-want +got):\n%s", diff)
	}
}

func TestAMessageReachesATLSServerThroughAProxyWhenBothHaveFailedInTurn(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	t.Cleanup(func() { close(slow) })
	came := make(chan struct{}, 1)
	wait := func(_ http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-slow:
		case <-r.Context().Done():
		}
	}
	other := newStage(t, withStatus(200))
	server := newStage(t, withStatus(500), hangUp, wait, redirect(307, func() string { return other.URL }), withStatus(429), withStatus(200))
	secure := httptest.NewTLSServer(server.Config.Handler)
	t.Cleanup(secure.Close)
	connect := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") == "" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		there, err := net.Dial("tcp", r.URL.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		here, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		go func() {
			defer there.Close()
			_, _ = io.Copy(there, buffered) // either end may break off
		}()
		go func() {
			defer here.Close()
			_, _ = io.Copy(here, there)
		}()
	}
	proxy := newStage(t, withStatus(403), hangUp, wait, connect)
	proxyURL, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxyURL.User = url.UserPassword("me", reporttest.Secret)
	w, _ := newTestSender(t, func(o *Options) { o.Proxy, o.URL = proxyURL, secure.URL+"/"+reporttest.Secret })
	t.Cleanup(w.client.CloseIdleConnections)
	w.client.Transport.(*http.Transport).TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
	for k, want := range []string{
		"the answer of the proxy was 403 Forbidden",
		"the server has closed the connection without an answer",
		"no answer in time",
		"the answer was 500 Internal Server Error",
		"the server has closed the connection without an answer",
		"no answer in time",
		"the answer was 307 Temporary Redirect: only a redirect to the same host is followed",
		"the answer was 429 Too Many Requests",
		"<nil>",
	} {
		w.client.Timeout = 5 * time.Minute
		ctx := t.Context()
		if want == "no answer in time" {
			late := overdue{ctx, make(chan struct{})}
			go func() {
				<-came
				close(late.passed)
			}()
			ctx = late
		}
		final, err := w.post(ctx, []byte(testBody))
		if got := fmt.Sprint(err); got != want || final != strings.Contains(want, "redirect") {
			t.Errorf("try %d: %q, final %v, want %q", k+1, got, final, want)
		}
	}
	seen := server.seen()
	if want := "POST /hush application/json hush " + testBody; len(seen) != 6 || seen[5] != want {
		t.Errorf("requests %q, want six, the last %q", seen, want)
	}
	if len(other.seen()) > 0 {
		t.Errorf("the other host has seen %q", other.seen())
	}
}

// overdue is a context whose deadline comes when passed is closed.
type overdue struct {
	context.Context
	passed chan struct{}
}

func (o overdue) Done() <-chan struct{} { return o.passed }

func (o overdue) Err() error {
	select {
	case <-o.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestAServerThatDoesNotAnswerIsWaitedForUntilTheTimeOfARequestIsOver(t *testing.T) {
	inVirtualTime(t, func(_ int, r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}, func(t *testing.T, w *testSender, s *script, _ func() time.Duration) {
		final, err := w.post(t.Context(), []byte(testBody))
		if took := time.Since(s.begin); final || fmt.Sprint(err) != "no answer in time" || took != postTimeout {
			t.Errorf("after %s: %v, final %v", took, err, final)
		}
	})
}

// A webhook's errors may end up anywhere, so none may repeat what is secret, not
// even what a server has repeated.
func TestNoErrorHoldsASecret(t *testing.T) {
	t.Parallel()
	echo := raw(t, func(c net.Conn, request string) { fmt.Fprint(c, request) })
	status := raw(t, func(c net.Conn, request string) {
		fmt.Fprintf(c, "HTTP/1.1 500 %s\r\n\r\n", strings.Fields(request)[1])
	})
	header := raw(t, func(c net.Conn, request string) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", strings.Fields(request)[1])
	})
	silent := raw(t, func(net.Conn, string) {})
	closed := httptest.NewServer(nil)
	closed.Close()
	certificate := httptest.NewUnstartedServer(withStatus(200))
	certificate.Config.ErrorLog = log.New(io.Discard, "", 0)
	certificate.StartTLS()
	t.Cleanup(certificate.Close)
	refuses := newStage(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.RequestURI)
		w.WriteHeader(http.StatusForbidden)
	})
	for _, test := range []struct{ name, url, proxy, want string }{
		{"an answer that is the request", echo, "", "the answer was not understood"},
		{"a status that repeats the path", status, "", "the answer was 500 Internal Server Error"},
		{"a header that does", header, "", "the answer was not understood"},
		{"no answer", silent, "", "the server has closed the connection without an answer"},
		{"no server", closed.URL, "", "dial tcp ADDRESS: connect: connection refused"},
		{"no TLS", strings.Replace(refuses.URL, "http:", "https:", 1), "", "http: server gave HTTP response to HTTPS client"},
		{"a certificate of nobody", certificate.URL, "", "tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		{"a proxy that refuses to connect", "https://webhook.test", refuses.URL, "the answer of the proxy was 403 Forbidden"},
		{"a proxy that is none", "https://webhook.test", echo, "the answer was not understood"},
		{"no proxy", "https://webhook.test", closed.URL, "proxyconnect tcp: dial tcp ADDRESS: connect: connection refused"},
		{"an URL that cannot be one", "http://[", "", "the URL cannot be used"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, _ := newTestSender(t, func(o *Options) {
				o.URL = test.url + "/" + reporttest.Secret
				if test.proxy != "" {
					proxy, err := url.Parse(test.proxy)
					if err != nil {
						t.Fatal(err)
					}
					proxy.User = url.UserPassword("me", reporttest.Secret)
					o.Proxy = proxy
				}
			})
			_, err := w.post(t.Context(), []byte(testBody))
			got := strings.ReplaceAll(fmt.Sprint(err), strings.TrimPrefix(closed.URL, "http://"), "ADDRESS")
			if got != test.want {
				t.Errorf("error %q, want %q", got, test.want)
			}
		})
	}
}

// raw serves connections without HTTP: answer gets the head of the request. It
// returns the URL.
func raw(t *testing.T, answer func(c net.Conn, request string)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var head strings.Builder
				for in := bufio.NewScanner(c); in.Scan() && in.Text() != ""; {
					head.WriteString(in.Text() + "\n")
				}
				answer(c, head.String())
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestThatMessagesAreDroppedIsAWarningOnce(t *testing.T) {
	w, log := newTestSender(t, nil)
	for k := range queueLength + 5 {
		d := reporttest.Spot()
		d.Notice.ID = fmt.Sprint(k)
		w.Decided(d)
	}
	if n := len(log.Entries("", "level", "warn")); n != 1 {
		t.Errorf("%d warnings of 5 dropped messages, want one:\n%s", n, log)
	}
}
