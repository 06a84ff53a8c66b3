package kubesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var errModified = errors.New("the object has been modified; please apply your changes to the latest version")

func (s *Server) getNode(r request) (runtime.Object, int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.nodes[r.name]
	if n == nil {
		return nil, 0, notFound(resourceNodes, r.name)
	}
	return n.encodable(), http.StatusOK, nil
}

// patchNode applies a JSON merge patch to the metadata and the spec of a Node. A patch that names another UID or
// resource version than the Node has is refused.
func (s *Server) patchNode(r request) (runtime.Object, int, error) {
	type part struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     corev1.NodeSpec   `json:"spec"`
	}
	return s.changeNode(r, types.MergePatchType, func(n *corev1.Node, patch []byte) error {
		p := part{n.ObjectMeta, n.Spec}
		err := patched(&p, patch, jsonpatch.MergePatch)
		n.ObjectMeta, n.Spec = p.Metadata, p.Spec
		return err
	})
}

// patchNodeStatus applies a strategic merge patch to the status of a Node.
func (s *Server) patchNodeStatus(r request) (runtime.Object, int, error) {
	type part struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Status   corev1.NodeStatus `json:"status"`
	}
	merge := func(before, patch []byte) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(before, patch, part{})
	}
	return s.changeNode(r, types.StrategicMergePatchType, func(n *corev1.Node, patch []byte) error {
		p := part{n.ObjectMeta, corev1.NodeStatus{Conditions: n.Status.Conditions}}
		err := patched(&p, patch, merge)
		n.UID, n.ResourceVersion = p.Metadata.UID, p.Metadata.ResourceVersion
		n.Status.Conditions = p.Status.Conditions
		return err
	})
}

// changeNode patches a Node with a patch of one type. What does not change is shared.
func (s *Server) changeNode(
	r request, kind types.PatchType, change func(*corev1.Node, []byte) error,
) (runtime.Object, int, error) {
	patch, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, 0, err
	}
	if r.Header.Get("Content-Type") != string(kind) {
		return nil, 0, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch",
			corev1.Resource(resourceNodes), r.name, "of the patches only "+string(kind)+" is simulated", 0, false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.nodes[r.name]
	if before == nil {
		return nil, 0, notFound(resourceNodes, r.name)
	}
	after := *before.Node
	if err := change(&after, patch); err != nil {
		return nil, 0, err
	}
	if after.UID != before.UID {
		immutable := field.Invalid(field.NewPath("metadata", "uid"), after.UID, "field is immutable")
		return nil, 0, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, r.name, field.ErrorList{immutable})
	}
	if after.ResourceVersion != before.ResourceVersion {
		return nil, 0, conflict(resourceNodes, r.name, errModified)
	}
	s.setNode(&node{Node: &after})
	return &after, http.StatusOK, nil
}

// patched patches a part of an object, by way of JSON.
func patched[P any](part *P, patch []byte, merge func(before, patch []byte) ([]byte, error)) error {
	before, err := json.Marshal(part)
	if err != nil {
		return err
	}
	after, err := merge(before, patch)
	if err != nil {
		return err
	}
	*part = *new(P)
	return json.Unmarshal(after, part)
}

func (n *node) setVersion(version uint64) {
	n.version, n.ResourceVersion = version, strconv.FormatUint(version, 10)
}

// evictPod evicts a pod: it gets the condition DisruptionTarget, and then stops. There are no budgets.
func (s *Server) evictPod(r request) (runtime.Object, int, error) {
	eviction, err := readBody(r.Request, &policyv1.Eviction{})
	if err != nil {
		return nil, 0, err
	}
	options := metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		options = *eviction.DeleteOptions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.podToDelete(r.name, options.Preconditions)
	if err != nil {
		return nil, 0, err
	}
	if !p.disrupted {
		disrupted := *p
		disrupted.disrupted = true
		s.setPod(&disrupted)
		p = &disrupted
	}
	s.stopPod(p, options.GracePeriodSeconds)
	return &metav1.Status{TypeMeta: typeMeta("Status"), Status: metav1.StatusSuccess, Code: http.StatusCreated},
		http.StatusCreated, nil
}

// deletePod deletes a pod, which stops.
func (s *Server) deletePod(r request) (runtime.Object, int, error) {
	options, err := readBody(r.Request, &metav1.DeleteOptions{})
	if err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.podToDelete(r.name, options.Preconditions)
	if err != nil {
		return nil, 0, err
	}
	return s.stopPod(p, options.GracePeriodSeconds).typed(), http.StatusOK, nil
}

// podToDelete returns a pod that there is, and that meets the preconditions. The caller holds mu.
func (s *Server) podToDelete(name string, preconditions *metav1.Preconditions) (*pod, error) {
	p := s.pods[name]
	switch {
	case p == nil:
		return nil, notFound(resourcePods, name)
	case preconditions == nil:
		return p, nil
	}
	if uid := preconditions.UID; uid != nil && *uid != p.uid {
		return nil, conflict(resourcePods, name, fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s)", *uid, p.uid))
	}
	if version := preconditions.ResourceVersion; version != nil && *version != strconv.FormatUint(p.version, 10) {
		return nil, conflict(resourcePods, name, fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match that in record (%d)", *version, p.version))
	}
	return p, nil
}

// stopPod makes a pod stop, within its grace period, or sooner if it stops already and the new one is shorter. Its
// kubelet tells that it has ended, and removes it. The caller holds mu.
func (s *Server) stopPod(p *pod, graceSeconds *int64) *pod {
	now := time.Now()
	grace := int64(podGrace)
	if graceSeconds != nil {
		grace = max(1, *graceSeconds)
	}
	first := p.deletion.IsZero()
	if deadline := now.Add(time.Duration(grace) * time.Second); !first && !deadline.Before(p.deletion) {
		return p
	}
	stopping := *p
	stopping.grace, stopping.deletion = grace, now.Add(time.Duration(grace)*time.Second)
	s.setPod(&stopping)
	if first {
		s.replace(p, now)
	}
	uid := p.uid
	time.AfterFunc(min(p.stop, time.Duration(grace)*time.Second), func() { s.podStopped(p.name, uid) })
	return &stopping
}

// podStopped is what a kubelet does when a pod has ended.
func (s *Server) podStopped(name string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	if p == nil || p.uid != uid {
		return
	}
	ended := *p
	ended.phase = corev1.PodFailed
	s.setPod(&ended)
	s.removePod(&ended)
}

func (s *Server) getLease(r request) (runtime.Object, int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	lease := s.leases[r.PathValue("namespace")+"/"+r.name]
	if lease == nil {
		return nil, 0, apierrors.NewNotFound(coordinationv1.Resource("leases"), r.name)
	}
	return lease, http.StatusOK, nil
}

// setLease creates a Lease, or updates one that nobody else has updated since.
func (s *Server) setLease(r request) (runtime.Object, int, error) {
	lease, err := readBody(r.Request, &coordinationv1.Lease{})
	if err != nil {
		return nil, 0, err
	}
	resource := coordinationv1.Resource("leases")
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.PathValue("namespace") + "/" + lease.Name
	before, _ := s.leases[key].(*coordinationv1.Lease)
	code := http.StatusOK
	switch {
	case r.Method == http.MethodPost && before != nil:
		return nil, 0, apierrors.NewAlreadyExists(resource, lease.Name)
	case r.Method == http.MethodPost:
		code = http.StatusCreated
		lease.Namespace, lease.UID = r.PathValue("namespace"), s.newUID("lease")
	case before == nil:
		return nil, 0, apierrors.NewNotFound(resource, lease.Name)
	case lease.ResourceVersion != "" && lease.ResourceVersion != before.ResourceVersion:
		return nil, 0, apierrors.NewConflict(resource, lease.Name, errModified)
	}
	s.version++
	lease.ResourceVersion = strconv.FormatUint(s.version, 10)
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	s.leases[key] = lease
	return lease, code, nil
}

// acceptEvent answers as if an Event were kept.
func acceptEvent(r request) (runtime.Object, int, error) {
	event, err := readBody(r.Request, &corev1.Event{})
	if err != nil {
		return nil, 0, err
	}
	event.TypeMeta = typeMeta("Event")
	return event, http.StatusCreated, nil
}

// allow answers that the client has a right.
func allow(r request) (runtime.Object, int, error) {
	review, err := readBody(r.Request, &authorizationv1.SelfSubjectAccessReview{})
	if err != nil {
		return nil, 0, err
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
	review.Status.Allowed = true
	return review, http.StatusCreated, nil
}

func notFound(resource, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
}

func conflict(resource, name string, why error) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: resource}, name, why)
}
