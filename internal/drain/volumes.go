package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
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
	list := kube.ListWatch(client, client.StorageV1().VolumeAttachments(), "")
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

const (
	// LongestDetach is how long volumes are waited for after the last pod. It is the maxWaitForUnmountDuration of
	// Kubernetes' attach-detach controller: a volume that a dead node still has is then detached by force.
	LongestDetach = 6 * time.Minute
	// claimsTime is how long claims are waited for after the last pod: as long as for one answer. They are read while the
	// pods leave, so that only an API server which fails for long leaves some unread.
	claimsTime = requestTimeout
)

var errNoAnswer = errors.New("the API server has not answered")

// A claim is the namespace and name of a PersistentVolumeClaim.
type claim struct{ namespace, name string }

// claims are those of the pods that have to leave: their volumes are waited for.
type claims struct {
	volumes map[claim]string // by claim; empty: not known
	unread  []claim
	reading bool
	err     error // why the last one could not be read; nil: it was
}

// note notes the claims of a pod that has to leave.
func (c *claims) note(pod *corev1.Pod) {
	for key := range claimsOf(pod) {
		if _, known := c.volumes[key]; known {
			continue
		}
		c.volumes[key] = ""
		c.unread = append(c.unread, key)
	}
}

// readClaims reads which volumes the noted claims are bound to, each once, as soon as a volume is attached to the node.
// No pod waits for that. A claim may be gone by then, as that of an ephemeral volume goes with its pod: no other
// pod can use such a volume, so the drain need not wait for it either.
func (r *run) readClaims(ctx context.Context) {
	c, volumes := &r.pods.claims, r.drainer.Volumes
	if volumes == nil || c.reading || len(c.unread) == 0 || len(volumes.attachments(r.request.Node)) == 0 {
		return
	}
	unread := c.unread
	c.unread, c.reading = nil, true
	go func() {
		defer r.post(func() { c.reading = false })
		for failed := 0; len(unread) > 0; {
			key := unread[0]
			var volume string
			err := logging.Recover(r.request.Log, func() (err error) {
				volume, err = volumes.volumeOf(ctx, key)
				return err
			})
			if ctx.Err() != nil {
				return
			}
			r.post(func() { c.volumes[key], c.err = volume, err })
			if unread = unread[1:]; err == nil {
				continue
			}
			unread = append(unread, key) // after the others: who may name a claim must not keep theirs from being read
			if failed++; apierrors.IsForbidden(err) || retry.Sleep(ctx, backoff(failed)) != nil {
				return
			}
		}
	}()
}

// awaited returns the claims whose volumes are waited for, by volume: not those that pods use as well that are still
// there. These are pods that stay, that came during the drain, or whose end no kubelet confirms. The volumes of the
// last are detached only when the machine has ended, which waits for us. If their kubelet is there, it unmounts them.
func (n *nodePods) awaited() map[string]claim {
	leaving := maps.Clone(n.claims.volumes)
	for _, pod := range n.store.list() {
		p := n.leaving[pod.UID]
		if unmounting := p != nil && p.unconfirmed && n.nodeState().Ready; n.departed[pod.UID] == nil && !unmounting {
			for c := range claimsOf(pod) {
				delete(leaving, c)
			}
		}
	}
	byVolume := map[string]claim{}
	for c, volume := range leaving {
		if volume != "" {
			byVolume[volume] = c
		}
	}
	return byVolume
}

// A volumeWait is the last part of a drain: it waits for the volumes of the pods that have left.
type volumeWait struct {
	run      *run
	since    time.Time // when the first volumes were waited for; zero: none was
	reported bool      // Blocked was called
}

// await returns when the volumes that the pods had are detached, or at the deadline or after LongestDetach with the
// number of those that are not. The error is the cause of ctx. It does not wait for
//
//   - volumes whose claims cannot be read: they may be anybody's, and could hold a hook to its end;
//   - an attachment without a PersistentVolume, which a pod's own spec describes: no claim tells whose it is.
func (v *Volumes) await(ctx context.Context, r *run) (remaining int, err error) {
	w := &volumeWait{run: r}
	for {
		v.mu.Lock()
		changed := v.changed
		v.mu.Unlock()
		r.readClaims(ctx)
		attached := v.attachedTo(r.request.Node, r.pods.awaited())
		now, end, readBy := time.Now(), w.end(), r.result.Record.PodsGone.Add(claimsTime)
		reading := r.pods.claims.reading && now.Before(readBy)
		switch {
		case !now.Before(end):
			return len(attached), nil
		case len(attached) == 0 && !reading:
			if r.pods.claims.reading || r.pods.claims.err != nil {
				logging.Warn(r.request.Log, "volumes are not waited for whose claims could not be read",
					"error", cmp.Or(r.pods.claims.err, errNoAnswer))
			}
			return 0, nil
		case reading:
			end = earlier(end, readBy)
		}
		r.volumeWaits = w.waits(attached)
		// The pods count as well: one that has come may use one of the volumes.
		if err := r.sleep(ctx, earlier(end, w.report(attached, now)), changed); err != nil {
			return len(attached), err
		}
	}
}

// end is when volumes are not waited for any more.
func (w *volumeWait) end() time.Time {
	return earlier(w.run.request.Terms.Deadline, w.run.result.Record.PodsGone.Add(LongestDetach))
}

// report logs what is waited for, and calls Blocked after blockedTime. It returns when to do so again.
func (w *volumeWait) report(attached []string, now time.Time) time.Time {
	if len(attached) == 0 {
		return time.Time{}
	}
	const message = "waiting for volumes to be detached"
	log, which := w.run.request.Log, strings.Join(evacuation.Names(attached, maxNames), ", ")
	if w.since.IsZero() {
		w.since = now
		log.Info(message, "volumes", len(attached), "which", which)
	}
	wake := w.run.logProgress(now, func(left string) {
		log.Info(message, "volumes", len(attached), "which", which, "left", left)
	})
	switch reportAt := w.since.Add(blockedTime); {
	case w.reported:
	case now.Before(reportAt):
		wake = earlier(wake, reportAt)
	default:
		w.reported = true
		w.run.pods.obstacles.tell(nil, block{cause: overview.Volume, why: "volumes are still attached to the node: " + which})
	}
	return wake
}

// waits says which volumes are waited for; nil: none.
func (w *volumeWait) waits(attached []string) []overview.Wait {
	if len(attached) == 0 {
		return nil
	}
	which := strings.Join(evacuation.Names(attached, maxNames), ", ")
	return []overview.Wait{{
		Cause: overview.Volume, Name: which, Until: w.end(), Why: "volumes are still attached to the node: " + which,
	}}
}

// volumeOf returns the volume that a claim is bound to; empty: there is none.
func (v *Volumes) volumeOf(ctx context.Context, c claim) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pvc, err := v.client.CoreV1().PersistentVolumeClaims(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get claim %s/%s: %w", c.namespace, c.name, err)
	}
	return pvc.Spec.VolumeName, nil
}

// TrimClaim returns what this program reads of a claim, which has up to 1.5 MB.
func TrimClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: cut(c.Spec.VolumeName, longestText)},
	}
}

// attachedTo returns which of the volumes are attached to a node, sorted, with their claims.
func (v *Volumes) attachedTo(node string, volumes map[string]claim) []string {
	var names []string
	for _, a := range v.attachments(node) {
		name := ptr.Deref(a.Spec.Source.PersistentVolumeName, "")
		if c, ok := volumes[name]; ok {
			names = append(names, fmt.Sprintf("%s (claim %s/%s)", name, c.namespace, c.name))
		}
	}
	slices.Sort(names)
	return names
}

// attachments returns the attachments of a node.
func (v *Volumes) attachments(node string) (all []*storagev1.VolumeAttachment) {
	objs, _ := v.attached.GetIndexer().ByIndex(byNode, node) // it fails only without the index, which NewVolumes adds
	for _, obj := range objs {
		all = append(all, obj.(*storagev1.VolumeAttachment))
	}
	return all
}

// claimsOf yields the claims of a pod. A name that can be no object's is accepted in a pod, and is none.
func claimsOf(pod *corev1.Pod) iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, volume := range pod.Spec.Volumes {
			c := claim{namespace: pod.Namespace}
			switch {
			case volume.PersistentVolumeClaim != nil:
				c.name = volume.PersistentVolumeClaim.ClaimName
			case volume.Ephemeral != nil:
				c.name = pod.Name + "-" + volume.Name
			default:
				continue
			}
			if len(content.IsPathSegmentName(c.name)) == 0 && !yield(c) {
				return
			}
		}
	}
}
