package helm

import (
	"encoding/xml"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// usual are the values for the usual clusters, which the chart brings.
var usual = map[string]struct {
	hostNetwork bool
	on, off     map[string]string // labels of nodes that the pods run on, and must not run on
	check       func(*options.Options) bool
}{
	"managed-node-groups.yaml": {
		on:    map[string]string{"eks.amazonaws.com/capacityType": "ON_DEMAND"},
		off:   map[string]string{"eks.amazonaws.com/capacityType": "SPOT"},
		check: func(o *options.Options) bool { return !o.CheckTag && o.DeleteIfNodeNotFound },
	},
	"auto-scaling-groups.yaml": {
		on:  map[string]string{"node.kubernetes.io/lifecycle": "on-demand"},
		off: map[string]string{"node.kubernetes.io/lifecycle": "spot"},
		check: func(o *options.Options) bool {
			return o.CheckTag && o.HeartbeatInterval > 0 && o.ExcludeFromLoadBalancers == decision.ExcludeEnding
		},
	},
	"karpenter.yaml": {
		on:    map[string]string{"eks.amazonaws.com/nodegroup": "system"},
		off:   map[string]string{"karpenter.sh/nodepool": "default"},
		check: func(o *options.Options) bool { return !o.CheckTag && o.DeleteIfNodeNotFound },
	},
	"kops.yaml": {
		hostNetwork: true,
		on:          map[string]string{"node-role.kubernetes.io/control-plane": ""},
		off:         map[string]string{"node-role.kubernetes.io/node": ""},
		check:       func(o *options.Options) bool { return !o.CheckTag && o.HeartbeatInterval > 0 },
	},
}

func TestTheValuesForTheUsualClustersInstall(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	files, err := filepath.Glob(filepath.Join(Chart(root), "values", "*"))
	if err != nil || len(files) != len(usual) {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			want, known := usual[filepath.Base(file)]
			if !known {
				t.Fatal("no test knows it")
			}
			r, err := render(t, h, Chart(root), "--values", file, queue, Image)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(r.notes, "WARNING") || strings.Contains(r.notes, "no effect") {
				t.Errorf("the notes are not without a warning:\n%s", r.notes)
			}
			pod := r.deployment.Spec.Template.Spec
			if pod.HostNetwork != want.hostNetwork {
				t.Errorf("network of the node: %v", pod.HostNetwork)
			}
			spec := r.deployment.Spec
			// The ports of two pods with the network of one node would meet.
			if update := spec.Strategy.RollingUpdate; want.hostNetwork && (*spec.Replicas > 1 || update == nil || update.MaxSurge.IntValue() > 0) {
				t.Errorf("%d replicas, and the strategy %+v", *spec.Replicas, spec.Strategy)
			}
			if !runsOn(pod, want.on) || runsOn(pod, want.off) {
				t.Errorf("the pods run on %v: %v; on %v: %v", want.on, runsOn(pod, want.on), want.off, runsOn(pod, want.off))
			}
			var environ []string
			for name, value := range r.environment() {
				environ = append(environ, name+"="+value)
			}
			o, err := options.Parse(nil, environ)
			if err != nil || len(o.Warnings) > 0 || !want.check(o) {
				t.Errorf("the options: %v, %v, %+v", err, o.Warnings, o)
			}
		})
	}
}

// runsOn reports whether the selector and the required affinity of the pod take a node with these labels.
func runsOn(pod corev1.PodSpec, labels map[string]string) bool {
	for key, value := range pod.NodeSelector {
		if got, has := labels[key]; key != corev1.LabelOSStable && (!has || got != value) {
			return false
		}
	}
	if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
		return true
	}
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		all := true
		for _, e := range term.MatchExpressions {
			value, has := labels[e.Key]
			in := has && slices.Contains(e.Values, value)
			switch e.Operator {
			case corev1.NodeSelectorOpNotIn:
				all = all && !in
			case corev1.NodeSelectorOpDoesNotExist:
				all = all && !has
			default:
				all = all && in
			}
		}
		if all {
			return true
		}
	}
	return false
}

// The scheduler scores a node by constraints only if it has the labels of all of them.
func TestTheReplicasAreKeptApartWhereNodesHaveNoZone(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	const own = "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey=own"
	for set, want := range map[string]string{
		"replicas=2": corev1.LabelHostname,
		"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1": corev1.LabelHostname,
		own: "own",
	} {
		r, err := render(t, h, Chart(root), queue, Image, "--set", set)
		if err != nil {
			t.Fatal(err)
		}
		pod := r.deployment.Spec.Template.Spec
		terms := pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		if len(terms) != 1 || terms[0].PodAffinityTerm.TopologyKey != want {
			t.Errorf("with %s they are kept apart by %+v, want by %s", set, terms, want)
		}
		if kept := pod.Affinity.NodeAffinity != nil; kept != strings.Contains(set, "nodeAffinity") {
			t.Errorf("with %s the affinity for nodes is %+v", set, pod.Affinity.NodeAffinity)
		}
		if c := pod.TopologySpreadConstraints; len(c) != 1 || c[0].TopologyKey != corev1.LabelTopologyZone {
			t.Errorf("with %s they are spread by %+v", set, c)
		}
	}
}

func TestPodsLeaveADeadNodeSoonAndNotTheNodeThatTheyDrain(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	const notReady, unreachable, own = "node.kubernetes.io/not-ready 30", "node.kubernetes.io/unreachable 30", "aws-node-termination-handler/"
	for _, tt := range []struct {
		name string
		set  string
		want []string // key and seconds
	}{
		{"the default", "replicas=2", []string{notReady, unreachable}},
		{"a taint that evicts nobody", "taintNode=true,taintEffect=NoSchedule", []string{notReady, unreachable}},
		{"an effect without a taint", "taintEffect=NoExecute", []string{notReady, unreachable}},
		{
			"a taint that evicts all", "taintNode=true,taintEffect=noexecute",
			[]string{
				notReady, unreachable, own + "spot-itn", own + "scheduled-maintenance",
				own + "asg-lifecycle-termination", own + "rebalance-recommendation",
				own + "capacity-reservation-interruption", own + "capacity-block-expiration", own + "instance-impaired",
			},
		},
		{
			"a taint that evicts all, by variables", "extraEnv[0].name=TAINT_NODE,extraEnv[0].value=\"true\",extraEnv[1].name=TAINT_EFFECT,extraEnv[1].value=NoExecute,tolerations[0].key=a,tolerations[0].operator=Exists",
			[]string{
				"a", notReady, unreachable, own + "spot-itn", own + "scheduled-maintenance",
				own + "asg-lifecycle-termination", own + "rebalance-recommendation",
				own + "capacity-reservation-interruption", own + "capacity-block-expiration", own + "instance-impaired",
			},
		},
		{
			"an own toleration for one of them", "tolerations[0].key=node.kubernetes.io/unreachable,tolerations[0].operator=Exists,tolerations[0].tolerationSeconds=120",
			[]string{"node.kubernetes.io/unreachable 120", notReady},
		},
		{"all taints are tolerated", "tolerations[0].operator=Exists,taintNode=true,taintEffect=NoExecute", []string{""}},
		{
			"all taints that keep pods away are tolerated", "tolerations[0].operator=Exists,tolerations[0].effect=NoSchedule",
			[]string{"", notReady, unreachable},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, h, Chart(root), queue, Image, "--set", tt.set)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, toleration := range r.deployment.Spec.Template.Spec.Tolerations {
				text := toleration.Key
				if s := toleration.TolerationSeconds; s != nil {
					text += " " + yamlOf(t, *s)
				}
				if strings.HasPrefix(text, own) && toleration.Effect != corev1.TaintEffectNoExecute {
					t.Errorf("%s is tolerated with the effect %q, so that pods come to the node", text, toleration.Effect)
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
		})
	}
}

// Flux and kustomize refuse an object with a key twice, and the API server a text for a number.
func TestLabelsAndProbesOfOnesOwnRenderObjectsThatEverybodyReads(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for _, mode := range [][]string{{queue}, {"--set=enableSqsTerminationDraining=false,enableProbesServer=true,enablePrometheusServer=true"}} {
		r, err := render(t, h, Chart(root), append(mode, Image,
			"--set=customLabels.app\\.kubernetes\\.io/part-of=platform,customLabels.app\\.kubernetes\\.io/name=other",
			"--set=podLabels.k8s-app=own,podLabels.app\\.kubernetes\\.io/instance=other,podMonitor.create=true,podMonitor.labels.helm\\.sh/chart=own",
			"--set-string=probes.initialDelaySeconds=30,probes.periodSeconds=,probes.httpGet.port=,probes.httpGet.path=")...)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(r.manifest, "\n---\n") {
			if _, err := yaml.YAMLToJSONStrict([]byte(document)); err != nil {
				t.Errorf("%v:\n%s", err, document)
			}
		}
		pod, own := r.deployment.Spec.Template, r.deployment.Labels
		if r.kinds["DaemonSet"] > 0 {
			pod, own = r.daemonSet.Spec.Template, r.daemonSet.Labels
		}
		if own["app.kubernetes.io/part-of"] != "platform" || own["app.kubernetes.io/name"] != "node-termination-handler" ||
			pod.Labels["k8s-app"] != "own" || pod.Labels["app.kubernetes.io/instance"] != "nth" || !strings.Contains(r.manifest, "helm.sh/chart: own") {
			t.Errorf("labels %v, of the pods %v", own, pod.Labels)
		}
		probe := pod.Spec.Containers[0].LivenessProbe
		if probe.InitialDelaySeconds != 30 || probe.PeriodSeconds != 0 || probe.HTTPGet.Path != "/healthz" || pod.Spec.Containers[0].Ports[0].ContainerPort != 8080 {
			t.Errorf("the probe is %+v", probe)
		}
	}
}

// The DaemonSet beside a Deployment has objects of its own, also where the name of the release is long.
func TestNoTwoObjectsHaveOneName(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	for length := 20; length <= 53; length++ {
		name := "--set=fullnameOverride=" + strings.Repeat("n", length+10)
		r, err := render(t, h, Chart(root), queue, Image, name, "--set=daemonset.create=true,policy.pods[0].name=a,policy.pods[0].leave=last")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for document := range strings.SplitSeq(r.manifest, "\n---\n") {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			key := o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
			if o.Kind != "" && seen[key] {
				t.Errorf("with a name of %d characters there are two of %s", length+10, key)
			}
			if seen[key] = true; len(o.Metadata.Name) > 63 && !strings.Contains(o.Metadata.Name, ".") {
				t.Errorf("%s has %d characters", key, len(o.Metadata.Name))
			}
		}
	}
}

// A Deployment on the network of the host, and the DaemonSet, which is there by itself, have the ports of one node.
func TestTheDeploymentAndTheDaemonSetFitOnOneNode(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	r, err := render(t, h, Chart(root), queue, Image, "--set=hostNetwork=true,daemonset.create=true,enablePrometheusServer=true,enableProbesServer=true,podMonitor.create=true",
		"--set=extraEnv[0].name=AWS_SECRET_ACCESS_KEY,extraEnv[0].value=secret,extraEnv[1].name=ENABLE_PROBES_SERVER", "--set-string=extraEnv[1].value=true")
	if err != nil {
		t.Fatal(err)
	}
	if ports := r.deployment.Spec.Template.Spec.Containers[0].Ports; len(ports) != 2 {
		t.Errorf("the Deployment has the ports %v", ports)
	}
	onNode := r.daemonSet.Spec.Template.Spec.Containers[0]
	if len(onNode.Ports) > 0 {
		t.Errorf("the DaemonSet has the ports %v", onNode.Ports)
	}
	for _, e := range onNode.Env {
		if e.Name == "AWS_SECRET_ACCESS_KEY" {
			t.Error("each node gets the keys")
		}
	}
	if u := r.deployment.Spec.Strategy.RollingUpdate; u == nil || u.MaxSurge.IntValue() != 0 || u.MaxUnavailable.IntValue() != 1 {
		t.Errorf("the strategy is %+v", r.deployment.Spec.Strategy)
	}
	_, monitor, _ := strings.Cut(r.manifest, "kind: PodMonitor")
	monitor, _, _ = strings.Cut(monitor, "\n---\n")
	if _, selector, found := strings.Cut(monitor, "selector:"); !found || strings.Contains(selector, "component") || !strings.Contains(monitor, "jobLabel: app.kubernetes.io/instance") {
		t.Errorf("the PodMonitor leaves out the DaemonSet:\n%s", monitor)
	}
}

func yamlOf(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestTheNetworkPolicyLetsThroughWhatTheValuesNeed(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	policy := func(t *testing.T, args ...string) networkingv1.NetworkPolicySpec {
		t.Helper()
		out := run(t, h, append([]string{
			"template", "nth", Chart(root), queue, Image, "--set=networkPolicy.create=true", "--show-only=templates/networkpolicy.yaml",
		}, args...)...)
		var p networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(out), &p); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return p.Spec
	}
	ports := func(rules []networkingv1.NetworkPolicyEgressRule) (open []string) {
		for _, rule := range rules {
			for _, p := range rule.Ports {
				if len(rule.To) == 0 && *p.Protocol == corev1.ProtocolTCP {
					open = append(open, p.Port.String())
				}
			}
		}
		return open
	}

	t.Run("the default", func(t *testing.T) {
		p := policy(t)
		if diff := cmp.Diff([]string{"53", "443", "6443"}, ports(p.Egress)); diff != "" {
			t.Errorf("ports (-want +got):\n%s", diff)
		}
		var cidrs []string
		for _, peer := range p.Egress[2].To {
			cidrs = append(cidrs, peer.IPBlock.CIDR)
		}
		if diff := cmp.Diff([]string{"169.254.170.23/32", "fd00:ec2::23/128", "169.254.169.254/32", "fd00:ec2::254/128"}, cidrs); diff != "" {
			t.Errorf("sources of credentials (-want +got):\n%s", diff)
		}
	})
	t.Run("IRSA, which needs no other source of credentials", func(t *testing.T) {
		p := policy(t, `--set=serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::123456789012:role/nth`)
		if diff := cmp.Diff([]string{"53", "443", "6443"}, ports(p.Egress)); diff != "" || len(p.Egress) != 2 {
			t.Errorf("%d rules, ports (-want +got):\n%s", len(p.Egress), diff)
		}
	})
	for _, tt := range []struct {
		name, set string
		want      []string
	}{
		{"a webhook", "webhookURL=https://hooks.example.com/a:80/b", nil},
		{"a webhook on a port", "webhookURL=https://hooks.example.com:8443/a", []string{"8443"}},
		{"a webhook without TLS", "webhookURL=http://hooks.example.com", []string{"80"}},
		{"a webhook with an address", "webhookURL=http://[fd00::1]:8080/a", []string{"8080"}},
		{"a proxy with a password", "webhookProxy=http://user:secret@proxy.example.com:3128", []string{"3128"}},
		{"a proxy", "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://proxy:3128,extraEnv[1].name=NO_PROXY,extraEnv[1].value=http://x:1", []string{"3128"}},
		{"a proxy without a scheme", "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=proxy.example.com:3128", []string{"3128"}},
		{"a proxy that is a host alone", "extraEnv[0].name=https_proxy,extraEnv[0].value=proxy", []string{"80"}},
		{"a proxy without a scheme, with a password", "extraEnv[0].name=HTTP_PROXY,extraEnv[0].value=user:8@proxy:3128", []string{"3128"}},
		{"a proxy that nobody substituted", "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=${PROXY}", nil},
		{"a proxy of SOCKS", "webhookProxy=socks5://proxy.example.com", []string{"1080"}},
		{"a proxy of SOCKS that resolves names", "extraEnv[0].name=ALL_PROXY,extraEnv[0].value=SOCKS5H://user:secret@proxy.example.com/", []string{"1080"}},
		{"a proxy of SOCKS on a port", "webhookProxy=socks5://proxy.example.com:9050", []string{"9050"}},
		{"an endpoint of AWS", "awsEndpoint=http://localstack:4566,webhookProxy=http://b:4566", []string{"4566"}},
		{"what nobody substituted", "webhookURL=${URL}", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(append([]string{"53", "443", "6443"}, tt.want...), ports(policy(t, "--set", tt.set).Egress)); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("narrowed", func(t *testing.T) {
		p := policy(t, "--set=networkPolicy.egressTo[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.dnsTo[0].namespaceSelector.matchLabels.a=b",
			"--set=networkPolicy.ingressFrom[0].namespaceSelector.matchLabels.a=b", "--set=networkPolicy.egress[0].ports[0].port=444,networkPolicy.egress[0].ports[0].protocol=TCP")
		if diff := cmp.Diff([]string{"444"}, ports(p.Egress)); diff != "" {
			t.Errorf("ports that are open to all (-want +got):\n%s", diff)
		}
		if len(p.Ingress) != 1 || len(p.Ingress[0].From) != 1 || p.Egress[1].To[0].IPBlock.CIDR != "10.0.0.0/8" || p.Egress[0].To[0].NamespaceSelector == nil {
			t.Errorf("it is not narrowed: %+v", p)
		}
	})
}

func TestObjectsOfTwoNamespacesDoNotMeet(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	names := map[string]string{}
	for _, namespace := range []string{"blue", "green"} {
		out := run(t, h, "template", "nth", Chart(root), queue, Image, "--namespace", namespace, "--set=flowSchema.create=true")
		cluster := 0
		for document := range strings.SplitSeq(out, "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatal(err)
			}
			if object.Metadata.Namespace != "" {
				continue
			}
			cluster++
			id := object.Kind + " " + object.Metadata.Name
			if other, taken := names[id]; taken {
				t.Errorf("%s is in %s and %s", id, other, namespace)
			}
			names[id] = namespace
		}
		if cluster != 16 {
			t.Errorf("%d objects without a namespace in %s", cluster, namespace)
		}
	}
}

// readChart reads Chart.yaml, and returns the root of the tree.
func readChart(t *testing.T, chart any) (root string) {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(Chart(root), "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, chart); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestTheDocsNameTheVersionOfTheChart(t *testing.T) {
	t.Parallel()
	var chart struct{ Version, AppVersion string }
	root := readChart(t, &chart)
	if chart.Version != chart.AppVersion {
		t.Errorf("the chart is %s, its program %s", chart.Version, chart.AppVersion)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, filepath.Join(root, "README.md"), filepath.Join(Chart(root), "README.md"))
	named := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:\btag: |\b(?:TAG|VERSION|image\.tag)=|/node-termination-handler:)"?v?(\d+\.\d+\.\d+[\w.-]*)`).FindAllStringSubmatch(string(text), -1) {
			named++
			if m[1] != chart.Version {
				t.Errorf("%s names the version %s, the chart is %s", page, m[1], chart.Version)
			}
		}
	}
	if named < 3 {
		t.Errorf("only %d versions were found", named)
	}
}

func TestTheIconOfTheChartIsAPictureOfThisTree(t *testing.T) {
	t.Parallel()
	var chart struct{ Home, Icon string }
	root := readChart(t, &chart)
	home, err := url.Parse(chart.Home)
	if err != nil {
		t.Fatal(err)
	}
	path, inTree := strings.CutPrefix(chart.Icon, "https://raw.githubusercontent.com"+home.Path+"/main/")
	if !inTree {
		t.Fatalf("the icon is %s", chart.Icon)
	}
	file, err := os.Open(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	elements := 0
	for decoder := xml.NewDecoder(file); ; elements++ {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if elements < 10 {
		t.Errorf("%d elements", elements)
	}
}
