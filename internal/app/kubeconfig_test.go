package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

const testKubeconfig = `apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me, namespace: nodes}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: me, user: {token: t}}]
`

func TestKubeconfigTellsTheServerAndTheNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(testKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, kubeconfig, podNamespace, namespace string
	}{
		{"a file", path, "", "nodes"},
		{"several files, of which one is missing", "/nowhere" + string(filepath.ListSeparator) + path, "", "nodes"},
		{"pod-namespace goes first", path, "kube-system", "kube-system"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := options.Options{Kubeconfig: tt.kubeconfig, PodNamespace: tt.podNamespace, KubeQPS: 7, KubeBurst: 8}
			client, namespace, err := RESTConfig(&c)
			if err != nil {
				t.Fatal(err)
			}
			if client.Host != "https://127.0.0.1:6443" || client.QPS != 7 || client.Burst != 8 {
				t.Errorf("host %s, %v requests a second, burst %d", client.Host, client.QPS, client.Burst)
			}
			if namespace != tt.namespace {
				t.Errorf("namespace %s, want %s", namespace, tt.namespace)
			}
		})
	}
}

func TestKubeconfigThatWasNamedMustBeThere(t *testing.T) {
	c := options.Options{Kubeconfig: filepath.Join(t.TempDir(), "missing")}
	if _, _, err := RESTConfig(&c); err == nil || !strings.Contains(err.Error(), c.Kubeconfig) {
		t.Errorf("error %v, want one that names %s", err, c.Kubeconfig)
	}
}

func TestServiceAccountThatLacksItsFilesIsNoReasonToLookElsewhere(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
		t.Skip("this is a pod")
	}
	if _, _, err := RESTConfig(new(options.Options)); err == nil || !strings.Contains(err.Error(), "the pod's ServiceAccount") {
		t.Errorf("error %v, want one about the ServiceAccount", err)
	}
}
