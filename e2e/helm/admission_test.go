package helm

import (
	"slices"
	"strings"
	"testing"
)

func TestTheAdmissionPoliciesAreThoseThatTheModeAndTheClusterHaveAUseFor(t *testing.T) {
	h, root := program(t)
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"queue mode", []string{queue}, []string{"nodes", "pods", "events", "leases"}},
		{"IMDS mode", nil, []string{"nodes", "pods", "evictions", "events"}},
		{"large namespaces", []string{"--set=admissionPolicy.evictions=false"}, []string{"nodes", "pods", "events"}},
		{"rollouts", []string{queue, "--set=surgeSingletons=true"}, []string{"nodes", "pods", "deployments", "events", "leases"}},
		{"rollouts on the node", []string{"--set=extraEnv[0].name=SURGE_SINGLETONS,extraEnv[0].value=true"}, []string{"nodes", "pods", "evictions", "deployments", "events"}},
		{"no rollouts", []string{"--set=surgeSingletons=false"}, []string{"nodes", "pods", "evictions", "events"}},
		{"a ServiceAccount of one's own", []string{"--set=serviceAccount.create=false,serviceAccount.name=mine"}, []string{"nodes", "pods", "evictions", "events"}},
		{"the ServiceAccount of all pods", []string{"--set=serviceAccount.create=false"}, nil},
		{"turned off", []string{"--set=admissionPolicy.create=false"}, nil},
		{"an older cluster", []string{"--kube-version=1.29.15-eks-1a2b3c4"}, nil},
		{"the first that knows them", []string{"--kube-version=1.30.0-eks-1a2b3c4"}, []string{"nodes", "pods", "evictions", "events"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
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
