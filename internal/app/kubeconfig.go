package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
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
		client, namespace, err = fromFiles(c)
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

// fromFiles follows kubectl: the files of c.Kubeconfig, else the one in the home
// directory. One file that was named must be there; of several, some may be
// missing.
func fromFiles(c *options.Options) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	switch paths := filepath.SplitList(c.Kubeconfig); len(paths) {
	case 0:
	case 1:
		rules.ExplicitPath = paths[0]
	default:
		rules.Precedence = paths
	}
	files := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
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
