package telemetry

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

// requests counts the requests to AWS and to the API server, each try separately.
type requests struct {
	aws        *prometheus.CounterVec
	kubernetes *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
}

// services are the services of AWS, as a label, by their names in the SDK.
var services = map[string]string{
	"SQS": "sqs", "EC2": "ec2", "Auto Scaling": "autoscaling", "Elastic Load Balancing v2": "elasticloadbalancing",
	"STS": "sts",
}

// calls are the calls to AWS that this program makes, except those that get credentials, and those about
// load balancers: few clusters make them.
var calls = map[string][]string{
	"sqs": {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", longPoll},
	"ec2": {"DescribeInstanceStatus", "DescribeInstances"},
	"autoscaling": {
		"CompleteLifecycleAction", "DescribeAutoScalingGroups", "DescribeAutoScalingInstances", "DescribeLifecycleHooks",
		"RecordLifecycleActionHeartbeat", "SetInstanceHealth",
	},
}

const (
	// longPoll waits for messages, so its duration is not measured.
	longPoll = "ReceiveMessage"

	// Of no answer that can be read, and of what has no label of its own.
	noAnswer, other = "no-answer", "other"
)

func newRequests(c *catalogue) requests {
	r := requests{
		aws: c.counters(namespace+"aws_requests_total", "Requests to AWS, including retries, by their answer. "+
			"`throttled`: too many requests. `denied`: a permission is missing. `refused`: another 4xx. "+
			"`fault`: 5xx. `no-answer`: none that can be read.",
			label{name: "service", words: "`sqs`, `ec2`, `autoscaling`, `elasticloadbalancing`, `sts`, `other` (credentials)"},
			label{name: "action", words: "the API action"},
			label{name: "code", words: "`ok`, `throttled`, `denied`, `refused`, `fault`, `no-answer`"}),
		kubernetes: c.counters(namespace+"kubernetes_requests_total",
			"Requests to the API server. 429 means that a PodDisruptionBudget refuses an eviction (resource "+
				"`pods/eviction`), or that the server is overloaded.",
			label{name: "verb", words: "as in RBAC"},
			label{name: "resource", words: "as in RBAC"},
			label{name: "code", words: "HTTP status, or `no-answer`"}),
		seconds: c.histograms(namespace+"api_request_duration_seconds",
			"Time to the first byte of the answer, without long polls and watches.",
			[]float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10},
			label{name: "api", values: []string{"autoscaling", "ec2", "kubernetes", "sqs"}}),
	}
	for service, actions := range calls {
		for _, action := range actions {
			for _, code := range []string{"ok", "throttled", "denied"} {
				r.aws.WithLabelValues(service, action, code)
			}
		}
	}
	return r
}

// AWS adds a middleware to a client of the SDK that counts its requests. It counts each
// try, by the error that the SDK reads from the answer.
func (m *Metrics) AWS(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("CountRequests",
		func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			start := time.Now()
			out, meta, err := next.HandleDeserialize(ctx, in)
			if err != nil && errors.Is(ctx.Err(), context.Canceled) {
				return out, meta, err // we cancelled it: the error is not AWS's
			}
			service := cmp.Or(services[awsmiddleware.GetServiceID(ctx)], other)
			action := awsmiddleware.GetOperationName(ctx)
			m.requests.aws.WithLabelValues(service, action, awsCode(err)).Inc()
			if action != longPoll {
				m.requests.seconds.WithLabelValues(service).Observe(time.Since(start).Seconds())
			}
			return out, meta, err
		}), middleware.Before)
}

// awsCode is the code of an answer from AWS. It has hundreds of error codes, and most of them have the status 400.
func awsCode(err error) string {
	if err == nil {
		return "ok"
	}
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return noAnswer
	}
	code := api.ErrorCode()
	if _, throttled := retry.DefaultThrottleErrorCodes[code]; throttled {
		return "throttled"
	}
	if awserr.Denied(err) && !awserr.Unsupported(err) {
		return "denied"
	}
	var response interface{ HTTPStatusCode() int }
	if errors.As(err, &response) && response.HTTPStatusCode() < http.StatusInternalServerError {
		return "refused"
	}
	return "fault"
}

// Kubernetes returns a transport that counts the requests to next. It is for
// rest.Config.Wrap.
func (m *Metrics) Kubernetes(next http.RoundTripper) http.RoundTripper {
	return countingTransport{next, &m.requests}
}

type countingTransport struct {
	next     http.RoundTripper
	requests *requests
}

// RoundTrip implements http.RoundTripper.
func (t countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	response, err := t.next.RoundTrip(r)
	if err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		return response, err
	}
	verb, resource := kubernetesAction(r)
	code := noAnswer
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	t.requests.kubernetes.WithLabelValues(verb, resource, code).Inc()
	if verb != "watch" {
		t.requests.seconds.WithLabelValues("kubernetes").Observe(time.Since(start).Seconds())
	}
	return response, err
}

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t countingTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// resources are those that this program uses; any other is counted as other.
var resources = []string{
	"deployments", "events", "leases", "nodeclaims", "nodes", "nodes/status", "persistentvolumeclaims", "pods",
	"pods/eviction", "pods/status", "replicasets", "selfsubjectaccessreviews", "targetgroupbindings", "volumeattachments",
}

// kubernetesAction is the verb and the resource of a request, as in RBAC.
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb
func kubernetesAction(r *http.Request) (verb, resource string) {
	// /api/v1 or /apis/GROUP/VERSION, [namespaces/NAMESPACE,] RESOURCE [, NAME [, SUBRESOURCE]]
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	path = path[min(len(path), map[bool]int{true: 3, false: 2}[path[0] == "apis"]):]
	if len(path) > 2 && path[0] == "namespaces" {
		path = path[2:]
	}
	if len(path) > 0 {
		resource = path[0]
	}
	if len(path) > 2 {
		resource += "/" + path[2]
	}
	if !slices.Contains(resources, resource) {
		resource = other
	}
	switch watch := r.URL.Query().Get("watch"); {
	case r.Method != http.MethodGet:
		return cmp.Or(verbs[r.Method], other), resource
	case watch == "true" || watch == "1":
		return "watch", resource
	case len(path) > 1:
		return "get", resource
	}
	return "list", resource
}

// verbs are those of requests that write.
var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}
