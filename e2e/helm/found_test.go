package helm

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

const (
	nthValues = "../testdata/nth-chart/values.yaml" // all of NTH's chart, with their defaults
	noImage   = "--set=image.repository="
	queueOfOn = "--set=enableSqsTerminationDraining=true,queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth"
)

// The values that people have for NTH, by how they are written, and what the chart makes of them. Values
// that install give pods with probes and without the network of the node, and an environment that the
// program takes.
func TestTheValuesThatPeopleHaveInstallOrAreRefusedInWords(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	imds := filepath.Join("testdata", "values", "imds-spot-daemonset.yaml")
	rows := []struct {
		name  string
		files []string          // in testdata/found, unless they have a folder
		args  []string          // of Helm; the image comes before them
		says  string            // the refusal, in parts separated by " & "; empty: it installs
		start string            // what the program says about the environment; empty: it takes it
		notes []string          // what Helm prints
		quiet []string          // what it does not print
		env   map[string]string // in the container
		body  string            // why the webhook's body is no JSON; empty: it is
		tag   string            // what the tag of the image begins with; empty: the version of the chart does
		none  []string          // kinds that are not made
		imds  bool              // a DaemonSet
		// A DaemonSet for Windows alone.
		windows bool
	}{
		{
			name: "IMDS mode beside Karpenter", files: []string{imds}, imds: true,
			env: map[string]string{
				"ENABLE_REBALANCE_DRAINING": "true", "ENABLE_SQS_TERMINATION_DRAINING": "false", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND": "",
			},
			notes: []string{"That is so because queueURL is not set", "deleteSqsMsgIfNodeNotFound: this handler runs in IMDS mode", "rollout status daemonset/"},
		},
		{
			name: "IMDS mode beside Karpenter, with a queue", files: []string{imds}, args: []string{queue},
			notes: []string{
				"NTH ran this file in IMDS mode", "enableSpotInterruptionDraining: this handler runs in queue mode", "daemonsetAffinity: there is no DaemonSet",
				"the pods run on spot instances", "nodeSelector karpenter.sh/capacity-type: spot",
			},
		},
		{
			name: "queue mode without Auto Scaling groups", files: []string{"../values/queue-karpenter-non-asg.yaml"},
			env:   map[string]string{"CHECK_ASG_TAG_BEFORE_DRAINING": "false"},
			notes: []string{"assumeAsgTagPropagation: the tag is always read from the instance", "checkASGTagBeforeDraining: false, the older name of checkTagBeforeDraining"},
		},
		{
			name: "IMDS mode with Slack, with a queue", files: []string{"imds-slack.yaml"}, args: []string{queue},
			notes: []string{"daemonsetNodeSelector: there is no DaemonSet", "resources.limits.cpu: 100m", "resources.limits.memory: 100Mi"},
			body:  `line 1, column 31: invalid character '\n' in string literal`,
		},
		{name: "a node selector alone", args: []string{"--set=nodeSelector.lifecycle=Ec2Spot"}, imds: true, notes: []string{"That is so because queueURL is not set"}},
		{
			name: "a node selector and a queue", args: []string{"--set=nodeSelector.lifecycle=Ec2Spot", queue},
			notes: []string{"nodeSelector lifecycle: Ec2Spot"},
		},

		{
			name: "both monitors", args: []string{queue, "--set=podMonitor.create=true,serviceMonitor.create=true"},
			notes: []string{"podMonitor and serviceMonitor: Prometheus reads each sample twice"},
		},
		{
			name: "a proxy for all requests", args: []string{queue, "--set=extraEnv[0].name=https_proxy,extraEnv[0].value=http://proxy:3128"},
			notes: []string{"extraEnv has https_proxy and no NO_PROXY"}, env: map[string]string{"https_proxy": "http://proxy:3128"},
		},
		{
			name: "a proxy, but not for the API server", args: []string{
				queue, "--set=extraEnv[0].name=https_proxy,extraEnv[0].value=http://proxy:3128,extraEnv[1].name=no_proxy,extraEnv[1].value=10.0.0.1",
			},
			quiet: []string{"NO_PROXY"}, env: map[string]string{"no_proxy": "10.0.0.1"},
		},
		{
			name: "limits below the requests of the chart", args: []string{queue, "--set=resources.limits.cpu=20m,resources.limits.memory=50Mi"},
			notes: []string{"resources.limits.memory: 50Mi"},
		},
		{
			name: "rollouts without the policies that limit them", args: []string{queue, "--set=surgeSingletons=true,admissionPolicy.create=false"},
			notes: []string{"the ServiceAccount may patch every Deployment"}, env: map[string]string{"SURGE_SINGLETONS": "true"},
		},

		{
			name: "all values of NTH", files: []string{nthValues}, imds: true, notes: []string{"windowsTolerations: targetNodeOs does not name windows"},
			env: map[string]string{"WORKERS": "", "ENABLE_ASG_LIFECYCLE_DRAINING": "true", "ENABLE_PROMETHEUS_SERVER": "false", "ENABLE_PROBES_SERVER": "false", "ENABLE_REBALANCE_DRAINING": "false"},
		},
		{
			name: "all values of NTH, edited for queue mode", files: []string{nthValues, "nth-queue-edited.yaml"},
			notes: []string{"useHostNetwork: as in the queue mode of NTH's chart", "enableProbesServer: as in the queue mode of NTH's chart"},
			env:   map[string]string{"WORKERS": "10", "ENABLE_PROMETHEUS_SERVER": "false", "ENABLE_PROBES_SERVER": ""},
			none:  []string{"Service", "PodDisruptionBudget"},
		},
		{
			name: "all values of NTH, edited, with NTH's image", files: []string{nthValues, "nth-queue-edited.yaml"},
			args: []string{"--set=image.repository=public.ecr.aws/aws-ec2/aws-node-termination-handler"},
			says: "image.repository is public.ecr.aws/aws-ec2/aws-node-termination-handler, the image of AWS Node Termination Handler",
		},
		{name: "NTH's example of queue mode", files: []string{"nth-example-queue.yaml"}, env: map[string]string{"CHECK_TAG_BEFORE_DRAINING": "false"}},
		{name: "NTH's example of IMDS mode", files: []string{"nth-example-imds-linux.yaml"}, imds: true},
		{name: "NTH's example for Windows", files: []string{"nth-example-imds-windows.yaml"}, windows: true, notes: []string{"rollout status daemonset/nth-node-termination-handler-win", "HostProcess pods"}},

		{name: "a guide of best practices", files: []string{"eks-best-practices.yaml"}},
		{name: "Karpenter and NTH", files: []string{"karpenter-with-nth.yaml"}, env: map[string]string{"AWS_REGION": "ap-southeast-1"}},
		{
			name: "add-ons by Terraform", args: []string{
				"--set=serviceAccount.name=aws-node-termination-handler-sa,awsRegion=us-west-2,enableSqsTerminationDraining=true",
				"--set=queueURL=https://sqs.us-west-2.amazonaws.com/123456789012/addons",
				"--set=serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=arn:aws:iam::123456789012:role/nth",
			},
			notes: []string{"The pods use the ServiceAccount aws-node-termination-handler-sa.", "IRSA gives them the role"},
		},
		{
			name: "a module's example by Terraform", args: []string{
				"--set=awsRegion=eu-west-1,serviceAccount.name=aws-node-termination-handler,enableSqsTerminationDraining=true",
				"--set=enableSpotInterruptionDraining=true,queueURL=https://sqs.eu-west-1.amazonaws.com/123456789012/refresh,logLevel=debug",
			},
			env: map[string]string{"LOG_LEVEL": "debug"},
		},
		{
			name: "a fork of that module", args: []string{queueOfOn, "--set=rbac.serviceAccount.create=true,rbac.serviceAccount.name=nth"},
			says: "additional properties 'serviceAccount' not allowed",
		},
		{
			name: "a course, as a list", args: []string{
				queueOfOn, "--set=awsRegion=us-east-1", "--set=checkTagBeforeDraining=false",
				"--set=deleteSqsMsgIfNodeNotFound=true", "--set=checkASGTagBeforeDraining=false",
			},
			env: map[string]string{"CHECK_TAG_BEFORE_DRAINING": "false", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND": "true"},
		},
		{name: "a course, with a mode", args: []string{queueOfOn, "--set=mode=queue"}, says: "additional properties 'mode' not allowed"},
		{name: "an object of a program", files: []string{"gitops-blueprint.yaml"}, none: []string{"ServiceAccount"}},
		{
			name: "a template of blocks", files: []string{"blocks-template.yaml"},
			env: map[string]string{"PROMETHEUS_SERVER_PORT": "9092", "WEBHOOK_URL": "https://hooks.slack.example.com/services/T/B/X"},
		},
		{
			name: "texts alone", files: []string{"all-texts.yaml"},
			env: map[string]string{"POD_TERMINATION_GRACE_PERIOD": "-1", "CHECK_TAG_BEFORE_DRAINING": "false", "WORKERS": "10"},
		},
		{
			name: "type auto and type string", args: []string{
				queueOfOn, "--set-string=enablePrometheusServer=true,workers=5,prometheusServerPort=9092", "--set=taintNode=true",
				`--set=webhookTemplate=\{"text":"\{\{ .NodeName \}\}"\}`, "--set=webhookURL=https://chat.example.com/v1/spaces/A/messages?key=k",
			},
			env: map[string]string{"WORKERS": "5", "WEBHOOK_TEMPLATE": `{"text":"{{ .NodeName }}"}`},
		},
		{
			name: "an annotation that is a number", args: []string{queueOfOn, `--set=podAnnotations.prometheus\.io/port=9092`},
			says: "at '/podAnnotations/prometheus.io~1port': got number, want string",
		},
		{name: "an annotation that is a text", args: []string{queueOfOn, `--set-string=podAnnotations.prometheus\.io/port=9092`}},
		{
			name: "tostring() everywhere", args: []string{
				"--set-string=enableSqsTerminationDraining=true,checkTagBeforeDraining=true,enableSpotInterruptionDraining=true",
				"--set-string=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/demo,nodeTerminationGracePeriod=600",
			},
			env: map[string]string{"NODE_TERMINATION_GRACE_PERIOD": "600"},
		},
		{name: "both names of the check", files: []string{"no-checks.yaml"}, env: map[string]string{"CHECK_ASG_TAG_BEFORE_DRAINING": "false"}},

		{
			name: "a part of a larger chart", files: []string{"addon-of-a-platform.yaml"},
			notes: []string{"rbac.pspEnabled", "metadataTries"}, env: map[string]string{"MANAGED_TAG": "platform/managed"},
		},
		{name: "an application of Argo CD", files: []string{"subchart-argocd.yaml"}, args: []string{queue}},
		{name: "a catalogue of profiles", files: []string{"subchart-profile.yaml"}, args: []string{queue}},
		{name: "all values of NTH, with a webhook", files: []string{nthValues}, args: []string{"--set=webhookURL=https://hooks.example.com/"}, imds: true},
		{
			name: "an application of a vendor", files: []string{"app-of-a-vendor.yaml"}, args: []string{queue},
			says: "at '/image': additional properties & 'name' & 'registry'",
		},
		{
			name: "an application of a vendor, without its image", files: []string{"app-of-a-vendor-image.yaml"}, args: []string{queue},
			notes: []string{"enableProbesServer", "useHostNetwork", "resources.limits.cpu: 100m"},
		},
		{
			name: "numbers for booleans", files: []string{"numbers-for-booleans.yaml"}, args: []string{"--set=prometheusRule.create=true"},
			env:   map[string]string{"ENABLE_PROMETHEUS_SERVER": "0", "TAINT_NODE": "1"},
			notes: []string{"podMonitor.create: enablePrometheusServer is false, so there are no metrics"},
			none:  []string{"Service", "PodMonitor", "ServiceMonitor", "PrometheusRule"},
		},
		{
			name: "jsonencode, and small limits", files: []string{"jsonencode-small.yaml"},
			notes: []string{"resources.limits.cpu: 50m", "resources.limits.memory: 50Mi"},
		},
		{name: "a HelmChart of k3s", files: []string{"k3s-helmchart.yaml"}, imds: true},
		{
			name: "a HelmChart of k3s, with a queue", files: []string{"k3s-helmchart.yaml"}, args: []string{queue},
			notes: []string{"nodeSelector node.kubernetes.io/lifecycle: spot"},
		},
		{
			name: "a HelmChart of k3s, of an old release", args: []string{queueOfOn, "--set=metadataCheckIntervalInSeconds=1"},
			says: "additional properties 'metadataCheckIntervalInSeconds' not allowed",
		},
		{name: "a package of Zarf", files: []string{"zarf.yaml"}, env: map[string]string{"AWS_REGION": "us-gov-west-1"}},
		{
			name: "keys with dots", files: []string{"dotted-keys.yaml"},
			says: "additional properties & 'serviceAccount.create' & 'serviceAccount.name'",
		},
		{
			name: "kOps' spelling", files: []string{"kops-spelling.yaml"},
			says: "additional properties 'enableSQSTerminationDraining' not allowed",
		},
		{name: "a value to force an upgrade", args: []string{queueOfOn, "--set=fake=1718000000"}, says: "additional properties 'fake' not allowed"},
		{
			name: "NTH's tag in a mirror", args: []string{queueOfOn, noImage + "registry.example.com/vendor/aws-node-termination-handler", "--set=image.tag=v1.19.0"},
			says: "image.tag is v1.19.0, a tag of the image of AWS Node Termination Handler",
		},
		{name: "NTH's tag, with a repository of one's own", args: []string{queueOfOn, "--set=image.tag=v1.5.0"}, tag: "v1.5.0"},
		{name: "metrics on any port", args: []string{queueOfOn, "--set=prometheusServerPort=0"}, says: "prometheusServerPort is 0 & enablePrometheusServer=false"},
		{name: "metrics on any port, as text", args: []string{queueOfOn, "--set-string=prometheusServerPort=0"}, says: "prometheusServerPort is 0"},
		{name: "no metrics, on any port", args: []string{queueOfOn, "--set=prometheusServerPort=0,enablePrometheusServer=false"}, env: map[string]string{"PROMETHEUS_SERVER_PORT": "0"}},
		{name: "probes that no kubelet reaches", args: []string{queueOfOn, "--set-string=bindAddress=127.0.0.1\\, ::1"}, says: "bindAddress is 127.0.0.1, ::1 & turn the probes off"},
		{name: "probes that a kubelet reaches, too", args: []string{queueOfOn, "--set-string=bindAddress=127.0.0.1\\,10.0.0.1,allowedHosts=nth.example.com"}, env: map[string]string{"BIND_ADDRESS": "127.0.0.1,10.0.0.1", "ALLOWED_HOSTS": "nth.example.com"}},
		{name: "probes on any port", args: []string{queueOfOn, "--set=probes.httpGet.port=0"}, says: "probes.httpGet.port is 0"},
		{name: "NTH's tag", args: []string{queueOfOn, noImage, "--set=image.tag=v1.5.0"}, says: "image.tag is v1.5.0, a tag of the image of AWS Node Termination Handler"},
		{
			name: "a variable that nobody substituted", files: []string{"not-substituted.yaml"},
			start: "webhook-url: (secret, 20 characters) (from WEBHOOK_URL) does not start with http:// or https://",
		},
		{
			name: "an account of nine digits", args: []string{"--set=queueURL=https://sqs.ap-southeast-1.amazonaws.com/123456789/nth"},
			says: "with an account of 12 digits",
		},
		{name: "the environment of kOps' add-on", files: []string{"kops-addon.yaml"}, none: []string{"Service"}, start: `queue-url: "cluster-example-com-nth" (from QUEUE_URL) does not start with http:// or https://`},
		{
			name: "an old release of NTH", files: []string{"nth-0.13.yaml"},
			says: "additional properties & 'gracePeriod' & 'nodeSelectorTermsArch' & 'nodeSelectorTermsOs'",
		},

		// Forms of --set.
		{
			name: "numbers as texts", args: []string{queueOfOn, "--set-string=workers=10", "--set=replicas=3,managedTag=12345"},
			env: map[string]string{"WORKERS": "10", "MANAGED_TAG": "12345"},
		},
		{name: "nothing", args: []string{queueOfOn, "--set=workers=,heartbeatInterval=null,resources=null,networkPolicy=null,serviceAccount=null"}},
		{
			name: "headers with escapes", args: []string{queueOfOn, `--set=webhookHeaders=\{"Content-type":"application/json"\,"X-Team":"a"\}`},
			env: map[string]string{"WEBHOOK_HEADERS": `{"Content-type":"application/json","X-Team":"a"}`},
		},
		{name: "headers without escapes", args: []string{queueOfOn, `--set=webhookHeaders={"Content-type":"application/json"}`}, says: "at '/webhookHeaders': got array, want null or number or string"},
		{name: "a group switched by a text", args: []string{queueOfOn, "--set-string=serviceAccount.create=false"}, says: "at '/serviceAccount/create'"},
		{name: "the node's network by a text", args: []string{queueOfOn, "--set-string=useHostNetwork=false"}, notes: []string{"useHostNetwork"}},
		{name: "variables as an object", args: []string{queueOfOn, "--set=extraEnv.FOO=bar"}, says: "at '/extraEnv': got object, want null or array"},
		{name: "yes", args: []string{queueOfOn, "--set=taintNode=yes"}, says: "value must be one of 'true', 'false', 1, 0"},
		{name: "Info", args: []string{queueOfOn, "--set=logLevel=Info"}, env: map[string]string{"LOG_LEVEL": "Info"}},
		{name: "warning", args: []string{queueOfOn, "--set=logLevel=warning"}, says: "at '/logLevel': "},
		{name: "another port for the probes in the environment", args: []string{queueOfOn, "--set=extraEnv[0].name=PROBES_SERVER_PORT", "--set-string=extraEnv[0].value=8081"}, says: "extraEnv has PROBES_SERVER_PORT"},
		{name: "one port for two servers", args: []string{queueOfOn, "--set=prometheusServerPort=8080"}, says: "are both 8080"},
		{name: "no kind for the DaemonSet beside the queue", args: []string{queueOfOn, "--set=daemonset.create=true,enableSpotInterruptionDraining=false,enableScheduledEventDraining=false"}, says: "turn off every kind of notice"},
		{name: "a selector that is a boolean", args: []string{queueOfOn, "--set=nodeSelector.spot=true"}, says: "at '/nodeSelector/spot': got boolean, want string"},
	}
	used := map[string]bool{}
	for _, tt := range rows {
		args := []string{Image}
		for _, file := range tt.files {
			if filepath.Base(file) == file {
				used[file] = true
				file = filepath.Join("testdata", "found", file)
			} else if strings.HasPrefix(file, "../values/") {
				file = filepath.Join("testdata", "found", file)
			}
			args = append(args, "--values", file)
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, h, Chart(root), append(args, tt.args...)...)
			if tt.says != "" {
				for part := range strings.SplitSeq(tt.says, " & ") { // the schema's validator names keys in any order
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("got %v, want that %q", err, part)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.windows:
				if r.kinds["DaemonSet"] != 1 || r.windows.Name == "" {
					t.Errorf("there are %v:\n%s", r.kinds, r.manifest)
				}
			case tt.imds:
				r.installsOnNodes(t)
			default:
				r.installsWell(t, cmp.Or(tt.tag, "0."))
			}
			for _, text := range tt.notes {
				if !strings.Contains(r.notes, text) {
					t.Errorf("the notes do not say %q:\n%s", text, r.notes)
				}
			}
			for _, text := range tt.quiet {
				if strings.Contains(r.notes, text) {
					t.Errorf("the notes say %q:\n%s", text, r.notes)
				}
			}
			env := r.environment()
			for name, want := range tt.env {
				if got := env[name]; got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			for _, kind := range tt.none {
				if r.kinds[kind] > 0 {
					t.Errorf("there is a %s", kind)
				}
			}
			r.starts(t, tt.start, tt.body)
		})
	}
	files, err := filepath.Glob("testdata/found/*")
	if err != nil || len(files) != len(used) {
		t.Errorf("%d files in testdata/found, of which %d are used, %v", len(files), len(used), err)
	}
}

// A rendered is what Helm would install.
type rendered struct {
	manifest, notes string
	deployment      appsv1.Deployment
	daemonSet       appsv1.DaemonSet // for Linux
	windows         appsv1.DaemonSet
	secret          corev1.Secret
	kinds           map[string]int
}

// render returns what an installation in the namespace nodes would be. The error is Helm's.
func render(t *testing.T, h Helm, chart string, args ...string) (*rendered, error) {
	t.Helper()
	out, err := h.Run(t.Context(), append([]string{"install", "nth", chart, "--namespace=nodes", "--dry-run=client", "--output=json"}, args...)...)
	if err != nil {
		return nil, err
	}
	var release struct {
		Manifest string
		Info     struct{ Notes string }
	}
	if err := json.Unmarshal([]byte(out), &release); err != nil {
		t.Fatal(err)
	}
	r := &rendered{manifest: release.Manifest, notes: release.Info.Notes, kinds: map[string]int{}}
	for document := range strings.SplitSeq(release.Manifest, "\n---\n") {
		var object struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		r.kinds[object.Kind]++
		var into any
		switch object.Kind {
		case "Deployment":
			into = &r.deployment
		case "DaemonSet":
			into = &r.daemonSet
			if strings.Contains(document, "\n  name: nth-node-termination-handler-win\n") {
				into = &r.windows
			}
		case "Secret":
			into = &r.secret
		default:
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
	}
	return r, nil
}

// installsWell expects what is so with all values that install.
func (r *rendered) installsWell(t *testing.T, tag string) {
	t.Helper()
	if r.kinds["Deployment"] != 1 {
		t.Fatalf("there is no Deployment:\n%s", r.manifest)
	}
	pod := r.deployment.Spec.Template.Spec
	container := pod.Containers[0]
	if pod.HostNetwork {
		t.Error("the pods have the network of the node")
	}
	if container.LivenessProbe == nil || container.ReadinessProbe == nil {
		t.Error("the pods have no probes")
	}
	if !strings.HasPrefix(container.Image, "registry.example.com/node-termination-handler:"+tag) {
		t.Errorf("the image is %s", container.Image)
	}
	for name, limit := range container.Resources.Limits {
		if request := container.Resources.Requests[name]; request.Cmp(limit) > 0 {
			t.Errorf("the request for %s, %s, is higher than its limit, %s", name, &request, &limit)
		}
	}
	if strings.Contains(r.manifest, "<no value>") || strings.Contains(r.manifest, "<nil>") {
		t.Errorf("a value is missing:\n%s", r.manifest)
	}
}

// installsOnNodes expects what is so with all values of the IMDS mode.
func (r *rendered) installsOnNodes(t *testing.T) {
	t.Helper()
	if r.kinds["DaemonSet"] != 1 || r.kinds["Deployment"] != 0 || r.kinds["PodDisruptionBudget"] != 0 {
		t.Fatalf("there are %v:\n%s", r.kinds, r.manifest)
	}
	pod := r.daemonSet.Spec.Template.Spec
	container := pod.Containers[0]
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSClusterFirstWithHostNet || len(pod.Tolerations) == 0 {
		t.Errorf("network of the node: %v, %s; tolerations %v", pod.HostNetwork, pod.DNSPolicy, pod.Tolerations)
	}
	if metrics := r.environment()["ENABLE_PROMETHEUS_SERVER"] == "true"; container.LivenessProbe != nil || len(container.Ports) > 0 != metrics {
		t.Errorf("the pods take ports of the node: %v", container.Ports)
	}
	for key, value := range r.daemonSet.Spec.Selector.MatchLabels {
		if r.daemonSet.Spec.Template.Labels[key] != value {
			t.Errorf("the selector asks for %s=%s, and the pods have %q", key, value, r.daemonSet.Spec.Template.Labels[key])
		}
	}
	if !strings.HasPrefix(container.Image, "registry.example.com/node-termination-handler:0.") {
		t.Errorf("the image is %s", container.Image)
	}
	if strings.Contains(r.manifest, "<no value>") || strings.Contains(r.manifest, "<nil>") || strings.Contains(r.manifest, "volumeattachments") {
		t.Errorf("a value is missing, or a right is too much:\n%s", r.manifest)
	}
}

// environment is that of the container, as far as the release has it.
func (r *rendered) environment() map[string]string {
	env := map[string]string{}
	containers := slices.Concat(r.deployment.Spec.Template.Spec.Containers, r.daemonSet.Spec.Template.Spec.Containers, r.windows.Spec.Template.Spec.Containers)
	for _, e := range containers[0].Env {
		switch {
		case e.Name == "NODE_NAME":
			env[e.Name] = "node-1"
		case e.ValueFrom == nil:
			env[e.Name] = e.Value
		case e.ValueFrom.SecretKeyRef != nil:
			env[e.Name] = r.secret.StringData[e.ValueFrom.SecretKeyRef.Key]
		}
	}
	return env
}

// starts expects that the program takes the environment, or says just that; and that the webhook gets JSON, or
// not, for that reason.
func (r *rendered) starts(t *testing.T, says, body string) {
	t.Helper()
	var environ []string
	for name, value := range r.environment() {
		environ = append(environ, name+"="+value)
	}
	o, err := options.Parse(nil, environ)
	if says != "" {
		if problems, ok := errors.AsType[options.Problems](err); !ok || len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), says) {
			t.Errorf("the program says %v, want %q", err, says)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	template, err := webhook.ParseTemplate(o.WebhookTemplate)
	if err != nil {
		t.Fatal(err)
	}
	switch err := template.CheckJSON(); {
	case err == nil && body != "", err != nil && (body == "" || !strings.Contains(err.Error(), body)):
		t.Errorf("the body of the webhook: %v, want %q", err, body)
	}
}

// reused is a copy of the chart with other defaults, which is what Helm makes of an upgrade with --reuse-values:
// the defaults are those of the chart before.
func reused(t *testing.T, root string, defaults []byte) (chart string) {
	t.Helper()
	chart = filepath.Join(t.TempDir(), "node-termination-handler")
	if err := os.CopyFS(chart, os.DirFS(Chart(root))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(chart, "values.yaml"), defaults, 0o600); err != nil {
		t.Fatal(err)
	}
	return chart
}

func TestTheValuesOfNTHsReleaseCanBeReused(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	defaults, err := os.ReadFile(nthValues)
	if err != nil {
		t.Fatal(err)
	}
	chart := reused(t, root, defaults)
	if _, err := render(t, h, chart, queueOfOn); err == nil || !strings.Contains(err.Error(), "use --reset-then-reuse-values instead of --reuse-values") {
		t.Errorf("with the image of NTH: %v", err)
	}
	if _, err := render(t, h, chart, queueOfOn, Image, "--set=image.tag=v1.25.0"); err == nil || !strings.Contains(err.Error(), "image.tag is v1.25.0") {
		t.Errorf("with the tag of NTH: %v", err)
	}
	r, err := render(t, h, chart, queueOfOn, Image)
	if err != nil {
		t.Fatal(err)
	}
	r.installsWell(t, "0.")
	r.starts(t, "", "")
	const says = "The values are those of another chart, or of an older one: admissionPolicy, daemonset, dashboard, flowSchema, networkPolicy, prometheusRule are missing"
	if !strings.Contains(r.notes, says) || !strings.Contains(r.notes, "--reset-then-reuse-values") {
		t.Errorf("the notes do not say %q:\n%s", says, r.notes)
	}
}

// A release of an older chart has the groups of values that there were then.
func TestTheValuesOfAnOlderReleaseCanBeReused(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	text, err := os.ReadFile(filepath.Join(Chart(root), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	whole, err := render(t, h, Chart(root), queue, Image)
	if err != nil {
		t.Fatal(err)
	}
	groups := 0
	for _, key := range slices.Sorted(maps.Keys(defaults)) {
		if _, isGroup := defaults[key].(map[string]any); !isGroup {
			continue
		}
		older := maps.Clone(defaults)
		delete(older, key)
		text, err := yaml.Marshal(older)
		if err != nil {
			t.Fatal(err)
		}
		r, err := render(t, h, reused(t, root, text), queue, Image)
		switch {
		case err != nil:
			t.Errorf("without %s: %v", key, err)
		case strings.Contains(r.notes, "The values are those of another chart, or of an older one: "+key+" is missing"):
			groups++
			if r.manifest != whole.manifest {
				t.Errorf("without %s it is not as with its defaults:\n%s", key, r.manifest)
			}
		default:
			r.installsWell(t, "0.")
		}
	}
	if groups < 9 {
		t.Errorf("%d groups have been left out", groups)
	}
}

// A chart that depends on this one has a key for its switch.
func TestALargerChartCanHaveThisOne(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	dir := t.TempDir()
	for path, text := range map[string]string{
		"Chart.yaml": `{apiVersion: v2, name: platform, version: 1.0.0, dependencies: [
  {name: node-termination-handler, alias: aws-node-termination-handler, version: 0.x, repository: "", condition: aws-node-termination-handler.enabled}]}`,
		"values.yaml": `aws-node-termination-handler:
  enabled: true
  queueURL: https://sqs.us-east-1.amazonaws.com/123456789012/platform
  image: {repository: registry.example.com/node-termination-handler}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "charts", "node-termination-handler"), os.DirFS(Chart(root))); err != nil {
		t.Fatal(err)
	}
	r, err := render(t, h, dir)
	if err != nil {
		t.Fatal(err)
	}
	r.installsWell(t, "0.")
	r.starts(t, "", "")
	if got := r.deployment.Spec.Selector.MatchLabels["app.kubernetes.io/name"]; got != "aws-node-termination-handler" {
		t.Errorf("the pods are selected by the name %s, not by NTH's", got)
	}
	off, err := render(t, h, dir, "--set=aws-node-termination-handler.enabled=false")
	if err != nil {
		t.Fatal(err)
	}
	if off.kinds["Deployment"] > 0 {
		t.Error("it is off, and there is a Deployment")
	}
}

func TestTheDaemonSetIsAsTheValuesSay(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	const imds = "--set=enableSqsTerminationDraining=false"
	for _, tt := range []struct {
		name string
		args []string
		ok   func(r *rendered, pod corev1.PodSpec, env map[string]string) bool
	}{
		{"a queue that is not to be used", []string{queue}, func(r *rendered, _ corev1.PodSpec, env map[string]string) bool {
			_, has := env["QUEUE_URL"]
			return !has && strings.Contains(r.notes, "queueURL: this handler runs in IMDS mode")
		}},
		{"its own network", []string{"--set=useHostNetwork=false"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return !pod.HostNetwork && pod.DNSPolicy == ""
		}},
		{"a DNS policy", []string{"--set=dnsPolicy=Default"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.DNSPolicy == corev1.DNSDefault
		}},
		{"probes and metrics", []string{"--set=enableProbesServer=true,enablePrometheusServer=true,podMonitor.create=true"}, func(r *rendered, pod corev1.PodSpec, env map[string]string) bool {
			c := pod.Containers[0]
			return c.LivenessProbe != nil && c.ReadinessProbe != nil && len(c.Ports) == 2 && r.kinds["PodMonitor"] == 1 && r.kinds["Service"] == 1 &&
				env["ENABLE_PROBES_SERVER"] == "true" && env["ENABLE_PROMETHEUS_SERVER"] == "true"
		}},
		{"where it runs, by the DaemonSet's values", []string{"--set=daemonsetNodeSelector.pool=a,daemonsetTolerations[0].key=b,daemonsetPriorityClassName=c"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.NodeSelector["pool"] == "a" && len(pod.Tolerations) == 1 && pod.Tolerations[0].Key == "b" && pod.PriorityClassName == "c"
		}},
		{"a taint of its own that evicts all", []string{"--set=taintNode=true,taintEffect=NoExecute,linuxTolerations[0].key=l"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return len(pod.Tolerations) == 8 && pod.Tolerations[1].Key == "aws-node-termination-handler/spot-itn" && pod.Tolerations[1].Effect == corev1.TaintEffectNoExecute
		}},
		{"where it runs, by values that go before them", []string{"--set=daemonsetNodeSelector.pool=a,nodeSelector.pool=b,linuxTolerations[0].key=l,tolerations[0].key=t"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.NodeSelector["pool"] == "b" && pod.NodeSelector["kubernetes.io/os"] == "linux" && pod.Tolerations[0].Key == "l"
		}},
		{"on instances alone", nil, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return runsOn(pod, nil) && runsOn(pod, computeType("ec2")) && !runsOn(pod, computeType("fargate")) && !runsOn(pod, computeType("hybrid"))
		}},
		{"on instances alone, and beside a pod", []string{"--set=daemonsetAffinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1"}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.Affinity.PodAffinity != nil && !runsOn(pod, computeType("fargate"))
		}},
		{"an affinity of one's own", []string{
			"--set=affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=pool",
			"--set=affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
		}, func(_ *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			return len(terms) == 1 && len(terms[0].MatchExpressions) == 1 && terms[0].MatchExpressions[0].Key == "pool" // as in NTH's chart
		}},
		{"labels of the ServiceAccount", []string{"--set=serviceAccount.labels.team=a"}, func(r *rendered, _ corev1.PodSpec, _ map[string]string) bool {
			return strings.Contains(r.manifest, "\n    team: a\n")
		}},
		{"labels", []string{"--set-string=podLabels.a=1,linuxPodLabels.b=2"}, func(r *rendered, _ corev1.PodSpec, _ map[string]string) bool {
			labels := r.daemonSet.Spec.Template.Labels
			return labels["a"] == "1" && labels["b"] == "2" && labels["app.kubernetes.io/component"] == "daemonset"
		}},
		{"an update strategy", []string{"--set=updateStrategy.type=OnDelete"}, func(r *rendered, _ corev1.PodSpec, _ map[string]string) bool {
			return r.daemonSet.Spec.UpdateStrategy.Type == "OnDelete" && r.daemonSet.Spec.UpdateStrategy.RollingUpdate == nil
		}},
		{"values of the DaemonSet for Windows", []string{"--set=windowsTolerations[0].key=w"}, func(r *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.Tolerations[0].Key == "" && strings.Contains(r.notes, "windowsTolerations: targetNodeOs does not name windows")
		}},
		{"the default", nil, func(r *rendered, pod corev1.PodSpec, _ map[string]string) bool {
			return pod.PriorityClassName == "system-node-critical" && pod.Tolerations[0].Operator == corev1.TolerationOpExists &&
				r.daemonSet.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String() == "25%" && !strings.Contains(r.notes, "no effect")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, h, Chart(root), append([]string{Image, imds}, tt.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			if r.kinds["DaemonSet"] != 1 || !tt.ok(r, r.daemonSet.Spec.Template.Spec, r.environment()) {
				t.Errorf("%s\n%s", r.manifest, r.notes)
			}
			r.starts(t, "", "")
		})
	}
}

func computeType(of string) map[string]string {
	return map[string]string{"eks.amazonaws.com/compute-type": of}
}

func TestTheDaemonSetForWindowsIsThatOfHostProcesses(t *testing.T) {
	t.Parallel()
	h, root := program(t)
	const imds, both = "--set=enableSqsTerminationDraining=false", "--set=targetNodeOs=Linux Windows"
	for _, tt := range []struct {
		name string
		args []string
		sets int
		ok   func(r *rendered, pod corev1.PodSpec) bool
	}{
		{"both", []string{both}, 2, func(r *rendered, pod corev1.PodSpec) bool {
			linux := r.daemonSet.Spec.Template.Spec
			return linux.NodeSelector["kubernetes.io/os"] == "linux" && linux.OS == nil && linux.Containers[0].SecurityContext != nil &&
				r.daemonSet.Labels["kubernetes.io/os"] == "linux" && r.windows.Labels["kubernetes.io/os"] == "windows"
		}},
		{"alone", []string{"--set=targetNodeOs=windows"}, 1, func(r *rendered, pod corev1.PodSpec) bool {
			return strings.Contains(r.notes, "logs daemonset/nth-node-termination-handler-win")
		}},
		{"a network of its own, which there is not", []string{both, "--set=useHostNetwork=false"}, 2, func(r *rendered, _ corev1.PodSpec) bool {
			return !r.daemonSet.Spec.Template.Spec.HostNetwork
		}},
		{"its values", []string{
			both, "--set=windowsNodeSelector.pool=w,linuxNodeSelector.pool=l,windowsTolerations[0].key=k,windowsUpdateStrategy.type=OnDelete,windowsDnsPolicy=Default",
			"--set-string=podLabels.a=1,windowsPodLabels.b=2,linuxPodLabels.c=3,windowsPodAnnotations.d=4",
		}, 2, func(r *rendered, pod corev1.PodSpec) bool {
			template := r.windows.Spec.Template
			return pod.NodeSelector["pool"] == "w" && pod.Tolerations[0].Key == "k" && r.windows.Spec.UpdateStrategy.Type == "OnDelete" &&
				pod.DNSPolicy == corev1.DNSDefault && template.Labels["a"]+template.Labels["b"]+template.Labels["c"] == "12" && template.Annotations["d"] == "4" &&
				r.daemonSet.Spec.Template.Spec.NodeSelector["pool"] == "l"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, h, Chart(root), append([]string{Image, imds}, tt.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			pod := r.windows.Spec.Template.Spec
			if r.kinds["DaemonSet"] != tt.sets || !tt.ok(r, pod) || r.windows.Spec.Selector.MatchLabels["kubernetes.io/os"] != "windows" {
				t.Errorf("%s\n%s", r.manifest, r.notes)
			}
			context := pod.SecurityContext
			if !pod.HostNetwork || pod.OS.Name != corev1.Windows || pod.NodeSelector["kubernetes.io/os"] != "windows" || context == nil ||
				context.WindowsOptions == nil || !*context.WindowsOptions.HostProcess || context.RunAsUser != nil || pod.Containers[0].SecurityContext != nil {
				t.Errorf("the pod: %+v", pod)
			}
			r.starts(t, "", "")
		})
	}
}
