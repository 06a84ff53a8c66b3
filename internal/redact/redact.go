// Package redact keeps secrets out of the errors of HTTP requests: what it returns contains no
// URL, no header and no text of a server, which may quote the request.
package redact

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// Error is the part of an error of http.Client that may be logged. Such an error begins
// with the URL, and quotes an answer that it did not understand, which may quote the request. So
// only errors of kinds that contain addresses and certificates alone are kept.
func Error(err error) error {
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

// Status is the error of an answer with this status code.
func Status(code int) error {
	return fmt.Errorf("the answer was %d %s", code, http.StatusText(code))
}

// A proxyError is the status with which a proxy has refused to connect.
type proxyError int

func (code proxyError) Error() string {
	return fmt.Sprintf("the answer of the proxy was %d %s", int(code), http.StatusText(int(code)))
}

// CheckProxy checks the answer of a proxy to CONNECT, as http.Transport.OnProxyConnectResponse. [Error] keeps
// the error that it returns.
func CheckProxy(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
	if r.StatusCode != http.StatusOK {
		return proxyError(r.StatusCode)
	}
	return nil
}
