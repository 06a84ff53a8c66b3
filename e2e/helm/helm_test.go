package helm

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
)

// queue is the value that chooses the queue mode.
const queue = "--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth"

// built is Helm, compiled for the first test that needs it.
var built struct {
	once sync.Once
	path string
	err  error
}

// program returns Helm without a cluster.
func program(t *testing.T) (h Helm, root string) {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	built.once.Do(func() { built.path, built.err = Build(t.Context(), root) })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return Helm{Program: built.path, Home: t.TempDir()}, root
}

func run(t *testing.T, h Helm, args ...string) string {
	t.Helper()
	out, err := h.Run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// valuesFiles are those that people use, and ours.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d values files, %v", len(files), err)
	}
	return files
}

// copied are the files under deploy that the chart has too.
var copied = []string{filepath.Join("prometheus", "rules.yaml"), filepath.Join("grafana", "dashboard.json")}

// A chart is packed by itself: what it takes from elsewhere is copied into it.
func TestTheChartHasTheAlertsTheDashboardAndTheLicence(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range copied {
		source, err := os.ReadFile(filepath.Join(root, "deploy", path))
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, filepath.Join(Chart(root), "files", filepath.Base(path)), string(source))
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join(Chart(root), "LICENSE"), string(license))
}

func TestTheChartHasNothingThatLintFinds(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, file := range valuesFiles(t) {
		run(t, h, "lint", "--strict", Chart(root), queue, Image, "--values", file)
	}
}

func TestEachValuesFileRendersAsBefore(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, file := range valuesFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--values", file}
			if name != "everything" {
				args = append(args, Image)
			}
			r, err := render(t, h, Chart(root), args...)
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, filepath.Join("testdata", "golden", name+".yaml"), withoutFiles(t, root, r.manifest))
			golden.Compare(t, filepath.Join("testdata", "golden", name+".notes.txt"), r.notes)
		})
	}
}

// withoutFiles is a manifest with the names of the copied files in their place.
func withoutFiles(t *testing.T, root, manifest string) string {
	t.Helper()
	for _, path := range copied {
		name := filepath.Base(path)
		text, err := os.ReadFile(filepath.Join(Chart(root), "files", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, indent := range []string{"  ", "    "} {
			indented := indent + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n"+indent)
			manifest = strings.ReplaceAll(manifest, indented, indent+"(files/"+name+")")
		}
	}
	return manifest
}

func TestMistakesInValuesAreTold(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, tt := range []struct{ name, set, says string }{
		{"no queue", "enableSqsTerminationDraining=true", "queueURL is not set"},
		{"no queue, as a number", "enableSqsTerminationDraining=1", "queueURL is not set"},
		{"reports to nobody", "enableSqsTerminationDraining=false,reportOnly=true", "reportOnly is on, and nobody leads without a Deployment"},
		{"an unknown operating system", "enableSqsTerminationDraining=false,targetNodeOs=plan9", `targetNodeOs is "plan9", which names no operating system`},
		{"the network of the node by a word", "useHostNetwork=maybe", "useHostNetwork"},
		{"the name of a queue", "queueURL=nth", `queueURL is "nth", which is not the URL of a queue`},
		{"an account of nine digits", "queueURL=https://sqs.us-east-1.amazonaws.com/123456789/nth", "with an account of 12 digits"},
		{"no image", "image.repository=", "image.repository is not set, and no image is published yet"},
		{
			"a repository with a tag", "image.repository=registry.example.com:5000/nth:0.1.0",
			"which has a tag or a digest in it: set image.repository to registry.example.com:5000/nth, and image.tag to 0.1.0.",
		},
		{
			"a repository with a tag and a digest", "image.repository=registry.example.com/nth:0.1.0@sha256:0a1b",
			"set image.repository to registry.example.com/nth, and image.tag to sha256:0a1b.",
		},
		{"the image of another program, with its tag", "image.repository=public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25.0", "the image of AWS Node Termination Handler"},
		{"the tag of another program", "image.repository=,image.tag=v1.25.0", "image.tag is v1.25.0, a tag of the image of AWS Node Termination Handler"},
		{"an end of heartbeats that there are not", "heartbeatUntil=7200", "heartbeatUntil is 7200, but heartbeatInterval is not set"},
		{"heartbeats that end before the first", "heartbeatInterval=300,heartbeatUntil=200", "heartbeatInterval is 300, longer than heartbeatUntil, 200"},
		{"a level with another name", "logLevel=warning", "value must be one of 'DEBUG', 'Debug'"},
		{"a group switched by a text", `rbac.create="false"`, "got string, want boolean"},
		{"a name nobody knows", "queueUrl=https://sqs.us-east-1.amazonaws.com/123456789012/nth", "additional properties 'queueUrl' not allowed"},
		{"a nested name nobody knows", "podMonitor.enabled=true", "additional properties 'enabled' not allowed"},
		{"a number out of range", "sqsMsgVisibilityTimeoutSec=120", "maximum: got 120, want 119"},
		{"a number below zero", "workers=-1", "minimum: got -1, want 0"},
		{"too short a heartbeat", "heartbeatInterval=10", "minimum: got 10, want 30"},
		{"all accounts", "eventAccounts=any", "'any' does not match pattern"},
		{"an account that has lost its zeros", "eventAccounts=42", "minimum: got 42"},
		{"a boolean that is none", "taintNode=maybe", "value must be one of 'true', 'false'"},
		{"a word that is none of them", "taintEffect=Never", "'NoSchedule'"},
		{"the image of another program", "image.repository=public.ecr.aws/aws-ec2/aws-node-termination-handler", "the image of AWS Node Termination Handler"},
		{"a key that no policy has", "policy.rules=5", "additional properties 'rules' not allowed"},
		{"a word that no rule knows", "policy.nodes[0].name=a,policy.nodes[0].do=drian", "value must be one of 'ignore', 'notify', 'cordon', 'drain'"},
		{"the name of the Lease", "extraEnv[0].name=LEADER_ELECT_RESOURCE_NAME,extraEnv[0].value=nth", "the chart's rights are for the Lease that has the name of the release"},
		{"fields of the oldest charts", "securityContext.runAsUserID=1000,securityContext.runAsGroupID=1000", "securityContext has runAsGroupID and runAsUserID, as in charts of NTH before 0.16"},
		{"a template without its key", "webhookTemplateConfigMapName=template", "webhookTemplateConfigMapKey is not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"template", "nth", Chart(root), Image, "--set", tt.set}
			if !strings.HasPrefix(tt.name, "no queue") {
				args = slices.Insert(args, 3, queue)
			}
			_, err := h.Run(t.Context(), args...)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error with %q", err, tt.says)
			}
		})
	}
}

func TestADigestCanStandInTwoPlaces(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, set := range []string{"image.repository=r.example.com/nth,image.tag=sha256:0a1b", "image.repository=r.example.com/nth@sha256,image.tag=0a1b"} {
		r, err := render(t, h, Chart(root), queue, "--set", set)
		if err != nil {
			t.Fatal(err)
		}
		if image := r.deployment.Spec.Template.Spec.Containers[0].Image; image != "r.example.com/nth@sha256:0a1b" {
			t.Errorf("with %s the image is %s", set, image)
		}
	}
}

// Only the message of the queue has the time of the hook: without it no limit could hold the node back.
func TestBesideAQueueATerminationIsLeftToIt(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for set, want := range map[string]string{"daemonset.create=true": "false", "daemonset.create=true,enableASGLifecycleDraining=true": "true"} {
		r, err := render(t, h, Chart(root), queue, Image, "--set", set+",customLabels.team=a,serviceAccount.labels.team=b")
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, e := range r.daemonSet.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "ENABLE_ASG_LIFECYCLE_DRAINING" {
				got = e.Value
			}
		}
		if accounts := strings.Count(r.manifest, "\n    team: b\n"); got != want || accounts != 2 {
			t.Errorf("with %s it is %q, want %q; %d ServiceAccounts have the label", set, got, want, accounts)
		}
	}
}

const (
	namespaceOfManifests = `apiVersion: v1
kind: Namespace
metadata:
  name: node-termination-handler
  labels:
    pod-security.kubernetes.io/enforce: restricted
`
	headerOfManifests = `# node-termination-handler: all its objects in a cluster, as rendered by its Helm chart.
# Set the image and QUEUE_URL below and, with IRSA, annotate the ServiceAccount:
#   eks.amazonaws.com/role-arn: arn:aws:iam::ACCOUNT:role/node-termination-handler
# EKS Pod Identity needs nothing here. Then run
#   kubectl apply -f node-termination-handler.yaml
# Kubernetes 1.29 does not know ValidatingAdmissionPolicies: there it refuses these objects, and takes the others.
# Generated by make generate.
`
	headerOfFlowSchema = `# Optional: reserve a share of the API server for node-termination-handler. Then a storm of
# interruptions and load from other clients do not slow each other down.
#   kubectl apply -f flowschema.yaml
# Generated by make generate.
`
)

func TestTheManifestsAreTheChartWithItsDefaults(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	manifests := filepath.Join(root, "deploy", "manifests")
	args := []string{
		"template", "node-termination-handler", Chart(root), "--namespace=node-termination-handler",
		queue, Image,
	}
	toEdit := strings.NewReplacer(
		strings.TrimPrefix(queue, "--set=queueURL="), "https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE",
		strings.TrimPrefix(Image, "--set=image.repository="), "REGISTRY/NAME",
	)
	golden.Compare(t, filepath.Join(manifests, "node-termination-handler.yaml"),
		headerOfManifests+namespaceOfManifests+toEdit.Replace(plain(run(t, h, args...))))
	args = append(args, "--set=flowSchema.create=true", "--show-only=templates/flowschema.yaml")
	golden.Compare(t, filepath.Join(manifests, "flowschema.yaml"), headerOfFlowSchema+strings.TrimPrefix(plain(run(t, h, args...)), "---\n"))
}

func TestKustomizeSetsWhatAnInstallationNeedsInTheManifestsAndNothingElse(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	kubectl, err := BuildKubectl(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer("newName: REGISTRY/NAME", "newName: registry.example.com/nth", "REGION.amazonaws.com/ACCOUNT/QUEUE", "eu-west-1.amazonaws.com/123456789012/nth")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "manifests", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	dir, manifests := t.TempDir(), read("node-termination-handler.yaml")
	for name, text := range map[string]string{"node-termination-handler.yaml": manifests, "kustomization.yaml": own.Replace(read("kustomization.yaml"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := run(t, Helm{Program: kubectl, Home: h.Home}, "kustomize", dir)
	wanted := strings.ReplaceAll(own.Replace(manifests), "REGISTRY/NAME", "registry.example.com/nth")
	wanted = strings.Replace(wanted, "            - name: QUEUE_URL\n",
		"            - {name: DELETE_SQS_MSG_IF_NODE_NOT_FOUND, value: \"true\"}\n            - name: QUEUE_URL\n", 1)
	want := objects(t, wanted)
	anyOrder := cmpopts.SortSlices(func(a, b any) bool { return yamlOf(t, a) < yamlOf(t, b) }) // kustomize begins with the variable that it sets
	if diff := cmp.Diff(want, objects(t, built), anyOrder); diff != "" || len(want) < 10 {
		t.Errorf("%d objects (-want +got):\n%s", len(want), diff)
	}
}

// objects are those of some YAML, by kind and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		var whole any
		if err := errors.Join(yaml.Unmarshal([]byte(document), &object), yaml.Unmarshal([]byte(document), &whole)); err != nil {
			t.Fatal(err)
		}
		all[object.Kind+" "+object.Metadata.Name] = whole
	}
	return all
}

// plain is a rendered chart without what only Helm has a use for.
func plain(rendered string) string {
	var b strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(rendered)); lines.Scan(); {
		line := lines.Text()
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == "", strings.HasPrefix(line, "# Source: "):
		case strings.HasPrefix(trimmed, "helm.sh/chart: "), strings.HasPrefix(trimmed, "app.kubernetes.io/managed-by: "):
		default:
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
