package helm

import (
	"slices"
	"strings"
	"testing"
)

func TestTheAdmissionPoliciesAreThoseThatTheModeAndTheClusterHaveAUseFor(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"queue mode", []string{queue}, []string{"nodes", "pods", "conditions", "nodeconditions", "events", "leases"}},
		{"IMDS mode", nil, []string{"nodes", "pods", "conditions", "evictions", "nodeconditions", "events"}},
		{"large namespaces", []string{"--set=admissionPolicy.evictions=false"}, []string{"nodes", "pods", "conditions", "nodeconditions", "events"}},
		{"rollouts", []string{queue, "--set=surgeSingletons=true"}, []string{"nodes", "pods", "conditions", "deployments", "nodeconditions", "events", "leases"}},
		{"rollouts on the node", []string{"--set=extraEnv[0].name=SURGE_SINGLETONS,extraEnv[0].value=true"}, []string{"nodes", "pods", "conditions", "evictions", "deployments", "nodeconditions", "events"}},
		{"no conditions", []string{queue, "--set=nodeConditions=false"}, []string{"nodes", "pods", "conditions", "events", "leases"}},
		{"no rollouts", []string{"--set=surgeSingletons=false"}, []string{"nodes", "pods", "conditions", "evictions", "nodeconditions", "events"}},
		{"a ServiceAccount of one's own", []string{"--set=serviceAccount.create=false,serviceAccount.name=mine"}, []string{"nodes", "pods", "conditions", "evictions", "nodeconditions", "events"}},
		{"the ServiceAccount of all pods", []string{"--set=serviceAccount.create=false"}, nil},
		{"turned off", []string{"--set=admissionPolicy.create=false"}, nil},
		{"an older cluster", []string{"--kube-version=1.29.15-eks-1a2b3c4"}, nil},
		{"the first that knows them", []string{"--kube-version=1.30.0-eks-1a2b3c4"}, []string{"nodes", "pods", "conditions", "evictions", "nodeconditions", "events"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			manifest := run(t, h, append([]string{"template", "nth", Chart(root), "--namespace=home", Image}, tt.args...)...)
			var policies, bound []string
			for document := range strings.SplitSeq(manifest, "\n---\n") {
				_, rest, _ := strings.Cut(document, "\n  name: nth-node-termination-handler.home.")
				kind, _, _ := strings.Cut(rest, "\n")
				switch {
				case strings.Contains(document, "\nkind: ValidatingAdmissionPolicyBinding\n"):
					bound = append(bound, kind)
				case strings.Contains(document, "\nkind: ValidatingAdmissionPolicy\n"):
					policies = append(policies, kind)
				}
			}
			if !slices.Equal(policies, tt.want) || !slices.Equal(bound, tt.want) {
				t.Errorf("policies %q, bindings %q, want %q", policies, bound, tt.want)
			}
		})
	}
}

// Whether the handler adds the taint decides whether it may. In IMDS mode it never does.
func TestTheOutOfServiceTaintIsAllowedWithItsOptionOnly(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, tt := range []struct {
		name string
		args []string
		want string // empty: there is no such variable
	}{
		{"queue mode", []string{queue}, "false"},
		{"with the option", []string{queue, "--set=enableOutOfServiceTaint=true"}, "true"},
		{"turned on by a variable", []string{queue, "--set-string=extraEnv[0].name=ENABLE_OUT_OF_SERVICE_TAINT,extraEnv[0].value=true"}, "true"},
		{"turned off", []string{queue, "--set=enableOutOfServiceTaint=false"}, "false"},
		{"IMDS mode", []string{"--set=enableOutOfServiceTaint=true"}, ""},
	} {
		manifest := run(t, h, append([]string{"template", "nth", Chart(root), "--namespace=home", Image}, tt.args...)...)
		_, rest, found := strings.Cut(manifest, `- {name: outOfService, expression: "`)
		got, _, _ := strings.Cut(rest, `"}`)
		if got != tt.want || !found && strings.Contains(manifest, "node.kubernetes.io/out-of-service\"") {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// In IMDS mode the right is about all nodes, so it is granted only with the policy that limits it to one.
func TestTheRightToWriteConditionsOfNodesFollowsItsOptionAndItsPolicy(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, tt := range []struct {
		name string
		args []string
		want bool
	}{
		{"queue mode", []string{queue}, true},
		{"queue mode, without policies", []string{queue, "--set=admissionPolicy.create=false"}, true},
		{"queue mode, turned off", []string{queue, "--set=nodeConditions=false"}, false},
		{"turned off by a variable", []string{queue, "--set-string=extraEnv[0].name=NODE_CONDITIONS,extraEnv[0].value=false"}, false},
		{"IMDS mode", nil, true},
		{"IMDS mode, turned off", []string{"--set=nodeConditions=false"}, false},
		{"IMDS mode, without policies", []string{"--set=admissionPolicy.create=false"}, false},
		{"IMDS mode, on an older cluster", []string{"--kube-version=1.29.15"}, false},
	} {
		manifest := run(t, h, append([]string{"template", "nth", Chart(root), "--namespace=home", Image}, tt.args...)...)
		if got := strings.Contains(manifest, "\n    resources: [nodes/status]\n    verbs: [patch]\n"); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
