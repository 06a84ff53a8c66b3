package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// kubeClients are clients of the API groups that this program speaks to. A
// clientset has those of all groups, and the linker would keep them: see
// describeInstances.
type kubeClients struct {
	core          typedcorev1.CoreV1Interface
	policy        typedpolicyv1.PolicyV1Interface
	storage       typedstoragev1.StorageV1Interface
	coordination  typedcoordinationv1.CoordinationV1Interface
	authorization typedauthorizationv1.AuthorizationV1Interface
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
		k.authorization, err = typedauthorizationv1.NewForConfigAndClient(config, connection)
	}
	if err != nil {
		return k, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return k, nil
}

// CoreV1 and the others are those of a clientset.
func (k kubeClients) CoreV1() typedcorev1.CoreV1Interface { return k.core }

func (k kubeClients) PolicyV1() typedpolicyv1.PolicyV1Interface { return k.policy }

func (k kubeClients) StorageV1() typedstoragev1.StorageV1Interface { return k.storage }
