package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// The rights in deploy/ are the least: what the scenarios do, taken together,
// needs every one of them, and nothing else.

// awsCalls are those of all scenarios that have ended, by IAM action: by handlers
// alone, and those of scenarios in otherRights.
var awsCalls = struct {
	sync.Mutex
	byHandlers, byOthers map[string]int
}{byHandlers: map[string]int{}, byOthers: map[string]int{}}

// countCalls adds the calls of a scenario's account to awsCalls.
func countCalls(scenario string, account *awssim.Server) {
	awsCalls.Lock()
	defer awsCalls.Unlock()
	made := awsCalls.byHandlers
	if _, other := otherRights.Load(scenario); other {
		made = awsCalls.byOthers
	}
	for call, n := range account.Counts() {
		made[iamAction(call)] += n
	}
}

// iamAction is the action that a call needs: SQS has none for batches.
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsqs.html
func iamAction(call awssim.CallKey) string {
	return call.Service + ":" + strings.TrimSuffix(call.Action, "Batch")
}

// wholeSuite reports whether nothing was left out, so that a right which was not used is of no use.
func wholeSuite() bool {
	if testing.Short() {
		return false
	}
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// checkPrivileges compares what all scenarios did with what deploy/ allows. What was not used is wrong only if
// everything was played, even if a part of that has failed.
func checkPrivileges(cluster *sandbox.Cluster, everything bool) error {
	granted, err := grantedByPolicy(filepath.Join("..", "deploy", "iam", "policy.json"))
	if err != nil {
		return err
	}
	awsCalls.Lock()
	defer awsCalls.Unlock()
	var wrong []error
	for _, action := range granted {
		if everything && awsCalls.byHandlers[action]+awsCalls.byOthers[action] == 0 {
			wrong = append(wrong, fmt.Errorf("the IAM policy grants %s, which no scenario has used", action))
		}
	}
	for _, action := range slices.Sorted(maps.Keys(awsCalls.byHandlers)) {
		// Who one is may be asked by all, and what was cut before it said what it is counts for nothing.
		if !slices.Contains(granted, action) && !strings.HasPrefix(action, "sts:") && action != "unknown:unknown" {
			wrong = append(wrong, fmt.Errorf("the IAM policy does not grant %s, which was called %d times", action, awsCalls.byHandlers[action]))
		}
	}

	if !everything {
		return errors.Join(wrong...)
	}

	rights, err := grantedByRoles(manifests)
	if err != nil {
		return err
	}
	used := map[right]bool{}
	_, err = cluster.Audit(func(e sandbox.AuditEvent) bool {
		if _, account := handlerOf(e); account != release.Name {
			return false
		}
		for _, name := range []string{"", e.Name} {
			used[right{e.Verb, e.Group, strings.TrimSuffix(e.Resource+"/"+e.Subresource, "/"), name}] = true
		}
		return false
	})
	if err != nil {
		return err
	}
	for _, r := range rights {
		if !used[r] {
			wrong = append(wrong, fmt.Errorf("the roles grant %s, which no scenario has used", r))
		}
	}
	return errors.Join(wrong...)
}

// handlerOf is the namespace and the ServiceAccount of the handler that made a request; empty if none did.
func handlerOf(e sandbox.AuditEvent) (namespace, account string) {
	if user, ok := strings.CutPrefix(e.User, "system:serviceaccount:"); ok && (strings.HasSuffix(user, release.Name) || strings.HasSuffix(user, release.Name+"-node")) {
		namespace, account, _ = strings.Cut(user, ":")
	}
	return namespace, account
}

// checkRefusals tells what the roles or, of what they allow, the admission policies have refused.
func checkRefusals(cluster *sandbox.Cluster) error {
	var wrong []error
	_, err := cluster.Audit(func(e sandbox.AuditEvent) bool {
		namespace, account := handlerOf(e)
		if account == "" || e.Code != http.StatusForbidden && e.Code != http.StatusUnprocessableEntity {
			return false
		}
		if _, other := otherRights.Load(strings.TrimSuffix(namespace, daemonSetHome)); !other {
			wrong = append(wrong, fmt.Errorf("refused in scenario %s: %s %s, status %d", namespace, e.Verb, e.URI, e.Code))
		}
		return false
	})
	return errors.Join(append(wrong, err)...)
}

// otherRights are the scenarios, by name, that take rights away from their handlers,
// or run commands that ask for more than a handler may.
var otherRights sync.Map

// A right is one verb on one resource, on the object of that name or, without one, on all.
type right struct{ verb, group, resource, name string }

func (r right) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s of %s %s", r.verb, strings.TrimPrefix(r.group+"/"+r.resource, "/"), r.name))
}

// grantedByRoles are the rights that the Role and the ClusterRole of a manifest file grant.
func grantedByRoles(path string) (rights []right, err error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), len(file)); ; {
		var role rbacv1.Role // a ClusterRole has the same rules
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, rule := range role.Rules {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						for _, name := range names {
							rights = append(rights, right{verb, group, resource, name})
						}
					}
				}
			}
		}
	}
	if len(rights) == 0 {
		return nil, fmt.Errorf("%s grants nothing", path)
	}
	return rights, nil
}

// grantedByPolicy are the actions that an IAM policy allows.
func grantedByPolicy(path string) (actions []string, err error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var policy struct {
		Statement []struct {
			Effect string
			Action any // one, or a list
		}
	}
	if err := json.Unmarshal(file, &policy); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, s := range policy.Statement {
		if s.Effect != "Allow" {
			return nil, fmt.Errorf("%s has a statement with the effect %s", path, s.Effect)
		}
		switch action := s.Action.(type) {
		case string:
			actions = append(actions, action)
		case []any:
			for _, a := range action {
				actions = append(actions, a.(string))
			}
		}
	}
	return actions, nil
}

// An API server of today streams the pods of a node that is drained; an older one
// lists them first, and so does a template that asks for their names.
func TestPodsAreListedForATemplateThatAsksForThem(t *testing.T) {
	tier.Full(t, "internal/webhook has it; only the check of privileges needs it")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("slow", n.name, stopping(30*time.Second, 10*time.Second))
	hook := s.webhook(nil)
	s.leader("--webhook-url="+hook.URL, "--webhook-template={{ join \",\" .Pods }}")
	s.awaitDeleted(soon, s.send(s.body("spot-interruption", n.instance)))
	s.eventually("the webhook is called", func() bool { return len(hook.calls()) > 0 })
	if got := hook.calls()[0].body; got != "slow" {
		t.Errorf("the pods are %q", got)
	}
}
