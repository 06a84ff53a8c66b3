package awssim

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxRequest bounds a request's body: SQS takes 1 MiB of messages, and JSON
// may need up to six bytes for one of theirs.
const maxRequest = 8 << 20

// Versions of the Query APIs. They tell the services apart, which share both
// the endpoint and names of actions.
var services = map[string]string{
	"2016-11-15": "ec2",
	"2011-01-01": "autoscaling",
	"2015-12-01": "elasticloadbalancing",
	"2011-06-15": "sts",
	"2010-03-31": "sns",
}

// targets are the names of the JSON services in the header X-Amz-Target.
var targets = map[string]string{
	"AmazonSQS":    "sqs",
	"AWSEvents":    "events",
	"TrentService": "kms",
}

// request is a call as the operations see it.
type request struct {
	service, action string
	host            string
	accessKeyID     string
	region          string
	signed          time.Time  // zero: not signed
	arrived         time.Time  // by the service's clock
	json            []byte     // of SQS, EventBridge and KMS
	form            url.Values // of the Query services

	params  map[string][]string // what the record shows
	entries int
}

// note keeps a parameter for the record of the call.
func (r *request) note(key string, values ...string) {
	if len(values) > 0 {
		r.params[key] = append(r.params[key], values...)
	}
}

// show sets a parameter in the record. Unlike note it may be called again for the same call: a
// long poll looks several times.
func (r *request) show(key, value string) {
	r.params[key] = []string{value}
}

// credential is the start of an Authorization header of signature version 4:
// access key id, date, region, service.
var credential = regexp.MustCompile(`Credential=([^/,\s]+)/[0-9]+/([^/,\s]+)/`)

// signingTime is the form of the header X-Amz-Date.
const signingTime = "20060102T150405Z"

// readRequest finds out which service is asked for what. The request that it
// returns can be answered even when there is a problem.
func readRequest(r *http.Request) (*request, *apiError) {
	req := &request{service: "unknown", host: r.Host, params: map[string][]string{}}
	if match := credential.FindStringSubmatch(r.Header.Get("Authorization")); match != nil {
		req.accessKeyID, req.region = match[1], match[2]
		req.signed, _ = time.Parse(signingTime, r.Header.Get("X-Amz-Date")) // zero is long ago, and is refused
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		return req, &apiError{status: http.StatusBadRequest, code: "IncompleteBody", message: err.Error()}
	}
	if service, action, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		req.service, req.action, req.json = strings.ToLower(service), action, body
		if known, ok := targets[service]; ok {
			req.service = known
		}
		return req, nil
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return req, &apiError{status: http.StatusBadRequest, code: "MalformedQueryString", message: err.Error()}
	}
	for key, values := range r.URL.Query() {
		form[key] = append(form[key], values...)
	}
	req.form, req.action = form, form.Get("Action")
	service, ok := services[form.Get("Version")]
	if !ok {
		return req, &apiError{
			status: http.StatusBadRequest, code: "NoSuchVersion",
			message: fmt.Sprintf("no service here has the version %q", form.Get("Version")),
		}
	}
	req.service = service
	return req, nil
}

// decode reads the input of an action of a JSON service.
func (r *request) decode(into any) *apiError {
	if err := json.Unmarshal(r.json, into); err != nil {
		return &apiError{status: http.StatusBadRequest, code: "SerializationException", message: err.Error()}
	}
	return nil
}

// list returns the values of prefix1, prefix2, … as the Query protocol numbers them.
func (r *request) list(prefix string) []string {
	var values []string
	for i := 1; ; i++ {
		value, ok := r.form[prefix+strconv.Itoa(i)]
		if !ok {
			return values
		}
		values = append(values, value[0])
	}
}

// apiError is an error as a service returns it.
type apiError struct {
	status  int
	code    string // what the SDK's ErrorCode returns
	message string
}

func (e *apiError) senderFault() bool { return e.status < http.StatusInternalServerError }

func badRequest(code, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

// response is an answer before a fault changes it.
type response struct {
	status int
	code   string // of the error, empty when there is none
	header map[string]string
	body   []byte
}

// gone is the answer to a client that does not wait any more. Proxies log 499 for that.
func gone() response { return response{status: 499, code: "ClientGone"} }

// requestID is constant: nothing that uses the simulator tells calls apart by
// it, and the records have times.
const requestID = "00000000-0000-4000-8000-000000000000"

func (r *request) succeed(output any) response {
	switch r.service {
	case "sqs", "events", "kms":
		return jsonResponse(http.StatusOK, output)
	case "ec2":
		return xmlResponse(http.StatusOK, output)
	}
	return xmlResponse(http.StatusOK, queryResult{
		XMLName: xml.Name{Local: r.action + "Response"}, Namespace: queryNamespaces[r.service],
		Result:    queryOutput{XMLName: xml.Name{Local: r.action + "Result"}, Output: output},
		RequestID: requestID,
	})
}

// fail encodes an error as the service that was asked does.
func (r *request) fail(problem *apiError) response {
	var answer response
	switch r.service {
	case "sqs":
		answer = sqsErrorResponse(problem)
	case "events", "kms":
		answer = jsonResponse(problem.status, map[string]string{"__type": problem.code, "message": problem.message})
	case "ec2":
		answer = xmlResponse(problem.status, ec2Error{Code: problem.code, Message: problem.message, RequestID: requestID})
	default:
		fault := "Receiver"
		if problem.senderFault() {
			fault = "Sender"
		}
		answer = xmlResponse(problem.status, queryError{
			Namespace: queryNamespaces[r.service],
			Type:      fault, Code: problem.code, Message: problem.message, RequestID: requestID,
		})
	}
	answer.code = problem.code
	return answer
}

var queryNamespaces = map[string]string{
	"autoscaling": "http://autoscaling.amazonaws.com/doc/2011-01-01/",

	"elasticloadbalancing": "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",

	"sts": "https://sts.amazonaws.com/doc/2011-06-15/",
	"sns": "http://sns.amazonaws.com/doc/2010-03-31/",
}

type queryResult struct {
	XMLName   xml.Name
	Namespace string `xml:"xmlns,attr"`
	Result    queryOutput
	RequestID string `xml:"ResponseMetadata>RequestId"`
}

type queryOutput struct {
	XMLName xml.Name
	Output  any
}

// MarshalXML writes the fields of the output straight into the result element.
func (o queryOutput) MarshalXML(encoder *xml.Encoder, _ xml.StartElement) error {
	start := xml.StartElement{Name: o.XMLName}
	if o.Output == nil {
		return encoder.EncodeElement(struct{}{}, start)
	}
	return encoder.EncodeElement(o.Output, start)
}

type queryError struct {
	XMLName   xml.Name `xml:"ErrorResponse"`
	Namespace string   `xml:"xmlns,attr,omitempty"`
	Type      string   `xml:"Error>Type"`
	Code      string   `xml:"Error>Code"`
	Message   string   `xml:"Error>Message"`
	RequestID string   `xml:"RequestId"`
}

type ec2Error struct {
	XMLName   xml.Name `xml:"Response"`
	Code      string   `xml:"Errors>Error>Code"`
	Message   string   `xml:"Errors>Error>Message"`
	RequestID string   `xml:"RequestID"`
}

func xmlResponse(status int, output any) response {
	body, err := xml.Marshal(output)
	if err != nil {
		return response{status: http.StatusInternalServerError, code: "InternalFailure", body: []byte(err.Error())}
	}
	return response{
		status: status,
		header: map[string]string{"Content-Type": "text/xml;charset=UTF-8", "X-Amzn-Requestid": requestID},
		body:   append([]byte(xml.Header), body...),
	}
}

func jsonResponse(status int, output any) response {
	body, err := json.Marshal(output)
	if err != nil {
		return response{status: http.StatusInternalServerError, code: "InternalFailure", body: []byte(err.Error())}
	}
	return response{
		status: status,
		header: map[string]string{"Content-Type": "application/x-amz-json-1.0", "X-Amzn-Requestid": requestID},
		body:   body,
	}
}

// write sends the answer, or as much of it as the faults let through.
func (a response) write(w http.ResponseWriter, harm harm) {
	if harm.reset || harm.hang || a.status == gone().status {
		resetConnection(w)
		return
	}
	header := w.Header()
	for key, value := range a.header {
		header.Set(key, value)
	}
	header.Set("Date", time.Now().Add(harm.skew).UTC().Format(http.TimeFormat))
	if harm.contentType != "" {
		header.Set("Content-Type", harm.contentType)
	}
	header.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	if !harm.half {
		_, _ = w.Write(a.body) // fails when the client left, and then nobody is there to tell
		return
	}
	_, _ = w.Write(a.body[:len(a.body)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler) // the documented way to break a response off
}

// errReset is what a client without sockets gets instead of a TCP RST.
var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// resetConnection ends the connection without an answer, by RST.
func resetConnection(w http.ResponseWriter) {
	if memory, ok := w.(*memoryWriter); ok {
		memory.err = errReset
		return
	}
	connection, _, err := http.NewResponseController(w).Hijack()
	if errors.Is(err, http.ErrNotSupported) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}
