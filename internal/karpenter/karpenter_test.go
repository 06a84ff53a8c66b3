package karpenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

var by = time.Date(2100, 11, 20, 10, 0, 0, 500, time.UTC)

// aClaim is the NodeClaim of aNode.
func aClaim(edits ...string) string {
	text := `{"metadata":{"name":"pool-x","uid":"u1","resourceVersion":"7"ANNOTATIONS},"spec":{"terminationGracePeriod":null},` +
		`"status":{"nodeName":"node-a","providerID":"aws:///eu-west-1a/i-1"}}`
	return strings.NewReplacer(append(edits, "ANNOTATIONS", "")...).Replace(text)
}

func deadlineIs(text string) string {
	return fmt.Sprintf(`,"annotations":{%q:%q}`, DeadlineAnnotation, text)
}

func aNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Other", Name: "other"},
			{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "pool-x", UID: "u1"},
		}},
		Spec: corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-1"},
	}
}

// replace plays Replace against a server that has one NodeClaim. It returns the writes.
func replace(t *testing.T, node *corev1.Node, by time.Time, answer func(r *http.Request, call int) (int, string)) (writes []string, err error) {
	t.Helper()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodGet {
			writes = append(writes, r.Method+" "+r.URL.Path+" "+string(body))
		}
		calls++
		status, text := answer(r, calls)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	client, err := kube.New(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	err = NodeClaims{Client: client}.Replace(t.Context(), node, by)
	return writes, err
}

func has(claim string) func(*http.Request, int) (int, string) {
	return func(*http.Request, int) (int, string) { return http.StatusOK, claim }
}

func TestANodeClaimGetsItsDeadlineAndIsDeleted(t *testing.T) {
	const (
		path     = "/apis/karpenter.sh/v1/nodeclaims/pool-x "
		deletion = "DELETE " + path + `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"u1"}}`
	)
	patch := func(text string) string {
		return "PATCH " + path + fmt.Sprintf(`{"metadata":{"annotations":{%q:%q},"resourceVersion":"7","uid":"u1"}}`, DeadlineAnnotation, text)
	}
	const at, earlier, later = "2100-11-20T10:00:00Z", "2100-11-20T09:59:00Z", "2100-11-20T10:01:00+00:00"
	deleting := `"resourceVersion":"7","deletionTimestamp":"2026-11-20T09:00:00Z"`
	for name, test := range map[string]struct {
		claim string
		by    time.Time
		want  []string
	}{
		"a deadline":                                 {aClaim(), by, []string{patch(at), deletion}},
		"no deadline":                                {aClaim(), time.Time{}, []string{deletion}},
		"the deadline that it has":                   {aClaim("ANNOTATIONS", deadlineIs(at)), by, []string{deletion}},
		"an earlier one of somebody else":            {aClaim("ANNOTATIONS", deadlineIs(earlier)), by, []string{deletion}},
		"a later one of somebody else":               {aClaim("ANNOTATIONS", deadlineIs(later)), by, []string{patch(at), deletion}},
		"one that Karpenter cannot read":             {aClaim("ANNOTATIONS", deadlineIs("soon")), by, []string{patch(at), deletion}},
		"it is being deleted":                        {aClaim(`"resourceVersion":"7"`, deleting), by, []string{patch(at)}},
		"it is being deleted, no deadline":           {aClaim(`"resourceVersion":"7"`, deleting), time.Time{}, nil},
		"the grace period of its NodePool is longer": {aClaim("null", `"2000000h0m0s"`), by, []string{patch(at), deletion}},
	} {
		t.Run(name, func(t *testing.T) {
			writes, err := replace(t, aNode(), test.by, has(test.claim))
			if diff := cmp.Diff(test.want, writes); diff != "" || err != nil {
				t.Errorf("%v, writes (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestTheGracePeriodOfTheNodePoolCountsWhereItEndsEarlier(t *testing.T) {
	before := time.Now()
	writes, err := replace(t, aNode(), by, has(aClaim("null", `"1h0m0s"`)))
	if err != nil || len(writes) != 2 {
		t.Fatalf("%v, writes %q", err, writes)
	}
	var patch struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(writes[0][strings.Index(writes[0], "{"):]), &patch); err != nil {
		t.Fatal(err)
	}
	got, err := time.Parse(time.RFC3339, patch.Metadata.Annotations[DeadlineAnnotation])
	if err != nil || got.Sub(before.Add(time.Hour)).Abs() > time.Minute {
		t.Errorf("the deadline is %s, %v; want an hour from now", got, err)
	}
}

func TestWhatIsNotTheNodesOwnIsRefused(t *testing.T) {
	unowned := aNode()
	unowned.OwnerReferences = nil
	for name, test := range map[string]struct {
		node  *corev1.Node
		claim string
		why   string
	}{
		"a Node without a NodeClaim":         {unowned, aClaim(), "the Node names no NodeClaim"},
		"the NodeClaim of another machine":   {aNode(), aClaim("i-1", "i-2"), "NodeClaim pool-x is not about this Node"},
		"the NodeClaim of another Node":      {aNode(), aClaim("node-a", "node-b"), "NodeClaim pool-x is not about this Node"},
		"another NodeClaim of the same name": {aNode(), aClaim("u1", "u2"), "NodeClaim pool-x is not about this Node"},
	} {
		t.Run(name, func(t *testing.T) {
			writes, err := replace(t, test.node, by, has(test.claim))
			if refusal, ok := errors.AsType[Refusal](err); !ok || string(refusal) != test.why || len(writes) > 0 {
				t.Errorf("%v, writes %q", err, writes)
			}
		})
	}
	writes, err := replace(t, aNode(), by, func(*http.Request, int) (int, string) {
		return http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	})
	if refusal, ok := errors.AsType[Refusal](err); !ok || string(refusal) != "NodeClaim pool-x does not exist" || len(writes) > 0 {
		t.Errorf("%v, writes %q", err, writes)
	}
}

func TestAConflictIsReadAgain(t *testing.T) {
	conflict := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`
	for name, times := range map[string]int{"once": 1, "for ever": 100} {
		t.Run(name, func(t *testing.T) {
			refused := 0
			writes, err := replace(t, aNode(), by, func(r *http.Request, _ int) (int, string) {
				if r.Method == http.MethodPatch && refused < times {
					refused++
					return http.StatusConflict, conflict
				}
				return http.StatusOK, aClaim()
			})
			switch {
			case times == 1 && (err != nil || len(writes) != 3):
				t.Errorf("%v, writes %q; want two patches and a deletion", err, writes)
			case times > 1 && (err == nil || len(writes) != tries):
				t.Errorf("%v, %d writes; want %d patches and an error", err, len(writes), tries)
			}
		})
	}
}
