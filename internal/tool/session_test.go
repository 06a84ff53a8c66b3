package tool

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// A tool may run in the container of the handler, whose role may list these.
func TestWhatTenantsWriteIsSmallForTools(t *testing.T) {
	kubeconfig := kubetest.LargeObjects(t)
	session, err := connect(&options.Options{Kubeconfig: kubeconfig, KubeQPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	viewer, err := NewViewer(Cluster{Kubeconfig: kubeconfig}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, c := range map[string]kube.Client{"session": session, "viewer": viewer.client} {
		for kind, list := range map[string]func() (any, error){
			"pods":                 func() (any, error) { return c.CoreV1().Pods("").List(ctx, metav1.ListOptions{}) },
			"PodDisruptionBudgets": func() (any, error) { return c.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{}) },
			"TargetGroupBindings": func() (any, error) {
				return loadbalancer.OfCluster(c.CoreV1().RESTClient()).List(ctx, metav1.ListOptions{})
			},
		} {
			answer, err := list()
			text, _ := json.Marshal(answer)
			if err != nil || len(text) > 4<<10 || !strings.Contains(string(text), `"name":"large"`) {
				t.Errorf("%s, %s: %d bytes, %v", name, kind, len(text), err)
			}
		}
	}
}
