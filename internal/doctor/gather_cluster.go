package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// Cluster is the cluster that is looked at.
type Cluster struct {
	Client Client
	// Version asks the API server for its own.
	Version func(context.Context) (string, error)
	// Err is why there is no Client; nil: there is one.
	Err error
}

// errNoCluster is said where the reason was told already.
var errNoCluster = errors.New("the cluster cannot be asked")

// A Client reads what the checks need; a clientset is one.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
	CoordinationV1() typedcoordinationv1.CoordinationV1Interface
	AuthenticationV1() typedauthenticationv1.AuthenticationV1Interface
	AuthorizationV1() typedauthorizationv1.AuthorizationV1Interface
}

// refused makes a *DeniedError or ErrAbsent of what the API server answered.
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

func (c *Cluster) user(ctx context.Context) Answer[User] {
	if c.Err != nil {
		return Answer[User]{Err: c.Err}
	}
	version, err := c.Version(ctx)
	if err != nil {
		return Answer[User]{Err: refused(ctx, "ask for its version", err)}
	}
	u := User{Version: version}
	review, err := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authnv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return Answer[User]{Value: u, Err: refused(ctx, "create selfsubjectreviews.authentication.k8s.io", err)}
	}
	u.Name = review.Status.UserInfo.Username
	return Answer[User]{Value: u}
}

// access asks for each right that the handler needs.
func (c *Cluster) access(ctx context.Context, o Options) map[Access]Answer[bool] {
	if c.Err != nil {
		return nil
	}
	var (
		mu      sync.Mutex
		all     sync.WaitGroup
		answers = map[Access]Answer[bool]{}
	)
	for _, a := range Accesses(o) {
		all.Go(func() {
			granted, err := a.Granted(ctx, c.Client.AuthorizationV1().SelfSubjectAccessReviews(), o.Namespace)
			answer := Answer[bool]{Value: granted, Err: refused(ctx, "create selfsubjectaccessreviews.authorization.k8s.io", err)}
			mu.Lock()
			defer mu.Unlock()
			answers[a] = answer
		})
	}
	all.Wait()
	return answers
}

// Granted asks the API server whether whoever calls it has the right a. The
// namespace matters to namespaced rights only.
func (a Access) Granted(ctx context.Context, reviews typedauthorizationv1.SelfSubjectAccessReviewInterface, namespace string) (bool, error) {
	attributes := &authzv1.ResourceAttributes{Group: a.Group, Resource: a.Resource, Subresource: a.Subresource, Verb: a.Verb, Name: a.Name}
	if a.Namespaced {
		attributes.Namespace = namespace
	}
	review, err := reviews.Create(ctx, &authzv1.SelfSubjectAccessReview{
		Spec: authzv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func (c *Cluster) lease(ctx context.Context, namespace, name string) Answer[Lease] {
	if c.Err != nil {
		return Answer[Lease]{Err: errNoCluster}
	}
	l, err := c.Client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Answer[Lease]{Err: refused(ctx, "get leases.coordination.k8s.io", err)}
	}
	var found Lease
	if l.Spec.HolderIdentity != nil {
		found.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		found.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		found.Duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	return Answer[Lease]{Value: found}
}

func (c *Cluster) nodes(ctx context.Context) Answer[[]Node] {
	if c.Err != nil {
		return Answer[[]Node]{Err: errNoCluster}
	}
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Answer[[]Node]{Err: refused(ctx, "list nodes", err)}
	}
	var nodes []Node
	for k := range list.Items {
		n := &list.Items[k]
		nodes = append(nodes, Node{
			Name: n.Name, ProviderID: n.Spec.ProviderID, InstanceID: cluster.InstanceID(n),
			Fargate: n.Labels["eks.amazonaws.com/compute-type"] == "fargate",
		})
	}
	return Answer[[]Node]{Value: nodes}
}

// pods are all pods that run, a page at a time.
func (c *Cluster) pods(ctx context.Context) Answer[[]Pod] {
	if c.Err != nil {
		return Answer[[]Pod]{Err: errNoCluster}
	}
	var pods []Pod
	opts := metav1.ListOptions{Limit: 500}
	for {
		list, err := c.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return Answer[[]Pod]{Err: refused(ctx, "list pods", err)}
		}
		for k := range list.Items {
			if p := &list.Items[k]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				pods = append(pods, podOf(p))
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return Answer[[]Pod]{Value: pods}
		}
	}
}

func podOf(p *corev1.Pod) Pod {
	pod := Pod{
		Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, ServiceAccount: p.Spec.ServiceAccountName,
		Labels: p.Labels, Env: map[string]string{},
	}
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		pod.Grace = time.Duration(*s) * time.Second
	}
	owner := metav1.GetControllerOf(p)
	pod.DaemonSet = owner != nil && owner.Kind == "DaemonSet"
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
