package app

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// points are the requests of a process, to the API server and to the metadata. At one of them, told by
// its number, the process ends.
type points struct {
	mu   sync.Mutex
	seen int
	at   int
	end  func()
}

// pass counts a request.
func (p *points) pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen++; p.seen == p.at {
		go p.end()
	}
}

type countingTransport struct {
	points *points
	to     http.RoundTripper
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.points.pass()
	return c.to.RoundTrip(r)
}

func TestAProcessThatEndsAtAnyRequestIsFollowed(t *testing.T) {
	for at := 1; ; at++ {
		p := &points{at: at}
		onMachine(t, func(m *machine) {
			m.kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, kuberuntime.Object, error) {
				p.pass()
				return false, nil, nil
			})
			m.transport = countingTransport{p, m.metadata.Transport()}
			ended := make(chan struct{})
			var stop func()
			p.end = func() {
				stop()
				close(ended)
			}
			p.mu.Lock() // no request is counted before stop is known
			stop = m.begin()
			p.mu.Unlock()
			m.after(time.Second)
			m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
			select {
			case <-ended:
				m.after(time.Second) // the fake does not say that a pod is stopping
				m.start()
			case <-time.After(time.Minute):
			}
			m.after(time.Minute)
			m.want(fmt.Sprintf("ended at request %d", at), true, intent.Drained, 1)
			if _, i := m.node(); len(i.Entries) != 1 || len(i.Past) != 0 {
				t.Errorf("ended at request %d: the node carries %+v", at, i)
			}
		})
		if p.seen < at {
			t.Logf("%d points", at-1)
			return
		}
	}
}

// Whatever is wrong with an item for a while, at the start or later, a notice is not lost.
func TestWhateverIsWrongWithTheMetadataForAWhileNothingIsLost(t *testing.T) {
	faults := map[string]awssim.MetadataFault{
		"503": {Status: http.StatusServiceUnavailable}, "401": {Status: http.StatusUnauthorized}, "404": {Status: http.StatusNotFound},
		"hangs": {Hang: true}, "reset": {Reset: true}, "slow": {Delay: 1500 * time.Millisecond}, "no document": {Status: http.StatusOK, Body: "<html>"},
		"empty": {Status: http.StatusOK, Body: " "},
	}
	paths := []string{
		"/api/token", "/dynamic/instance-identity/document", "/meta-data/spot/instance-action", "/meta-data/events/recommendations/rebalance",
		"/meta-data/events/maintenance/scheduled", "/meta-data/autoscaling/target-lifecycle-state", "",
	}
	for name, fault := range faults {
		for _, path := range paths {
			t.Run(name+" "+path, func(t *testing.T) {
				onMachine(t, func(m *machine) {
					m.start()
					fault.Prefix = path
					m.metadata.SetFault(fault)
					m.metadata.RevokeTokens()
					m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
					m.after(20 * time.Second)
					m.metadata.SetFault(awssim.MetadataFault{})
					m.after(20 * time.Second)
					m.want("after", true, intent.Drained, 1)
					if _, i := m.node(); len(i.Entries) != 1 {
						t.Errorf("the node carries %+v", i)
					}
				})
			})
		}
	}
}

// Each hour a change is announced and called off. The first hours fill what is bounded.
func TestNothingGrowsOnTheNode(t *testing.T) {
	if race.Enabled() {
		t.Skip("measures memory, of which the race detector takes a multiple")
	}
	onMachine(t, func(m *machine) {
		m.start()
		measure := func(from, to int) (heap uint64, goroutines int) {
			for hour := from; hour < to; hour++ {
				e := awssim.MaintenanceEvent{
					ID: fmt.Sprintf("instance-event-%017d", hour%8), Code: "system-reboot", State: "active", NotBefore: time.Now().Add(10 * time.Hour),
				}
				m.metadata.Schedule(e)
				m.after(time.Minute)
				if node, _ := m.node(); !node.Spec.Unschedulable {
					t.Fatalf("hour %d: it is not cordoned", hour)
				}
				e.State = "canceled"
				m.metadata.Schedule(e)
				m.after(30 * time.Second)
				if node, _ := m.node(); node.Spec.Unschedulable {
					t.Fatalf("hour %d: it is cordoned", hour)
				}
				m.after(58*time.Minute + 30*time.Second)
			}
			m.kube.ClearActions() // the fake remembers every request
			m.log.Reset()
			runtime.GC()
			var s runtime.MemStats
			runtime.ReadMemStats(&s)
			return s.HeapAlloc, runtime.NumGoroutine()
		}
		measure(0, 12)
		heap1, goroutines1 := measure(12, 36)
		heap2, goroutines2 := measure(36, 60)
		t.Logf("heap %d and %d KiB, goroutines %d and %d", heap1>>10, heap2>>10, goroutines1, goroutines2)
		if heap2 > heap1+(2<<20) || goroutines2 > goroutines1 {
			t.Error("something grows")
		}
	})
}
