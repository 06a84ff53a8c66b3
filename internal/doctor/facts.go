package doctor

import (
	"errors"
	"fmt"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

// Facts are what is known about an installation. Gather collects them; checks only read them.
type Facts struct {
	Options Options
	Now     time.Time

	Caller      Answer[Caller]
	Queue       Answer[Queue]
	Key         Answer[Key]    // of a queue that has one
	Decrypt     Answer[bool]   // whether the role has kms:Decrypt on it
	Topics      topics         // of SNS that the queue's policy lets send
	Rules       Answer[[]Rule] // with the queue as a target, or one of Topics that hands on to the queue
	Permissions []Permission   // of the handler's role that were tried out
	Beside      error          // why the caller's permissions are not those of the handler; nil: they are

	User        Answer[User]
	Access      map[kube.Access]Answer[bool]
	Rights      Rights // whose Access it is
	Lease       Answer[Lease]
	Deployments Answer[[]Deployment]

	Nodes     Answer[[]Node]
	Pods      Answer[[]Pod]
	Instances Answer[[]Instance]
	Groups    Answer[[]Group] // those that have one of Instances
	// TargetGroups are the ARNs of those of type instance; ErrAbsent: there is no AWS Load Balancer Controller.
	TargetGroups Answer[[]string]
	Policy       Answer[Policy]
}

// An Answer is a value, or the error that says why there is none.
type Answer[T any] struct {
	Value T
	Err   error
}

// ErrAbsent is the error if something does not exist.
var ErrAbsent = errors.New("there is none")

// A DeniedError is the error if the caller lacks the permission to ask.
type DeniedError struct {
	Permission string // such as events:DescribeRule
	Err        error
}

func (e *DeniedError) Error() string { return "permission " + e.Permission + " is missing" }

func (e *DeniedError) Unwrap() error { return e.Err }

// An APIError is an error that AWS answered with.
type APIError struct{ Code, Message string }

func (e *APIError) Error() string { return e.Code + ": " + e.Message }

// A BlockedError is the error of a question that was not asked, because something that it depends
// on does not work.
type BlockedError struct {
	By  string // the id of the check that says what does not work
	Err error
}

func (e *BlockedError) Error() string { return "not asked, see " + e.By }

func (e *BlockedError) Unwrap() error { return e.Err }

// blocked is the error of a question that depends on what the check by is about. A missing
// permission stays a cause of its own, and so does another BlockedError.
func blocked(by string, err error) error {
	if _, already := errors.AsType[*BlockedError](err); err == nil || already || denied(err) {
		return err
	}
	return &BlockedError{By: by, Err: err}
}

func denied(err error) bool {
	_, ok := errors.AsType[*DeniedError](err)
	return ok
}

// Options are the options of the handler that checks need.
type Options struct {
	// Account is the account of the queue, Region the region of the queue and of the instances.
	QueueURL, QueueName, Account, Region string
	Partition                            string   // such as aws or aws-cn
	EventAccounts                        []string // those whose notices are acted on; at least one, with a queue
	// NoQueue: the handler has its notices from the pods on the nodes, and asks AWS for lifecycle hooks alone, if
	// Sweep. Doctor asks AWS nothing then.
	NoQueue bool

	CheckTag          bool
	ManagedTag        string
	ClusterName       string // in the tags of instances; can be empty
	Visibility        time.Duration
	HeartbeatInterval time.Duration // 0: no heartbeats
	HeartbeatUntil    time.Duration
	Poll              bool     // it asks EC2 for scheduled events and status checks
	Excludes          bool     // it excludes nodes from load balancers, and waits for these
	HookNames         []string // the hooks that are ours; empty: all
	LeaderElect       bool
	DryRun            bool // it only logs what it would do
	Sweep             bool // it looks for lifecycle hooks of which no notice has told
	EmitEvents        bool
	Conditions        bool   // nodes say by conditions how far their drains are
	ByKarpenter       bool   // Karpenter drains its own nodes for the handler
	Surge             bool   // rollouts bring the replacements of pods
	Namespace         string // of the Lease, and of the handler's pods
	Lease             string // name of what the replicas agree on

	Version string // of this program
}

// open is how long a termination hook stays open, with the heartbeats of the options.
func (o *Options) open(h Hook) time.Duration {
	if o.HeartbeatInterval > 0 {
		return max(h.Timeout, min(o.HeartbeatUntil, h.Global))
	}
	return h.Timeout
}

// A Caller is the identity that calls AWS.
type Caller struct {
	ARN, Account string
	Source       Source
	// Unusable says why AWS cannot be asked with these credentials; nil: it can.
	Unusable error
	// Shadowed: there is an EKS Pod Identity association as well, which is not used because of an
	// annotation for IRSA that was left over.
	Shadowed bool
}

// A Source is where credentials come from.
type Source string

// The sources that matter here; others go by the SDK's name.
const (
	SourceIRSA        Source = "IRSA"
	SourcePodIdentity Source = "EKS Pod Identity, or a container's endpoint"
	SourceInstance    Source = "the instance's role"
	SourceStatic      Source = "static keys in the environment"
)

// A Queue is what SQS says about a queue.
type Queue struct {
	ARN       string
	Delay     time.Duration
	Retention time.Duration
	// MaxReceives is the maxReceiveCount of the redrive policy; 0: there is none.
	MaxReceives int
	DeadLetters string // ARN, of the redrive policy
	MaxSize     int    // of a message, in bytes
	FIFO        bool
	KeyID       string // empty: no key of KMS
	Policy      string
}

// A Key of KMS.
type Key struct {
	ARN        string
	AWSManaged bool
	State      string
	Policy     Answer[string]
}

// A Rule of EventBridge.
type Rule struct {
	Name, ARN string
	Pattern   string // empty: a schedule
	Enabled   bool
	Targets   []Target // those that are the queue or Topic
	// Topic is the ARN of the topic of SNS through which the events come; empty: they come straight.
	Topic string
}

// A Target is what a rule does with an event for the queue.
type Target struct {
	Changed bool   // the event is not passed on as it is
	RoleARN string // with which EventBridge sends; empty: as a service
}

// A Permission of AWS that was tried out.
type Permission struct {
	Action string
	// Needed: nothing works without it. If it is false, only a part does not work.
	Needed bool
	Err    error    // nil: it is there; a *DeniedError: it is not; others say nothing
	Groups []string // the Auto Scaling groups that Err is about; empty: all
}

// String is the action, and where it is not allowed.
func (p Permission) String() string {
	if len(p.Groups) == 0 {
		return p.Action
	}
	return p.Action + " on the Auto Scaling group " + list(p.Groups)
}

// Rights says whose rights in the cluster were asked for.
type Rights struct {
	Of  string // a user's name
	Err error  // why nobody knows those of the handler
}

// A User is the identity that calls the API server.
type User struct {
	Name    string // such as system:serviceaccount:NAMESPACE:NAME
	Version string // of the API server
}

// A Lease is the one by which the replicas elect a leader.
type Lease struct {
	Holder   string        // empty: nobody
	Silent   time.Duration // since the last renewal, when it was read
	Duration time.Duration
	Paused   *string // why the handler is paused by it; nil: it is not
}

// A Node of the cluster.
type Node struct {
	Name       string
	ProviderID string
	InstanceID string // of the provider id; empty: it names none, and the instance is found by the node's name
	Region     string // empty: the node does not say
	Fargate    bool
	Karpenter  bool // it is one of Karpenter's
	Deaf       bool // the pod on it reports that the instance metadata does not answer
	Full       bool // it takes no new pod: it is cordoned, by whomever, or not ready
	Labels     map[string]string
}

// A Pod of the cluster, with what checks need.
type Pod struct {
	Namespace, Name, Node, ServiceAccount string
	Owner                                 string // its Deployment, or what else controls it; empty: nothing
	Labels                                map[string]string
	Images                                []string
	Env                                   map[string]string // of all containers, where it is written in the pod
	Args                                  []string
	Grace                                 time.Duration
	DaemonSet                             bool
	State                                 State
}

// A State says whether a pod works.
type State struct {
	Ready            bool
	Waiting, Message string    // why a container does not run, or the pod is on no node
	Restarts         int       // of that container
	Exit             Exit      // its last one
	Since            time.Time // when it last got ready, or ceased to be; zero: no kubelet has taken it on
	Leaving          bool      // it is deleted, and not gone yet
}

// An Exit says how a container ended.
type Exit struct {
	Code            int
	Reason, Message string // Message is the last line that it wrote, where that is known
}

// String is the exit as the end of a sentence.
func (e Exit) String() string {
	if e == (Exit{}) {
		return ""
	}
	text := fmt.Sprintf(", with status %d", e.Code)
	if e.Reason != "" && e.Reason != "Error" {
		text += " (" + e.Reason + ")"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// A Deployment of this program, or of another.
type Deployment struct {
	Replicas int
	Template Pod // Owner is the Deployment
}

// An Instance of EC2.
type Instance struct {
	ID             string
	Account        string // its owner
	PrivateDNSName string
	Spot           bool
	Reservation    string // id of the Capacity Reservation that it runs in; can be empty
	// Interruptible: it is in an interruptible Capacity Reservation. Block: it is in a Capacity Block.
	Interruptible, Block bool
	Tags                 map[string]string
}

// GroupTag is the tag that Auto Scaling puts on the instances of a group.
const GroupTag = "aws:autoscaling:groupName"

// A Group is an Auto Scaling group with its lifecycle hooks.
type Group struct {
	Name string
	// Tags that new instances get from the group; its other tags are left out.
	Tags  Answer[map[string]string]
	Hooks Answer[[]Hook]
	ofEKS bool // it is a managed node group
	// OtherHooks are the termination hooks that are left to others: by HookNames, or to EKS.
	OtherHooks []string
	// LeftToEKS: it is a managed node group, and HookNames is empty: EKS completes its hooks, if no rule tells of them.
	// Hooks has none of them then.
	LeftToEKS bool
	// Replacing is what matters where a replacement comes first. It is not known if Tags has an error.
	Replacing asg.Group
}

// A Hook is a lifecycle hook.
type Hook struct {
	Name        string
	Terminating bool
	Timeout     time.Duration
	Global      time.Duration
	Abandons    bool   // its default result
	TargetARN   string // what it notifies without EventBridge
}
