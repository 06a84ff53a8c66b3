package docs

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The log is logr on zap, a drain asks kubectl's own library, and Kubernetes and AWS are asked by their own clients.
func TestWhatTheProgramStandsOn(t *testing.T) {
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/node-termination-handler").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"github.com/go-logr/zapr", "k8s.io/kubectl/pkg/drain", "k8s.io/client-go/kubernetes/typed/core/v1", "github.com/aws/aws-sdk-go-v2/service/sqs",
	} {
		if !slices.Contains(strings.Fields(string(deps)), name) {
			t.Errorf("the program does not compile %s", name)
		}
	}
}

// What is heavy is compiled by those that need it, and by who wires them.
func TestWhoCompilesWhat(t *testing.T) {
	const module = "github.com/node-termination-handler/node-termination-handler/"
	packages, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "../internal/...", "../cmd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	wirers := []string{"internal/app", "internal/tool", "cmd/node-termination-handler"}
	for heavy, by := range map[string][]string{
		"k8s.io/kubectl/":                      {"internal/drain", "internal/rehearsal"}, // which plays the plan of drain
		"github.com/prometheus/client_golang/": {"internal/telemetry"},
		module + "internal/controller":         {"internal/controller"},
		module + "internal/nodedrain":          {"internal/nodedrain", "internal/controller"},
	} {
		allowed := map[string]bool{}
		for _, p := range append(by, wirers...) {
			allowed[module+p] = true
		}
		found := 0
		for line := range strings.Lines(string(packages)) {
			name, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !strings.Contains(" "+deps, " "+heavy) {
				continue
			}
			if found++; !allowed[name] {
				t.Errorf("%s compiles %s, and only %s may", name, heavy, strings.Join(append(by, wirers...), ", "))
			}
		}
		if found == 0 {
			t.Errorf("nothing compiles %s: the test looks at nothing", heavy)
		}
	}
}

// A VPC without internet needs an endpoint for each service that the handler asks.
func TestEachServiceOfAWSHasItsEndpointInInstall(t *testing.T) {
	wires, err := os.ReadFile("../internal/app/awsclients.go")
	if err != nil {
		t.Fatal(err)
	}
	install, err := os.ReadFile("install.md")
	if err != nil {
		t.Fatal(err)
	}
	asks := regexp.MustCompile(`"github.com/aws/aws-sdk-go-v2/service/(\w+?)(v2)?"`).FindAllStringSubmatch(string(wires), -1)
	if len(asks) < 4 {
		t.Fatalf("services %q", asks)
	}
	for _, service := range asks {
		if !strings.Contains(string(install), "\n| `"+service[1]+"` |") {
			t.Errorf("install.md has no row for the endpoint of %s", service[1])
		}
	}
}
