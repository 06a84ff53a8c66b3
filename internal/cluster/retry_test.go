package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// In a storm thousands of patches wait for their turn for longer than one try may take. That is no failure.
func TestWhoHasHadNoTurnAsksAgainAtOnceAndSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		begin, tries := time.Now(), 0
		err := Retry(t.Context(), log.Logger(), "write the intent", func(ctx context.Context) error {
			if tries++; tries > 10 {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("patch node a: %w: %w", ErrNoTurn, context.Cause(ctx))
		})
		if err != nil || log.String() != "" || time.Since(begin) != 10*tryTimeout {
			t.Errorf("%v after %s, and the log says %s", err, time.Since(begin), log.String())
		}
	})
}

// slow has an API server take a time for each patch, and for each read, of a Node.
type slow struct {
	kube.Client
	patch, read time.Duration
}

type slowCore struct {
	typedcorev1.CoreV1Interface
	slow slow
}

type slowNodes struct {
	typedcorev1.NodeInterface
	slow slow
}

func (s slow) CoreV1() typedcorev1.CoreV1Interface { return slowCore{s.Client.CoreV1(), s} }

func (s slowCore) Nodes() typedcorev1.NodeInterface {
	return slowNodes{s.CoreV1Interface.Nodes(), s.slow}
}

func (s slowNodes) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	if err := retry.Sleep(ctx, s.slow.patch); err != nil {
		return nil, err
	}
	return s.NodeInterface.Patch(ctx, name, pt, data, opts, subresources...)
}

func (s slowNodes) Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error) {
	if err := retry.Sleep(ctx, s.slow.read); err != nil {
		return nil, err
	}
	return s.NodeInterface.Get(ctx, name, opts)
}

// record tries to record a notice until that succeeds.
func record(ctx context.Context, c *Cluster, ref Ref, id string) error {
	var log logtest.Log
	return c.RetryWrite(ctx, log.Logger(), ref, "cordon the node", func(ctx context.Context) error {
		_, err := c.Record(ctx, ref, func(i intent.Intent) intent.Intent { return i.With(spot(id), nil, now) })
		return err
	})
}

// An API server asks two webhooks for 10 s each, and then does without them.
func TestAPatchThatWasCutHasLongerTheNextTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, ref := start(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
		c.client = slow{Client: client, patch: 20 * time.Second}
		for _, test := range []struct {
			id   string
			want time.Duration
		}{{"a", tryTimeout + firstPause + 20*time.Second}, {"b", 20 * time.Second}} {
			begin := time.Now()
			if err := record(t.Context(), c, ref, test.id); err != nil || time.Since(begin) != test.want {
				t.Errorf("%s: %v after %s, want %s", test.id, err, time.Since(begin), test.want)
			}
		}
		c.client = slow{Client: client, patch: time.Second}
		if err := record(t.Context(), c, ref, "c"); err != nil || c.TryTimeout(ref) != tryTimeout {
			t.Errorf("%v; a try takes up to %s though the last patch was fast", err, c.TryTimeout(ref))
		}
	})
}

// Nodes that cannot be written for a long time do not hold up the evictions of all others.
func TestEvictionsHaveTheirTurnThoughManyPatchesHangAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []runtime.Object
		for k := range 12 {
			name := fmt.Sprint("n", k)
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}})
		}
		c, client, _ := start(t, nodes...)
		c.client, c.gate = slow{Client: client, patch: time.Hour}, pace.NewGate(2, 2)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, node := range nodes {
			all.Go(func() { _ = record(ctx, c, RefOf(node.(*corev1.Node)), "a") })
		}
		time.Sleep(time.Minute)
		for range 100 {
			begin := time.Now()
			entering, stop := context.WithTimeout(ctx, time.Minute)
			leave, err := c.gate.Enter(entering, pace.Priority{Deadline: at(180)})
			stop()
			if took := time.Since(begin); err != nil || took > 0 {
				t.Fatalf("an eviction enters after %s, %v, want at once", took, err)
			}
			time.Sleep(100 * time.Millisecond)
			leave(0)
		}
		cancel()
		all.Wait()
	})
}

// All drains of earlier leaders wait for the nodes that have lost their label.
func TestANodeThatIsNotReadSoonIsAsTheWatchShowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, err := cordon(&corev1.Node{}, intent.Intent{Queue: queueURL}.With(spot("a"), nil, now), CordonOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := apply(t, corev1.Node{}, p)
		n.Name, n.UID, n.Labels = "a", "1", nil
		c, client, ref := start(t, &n)
		c.client = slow{Client: client, read: time.Hour}
		begin := time.Now()
		found, unreadable, err := c.Unfinished(t.Context())
		if took := time.Since(begin); err != nil || unreadable != nil || took != 5*time.Second || len(found) != 1 || found[0].Ref != ref {
			t.Errorf("found %+v after %s, %v, %v", found, took, unreadable, err)
		}
		c.client = client
		if found, _, _ := c.Unfinished(t.Context()); len(found) != 1 {
			t.Errorf("found %+v where the node is read", found)
		}
	})
}
