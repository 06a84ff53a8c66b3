package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/httpserver"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/redact"
)

const (
	// leaderTimeout is how much longer than the API server, through which it is asked, the leader may take to answer. Who
	// waits for it looks at a screen.
	leaderTimeout = 3 * time.Second
	// answerLimit bounds an answer of the leader: a thousand nodes are some 500 kB.
	answerLimit = 32 << 20
	// metricsPort is the port of a leader whose Lease does not name it: that of an older release.
	metricsPort = "9092"
)

// A Viewer asks the leader what it knows, through the API server, and with the rights of a person: to get the
// Lease and to get pods/proxy in the namespace of the handler. It may be used concurrently.
type Viewer struct {
	client           kube.Client
	namespace, lease string // lease empty: it is searched
	ownPod           string // this process runs in it; empty: in none
}

// A Cluster says where the handler is. Each field may be empty.
type Cluster struct {
	Kubeconfig, Context string // as of kubectl
	Namespace, Lease    string // of the handler, and of its election; those of the chart
}

// NewViewer connects to the cluster: with the kubeconfig, as kubectl does, or in a pod with its ServiceAccount. The
// logs of the Kubernetes libraries are discarded. environ is a list as from os.Environ.
func NewViewer(c Cluster, environ []string) (*Viewer, error) {
	logging.Redirect(logr.Discard())
	env := options.Environment(environ)
	v := &Viewer{namespace: c.Namespace, lease: c.Lease}
	config, err := userConfig(c, env["KUBECONFIG"] != "")
	if err != nil {
		return nil, err
	}
	if inCluster := config.BearerTokenFile != ""; inCluster && c.Namespace == "" && env["POD_NAME"] != "" {
		v.namespace, v.ownPod = env["NAMESPACE"], env["POD_NAME"]
		v.lease = cmp.Or(v.lease, env["LEADER_ELECT_RESOURCE_NAME"])
	}
	config.QPS, config.Timeout = -1, requestTimeout
	config.Wrap(newTrimmer().Wrap)
	v.client, err = kube.New(config)
	return v, err
}

// Nodes are the names of the cluster's nodes, as an API server knows them that may be behind.
func (v *Viewer) Nodes(ctx context.Context) ([]string, error) {
	list, err := v.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	names := make([]string, len(list.Items))
	for k := range list.Items {
		names[k] = list.Items[k].Name
	}
	return names, nil
}

// userConfig returns how to reach the API server as a person does. files: a variable names kubeconfig files.
func userConfig(c Cluster, files bool) (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Context == "" && !files {
		config, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
	}
	config, _, err := app.KubeConfig(c.Kubeconfig, c.Context)
	return config, err
}

// A leader is who leads, as the Lease says.
type leader struct {
	*coordinationv1.Lease
	pod, port     string
	expired       bool          // the Lease has, by our clock
	silent, lasts time.Duration // since it was renewed, by our clock, and from then on
	delay         time.Duration // with which the API server answers
}

// An unreachable says why the leader was not asked, in a sentence for people. The API server answers all the same.
type unreachable struct {
	why        string
	leaderless bool    // nobody leads
	paused     *string // why the handler is paused; nil: it is not
	// pods is the namespace of the pods that can tell why nobody leads; empty: somebody does.
	pods string
	// never is what is so if there are such pods: none of them has led. Empty: one has.
	never string
}

func (u unreachable) Error() string { return u.why }

// leaderless is how long a Lease is not renewed where nobody leads: longer than another replica takes to lead, and than
// clocks differ.
const leaderless = 30 * time.Second

// unasked is the error that says why the leader was not asked.
func unasked(format string, args ...any) error { return unreachable{why: fmt.Sprintf(format, args...)} }

// leader finds out who leads. The error is unreachable if nobody does, or nobody says so.
func (v *Viewer) leader(ctx context.Context) (*leader, error) {
	asked := time.Now()
	l, err := v.findLease(ctx)
	if err != nil {
		return nil, err
	}
	delay := time.Since(asked)
	l = lease.LookAgain(ctx, v.client.CoordinationV1(), l)
	if why, paused := lease.Paused(l); paused { // who holds the Lease renews it all the same
		const known = "the handler is paused, so only what the nodes carry is known"
		return nil, unreachable{why: known, paused: &why, leaderless: deserted(l) != ""}
	}
	pod := holderOf(l)
	if pod == "" {
		why := fmt.Sprintf("nobody holds the Lease %s/%s: check that the handler's pods run", l.Namespace, l.Name)
		return nil, unreachable{why: why, leaderless: deserted(l) != "", pods: l.Namespace}
	}
	found := &leader{Lease: l, pod: pod, port: cmp.Or(l.Labels[app.PortLabel], metricsPort), delay: delay}
	if l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil {
		found.lasts = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
		found.silent = time.Since(l.Spec.RenewTime.Time)
		found.expired = found.silent > found.lasts
	}
	return found, nil
}

// holderOf is the name of the pod that holds the Lease; empty: nobody does.
func holderOf(l *coordinationv1.Lease) string {
	pod, _, _ := strings.Cut(ptr.Deref(l.Spec.HolderIdentity, ""), "_") // and a random part
	return pod
}

// findLease gets the Lease. Where its name, or its namespace, was not given and it is not where the chart's would be,
// it is found by its label.
func (v *Viewer) findLease(ctx context.Context) (*coordinationv1.Lease, error) {
	namespace, name := cmp.Or(v.namespace, options.ProgramName), cmp.Or(v.lease, options.ProgramName)
	const remedy = "name the Lease by --namespace and --lease"
	absent := func(others string) error {
		none := fmt.Sprintf("there is no Lease %s/%s", namespace, name)
		return unreachable{
			why:  none + others + ": " + remedy + ". In IMDS mode without a leader there is none",
			pods: namespace, never: "nobody has led so far: " + none,
		}
	}
	l, err := v.client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return l, nil
	case apierrors.IsForbidden(err):
		return nil, unasked("you lack the permission to get the Lease %s/%s: %s, or see docs/status.md for "+
			"the rights", namespace, name, remedy)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get the Lease %s/%s: %w", namespace, name, err)
	case v.namespace != "" && v.lease != "":
		return nil, absent("")
	}
	list, err := v.client.CoordinationV1().Leases(v.namespace).List(ctx, metav1.ListOptions{LabelSelector: app.PortLabel})
	if err == nil {
		isOther := func(l coordinationv1.Lease) bool { return v.lease != "" && l.Name != v.lease }
		list.Items = slices.DeleteFunc(list.Items, isOther)
	}
	switch {
	case err != nil || len(list.Items) == 0:
		return nil, absent(", and no other was found")
	case len(list.Items) > 1:
		var names []string
		for k := range list.Items {
			names = append(names, list.Items[k].Namespace+"/"+list.Items[k].Name)
		}
		return nil, unasked("there are the Leases %s: %s", strings.Join(names, ", "), remedy)
	}
	return &list.Items[0], nil
}

// ask gets what the leader serves on a path. The error is unreachable if there is no answer.
func (v *Viewer) ask(ctx context.Context, l *leader, path string, into any) error {
	unanswered := func(err error) error {
		u := unreachable{why: l.whyUnreachable(err), leaderless: l.nobodyLeads()}
		if u.leaderless {
			u.pods = l.Namespace
		}
		return u
	}
	switch {
	case l.port == app.NoPort && l.expired:
		return unanswered(nil)
	case l.port == app.NoPort:
		return unasked("pod %s leads and serves nothing: set enable-prometheus-server", l.pod)
	}
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout+l.delay)
	defer cancel()
	body, err := v.stream(ctx, l, path)
	if err != nil {
		return unanswered(err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, answerLimit))
	if err != nil {
		return unanswered(err)
	}
	if err := json.Unmarshal(text, into); err != nil || !ofLeader(into) {
		return unasked("the answer of pod %s on port %s is not one of this release: compare the versions",
			l.pod, l.port)
	}
	return nil
}

// ofLeader reports whether an answer has what each answer of a leader has. Another program may listen on the port,
// and JSON of others fits into any answer.
func ofLeader(answer any) bool {
	switch a := answer.(type) {
	case *overview.Overview:
		return a.Source == overview.Leader
	case *overview.History:
		return !a.At.IsZero()
	}
	return false
}

// stream asks through the API server. A pod of the handler lacks the right to that, and asks the leader's pod itself.
func (v *Viewer) stream(ctx context.Context, l *leader, path string) (io.ReadCloser, error) {
	host := "localhost"
	switch v.ownPod {
	case "":
		// The API server names the host by which it was asked, which the leader cannot know.
		proof := map[string]string{httpserver.Proof: *l.Spec.HolderIdentity}
		return v.client.CoreV1().Pods(l.Namespace).ProxyGet("", l.pod, l.port, path, proof).Stream(ctx)
	case l.pod:
	default:
		// The handler has the permission to list pods, and none to get one.
		list, err := v.client.CoreV1().Pods(l.Namespace).List(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: l.pod}))
		if err != nil {
			return nil, err
		}
		if len(list.Items) == 0 {
			return nil, apierrors.NewNotFound(corev1.Resource("pods"), l.pod)
		}
		if host = list.Items[0].Status.PodIP; host == "" { // the URL would be one of this pod
			return nil, unasked("pod %s/%s, which holds the Lease, has no address", l.Namespace, l.pod)
		}
	}
	return getDirectly(ctx, "http://"+net.JoinHostPort(host, l.port)+path)
}

// nobodyLeads reports whether no other replica leads either. Since the end of the Lease one could.
func (l *leader) nobodyLeads() bool { return l.expired && l.silent > leaderless }

// likely says what the likely reason is that it does not answer.
func (l *leader) likely() string {
	const next = "then another replica leads, mostly within 20 seconds"
	if l.silent > l.lasts/3 { // a leader renews it long before
		return fmt.Sprintf("it has not renewed its Lease for %s by the clock of this machine, so it has probably ended: %s",
			l.silent.Round(time.Second), next)
	}
	return "it may have ended just now: " + next
}

// whyUnreachable says what to do about an error of the leader, or on the way to it.
func (l *leader) whyUnreachable(err error) string {
	pod := fmt.Sprintf("pod %s/%s", l.Namespace, l.pod)
	about := "" // what the API server speaks of: the pod, or the pod with the port where the pod has answered
	status, isStatus := errors.AsType[*apierrors.StatusError](err)
	if isStatus && status.ErrStatus.Details != nil {
		about = status.ErrStatus.Details.Name
	}
	why, isUnreachable := errors.AsType[unreachable](err)
	switch {
	case l.nobodyLeads():
		return fmt.Sprintf("nobody leads: %s has not renewed its Lease for %s. Check that the handler's pods run",
			pod, overview.Length(l.silent))
	case isUnreachable:
		return why.why
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("you lack the permission to get pods/proxy in namespace %s: see docs/status.md for the rights",
			l.Namespace)
	case l.expired:
		return fmt.Sprintf("%s has not renewed its Lease for %s by the clock of this machine: another replica leads "+
			"within %s of that, or nobody does", pod, overview.Length(l.silent), overview.Length(leaderless))
	case apierrors.IsNotFound(err) && about == l.pod:
		return fmt.Sprintf("%s, which holds the Lease, does not exist: another replica leads within 20 seconds", pod)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("%s does not know the path: it is of an older release", pod)
	case errors.Is(err, context.DeadlineExceeded) && l.delay >= time.Second:
		return fmt.Sprintf("the API server answers after %s, and %s not within %s more", overview.Length(l.delay), pod,
			leaderTimeout)
	case errors.Is(err, context.DeadlineExceeded) || apierrors.IsTimeout(err):
		return fmt.Sprintf("%s does not answer on port %s within %s: %s. "+
			"If that lasts, a NetworkPolicy must let the API server in", pod, l.port, leaderTimeout, l.likely())
	case apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "trying to reach service"):
		return fmt.Sprintf("the API server cannot reach %s on port %s: %s. "+
			"If that lasts, a NetworkPolicy or a firewall must let it through", pod, l.port, l.likely())
	case apierrors.IsServiceUnavailable(err),
		isStatus && status.ErrStatus.Code == http.StatusMisdirectedRequest: // the Lease is not of this process
		return fmt.Sprintf("%s does not lead any more: try again", pod)
	case isStatus:
		return fmt.Sprintf("%s cannot be asked on port %s: the answer is: %s", pod, l.port, status.ErrStatus.Message)
	}
	return fmt.Sprintf("%s cannot be asked on port %s: %v", pod, l.port, redact.Error(err))
}
