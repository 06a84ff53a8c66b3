package holdback

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// optionsAlone are options without a policy file.
type optionsAlone struct{}

func (optionsAlone) CurrentPolicy() decision.Policy {
	return decision.Policy{NodeGracePeriod: 2 * time.Minute}
}
func (optionsAlone) RulesChanged() <-chan struct{} { return nil }

// A row is a line over some nodes that are ready, with a place for each.
type row struct {
	*Line
	places  []*Place
	carried []intent.Intent
}

// withRow calls do in virtual time, with nodes of which one may be out of use.
func withRow(t *testing.T, nodes int, do func(r *row)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, r := fake.NewClientset(), &row{carried: make([]intent.Intent, nodes)}
		for k := range nodes {
			name := fmt.Sprint("node-", k)
			err := client.Tracker().Add(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		watched, err := cluster.New(client, pace.NewGate(8, 8), "queue", cluster.CordonOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() { watched.Run(ctx) })
		if err := watched.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		r.Line = New(Config{
			Cluster: watched, Policies: optionsAlone{}, MaxUnready: intstr.FromInt32(1),
			Places:   func() []*Place { return r.places },
			Joins:    func(cluster.Ref) bool { return false },
			Replaces: func(intent.Intent) bool { return false },
		})
		for k := range nodes {
			name := fmt.Sprint("node-", k)
			r.places = append(r.places, r.NewPlace(cluster.Ref{Name: name, UID: types.UID(name)},
				func() intent.Intent { return r.carried[k] }))
			r.carried[k] = waiting(time.Now())
		}
		do(r)
	})
}

// waiting is what a node with a recommendation carries that is held back.
func waiting(since time.Time) intent.Intent {
	i := intent.Intent{}.With(intent.Entry{Kind: notice.RebalanceRecommendation, Time: since}, nil, since)
	i.HeldBack = true
	return i
}

// ask asks for a node, and has it carry what comes of that.
func (r *row) ask(k int) Permit {
	p := r.places[k].Ask(r.carried[k], time.Now().UTC(), false)
	if p.Begins {
		r.carried[k] = r.carried[k].Released(time.Now())
	}
	return p
}

func TestWhoBeginsTakesThePlaceOfTheNext(t *testing.T) {
	withRow(t, 3, func(r *row) {
		if p := r.ask(0); !p.Begins {
			t.Fatalf("the first of the line waits: %+v", p)
		}
		if p := r.ask(1); p.Begins {
			t.Fatalf("the second begins beside it: %+v", p)
		}
		time.Sleep(lookAgain)
		p := r.ask(1)
		if p.Begins || p.Why != decision.WhyMaxUnready {
			t.Fatalf("the second, a moment later: %+v", p)
		}
		if !strings.HasSuffix(p.Detail, ": node-0") {
			t.Errorf("the node that uses up the limit is not named: %s", p.Detail)
		}
		if n, why := r.HeldBack(); n != 2 || why == "" {
			t.Errorf("held back: %d, %q", n, why)
		}
	})
}

// The watch may not show yet that the node of a drain which has ended is cordoned.
func TestADrainThatHasEndedKeepsItsPlaceUntilTheWatchMustShowIt(t *testing.T) {
	withRow(t, 2, func(r *row) {
		r.ask(0)
		r.places[0].Leave()
		time.Sleep(watchLag)
		if p := r.ask(1); p.Begins {
			t.Error("the next begins while the watch may be behind")
		}
		time.Sleep(lookAgain)
		if p := r.ask(1); !p.Begins {
			t.Errorf("the next waits still: %+v", p)
		}
	})
}

func TestANoticeThatIsBeingRecordedTakesAPlaceUntilItIs(t *testing.T) {
	withRow(t, 2, func(r *row) {
		r.carried[0] = intent.Intent{}
		if p := r.places[0].AskToRecord(waiting(time.Now()), time.Now()); !p.Begins {
			t.Fatalf("the drain of the notice waits: %+v", p)
		}
		if p := r.ask(1); p.Begins {
			t.Error("another begins meanwhile")
		}
		r.places[0].Recorded() // the write has failed: nothing is carried
		time.Sleep(lookAgain)
		if p := r.ask(1); !p.Begins {
			t.Errorf("the other waits still: %+v", p)
		}
	})
}

// A node whose labels change is in ever new groups.
func TestTheLineKeepsNoGroupThatNobodyWaitsFor(t *testing.T) {
	withRow(t, 1, func(r *row) {
		for k := range 5 {
			w := &waiter{}
			w.Limits = []decision.Group{{Rule: "limited", Nodes: "1", Value: fmt.Sprint("g", k)}}
			r.answer = r.lookAtRooms([]*waiter{w}, nil, time.Now())
			if n := len(r.answer.rooms); n != 1 {
				t.Errorf("%d groups are kept for one node that waits", n)
			}
		}
	})
}
