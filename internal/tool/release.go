package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// A Release is an installed handler, with the options that its Deployment gives it or its
// pod has.
type Release struct {
	kind            string // of the object: Deployment, Pod
	namespace, name string
	ready           bool // at least one replica is
	options         options.Source
	// unread has the environment variables whose values are not read, because they are in
	// Secrets. The value of the map names the Secret and its key.
	unread map[string]string
	// unreadAll are the Secrets of which each key is a variable.
	unreadAll []string
	// mounts and volumes are those of the container; none where the tool runs in it.
	mounts  []corev1.VolumeMount
	volumes []corev1.Volume
}

func (r *Release) String() string { return r.kind + " " + r.namespace + "/" + r.name }

// The label of what the chart and deploy/manifests install. Its value is the name of the
// program, or nthName for a release that was one of AWS Node Termination Handler before.
const (
	nameLabel = "app.kubernetes.io/name"
	nthName   = "aws-node-termination-handler"
)

// labelled selects the objects of a release.
var labelled = metav1.ListOptions{LabelSelector: fmt.Sprintf("%s in (%s, %s)", nameLabel, options.ProgramName, nthName)}

var (
	// errNoRelease says that the cluster has no Deployment that looks like one of the handler.
	errNoRelease = errors.New("no Deployment of the handler has the label " + nameLabel)
	// errSeveralReleases says that the user has to choose one.
	errSeveralReleases = errors.New("pick one by --release NAMESPACE/NAME")
)

// findRelease finds the handler's Deployment and reads its options. which is
// NAMESPACE/NAME; if it is empty there must be only one in the cluster. Where there is none, it reads those of the
// DaemonSet in which each pod serves its own node. The error is errNoRelease if there is none either.
func findRelease(ctx context.Context, client kube.Client, which string) (*Release, error) {
	if which != "" {
		namespace, name, _ := strings.Cut(which, "/")
		d, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("get the Deployment of release %s: %w", which, err)
		}
		return readRelease(ctx, client, "Deployment", d)
	}
	list, err := client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, labelled)
	if err != nil {
		return nil, fmt.Errorf("list the Deployments with the label %s: %w", nameLabel, err)
	}
	var names []string
	var found *appsv1.Deployment
	for k := range list.Items {
		if d := &list.Items[k]; containerOf(d) != nil {
			found = d
			names = append(names, d.Namespace+"/"+d.Name)
		}
	}
	switch len(names) {
	case 0:
		return onNodes(ctx, client)
	case 1:
		return readRelease(ctx, client, "Deployment", found)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("%d releases of the handler are in the cluster: %s; %w",
		len(names), strings.Join(names, ", "), errSeveralReleases)
}

// onNodes is findRelease for the DaemonSets of the IMDS mode: the first, because that for Windows has the same options.
func onNodes(ctx context.Context, client kube.Client) (*Release, error) {
	list, err := client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, labelled)
	if err != nil {
		return nil, errNoRelease // nor may the caller look for others
	}
	for _, s := range list.Items {
		d := &appsv1.Deployment{ObjectMeta: s.ObjectMeta, Spec: appsv1.DeploymentSpec{Template: s.Spec.Template}}
		d.Status.ReadyReplicas = s.Status.NumberReady
		if c := containerOf(d); c != nil && namesLease(c) {
			return readRelease(ctx, client, "DaemonSet", d)
		}
	}
	return nil, errNoRelease
}

// containerOf returns the handler's container, nil if there is none. In a mirror the image can have any name, that of
// AWS Node Termination Handler too, whose own container knows no Lease.
func containerOf(d *appsv1.Deployment) *corev1.Container {
	pod := &d.Spec.Template.Spec
	find := func(is func(*corev1.Container) bool) *corev1.Container {
		for k := range pod.Containers {
			if c := &pod.Containers[k]; (doctor.ImageName(c.Image) != nthName || namesLease(c)) && is(c) {
				return c
			}
		}
		return nil
	}
	main := d.Spec.Template.Annotations["kubectl.kubernetes.io/default-container"]
	return cmp.Or(
		find(func(c *corev1.Container) bool { return doctor.ImageName(c.Image) == options.ProgramName }),
		find(func(c *corev1.Container) bool { return c.Name == options.ProgramName }),
		find(func(c *corev1.Container) bool { return c.Name == main || len(pod.Containers) == 1 }),
	)
}

func namesLease(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "LEADER_ELECT_RESOURCE_NAME" })
}

// readRelease reads the options that a Deployment, or what is of another kind and has its form, gives to the handler's
// container.
func readRelease(ctx context.Context, client kube.Client, kind string, d *appsv1.Deployment) (*Release, error) {
	r := &Release{
		kind: kind, namespace: d.Namespace, name: d.Name, ready: d.Status.ReadyReplicas > 0,
		unread: map[string]string{},
	}
	c := containerOf(d)
	if c == nil {
		return nil, fmt.Errorf("%s has no container of the handler: name the container %s, "+
			"or choose another release by --release", r, options.ProgramName)
	}
	r.mounts, r.volumes = c.VolumeMounts, d.Spec.Template.Spec.Volumes
	env, err := r.environment(ctx, client.CoreV1(), c)
	if err != nil {
		return nil, err
	}
	args := slices.Clone(c.Args)
	if len(c.Command) > 0 {
		if path.Base(c.Command[0]) != options.ProgramName {
			return nil, fmt.Errorf("%s starts %s, whose options cannot be read; use --release none, and set the options",
				r, c.Command[0])
		}
		args = slices.Concat(c.Command[1:], args)
	}
	for k := range args {
		args[k] = expand(args[k], env)
	}
	flags, err := handlerFlags(args)
	if err != nil {
		return nil, fmt.Errorf("read the options of %s: %w", r, err)
	}
	for name, text := range env {
		env[name] = strings.TrimSpace(text)
	}
	maps.DeleteFunc(env, func(_, text string) bool { return text == "" })
	// The handler knows its namespace from its ServiceAccount, if no variable names it.
	env["NAMESPACE"] = cmp.Or(env["NAMESPACE"], r.namespace)
	r.options = options.Source{Flags: flags, Env: env, Of: " of " + r.String()}
	return r, nil
}

// handlerFlags parses the arguments of a handler, which has flags only.
func handlerFlags(args []string) (*pflag.FlagSet, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(flags)
	normal, wrong := options.NormaliseArgs(flags, args)
	if err := flags.Parse(normal); err != nil {
		return nil, err
	}
	return flags, append(wrong, options.UnexpectedArgs(flags.Args())...).Err()
}

// ownPod returns the release in whose pod this process runs. The variables of the handler
// are those of this process. Its flags are in cmdline, if that is of the handler's process.
func ownPod(env map[string]string, cmdline string) *Release {
	r := &Release{
		kind: "Pod", namespace: env["NAMESPACE"], name: env["POD_NAME"], ready: true,
		options: options.Source{Env: env},
	}
	args := strings.Split(strings.TrimSuffix(cmdline, "\x00"), "\x00")
	if path.Base(args[0]) == options.ProgramName {
		if flags, err := handlerFlags(args[1:]); err == nil {
			r.options.Flags = flags
		}
	}
	r.options.Of = " of " + r.String()
	return r
}

// environment returns the variables of a container that can be read, and records the others.
func (r *Release) environment(
	ctx context.Context, client typedcorev1.ConfigMapsGetter, c *corev1.Container,
) (map[string]string, error) {
	env := map[string]string{}
	configMap := func(name string, optional *bool) (map[string]string, error) {
		m, err := client.ConfigMaps(r.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && ptr.Deref(optional, false):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read the options of %s: get ConfigMap %s: %w", r, name, err)
		}
		return m.Data, nil
	}
	for _, from := range c.EnvFrom {
		switch {
		case from.ConfigMapRef != nil:
			data, err := configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			if err != nil {
				return nil, err
			}
			for key, text := range data {
				env[from.Prefix+key] = text
			}
		case from.SecretRef != nil:
			r.unreadAll = append(r.unreadAll, "Secret "+from.SecretRef.Name)
		}
	}
	for _, e := range c.Env { // the last one of a name counts
		delete(env, e.Name)
		delete(r.unread, e.Name)
		from := e.ValueFrom
		switch {
		case from == nil:
			env[e.Name] = expand(e.Value, env)
		case from.ConfigMapKeyRef != nil:
			data, err := configMap(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
			if err != nil {
				return nil, err
			}
			env[e.Name] = data[from.ConfigMapKeyRef.Key]
		case from.SecretKeyRef != nil:
			r.unread[e.Name] = fmt.Sprintf("key %s of Secret %s", from.SecretKeyRef.Key, from.SecretKeyRef.Name)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			env[e.Name] = r.namespace
		}
	}
	return env, nil
}

// reference matches a variable in an argument, or two dollars, which stand for one.
// https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
var reference = regexp.MustCompile(`\$\$|\$\([A-Za-z_][A-Za-z0-9_.-]*\)`)

// expand replaces $(NAME) as the kubelet does. A variable that does not exist stays as it is
// written.
func expand(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := env[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

// holds returns what holds the value of an option that is not read. It is empty if the
// option is read, or is not given.
func (r *Release) holds(o *options.Option) string {
	for _, n := range append([]options.Names{o.Names}, o.Older...) {
		if what, ok := r.unread[n.Env]; ok {
			return what
		}
	}
	return ""
}
