// Package options has the table of everything that the handler can be told: flags, environment variables, their
// help, and what is generated from them.
package options

import (
	"net/netip"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

// ProgramName is the name of the program, and of what it has in a cluster unless an option says otherwise.
const ProgramName = "node-termination-handler"

// Options are everything that the handler can be told. A [Parser] reads them.
type Options struct {
	// IMDS mode: the notices come from the metadata of the instance that the process runs on, and
	// only its node is served. Otherwise they come from a queue. Options of the other mode have
	// their defaults.
	IMDS  bool
	Queue QueueURL
	// Region is where the queue and its instances are. Never empty with a queue; [QueueURL.None] is none.
	Region string
	// EventAccounts are the accounts whose notices are acted on. Empty only without
	// a queue.
	EventAccounts []string
	// AWSEndpoint replaces the endpoint of every AWS service; empty leaves the
	// choice to the SDK.
	AWSEndpoint string
	// SQSEndpoint is AWSEndpoint for SQS, where the host of the queue's URL has
	// a say too. Empty leaves the choice to the SDK.
	SQSEndpoint string
	// VisibilityTimeout is how long SQS hides a message between extensions.
	VisibilityTimeout    time.Duration
	DeleteIfNodeNotFound bool
	// Workers bounds the drains that are not urgent; 0 is no bound.
	Workers int
	// MaxUnready bounds the nodes out of use while there are drains that can wait;
	// zero: no bound.
	MaxUnready intstr.IntOrString

	MetadataURL         string // of the instance metadata service
	SpotDraining        bool   // this and those below choose kinds of notice, in IMDS mode
	ScheduledDraining   bool
	LifecycleDraining   bool
	RebalanceMonitoring bool // the node is cordoned
	RebalanceDraining   bool // the node is cordoned and drained
	ReportOnly          bool // to the leader: the process drains nothing

	CheckTag    bool
	ManagedTag  string // key of the tag; not empty if CheckTag
	ClusterName string // empty: unknown

	StatusInterval time.Duration // 0: EC2 is not asked for scheduled events and status checks
	DrainImpaired  bool

	DryRun                   bool
	CordonOnly               bool
	TaintNode                bool
	TaintEffect              corev1.TaintEffect
	OutOfServiceTaint        bool
	ExcludeFromLoadBalancers decision.Exclusion
	NodeGracePeriod          time.Duration // bounds a drain whose notice has no deadline
	PolicyFile               string        // a path; empty: none

	DeleteLocalData  bool
	IgnoreDaemonSets bool
	PodGracePeriod   time.Duration // negative: each pod's own; never 0
	SurgeSingletons  bool
	DrainByKarpenter bool

	HeartbeatInterval time.Duration // 0: no heartbeats
	HeartbeatUntil    time.Duration // since the hook began; for HeartbeatInterval > 0 alone
	CompletionDelay   time.Duration // 0: none
	SweepInterval     time.Duration // 0: no sweeps
	HookNames         []string      // empty: all
	StartupTaints     []string      // keys

	Kubeconfig            string // paths, separated as in PATH; empty: see app.RESTConfig
	KubernetesServiceHost string // empty: as the cluster says
	KubernetesServicePort string
	KubeQPS               float32 // negative: no limit
	KubeBurst             int     // only for KubeQPS > 0
	LeaderElect           bool
	LeaseName             string
	NodeName              string // of the handler's own pod, as are the next two; empty: unknown
	PodName               string
	PodNamespace          string

	LogLevel    string // debug, info, warn or error
	JSONLogging bool

	BindAddresses    []netip.Addr // of the servers below; empty: all
	AllowedHosts     []string     // in lower case; see httpserver.Guard
	PrometheusServer bool
	PrometheusPort   int  // 0: any that is free, as for ProbesPort
	StatusPage       bool // on PrometheusPort
	ProbesServer     bool
	ProbesPort       int
	ProbesPath       string

	NodeConditions   bool
	EmitEvents       bool
	EventAnnotations map[string]string

	WebhookURL      string // empty: no webhook
	WebhookProxy    *url.URL
	WebhookHeaders  map[string]string
	WebhookTemplate string
	// WebhookTemplateFile is a path; what it holds goes before WebhookTemplate.
	WebhookTemplateFile string
	WebhookPhases       []webhook.Phase // at least one

	// Warnings are for the log at the start: what was given and does nothing, or
	// not what it says.
	Warnings []string
	// Changed are the options that differ from their default, with the text they
	// got, for the log at the start. It holds no secret.
	Changed map[string]string
}

// ByMetadata reports whether all notices come from the metadata of instances: there is no queue.
func (c *Options) ByMetadata() bool { return c.IMDS || c.Queue.None() }

// InstanceAccount returns the account of every instance, empty if there are several.
func (c *Options) InstanceAccount() string {
	if len(c.EventAccounts) != 1 {
		return ""
	}
	return c.EventAccounts[0]
}
