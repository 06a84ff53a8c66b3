package kube

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// AtGate returns a wrapper of transports, for [k8s.io/client-go/rest.Config.Wrap], that
// narrows the gate for all requests when the API server answers 429; client-go delays only
// the one request. It leaves evictions to their caller, because a disruption budget answers
// 429 too, and refusals of admission webhooks, which choose their status themselves. Nor does an Event narrow
// it: the admission plugin EventRateLimit answers 429, and means Events alone, which client-go sends one after another.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#eventratelimit
//
// Requests of low priority wait at the gate until no other waits there: those are about nodes, and nothing waits for
// these.
func AtGate(gate *pace.Gate, low bool) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return transport{next, func(request *http.Request) (*http.Response, error) {
			leave := func(time.Duration) {}
			if low {
				var err error
				if leave, err = gate.Enter(request.Context(), pace.Priority{Class: pace.Aside}); err != nil {
					return nil, err
				}
			}
			response, err := next.RoundTrip(request)
			if path := request.URL.Path; err == nil && !strings.HasSuffix(path, "/eviction") && !events.MatchString(path) &&
				tooManyRequests(response) {
				gate.Busy(restOf(response)) // before anybody takes the place
			}
			leave(0)
			return response, err
		}}
	}
}

// transport is one with another beneath, which client-go can find.
type transport struct {
	next      http.RoundTripper
	roundTrip func(*http.Request) (*http.Response, error)
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.roundTrip(request)
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// events are the paths of Events.
var events = regexp.MustCompile(`/(api/v1|apis/events\.k8s\.io/v1)/namespaces/[^/]+/events(/[^/]+)?$`)

// restOf is how long an API server that has too much to do asks to be left alone; a second, if it does not say.
func restOf(response *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // client-go reads it the same way
	return max(time.Second, time.Duration(seconds)*time.Second)
}

// tooManyRequests reports whether the API server itself answers that it has too much to
// do: a 429 that is no refusal of an admission webhook. It reads the beginning of the body,
// which may be protobuf, and puts it back.
func tooManyRequests(response *http.Response) bool {
	const longest = 64 << 10 // the API server's refusals are some hundred bytes long
	if response.StatusCode != http.StatusTooManyRequests {
		return false
	}
	body := response.Body
	text, _ := io.ReadAll(io.LimitReader(body, longest)) // whoever reads on gets the error again
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), body), body}
	return !DeniedByWebhook(string(text))
}

// DeniedByWebhook reports whether an answer with this text is that of an admission webhook
// that refuses the request. The webhook chooses the status as well, which can be 429 and then
// says nothing about the API server. The text is the API server's.
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go
func DeniedByWebhook(text string) bool {
	return strings.Contains(text, "admission webhook ") && strings.Contains(text, "denied the request")
}
