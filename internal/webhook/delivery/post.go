package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/redact"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// stayAtHost follows a redirect only if it leads to the same server and posts the same
// body: no other server may see the message or the headers.
func stayAtHost(next *http.Request, via []*http.Request) error {
	const most = 3
	first := via[0]
	sameServer := next.URL.Scheme == first.URL.Scheme && next.URL.Host == first.URL.Host
	if len(via) > most || !sameServer || next.Method != first.Method {
		return http.ErrUseLastResponse
	}
	return nil
}

// post sends a message once. final says that another try would end the same way. The error
// contains neither the URL nor a header, and no text of the server, which may repeat them.
func (s *Sender) post(ctx context.Context, body []byte) (final bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(body))
	if err != nil {
		return true, errors.New("the URL cannot be used")
	}
	request.Header.Set("User-Agent", "node-termination-handler")
	for name, value := range s.options.Headers {
		request.Header.Set(name, value)
		if http.CanonicalHeaderKey(name) == "Host" {
			request.Host = value
		}
	}
	response, err := s.client.Do(request)
	if err != nil {
		return false, redact.Error(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, answerKept)
	code := response.StatusCode
	if code >= 200 && code < 300 {
		return false, nil
	}
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		s.holdBack(response.Header.Get("Retry-After"))
	}
	final = code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout &&
		code != http.StatusTooEarly
	err = redact.Status(code)
	if code >= 300 && code < 400 {
		err = fmt.Errorf("%w: only a redirect to the same host is followed", err)
	}
	return final, err
}

// answerKept is how much of an answer is read. The connection of a longer one cannot be used again.
const answerKept = 64 << 10

// holdBack reads a Retry-After header, which is for all messages.
// https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
func (s *Sender) holdBack(header string) {
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if until.After(s.quietUntil) {
		s.quietUntil = until
	}
}

// awaitQuiet waits as long as the server has asked for, or until ctx ends.
func (s *Sender) awaitQuiet(ctx context.Context) {
	for {
		s.mu.Lock()
		wait := time.Until(s.quietUntil)
		s.mu.Unlock()
		if wait <= 0 || ctx.Err() != nil {
			return
		}
		_ = retry.Sleep(ctx, wait) // the loop sees the end of ctx
	}
}
