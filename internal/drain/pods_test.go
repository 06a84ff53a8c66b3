package drain

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// The second handler is client-go's brake on errors. It keeps the time of the last one
// for the whole process, and waits for decades where that was real and the next is virtual.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	m.Run()
}

// What is told of several pods of a node, or of the first, is the same each time.
func TestThePodsOfANodeHaveAnOrder(t *testing.T) {
	store := newPodStore()
	var want []string
	for _, namespace := range []string{"a", "a-b"} {
		for k := range 9 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(k), UID: types.UID(namespace + fmt.Sprint(k))}}
			_ = store.Update(pod)
			want = append(want, nameOf(pod))
		}
	}
	var got []string
	for _, pod := range store.list() {
		got = append(got, nameOf(pod))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o := obstacles{refusals: []overview.Refusal{{Cause: overview.Webhook, Name: "b", Pods: 2}, {Cause: overview.Budget, Name: "c", Pods: 2}, {Cause: overview.Budget, Name: "a", Pods: 2}, {Cause: overview.Webhook, Name: "a", Pods: 3}}}
	names := ""
	for _, r := range o.sorted() {
		names += string(r.Cause) + " " + r.Name + ";"
	}
	if want := fmt.Sprintf("%[1]s a;%[2]s a;%[2]s c;%[1]s b;", overview.Webhook, overview.Budget); names != want {
		t.Errorf("what kept pods: %s, want %s", names, want)
	}
}
