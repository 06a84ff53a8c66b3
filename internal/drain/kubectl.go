package drain

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// What is kubectl's, and what is ours. A kubectl drain.Helper chooses the pods that leave, in one call for all
// pods that are new in the store, says what it warns of, and speaks the eviction API and the deletion of pods. Its
// rules are the ones that users know. Ours is the rest: when a pod is asked, in which order, with which grace
// period, how often, and when it is gone. kubectl's loop knows one grace period for all pods and no deadline, retries
// after a fixed time, reads each pod once a second, and loses the types of errors.
//
// Two clients stand between. choosing answers kubectl from the store, so that a choice costs no request. requesting
// makes one request: it adds the pod's UID and version as preconditions, because a StatefulSet makes a pod of the same
// name on another node, and it does not retry, because the deadline does not wait. A client has only the methods that
// kubectl calls; for any other it would panic. The tests call each.

// A chosen says whether a pod leaves its node.
type chosen struct {
	leaves bool
	// why is kubectl's reason to refuse to drain the node because of the pod, with our option in the place of its own.
	// It is empty for pods that leave, and for those that nobody expects to leave.
	why string
}

// choose asks kubectl which of these pods, all of one node, leave it. The answers are in the order of the pods.
// warnings is what `kubectl drain` would print.
func (f Filter) choose(pods []corev1.Pod) (answers []chosen, warnings string) {
	for k := range pods {
		pods[k].UID = types.UID(strconv.Itoa(k)) // by which its answer is found
	}
	helper := f.helper(context.Background(), choosing{pods: pods}, -1) //nolint:forbidigo // the client asks nobody
	list, refusals := helper.GetPodsForDeletion("")
	answers = make([]chosen, len(pods))
	for _, pod := range list.Pods() {
		k, _ := strconv.Atoi(string(pod.UID))
		answers[k].leaves = true
	}
	whys := map[string]string{} // by the pod's namespace and name
	for _, refusal := range refusals {
		reason, names, _ := strings.Cut(refusal.Error(), ": ") // cannot delete REASON: NAMESPACE/NAME, NAMESPACE/NAME
		for name := range strings.SplitSeq(names, ", ") {
			whys[name] = ourOption(reason)
		}
	}
	for k := range answers {
		if !answers[k].leaves {
			answers[k].why = whys[nameOf(&pods[k])]
		}
	}
	kinds := strings.Split(list.Warnings(), "; ") // kubectl has them in a map
	slices.Sort(kinds)
	return answers, strings.Join(kinds, "; ")
}

// ourOption names our option instead of kubectl's.
func ourOption(reason string) string {
	switch {
	case strings.Contains(reason, "--ignore-daemonsets"):
		return "it belongs to a DaemonSet: ignore-daemon-sets is false"
	case strings.Contains(reason, "--delete-emptydir-data"):
		return "it has an emptyDir volume: delete-local-data is false"
	}
	return reason
}

// evict asks the eviction API for a pod, once.
func (r *requests) evict(ctx context.Context, pod *corev1.Pod, s step) error {
	return r.helper(ctx, pod, s).EvictPod(*pod, policyv1.SchemeGroupVersion)
}

// remove deletes a pod, by one request.
func (r *requests) remove(ctx context.Context, pod *corev1.Pod, s step) error {
	return r.helper(ctx, pod, s).DeletePod(*pod)
}

// helper makes one request for a pod.
func (r *requests) helper(ctx context.Context, pod *corev1.Pod, s step) *kubectl.Helper {
	seconds := -1 // the pod's own grace period
	if s.grace > 0 {
		seconds = int(s.grace / time.Second)
	}
	client := requesting{rest: r.drainer.Client.CoreV1().RESTClient(), pod: pod, version: s.version}
	// What a Filter says is read where kubectl chooses pods, and not where it asks for one.
	return Filter{}.helper(ctx, client, seconds)
}

// helper has all fields of a Helper: the linter tells when there is another one.
func (f Filter) helper(ctx context.Context, client kubernetes.Interface, graceSeconds int) *kubectl.Helper {
	return &kubectl.Helper{
		Ctx:                             ctx,
		Client:                          client,
		Force:                           true, // pods without a controller have to leave as well
		GracePeriodSeconds:              graceSeconds,
		IgnoreAllDaemonSets:             f.IgnoreDaemonSets,
		Timeout:                         0,
		DeleteEmptyDirData:              f.DeleteEmptyDir,
		Selector:                        "",
		PodSelector:                     "",
		ChunkSize:                       0,
		DisableEviction:                 false,
		SkipWaitForDeleteTimeoutSeconds: 0,
		EvictErrorRetryDelay:            0,
		AdditionalFilters:               nil,
		Out:                             io.Discard,
		ErrOut:                          io.Discard,
		DryRunStrategy:                  cmdutil.DryRunNone,
		OnPodDeletedOrEvicted:           nil,
		OnPodDeletionOrEvictionFinished: nil,
		OnPodDeletionOrEvictionStarted:  nil,
	}
}

// choosing is the clientset of a node whose pods are known, and its parts.
type choosing struct {
	kubernetes.Interface
	typedcorev1.CoreV1Interface
	typedcorev1.PodInterface
	pods []corev1.Pod
}

func (c choosing) CoreV1() typedcorev1.CoreV1Interface  { return c }
func (c choosing) AppsV1() typedappsv1.AppsV1Interface  { return choosingApps{} }
func (c choosing) Pods(string) typedcorev1.PodInterface { return c }
func (c choosing) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: c.pods}, nil
}

// choosingApps has the DaemonSet of each pod that says it belongs to one. kubectl asks whether it still
// exists, and evicts pods without theirs. To know that would need a request for each such pod, and a
// right more; and without it the garbage collector takes either the pod or its owner reference away.
type choosingApps struct {
	typedappsv1.AppsV1Interface
	typedappsv1.DaemonSetInterface
}

func (c choosingApps) DaemonSets(string) typedappsv1.DaemonSetInterface { return c }
func (choosingApps) Get(context.Context, string, metav1.GetOptions) (*appsv1.DaemonSet, error) {
	return &appsv1.DaemonSet{}, nil
}

// requesting is the clientset for one request for a pod, and its parts.
type requesting struct {
	kubernetes.Interface
	typedcorev1.CoreV1Interface
	typedcorev1.PodInterface
	rest    rest.Interface // of the core API
	pod     *corev1.Pod
	version string // empty: whatever the pod's is
}

func (c requesting) CoreV1() typedcorev1.CoreV1Interface       { return c }
func (c requesting) PolicyV1() typedpolicyv1.PolicyV1Interface { return requestingPolicy{of: c} }
func (c requesting) Pods(string) typedcorev1.PodInterface      { return c }
func (c requesting) Delete(ctx context.Context, _ string, options metav1.DeleteOptions) error {
	return c.send(ctx, c.rest.Delete(), "", &options, &options)
}

type requestingPolicy struct {
	typedpolicyv1.PolicyV1Interface
	typedpolicyv1.EvictionInterface
	of requesting
}

func (c requestingPolicy) Evictions(string) typedpolicyv1.EvictionInterface { return c }
func (c requestingPolicy) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	return c.of.send(ctx, c.of.rest.Post(), "eviction", eviction, eviction.DeleteOptions)
}

// send sends a body whose options get the preconditions.
func (c requesting) send(
	ctx context.Context, request *rest.Request, subresource string, body any, options *metav1.DeleteOptions,
) error {
	options.Preconditions = metav1.NewUIDPreconditions(string(c.pod.UID))
	if c.version != "" {
		options.Preconditions.ResourceVersion = &c.version
	}
	request = request.Namespace(c.pod.Namespace).Resource("pods").Name(c.pod.Name).MaxRetries(0).Body(body)
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	return request.Do(ctx).Error()
}

// A Filter says which pods have to leave a node: those that `kubectl drain --force` would evict, with
// these options. kubectl itself decides; see choose.
type Filter struct {
	// IgnoreDaemonSets keeps quiet about the pods of DaemonSets. They stay in any case, except for those
	// that a rule or their annotation has leave.
	IgnoreDaemonSets bool
	// DeleteEmptyDir lets pods go that use emptyDir volumes. Without it they stay.
	DeleteEmptyDir bool
}

// A candidate is a pod that may have to leave, and when its rule or annotation has it leave.
type candidate struct {
	pod  *corev1.Pod
	turn decision.Turn
}

// mustLeave says of each candidate, all of one node, whether it has to leave. A pod of a DaemonSet whose turn
// comes has to leave under the rules for the others: a static pod stays, and DeleteEmptyDir counts. warnings is
// what `kubectl drain` would print of them.
func (f Filter) mustLeave(candidates []candidate) (answers []chosen, warnings string) {
	answers = make([]chosen, len(candidates))
	pods := make([]corev1.Pod, 0, len(candidates)) // a kilobyte each
	var asked []int                                // the candidate of each
	for k, c := range candidates {
		switch {
		case c.turn.Stays && !ofDaemonSet(c.pod):
			if _, static := c.pod.Annotations[corev1.MirrorPodAnnotationKey]; !static { // which no drain moves
				answers[k].why = "it " + c.turn.String()
			}
			continue
		case c.turn.Stays && c.turn.Why != "": // it would come again, or that is wanted
			continue
		}
		pods, asked = append(pods, *c.pod), append(asked, k)
		if ofDaemonSet(c.pod) && !c.turn.Stays {
			pods[len(pods)-1].OwnerReferences = nil
		}
	}
	if len(pods) == 0 {
		return answers, ""
	}
	chosen, warnings := f.choose(pods)
	for k, answer := range chosen {
		answers[asked[k]] = answer
	}
	return answers, warnings
}
