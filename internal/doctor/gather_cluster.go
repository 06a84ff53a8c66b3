package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
)

// Cluster is the cluster to examine.
type Cluster struct {
	Client kube.Client
	// Version asks the API server for its version.
	Version func(context.Context) (string, error)
	// Bindings are the TargetGroupBindings; nil: they are not asked for.
	Bindings kube.Objects[*loadbalancer.Bindings]
	// Err says why there is no Client; nil: there is one.
	Err error
}

// accesses are the rights that a handler with these options needs.
func accesses(o Options) []kube.Access {
	name := ""
	if o.LeaderElect {
		name = o.Lease
	}
	needed := append(kube.Accesses(name, o.EmitEvents), kube.Disrupting()...)
	add := func(wanted bool, rights []kube.Access) {
		if wanted {
			needed = append(needed, rights...)
		}
	}
	add(o.Conditions, kube.Conditions())
	add(o.Surge, kube.Surging())
	add(o.Excludes, kube.LoadBalancers())
	add(o.ByKarpenter, kube.Delegating())
	return needed
}

// targetGroups are the ARNs of the target groups of type instance.
func (c *Cluster) targetGroups(ctx context.Context) (arns []string, _ error) {
	if c.Bindings == nil {
		return nil, ErrAbsent
	}
	list, err := c.Bindings.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, refused(ctx, "list targetgroupbindings.elbv2.k8s.aws", err)
	}
	for k := range list.Items {
		if b := &list.Items[k]; b.OfInstances() && b.Spec.TargetGroupARN != "" { // Trim leaves none that is no ARN
			arns = append(arns, b.Spec.TargetGroupARN)
		}
	}
	return slices.Compact(sorted(arns)), nil
}

// refused turns an error of the API server into a *DeniedError or ErrAbsent if it is one of these.
func refused(ctx context.Context, permission string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return &DeniedError{Permission: permission, Err: err}
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w", permission, ErrAbsent)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", permission, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w", permission, err)
}

func (c *Cluster) user(ctx context.Context) (u User, err error) {
	if c.Err != nil {
		return u, c.Err
	}
	if u.Version, err = c.Version(ctx); err != nil {
		return u, refused(ctx, "ask for its version", err)
	}
	review, err := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authnv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return u, refused(ctx, "create selfsubjectreviews.authentication.k8s.io", err)
	}
	u.Name = review.Status.UserInfo.Username
	return u, nil
}

// reviews asks for the handler's rights.
func (c *Cluster) reviews(ctx context.Context, f *Facts) {
	o := f.Options
	h, known := f.handler()
	err := f.noCluster()
	switch beside := f.isBeside(); {
	case err != nil:
		f.Rights.Err = err
	case !beside:
		f.Rights.Of, f.Access = f.User.Value.Name, c.access(ctx, o, "")
	case !known:
		f.Rights.Err = blocked("handler", ErrAbsent)
	default:
		o.Namespace = h.Namespace
		f.Rights.Of, f.Access = h.subject(), c.access(ctx, o, h.subject())
	}
}

// access asks for each right that the handler needs: for the rights of a user, or, if user is
// empty, for those of the caller.
func (c *Cluster) access(ctx context.Context, o Options, user string) map[kube.Access]Answer[bool] {
	review := c.Client.AuthorizationV1()
	needed := accesses(o)
	granted, _ := forAll(needed, func(a kube.Access) (Answer[bool], error) {
		if user == "" {
			may, err := a.Granted(ctx, review.SelfSubjectAccessReviews(), o.Namespace)
			return answer(may, refused(ctx, "create selfsubjectaccessreviews.authorization.k8s.io", err)), nil
		}
		may, err := a.GrantedTo(ctx, user, review.SubjectAccessReviews(), o.Namespace)
		return answer(may, refused(ctx, "create subjectaccessreviews.authorization.k8s.io", err)), nil
	})
	answers := map[kube.Access]Answer[bool]{}
	for k, a := range needed {
		answers[a] = granted[k]
	}
	return answers
}

// deployments returns the Deployments of all namespaces.
func (c *Cluster) deployments(ctx context.Context) (deployments []Deployment, _ error) {
	list, err := c.Client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, refused(ctx, "list deployments.apps", err)
	}
	for _, d := range list.Items {
		template := PodOf(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec})
		template.Namespace, template.Name, template.Owner = d.Namespace, d.Name, d.Name
		replicas := ptr.Deref(d.Spec.Replicas, 1) // the default
		deployments = append(deployments, Deployment{Replicas: int(replicas), Template: template})
	}
	return deployments, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (g *Gatherer) lease(ctx context.Context) (found Lease, _ error) {
	leases := g.Cluster.Client.CoordinationV1()
	l, err := leases.Leases(g.Options.Namespace).Get(ctx, g.Options.Lease, metav1.GetOptions{})
	if err != nil {
		return found, refused(ctx, "get leases.coordination.k8s.io", err)
	}
	l = lease.LookAgain(ctx, leases, l)
	found.Holder = ptr.Deref(l.Spec.HolderIdentity, "")
	found.Silent = time.Since(ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time)
	found.Duration = time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
	if why, paused := lease.Paused(l); paused {
		found.Paused = &why
	}
	return found, nil
}

func (c *Cluster) nodes(ctx context.Context) (nodes []Node, _ error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, refused(ctx, "list nodes", err)
	}
	for k := range list.Items {
		nodes = append(nodes, NodeOf(&list.Items[k]))
	}
	return nodes, nil
}

// NodeOf returns what checks need of a Node.
func NodeOf(n *corev1.Node) Node {
	report, _ := cluster.ReadReport(n) // one that cannot be read tells nothing
	return Node{
		Name: n.Name, Deaf: !report.Deaf.IsZero(),
		ProviderID: n.Spec.ProviderID, InstanceID: cluster.InstanceID(n), Region: RegionOf(n),
		Fargate: n.Labels["eks.amazonaws.com/compute-type"] == "fargate", Karpenter: isKarpenters(n),
		Full: n.Spec.Unschedulable || !cluster.Ready(n), Labels: n.Labels,
	}
}

// isKarpenters reports whether Karpenter made the node. Its releases before 0.32 had another
// label.
func isKarpenters(n *corev1.Node) bool {
	return n.Labels["karpenter.sh/nodepool"] != "" || n.Labels["karpenter.sh/provisioner-name"] != ""
}

// region is the region in the name of a zone, such as us-east-1a or, of a local zone,
// us-west-2-lax-1a.
var region = regexp.MustCompile(`^[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}`)

// RegionOf is the region of a node: the one in its label, else that of the zone in its provider id
// (aws:///us-east-1a/i-…). It is empty if neither has it.
func RegionOf(n *corev1.Node) string {
	if label := n.Labels[corev1.LabelTopologyRegion]; label != "" {
		return label
	}
	zone, isEC2 := strings.CutPrefix(n.Spec.ProviderID, "aws:///")
	if !isEC2 {
		return ""
	}
	return region.FindString(zone)
}

// pods returns all running pods. It lists a page at a time.
func (c *Cluster) pods(ctx context.Context) (pods []Pod, _ error) {
	opts := metav1.ListOptions{Limit: 500}
	for {
		list, err := c.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return nil, refused(ctx, "list pods", err)
		}
		for k := range list.Items {
			if p := &list.Items[k]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				pods = append(pods, PodOf(p))
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return pods, nil
		}
	}
}

// PodOf returns what the checks have to know of a pod.
func PodOf(p *corev1.Pod) Pod {
	pod := Pod{
		Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, ServiceAccount: p.Spec.ServiceAccountName,
		Labels: p.Labels, Env: map[string]string{},
		Grace: time.Duration(ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 0)) * time.Second,
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		pod.DaemonSet = owner.Kind == "DaemonSet"
		pod.Owner = owner.Name
		if owner.Kind == "ReplicaSet" { // named by its Deployment and this hash
			pod.Owner = strings.TrimSuffix(owner.Name, "-"+p.Labels[appsv1.DefaultDeploymentUniqueLabelKey])
		}
	}
	pod.State = stateOf(&p.Status)
	pod.State.Leaving = p.DeletionTimestamp != nil
	for _, container := range p.Spec.Containers {
		pod.Images = append(pod.Images, container.Image)
		pod.Args = append(pod.Args, container.Command...)
		pod.Args = append(pod.Args, container.Args...)
		for _, e := range container.Env {
			if e.ValueFrom == nil {
				pod.Env[e.Name] = e.Value
			}
		}
	}
	return pod
}

// stateOf says whether a pod works. What its containers report comes before its conditions.
func stateOf(s *corev1.PodStatus) State {
	state := State{Since: ptr.Deref(s.StartTime, metav1.Time{}).Time}
	for _, condition := range s.Conditions {
		switch {
		case condition.Type == corev1.PodReady:
			state.Ready = condition.Status == corev1.ConditionTrue
			if s.StartTime != nil && !condition.LastTransitionTime.IsZero() {
				state.Since = condition.LastTransitionTime.Time
			}
		case condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse:
			state.Waiting, state.Message = condition.Reason, condition.Message
		}
	}
	for _, container := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		if waiting := container.State.Waiting; waiting != nil {
			state.Waiting, state.Message = waiting.Reason, waiting.Message
		}
		ended := cmp.Or(container.State.Terminated, container.LastTerminationState.Terminated)
		if ended != nil && !container.Ready && ended.ExitCode != 0 {
			state.Restarts = max(1, int(container.RestartCount))
			state.Exit = Exit{Code: int(ended.ExitCode), Reason: ended.Reason, Message: lastLine(ended.Message)}
		}
	}
	return state
}
