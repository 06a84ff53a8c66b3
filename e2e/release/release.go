// Package release runs this program against a sandbox with what deploy/ gives
// it: its namespace, its ServiceAccount and exactly its rights.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// Name is that of the program, and of everything that the manifests call by it.
const Name = "node-termination-handler"

// Apply creates the objects of a manifest file in a namespace of that name. What
// is cluster-wide gets the namespace's name too, so that releases do not meet.
// Kinds to skip are left out: mostly the Deployment, whose replicas are then
// processes, see Replica.
func Apply(ctx context.Context, cluster *sandbox.Cluster, path, namespace string, skip ...string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	resources, err := restmapper.GetAPIGroupResources(cluster.Client().Discovery())
	if err != nil {
		return fmt.Errorf("ask which resources there are: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(resources)
	client, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		return err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), len(file)); ; {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if slices.Contains(skip, object.GetKind()) {
			continue
		}
		if err := move(&object, namespace); err != nil {
			return err
		}
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		_, err = client.Resource(mapping.Resource).Namespace(object.GetNamespace()).
			Create(ctx, &object, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create %s %s: %w", kind.Kind, object.GetName(), err)
		}
	}
}

// move puts an object into the namespace, or names it after it.
func move(object *unstructured.Unstructured, namespace string) error {
	if strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") {
		return movePolicy(object, namespace)
	}
	if object.GetNamespace() != "" {
		object.SetNamespace(namespace)
	} else {
		object.SetName(namespace)
	}
	subjects, bound, err := unstructured.NestedSlice(object.Object, "subjects")
	if err != nil || !bound {
		return err
	}
	for _, s := range subjects {
		s.(map[string]any)["namespace"] = namespace
	}
	if err := unstructured.SetNestedSlice(object.Object, subjects, "subjects"); err != nil {
		return err
	}
	if object.GetKind() == "ClusterRoleBinding" {
		return unstructured.SetNestedField(object.Object, namespace, "roleRef", "name")
	}
	return nil
}

// account is the user name of a ServiceAccount, up to its namespace.
var account = regexp.MustCompile(`system:serviceaccount:[^:]+:`)

// movePolicy names a ValidatingAdmissionPolicy or its binding after the namespace and what it is about, and makes it
// one for the ServiceAccount there.
func movePolicy(object *unstructured.Unstructured, namespace string) error {
	parts := strings.Split(object.GetName(), ".")
	name := namespace + "." + parts[len(parts)-1]
	object.SetName(name)
	if object.GetKind() == "ValidatingAdmissionPolicyBinding" {
		return unstructured.SetNestedField(object.Object, name, "spec", "policyName")
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "spec", "matchConditions")
	if err != nil {
		return err
	}
	for _, c := range conditions {
		c := c.(map[string]any)
		c["expression"] = account.ReplaceAllString(c["expression"].(string), "system:serviceaccount:"+namespace+":")
	}
	return unstructured.SetNestedSlice(object.Object, conditions, "spec", "matchConditions")
}

// RemovePolicies removes the admission policies that Apply has made in a namespace: in a cluster with many releases
// each request would be compared with all of them.
func RemovePolicies(ctx context.Context, cluster *sandbox.Cluster, namespace string) error {
	client := cluster.Client().AdmissionregistrationV1()
	policies, err := client.ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range policies.Items {
		if !strings.HasPrefix(p.Name, namespace+".") {
			continue
		}
		err = errors.Join(err,
			client.ValidatingAdmissionPolicyBindings().Delete(ctx, p.Name, metav1.DeleteOptions{}),
			client.ValidatingAdmissionPolicies().Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	return err
}

// Policy is the policy in a file of deploy/iam, for a queue and its dead-letter queue in an account.
func Policy(path, account, queue, deadLetters string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	fill := strings.NewReplacer("PARTITION", "aws", "REGION", Region, "ACCOUNT", account,
		"QUEUE", queue, "DEAD_LETTERS", deadLetters)
	return fill.Replace(string(text)), nil
}

// Replica is one process of the program.
type Replica struct {
	Program     string // path of the binary
	Kubeconfig  string // of the release's ServiceAccount
	Namespace   string
	QueueURL    string
	Endpoint    string // of AWS
	AccessKeyID string // tells replicas apart in the simulator's record
	ProbesPort  int    // 0: any
	MetricsPort int    // 0: any
	Args        []string
	Env         []string // NAME=value, besides what every replica gets
}

// Region is where the simulated account is.
const Region = "us-east-1"

// SecretAccessKey is what replicas sign with; the simulator does not look.
const SecretAccessKey = "hush-secret-access-key"

// Command is the process, not started, with an environment of its own.
func (r Replica) Command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.Program, slices.Concat([]string{
		"--kubeconfig=" + r.Kubeconfig,
		"--pod-namespace=" + r.Namespace,
		"--queue-url=" + r.QueueURL,
		"--aws-region=" + Region,
		"--aws-endpoint=" + r.Endpoint,
		fmt.Sprintf("--probes-server-port=%d", r.ProbesPort),
		fmt.Sprintf("--prometheus-server-port=%d", r.MetricsPort),
	}, r.Args)...)
	cmd.Env = append([]string{
		"AWS_ACCESS_KEY_ID=" + r.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + SecretAccessKey,
		"AWS_EC2_METADATA_DISABLED=true", "HOME=" + os.TempDir(),
	}, r.Env...)
	return cmd
}

// Log is what a replica writes, to be read while it runs. The zero value is
// ready; its methods may be called concurrently.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
	also io.Writer // nil: nobody follows
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.also != nil {
		_, _ = l.also.Write(p) // who follows may have gone; the log is whole here
	}
	return l.text.Write(p)
}

// Follow writes to w what the log has, and what comes from now on.
func (l *Log) Follow(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = w.Write(l.text.Bytes())
	l.also = w
}

// String is all of it so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// LastLines is its end, n lines at most.
func (l *Log) LastLines(n int) string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
