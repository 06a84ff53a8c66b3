package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
)

// karpenterPrefix begins the names of what BuildKarpenter compiles in the cache directory.
const karpenterPrefix = "karpenter-"

// BuildKarpenter returns the path of the binary that hack/karpenter describes. It compiles and
// keeps it as Build does, and says so on out.
func BuildKarpenter(ctx context.Context, out io.Writer) (string, error) {
	controlPlane, err := sourceDir()
	if err != nil {
		return "", fmt.Errorf("find hack: %w", err)
	}
	source := filepath.Join(filepath.Dir(controlPlane), "karpenter")
	hash, err := hashOf(ctx, source, "karpenter", func(string) bool { return true })
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", source, err)
	}
	dir, err := cached(ctx, karpenterPrefix+hash, "Karpenter", out, func(partial string) error {
		fmt.Fprintln(out, "compiling Karpenter: the first time takes 2 to 4 minutes on 2 cores")
		defer progress(out, "compiling Karpenter")()
		return goBuild(ctx, source, defaultModfile, "-s -w", filepath.Join(partial, "karpenter"))
	})
	return filepath.Join(dir, "karpenter"), err
}

// AddKarpenter starts Karpenter, the program at path, which BuildKarpenter returns, and returns
// when it works. Its resources are defined then. Each cluster has one at most, and Stop ends it.
//
// Its nodes are those of hack/karpenter: KWOK runs their pods, and each has a provider id of EC2.
func (c *Cluster) AddKarpenter(ctx context.Context, path string) (*Component, error) {
	var err error
	for range 5 { // as in Start
		var ports []int
		if ports, err = freePorts(ctx, 1); err != nil {
			return nil, err
		}
		port := fmt.Sprint(ports[0])
		karpenter := &Component{
			name: "karpenter", dir: c.dir, path: path, args: []string{c.Kubeconfig(), port},
			ready: answers("http://127.0.0.1:" + port + "/readyz"),
		}
		if err = c.startOnPort(ctx, karpenter); err == nil {
			c.mu.Lock()
			c.karpenter = karpenter
			c.mu.Unlock()
			return karpenter, nil
		}
		karpenter.Kill()
	}
	return nil, err
}

// AddNodePool makes a NodePool of nodes with these labels, each with 4 CPUs. Karpenter makes a node of
// it for pods that select such labels and find no room. It never disrupts one of its own accord.
func (c *Cluster) AddNodePool(ctx context.Context, name string, labels map[string]string) error {
	type object map[string]any
	class := object{
		"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": object{"name": name},
	}
	pool := object{
		"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": object{"name": name},
		"spec": object{
			"disruption": object{"consolidateAfter": "Never"},
			"template": object{
				"metadata": object{"labels": labels},
				"spec": object{
					"expireAfter":  "Never",
					"nodeClassRef": object{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name},
					"requirements": []object{
						{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": []string{"c-4x-amd64-linux"}},
					},
				},
			},
		},
	}
	for path, o := range map[string]object{
		"/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses": class, "/apis/karpenter.sh/v1/nodepools": pool,
	} {
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if err := c.client.Discovery().RESTClient().Post().AbsPath(path).Body(body).Do(ctx).Error(); err != nil {
			return fmt.Errorf("create %s %s: %w", o["kind"], name, err)
		}
	}
	return nil
}
