package doctor

import (
	"errors"
	"strings"
	"time"
)

// Facts are what is known of an installation. They are gathered elsewhere: what
// is made of them is pure.
type Facts struct {
	Options Options
	Now     time.Time

	Caller      Answer[Caller]
	Queue       Answer[Queue]
	Key         Answer[Key]    // of a queue that has one
	Rules       Answer[[]Rule] // with the queue as a target
	Permissions []Permission   // of AWS that were tried out

	User   Answer[User]
	Access map[Access]Answer[bool]
	Lease  Answer[Lease]

	Nodes     Answer[[]Node]
	Pods      Answer[[]Pod]
	Instances Answer[[]Instance]
	Groups    Answer[[]Group] // those that have one of Instances
}

// partition is that of the account, such as aws or aws-cn.
func (f *Facts) partition() string {
	for _, arn := range []string{f.Queue.Value.ARN, f.Caller.Value.ARN} {
		if parts := strings.Split(arn, ":"); len(parts) > 1 {
			return parts[1]
		}
	}
	return "aws"
}

// An Answer is a value, or why there is none.
type Answer[T any] struct {
	Value T
	Err   error
}

// ErrAbsent is the error of something that is not there.
var ErrAbsent = errors.New("there is none")

// A DeniedError is the error of something that we may not ask.
type DeniedError struct {
	Permission string // such as events:DescribeRule
	Err        error
}

func (e *DeniedError) Error() string { return "permission " + e.Permission + " is missing" }

func (e *DeniedError) Unwrap() error { return e.Err }

func denied(err error) bool {
	_, ok := errors.AsType[*DeniedError](err)
	return ok
}

// Options are what the handler is told, as far as checks need it.
type Options struct {
	QueueURL, QueueName, Account, Region string

	CheckTag          bool
	ManagedTag        string
	DeleteForeign     bool
	Visibility        time.Duration
	HeartbeatInterval time.Duration // 0: no heartbeats
	HeartbeatUntil    time.Duration
	HookNames         []string // the hooks that are ours; empty: all
	LeaderElect       bool
	EmitEvents        bool
	Namespace         string // of the Lease, and of the handler's pods
	Lease             string // name of what the replicas agree on
}

// A Caller is who calls AWS.
type Caller struct {
	ARN, Account string
	Source       Source
	// Shadowed: there is an EKS Pod Identity association as well, which a left-over
	// annotation for IRSA keeps from being used.
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

// A Queue is what SQS says of it.
type Queue struct {
	ARN        string
	Delay      time.Duration
	Retention  time.Duration
	Visibility time.Duration
	// MaxReceives is that of the redrive policy; 0: there is none.
	MaxReceives int
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
	Targets   []Target // those that are the queue
}

// A Target is what a rule does with an event for the queue.
type Target struct {
	ID           string
	Changed      bool // the event is not passed on as it is
	MessageGroup string
	DeadLetters  string // ARN
}

// A Permission of AWS that was tried out.
type Permission struct {
	Action string
	// Needed: nothing works without it; else the rest does.
	Needed bool
	Err    error // nil: it is there; a *DeniedError: it is not; others say nothing
}

// A User is who calls the API server.
type User struct {
	Name    string // such as system:serviceaccount:NAMESPACE:NAME
	Version string // of the API server
}

// An Access is one right in the cluster.
type Access struct {
	Group, Resource, Subresource, Verb string
	// Namespaced rights are those in the namespace of the Lease, of that name.
	Namespaced bool
	Name       string
}

// String is the right in the words of kubectl auth can-i.
func (a Access) String() string {
	text := a.Verb + " " + a.Resource
	if a.Group != "" {
		text += "." + a.Group
	}
	if a.Subresource != "" {
		text += "/" + a.Subresource
	}
	return text
}

// A Lease is what the replicas agree on.
type Lease struct {
	Holder   string // empty: nobody
	Renewed  time.Time
	Duration time.Duration
}

// A Node of the cluster.
type Node struct {
	Name       string
	ProviderID string
	InstanceID string // of the provider id; empty: it has none
	Fargate    bool
}

// A Pod of the cluster, as far as it matters.
type Pod struct {
	Namespace, Name, Node, ServiceAccount string
	Labels                                map[string]string
	Images                                []string
	Env                                   map[string]string // of all containers, where it is written in the pod
	Args                                  []string
	Grace                                 time.Duration
	DaemonSet                             bool
}

// An Instance of EC2.
type Instance struct {
	ID             string
	PrivateDNSName string
	Tags           map[string]string
}

// GroupTag is the tag that Auto Scaling puts on the instances of a group.
const GroupTag = "aws:autoscaling:groupName"

// A Group is an Auto Scaling group with its lifecycle hooks.
type Group struct {
	Name string
	// Tags that new instances get; the others are left out.
	Tags  Answer[map[string]string]
	Hooks Answer[[]Hook]
}

// A Hook is a lifecycle hook.
type Hook struct {
	Name        string
	Terminating bool
	Timeout     time.Duration
	Global      time.Duration
	TargetARN   string // what it notifies without EventBridge
}
