package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/helm"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// A block is what a reader copies out of a page: between fences, or indented.
type block struct {
	page     string // path from the root
	language string // "sh" for what is indented
	text     string
}

// notRun are the commands that cannot be run here, where there is no AWS account,
// no cluster of eksctl's and no release, with the options of theirs that the docs may use. The
// parameters of the template are tried by hack/iac. What the reader of
// docs/install.md tags is tagged in the simulated account, and the experiment
// sends there what EC2 would send.
var notRun = map[string][]string{
	"aws cloudformation deploy":             {"--stack-name", "--template-file", "--capabilities", "--parameter-overrides"},
	"aws cloudformation describe-stacks":    {"--stack-name", "--query", "--output"},
	"aws cloudformation delete-stack":       {"--stack-name"},
	"aws autoscaling create-or-update-tags": {"--tags"},
	"aws ec2 create-tags":                   {"--tags", "--resources"},
	"aws ec2 describe-instances":            {"--filters", "--query", "--output"},
	"aws eks describe-cluster":              {"--name", "--query", "--output"},
	"aws eks describe-addon":                {"--cluster-name", "--addon-name"},
	"aws eks create-addon":                  {"--cluster-name", "--addon-name"},
	"aws ecr describe-repositories":         {"--repository-names", "--query", "--output"},
	"aws ecr create-repository":             {"--repository-name", "--query", "--output"},
	"aws ecr get-login-password":            {},
	"aws iam create-role":                   {"--role-name", "--query", "--output", "--assume-role-policy-document"},
	"aws iam put-role-policy":               {"--role-name", "--policy-name", "--policy-document"},
	"aws fis create-experiment-template":    {"--description", "--role-arn", "--stop-conditions", "--query", "--output", "--actions", "--targets"},
	"aws fis start-experiment":              {"--experiment-template-id", "--query", "--output"},
	"aws fis get-experiment":                {"--id", "--query"},
	"eksctl create addon":                   {"--cluster", "--name"},
	"kubectl krew install":                  {"--manifest-url"},
	// A release can be verified only where it was published and signed.
	"cosign verify --certificate-identity":             {"--certificate-oidc-issuer"},
	"cosign verify-attestation --certificate-identity": {"--certificate-oidc-issuer", "--type"},
	"cosign verify-blob --certificate-identity":        {"--certificate-oidc-issuer", "--bundle"},
	"sha256sum --check --ignore-missing":               {},
}

// notValues are the blocks of YAML that are no values of the chart, by how they
// begin: whose they are has no schema here, so that they are only parsed.
var notValues = []string{
	"apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\n",
	"managedNodeGroups:\n", // of eksctl's ClusterConfig
}

// elsewhere are the tests that try the blocks of a language.
var elsewhere = map[string]struct{ pages, file, test string }{
	"hcl":        {"docs/*.md", "hack/iac/iac_test.go", "TestWhatTheDocsShowWorks"},
	"gotemplate": {"docs/webhooks.md", "internal/webhook/doc_test.go", "TestTheSlackExampleOfTheDocIsPostedAsTheDocShows"},
	"json":       {"docs/webhooks.md", "internal/webhook/doc_test.go", "TestTheSlackExampleOfTheDocIsPostedAsTheDocShows"},
	"text":       {"docs/status.md", "internal/overview/table_test.go", "TestTheTableOfTheDocIsWhatStatusPrints"},
}

// What is made where a reader follows docs/install.md, and of whom.
const (
	readersImage = "123456789012.dkr.ecr.us-east-1.amazonaws.com/node-termination-handler:0.1.0"
	readersGroup = "my-group"
	readersQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/" + queueName
	installPage  = "docs/install.md"
	upgradePage  = "docs/upgrade.md"
	migratePage  = "docs/migrate-from-nth.md"
)

// A reader copies one block after the other: first the README and the installation,
// last the uninstallation and, anew, the migration. Helm and kubectl are real, in a
// cluster of the reader's own, and so is our program: what it says of the installation
// has to be well. make says what it would do, go compiles what it is to run; the
// commands of notRun are written down.
func TestWhatAReaderCanCopyWorks(t *testing.T) {
	tier.Full(t, "two minutes and a control plane of its own")
	t.Parallel()
	own, err := sandbox.Start(t.Context(), sandbox.Options{APIServerFlags: []string{"--enable-admission-plugins=PodNodeSelector"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := newChartScenarioIn(t, own)
	c.prometheusOperator()
	r := c.reader()
	r.openAccount()

	shown := map[string]int{}
	pages := map[string][]block{}
	for _, b := range c.blocks() {
		shown[b.language]++
		claim, tried := elsewhere[b.language]
		onPage, err := filepath.Match(claim.pages, b.page)
		c.must(err)
		switch {
		case b.language == "sh":
			pages[b.page] = append(pages[b.page], b)
		case b.page == "docs/policy.md" && b.language == "yaml": // a policy file
			path := filepath.Join(t.TempDir(), "policy.yaml")
			c.must(os.WriteFile(path, []byte(b.text), 0o600))
			if out, err := exec.CommandContext(t.Context(), program, "policy", "test", path).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s\n%s", b.page, err, out, b.text)
			}
		case (b.page == "docs/status.md" || b.page == "docs/stop.md") && b.language == "yaml": // rights, which people_test.go grants and lives by
			if !strings.Contains(string(c.source("e2e/people_test.go")), `"`+filepath.Base(b.page)+`"`) {
				t.Errorf("e2e/people_test.go does not read %s", b.page)
			}
		case b.language == "yaml":
			r.values(b)
		case b.page == "docs/doctor.md" && b.language == "json":
			r.queuePolicy(b)
		case b.page == "docs/security.md" && b.language == "json": // the policy of a key, which hack/iac asks IAM about
			if !strings.Contains(string(c.source("hack/iac/policy_test.go")), `"../../docs/security.md"`) {
				t.Error("hack/iac does not read docs/security.md")
			}
		case tried && onPage:
			if !strings.Contains(string(c.source(claim.file)), "\nfunc "+claim.test+"(") {
				t.Errorf("%s has no %s", claim.file, claim.test)
			}
		case b.language == "" && (strings.Contains(b.text, "─") || strings.HasPrefix(b.text, "node-termination-handler/intent: ")): // a picture
		default:
			t.Errorf("%s: no test tries this block of %q:\n%s", b.page, b.language, b.text)
		}
	}
	for language, least := range map[string]int{"sh": 20, "yaml": 5, "hcl": 2, "json": 2} {
		if shown[language] < least {
			t.Errorf("only %d blocks of %s were found", shown[language], language)
		}
	}
	between := slices.DeleteFunc(slices.Sorted(maps.Keys(pages)), func(page string) bool {
		return slices.Contains([]string{"README.md", installPage, upgradePage, migratePage}, page)
	})
	for _, page := range slices.Concat([]string{"README.md", installPage}, between, []string{upgradePage, migratePage}) {
		if len(pages[page]) == 0 {
			t.Errorf("%s has nothing to copy", page)
		}
		r.begin(page)
		for _, b := range pages[page] {
			r.run(b)
		}
		r.finish(page)
	}
	r.calls()
}

// begin makes what a page takes for granted.
func (r *reader) begin(page string) {
	r.Helper()
	r.must(os.RemoveAll(filepath.Join(r.root, "exported")))
	if page == migratePage {
		r.in("kube-system")
		r.release = "aws-node-termination-handler"
		r.chartScenario.run("upgrade", "--install", r.release, filepath.Join("testdata", "nth-chart"), "--set=queueURL="+readersQueue, "--wait", "--timeout=5m")
	}
}

// finish looks at what a page has led to.
func (r *reader) finish(page string) {
	r.Helper()
	switch page {
	case installPage:
		if r.interrupted == "" {
			r.Error("docs/install.md interrupts no instance")
		}
	case upgradePage:
		r.unmarked()
	case migratePage: // it ends with a rollback
		d, err := r.kube.AppsV1().Deployments(r.namespace).Get(r.ctx, r.release, metav1.GetOptions{})
		r.must(err)
		if image := d.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, "/aws-node-termination-handler:v1.25.0") {
			r.Errorf("docs/migrate-from-nth.md: after the rollback the image is %s", image)
		}
	}
}

// after does what the commands of a block would have done if they had been run, and
// keeps a handler running: no kubelet starts the pods of a release.
func (r *reader) after(b block) {
	r.Helper()
	for _, call := range r.newCalls() {
		switch strings.Join(call[:3], " ") {
		case "aws autoscaling create-or-update-tags":
			if b.page == installPage {
				r.must(r.aws.PutGroup(awssim.Group{Name: readersGroup, Instances: r.instances(), Tags: managed}))
			}
		case "aws ec2 create-tags":
			tag := regexp.MustCompile(`^Key=(.*),Value=(.*)$`).FindStringSubmatch(option(call, "--tags"))
			resources := call[slices.Index(call, "--resources")+1:]
			if tag == nil || !slices.Equal(resources, r.instances()) {
				r.Fatalf("%s: %q", b.page, call)
			}
			for _, i := range r.aws.Instances() {
				i.Tags = maps.Clone(i.Tags)
				i.Tags[tag[1]] = tag[2]
				r.must(r.aws.PutInstance(i))
			}
		case "aws fis create-experiment-template":
			r.experiment = call
		case "aws fis start-experiment":
			r.interrupt()
		}
	}
	if strings.Contains(b.text, "helm upgrade ") {
		r.rolledOut()
	}
	installs := strings.Contains(b.text, "helm upgrade --install") && b.page == installPage
	migrates := strings.Contains(b.text, "helm upgrade ") && b.page == migratePage
	if !installs && !migrates {
		return
	}
	r.deployed(r.release, readersImage)
	r.handler = r.runPod()
	r.handler.awaitLead()
	_, env := r.pod()
	inPod := `#!/bin/sh
# --release=none: only in a real pod there are the files by which it is known.
case $1 in
status|report) ;;
doctor) set -- "$@" --release=none --accept=credentials-source ;; # which are static
*) set -- "$@" --release=none ;;
esac
env -i`
	for _, e := range env {
		inPod += " '" + strings.ReplaceAll(e, "'", `'\''`) + "'"
	}
	inPod += " " + program + ` "$@" || case "$1 $?" in "status 4"|"report 4") ;; *) exit 1 ;; esac # nobody connects to the pods of KWOK
`
	r.must(os.WriteFile(filepath.Join(r.bin, "in-pod"), []byte(inPod), 0o700))
}

// rolledOut waits until all pods of the release are of its newest version: a command that
// lists pods, and then asks about each, must not meet one that goes away. In IMDS mode the
// release has no Deployment; no page asks about the pods of its DaemonSet.
func (r *reader) rolledOut() {
	r.Helper()
	r.eventually("the release is rolled out", func() bool {
		d, err := r.kube.AppsV1().Deployments(r.namespace).Get(r.ctx, r.release, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = r.kube.AppsV1().DaemonSets(r.namespace).Get(r.ctx, r.release, metav1.GetOptions{})
			r.must(err)
			return true
		}
		r.must(err)
		pods, err := r.kube.CoreV1().Pods(r.namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=deployment,app.kubernetes.io/instance=" + r.release})
		r.must(err)
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas && len(pods.Items) == int(*d.Spec.Replicas)
	})
}

// openAccount makes the nodes and what step 1 of the installation creates in AWS,
// and the group that the reader has.
func (r *reader) openAccount() {
	r.Helper()
	otherRights.Store(r.name, true) // simulate sends as its caller may
	instance := func(k int, lifecycle string, labels map[string]string) node {
		n := node{fmt.Sprintf("%s-%d", r.name, k), r.id(k)}
		r.must(r.aws.PutInstance(awssim.Instance{
			ID: n.instance, Lifecycle: lifecycle, LaunchTime: time.Now().Add(-time.Hour),
			Tags: map[string]string{"kubernetes.io/cluster/my-cluster": "owned"},
		}))
		_, err := r.cluster.AddNode(r.ctx, sandbox.NodeSpec{Name: n.name, ProviderID: "aws:///us-east-1a/" + n.instance, Labels: labels})
		r.must(err)
		return n
	}
	for k := range 2 {
		instance(k, "", map[string]string{"home": r.name})
	}
	for k := range 3 {
		r.spot = append(r.spot, instance(2+k, "spot", map[string]string{"scenario": r.name}))
	}
	r.must(os.WriteFile(filepath.Join(r.bin, "instances"), []byte(strings.Join(r.instances(), "\n")+"\n"), 0o600))
	r.must(r.aws.Apply(awssim.State{
		Queues: []awssim.Queue{
			{Name: queueName, Attributes: r.healthyQueue()},
			{Name: "dead", Attributes: map[string]string{"Policy": allowRules, "MessageRetentionPeriod": "1209600"}},
		},
		Groups: []awssim.Group{{Name: readersGroup, Instances: r.instances()}},
		Hooks:  []awssim.Hook{{Group: readersGroup, Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}},
		Rules:  []awssim.Rule{rule("aws.ec2", "aws.health", "aws.autoscaling")},
	}))
	r.must(r.aws.PutRole(awssim.Role{Name: "handler", AccessKeyID: "AKIDEXAMPLE", Policy: r.shippedPolicy()}))
	r.deployment("web", 6)
}

// instances are the ids of all instances.
func (r *reader) instances() (ids []string) {
	for _, i := range r.aws.Instances() {
		ids = append(ids, i.ID)
	}
	return ids
}

// interrupt sends what EC2 would send for the experiment: a warning for one spot
// instance among its targets. The node has to be drained.
func (r *reader) interrupt() {
	r.Helper()
	var targets map[string]struct {
		ResourceType, SelectionMode string
		ResourceTags                map[string]string
	}
	r.must(json.Unmarshal([]byte(option(r.experiment, "--targets")), &targets))
	var actions map[string]struct {
		ActionID string
		Targets  map[string]string
	}
	r.must(json.Unmarshal([]byte(option(r.experiment, "--actions")), &actions))
	for _, a := range actions {
		target, ok := targets[a.Targets["SpotInstances"]]
		if a.ActionID != "aws:ec2:send-spot-instance-interruptions" || !ok || target.ResourceType != "aws:ec2:spot-instance" || target.SelectionMode != "COUNT(1)" {
			r.Fatalf("docs/install.md: an experiment with %+v and %+v", actions, targets)
		}
		at := slices.IndexFunc(r.aws.Instances(), func(i awssim.Instance) bool {
			for key, value := range target.ResourceTags {
				if got, ok := i.Tags[key]; !ok || got != value {
					return false
				}
			}
			return i.Lifecycle == "spot"
		})
		if at < 0 {
			r.Fatalf("docs/install.md: no instance has the tags %v", target.ResourceTags)
		}
		r.interrupted = r.aws.Instances()[at].ID
	}
	r.awaitDeleted(soon, r.send(r.body("spot-interruption", r.interrupted)))
	for _, n := range r.spot {
		if n.instance == r.interrupted && (!r.cordoned(n.name) || len(r.podsOn(n.name)) > 0) {
			r.Errorf("docs/install.md: node %s is not drained", n.name)
		}
	}
}

// mark leaves on a node what a handler with all options may leave there.
func (r *reader) mark(n node) {
	r.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: "draining", %q: "spot-interruption", %q: "aws-node-termination-handler"}, "annotations": {%q: "{}"}},
		"spec": {"unschedulable": true, "taints": [
			{"key": "aws-node-termination-handler/spot-itn", "value": "event", "effect": "NoSchedule"},
			{"key": "aws-node-termination-handler/rebalance-recommendation", "value": "event", "effect": "NoSchedule"},
			{"key": %q, "value": "node-termination-handler", "effect": "NoExecute"}]}}`,
		cluster.StateLabel, cluster.KindLabel, corev1.LabelNodeExcludeBalancers, cluster.IntentAnnotation, corev1.TaintNodeOutOfService)
	_, err := r.kube.CoreV1().Nodes().Patch(r.ctx, n.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	r.must(err)
}

// unmarked expects that nothing of the handler is left on any node.
func (r *reader) unmarked() {
	r.Helper()
	nodes, err := r.kube.CoreV1().Nodes().List(r.ctx, metav1.ListOptions{})
	r.must(err)
	for _, n := range nodes.Items {
		_, state := n.Labels[cluster.StateLabel]
		_, kind := n.Labels[cluster.KindLabel]
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		_, intent := n.Annotations[cluster.IntentAnnotation]
		if state || kind || excluded || intent || n.Spec.Unschedulable || len(n.Spec.Taints) > 0 {
			r.Errorf("docs/upgrade.md leaves node %s with %v %v %+v", n.Name, n.Labels, n.Annotations, n.Spec)
		}
	}
}

// option is the word after the name of an option.
func option(call []string, name string) string {
	if k := slices.Index(call, name); k >= 0 && k+1 < len(call) {
		return call[k+1]
	}
	return ""
}

func (c *chartScenario) source(path string) []byte {
	c.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	c.must(err)
	return text
}

// deployed expects the release's two replicas to be ready, with that image.
func (c *chartScenario) deployed(name, image string) {
	c.Helper()
	d, err := c.kube.AppsV1().Deployments(c.namespace).Get(c.ctx, name, metav1.GetOptions{})
	c.must(err)
	if got := d.Spec.Template.Spec.Containers[0].Image; got != image || d.Status.ReadyReplicas != 2 {
		c.Errorf("%s: %d replicas of %s are ready", name, d.Status.ReadyReplicas, got)
	}
}

var fence = regexp.MustCompile("^( *)```(\\w*)$")

// blocks are those of all pages, in their order: the pages of the root first.
func (c *chartScenario) blocks() []block {
	c.Helper()
	pages, err := filepath.Glob("../*.md")
	c.must(err)
	for _, dir := range []string{"../docs", "../deploy"} {
		c.must(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".md" {
				pages = append(pages, path)
			}
			return err
		}))
	}
	var all []block
	for _, path := range pages {
		page, err := filepath.Rel("..", path)
		c.must(err)
		all = append(all, blocksOf(page, string(c.source(page)))...)
	}
	return all
}

func blocksOf(page, text string) []block {
	var all []block
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		b := block{page: page}
		if m := fence.FindStringSubmatch(lines[i]); m != nil {
			b.language = m[2]
			for i++; i < len(lines) && !fence.MatchString(lines[i]); i++ {
				b.text += strings.TrimPrefix(lines[i], m[1]) + "\n"
			}
			all = append(all, b)
		} else if i > 0 && lines[i-1] == "" && strings.HasPrefix(lines[i], "    ") {
			b.language = "sh"
			indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " "))]
			for ; i < len(lines) && strings.HasPrefix(lines[i], indent); i++ {
				b.text += strings.TrimPrefix(lines[i], indent) + "\n"
			}
			all = append(all, b)
		}
	}
	return all
}

// A reader has a directory like the root of the source tree, and programs.
type reader struct {
	*chartScenario
	root, bin, log string
	seen           int // calls in the log that were looked at
	handler        *handler

	spot        []node   // to be interrupted
	experiment  []string // the call that described it
	interrupted string   // id of the instance
}

const stubs = `
kubectl: case " $* " in
	*" exec "*" -- /node-termination-handler "*) while [ "$1" != -- ]; do shift; done; shift 2; exec in-pod "$@" ;;
	*" logs "*|*" --watch "*) ;;
	*) exec %[1]s "$@" ;; esac
	said=$(timeout 5 %[1]s "$@" 2>&1); status=$?; echo "$said"
	case "$status $said" in "0 "*|"124 "*|*"%[2]s"*) exit 0 ;; esac; exit $status # no kubelet answers for the nodes of KWOK
make: for a; do case $a in *=*) grep -q "(${a%%%%=*})" %[3]s/Makefile || { echo "make: nothing uses $a"; exit 1; } ;; esac; done
	exec /usr/bin/env -i PATH="%[4]s" HOME="$HOME" make -n -C %[3]s "$@"
go: case $1 in
	test) shift; set -- list "$@" ;; # it plays nothing
	*) set -- "$@" -h ;; # which it reads last
	esac
	PATH="%[4]s" HOME="%[5]s" exec go -C %[3]s "$@"
node-termination-handler: if [ -n "$READER_RUNS_IT" ]; then
	case "$1" in
	simulate) echo y | %[6]s "$@" ;;
	doctor) %[6]s "$@" || [ $? != 2 ] ;; # what is wrong before the migration, is said
	*) %[6]s "$@" ;; esac
	exit; fi
	said=$(QUEUE_URL=https://sqs.us-east-1.amazonaws.com/123456789012/nth %[6]s "$@" --workers=none 2>&1); echo "$said"
	case "$said" in *"1 mistake in the options:"*"workers: "*) exit 0 ;; esac; exit 1
aws: { echo aws; for a; do printf '%%s' "$a" | tr '\n' ' '; echo; done; echo end; } >>%[7]s
	case "$*" in *describe-addon*|*describe-repositories*) exit 254 ;; # there is none yet
	*create-repository*) echo %[8]s ;; *get-login-password*) echo secret ;;
	*describe-stacks*) echo https://sqs.us-east-1.amazonaws.com/123456789012/nth ;; *oidc.issuer*) echo https://oidc.eks.us-east-1.amazonaws.com/id/1 ;;
	*describe-instances*) cat "$(dirname "$0")/instances" ;; *create-role*) echo arn:aws:iam::123456789012:role/nth-fis ;; *create-experiment-template*) echo EXT1 ;; *start-experiment*) echo EXP1 ;; esac
eksctl: printf '%%s\n' eksctl "$@" end >>%[7]s
kubectl-krew: { echo kubectl; echo krew; printf '%%s\n' "$@" | sed 's/^\(--[a-z-]*\)=/\1\n/'; echo end; } >>%[7]s
kubectl-nth: ln -sf %[6]s "$HOME/kubectl-nth" && "$HOME/kubectl-nth" "$@" || [ $? = 4 ] # nobody connects to the pods of KWOK
cosign: printf '%%s\n' cosign "$@" end >>%[7]s
sha256sum: printf '%%s\n' sha256sum "$@" end >>%[7]s
run: exec test -x %[3]s/.ci/run
`

func (c *chartScenario) reader() *reader {
	c.Helper()
	root, err := filepath.Abs("..")
	c.must(err)
	kubectl, err := helm.BuildKubectl(c.ctx, root)
	c.must(err)
	c.in("node-termination-handler")
	c.release = release.Name
	r := &reader{chartScenario: c, root: c.TempDir(), bin: c.TempDir(), log: filepath.Join(c.TempDir(), "calls")}
	c.must(os.WriteFile(r.log, nil, 0o600))
	text := fmt.Sprintf(stubs, kubectl, ":10250/", root, os.Getenv("PATH"), os.Getenv("HOME"), program, r.log, strings.TrimSuffix(readersImage, ":0.1.0"))
	for _, stub := range regexp.MustCompile(`(?m)^([a-z0-9-]+): (.*(?:\n\t.*)*)`).FindAllStringSubmatch(text, -1) {
		c.must(os.WriteFile(filepath.Join(r.bin, stub[1]), []byte("#!/bin/sh\n"+stub[2]+"\n"), 0o700))
	}
	c.must(os.Symlink(c.program.Program, filepath.Join(r.bin, "helm")))
	c.must(os.Symlink(filepath.Join(root, "deploy"), filepath.Join(r.root, "deploy")))
	c.must(os.Symlink(r.bin, filepath.Join(r.root, "bin"))) // where make builds the program
	c.must(os.Mkdir(filepath.Join(r.root, ".ci"), 0o700))
	c.must(os.Symlink(filepath.Join(r.bin, "run"), filepath.Join(r.root, ".ci", "run")))
	return r
}

// run runs the commands of a block. What an earlier block of the page has exported
// is there, NAME is a node, and REVISION the first of a release.
func (r *reader) run(b block) {
	r.Helper()
	from := r.valuesOf(b.page)
	if _, err := os.Stat(from); err != nil {
		from = r.valuesOf(installPage)
	}
	values, err := os.ReadFile(from)
	r.must(err)
	r.must(os.WriteFile(filepath.Join(r.root, "values.yaml"), values, 0o600))
	if strings.Contains(b.text, "helm uninstall ") {
		r.handler.stop()
		r.mark(r.spot[0])
	}
	name := r.spot[len(r.spot)-1].name
	text := regexp.MustCompile(`\bNAME\b`).ReplaceAllString(strings.ReplaceAll(b.text, "REVISION", "1"), name)
	script := "[ ! -f exported ] || . ./exported\n" + text + "\nexport -p >exported\n"
	cmd := exec.CommandContext(r.ctx, "/bin/sh", "-eux", "-c", script)
	cmd.Dir = r.root
	cmd.Env = []string{
		"HOME=" + r.dir, "KUBECONFIG=" + r.cluster.Kubeconfig(), "PATH=" + r.bin + ":/usr/bin:/bin",
		"QUEUE_URL=" + readersQueue, "CLUSTER=my-cluster",
		"REPOSITORY=" + strings.TrimSuffix(readersImage, ":0.1.0"), "TAG=0.1.0",
		"AWS_ENDPOINT_URL=" + r.endpoint, "AWS_ACCESS_KEY_ID=AKIDREADER", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true",
	}
	if b.page == installPage || b.page == migratePage {
		cmd.Env = append(cmd.Env, "READER_RUNS_IT=yes")
	} else {
		cmd.Env = append(cmd.Env, "READER_RUNS_IT=")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Errorf("the commands of %s: %v\n%s", b.page, err, out)
	} else if b.page == installPage {
		r.Logf("%s", out)
	}
	r.after(b)
}

// valuesOf is the file with the first values of a page.
func (r *reader) valuesOf(page string) string {
	return filepath.Join(r.dir, filepath.Base(page)+".yaml")
}

// values expects a block to be values of the chart, or an object of Argo CD or Flux
// that has some.
func (r *reader) values(b block) {
	r.Helper()
	documents := strings.Split(b.text, "\n---\n")
	if b.text = documents[len(documents)-1]; len(documents) > 1 && !strings.Contains(b.text, "kind: HelmRelease") {
		r.Errorf("%s: the last of several objects has no values:\n%s", b.page, b.text)
	}
	var object map[string]any
	if err := yaml.UnmarshalStrict([]byte(b.text), &object); err != nil {
		r.Errorf("%s: %v\n%s", b.page, err, b.text)
		return
	}
	if slices.ContainsFunc(notValues, func(begin string) bool { return strings.HasPrefix(b.text, begin) }) {
		return
	}
	file, values := r.valuesOf(b.page), object
	switch object["kind"] {
	case "Application":
		values = r.valuesAt(b, object, "spec", "source", "helm", "valuesObject")
	case "HelmRelease":
		values = r.valuesAt(b, object, "spec", "values")
	}
	text, err := yaml.Marshal(values)
	r.must(err)
	if _, err := os.Stat(file); err == nil { // not the first of the page
		file = filepath.Join(r.TempDir(), "values.yaml")
	}
	r.must(os.WriteFile(file, text, 0o600))
	args := []string{"template", "nth", r.chart, "--values", file}
	if _, ok := values["queueURL"]; !ok {
		args = append(args, "--set=queueURL="+readersQueue)
	}
	if _, ok := values["image"]; !ok {
		args = append(args, "--set=image.repository=registry.example.com/"+release.Name)
	}
	if _, err := r.program.Run(r.ctx, args...); err != nil {
		r.Errorf("%s: %v\n%s", b.page, err, b.text)
	}
}

// valuesAt is the object at a path.
func (r *reader) valuesAt(b block, object map[string]any, path ...string) map[string]any {
	r.Helper()
	for _, key := range path {
		next, ok := object[key].(map[string]any)
		if !ok {
			r.Fatalf("%s: nothing at %s in\n%s", b.page, key, b.text)
		}
		object = next
	}
	return object
}

// queuePolicy expects a statement that lets the named rule send, and no other; or one that denies it to all but AWS
// services and the named role.
func (r *reader) queuePolicy(b block) {
	r.Helper()
	if strings.Contains(b.text, `"Deny"`) {
		r.queueDenial(b)
		return
	}
	p, err := iampolicy.Parse(`{"Statement": [` + b.text + `]}`)
	r.must(err)
	for rule, want := range map[string]iampolicy.Verdict{"RULE_ARN": iampolicy.Allowed, "ANOTHER_ARN": iampolicy.Refused} {
		if got := p.Evaluate(iampolicy.Request{
			Service: "events.amazonaws.com", Action: "sqs:SendMessage", Resource: "QUEUE_ARN", Context: map[string]string{"aws:sourcearn": rule},
		}); got != want {
			r.Errorf("%s: the policy says %v to %s", b.page, got, rule)
		}
	}
}

func (r *reader) queueDenial(b block) {
	r.Helper()
	p, err := iampolicy.Parse(`{"Statement": [` + b.text + `, {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}`)
	r.must(err)
	send := iampolicy.Request{Action: "sqs:SendMessage", Resource: "QUEUE_ARN"}
	service, role, another := send, send, send
	service.Service, role.Principal, another.Principal = "events.amazonaws.com", "ROLE_ARN", "ANOTHER_ARN"
	role.Context = map[string]string{"aws:principalarn": role.Principal}
	another.Context = map[string]string{"aws:principalarn": another.Principal}
	got := []iampolicy.Verdict{p.Evaluate(service), p.Evaluate(role), p.Evaluate(another)}
	if want := []iampolicy.Verdict{iampolicy.Allowed, iampolicy.Allowed, iampolicy.Denied}; !slices.Equal(got, want) {
		r.Errorf("%s: to a service, the named role and another the policy says %v, want %v", b.page, got, want)
	}
}

// written are the commands that were written down.
func (r *reader) written() (calls [][]string) {
	r.Helper()
	log, err := os.ReadFile(r.log)
	r.must(err)
	var call []string
	for line := range strings.SplitSeq(string(log), "\n") {
		if line == "end" {
			calls, call = append(calls, call), nil
			continue
		}
		call = append(call, line)
	}
	return calls
}

// newCalls are those that were written down since it was called before.
func (r *reader) newCalls() [][]string {
	r.Helper()
	all := r.written()
	calls := all[r.seen:]
	r.seen = len(all)
	return calls
}

// calls looks at the commands that were written down.
func (r *reader) calls() {
	r.Helper()
	outputs := ""
	for _, template := range []string{"node-termination-handler.yaml", "fan-out.yaml"} {
		_, some, _ := strings.Cut(string(r.source("deploy/cloudformation/"+template)), "\nOutputs:")
		outputs += some
	}
	used := map[string]bool{}
	for _, words := range r.written() {
		name := strings.Join(words[:3], " ")
		options, known := notRun[name]
		used[name] = true
		if !known {
			r.Errorf("%s cannot be run here, and is not among notRun", name)
			continue
		}
		for i, word := range words[3:] {
			if strings.HasPrefix(word, "--") && !slices.Contains(options, word) {
				r.Errorf("%s: option %s is not among notRun", name, word)
			}
			if word == "--template-file" {
				r.source(words[3+i+1])
			}
			if m := regexp.MustCompile("OutputKey==[`'](\\w+)").FindStringSubmatch(word); m != nil && !strings.Contains(outputs, "\n  "+m[1]+":") {
				r.Errorf("%s: the template has no output %s", name, m[1])
			}
		}
		for policy, want := range map[string]iampolicy.Request{
			"--assume-role-policy-document": {Service: "fis.amazonaws.com", Action: "sts:AssumeRole"},
			"--policy-document":             {Action: "ec2:SendSpotInstanceInterruptions", Resource: "arn:aws:ec2:us-east-1:123456789012:instance/i-0123456789abcdef0"},
		} {
			if text := option(words, policy); text != "" {
				p, err := iampolicy.Parse(text)
				r.must(err)
				if p.Evaluate(want) != iampolicy.Allowed {
					r.Errorf("%s does not allow %+v: %s", name, want, text)
				}
			}
		}
	}
	for name := range notRun {
		if !used[name] {
			r.Errorf("the docs have no %s any more", name)
		}
	}
}
