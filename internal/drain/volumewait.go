package drain

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A claim is the namespace and name of a PersistentVolumeClaim.
type claim struct{ namespace, name string }

// A volumeWait is the last part of a drain: it waits for the volumes of its node.
type volumeWait struct {
	volumes *Volumes
	run     *run

	inUse  map[claim]string // the volumes of pods that stay, by their claims
	failed int              // how often the claims could not be read
	again  <-chan time.Time // when to read them again; nil: now

	since    time.Time // when the first volumes were waited for; zero: none was
	reported bool      // Blocked is called, or will be when owners has come
	owners   map[string]claim
	read     chan map[string]claim // delivers owners once they have been read; nil: nobody reads them
}

// await returns when no volume is attached to the node, or at the deadline with the number of those
// that are. It does not wait for the volumes of pods that are still there: those that an option keeps,
// those that came during the drain, and those whose kubelet is gone. The volumes of the last are
// detached only when the machine has ended, which waits for us. The error is the cause of ctx.
func (v *Volumes) await(ctx context.Context, r *run) (remaining int, err error) {
	if !cache.WaitForCacheSync(ctx.Done(), v.attached.HasSynced) {
		return 0, context.Cause(ctx)
	}
	w := &volumeWait{volumes: v, run: r, inUse: map[claim]string{}}
	for {
		v.mu.Lock()
		changed := v.changed
		v.mu.Unlock()
		w.readInUse(ctx)
		attached := v.attachedTo(r.request.Node, w.inUse)
		now, deadline := time.Now(), r.request.Terms.Deadline
		if len(attached) == 0 || !deadline.IsZero() && !now.Before(deadline) {
			return len(attached), nil
		}
		wake := earlier(deadline, w.report(ctx, attached, now))
		if err := w.sleep(ctx, wake, changed, attached); err != nil {
			return len(attached), err
		}
	}
}

// readInUse reads the claims of the pods that are still there, unless no volume is waited for or it
// has failed a moment ago.
func (w *volumeWait) readInUse(ctx context.Context) {
	if w.again != nil || len(w.volumes.attachedTo(w.run.request.Node, w.inUse)) == 0 {
		return
	}
	if err := w.volumes.addInUse(ctx, w.run.store.list(), w.inUse); err != nil {
		w.failed++
		w.again = time.After(backoff(w.failed))
		if w.failed == 1 {
			w.run.request.Log.Warn("waiting for the volumes of pods that stay as well, until their claims can be read",
				"error", err)
		}
	}
}

// report logs what is waited for, and calls Blocked after blockedTime. It returns when to do so again.
func (w *volumeWait) report(ctx context.Context, attached []string, now time.Time) time.Time {
	const message = "waiting for volumes to be detached"
	log := w.run.request.Log
	if w.since.IsZero() {
		w.since = now
		log.Info(message, "volumes", len(attached), "which", joinFirst(attached, ", "))
	}
	wake := w.run.logProgress(now, func(left string) {
		log.Info(message, "volumes", len(attached), "which", describe(attached, w.owners), "untilDeadline", left)
	})
	if reportAt := w.since.Add(blockedTime); !w.reported && now.Before(reportAt) {
		wake = earlier(wake, reportAt)
	} else if !w.reported {
		w.reported = true
		// Nothing waits for the names: they are only for people.
		w.read = make(chan map[string]claim, 1)
		claims := maps.Clone(w.run.claims)
		go func() { w.read <- w.volumes.ownersOf(ctx, claims) }()
	}
	return wake
}

// sleep waits until wake or until something changes. It returns the cause of ctx when that ends.
func (w *volumeWait) sleep(ctx context.Context, wake time.Time, changed <-chan struct{}, attached []string) error {
	alarm := time.NewTimer(time.Until(wake))
	defer alarm.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-alarm.C:
	case <-w.again:
		w.again = nil
	case w.owners = <-w.read:
		w.run.reportCause(nil, overview.Volume, "", "volumes are still attached to the node: "+describe(attached, w.owners))
	case <-changed:
	case <-w.run.store.changed: // a pod that has come may use one of the volumes
	case terms := <-w.run.request.Changed:
		w.run.request.Terms = terms
	case reply := <-w.run.request.Asked:
		progress := w.run.progress(time.Now())
		progress.Waits = []overview.Wait{w.wait(attached)}
		reply <- progress
	}
	return nil
}

// wait says that volumes are waited for.
func (w *volumeWait) wait(attached []string) overview.Wait {
	return overview.Wait{
		Cause: overview.Volume, Name: describe(attached, w.owners), Until: w.run.request.Terms.Deadline,
		Why: "volumes are still attached to the node: " + describe(attached, w.owners),
	}
}

// describe names volumes, with their claims if these are known.
func describe(volumes []string, owners map[string]claim) string {
	var texts []string
	for _, name := range volumes {
		if c, ok := owners[name]; ok {
			name += " (claim " + c.namespace + "/" + c.name + ")"
		}
		texts = append(texts, name)
	}
	return joinFirst(texts, ", ")
}

// ownersOf returns the claims of volumes, by volume, as far as they can be read. It is for texts only.
func (v *Volumes) ownersOf(ctx context.Context, claims map[claim]bool) map[string]claim {
	const most = 2 * maxNames // requests
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	owners, asked := map[string]claim{}, 0
	for c := range claims {
		if asked++; asked > most {
			break
		}
		if volume, err := v.volumeOf(ctx, c); err == nil && volume != "" {
			owners[volume] = c
		}
	}
	return owners
}

// volumeOf returns the volume that a claim is bound to; empty: there is none.
func (v *Volumes) volumeOf(ctx context.Context, c claim) (string, error) {
	pvc, err := v.client.CoreV1().PersistentVolumeClaims(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get claim %s/%s: %w", c.namespace, c.name, err)
	}
	return pvc.Spec.VolumeName, nil
}

// attachedTo returns the volumes that are attached to a node and not in use, sorted: the names of their
// PersistentVolumes, or of their attachments if they have none.
func (v *Volumes) attachedTo(node string, inUse map[claim]string) []string {
	objs, err := v.attached.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // not possible: NewVolumes has added the index
	}
	keep := map[string]bool{}
	for _, volume := range inUse {
		keep[volume] = true
	}
	var names []string
	for _, obj := range objs {
		a := obj.(*storagev1.VolumeAttachment)
		name := cmp.Or(ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Name)
		if !keep[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// addInUse adds the volumes of pods to inUse, of those claims that are not in it.
func (v *Volumes) addInUse(ctx context.Context, pods []*corev1.Pod, inUse map[claim]string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, pod := range pods {
		for c := range claimsOf(pod) {
			if _, known := inUse[c]; known {
				continue
			}
			volume, err := v.volumeOf(ctx, c)
			if err != nil {
				return fmt.Errorf("find the volumes of the pods that stay: %w", err)
			}
			if volume != "" {
				inUse[c] = volume
			}
		}
	}
	return nil
}

// claimsOf yields the claims of a pod.
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
			if !yield(c) {
				return
			}
		}
	}
}

// noteClaims notes the claims of a pod that has to leave: their volumes may be waited for.
func (r *run) noteClaims(pod *corev1.Pod) {
	if r.drainer.Volumes == nil {
		return
	}
	for c := range claimsOf(pod) {
		if r.claims == nil {
			r.claims = map[claim]bool{}
		}
		r.claims[c] = true
	}
}
