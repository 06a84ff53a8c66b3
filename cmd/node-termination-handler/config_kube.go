package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kube returns how to reach the API server, with the rates of c, and the
// namespace that the handler is at home in, where its Lease belongs. Without a
// kubeconfig the pod's ServiceAccount decides; outside of a cluster what kubectl
// would use does.
func (c *config) kube() (client *rest.Config, namespace string, err error) {
	if c.kubeconfig == "" {
		client, namespace, err = c.inCluster()
	}
	if c.kubeconfig != "" || errors.Is(err, rest.ErrNotInCluster) {
		client, namespace, err = c.fromFiles()
	}
	if err != nil {
		return nil, "", err
	}
	if c.podNamespace != "" {
		namespace = c.podNamespace
	}
	client.QPS, client.Burst = c.kubeQPS, c.kubeBurst
	return client, namespace, nil
}

// inCluster returns rest.ErrNotInCluster where there is no cluster around. Like
// every client it goes by the real environment; the two options come on top.
func (c *config) inCluster() (*rest.Config, string, error) {
	client, err := rest.InClusterConfig()
	if err != nil {
		return nil, "", fmt.Errorf("use the pod's ServiceAccount: %w", err)
	}
	if c.kubernetesServiceHost != "" && c.kubernetesServicePort != "" {
		client.Host = "https://" + net.JoinHostPort(c.kubernetesServiceHost, c.kubernetesServicePort)
	}

	// The rest of the ServiceAccount's files must be there, this one need not.
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("read the pod's namespace: %w", err)
	}
	return client, strings.TrimSpace(string(namespace)), nil
}

// fromFiles follows kubectl: the files of c.kubeconfig, else the one in the home
// directory. One file that was named must be there; of several, some may be
// missing.
func (c *config) fromFiles() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	switch paths := filepath.SplitList(c.kubeconfig); len(paths) {
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
