// Package imds is the handler on the node itself: it reads what the instance metadata service
// says of its own instance, again and again, and makes notices of it.
package imds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// DefaultURL is where each instance reaches its metadata. The IPv6 endpoint,
// http://[fd00:ec2::254], has to be turned on for an instance.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
const DefaultURL = "http://169.254.169.254"

const (
	// answerTime is how long an answer may take. The service is on the host of the instance and
	// answers within milliseconds.
	answerTime = 2 * time.Second
	// answerSize bounds an answer. The longest that is read, that of scheduled changes, has some
	// kilobytes.
	answerSize = 64 << 10

	tokenPath     = "api/token"
	tokenSize     = 4 << 10
	tokenTTL      = 6 * time.Hour              // the longest that AWS takes
	headerToken   = "X-Aws-Ec2-Metadata-Token" //nolint:gosec // the name of a header
	headerTTL     = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	renewAgain    = 30 * time.Second // after a failed renewal of a token that is still valid
	unsupportedBy = 10 * time.Minute // how long a service without tokens is not asked for one again
)

// ErrTurnedOff says that the service refuses to answer: it is turned off for the instance, or
// something in between keeps pods from it.
var ErrTurnedOff = errors.New("the instance metadata service refuses to answer (403): HttpEndpoint of the instance's " +
	"metadata options is disabled, or something between the pod and the service keeps pods from it")

// ErrTooFar says that no token comes, which is so when the pod is too many hops away.
var ErrTooFar = errors.New("no answer to the request for a token: if the pod does not have the network of its node, " +
	"it is further away than the answer may travel; set HttpPutResponseHopLimit of the instance's metadata options " +
	"to 2, or give the pod the network of the node")

// A Client reads the metadata of the instance that the process runs on. It may be used
// concurrently. It uses version 2 of the service, with tokens, and version 1 only if the service
// refuses or does not know tokens.
type Client struct {
	url  string
	http http.Client

	mu          sync.Mutex // also held during a request for a token: all others need it
	token       string
	renewAt     time.Time
	validUntil  time.Time
	withoutTill time.Time // until then the service is taken not to know tokens
}

// New returns a client of the service at url. transport is what reaches it; nil: a connection
// of its own, without a proxy.
func New(url string, transport http.RoundTripper) *Client {
	if transport == nil {
		transport = &http.Transport{
			DialContext:     (&net.Dialer{Timeout: answerTime}).DialContext,
			MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: answerSize,
		}
	}
	return &Client{
		url: strings.TrimSuffix(cmp.Or(url, DefaultURL), "/"),
		http: http.Client{
			Transport: transport,
			// The service redirects nobody. A redirection would send the token somewhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// An Identity is what the identity document says of the instance.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
type Identity struct {
	Instance string    `json:"instanceId"`
	Account  string    `json:"accountId"`
	Region   string    `json:"region"`
	Type     string    `json:"instanceType"`
	Started  time.Time `json:"pendingTime"` // for the last time; zero: not known
}

// Identity asks which instance this is.
func (c *Client) Identity(ctx context.Context) (Identity, error) {
	const path = "dynamic/instance-identity/document"
	body, found, err := c.get(ctx, path)
	switch {
	case err != nil:
		return Identity{}, err
	case !found:
		return Identity{}, fmt.Errorf("read %s: there is none: is %s the instance metadata service?", path, c.url)
	}
	var i Identity
	if err := json.Unmarshal([]byte(body), &i); err != nil {
		return Identity{}, fmt.Errorf("read %s: %w", path, err)
	}
	if i.Instance == "" {
		return Identity{}, fmt.Errorf("read %s: it names no instance", path)
	}
	return i, nil
}

// get reads an item, such as meta-data/instance-id. found is false where there is none.
func (c *Client) get(ctx context.Context, path string) (body string, found bool, err error) {
	for try := 1; ; try++ {
		token, err := c.currentToken(ctx)
		if err != nil {
			return "", false, err
		}
		a, err := c.do(ctx, http.MethodGet, path, http.Header{headerToken: {token}}, answerSize)
		switch {
		case err != nil:
			return "", false, fmt.Errorf("read %s: %w", path, err)
		case a.status == http.StatusOK:
			return a.body, true, nil
		case a.status == http.StatusNotFound:
			return "", false, nil
		case a.status == http.StatusUnauthorized && try == 1: // it has been restarted, or has lost the token
			c.forget(token)
			continue
		}
		err = fmt.Errorf("read %s: %w", path, a.problem())
		if a.status != http.StatusUnauthorized && a.status != http.StatusServiceUnavailable {
			err = itemError{err}
		}
		return "", false, err
	}
}

// An itemError says that one item is refused, or is not as AWS documents it. Others may be read.
type itemError struct{ error }

func (e itemError) Unwrap() error { return e.error }

// currentToken returns a valid token, or none for a service that does not know tokens. One that
// is about to end is renewed; it counts as long as that fails.
func (c *Client) currentToken(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Before(c.renewAt) || now.Before(c.withoutTill) {
		return c.token, nil
	}
	err := c.renew(ctx, now)
	if err != nil && now.Before(c.validUntil) && ctx.Err() == nil {
		c.renewAt = now.Add(renewAgain)
		return c.token, nil
	}
	return c.token, err
}

// renew asks for a token. The caller holds the lock.
func (c *Client) renew(ctx context.Context, now time.Time) error {
	asked := strconv.Itoa(int(tokenTTL / time.Second))
	a, err := c.do(ctx, http.MethodPut, tokenPath, http.Header{headerTTL: {asked}}, tokenSize)
	switch {
	case err != nil && isTimeout(err) && !isDial(err) && ctx.Err() == nil:
		return fmt.Errorf("%w (%w)", ErrTooFar, err)
	case err != nil:
		return fmt.Errorf("ask for a token: %w", err)
	case a.status == http.StatusForbidden, a.status == http.StatusNotFound, a.status == http.StatusMethodNotAllowed:
		// Version 2 is not there. If version 1 is not either, its answer says so.
		c.token, c.renewAt, c.validUntil = "", time.Time{}, time.Time{}
		c.withoutTill = now.Add(unsupportedBy)
		return nil
	case a.status != http.StatusOK:
		return fmt.Errorf("ask for a token: %w", a.problem())
	case a.body == "" || strings.ContainsFunc(a.body, isNoTokenRune):
		return errors.New("ask for a token: the answer is none")
	}
	ttl := tokenTTL
	if seconds, err := strconv.Atoi(a.header.Get(headerTTL)); err == nil && seconds > 0 {
		ttl = min(tokenTTL, time.Duration(seconds)*time.Second)
	}
	c.token, c.withoutTill = a.body, time.Time{}
	c.validUntil, c.renewAt = now.Add(ttl), now.Add(ttl-ttl/10)
	return nil
}

// isNoTokenRune reports what no header can have: a token goes into one.
func isNoTokenRune(r rune) bool { return r <= ' ' || r > '~' }

// forget drops a token that the service does not know any more.
func (c *Client) forget(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == token { // nobody has renewed it meanwhile
		c.token, c.renewAt, c.validUntil, c.withoutTill = "", time.Time{}, time.Time{}, time.Time{}
	}
}

// An answer is that of the service, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// problem is the error that an answer comes to which is not documented for what was asked.
func (a answer) problem() error {
	switch a.status {
	case http.StatusForbidden:
		return ErrTurnedOff
	case http.StatusUnauthorized:
		return errors.New("the service takes no token that it has given (401): something in between changes requests, " +
			"or gives no tokens while HttpTokens of the instance's metadata options is required")
	}
	return fmt.Errorf("the service answers with status %d", a.status)
}

// do makes one request, and reads the answer up to a size.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, size int64) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.url+"/latest/"+path, nil)
	if err != nil {
		return answer{}, err
	}
	if header.Get(headerToken) == "" {
		header.Del(headerToken)
	}
	request.Header = header
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, size+1))
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("read the answer: %w", err)
	case int64(len(body)) > size:
		return answer{}, fmt.Errorf("the answer has more than %d bytes: it is not that of the instance metadata", size)
	}
	return answer{response.StatusCode, response.Header, string(body)}, nil
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}

// isDial reports whether there was no connection at all.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
