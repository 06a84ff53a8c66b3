package drain

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// podStore holds the pods of one node as the API server tells of them: what a
// reflector writes to. An informer in between would cost each node of a storm a
// queue and two more goroutines. Its methods may be called concurrently.
type podStore struct {
	changed chan struct{} // has a value when the pods have changed

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	listed bool
}

func newPodStore() *podStore {
	return &podStore{changed: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
}

// watch keeps the store as the node's pods are until ctx ends. It lists them first,
// as of now, which the API server answers from an index of its cache. A watch that
// also lists would go through all pods of the cluster, for each node of a storm.
func (s *podStore) watch(ctx context.Context, client Client, node string) {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	pods, watches := client.CoreV1().Pods(metav1.NamespaceAll), pace.NewWatches()
	cache.NewReflectorWithOptions(listFirst{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return pods.List(ctx, metav1.ListOptions{FieldSelector: selector})
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector
			w, err := pace.BeginWatch(ctx, watches, func(ctx context.Context) (watch.Interface, error) { return pods.Watch(ctx, opts) })
			if err != nil && ctx.Err() != nil {
				return nil, io.EOF // the drain is over, which is no error to log
			}
			return w, err
		},
	}}, &corev1.Pod{}, s, cache.ReflectorOptions{Name: "pods of " + node}).RunWithContext(ctx)
}

// listFirst makes a reflector list before it watches.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how a reflector asks whether to.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

// synced reports whether all pods have been seen once.
func (s *podStore) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// list returns the pods in no order. They are shared: read them, and nothing
// that trim drops.
func (s *podStore) list() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.pods))
}

// Add implements cache.ReflectorStore.
func (s *podStore) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *podStore) Update(obj any) error {
	pod, err := trimPod(obj)
	if err != nil {
		return err
	}
	s.change(func() { s.pods[pod.UID] = pod })
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *podStore) Delete(obj any) error {
	pod, err := trimPod(obj)
	if err != nil {
		return err
	}
	s.change(func() { delete(s.pods, pod.UID) })
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *podStore) Replace(objs []any, _ string) error {
	pods := make(map[types.UID]*corev1.Pod, len(objs))
	for _, obj := range objs {
		pod, err := trimPod(obj)
		if err != nil {
			return err
		}
		pods[pod.UID] = pod
	}
	s.change(func() { s.pods, s.listed = pods, true })
	return nil
}

// Resync implements cache.ReflectorStore. There is nobody to tell anew.
func (s *podStore) Resync() error { return nil }

// Transformer implements cache.TransformingStore.
func (s *podStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return trimPod(obj) }
}

func (s *podStore) change(do func()) {
	s.mu.Lock()
	do()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// trimPod keeps of a Pod what this package reads.
func trimPod(obj any) (*corev1.Pod, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("the watch of pods brought %T", obj)
	}
	small := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			OwnerReferences: pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, Volumes: pod.Spec.Volumes,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	if mirror, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		small.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirror}
	}
	return small, nil
}
