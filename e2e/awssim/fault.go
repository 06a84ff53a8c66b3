package awssim

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"time"
)

// Fault is a rule that makes calls go wrong. The zero value of a field leaves
// that way out. All rules that match a call apply, in the order in which they
// were set: latencies add up, and the first that fails the call decides how.
type Fault struct {
	// ID names the rule. SetFault replaces the rule of the same ID.
	ID string `json:"id"`
	// Service and Action are patterns as of [path.Match]; empty matches all.
	Service string `json:"service,omitempty"`
	Action  string `json:"action,omitempty"`

	// Count ends the rule after so many calls that it harmed. Zero: no end.
	Count int `json:"count,omitempty"`
	// Probability is the share of calls that it harms, by the seed of the
	// Server. Zero: all.
	Probability float64 `json:"probability,omitempty"`

	// Rate and Burst make the rule a token bucket, of Rate calls a second: it
	// harms only the calls for which there is no token. All calls that match
	// share the bucket. Unless Status or Code say otherwise, they get the
	// throttling error of their service.
	Rate  float64 `json:"rate,omitempty"`
	Burst int     `json:"burst,omitempty"`

	// Latency is added before the call takes effect.
	Latency time.Duration `json:"-"`
	// Status and Code answer with an error. With one of them empty it is a
	// usual one: 400 with a Code, InternalFailure or ServiceUnavailable with a
	// Status.
	Status int    `json:"status,omitempty"`
	Code   string `json:"code,omitempty"`
	// Message is the text of that error.
	Message string `json:"message,omitempty"`
	// Reset ends the connection by RST in the place of an answer.
	Reset bool `json:"reset,omitempty"`
	// Hang never answers; after HangFor, if positive, the connection is reset.
	Hang    bool          `json:"hang,omitempty"`
	HangFor time.Duration `json:"-"`
	// AfterEffect lets the call take effect before an error, a reset or a hang,
	// as when only the answer is lost.
	AfterEffect bool `json:"afterEffect,omitempty"`
	// Half breaks the answer off in its middle; the call took effect.
	Half bool `json:"half,omitempty"`
	// ContentType replaces that of the answer.
	ContentType string `json:"contentType,omitempty"`
	// Skew moves the service's clock: the Date header of the answer, and the time
	// by which a signature is too old or of the future, with a usual error.
	Skew time.Duration `json:"-"`
}

// SetFault adds the rule, or replaces the one with its ID and starts its count
// and its bucket anew. It fails on a pattern that cannot be read.
func (s *Server) SetFault(fault Fault) error {
	for _, pattern := range []string{fault.Service, fault.Action} {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("set fault %s: pattern %q: %w", fault.ID, pattern, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	added := &rule{Fault: fault, tokens: float64(max(fault.Burst, 1)), filled: time.Now()}
	if i := s.faultIndex(fault.ID); i >= 0 {
		s.faults[i] = added
	} else {
		s.faults = append(s.faults, added)
	}
	return nil
}

// RemoveFault ends a rule. It reports whether there was one.
func (s *Server) RemoveFault(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.faultIndex(id)
	if i < 0 {
		return false
	}
	s.faults = slices.Delete(s.faults, i, i+1)
	return true
}

// Faults returns the rules, also those whose count is used up, in their order.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	faults := []Fault{}
	for _, rule := range s.faults {
		faults = append(faults, rule.Fault)
	}
	return faults
}

func (s *Server) faultIndex(id string) int {
	return slices.IndexFunc(s.faults, func(r *rule) bool { return r.ID == id })
}

// rule is a Fault at work.
type rule struct {
	Fault
	harmed int
	tokens float64
	filled time.Time
}

// take takes a token from the bucket. It reports whether there was one.
func (r *rule) take(now time.Time) bool {
	r.tokens = min(float64(max(r.Burst, 1)), r.tokens+r.Rate*now.Sub(r.filled).Seconds())
	r.filled = now
	// Rounding must not withhold a token that is due at this very moment.
	if r.tokens < 1-1e-9 {
		return false
	}
	r.tokens--
	return true
}

// harm is the effect of all rules on one call.
type harm struct {
	latency     time.Duration
	err         *apiError
	reset       bool
	hang        bool
	hangFor     time.Duration
	afterEffect bool
	half        bool
	contentType string
	skew        time.Duration
}

// cutsAnswer reports whether the client will not get a whole answer.
func (h harm) cutsAnswer() bool { return h.reset || h.hang || h.half }

// name is the word for a lost answer in the record.
func (h harm) name() string {
	switch {
	case h.hang:
		return "Hang"
	case h.reset:
		return "Reset"
	default:
		return "Half"
	}
}

// harmFor applies the rules to a call. Rules that fail it stop at the first.
func (s *Server) harmFor(service, action string) harm {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var total harm
	for _, rule := range s.faults {
		if total.err != nil || total.reset || total.hang {
			break
		}
		if !matches(rule.Service, service) || !matches(rule.Action, action) {
			continue
		}
		if rule.Count > 0 && rule.harmed >= rule.Count {
			continue
		}
		if rule.Probability > 0 && !s.chance(rule.Probability) {
			continue
		}
		if rule.Rate > 0 && rule.take(now) {
			continue
		}
		rule.harmed++
		rule.add(&total, service)
	}
	// Half an answer means that the call was done: it is useless otherwise.
	total.afterEffect = total.afterEffect || total.half && total.err == nil && !total.reset && !total.hang
	return total
}

// matches works like path.Match. SetFault has rejected patterns that cannot be read.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || err == nil && ok
}

func (r *rule) add(total *harm, service string) {
	total.latency += r.Latency
	total.skew += r.Skew
	if r.ContentType != "" {
		total.contentType = r.ContentType
	}
	total.half = total.half || r.Half
	total.reset, total.hang, total.hangFor = r.Reset, r.Hang, r.HangFor
	total.err = r.problem(service)
	total.afterEffect = r.AfterEffect
}

// problem returns the error of the rule, or nil if it has none.
func (r *rule) problem(service string) *apiError {
	if r.Status == 0 && r.Code == "" {
		if r.Rate > 0 && !r.Reset && !r.Hang && !r.Half {
			return throttling(service)
		}
		return nil
	}
	problem := &apiError{status: r.Status, code: r.Code, message: r.Message}
	setDefault(&problem.status, http.StatusBadRequest)
	if problem.code == "" {
		problem.code = "InternalFailure"
		if problem.status == http.StatusServiceUnavailable {
			problem.code = "ServiceUnavailable"
		}
	}
	setDefault(&problem.message, "a fault of the simulator")
	return problem
}

// wrongRegion returns the error with which a service refuses a signature for
// another region than its own.
func wrongRegion(service string) *apiError {
	problem := &apiError{
		status: http.StatusForbidden, code: "SignatureDoesNotMatch",
		message: "Credential should be scoped to a valid region.",
	}
	switch service {
	case "sqs":
		problem.code = "InvalidSignatureException"
	case "ec2":
		problem = &apiError{
			status: http.StatusUnauthorized, code: "AuthFailure",
			message: "AWS was not able to validate the provided access credentials",
		}
	}
	return problem
}

// signatureLasts is how far the time of a signature may be from the service's.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
const signatureLasts = 5 * time.Minute

// wrongTime returns the error with which a service refuses a signature of another
// time. EC2's is one that the SDK does not take for a matter of clocks.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func wrongTime(r *request) *apiError {
	signed, now := r.signed.Format(signingTime), r.arrived.UTC()
	problem := &apiError{status: http.StatusForbidden, code: "SignatureDoesNotMatch"}
	problem.message = fmt.Sprintf("Signature expired: %s is now earlier than %s (%s - 5 min.)",
		signed, now.Add(-signatureLasts).Format(signingTime), now.Format(signingTime))
	if r.signed.After(now) {
		problem.message = fmt.Sprintf("Signature not yet current: %s is still later than %s (%s + 5 min.)",
			signed, now.Add(signatureLasts).Format(signingTime), now.Format(signingTime))
	}
	switch r.service {
	case "sqs":
		problem.code = "InvalidSignatureException"
	case "ec2":
		problem = &apiError{status: http.StatusBadRequest, code: "RequestExpired", message: "Request has expired."}
	}
	return problem
}

// throttling returns the error with which a service refuses a call for its rate.
// SQS documents RequestThrottled with 403 in its model; EC2 RequestLimitExceeded
// with 503; the Query services answer 400 Throttling.
func throttling(service string) *apiError {
	switch service {
	case "sqs":
		return &apiError{status: http.StatusForbidden, code: "RequestThrottled", message: "Request is throttled."}
	case "ec2":
		return &apiError{
			status: http.StatusServiceUnavailable, code: "RequestLimitExceeded",
			message: "Request limit exceeded.",
		}
	default:
		return &apiError{status: http.StatusBadRequest, code: "Throttling", message: "Rate exceeded"}
	}
}
