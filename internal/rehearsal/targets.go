package rehearsal

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
)

// graceOfTarget is what a pod needs that load balancers know by its address: some seconds until they have noticed
// that it stops, and the time of a slow request.
// https://docs.aws.amazon.com/eks/latest/best-practices/load-balancing.html
const graceOfTarget = 35 * time.Second

// cutTargets is the remark about a pod that stops before its load balancers have noticed.
const cutTargets = "a target of type ip without preStop: its connections may be cut (docs/load-balancers.md)"

// A service selects pods of a namespace.
type service struct {
	namespace string
	selector  labels.Selector
}

// ReadTargets reads which pods are targets of load balancers themselves. Without the AWS Load Balancer Controller, or
// the rights to read its objects and Services, no pod is.
func (v *Snapshot) ReadTargets(ctx context.Context, client kube.Client, bindings kube.Objects[*loadbalancer.Bindings]) {
	list, err := bindings.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for k := range list.Items {
		b := &list.Items[k]
		if b.Spec.TargetType != loadbalancer.TypeIP {
			continue
		}
		behind, err := client.CoreV1().Services(b.Namespace).Get(ctx, b.Spec.ServiceRef.Name, metav1.GetOptions{})
		if err == nil && len(behind.Spec.Selector) > 0 {
			v.targets = append(v.targets, service{b.Namespace, labels.SelectorFromSet(behind.Spec.Selector)})
		}
	}
}

// isCut reports whether a pod that leaves may stop before its load balancers have noticed.
func (v *Snapshot) isCut(f drain.PodOutcome) bool {
	hasPreStop := func(c corev1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PreStop != nil }
	return !f.Stays && !f.Ended && f.Own < graceOfTarget && !slices.ContainsFunc(f.Pod.Spec.Containers, hasPreStop) &&
		slices.ContainsFunc(v.targets, func(s service) bool {
			return s.namespace == f.Pod.Namespace && s.selector.Matches(labels.Set(f.Pod.Labels))
		})
}
