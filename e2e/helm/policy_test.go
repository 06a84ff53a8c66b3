package helm

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
)

// policyOf is the policy file that the pod reads, after the kubelet has mounted it; empty: none.
func policyOf(t *testing.T, r *rendered, pod corev1.PodSpec) string {
	t.Helper()
	container := pod.Containers[0]
	at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "POLICY_FILE" })
	if at < 0 {
		return ""
	}
	file := container.Env[at].Value
	for _, mount := range container.VolumeMounts {
		if mount.MountPath != path.Dir(file) {
			continue
		}
		if mount.SubPath != "" || mount.SubPathExpr != "" {
			t.Error("the kubelet does not update what is mounted by its subPath")
		}
		volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if volume < 0 || pod.Volumes[volume].ConfigMap == nil {
			t.Fatalf("there is no volume %s of a ConfigMap", mount.Name)
		}
		for document := range strings.SplitSeq(r.manifest, "\n---\n") {
			var object corev1.ConfigMap
			err := yaml.Unmarshal([]byte(document), &object)
			if err == nil && object.Kind == "ConfigMap" && object.Name == pod.Volumes[volume].ConfigMap.Name {
				return object.Data[path.Base(file)]
			}
		}
		t.Fatalf("there is no ConfigMap %s", pod.Volumes[volume].ConfigMap.Name)
	}
	t.Fatalf("%s is not mounted", file)
	return ""
}

func TestThePodsReadThePolicyOfTheValues(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for name, rule := range map[string]string{"everything": "reboot-at-night", "both-modes": "spot-only", "imds-windows": "spot-only"} {
		r, err := render(t, h, Chart(root), "--values", "testdata/values/"+name+".yaml", Image)
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for _, pod := range []corev1.PodSpec{r.deployment.Spec.Template.Spec, r.daemonSet.Spec.Template.Spec, r.windows.Spec.Template.Spec} {
			if len(pod.Containers) == 0 {
				continue
			}
			f, err := policyfile.Parse([]byte(policyOf(t, r, pod)))
			if err != nil || len(f.Warnings) > 0 || f.Rules.Nodes[0].Name != rule {
				t.Errorf("%s: the rules are %+v, warnings %v, error %v", name, f.Rules.Nodes, f.Warnings, err)
			}
			read++
		}
		if want := map[string]int{"everything": 1, "both-modes": 2, "imds-windows": 2}[name]; read != want {
			t.Errorf("%s: %d pods read a policy", name, read)
		}
	}
}

func TestAnotherPolicyRestartsNoPod(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	rendering := func(more ...string) *rendered {
		r, err := render(t, h, Chart(root), append([]string{queue, Image}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := rendering("--set-json", `policy={"version":1,"nodes":[{"name":"a","do":"drain"}]}`)
	second := rendering("--set-json", `policy={"version":1,"nodes":[{"name":"b","do":"cordon"}]}`)
	if a, b := policyOf(t, first, first.deployment.Spec.Template.Spec), policyOf(t, second, second.deployment.Spec.Template.Spec); a == b {
		t.Errorf("the policy is %s both times", a)
	}
	if diff := cmp.Diff(first.deployment, second.deployment); diff != "" {
		t.Errorf("the Deployment has changed (-first +second):\n%s", diff)
	}
	if none := rendering(); policyOf(t, none, none.deployment.Spec.Template.Spec) != "" || none.kinds["ConfigMap"] > 0 {
		t.Error("there is a policy without values for it")
	}
}
