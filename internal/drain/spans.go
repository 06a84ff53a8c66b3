package drain

import (
	"cmp"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// errStillThere ends the span of a pod that has not left.
var errStillThere = errors.New("the pod is still there")

// beginSpan begins the span of a pod with the first request for it. The span lasts until the pod
// is gone, however often it is asked to leave.
func (r *run) beginSpan(ctx context.Context, pod *corev1.Pod) {
	if _, begun := r.spans[pod.UID]; begun {
		return
	}
	if _, span := trace.Begin(ctx, "evict", "pod", nameOf(pod)); span != (trace.Span{}) {
		if r.spans == nil {
			r.spans = map[types.UID]trace.Span{}
		}
		r.spans[pod.UID] = span
	}
}

// endSpan ends the span of a pod, if it has one. err says why the pod has not left; nil: it has.
func (r *run) endSpan(uid types.UID, err error) {
	if span, begun := r.spans[uid]; begun {
		p := r.pods[uid]
		span.End(err, "refused", p.refused, "forced", p.forced)
		delete(r.spans, uid)
	}
}

// endSpans ends the spans of the pods that are still there when the drain ends.
func (r *run) endSpans(ctx context.Context) {
	for uid := range r.spans {
		r.endSpan(uid, cmp.Or(context.Cause(ctx), errStillThere))
	}
}
