package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// deployment is one as the chart makes it.
func deployment(namespace, name string, edit ...func(*corev1.Container)) *appsv1.Deployment {
	c := corev1.Container{Name: options.ProgramName, Image: "r.example.com/team/" + options.ProgramName + ":1.0", Env: []corev1.EnvVar{{Name: "QUEUE_URL", Value: testQueue}}}
	for _, e := range edit {
		e(&c)
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{nameLabel: options.ProgramName}},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: 2},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "proxy", Image: "proxy:2", Args: []string{"--verbose"}}, c},
		}}},
	}
}

func variable(name, value string) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) }
}

func variableFrom(name string, from corev1.EnvVarSource) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &from})
	}
}

func fromSecret(secret, key string) corev1.EnvVarSource {
	return corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key}}
}

func fromConfigMap(configMap, key string, optional ...bool) corev1.EnvVarSource {
	ref := &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Key: key}
	if len(optional) > 0 {
		ref.Optional = &optional[0]
	}
	return corev1.EnvVarSource{ConfigMapKeyRef: ref}
}

func fromField(path string) corev1.EnvVarSource {
	return corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func withArgs(args ...string) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Args = args }
}

func TestTheReleaseIsFoundByItsLabelOrByName(t *testing.T) {
	renamed := deployment("old", "nth") // a release of AWS Node Termination Handler, upgraded in place
	renamed.Labels[nameLabel] = nthName
	theirs := deployment("kube-system", "aws-nth", func(c *corev1.Container) {
		c.Name, c.Image = nthName, "public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25.0"
	})
	theirs.Labels[nameLabel] = nthName
	theirs.Spec.Template.Spec.Containers = theirs.Spec.Template.Spec.Containers[1:]
	mirrored := deployment("old", "nth", func(c *corev1.Container) {
		c.Image = "r/aws-node-termination-handler:0.1.0"
		c.Env = append(c.Env, corev1.EnvVar{Name: "LEADER_ELECT_RESOURCE_NAME", Value: "nth"})
	})
	mirrored.Spec.Template.Spec.Containers = mirrored.Spec.Template.Spec.Containers[1:]
	unlabelled := deployment("own", "drainer")
	unlabelled.Labels = nil
	for name, tt := range map[string]struct {
		installed []*appsv1.Deployment
		which     string
		want      string // the release, or a part of the error
	}{
		"the only one":                 {[]*appsv1.Deployment{deployment("a", "nth")}, "", "Deployment a/nth"},
		"one that was NTH before":      {[]*appsv1.Deployment{renamed}, "", "Deployment old/nth"},
		"from a mirror of NTH's name":  {[]*appsv1.Deployment{mirrored}, "", "Deployment old/nth"},
		"beside NTH":                   {[]*appsv1.Deployment{theirs, deployment("a", "nth")}, "", "Deployment a/nth"},
		"none":                         {[]*appsv1.Deployment{theirs}, "", "no Deployment of the handler has the label app.kubernetes.io/name"},
		"two":                          {[]*appsv1.Deployment{deployment("b", "nth"), deployment("a", "nth")}, "", "2 releases of the handler are in the cluster: a/nth, b/nth; pick one by --release NAMESPACE/NAME"},
		"one of two":                   {[]*appsv1.Deployment{deployment("b", "nth"), deployment("a", "nth")}, "b/nth", "Deployment b/nth"},
		"one without the label":        {[]*appsv1.Deployment{unlabelled}, "own/drainer", "Deployment own/drainer"},
		"one that is not there":        {nil, "a/b", `get the Deployment of release a/b: deployments.apps "b" not found`},
		"one that is AWS's":            {[]*appsv1.Deployment{theirs}, "kube-system/aws-nth", "Deployment kube-system/aws-nth has no container of the handler"},
		"one that a shell starts":      {[]*appsv1.Deployment{deployment("a", "nth", func(c *corev1.Container) { c.Command = []string{"/bin/sh", "-c"} })}, "", "starts /bin/sh"},
		"one with options of its own":  {[]*appsv1.Deployment{deployment("a", "nth", withArgs("--wrokers=1"))}, "", "did you mean --workers?"},
		"one with its command":         {[]*appsv1.Deployment{deployment("a", "nth", func(c *corev1.Container) { c.Command = []string{"/" + options.ProgramName, "--workers=1"} })}, "", "Deployment a/nth"},
		"a ConfigMap that is not read": {[]*appsv1.Deployment{deployment("a", "nth", variableFrom("WORKERS", fromConfigMap("nth", "w")))}, "", "get ConfigMap nth"},
	} {
		client := fake.NewClientset()
		for _, d := range tt.installed {
			if err := client.Tracker().Add(d); err != nil {
				t.Fatal(err)
			}
		}
		r, err := findRelease(t.Context(), client, tt.which)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = r.String()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// In IMDS mode there is no Deployment: the DaemonSet has the options, and what speaks about a leader says that there is
// none.
func TestInIMDSModeTheDaemonSetTells(t *testing.T) {
	d := deployment("a", "nth", variable("LEADER_ELECT_RESOURCE_NAME", "nth"), variable("ENABLE_SQS_TERMINATION_DRAINING", "false"),
		variable("ENABLE_REBALANCE_DRAINING", "true"), variableFrom("NODE_NAME", fromField("spec.nodeName")))
	ours := &appsv1.DaemonSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Template: d.Spec.Template}, Status: appsv1.DaemonSetStatus{NumberReady: 2}}
	d = deployment("kube-system", "aws-nth", func(c *corev1.Container) { c.Name, c.Image = nthName, "r/aws-node-termination-handler:v1" })
	d.Spec.Template.Spec.Containers = d.Spec.Template.Spec.Containers[1:]
	theirs := &appsv1.DaemonSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Template: d.Spec.Template}}
	r, err := findRelease(t.Context(), fake.NewClientset(theirs, ours), "")
	if err != nil || r.String() != "DaemonSet a/nth" || !r.ready {
		t.Fatalf("%v, %v", r, err)
	}
	if _, err := findRelease(t.Context(), fake.NewClientset(theirs), ""); !errors.Is(err, errNoRelease) {
		t.Errorf("NTH's DaemonSet: %v", err)
	}
	origin := &Origin{release: r}
	opts, err := Loader{QueueOptional: true}.merge(origin, options.Source{}, options.Source{})
	if err != nil || !opts.IMDS || !opts.RebalanceDraining {
		t.Errorf("%+v, %v", opts, err)
	}
	if _, err := (Loader{}).merge(origin, options.Source{}, options.Source{}); err == nil || !strings.Contains(err.Error(), "docs/imds.md") {
		t.Errorf("what speaks about a leader: %v", err)
	}
}

func TestWhereTheReleaseIsNotKnownToolsGoOnOnlyIfThatHarmsNobody(t *testing.T) {
	for name, tt := range map[string]struct {
		use    Loader
		which  string
		status int // of the API server's answer; 0: what deployments has
		found  []*appsv1.Deployment
		want   string // a part of the error; empty: it goes on by the command line, and says why in why
		why    string
	}{
		"none, for what acts":                 {use: Loader{Strict: true}, why: "no Deployment of the handler has the label"},
		"none named":                          {use: Loader{Strict: true}, which: "none", status: 403, why: "as --release none says"},
		"no right to list, for what acts":     {use: Loader{Strict: true}, status: 403, want: "the options of the handler are unknown: name its Deployment by --release"},
		"no right to list, for a rehearsal":   {use: Loader{}, status: 403, want: "or set the options yourself with --release none"},
		"no right to list, for an inspection": {use: Loader{WithoutCluster: true}, status: 403, why: "list the Deployments with the label"},
		"no right to get, for an inspection":  {use: Loader{WithoutCluster: true}, which: "a/nth", status: 403, want: "get the Deployment of release a/nth"},
		"several, for an inspection": {
			use: Loader{WithoutCluster: true}, found: []*appsv1.Deployment{deployment("a", "nth"), deployment("b", "nth")},
			want: "2 releases of the handler are in the cluster: a/nth, b/nth; pick one by --release NAMESPACE/NAME",
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if tt.status != 0 {
				http.Error(w, "no", tt.status)
				return
			}
			list := appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DeploymentList"}}
			for _, d := range tt.found {
				list.Items = append(list.Items, *d)
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}))
		path := filepath.Join(t.TempDir(), "kubeconfig")
		text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}],
			"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, server.URL)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		options.Register(flags)
		if err := flags.Parse([]string{"--queue-url=" + testQueue, "--kubeconfig=" + path}); err != nil {
			t.Fatal(err)
		}
		c, b, err := tt.use.Load(t.Context(), flags, nil, tt.which, nil)
		server.Close()
		switch {
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		case tt.want == "" && (err != nil || b.release != nil || !strings.Contains(b.describe(), tt.why) || c.Queue.Text != testQueue):
			t.Errorf("%s: error %v, basis %+v", name, err, b)
		}
	}
}

// goBy loads the options of a tool beside a release.
func goBy(t *testing.T, use Loader, d *appsv1.Deployment, args, environ []string, others ...*corev1.ConfigMap) (*options.Options, *Origin, error) {
	t.Helper()
	client := fake.NewClientset(d)
	for _, m := range others {
		if err := client.Tracker().Add(m); err != nil {
			t.Fatal(err)
		}
	}
	r, err := findRelease(t.Context(), client, d.Namespace+"/"+d.Name)
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(flags)
	normal, wrong := options.NormaliseArgs(flags, args)
	if err := errors.Join(wrong.Err(), flags.Parse(normal)); err != nil {
		t.Fatal(err)
	}
	b := &Origin{release: r}
	c, err := use.merge(b, options.Source{Flags: flags}, options.Source{Flags: flags, Env: options.Environment(environ)})
	return c, b, err
}

func TestAToolGoesByTheOptionsOfTheDeployment(t *testing.T) {
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: "settings"}, Data: map[string]string{"tag": "team/managed", "POD_TERMINATION_GRACE_PERIOD": "45"}}
	d := deployment(
		"nth", "nth", variable("CORDON_ONLY", "true"), variable("WORKERS", " 3\n"), variable("DRY_RUN", ""),
		variableFrom("MANAGED_TAG", fromConfigMap("settings", "tag")), variableFrom("CLUSTER_NAME", fromConfigMap("gone", "name", true)),
		variableFrom("POD_NAME", fromField("metadata.name")), variableFrom("NAMESPACE", fromField("metadata.namespace")),
		variableFrom("WEBHOOK_URL", fromSecret("nth", "webhook")), // of no concern
		variable("WAIT", "600"), variable("AWS_ENDPOINT", "http://in.the.cluster"), variable("LOG_LEVEL", "debug"),
		func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		},
		withArgs("-node-termination-grace-period", "$(WAIT)", "--workers=4"),
	)
	laptop := []string{
		"QUEUE_URL=https://sqs.eu-west-1.amazonaws.com/210987654321/mine", "AWS_REGION=eu-west-1", "CORDON_ONLY=false", "POD_NAME=shell", "NODE_NAME=desk",
		"CHECK_TAG_BEFORE_DRAINING=false", "MAX_UNREADY_NODES=1", "AWS_ENDPOINT=http://127.0.0.1:1", "KUBECONFIG=/home/me/.kube/config",
	}
	got, b, err := goBy(t, Loader{Strict: true}, d, nil, laptop, settings)
	if err != nil {
		t.Fatal(err)
	}
	want, err := parseOptions([]string{
		"--queue-url=" + testQueue, "--cordon-only", "--workers=4", "--managed-tag=team/managed", "--node-termination-grace-period=600",
		"--pod-termination-grace-period=45", "--pod-namespace=nth", "--aws-endpoint=http://127.0.0.1:1", "--kubeconfig=/home/me/.kube/config",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want.Changed, got.Changed = nil, nil
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(options.QueueURL{})); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if b.notes != nil {
		t.Errorf("notes %q", b.notes)
	}
	if got, want := b.line(identity{"arn:aws:iam::1:user/me", "admin"}), "With the options of Deployment nth/nth; in AWS as arn:aws:iam::1:user/me; in Kubernetes with the rights of admin"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
}

func TestTheRegionIsTheToolsOwnOnlyWhereNothingOfTheReleaseSaysIt(t *testing.T) {
	const elsewhere = "http://localhost:4566/123456789012/nth"
	at := func(url string, edit ...func(*corev1.Container)) *appsv1.Deployment {
		d := deployment("a", "nth", edit...)
		d.Spec.Template.Spec.Containers[1].Env[0].Value = url
		return d
	}
	for name, tt := range map[string]struct {
		d    *appsv1.Deployment
		want string
	}{
		"the queue says it":      {at(testQueue), "us-east-1"},
		"the Deployment says it": {at(elsewhere, variable("AWS_REGION", "eu-central-1")), "eu-central-1"},
		"nobody else says it":    {at(elsewhere), "ap-south-1"},
	} {
		c, _, err := goBy(t, Loader{Strict: true}, tt.d, nil, []string{"AWS_REGION=ap-south-1"})
		if err != nil || c.Region != tt.want {
			t.Errorf("%s: region %q, want %q; error %v", name, c.Region, tt.want, err)
		}
	}
}

func TestAnOptionThatContradictsTheReleaseIsAMistakeOfWhatActsAndANoteOfTheOthers(t *testing.T) {
	d := deployment("a", "nth", variable("WORKERS", "3"))
	for name, tt := range map[string]struct {
		args []string
		want string // a part of the mistake and of the note; empty: none
	}{
		"another value than the default": {[]string{"--cordon-only"}, `cordon-only: "true" (from --cordon-only), but Deployment a/nth has "false"`},
		"another value":                  {[]string{"--workers=5"}, `workers: "5" (from --workers), but Deployment a/nth has "3"`},
		"by an older name":               {[]string{"--managed-asg-tag=x"}, `managed-tag: "x" (from --managed-asg-tag)`},
		"the same value":                 {[]string{"--workers=3"}, ""},
		"the same, in other words":       {[]string{"--cordon-only=0", "--event-accounts=123456789012", "--aws-region=us-east-1"}, ""},
		"what is the tool's own":         {[]string{"--aws-endpoint=http://127.0.0.1:1", "--log-level=debug", "--kubeconfig=x"}, ""},
	} {
		_, _, err := goBy(t, Loader{Strict: true}, d, tt.args, nil)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "--release none") {
			t.Errorf("%s: no way out is named: %v", name, err)
		}
		_, b, err := goBy(t, Loader{}, d, tt.args, nil)
		if notes := strings.Join(b.notes, "\n"); err != nil || !strings.Contains(notes, tt.want) || (notes != "") != (tt.want != "") {
			t.Errorf("%s, where it counts: notes %q, error %v", name, notes, err)
		}
	}
	if c, _, err := goBy(t, Loader{}, d, []string{"--workers=5"}, nil); err != nil || c.Workers != 5 {
		t.Errorf("of a tool that does not act the command line counts: workers %d, error %v", c.Workers, err)
	}
}

func TestAnOptionInASecretIsNotReadAndThatIsSaid(t *testing.T) {
	queue := deployment("a", "nth", variableFrom("QUEUE_URL", fromSecret("queues", "url")))
	tag := deployment("a", "nth", variableFrom("MANAGED_TAG", fromSecret("tags", "key")))
	all := deployment("a", "nth", func(c *corev1.Container) {
		c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "everything"}}}}
	})
	for name, tt := range map[string]struct {
		use  Loader
		d    *appsv1.Deployment
		args []string
		want string // a part of the error or the note
	}{
		"the queue, for what needs it":      {Loader{}, queue, nil, "queue-url: comes from key url of Secret queues, which is not read: set --queue-url"},
		"the queue, for what does not":      {Loader{QueueOptional: true}, queue, nil, "queue-url comes from key url of Secret queues"},
		"the queue, given":                  {Loader{Strict: true}, queue, []string{"--queue-url=" + testQueue}, ""},
		"an option, for what acts":          {Loader{Strict: true}, tag, nil, "managed-tag: comes from key key of Secret tags"},
		"an option, for what does not":      {Loader{}, tag, nil, "managed-tag comes from key key of Secret tags, which is not read: this answer uses the default"},
		"nobody knows which, for any of it": {Loader{}, all, nil, "Secret everything is a source of variables and is not read"},
	} {
		_, b, err := goBy(t, tt.use, tt.d, tt.args, nil)
		got := strings.Join(b.notes, "\n")
		if err != nil {
			got += err.Error()
		}
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestInTheHandlersPodItsOwnFlagsAndVariablesCount(t *testing.T) {
	env := map[string]string{"POD_NAME": "nth-1", "NAMESPACE": "nth", "QUEUE_URL": testQueue, "WORKERS": "3"}
	for name, tt := range map[string]struct {
		cmdline string
		workers int
	}{
		"the handler's":              {"/node-termination-handler\x00--workers=4\x00", 4},
		"another process's":          {"/pause\x00--workers=4\x00", 3},
		"a command's":                {"/node-termination-handler\x00doctor\x00--workers=4\x00", 3},
		"what is none of our flags":  {"/node-termination-handler\x00--wrokers=4\x00", 3},
		"nothing that could be read": {"", 3},
	} {
		b := &Origin{release: ownPod(env, tt.cmdline)}
		if got, want := b.describe(), "options of Pod nth/nth-1"; got != want {
			t.Errorf("%s: says %q, want %q", name, got, want)
		}
		c, err := Loader{Strict: true}.merge(b, options.Source{}, options.Source{Env: env})
		if err != nil || c.Workers != tt.workers || c.PodName != "nth-1" {
			t.Errorf("%s: %d workers, want %d; pod %q; error %v", name, c.Workers, tt.workers, c.PodName, err)
		}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		options.Register(flags)
		if err := flags.Parse([]string{"--cordon-only"}); err != nil {
			t.Fatal(err)
		}
		if _, err := (Loader{Strict: true}).merge(b, options.Source{Flags: flags}, options.Source{Env: env}); err == nil {
			t.Errorf("%s: what acts takes an option that the handler does not have", name)
		}
	}
}

func TestAReleaseThatDoesNotRunIsNoted(t *testing.T) {
	d := deployment("a", "nth")
	d.Status.ReadyReplicas = 0
	if _, b, err := goBy(t, Loader{}, d, nil, nil); err != nil || len(b.notes) != 1 || !strings.Contains(b.notes[0], "no replica of Deployment a/nth is ready") {
		t.Errorf("notes %q, error %v", b.notes, err)
	}
}

func TestMistakesInTheOptionsOfTheReleaseAreSaidToBeThere(t *testing.T) {
	_, _, err := goBy(t, Loader{}, deployment("a", "nth", variable("WORKERS", "ten")), nil, nil)
	if want := `workers: "ten" (from WORKERS of Deployment a/nth) is not a whole number`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// Whoever adds an option that only a process's own surroundings can decide adds it here.
func TestTheOptionsThatAreAToolsOwnAreThoseOfConnectingAndShowing(t *testing.T) {
	var own []string
	for _, o := range options.Table() {
		if o.Owner != options.OfRelease {
			own = append(own, o.Flag)
		}
	}
	want := []string{
		"aws-region", "aws-endpoint",
		"kubeconfig", "kube-api-qps", "kube-api-burst", "kubernetes-service-host", "kubernetes-service-port",
		"log-level", "json-logging", "enable-prometheus-server", "prometheus-server-port", "bind-address", "allowed-hosts", "status-page", "enable-probes-server", "probes-server-port", "probes-server-endpoint",
	}
	if diff := cmp.Diff(want, own); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVariablesAreExpandedAsTheKubeletDoes(t *testing.T) {
	env := map[string]string{"A": "1"}
	for text, want := range map[string]string{"$(A)": "1", "x$(A)y": "x1y", "$(B)": "$(B)", "$$(A)": "$(A)", "$A": "$A", "": ""} {
		if got := expand(text, env); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// A tool that acts does not guess: options that nobody can read, one by one from a Secret,
// are a mistake, and so they have to be where all of a Secret's keys are variables.
func TestWhatActsRefusesASecretOfWhichEachKeyIsAVariable(t *testing.T) {
	all := deployment("a", "nth", func(c *corev1.Container) {
		c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "everything"}}}}
	})
	if c, b, err := goBy(t, Loader{Strict: true}, all, nil, nil); err == nil {
		t.Errorf("simulate acts by defaults (cordon-only %t, managed-tag %q); notes %q", c.CordonOnly, c.ManagedTag, b.notes)
	}
}
