package drain

import (
	"context"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const byNode = "node"

// Volumes knows which volumes are attached to which node. A pod that is gone has
// stopped; its volume can be used elsewhere once it is detached, and a machine
// that goes away before that leaves it to a timeout of six minutes.
type Volumes struct {
	client   Client
	attached cache.SharedIndexInformer

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
}

// NewVolumes returns a Volumes that sees nothing before Run.
func NewVolumes(client Client) (*Volumes, error) {
	attachments, watches := client.StorageV1().VolumeAttachments(), pace.NewWatches()
	list := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return pace.List(ctx, func(ctx context.Context) (runtime.Object, error) { return attachments.List(ctx, opts) })
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return pace.BeginWatch(ctx, watches, func(ctx context.Context) (watch.Interface, error) { return attachments.Watch(ctx, opts) })
		},
	}, client)
	v := &Volumes{
		client: client,
		attached: cache.NewSharedIndexInformer(list, &storagev1.VolumeAttachment{}, 0, cache.Indexers{byNode: func(obj any) ([]string, error) {
			return []string{obj.(*storagev1.VolumeAttachment).Spec.NodeName}, nil
		}}),
		changed: make(chan struct{}),
	}
	if err := v.attached.SetTransform(trimAttachment); err != nil {
		return nil, fmt.Errorf("watch the volume attachments: %w", err)
	}
	_, err := v.attached.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		v.mu.Lock()
		defer v.mu.Unlock()
		close(v.changed)
		v.changed = make(chan struct{})
	}})
	if err != nil {
		return nil, fmt.Errorf("watch the volume attachments: %w", err)
	}
	return v, nil
}

// Run watches the attachments until ctx ends.
func (v *Volumes) Run(ctx context.Context) { v.attached.RunWithContext(ctx) }

// wait returns when no volume is attached to the node but those of the pods that
// stay, or at the deadline with the number of those that still are. The error is
// the cause of ctx.
func (v *Volumes) wait(ctx context.Context, r *run) (left int, err error) {
	if !cache.WaitForCacheSync(ctx.Done(), v.attached.HasSynced) {
		return 0, context.Cause(ctx)
	}
	var keep map[string]bool // persistent volumes of the pods that stay; nil: not known
	var again <-chan time.Time
	for told, failed := false, 0; ; {
		v.mu.Lock()
		changed := v.changed
		v.mu.Unlock()
		if keep == nil && again == nil && len(v.on(r.order.Node, nil)) > 0 {
			if keep, err = v.used(ctx, r); err != nil {
				failed++
				again = time.After(backoff(failed))
				if failed == 1 {
					r.order.Log.Error(err, "the volumes of pods that stay are waited for until their claims can be read")
				}
			}
		}
		left := len(v.on(r.order.Node, keep))
		deadline := r.order.Terms.Deadline
		if left == 0 || !deadline.IsZero() && !time.Now().Before(deadline) {
			return left, nil
		}
		if !told {
			told = true
			r.order.Log.Info("waiting for volumes to be detached", "volumes", left)
		}
		var alarm <-chan time.Time
		if !deadline.IsZero() {
			alarm = time.After(time.Until(deadline))
		}
		select {
		case <-ctx.Done():
			return left, context.Cause(ctx)
		case <-alarm:
		case <-again:
			again = nil
		case <-changed:
		case t := <-r.order.Changed:
			r.order.Terms = t
		}
	}
}

// on are the attachments of a node, without those of the volumes to keep.
func (v *Volumes) on(node string, keep map[string]bool) []string {
	objs, err := v.attached.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // the index is there: New has added it
	}
	var names []string
	for _, obj := range objs {
		a := obj.(*storagev1.VolumeAttachment)
		if pv := a.Spec.Source.PersistentVolumeName; pv == nil || !keep[*pv] {
			names = append(names, a.Name)
		}
	}
	return names
}

// used are the persistent volumes of the pods that stay on the node.
func (v *Volumes) used(ctx context.Context, r *run) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	used := map[string]bool{}
	for _, pod := range r.store.list() {
		for _, volume := range pod.Spec.Volumes {
			claim := ""
			switch {
			case !r.stays[pod.UID]:
			case volume.PersistentVolumeClaim != nil:
				claim = volume.PersistentVolumeClaim.ClaimName
			case volume.Ephemeral != nil:
				claim = pod.Name + "-" + volume.Name
			}
			if claim == "" {
				continue
			}
			pvc, err := v.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("get claim %s/%s of a pod that stays: %w", pod.Namespace, claim, err)
			}
			used[pvc.Spec.VolumeName] = true
		}
	}
	return used, nil
}

func trimAttachment(obj any) (any, error) {
	a, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return obj, nil
	}
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: a.Spec.NodeName,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: a.Spec.Source.PersistentVolumeName},
		},
	}, nil
}

// WaitForSync blocks until all attachments have been seen once; it returns the
// cause of ctx when that ends first.
func (v *Volumes) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), v.attached.HasSynced) {
		return fmt.Errorf("list the volume attachments: %w", context.Cause(ctx))
	}
	return nil
}
