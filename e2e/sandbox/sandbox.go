// Package sandbox runs a Kubernetes control plane for a test: kube-apiserver,
// etcd, kube-controller-manager and kube-scheduler as they are released, and
// KWOK as the kubelet of every node, so that a pod runs, gets ready and stops
// without a container. All of it is processes on loopback; it takes Go to build
// them once, and neither Docker nor kubectl. KUBERNETES=1.35 in the environment
// chooses a version of Kubernetes.
//
// Any number of clusters run side by side. None outlives the program that
// started it, whatever way that ends; only its directory under the temporary
// directory stays behind when Stop was not called.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say how a cluster is made. The zero value is a good one.
type Options struct {
	Binaries       Binaries  // zero: those of Build
	Out            io.Writer // gets the progress of Build; nil: nobody does
	APIServerFlags []string  // such as --max-requests-inflight=50; they win over the sandbox's own
	// ControllerManagerFlags win over the sandbox's own, but for --controllers: its values are added.
	ControllerManagerFlags []string
	KeepDir                bool // leaves the directory with the logs and the audit log when the cluster stops
}

// Cluster is a running control plane. Its methods may be called concurrently.
type Cluster struct {
	Etcd              *Component
	APIServer         *Component
	ControllerManager *Component
	Scheduler         *Component
	KWOK              *Component

	dir     string
	keep    bool
	version string // of Kubernetes, such as v1.36.3
	config  *rest.Config
	client  kubernetes.Interface
	ca      []byte
	audit   auditLog

	mu          sync.Mutex
	kubeconfigs int        // service account kubeconfigs written, to name the next
	karpenter   *Component // nil: it was not added
}

// etcdSocket is a file in the cluster's directory; hack/controlplane says why
// it looks like that.
const etcdSocket = "etcd.sock:0"

// errPortTaken: another program took a port between our choosing it and our using it.
var errPortTaken = errors.New("a port was taken by another program")

// Start builds the binaries where necessary, starts a cluster without nodes and
// returns when it can be worked with: the API server is ready, the controllers
// have made the default ServiceAccount, KWOK is there. That takes some 5 s, or
// what is left of ctx's time at most, which has no meaning for the cluster
// afterwards. The error of a component that does not come up has the end of
// its log. Nothing is left behind by a Start that fails, but the directory
// with KeepDir.
//
// The caller must call Stop.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Out == nil {
		options.Out = io.Discard
	}
	if options.Binaries == (Binaries{}) {
		var err error
		if options.Binaries, err = Build(ctx, options.Out); err != nil {
			return nil, err
		}
	}
	// A machine with two cores that compiles something else takes a minute. This is a guard against waiting for ever.
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("it took longer than 5 minutes"))
	defer cancel()
	// The components take no open sockets, only port numbers, so that a port
	// can be lost between choosing and using it. Twice in a row is bad luck,
	// five times is something else.
	var err error
	for range 5 {
		var c *Cluster
		if c, err = start(ctx, options); err == nil {
			return c, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, fmt.Errorf("start a control plane: %w", err)
}

func start(ctx context.Context, options Options) (_ *Cluster, err error) {
	dir, err := os.MkdirTemp(tempDir(), "sandbox-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		dir:     dir,
		keep:    options.KeepDir,
		version: options.Binaries.Kubernetes,
		audit:   auditLog{path: filepath.Join(dir, auditFile)},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return nil, fmt.Errorf("choose ports: %w", err)
	}
	if err := c.configure(options, ports[0], ports[1]); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}

	// What needs the API server would only wait for it in its own, slower, way.
	for _, component := range []*Component{c.Etcd, c.APIServer} {
		if err := c.startOnPort(ctx, component); err != nil {
			return nil, err
		}
	}
	others := []*Component{c.ControllerManager, c.Scheduler, c.KWOK}
	results := make(chan error, len(others))
	for _, component := range others {
		go func() { results <- c.startOnPort(ctx, component) }()
	}
	for range others {
		err = errors.Join(err, <-results)
	}
	return c, err
}

// startOnPort starts a component and knows a taken port from other failures.
func (c *Cluster) startOnPort(ctx context.Context, component *Component) error {
	err := component.Start(ctx)
	if err != nil && strings.Contains(component.logTail(50), "address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// configure writes the files of the cluster and fills in its components.
func (c *Cluster) configure(options Options, apiPort, kwokPort int) error {
	users := []string{Admin, userControllerManager, userScheduler, userKWOK}
	ca, tokens, err := writeCredentials(c.dir, users)
	if err != nil {
		return fmt.Errorf("make credentials: %w", err)
	}
	server := fmt.Sprintf("https://127.0.0.1:%d", apiPort)
	for _, user := range users {
		if err := WriteKubeconfig(c.kubeconfigOf(user), server, ca, user, tokens[user]); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, auditPolicyFile), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	// The log is there before the first request is.
	if err := os.WriteFile(c.audit.path, nil, 0o600); err != nil {
		return err
	}
	c.ca = ca
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.config.QPS = -1 // no limit: the API server has its own
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return err
	}

	component := func(name, path string, ready func(context.Context) error, args ...string) *Component {
		return &Component{name: name, dir: c.dir, path: path, args: args, ready: ready}
	}
	c.Etcd = component("etcd", options.Binaries.ControlPlane, c.dials(etcdSocket),
		"etcd", "etcd", etcdSocket)
	c.APIServer = component("kube-apiserver", options.Binaries.ControlPlane, c.apiServerReady, append([]string{
		"kube-apiserver",
		"--etcd-servers=unix://" + etcdSocket,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", // else it wants a default route
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--tls-cert-file=" + servingCertFile,
		"--tls-private-key-file=" + servingKeyFile,
		"--token-auth-file=" + tokensFile,
		"--authorization-mode=RBAC",
		"--service-account-key-file=" + serviceAccountKeyFile,
		"--service-account-signing-key-file=" + serviceAccountKeyFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--api-audiences=https://kubernetes.default.svc,sts.amazonaws.com", // the second for IRSA tokens
		"--service-cluster-ip-range=10.96.0.0/16",
		"--endpoint-reconciler-type=none", // an Endpoints object must not have a loopback address
		"--allow-privileged=true",
		"--audit-policy-file=" + auditPolicyFile,
		"--audit-log-path=" + auditFile,
		"--audit-log-maxsize=1000000", // MB: never rotated, we read on from where we were
	}, options.APIServerFlags...)...)
	c.ControllerManager = component("kube-controller-manager", options.Binaries.ControlPlane, c.controllersReady,
		append([]string{
			"kube-controller-manager",
			"--kubeconfig=" + c.kubeconfigOf(userControllerManager),
			"--secure-port=0",
			"--leader-elect=false",
			"--service-account-private-key-file=" + serviceAccountKeyFile,
			"--root-ca-file=" + caFile,
			"--kube-api-qps=500", "--kube-api-burst=1000",
			"--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20", "--concurrent-gc-syncs=20",
			"--node-monitor-period=1s",
			// KWOK's heartbeats come each minute or so, and must not be missed
			// because the machine is busy: nodes die only when a test says so.
			"--node-monitor-grace-period=5m",
			// Nobody hands out addresses to nodes here, and VolumeAttachments are
			// the scenarios': there is no CSI driver that would attach or detach.
			"--controllers=*,-node-ipam-controller,-persistentvolume-attach-detach-controller",
		}, options.ControllerManagerFlags...)...)
	c.Scheduler = component("kube-scheduler", options.Binaries.ControlPlane, nil,
		"kube-scheduler",
		"--kubeconfig="+c.kubeconfigOf(userScheduler),
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=500", "--kube-api-burst=1000")
	kwokAddress := fmt.Sprintf("127.0.0.1:%d", kwokPort)
	c.KWOK = component("kwok", options.Binaries.KWOK, answers("http://"+kwokAddress+"/healthz"),
		"--kubeconfig="+c.kubeconfigOf(userKWOK),
		"--config="+options.Binaries.Stages,
		"--manage-all-nodes=true",
		"--node-lease-duration-seconds=0",
		"--node-ip=127.0.0.1",
		"--server-address="+kwokAddress)
	return nil
}

// Stop ends the cluster and removes its directory, unless KeepDir was given. It
// takes milliseconds, as there is nothing to save. A second call does nothing.
func (c *Cluster) Stop() error {
	var ending sync.WaitGroup
	for _, component := range c.components() {
		ending.Go(component.Kill)
	}
	ending.Wait()
	if c.keep {
		return nil
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove the directory of the control plane: %w", err)
	}
	return nil
}

// components are those that exist, the first first.
func (c *Cluster) components() []*Component {
	c.mu.Lock()
	karpenter := c.karpenter
	c.mu.Unlock()
	var all []*Component
	for _, component := range []*Component{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler, c.KWOK, karpenter} {
		if component != nil {
			all = append(all, component)
		}
	}
	return all
}

// Dir is the directory of the cluster: logs are COMPONENT.log, audit.log.
func (c *Cluster) Dir() string { return c.dir }

// Config is for a client with all rights and no limit of its own on its
// rate. It is the caller's to change.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client has all rights, and no limit of its own on its rate.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig is the path of a kubeconfig with all rights. It is gone after Stop.
func (c *Cluster) Kubeconfig() string { return c.kubeconfigOf(Admin) }

func (c *Cluster) kubeconfigOf(user string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of the
// ServiceAccount, which must exist, and so with its rights and no others. The
// token is valid for a day, the file gone after Stop. Each call writes another file.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (path string, err error) {
	return c.tokenKubeconfig(ctx, namespace, name, nil)
}

// PodKubeconfig is ServiceAccountKubeconfig with a token as the kubelet gives it to a pod, which has been
// scheduled: it names the pod and its node, and ends with the pod.
func (c *Cluster) PodKubeconfig(ctx context.Context, pod *corev1.Pod) (path string, err error) {
	return c.tokenKubeconfig(ctx, pod.Namespace, pod.Spec.ServiceAccountName, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
	})
}

func (c *Cluster) tokenKubeconfig(
	ctx context.Context, namespace, name string, bound *authenticationv1.BoundObjectReference,
) (path string, err error) {
	day := int64((24 * time.Hour).Seconds())
	request := authenticationv1.TokenRequestSpec{ExpirationSeconds: &day, BoundObjectRef: bound}
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: request}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	c.mu.Lock()
	c.kubeconfigs++
	path = filepath.Join(c.dir, fmt.Sprintf("%s-%s-%d.kubeconfig", namespace, name, c.kubeconfigs))
	c.mu.Unlock()
	if err := WriteKubeconfig(path, c.config.Host, c.ca, name, token.Status.Token); err != nil {
		return "", fmt.Errorf("write the kubeconfig of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return path, nil
}

// DumpLogs writes the last n lines of each component's log to w, for a test
// that has failed.
func (c *Cluster) DumpLogs(w io.Writer, n int) {
	for _, component := range c.components() {
		fmt.Fprintf(w, "--- %s\n%s\n", component.logPath(), component.logTail(n))
	}
}

// dials is a check that something accepts connections on a socket of the cluster's directory.
func (c *Cluster) dials(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "unix", filepath.Join(c.dir, socket))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// apiServerReady is nil when all of /readyz is, the initial roles included.
func (c *Cluster) apiServerReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// controllersReady is nil when a pod can be created in the default namespace,
// which the controllers see to. It says nothing after a restart.
func (c *Cluster) controllersReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// answers is a check that a GET of url has status 200.
func answers(url string) func(context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, response.Status)
		}
		return nil
	}
}

// tempDir is the directory for temporary files, or /tmp where the path of a
// socket in a cluster's directory would not fit into sun_path of unix(7): 104
// bytes on macOS, 108 on Linux.
func tempDir() string {
	const cluster = len("/sandbox-0123456789/") + len(etcdSocket)
	if dir := os.TempDir(); len(dir)+cluster < 104 {
		return dir
	}
	return "/tmp"
}

// freePorts are n ports of loopback that were free a moment ago.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // at the end, so that no port comes twice
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
