package drain

import (
	"context"
	"fmt"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

const byNode = "node"

// Volumes knows which volumes are attached to which node. When a pod is gone, its volume can be used
// on another node as soon as it is detached. If the machine goes away before that, it is detached
// only after a timeout of six minutes.
type Volumes struct {
	client   kube.Client
	attached cache.SharedIndexInformer

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
}

// NewVolumes returns a Volumes, which knows of no volume before WaitForSync has returned.
func NewVolumes(client kube.Client) (*Volumes, error) {
	list := kube.ListWatch(client, client.StorageV1().VolumeAttachments())
	v := &Volumes{
		client: client,
		attached: cache.NewSharedIndexInformer(list, &storagev1.VolumeAttachment{}, 0,
			cache.Indexers{byNode: indexByNode}),
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

// Run watches the volume attachments until ctx ends.
func (v *Volumes) Run(ctx context.Context) { v.attached.RunWithContext(ctx) }

// indexByNode is the index byNode.
func indexByNode(obj any) ([]string, error) {
	return []string{obj.(*storagev1.VolumeAttachment).Spec.NodeName}, nil
}

// trimAttachment keeps of a VolumeAttachment what this package reads.
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

// WaitForSync blocks until all attachments have been seen once. It returns the cause of ctx if that
// ends first.
func (v *Volumes) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), v.attached.HasSynced) {
		return fmt.Errorf("list the volume attachments: %w", context.Cause(ctx))
	}
	return nil
}
