// Package loadbalancer finds out when load balancers have stopped to send connections to a machine. The
// AWS Load Balancer Controller takes a node out of its target groups when the node has the label
// node.kubernetes.io/exclude-from-external-load-balancers. Each target then drains: it gets no new
// connections, and keeps the open ones for the deregistration delay of its group. A machine that ends
// before that cuts them.
//
// https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/targetgroupbinding/targetgroupbinding/
// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html#deregistration-delay
package loadbalancer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// The types of the targets of a group. An empty one means [TypeInstance].
const (
	TypeInstance = "instance"
	TypeIP       = "ip"
)

// A Binding is the part of a TargetGroupBinding that is read.
type Binding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// A Spec is that of a Binding.
type Spec struct {
	TargetGroupARN string `json:"targetGroupARN"`
	// TargetType is that of the group.
	TargetType string `json:"targetType,omitempty"`
	// NodeSelector selects the nodes that are targets; nil: all.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	ServiceRef   ServiceRef            `json:"serviceRef"`
}

// A ServiceRef names the Service behind a target group, in the namespace of its Binding.
type ServiceRef struct {
	Name string `json:"name"`
}

// DeepCopyObject implements [runtime.Object].
func (b *Binding) DeepCopyObject() runtime.Object {
	c := *b
	b.DeepCopyInto(&c.ObjectMeta)
	c.Spec.NodeSelector = b.Spec.NodeSelector.DeepCopy()
	return &c
}

// Bindings are a list of them.
type Bindings struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Binding `json:"items"`
}

// DeepCopyObject implements [runtime.Object].
func (l *Bindings) DeepCopyObject() runtime.Object {
	c := &Bindings{TypeMeta: l.TypeMeta, ListMeta: *l.DeepCopy()}
	for k := range l.Items {
		c.Items = append(c.Items, *l.Items[k].DeepCopyObject().(*Binding))
	}
	return c
}

// OfCluster are the Bindings of a cluster, by the client of any API group. Without the AWS Load Balancer
// Controller the resource does not exist; see [kube.Custom].
func OfCluster(client rest.Interface) kube.Custom[*Binding, *Bindings] {
	return kube.Custom[*Binding, *Bindings]{
		Client: client, Path: "/apis/elbv2.k8s.aws/v1beta1/targetgroupbindings",
		Object: func() *Binding { return &Binding{} }, Objects: func() *Bindings { return &Bindings{} },
	}
}

// Trim returns what this program reads of a Binding, some kilobytes at most: a Binding has up to 1.5 MB, and all of the
// cluster are kept. A selector that is too long selects no node.
func Trim(b *Binding) *Binding {
	const longestSelector, longestName = 2 << 10, 253
	small := &Binding{
		TypeMeta: b.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name, Namespace: b.Namespace, UID: b.UID, ResourceVersion: b.ResourceVersion,
			CreationTimestamp: b.CreationTimestamp,
		},
		Spec: Spec{NodeSelector: b.Spec.NodeSelector},
	}
	if _, ok := groupOf(b.Spec.TargetGroupARN); ok {
		small.Spec.TargetGroupARN = b.Spec.TargetGroupARN
	}
	small.Spec.TargetType = TypeIP
	if b.OfInstances() {
		small.Spec.TargetType = TypeInstance
	}
	if len(b.Spec.ServiceRef.Name) <= longestName {
		small.Spec.ServiceRef = b.Spec.ServiceRef
	}
	if text, err := json.Marshal(b.Spec.NodeSelector); err != nil || len(text) > longestSelector {
		none := []metav1.LabelSelectorRequirement{{Operator: "too long"}}
		small.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: none}
	}
	return small
}

const (
	// A resource that is not there, or not allowed, is asked for again after this time: somebody may
	// install the AWS Load Balancer Controller, or add the rights.
	absentPause = time.Minute
	// giveUp is after how many failures in a row the cluster counts as one without Bindings, until they
	// can be listed.
	giveUp = 3
	// maxGroups bounds the target groups of one node. Who may write a Binding must not be able to delay
	// all drains by thousands of them.
	maxGroups = 100
	// maxBindings bounds those that are kept, for the same reason. By default a region has 3,000 target groups.
	maxBindings = 5000
)

// failures of a list or a watch are tried again after these pauses.
var failures = retry.Backoff{First: time.Second, Max: 30 * time.Second, Factor: 2, Jitter: 1}

// arnPattern is the form of the ARN of a target group.
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_awselasticloadbalancingv2.html
var arnPattern = regexp.MustCompile(
	`^arn:[a-z-]{1,20}:elasticloadbalancing:([a-z0-9-]{1,30}):[0-9]{12}:targetgroup/([A-Za-z0-9-]{1,32})/[0-9a-f]{1,32}$`)

// A TargetGroup is the target group of a Binding.
type TargetGroup struct{ ARN, Name, Region string }

// groupOf returns the target group of an ARN; false if it is none.
func groupOf(arn string) (TargetGroup, bool) {
	parts := arnPattern.FindStringSubmatch(arn)
	if parts == nil {
		return TargetGroup{}, false
	}
	return TargetGroup{ARN: arn, Region: parts[1], Name: parts[2]}, true
}

// A Watch knows the Bindings of the cluster. The methods may be called concurrently.
type Watch struct {
	objects    kube.Objects[*Bindings]
	log        logr.Logger
	bindings   cache.Store
	known      chan struct{} // closed when the cluster has answered, or is not expected to
	answer     sync.Once     // closes known
	warned     bool
	warnedFull bool
}

// NewWatch returns a Watch that knows nothing before Run.
func NewWatch(objects kube.Objects[*Bindings], log logr.Logger) *Watch {
	return &Watch{
		objects: objects, log: log, bindings: cache.NewStore(cache.MetaNamespaceKeyFunc), known: make(chan struct{}),
	}
}

// Run watches the Bindings until ctx ends. The resource may be missing, and may come and go meanwhile, as
// may the rights to read it: there are no Bindings then.
func (w *Watch) Run(ctx context.Context) {
	lists := kube.ListWatch(kube.Custom[*Binding, *Bindings]{}, w.objects, "") // a list comes before each watch
	reflector := cache.NewReflectorWithOptions(lists, &Binding{}, seen{w.bindings, w},
		cache.ReflectorOptions{Name: "TargetGroupBindings"})
	for failed := 0; ctx.Err() == nil; {
		err := reflector.ListAndWatchWithContext(ctx)
		pause := failures.Pause(1)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = 0
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			failed, pause = 0, retry.Jitter(absentPause, 1)
			_ = w.bindings.Replace(nil, "") // a store in memory, and no keys to be made
			w.answered()
			w.warn(err)
		default:
			failed++
			pause = failures.Pause(failed)
			if failed == giveUp {
				logging.Warn(w.log, "the TargetGroupBindings cannot be watched: trying again", "error", err)
			}
		}
		if failed >= giveUp {
			w.answered()
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// seen is the store of the reflector.
type seen struct {
	cache.Store
	watch *Watch
}

// Replace implements [cache.ReflectorStore].
func (s seen) Replace(list []any, version string) error {
	defer s.watch.answered()
	s.watch.full(len(list) - maxBindings)
	// The oldest: who writes Bindings must not push those of others out by their names.
	slices.SortStableFunc(list, func(a, b any) int {
		return a.(*Binding).CreationTimestamp.Compare(b.(*Binding).CreationTimestamp.Time)
	})
	return s.Store.Replace(list[:min(len(list), maxBindings)], version)
}

// Add implements [cache.ReflectorStore].
func (s seen) Add(b any) error {
	if _, known, err := s.Get(b); !known && err == nil && len(s.ListKeys()) >= maxBindings {
		s.watch.full(1)
		return nil
	}
	return s.Store.Add(b)
}

// Update implements [cache.ReflectorStore].
func (s seen) Update(b any) error { return s.Add(b) }

// full logs once that so many Bindings are too many.
func (w *Watch) full(tooMany int) {
	if tooMany > 0 && !w.warnedFull {
		w.warnedFull = true
		logging.Warn(w.log, "too many TargetGroupBindings: drains do not wait for the target groups of the others",
			"kept", maxBindings)
	}
}

// warn logs that a right is missing, once. That there is no such resource is nothing to tell.
func (w *Watch) warn(err error) {
	forbidden := apierrors.IsForbidden(err)
	if forbidden && !w.warned {
		logging.Warn(w.log, "TargetGroupBindings cannot be read: drains do not wait for load balancers", "error", err,
			"hint", "allow list and watch of targetgroupbindings.elbv2.k8s.aws in the ClusterRole")
	}
	w.warned = forbidden
}

func (w *Watch) answered() { w.answer.Do(func() { close(w.known) }) }

// errTooManyGroups says that a node has more target groups than are waited for.
var errTooManyGroups = errors.New("the node has too many target groups")

// GroupsOf returns the target groups of type instance whose Bindings select a node with these labels, by name,
// each once. It waits until the cluster has answered whether it has any, or returns the cause of ctx.
func (w *Watch) GroupsOf(ctx context.Context, node map[string]string) ([]TargetGroup, error) {
	select {
	case <-w.known:
	default:
		select {
		case <-w.known:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	since := map[TargetGroup]time.Time{} // the oldest Binding of each
	for _, obj := range w.bindings.List() {
		b := obj.(*Binding)
		group, ok := groupOf(b.Spec.TargetGroupARN)
		if !ok || !b.OfInstances() || !b.Selects(node) {
			continue
		}
		if first, known := since[group]; !known || b.CreationTimestamp.Time.Before(first) {
			since[group] = b.CreationTimestamp.Time
		}
	}
	byName := func(a, b TargetGroup) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ARN, b.ARN)) }
	all := slices.SortedFunc(maps.Keys(since), byName)
	if len(all) <= maxGroups {
		return all, nil
	}
	// The oldest: who writes Bindings must not push those of others out by their names.
	slices.SortStableFunc(all, func(a, b TargetGroup) int { return since[a].Compare(since[b]) })
	all = all[:maxGroups]
	slices.SortFunc(all, byName)
	return all, errTooManyGroups
}

// OfInstances reports whether the targets are instances, and not the addresses of pods.
func (b *Binding) OfInstances() bool {
	return b.Spec.TargetType == "" || b.Spec.TargetType == TypeInstance
}

// Selects reports whether a node with these labels is selected. A selector that cannot be read selects none.
func (b *Binding) Selects(node map[string]string) bool {
	if b.Spec.NodeSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.NodeSelector)
	return err == nil && selector.Matches(labels.Set(node))
}
