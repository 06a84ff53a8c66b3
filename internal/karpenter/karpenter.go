// Package karpenter has Karpenter replace a node: it deletes the node's NodeClaim, and says until when its
// pods have to be gone.
//
// Karpenter then makes a new node for the pods while they still run, evicts them, and ends the machine.
// Whatever the budgets say, it deletes each pod so early that its grace period ends by that time.
// https://karpenter.sh/docs/concepts/disruption/#terminationgraceperiod
package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// DeadlineAnnotation is that of a NodeClaim which says by when its node is to be drained, in the format of
// RFC 3339. Karpenter reads it again each second of a drain, and does not change it.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.0/pkg/apis/v1/labels.go
const DeadlineAnnotation = "karpenter.sh/nodeclaim-termination-timestamp"

const (
	group = "karpenter.sh"
	path  = "/apis/" + group + "/v1/nodeclaims"
	// tries bounds the conflicts of one Replace: Karpenter writes to a NodeClaim a few times in its life.
	tries = 5
)

// A Refusal is an error that says why Karpenter cannot be asked. Another try would not change that.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// NodeClaims are those of a cluster. They may be used concurrently.
type NodeClaims struct {
	Client kube.Client
	// Gate bounds the requests in flight; nil: no bound.
	Gate *pace.Gate
}

// claim is what is read of a NodeClaim.
type claim struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		TerminationGracePeriod *metav1.Duration `json:"terminationGracePeriod"`
	} `json:"spec"`
	Status struct {
		NodeName   string `json:"nodeName"`
		ProviderID string `json:"providerID"`
	} `json:"status"`
}

// Replace deletes the NodeClaim of a Node, unless that was done before. by is when the node has to be drained;
// zero: Karpenter takes the time that it needs. A time that the NodeClaim has already gets earlier, and never
// later. nil: the NodeClaim is being deleted, and that cannot be taken back.
//
// Replace may be called again. It returns a [Refusal] if the Node has no NodeClaim, or one that is not about it:
// the Node names its NodeClaim, but a kubelet may write that. Any other error is the API server's.
func (c NodeClaims) Replace(ctx context.Context, node *corev1.Node, by time.Time) error {
	// The next node takes longer to come than any pod takes to be evicted.
	leave, err := c.Gate.Enter(ctx, pace.Priority{Class: pace.Urgent, Deadline: by})
	if err != nil {
		return err
	}
	defer leave(0)
	owner := ownerOf(node)
	if owner == nil {
		return Refusal("the Node names no NodeClaim")
	}
	for try := 1; ; try++ {
		found, err := c.get(ctx, owner.Name)
		if apierrors.IsNotFound(err) {
			return Refusal("NodeClaim " + owner.Name + " does not exist")
		}
		if err != nil {
			return fmt.Errorf("get NodeClaim %s: %w", owner.Name, err)
		}
		if !found.isOf(node, owner.UID) {
			return Refusal("NodeClaim " + owner.Name + " is not about this Node")
		}
		if text := found.deadline(by, time.Now()); text != "" {
			err = c.patch(ctx, found, text)
			if apierrors.IsConflict(err) && try < tries {
				continue
			}
			if err != nil {
				return fmt.Errorf("annotate NodeClaim %s: %w", owner.Name, err)
			}
		}
		if found.Metadata.DeletionTimestamp != nil {
			return nil
		}
		if err := c.delete(ctx, found); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete NodeClaim %s: %w", owner.Name, err)
		}
		return nil
	}
}

// ownerOf is the reference to the NodeClaim that Karpenter has put on its Node; nil: there is none.
func ownerOf(node *corev1.Node) *metav1.OwnerReference {
	for k, o := range node.OwnerReferences {
		if o.Kind == "NodeClaim" && strings.HasPrefix(o.APIVersion, group+"/") {
			return &node.OwnerReferences[k]
		}
	}
	return nil
}

// isOf reports whether the NodeClaim says itself that it is about a Node.
func (c claim) isOf(node *corev1.Node, uid types.UID) bool {
	return c.Metadata.UID == uid && c.Status.NodeName == node.Name &&
		c.Status.ProviderID != "" && c.Status.ProviderID == node.Spec.ProviderID
}

// deadline is the text that the annotation has to get; empty: it is right as it is. Karpenter would set it to the
// end of terminationGracePeriod if there were none, so that one counts where it is earlier.
func (c claim) deadline(by, now time.Time) string {
	if by.IsZero() {
		return ""
	}
	if grace := c.Spec.TerminationGracePeriod; grace != nil && c.Metadata.DeletionTimestamp == nil {
		if end := now.Add(grace.Duration); end.Before(by) {
			by = end
		}
	}
	by = by.UTC().Truncate(time.Second)
	present, err := time.Parse(time.RFC3339, c.Metadata.Annotations[DeadlineAnnotation])
	if err == nil && !present.After(by) {
		return ""
	}
	return by.Format(time.RFC3339)
}

func (c NodeClaims) get(ctx context.Context, name string) (claim, error) {
	var found claim
	text, err := c.Client.CoreV1().RESTClient().Get().AbsPath(path, name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	return found, err
}

// patch sets the annotation, unless somebody else has written the NodeClaim since.
func (c NodeClaims) patch(ctx context.Context, found claim, deadline string) error {
	body, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // it fails only for what is no JSON
		"uid": found.Metadata.UID, "resourceVersion": found.Metadata.ResourceVersion,
		"annotations": map[string]string{DeadlineAnnotation: deadline},
	}})
	return c.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path, found.Metadata.Name).
		SetHeader("Accept", "application/json").Body(body).Do(ctx).Error()
}

func (c NodeClaims) delete(ctx context.Context, found claim) error {
	body, _ := json.Marshal(metav1.DeleteOptions{ // as above
		TypeMeta:      metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		Preconditions: &metav1.Preconditions{UID: &found.Metadata.UID},
	})
	return c.Client.CoreV1().RESTClient().Delete().AbsPath(path, found.Metadata.Name).
		SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}
