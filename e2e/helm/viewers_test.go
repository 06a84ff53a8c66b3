package helm

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const viewers = `rbac.viewers=[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"on-call"}]`

func TestWhoMayLookIsNobodyUnlessTheValuesSaySo(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for name, test := range map[string]struct {
		args        []string
		roles, lets int // roles of viewers, and those that let them ask the leader
	}{
		"by default":             {[]string{queue}, 0, 0},
		"queue mode":             {[]string{queue, "--set-json=" + viewers}, 4, 1},
		"IMDS mode":              {[]string{"--set-json=" + viewers}, 2, 0},
		"both":                   {[]string{queue, "--set-json=" + viewers, "--set=daemonset.create=true"}, 4, 1},
		"rights made by hand":    {[]string{queue, "--set-json=" + viewers, "--set=rbac.create=false"}, 4, 1},
		"values of an older one": {[]string{queue, "--set-json=rbac=null"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := h.Run(t.Context(), append([]string{"template", "nth", Chart(root), "--namespace=nth", Image}, test.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			roles, lets := 0, 0
			for object := range strings.SplitSeq(out, "\n---\n") {
				if strings.Contains(object, "\n  name: nth-node-termination-handler-viewer") {
					roles++
				}
				if strings.Contains(object, "pods/proxy") {
					lets++
				}
			}
			if roles != test.roles || lets != test.lets {
				t.Errorf("%d objects for viewers, %d with pods/proxy", roles, lets)
			}
		})
	}
}

// Without a queue the options of lifecycle hooks count if the leader looks for hooks, by whichever way it is told to.
func TestOptionsOfHooksCountWithoutAQueueWhereItLooksForHooks(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for set, want := range map[string]bool{
		"": false, ",sweepInterval=-1": false, ",sweepInterval=30": true,
		",extraEnv[0].name=SWEEP_INTERVAL,extraEnv[0].value=30":                            true,
		",extraEnv[0].name=SWEEP_INTERVAL,extraEnv[0].valueFrom.configMapKeyRef.key=sweep": true,
	} {
		r, err := render(t, h, Chart(root), Image, "--set", "queueURL=none,heartbeatInterval=60"+set)
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(r.deployment.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool {
			return e.Name == "HEARTBEAT_INTERVAL" && e.Value == "60"
		})
		if got != want {
			t.Errorf("with %q the heartbeats count: %t, want %t", set, got, want)
		}
	}
}

func TestPodsThatOnlyReportMayReadNoPods(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for reports, want := range map[string]struct{ rules, policies int }{"true": {1, 1}, "false": {6, 6}} {
		out, err := h.Run(t.Context(), "template", "nth", Chart(root), "--namespace=nth", Image, "--set=queueURL=none,reportOnly="+reports)
		if err != nil {
			t.Fatal(err)
		}
		rules, policies := 0, 0
		for object := range strings.SplitSeq(out, "\n---\n") {
			if !strings.Contains(object, "\n  name: nth-node-termination-handler-node.") {
				continue
			}
			if strings.Contains(object, "kind: ClusterRole\n") {
				rules += strings.Count(object, "resources: ")
			}
			policies += strings.Count(object, "kind: ValidatingAdmissionPolicy\n")
		}
		if rules != want.rules || policies != want.policies {
			t.Errorf("reportOnly=%s: %d rules, %d policies", reports, rules, policies)
		}
	}
}
