package app

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// rightsOf is a cluster whose answer to each question about rights is that of allow.
func rightsOf(allow func(*authorizationv1.ResourceAttributes) (bool, error)) kube.Client {
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		allowed, err := allow(review.Spec.ResourceAttributes)
		review.Status.Allowed = allowed
		return true, review, err
	})
	return client
}

// NTH's ClusterRole as its chart makes it, without a Role for a Lease.
func nthAllows(a *authorizationv1.ResourceAttributes) (bool, error) {
	verbs := map[string][]string{
		"nodes": {"get", "list", "patch", "update"}, "pods": {"list", "get"}, "pods/eviction": {"create"},
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return slices.Contains(verbs[resource], a.Verb), nil
}

func TestAllMissingRightsAreListedAtOnce(t *testing.T) {
	c := &options.Options{LeaderElect: true, LeaseName: "nth"}
	err := permissionsCheck(rightsOf(nthAllows), accesses(c), "kube-system").try(t.Context())
	want := "check the rights: this ServiceAccount must be allowed to watch nodes, watch pods, delete pods, get persistentvolumeclaims, " +
		"list volumeattachments.storage.k8s.io, watch volumeattachments.storage.k8s.io, create leases.coordination.k8s.io in kube-system, " +
		"get leases.coordination.k8s.io in kube-system, update leases.coordination.k8s.io in kube-system; the ClusterRole and the Role in deploy/manifests allow it"
	if err == nil {
		t.Fatal("it starts")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestWithoutLeaderElectionNoLeaseIsNeeded(t *testing.T) {
	client := rightsOf(func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Resource != "leases", nil })
	if err := permissionsCheck(client, accesses(&options.Options{}), "kube-system").try(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAClusterThatAnswersNoQuestionsAboutRightsIsTakenAtItsDeeds(t *testing.T) {
	client := rightsOf(func(*authorizationv1.ResourceAttributes) (bool, error) {
		return false, apierrors.NewForbidden(kschema.GroupResource{Resource: "selfsubjectaccessreviews"}, "", errors.New("no"))
	})
	if err := permissionsCheck(client, accesses(&options.Options{}), "").try(t.Context()); err != nil {
		t.Error(err)
	}
}
