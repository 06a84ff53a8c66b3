package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// kubeClients are clients of the API groups that this program speaks to. A
// clientset has those of all groups, and the linker would keep them: see
// describeInstances.
type kubeClients struct {
	core           typedcorev1.CoreV1Interface
	policy         typedpolicyv1.PolicyV1Interface
	storage        typedstoragev1.StorageV1Interface
	coordination   typedcoordinationv1.CoordinationV1Interface
	authorization  typedauthorizationv1.AuthorizationV1Interface
	authentication typedauthenticationv1.AuthenticationV1Interface // doctor's alone
}

// newKubeClients returns clients that share one connection and one rate limit.
func newKubeClients(config *rest.Config) (kubeClients, error) {
	config.UserAgent = programName
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeProtobuf
	if config.QPS > 0 {
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	var k kubeClients
	connection, err := rest.HTTPClientFor(config)
	if err == nil {
		k.core, err = typedcorev1.NewForConfigAndClient(config, connection)
	}
	if err == nil {
		k.policy, err = typedpolicyv1.NewForConfigAndClient(config, connection)
	}
	if err == nil {
		k.storage, err = typedstoragev1.NewForConfigAndClient(config, connection)
	}
	if err == nil {
		k.coordination, err = typedcoordinationv1.NewForConfigAndClient(config, connection)
	}
	if err == nil {
		k.authentication, err = typedauthenticationv1.NewForConfigAndClient(config, connection)
	}
	if err == nil {
		k.authorization, err = typedauthorizationv1.NewForConfigAndClient(config, connection)
	}
	if err != nil {
		return k, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return k, nil
}

// heeding slows all requests down where the API server says that it has too much to
// do. The client heeds that too, but for the one request alone, and without a word.
// An eviction is left to its caller: a budget answers with the same status.
type heeding struct {
	next http.RoundTripper
	gate *pace.Gate
}

// RoundTrip implements http.RoundTripper.
func (h heeding) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := h.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusTooManyRequests && !strings.HasSuffix(request.URL.Path, "/eviction") {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // as the client does
		h.gate.Busy(max(time.Second, time.Duration(seconds)*time.Second))
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (h heeding) WrappedRoundTripper() http.RoundTripper { return h.next }

// commandClients are for commands that look at the cluster. patience bounds a
// request; zero is for watches.
func commandClients(c *config, patience time.Duration) (kubeClients, error) {
	config, _, err := c.kube()
	if err != nil {
		return kubeClients{}, err
	}
	config.Timeout = patience
	return newKubeClients(config)
}

// commandPatience is how long a command waits for an answer of the API server.
const commandPatience = 10 * time.Second

// CoreV1 and the others are those of a clientset.
func (k kubeClients) CoreV1() typedcorev1.CoreV1Interface { return k.core }

func (k kubeClients) PolicyV1() typedpolicyv1.PolicyV1Interface { return k.policy }

func (k kubeClients) StorageV1() typedstoragev1.StorageV1Interface { return k.storage }

// CoordinationV1 is that of a clientset.
func (k kubeClients) CoordinationV1() typedcoordinationv1.CoordinationV1Interface {
	return k.coordination
}

// AuthenticationV1 is that of a clientset.
func (k kubeClients) AuthenticationV1() typedauthenticationv1.AuthenticationV1Interface {
	return k.authentication
}

// AuthorizationV1 is that of a clientset.
func (k kubeClients) AuthorizationV1() typedauthorizationv1.AuthorizationV1Interface {
	return k.authorization
}

// version asks the API server for its own.
func (k kubeClients) version(ctx context.Context) (string, error) {
	text, err := k.core.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err = json.Unmarshal(text, &v)
	return v.GitVersion, err
}
