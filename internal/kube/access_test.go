package kube

import (
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestTheRightsThatAreCheckedAreThoseThatDeployGrants(t *testing.T) {
	granted := grantedBy(t, "../../deploy/manifests/node-termination-handler.yaml")
	checked := map[string]bool{"list poddisruptionbudgets.policy": true} // for doctor and what-if: the handler works without
	for _, a := range slices.Concat(Accesses("node-termination-handler", true), Disrupting(), Conditions(), LoadBalancers()) {
		checked[a.String()] = true
	}
	if diff := cmp.Diff(granted, checked); diff != "" {
		t.Errorf("rights (-granted +checked):\n%s", diff)
	}
	// A release with all options has those for rollouts and NodeClaims besides.
	all := grantedBy(t, "../../e2e/helm/testdata/golden/everything.yaml")
	maps.DeleteFunc(all, func(right string, _ bool) bool { return granted[right] })
	byOption := map[string]bool{}
	for _, a := range append(Surging(), Delegating()...) {
		byOption[a.String()] = true
	}
	if diff := cmp.Diff(all, byOption); diff != "" {
		t.Errorf("rights by option (-granted +checked):\n%s", diff)
	}
}

// grantedBy are the rights that the roles in a file grant.
func grantedBy(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for document := range strings.SplitSeq(string(file), "\n---\n") {
		var role rbacv1.Role // a ClusterRole has its rules in the same place
		if err := yaml.Unmarshal([]byte(document), &role); err != nil || !strings.HasSuffix(role.Kind, "Role") {
			continue
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				name, subresource, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					granted[Access{Group: rule.APIGroups[0], Resource: name, Subresource: subresource, Verb: verb}.String()] = true
				}
			}
		}
	}
	return granted
}

func TestAQuestionThatFailsIsAskedAgainByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := fake.NewClientset()
		var nodes, pods atomic.Int32
		clients.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			asked := &pods
			if review.Spec.ResourceAttributes.Resource == "nodes" {
				asked = &nodes
			}
			if n := asked.Add(1); asked == &nodes && n < 4 {
				return true, nil, apierrors.NewTimeoutError("a test", 1)
			}
			return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
		})
		needed := []Access{{Resource: "nodes", Verb: "watch"}, {Resource: "pods", Verb: "watch"}}
		reviews := clients.AuthorizationV1().SelfSubjectAccessReviews()
		if err := CheckAccess(t.Context(), reviews, "ns", needed, func(error) bool { return true }); err != nil {
			t.Error(err)
		}
		if nodes.Load() != 4 || pods.Load() != 1 {
			t.Errorf("asked %d times about nodes and %d times about pods, want 4 and 1", nodes.Load(), pods.Load())
		}
		nodes.Store(0)
		if err := CheckAccess(t.Context(), reviews, "ns", needed, func(error) bool { return false }); !apierrors.IsTimeout(err) || nodes.Load() != 1 {
			t.Errorf("an error that does not heal: %v, after %d questions", err, nodes.Load())
		}
	})
}
