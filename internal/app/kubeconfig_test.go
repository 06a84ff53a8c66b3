package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// testServer is nobody's.
const testServer = "https://127.0.0.1:6443"

// kubeconfigOf returns the path of a file that names the server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(strings.Replace(testKubeconfig, "SERVER", server, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const testKubeconfig = `apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me, namespace: nodes}}]
clusters: [{name: here, cluster: {server: "SERVER"}}]
users: [{name: me, user: {token: t}}]
`

func TestAFileOfTheVariableThatIsMissingIsNamed(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere")
	if _, _, err := KubeConfig("", ""); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("the error is %v", err)
	}
	t.Setenv("KUBECONFIG", "/nowhere"+string(filepath.ListSeparator)+kubeconfigOf(t, testServer))
	if client, _, err := KubeConfig("", ""); err != nil || client.Host != testServer {
		t.Errorf("with a second file: %v", err)
	}
}

func TestKubeconfigTellsTheServerAndTheNamespace(t *testing.T) {
	path := kubeconfigOf(t, testServer)
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
			if client.Host != testServer || client.QPS != 7 || client.Burst != 8 {
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

// Each kind that docs/architecture.md says a tenant may write.
func TestWhatTenantsWriteIsSmallForAllClients(t *testing.T) {
	first, secondary, _, err := newKubeClients(&options.Options{Kubeconfig: kubetest.LargeObjects(t), KubeQPS: -1}, telemetry.New(), pace.NewGate(1, 1), newTrimmer(nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, c := range map[string]*kube.Clients{"first": first, "secondary": secondary} {
		for kind, ask := range map[string]func() (any, error){
			"pods": func() (any, error) { return c.CoreV1().Pods("").List(ctx, metav1.ListOptions{}) },
			"claims": func() (any, error) {
				return c.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "large", metav1.GetOptions{})
			},
			"ReplicaSet": func() (any, error) { return c.AppsV1().ReplicaSets("ns").Get(ctx, "large", metav1.GetOptions{}) },
			"Deployment": func() (any, error) { return c.AppsV1().Deployments("ns").Get(ctx, "large", metav1.GetOptions{}) },
			"TargetGroupBindings": func() (any, error) {
				return loadbalancer.OfCluster(c.CoreV1().RESTClient()).List(ctx, metav1.ListOptions{})
			},
			"pods of a watch": func() (any, error) {
				w, err := c.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
				if err != nil {
					return nil, err
				}
				defer w.Stop()
				return (<-w.ResultChan()).Object, nil
			},
		} {
			answer, err := ask()
			text, _ := json.Marshal(answer)
			if err != nil || len(text) > 4<<10 || !strings.Contains(string(text), `"name":"large"`) {
				t.Errorf("%s, %s: %d bytes, %v", name, kind, len(text), err)
			}
		}
	}
}
