package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// What a start-up does about an error.
const (
	exits  = "exits"
	waits  = "tries again, not ready"              // and starts when it works
	leads  = "goes on, not ready, and tries again" // and is ready when it works
	goesOn = "goes on, ready"
)

func TestWhatHealsByItselfDoesNotEndTheStartUp(t *testing.T) {
	type row struct {
		name string
		err  any               // awssim.Fault, error (of the transport), or metav1.Status
		want map[string]string // by call
	}
	const (
		attributes = "sqs GetQueueAttributes"
		hold       = "sqs ChangeMessageVisibilityBatch"
		remove     = "sqs DeleteMessageBatch"
		describe   = "ec2 DescribeInstances"
		assume     = "sts AssumeRoleWithWebIdentity"
		rights     = "create selfsubjectaccessreviews"
		nodes      = "list nodes"
		volumes    = "list volumeattachments"
	)
	ofAWS := func(sqs, ec2, sts string) map[string]string {
		// Whether messages may be held and deleted is asked once: it is found out by doing.
		want := map[string]string{attributes: sqs, hold: goesOn, remove: goesOn, describe: ec2}
		if sts != "" {
			want[assume] = sts
		}
		return want
	}
	everywhere := func(what string) map[string]string {
		return map[string]string{rights: what, nodes: what, volumes: what}
	}
	// Without an answer about a right it leads after a minute: the lists of nodes and volumes are answers, too.
	unanswered := map[string]string{rights: leads, nodes: waits, volumes: waits}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	noDNS := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "server misbehaving", Name: "host", IsTemporary: true}}
	noAnswerOfDNS := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "i/o timeout", Name: "host", IsTimeout: true, IsTemporary: true}}
	noSuchHost := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "host", IsNotFound: true}}
	otherCertificate := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}

	for _, r := range []row{
		{"500", awssim.Fault{Status: 500}, ofAWS(waits, leads, waits)},
		{"503", awssim.Fault{Status: 503}, ofAWS(waits, leads, waits)},
		{"no answer", awssim.Fault{Hang: true}, ofAWS(waits, leads, "")},
		// The transport ends it, see AWSConfig.
		{"no answer", awssim.Fault{Hang: true, HangFor: 30 * time.Second}, map[string]string{assume: waits}},
		{"reset", awssim.Fault{Reset: true}, ofAWS(waits, leads, waits)},
		{"half a response", awssim.Fault{Half: true}, ofAWS(waits, leads, waits)},
		{"throttled", awssim.Fault{Status: 403, Code: "RequestThrottled"}, map[string]string{attributes: waits, hold: goesOn, remove: goesOn}},
		{"throttled", awssim.Fault{Status: 503, Code: "RequestLimitExceeded"}, map[string]string{describe: leads}},
		{"throttled", awssim.Fault{Status: 400, Code: "Throttling"}, map[string]string{assume: waits}},
		{"refused", refused, ofAWS(waits, leads, waits)},
		{"DNS fails", noDNS, ofAWS(waits, leads, waits)},
		{"DNS does not answer", noAnswerOfDNS, ofAWS(waits, leads, waits)},
		{"the cluster's identity provider is away", awssim.Fault{Status: 400, Code: "IDPCommunicationError"}, map[string]string{assume: waits}},

		{"no such host", noSuchHost, map[string]string{attributes: exits, assume: exits}},
		{"another's certificate", otherCertificate, map[string]string{attributes: exits, assume: exits}},
		{"no such queue", awssim.Fault{Status: 400, Code: "AWS.SimpleQueueService.NonExistentQueue"}, map[string]string{attributes: exits}},
		{"wrong region or key", awssim.Fault{Status: 403, Code: "InvalidSignatureException"}, map[string]string{attributes: exits}},
		{"no such key", awssim.Fault{Status: 403, Code: "InvalidClientTokenId"}, map[string]string{attributes: exits, assume: exits}},
		{"no permission", awssim.Fault{Status: 403, Code: "AccessDenied"}, map[string]string{attributes: goesOn, hold: goesOn, remove: exits, assume: exits}},
		{"no permission", awssim.Fault{Status: 403, Code: "UnauthorizedOperation"}, map[string]string{describe: exits}},

		{"500", metav1.Status{Code: 500, Reason: metav1.StatusReasonInternalError}, unanswered},
		{"503", metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable}, unanswered},
		{"throttled", metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests}, unanswered},
		{"refused", refused, unanswered},
		{"reset", syscall.ECONNRESET, unanswered},
		{"DNS fails", noDNS, unanswered},
		{"no answer", context.DeadlineExceeded, unanswered},
		{"no such host", noSuchHost, everywhere(exits)},
		{"another's certificate", otherCertificate, everywhere(exits)},
		{"no token", metav1.Status{Code: 401, Reason: metav1.StatusReasonUnauthorized}, everywhere(exits)},
		{"no permission", metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden}, map[string]string{
			rights: goesOn, // such a cluster is taken at its deeds
			nodes:  exits, volumes: exits,
		}},
	} {
		for call, want := range r.want {
			t.Run(call+" "+r.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStartUp(t, call == assume)
					mend := s.fail(call, r.err)
					if got := s.outcome(mend); got != want {
						t.Errorf("the start-up %s, want: it %s; it says %v; log:\n%s", got, want, s.err, s.log.String())
					}
				})
			})
		}
	}
}

// A startUp is one without watches, against the simulator and an API server.
type startUp struct {
	*testing.T
	aws    *awssim.Server
	ways   map[string]*way // to SQS, EC2, STS, and the API server
	probes *health
	log    logtest.Log
	assume bool // it asks STS for its credentials, which the SDK tries again for longer than a check waits
	begin  func(context.Context) error
	err    error
}

// A way to a server, on which calls fail as fail says.
type way struct {
	next http.RoundTripper
	fail atomic.Pointer[func(*http.Request) (*http.Response, error)]
}

// RoundTrip implements http.RoundTripper.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	if fail := w.fail.Load(); fail != nil {
		if response, err := (*fail)(r); response != nil || err != nil {
			return response, err
		}
	}
	return w.next.RoundTrip(r)
}

// Do implements aws.HTTPClient as an http.Client does.
func (w *way) Do(r *http.Request) (*http.Response, error) { return (&http.Client{Transport: w}).Do(r) }

// apiServer allows all and has nothing.
type apiServer struct{}

// RoundTrip implements http.RoundTripper.
func (apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	switch path.Base(r.URL.Path) {
	case "selfsubjectaccessreviews":
		return answer(r, 201, authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: true},
		}), nil
	case "nodes":
		return answer(r, 200, metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}), nil
	default:
		return answer(r, 200, metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "VolumeAttachmentList"}), nil
	}
}

// roleGiver is the simulator's STS, which has its faults and knows nothing of roles.
type roleGiver struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (g roleGiver) RoundTrip(r *http.Request) (*http.Response, error) {
	const role = `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKIASIMULATED</AccessKeyId>` +
		`<SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>` +
		`</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`
	response, err := g.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	if err == nil && bytes.Contains(text, []byte("InvalidAction")) {
		response.StatusCode, text = http.StatusOK, []byte(role)
	}
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text), failing{err}))
	return response, nil
}

// failing is the end of an answer.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, cmp.Or(f.err, io.EOF) }

func answer(r *http.Request, status int, body any) *http.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text)), Request: r,
	}
}

func newStartUp(t *testing.T, webIdentity bool) *startUp {
	s := &startUp{T: t, aws: awssim.New(awssim.Options{}), ways: map[string]*way{}, assume: webIdentity}
	t.Cleanup(s.aws.Close)
	if err := s.aws.CreateQueue(awssim.Queue{Name: "nth"}); err != nil {
		t.Fatal(err)
	}
	to := func(service string) aws.Config {
		w := &way{next: s.aws.Transport()}
		if service == "sts" {
			w.next = roleGiver{w.next}
		}
		s.ways[service] = w
		config := s.aws.Config()
		config.HTTPClient = w
		return config
	}
	cfg := to("sts")
	forSQS, forEC2 := to("sqs"), to("ec2")
	if webIdentity {
		role := stscreds.NewWebIdentityRoleProvider(sts.NewFromConfig(cfg), "arn:aws:iam::123456789012:role/nth", webToken{})
		forSQS.Credentials = aws.NewCredentialsCache(role)
	}
	s.ways["kube"] = &way{next: apiServer{}}
	client, err := kube.New(&rest.Config{Host: "http://api-server", Transport: s.ways["kube"], QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	s.probes = newHealth()
	log := s.log.Logger()
	c := &options.Options{CheckTag: true}
	served := queue.Client{API: sqs.NewFromConfig(forSQS), URL: awssim.MemoryEndpoint + "/123456789012/nth"}
	s.begin = func(ctx context.Context) error {
		return runChecks(ctx, log, s.probes, []check{
			queueCheck(c, served, instancesCheck(c, instance.NewDirectory(ec2.NewFromConfig(forEC2).DescribeInstances))),
			permissionsCheck(client, accesses(c), "kube-system", nodesCheck(client, synced), volumesCheck(client, synced)),
		})
	}
	return s
}

func synced(context.Context) error { return nil }

// webToken is that of a ServiceAccount.
type webToken struct{}

// GetIdentityToken implements stscreds.IdentityTokenRetriever.
func (webToken) GetIdentityToken() ([]byte, error) { return []byte("a token"), nil }

// fail makes a call fail until mend.
func (s *startUp) fail(call string, err any) (mend func()) {
	who, what, _ := strings.Cut(call, " ")
	w, name := s.ways[who], what
	if w == nil {
		w = s.ways["kube"]
	}
	switch err := err.(type) {
	case awssim.Fault:
		err.ID, err.Service, err.Action = "fault", who, what
		if e := s.aws.SetFault(err); e != nil {
			s.Fatal(e)
		}
		return func() { s.aws.RemoveFault("fault") }
	case metav1.Status:
		err.TypeMeta, err.Status = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, metav1.StatusFailure
		fail := func(r *http.Request) (*http.Response, error) { //nolint:unparam // it has the type of way.fail
			if path.Base(r.URL.Path) != name {
				return nil, nil
			}
			return answer(r, int(err.Code), err), nil
		}
		w.fail.Store(&fail)
	case error:
		fail := func(r *http.Request) (*http.Response, error) { //nolint:unparam // it has the type of way.fail
			if w == s.ways["kube"] && path.Base(r.URL.Path) != name {
				return nil, nil
			}
			if w != s.ways["kube"] && !actionIs(r, name) {
				return nil, nil
			}
			return nil, err
		}
		w.fail.Store(&fail)
	}
	return func() { w.fail.Store(nil) }
}

// actionIs reports whether a request is a call of the action.
func actionIs(r *http.Request, action string) bool {
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		return strings.HasSuffix(target, "."+action)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, _ := url.ParseQuery(string(body))
	return form.Get("Action") == action
}

// outcome tells what a start-up does about what fails for ten minutes, until mend.
func (s *startUp) outcome(mend func()) string {
	ctx, cancel := context.WithCancelCause(s.Context())
	defer synctest.Wait()
	defer cancel(nil)
	ended, begin, took := false, time.Now(), time.Duration(0)
	go func() {
		s.err = s.begin(ctx)
		ended, took = true, time.Since(begin)
	}()
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	status, _ := probe(s.probes.ready)
	if alive, _ := probe(s.probes.alive); alive != http.StatusOK {
		s.Error("the liveness probe fails")
	}
	switch {
	case ended && s.err != nil:
		if took > time.Minute && !s.assume {
			s.Errorf("it took %s to find out that it is in vain", took)
		}
		return exits
	case ended && status == http.StatusOK:
		return goesOn
	}
	begun := ended
	if n := len(s.log.Entries("", "level", "warn")); n != 1 {
		s.Errorf("%d warnings, want 1:\n%s", n, s.log.String())
	}
	mend()
	time.Sleep(time.Minute)
	synctest.Wait()
	if status, body := probe(s.probes.ready); status != http.StatusOK || !ended || s.err != nil {
		s.Errorf("it is mended, and the start-up has not ended well: %v, %s", s.err, body)
	}
	if n := len(s.log.Entries("", "level", "info")); n != 1 {
		s.Errorf("%d lines that it is over, want 1:\n%s", n, s.log.String())
	}
	if begun {
		return leads
	}
	return waits
}

func TestAStartUpThatWaitsHearsSIGTERMAtOnceAndSaysMeanwhileWhatItWaitsFor(t *testing.T) {
	for _, fault := range []awssim.Fault{{Status: 503}, {Hang: true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStartUp(t, false)
			s.fail("sqs GetQueueAttributes", fault)
			ctx, cancel := context.WithCancelCause(t.Context())
			terminated := errors.New("terminated")
			time.AfterFunc(45*time.Second, func() {
				if status, body := probe(s.probes.ready); status != http.StatusServiceUnavailable || !strings.Contains(body, "\nqueue: sqs GetQueueAttributes on http") {
					t.Errorf("/readyz says %d %q", status, body)
				}
				cancel(terminated)
			})
			begin := time.Now()
			err := s.begin(ctx)
			if took := time.Since(begin); !errors.Is(err, terminated) || took != 45*time.Second {
				t.Errorf("it ended after %s: %v", took, err)
			}
		})
	}
}

// The API server takes so long for each answer, and a part of the answers are errors. What it has answered it is not
// asked again.
func TestAStartUpAsksASlowAPIServerForEachRightOnce(t *testing.T) {
	for _, tt := range []struct {
		takes time.Duration
		fails float64
		most  time.Duration // until it may lead
	}{
		{0, 0, 0},
		{2 * time.Second, 0, 4 * time.Second},
		{5 * time.Second, 0, 10 * time.Second},
		{50 * time.Millisecond, 0.2, 10 * time.Second},
		{2 * time.Second, 0.2, 30 * time.Second},
		{5 * time.Second, 0.2, 60 * time.Second},
	} {
		var slowest time.Duration
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				s := newStartUp(t, false)
				draw := rand.New(rand.NewPCG(1, seed))
				var mu sync.Mutex
				answered := map[string]int{}
				slow := func(r *http.Request) (*http.Response, error) {
					if err := retry.Sleep(r.Context(), tt.takes); err != nil {
						return nil, err
					}
					mu.Lock()
					defer mu.Unlock()
					if draw.Float64() < tt.fails {
						return answer(r, 503, metav1.Status{
							TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: 503, Reason: metav1.StatusReasonServiceUnavailable,
						}), nil
					}
					if path.Base(r.URL.Path) == "selfsubjectaccessreviews" {
						body, _ := io.ReadAll(r.Body)
						answered[string(body)]++
					}
					return nil, nil
				}
				s.ways["kube"].fail.Store(&slow)
				begin := time.Now()
				if err := s.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				took := time.Since(begin)
				slowest = max(slowest, took)
				if took > tt.most {
					t.Errorf("answers after %s, %.0f %% fail, seed %d: it took %s, want %s at most", tt.takes, 100*tt.fails, seed, took, tt.most)
				}
				for question, times := range answered {
					if times > 1 {
						t.Errorf("answers after %s, seed %d: asked again, though it was answered: %s", tt.takes, seed, question)
					}
				}
			})
		}
		t.Logf("answers after %s, %.0f %% fail: it may lead after %s at most", tt.takes, 100*tt.fails, slowest)
	}
}

func TestWhatIsRefusedEndsTheStartUpThoughSomethingElseHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := rightsOf(func(a *authorizationv1.ResourceAttributes) (bool, error) {
			if a.Resource == "nodes" {
				return false, apierrors.NewServiceUnavailable("no answer")
			}
			return a.Resource != "pods", nil
		})
		err := permissionsCheck(client, accesses(&options.Options{}), "").try(t.Context())
		if missing, is := errors.AsType[kube.MissingAccess](err); !is || kubeHeals(err) || !slices.Contains(missing, "watch pods") {
			t.Errorf("the check says: %v", err)
		}
	})
}

// Half a second at first, as a spot warning may be waiting, then ten seconds at most.
func TestAStartUpTriesAgainSoonAndNotOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var tries []time.Duration
		probes := newHealth()
		c := check{part: "queue", heals: always, run: func(context.Context) error {
			if tries = append(tries, time.Since(begin)); len(tries) < 12 {
				return errors.New("away")
			}
			return nil
		}}
		if err := c.tryAgain(t.Context(), logr.Discard(), probes, errors.New("away")); err != nil {
			t.Fatal(err)
		}
		var wrong []time.Duration
		for k, at := range tries {
			low := min(checkBackoff.First<<k, checkBackoff.Max)
			pause := at
			if k > 0 {
				pause -= tries[k-1]
			}
			if pause < low || pause > min(low+low/2, checkBackoff.Max) {
				wrong = append(wrong, pause)
			}
		}
		if diff := gocmp.Diff([]time.Duration(nil), wrong); diff != "" {
			t.Errorf("pauses that are too short or too long (-want +got):\n%s", diff)
		}
	})
}
