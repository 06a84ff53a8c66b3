package telemetry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// webhookQueue bounds the messages that wait: more interruptions than any
	// reader of a channel takes in.
	webhookQueue = 1000
	// webhookWorkers is how many messages are under way at once: chat services take
	// about one a second, and one that hangs must not hold up the rest.
	webhookWorkers = 4
	// A message that was not taken is tried again after firstResend, then after
	// twice that, to lastResend, until it is as old as resendFor: who reads it later
	// has learned about it elsewhere.
	firstResend = time.Second
	lastResend  = 30 * time.Second
	resendFor   = 5 * time.Minute
	// postTimeout bounds one try.
	postTimeout = 10 * time.Second
	// lastWords is how long messages are still sent after the process was told to stop.
	lastWords = time.Second
	// remembered is how many notices are known to have been sent, for their redeliveries.
	remembered = 4096
)

// What became of messages, as label values.
const (
	webhookSent    = "sent"
	webhookFailed  = "failed"
	webhookDropped = "dropped" // the queue was full
)

// WebhookOptions are what a Webhook needs to know.
type WebhookOptions struct {
	// URL is where messages are posted to; a secret, as are the headers and the proxy.
	URL string
	// Proxy of the requests; nil: what the environment says (HTTPS_PROXY and its kin).
	Proxy    *url.URL
	Headers  map[string]string
	Template Template
	// Phases are those that messages are posted about.
	Phases []Phase
	// Node returns the node of that name as it was last seen, nil if there is none.
	// It makes no request.
	Node func(name string) *corev1.Node
	// Account and Region are those of instances whose notice does not say; can be empty.
	Account, Region string
	// Pods lists the names of the pods on a node, for templates that ask for them;
	// can be nil.
	Pods    func(ctx context.Context, node string) []string
	Metrics *Metrics
	Log     logr.Logger
}

// A Webhook posts a message about each notice that a node is cordoned or drained
// for, and about the end of each drain: once, as long as the process lives;
// another leader may repeat it. Its methods may be called concurrently, and only
// Run waits for anything.
type Webhook struct {
	options WebhookOptions
	client  *http.Client
	queue   chan message

	// latest are the latest decisions about nodes: what their drains are for. It is
	// empty where ends of drains are not told.
	latest *lru.Cache // Decision by the UID of the node

	mu   sync.Mutex
	sent *lru.Cache // of occasion
	// quietUntil is when the server wants to hear from us again.
	quietUntil time.Time
}

// A message is one that waits to be sent.
type message struct {
	Interruption
	queued time.Time
}

// An occasion has one message.
type occasion struct {
	kind notice.Kind
	id   string
	time time.Time
	node types.UID
}

// NewWebhook returns a Webhook that sends nothing before Run.
func NewWebhook(o WebhookOptions) *Webhook {
	proxy := http.ProxyFromEnvironment
	if o.Proxy != nil {
		proxy = http.ProxyURL(o.Proxy)
	}
	const connectTime = 5 * time.Second
	return &Webhook{
		options: o,
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:                  proxy,
				OnProxyConnectResponse: checkProxy,
				DialContext:            (&net.Dialer{Timeout: connectTime}).DialContext,
				TLSHandshakeTimeout:    connectTime,
				ForceAttemptHTTP2:      true,
				MaxIdleConnsPerHost:    webhookWorkers,
				IdleConnTimeout:        time.Minute,
			},
			CheckRedirect: stayAtHost,
			Timeout:       postTimeout,
		},
		queue:  make(chan message, webhookQueue),
		latest: lru.New(remembered),
		sent:   lru.New(remembered),
	}
}

// stayAtHost follows a redirect that leads to the same server and posts the same
// body: no other server may see the message or the headers.
func stayAtHost(next *http.Request, via []*http.Request) error {
	const most = 3
	first := via[0]
	if len(via) > most || next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host || next.Method != first.Method {
		return http.ErrUseLastResponse
	}
	return nil
}

// Decided implements controller.Observer.
func (w *Webhook) Decided(d Decision) {
	if d.DryRun || d.Action != "cordon" && d.Action != "drain" {
		return
	}
	if w.wants(PhaseDrained) || w.wants(PhaseMissed) {
		w.latest.Add(d.Node.UID, d)
	}
	if !d.Repeated && w.isNew(d) {
		w.send(interruptionOf(d, machineOf(w.options.Node(d.Node.Name))))
	}
}

// Drained implements controller.Observer.
func (w *Webhook) Drained(ref cluster.Ref, r drain.Result, took time.Duration, deadline time.Time) {
	node := w.options.Node(ref.Name)
	w.send(interruptionOf(w.lastAbout(ref, node), machineOf(node)).ended(r, took, deadline))
}

// lastAbout is the latest decision about a node: as it was made here or, after
// another leader, as far as the node, which can be nil, tells of it.
func (w *Webhook) lastAbout(ref cluster.Ref, node *corev1.Node) Decision {
	if d, ok := w.latest.Get(ref.UID); ok {
		return d.(Decision)
	}
	d := Decision{Node: ref, Instance: ref.Instance}
	if node == nil {
		return d
	}
	if i, ok, err := cluster.ReadIntent(node); ok && err == nil && len(i.Entries) > 0 {
		last := i.Entries[len(i.Entries)-1]
		d.Notice.Kind, d.Notice.Time, d.Deadline = last.Kind, last.Time, last.Deadline
		if len(last.IDs) > 0 {
			d.Notice.ID = last.IDs[len(last.IDs)-1]
		}
		if last.Kind == notice.ASGTerminate && len(i.Hooks) > 0 {
			d.Notice.Hook.Group = i.Hooks[len(i.Hooks)-1].Group
		}
	}
	return d
}

// send puts a message into the queue if its phase is wanted, and does not wait.
func (w *Webhook) send(i Interruption) {
	if !w.wants(i.Phase) {
		return
	}
	i.AccountId, i.Region = cmp.Or(i.AccountId, w.options.Account), cmp.Or(i.Region, w.options.Region)
	select {
	case w.queue <- message{i, time.Now()}:
	default:
		w.count(webhookDropped)
		w.options.Log.V(1).Info("too many messages wait for the webhook: one is dropped", "event", i.EventID, "node", i.NodeName)
	}
}

func (w *Webhook) wants(p Phase) bool { return slices.Contains(w.options.Phases, p) }

// isNew reports whether nothing was sent for the notice and the node so far.
func (w *Webhook) isNew(d Decision) bool {
	o := occasion{kind: d.Notice.Kind, id: d.Notice.ID, time: d.Notice.Time, node: d.Node.UID}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.sent.Get(o)
	w.sent.Add(o, nil)
	return !known
}

// Node implements controller.Observer; there is no message about it.
func (w *Webhook) Node(cluster.Ref, string, string, error) {}

// Run sends until ctx ends, and what waits then within lastWords.
func (w *Webhook) Run(ctx context.Context) {
	sending, stop := pace.Linger(ctx, lastWords)
	defer stop()
	var all sync.WaitGroup
	for range webhookWorkers {
		all.Go(func() { w.work(ctx, sending) })
	}
	all.Wait()
	w.client.CloseIdleConnections()
}

// work delivers messages until ctx has ended and none waits. Requests are made
// under sending.
func (w *Webhook) work(ctx, sending context.Context) {
	for {
		select {
		case m := <-w.queue:
			w.deliver(ctx, sending, m)
			continue
		default:
		}
		select {
		case m := <-w.queue:
			w.deliver(ctx, sending, m)
		case <-ctx.Done():
			return
		}
	}
}

// errTooOld is why a message fails that has waited too long for others.
var errTooOld = errors.New("too many messages were before it")

// deliver sends one message, however often it takes: once after ctx has ended.
func (w *Webhook) deliver(ctx, sending context.Context, m message) {
	log := w.options.Log.WithValues("event", m.EventID, "node", m.NodeName, "phase", m.Phase)
	body, err := w.options.Template.render(sending, m.Interruption, w.options.Pods)
	if err != nil {
		w.count(webhookFailed)
		log.Error(err, "execute the webhook's template")
		return
	}
	err = errTooOld
	for pause := firstResend; ; pause = min(2*pause, lastResend) {
		w.beQuiet(ctx)
		last := ctx.Err() != nil
		final := time.Since(m.queued) > resendFor
		if !final {
			final, err = w.post(sending, body)
		}
		if err == nil {
			w.count(webhookSent)
			return
		}
		wait := pause + rand.N(pause/5)
		if final || last {
			w.count(webhookFailed)
			log.Error(err, "the webhook has not taken a message")
			return
		}
		log.V(1).Info("the webhook has not taken a message so far", "why", err.Error(), "in", wait.String())
		pauseFor(ctx, wait)
	}
}

// post tries once. final: another try would end the same way. The error holds
// neither the URL nor a header, and nothing that the server said: it may repeat them.
func (w *Webhook) post(ctx context.Context, body []byte) (final bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.options.URL, bytes.NewReader(body))
	if err != nil {
		return true, errors.New("the URL cannot be used")
	}
	request.Header.Set("User-Agent", "node-termination-handler")
	for name, value := range w.options.Headers {
		request.Header.Set(name, value)
		if http.CanonicalHeaderKey(name) == "Host" {
			request.Host = value
		}
	}
	response, err := w.client.Do(request)
	if err != nil {
		return false, withoutSecrets(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, answerKept)
	code := response.StatusCode
	if code >= 200 && code < 300 {
		return false, nil
	}
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.askForQuiet(response.Header.Get("Retry-After"))
	}
	final = code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout && code != http.StatusTooEarly
	err = statusError(code)
	if code >= 300 && code < 400 {
		err = fmt.Errorf("%w: only a redirect to the same host is followed", err)
	}
	return final, err
}

// answerKept is how much of an answer is read: a longer one costs the connection.
const answerKept = 64 << 10

func statusError(code int) error {
	return fmt.Errorf("the answer was %d %s", code, http.StatusText(code))
}

// withoutSecrets is what can be told of an error of http.Client. That begins with
// the URL, and quotes what it did not understand of an answer, which may have
// quoted the request; so it is only told where it is of a kind that holds no more
// than addresses and certificates.
func withoutSecrets(err error) error {
	if in, ok := errors.AsType[*url.Error](err); ok {
		if in.Timeout() {
			return errors.New("no answer in time")
		}
		err = in.Err
	}
	_, isNet := errors.AsType[*net.OpError](err)
	_, isTLS := errors.AsType[*tls.CertificateVerificationError](err)
	_, isProxy := errors.AsType[proxyError](err)
	switch {
	case isNet, isTLS, isProxy, errors.Is(err, context.Canceled), errors.Is(err, http.ErrSchemeMismatch):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the server has closed the connection without an answer")
	}
	return errors.New("the answer was not understood")
}

// A proxyError is the status with which a proxy has refused to connect.
type proxyError int

func (code proxyError) Error() string {
	return fmt.Sprintf("the answer of the proxy was %d %s", int(code), http.StatusText(int(code)))
}

// checkProxy looks at what a proxy says to CONNECT.
func checkProxy(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
	if r.StatusCode != http.StatusOK {
		return proxyError(r.StatusCode)
	}
	return nil
}

// askForQuiet takes in a Retry-After, which is for all messages.
// https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
func (w *Webhook) askForQuiet(header string) {
	until, err := http.ParseTime(header)
	if seconds, convErr := strconv.Atoi(header); convErr == nil {
		until, err = time.Now().Add(time.Duration(seconds)*time.Second), nil
	}
	if err != nil {
		return
	}
	if latest := time.Now().Add(resendFor); until.After(latest) {
		until = latest
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if until.After(w.quietUntil) {
		w.quietUntil = until
	}
}

// beQuiet waits as long as the server has asked for, or until ctx ends.
func (w *Webhook) beQuiet(ctx context.Context) {
	for {
		w.mu.Lock()
		wait := time.Until(w.quietUntil)
		w.mu.Unlock()
		if wait <= 0 || ctx.Err() != nil {
			return
		}
		pauseFor(ctx, wait)
	}
}

// pauseFor waits, or until ctx ends.
func pauseFor(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *Webhook) count(result string) { w.options.Metrics.webhooks.WithLabelValues(result).Inc() }
