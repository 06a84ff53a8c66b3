package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/surge"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// RESTConfig returns how to reach the API server, with the rates of c, and the
// namespace that the handler is at home in, where its Lease belongs. Without a
// kubeconfig the pod's ServiceAccount decides; outside of a cluster what kubectl
// would use does.
func RESTConfig(c *options.Options) (client *rest.Config, namespace string, err error) {
	if c.Kubeconfig == "" {
		client, namespace, err = inCluster(c)
	}
	if c.Kubeconfig != "" || errors.Is(err, rest.ErrNotInCluster) {
		client, namespace, err = KubeConfig(c.Kubeconfig, "")
	}
	if err != nil {
		return nil, "", err
	}
	if c.PodNamespace != "" {
		namespace = c.PodNamespace
	}
	client.QPS, client.Burst = c.KubeQPS, c.KubeBurst
	return client, namespace, nil
}

// inCluster returns rest.ErrNotInCluster where there is no cluster around. Like
// every client it goes by the real environment; the two options come on top.
func inCluster(c *options.Options) (*rest.Config, string, error) {
	client, err := rest.InClusterConfig()
	if err != nil {
		return nil, "", fmt.Errorf("use the pod's ServiceAccount: %w", err)
	}
	if c.KubernetesServiceHost != "" && c.KubernetesServicePort != "" {
		client.Host = "https://" + net.JoinHostPort(c.KubernetesServiceHost, c.KubernetesServicePort)
	}

	// The rest of the ServiceAccount's files must be there, this one need not.
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("read the pod's namespace: %w", err)
	}
	return client, strings.TrimSpace(string(namespace)), nil
}

// KubeConfig follows kubectl: the files of paths, else those of the variable KUBECONFIG, else the one in the home
// directory. One file that was named must be there; of several, some may be missing. Without a context the current one
// counts.
func KubeConfig(paths, context string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if paths == "" {
		paths = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	switch named := filepath.SplitList(paths); len(named) {
	case 0:
	case 1:
		rules.ExplicitPath = named[0]
	default:
		rules.Precedence = named
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	files := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	client, err := files.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	namespace, _, err := files.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	return client, namespace, nil
}

// largeBytes is how many bytes the large objects have that are in memory at once.
const largeBytes = 8 << 20

// newTrimmer makes answers with what tenants write smaller. It returns one for all clients of the process.
func newTrimmer(policy *policyfile.Follower) *kube.Trimmer {
	pods := new(drain.PodTrimmer)
	return kube.NewTrimmer(largeBytes,
		kube.TrimmedResource("api/v1", "pods", func(pod *corev1.Pod) *corev1.Pod { return pods.Trim(pod, policy.Rules()) }),
		kube.TrimmedResource("api/v1", "persistentvolumeclaims", drain.TrimClaim),
		kube.TrimmedResource("apis/apps/v1", "replicasets", surge.TrimReplicaSet),
		kube.TrimmedResource("apis/apps/v1", "deployments", surge.TrimDeployment),
		loadbalancer.OfCluster(nil).Trimmed(loadbalancer.Trim),
	)
}

// newKubeClients returns the clients for all that is about nodes, those of low priority for Events, webhooks and
// conditions of nodes, and the namespace that this program is at home in. Those of low priority get a tenth of the
// drains' rate limit and a timeout of 10 s. The time that they wait at the gate is not part of the metrics of requests.
func newKubeClients(
	o *options.Options, m *telemetry.Metrics, gate *pace.Gate, trimmer *kube.Trimmer,
) (first, secondary *kube.Clients, namespace string, err error) {
	const qps, burst, timeout = 50, 100, 10 * time.Second
	config, namespace, err := RESTConfig(o)
	if err != nil {
		return nil, nil, "", err
	}
	low := rest.CopyConfig(config)
	low.QPS, low.Burst, low.Timeout = qps, burst, timeout
	connect := func(config *rest.Config, atGate transport.WrapperFunc) (*kube.Clients, error) {
		config.Wrap(trimmer.Wrap)
		config.Wrap(m.Kubernetes)
		config.Wrap(atGate)
		return kube.New(config)
	}
	if first, err = connect(config, kube.AtGate(gate, false)); err == nil {
		secondary, err = connect(low, kube.AtGate(gate, true))
	}
	return first, secondary, namespace, err
}
