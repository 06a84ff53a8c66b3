package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/helm"
	"github.com/node-termination-handler/node-termination-handler/internal/policy"
)

// A block is what a reader copies out of a page: between fences, or indented.
type block struct {
	page     string // path from the root
	language string // "sh" for what is indented
	text     string
}

// notRun are the commands that cannot be run here, where there is no AWS account
// and no cluster of eksctl's, with the options of theirs that the docs may use. The
// parameters of the template are tried by hack/iac.
var notRun = map[string][]string{
	"aws cloudformation deploy":             {"--stack-name", "--template-file", "--capabilities", "--parameter-overrides"},
	"aws cloudformation describe-stacks":    {"--stack-name", "--query", "--output"},
	"aws autoscaling create-or-update-tags": {"--tags"},
	"aws eks describe-cluster":              {"--name", "--query", "--output"},
	"eksctl create addon":                   {"--cluster", "--name"},
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
	"gotemplate": {"docs/webhooks.md", "internal/telemetry/webhook_doc_test.go", "TestTheSlackExampleOfTheDocIsPostedAsTheDocShows"},
	"json":       {"docs/webhooks.md", "internal/telemetry/webhook_doc_test.go", "TestTheSlackExampleOfTheDocIsPostedAsTheDocShows"},
}

// Each page's commands are one shell script, in their order. Helm and kubectl are
// real, make says what it would do, our own program reads its arguments, go
// compiles what it is to run; the commands of notRun are written down.
func TestWhatAReaderCanCopyWorks(t *testing.T) {
	c := newChartScenario(t)
	c.home(nil)
	c.in("kube-system")
	c.run("upgrade", "--install", "aws-node-termination-handler", filepath.Join("testdata", "nth-chart"), "--set=queueURL=q", "--wait", "--timeout=2m")
	c.in("node-termination-handler")
	r := c.reader()

	scripts, shown := map[string]string{}, map[string]int{}
	var pages []string
	for _, b := range c.blocks() {
		shown[b.language]++
		claim, tried := elsewhere[b.language]
		onPage, err := filepath.Match(claim.pages, b.page)
		c.must(err)
		switch {
		case b.language == "sh":
			if scripts[b.page] == "" {
				pages = append(pages, b.page)
			}
			scripts[b.page] += b.text
		case b.language == "yaml":
			r.values(b)
		case b.page == "docs/troubleshooting.md" && b.language == "json":
			r.queuePolicy(b)
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
	for _, page := range pages {
		r.run(page, scripts[page])
		switch page {
		case "README.md": // the first that installs; from now on there is a leader to look at
			c.release = "node-termination-handler"
			c.eventually("a pod runs", func() bool { return c.running() > 0 })
			c.runPod().awaitLead()
		case "docs/install.md":
			c.deployed("node-termination-handler", "123456789012.dkr.ecr.us-east-1.amazonaws.com/node-termination-handler:1.0.0")
		case "docs/migrate-from-nth.md":
			c.in("kube-system")
			c.deployed("aws-node-termination-handler", "123456789012.dkr.ecr.us-east-1.amazonaws.com/node-termination-handler:1.0.0")
		}
	}
	r.calls()
}

func (c *chartScenario) source(path string) []byte {
	c.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	c.must(err)
	return text
}

func (c *chartScenario) running() int {
	c.Helper()
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
	c.must(err)
	return len(pods.Items)
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
}

const stubs = `
kubectl: case " $* " in *" logs "*|*" exec "*|*" --watch "*) ;; *) exec %[1]s "$@" ;; esac
	said=$(timeout 5 %[1]s "$@" 2>&1); status=$?; echo "$said"
	case "$status $said" in "0 "*|"124 "*|*"%[2]s"*) exit 0 ;; esac; exit $status # no kubelet answers for the nodes of KWOK
make: for a; do case $a in *=*) grep -q "(${a%%%%=*})" %[3]s/Makefile || { echo "make: nothing uses $a"; exit 1; } ;; esac; done
	exec /usr/bin/env -i PATH="%[4]s" HOME="$HOME" make -n -C %[3]s "$@"
go: PATH="%[4]s" HOME="%[5]s" exec go -C %[3]s "$@" -h # which it reads last
node-termination-handler: said=$(QUEUE_URL=https://sqs.us-east-1.amazonaws.com/123456789012/nth %[6]s "$@" --workers=none 2>&1); echo "$said"
	case "$said" in *"1 mistake in the options:"*"workers: "*) exit 0 ;; esac; exit 1
aws: printf '%%s\n' aws "$@" end >>%[7]s
	case "$*" in *describe-stacks*) echo https://sqs.us-east-1.amazonaws.com/123456789012/nth ;; *oidc.issuer*) echo https://oidc.eks.us-east-1.amazonaws.com/id/1 ;; esac
eksctl: printf '%%s\n' eksctl "$@" end >>%[7]s
run: exec test -x %[3]s/.ci/run
`

func (c *chartScenario) reader() *reader {
	c.Helper()
	root, err := filepath.Abs("..")
	c.must(err)
	kubectl, err := helm.BuildKubectl(c.ctx, root)
	c.must(err)
	r := &reader{chartScenario: c, root: c.TempDir(), bin: c.TempDir(), log: filepath.Join(c.TempDir(), "calls")}
	text := fmt.Sprintf(stubs, kubectl, ":10250/", root, os.Getenv("PATH"), os.Getenv("HOME"), program, r.log)
	for _, stub := range regexp.MustCompile(`(?m)^([a-z-]+): (.*(?:\n\t.*)*)`).FindAllStringSubmatch(text, -1) {
		c.must(os.WriteFile(filepath.Join(r.bin, stub[1]), []byte("#!/bin/sh\n"+stub[2]+"\n"), 0o700))
	}
	c.must(os.Symlink(c.program.Program, filepath.Join(r.bin, "helm")))
	c.must(os.Symlink(filepath.Join(root, "deploy"), filepath.Join(r.root, "deploy")))
	c.must(os.Mkdir(filepath.Join(r.root, ".ci"), 0o700))
	c.must(os.Symlink(filepath.Join(r.bin, "run"), filepath.Join(r.root, ".ci", "run")))
	return r
}

// run runs a page's script.
func (r *reader) run(page, script string) {
	r.Helper()
	if values, err := os.ReadFile(r.valuesOf(page)); err == nil {
		r.must(os.WriteFile(filepath.Join(r.root, "values.yaml"), values, 0o600))
	}
	cmd := exec.CommandContext(r.ctx, "/bin/sh", "-eux", "-c", script)
	cmd.Dir = r.root
	cmd.Env = []string{
		"HOME=" + r.dir, "KUBECONFIG=" + shared.Kubeconfig(), "PATH=" + r.bin + ":/usr/bin:/bin",
		"QUEUE_URL=https://sqs.us-east-1.amazonaws.com/123456789012/nth",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Errorf("the commands of %s: %v\n%s", page, err, out)
	}
}

// valuesOf is the file with the last values of a page.
func (r *reader) valuesOf(page string) string {
	return filepath.Join(r.dir, filepath.Base(page)+".yaml")
}

// values expects a block to be values of the chart.
func (r *reader) values(b block) {
	r.Helper()
	if slices.ContainsFunc(notValues, func(begin string) bool { return strings.HasPrefix(b.text, begin) }) {
		if err := yaml.UnmarshalStrict([]byte(b.text), &map[string]any{}); err != nil {
			r.Errorf("%s: %v\n%s", b.page, err, b.text)
		}
		return
	}
	file := r.valuesOf(b.page)
	r.must(os.WriteFile(file, []byte(b.text), 0o600))
	args := []string{"template", "nth", r.chart, "--values", file}
	if !strings.Contains(b.text, "queueURL: ") {
		args = append(args, "--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth")
	}
	if _, err := r.program.Run(r.ctx, args...); err != nil {
		r.Errorf("%s: %v\n%s", b.page, err, b.text)
	}
}

// queuePolicy expects a statement that lets the named rule send, and no other.
func (r *reader) queuePolicy(b block) {
	r.Helper()
	p, err := policy.Parse(`{"Statement": [` + b.text + `]}`)
	r.must(err)
	for rule, want := range map[string]policy.Verdict{"RULE_ARN": policy.Allowed, "ANOTHER_ARN": policy.Refused} {
		if got := p.Evaluate(policy.Request{
			Service: "events.amazonaws.com", Action: "sqs:SendMessage", Resource: "QUEUE_ARN", Context: map[string]string{"aws:sourcearn": rule},
		}); got != want {
			r.Errorf("%s: the policy says %v to %s", b.page, got, rule)
		}
	}
}

// calls looks at the commands that were written down.
func (r *reader) calls() {
	r.Helper()
	log, err := os.ReadFile(r.log)
	r.must(err)
	template := string(r.source("deploy/cloudformation/node-termination-handler.yaml"))
	_, outputs, _ := strings.Cut(template, "\nOutputs:")
	used := map[string]bool{}
	for call := range strings.SplitSeq(strings.TrimSuffix(string(log), "end\n"), "\nend\n") {
		words := strings.Split(strings.TrimSpace(call), "\n")
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
	}
	for name := range notRun {
		if !used[name] {
			r.Errorf("the docs have no %s any more", name)
		}
	}
}
