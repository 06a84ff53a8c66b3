// Package kube reaches the Kubernetes API server: clients, transports, and the rights that they need.
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Client has the API groups that this program uses. [Clients] implement it, and so does
// a clientset of client-go, also its fake. It may be used concurrently.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
	PolicyV1() typedpolicyv1.PolicyV1Interface
	StorageV1() typedstoragev1.StorageV1Interface
	CoordinationV1() typedcoordinationv1.CoordinationV1Interface
	AuthorizationV1() typedauthorizationv1.AuthorizationV1Interface
	AppsV1() typedappsv1.AppsV1Interface
	AuthenticationV1() typedauthenticationv1.AuthenticationV1Interface // for the tools only
}

// Clients are those of a clientset's groups that this program uses. The clientset itself is in no field: with it the
// binary has 65.89 MB instead of 60.96, and more than 1 MB is too much for seven fields. text/template looks methods up
// by name, and so the linker keeps the methods of whatever can be reached from an interface: also those of a field of
// concrete type, because Clients become a Client.
type Clients struct {
	core           typedcorev1.CoreV1Interface
	policy         typedpolicyv1.PolicyV1Interface
	storage        typedstoragev1.StorageV1Interface
	coordination   typedcoordinationv1.CoordinationV1Interface
	authorization  typedauthorizationv1.AuthorizationV1Interface
	apps           typedappsv1.AppsV1Interface
	authentication typedauthenticationv1.AuthenticationV1Interface
}

// New returns clients that share their connections and one rate limit: config.QPS, none if
// that is negative. Only that of Leases has a connection of its own, and no limit: a lease must
// be renewed in time, whatever else is in flight. New changes config.
func New(config *rest.Config) (*Clients, error) {
	config.UserAgent = "node-termination-handler"
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeProtobuf
	if config.QPS > 0 {
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	connection, err := connect(config)
	if err != nil {
		return nil, err
	}
	// The concrete type matters: the linker keeps all of client-go's methods of what becomes an interface, also by a
	// type parameter: 5 MB.
	set, err := kubernetes.NewForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	leases, err := newLeases(config)
	if err != nil {
		return nil, err
	}
	return &Clients{
		core:           set.CoreV1(),
		policy:         set.PolicyV1(),
		storage:        set.StorageV1(),
		coordination:   leases,
		authorization:  set.AuthorizationV1(),
		apps:           set.AppsV1(),
		authentication: set.AuthenticationV1(),
	}, nil
}

const (
	// perStream bounds what each answer brings ahead of its reader. Go allows 4 MiB, and so 500 MiB where 128 drains list
	// large pods.
	perStream = 128 << 10
	// All requests share one connection. If it goes silent without being closed, none is answered until somebody
	// notices: client-go asks after 30 s of silence, and waits 15 s for the answer. That is too long for who has two
	// minutes, and for a lease of 13 s. The cost at rest is a frame of 17 bytes, and another in return, each silence.
	longestSilence = 4 * time.Second
	longestPing    = 4 * time.Second
)

// tuneHTTP2 sets the bounds above. It has no effect on connections that are there already.
func tuneHTTP2(transport http.RoundTripper) {
	for transport != nil {
		if base, ok := transport.(*http.Transport); ok {
			if base.HTTP2 == nil {
				base.HTTP2 = &http.HTTP2Config{
					MaxReceiveBufferPerStream: perStream, SendPingTimeout: longestSilence, PingTimeout: longestPing,
				}
			}
			return
		}
		wrapper, ok := transport.(interface{ WrappedRoundTripper() http.RoundTripper })
		if !ok {
			return
		}
		transport = wrapper.WrappedRoundTripper()
	}
}

func newLeases(config *rest.Config) (typedcoordinationv1.CoordinationV1Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	if config.Dial == nil { // client-go shares connections between configurations that dial the same way
		const asClientGo = 30 * time.Second
		config.Dial = (&net.Dialer{Timeout: asClientGo, KeepAlive: asClientGo}).DialContext
	}
	connection, err := connect(config)
	if err != nil {
		return nil, err
	}
	return typedcoordinationv1.NewForConfigAndClient(config, connection)
}

// connect returns a connection that follows no redirect: the API server passes on that of a pod behind its proxy, and
// client-go would send the credentials along, to any host.
func connect(config *rest.Config) (*http.Client, error) {
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	tuneHTTP2(connection.Transport)
	staying := *connection // it may be that of all programs
	staying.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &staying, nil
}

// CoreV1 implements Client, as the methods below do.
func (c *Clients) CoreV1() typedcorev1.CoreV1Interface { return c.core }

// PolicyV1 implements Client.
func (c *Clients) PolicyV1() typedpolicyv1.PolicyV1Interface { return c.policy }

// StorageV1 implements Client.
func (c *Clients) StorageV1() typedstoragev1.StorageV1Interface { return c.storage }

// CoordinationV1 implements Client.
func (c *Clients) CoordinationV1() typedcoordinationv1.CoordinationV1Interface {
	return c.coordination
}

// AuthorizationV1 implements Client.
func (c *Clients) AuthorizationV1() typedauthorizationv1.AuthorizationV1Interface {
	return c.authorization
}

// AppsV1 implements Client.
func (c *Clients) AppsV1() typedappsv1.AppsV1Interface { return c.apps }

// AuthenticationV1 implements Client.
func (c *Clients) AuthenticationV1() typedauthenticationv1.AuthenticationV1Interface {
	return c.authentication
}

// Version asks the API server for its own version, such as v1.34.0.
func (c *Clients) Version(ctx context.Context) (string, error) {
	text, err := c.core.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err = json.Unmarshal(text, &v)
	return v.GitVersion, err
}
