package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
)

// A store has one Lease, as the API server has it: who updates another version than the last gets a conflict.
type store struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease // nil: there is none
	version int
}

func (s *store) get() (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	return s.lease.DeepCopy(), nil
}

func (s *store) create(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "lease")
	}
	return s.keep(l), nil
}

func (s *store) update(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil || s.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", errors.New("another version"))
	}
	return s.keep(l), nil
}

func (s *store) keep(l *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.lease = l.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	return s.lease.DeepCopy()
}

// A network is what lies between a replica and the store: it delays requests and answers, or lets nothing through. A
// request whose sender has given up may be carried out nevertheless.
type network struct {
	typedcoordinationv1.LeaseInterface
	store  *store
	mu     sync.Mutex
	random *rand.Rand
	cut    bool          // nothing gets through
	deaf   bool          // no answer gets through
	slow   time.Duration // how long a request and its answer take each, at most
	takes  time.Duration // how long an answer takes, in addition
	fails  float64       // the share of requests that fail; every second of these is carried out
}

func (n *network) Leases(string) typedcoordinationv1.LeaseInterface { return n }

func (n *network) set(cut, deaf bool, slow time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut, n.deaf, n.slow = cut, deaf, slow
}

// overload makes every answer take so long, and a share of the requests fail.
func (n *network) overload(takes time.Duration, fails float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.takes, n.fails = takes, fails
}

// weather is how the next request fares.
func (n *network) weather() (cut bool, there, back time.Duration, refused, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 && n.random.Float64() < n.fails {
		refused = n.random.IntN(2) == 0
		lost = !refused
	}
	if n.slow > 0 {
		there, back = time.Duration(n.random.Int64N(int64(n.slow))), time.Duration(n.random.Int64N(int64(n.slow)))
	}
	if n.deaf {
		back = longestTimeout
	}
	return n.cut, there, back + n.takes, refused, lost
}

// send carries a request out, and returns when its answer is there, or ctx has ended.
func (n *network) send(ctx context.Context, do func() (*coordinationv1.Lease, error)) (lease *coordinationv1.Lease, err error) {
	cut, there, back, refused, lost := n.weather()
	if cut {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	answered := make(chan struct{})
	var answer *coordinationv1.Lease
	var failure error
	go func() {
		defer close(answered)
		time.Sleep(there)
		if !refused {
			answer, failure = do()
		}
		time.Sleep(back)
		if refused || lost {
			answer, failure = nil, apierrors.NewInternalError(errors.New("overloaded"))
		}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-answered:
		return answer, failure
	}
}

func (n *network) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return n.send(ctx, n.store.get)
}

func (n *network) Create(ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	l = l.DeepCopy() // it may be carried out when the sender uses it for something else
	return n.send(ctx, func() (*coordinationv1.Lease, error) { return n.store.create(l) })
}

func (n *network) Update(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	l = l.DeepCopy() // as in Create
	return n.send(ctx, func() (*coordinationv1.Lease, error) { return n.store.update(l) })
}

// A history of two replicas is who led when.
type history struct {
	mu      sync.Mutex
	leading map[string]bool
	terms   int
	overlap string // how two led at once
}

func (h *history) begin(who string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for other := range h.leading {
		h.overlap = fmt.Sprintf("%s leads while %s does", who, other)
	}
	h.leading[who] = true
	h.terms++
}

func (h *history) end(who string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leading, who)
}

func (h *history) leads(who string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leading[who]
}

// A leader needs stopsIn to stop when its context has ended.
const stopsIn = 550 * time.Millisecond

// Requests and answers are slow, one of two replicas is cut off again and again, and both stand for election all the time.
func TestTwoReplicasNeverLeadAtOnce(t *testing.T) {
	changes := 0
	for seed := range uint64(race.Rounds(300)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			ctx, cancel := context.WithCancel(t.Context())
			led := history{leading: map[string]bool{}}
			shared := &store{}
			var replicas [2]*network
			var all sync.WaitGroup
			for k := range replicas {
				who := "replica " + strconv.Itoa(k)
				replicas[k] = &network{store: shared, random: rand.New(rand.NewPCG(seed, uint64(k)+1))}
				elector := Elector{Client: replicas[k], Namespace: "ns", Name: "lease", Identity: who, Log: logr.Discard()}
				all.Go(func() {
					_ = elector.Run(ctx, func(ctx context.Context) error {
						led.begin(who)
						defer led.end(who)
						<-ctx.Done()
						time.Sleep(stopsIn)
						return ctx.Err()
					})
				})
			}
			for range 40 {
				n := replicas[random.IntN(2)]
				slow := []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, 4 * time.Second}[random.IntN(4)]
				n.set(random.IntN(4) == 0, random.IntN(4) == 0, slow)
				lasts := []time.Duration{3 * time.Second, 12 * time.Second, 70 * time.Second}[random.IntN(3)]
				time.Sleep(time.Duration(random.Int64N(int64(lasts))))
			}
			cancel()
			all.Wait()
			time.Sleep(time.Minute) // for requests that are under way
			if led.overlap != "" {
				t.Errorf("seed %d: %s", seed, led.overlap)
			}
			changes += led.terms
		})
	}
	if changes < race.Rounds(500) {
		t.Errorf("only %d terms were played", changes)
	}
	t.Logf("%d terms", changes)
}

// The other replica has seen the lease renewed. With an API server that answers in 500 ms, it takes it in time too. Had
// the leader been cut off instead, it would have had time to stop.
func TestAKilledLeaderIsFollowedInTime(t *testing.T) {
	for answers, want := range map[time.Duration]time.Duration{ // after so long at most
		0: 16100 * time.Millisecond, 500 * time.Millisecond: 20 * time.Second,
	} {
		slowest, least := time.Duration(0), time.Hour
		for seed := range uint64(race.Rounds(400)) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				shared := &store{}
				led := make(chan struct{})
				stopped := make(chan time.Time, 1)
				var all sync.WaitGroup
				run := func(ctx context.Context, k uint64, lead, stop func()) *network {
					n := &network{store: shared, random: rand.New(rand.NewPCG(seed, k)), slow: answers / 2}
					elector := Elector{Client: n, Namespace: "ns", Name: "lease", Identity: strconv.Itoa(int(k)), Log: logr.Discard()}
					all.Go(func() {
						_ = elector.Run(ctx, func(ctx context.Context) error {
							lead()
							<-ctx.Done()
							stop()
							return ctx.Err()
						})
					})
					return n
				}
				first := run(ctx, 1, func() {}, func() { stopped <- time.Now() })
				time.Sleep(5 * time.Second)
				run(ctx, 2, func() { close(led) }, func() {})
				time.Sleep(10*time.Second + time.Duration(seed)*37*time.Millisecond)
				first.set(true, false, 0) // as if it were killed
				killed := time.Now()
				<-led
				slowest, least = max(slowest, time.Since(killed)), min(least, time.Since(<-stopped))
				cancel()
				all.Wait()
				time.Sleep(time.Minute) // for requests that are under way
			})
		}
		t.Logf("requests that take up to %s: taken after %s at most, and %s at least after the leader stopped", answers, slowest, least)
		if slowest > want {
			t.Errorf("with requests that take up to %s the lease is taken after %s, want %s at most", answers, slowest, want)
		}
		if least < stopsIn {
			t.Errorf("with requests that take up to %s the lease is taken %s after the leader stopped, want %s at least", answers, least, stopsIn)
		}
	}
}

// The API server is well at first, and then takes so long for each answer to both replicas.
func TestALeaderKeepsItsTermThoughAnswersAreSlow(t *testing.T) {
	const seeds = 20
	for _, c := range []struct {
		takes   time.Duration
		fails   float64
		changes int // of leader, in all seeds, at most
	}{
		{time.Second, 0, 0},
		{2 * time.Second, 0, 0},
		{5 * time.Second, 0, 0},
		{50 * time.Millisecond, 0.2, 0},
		{2 * time.Second, 0.2, seeds / 2},
		{5 * time.Second, 0.2, seeds}, // most right after the change: a request that fails then costs too much of a short lease
	} {
		changes, most := 0, 0
		for seed := range uint64(seeds) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				led := history{leading: map[string]bool{}}
				shared := &store{}
				var replicas [2]*network
				var all sync.WaitGroup
				for k := range replicas {
					replicas[k] = &network{store: shared, random: rand.New(rand.NewPCG(seed, uint64(k)+1))}
					elector := Elector{Client: replicas[k], Namespace: "ns", Name: "lease", Identity: strconv.Itoa(k), Log: logr.Discard()}
					all.Go(func() {
						_ = elector.Run(ctx, func(ctx context.Context) error {
							led.begin(elector.Identity)
							defer led.end(elector.Identity)
							<-ctx.Done()
							return ctx.Err()
						})
					})
				}
				time.Sleep(30*time.Second + time.Duration(seed)*77*time.Millisecond)
				for _, n := range replicas {
					n.overload(c.takes, c.fails)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				led.mu.Lock()
				changes, most = changes+led.terms-1, max(most, led.terms-1)
				led.mu.Unlock()
				cancel()
				all.Wait()
				time.Sleep(time.Minute) // for requests that are under way
			})
		}
		t.Logf("answers after %s, %.0f %% fail: %d changes of leader in %d times ten minutes, %d at most in one",
			c.takes, 100*c.fails, changes, seeds, most)
		if changes > c.changes {
			t.Errorf("answers after %s, %.0f %% fail: %d changes of leader, want %d at most", c.takes, 100*c.fails, changes, c.changes)
		}
		if most > 1 && c.takes < 5*time.Second { // a renewal after a failure is three requests: 5 s each are too many of them
			t.Errorf("answers after %s, %.0f %% fail: %d changes of leader in one play, want 1 at most", c.takes, 100*c.fails, most)
		}
	}
}

// A leader that stops in order releases its lease.
func TestALeaderThatStopsIsFollowedWithinTwoSeconds(t *testing.T) {
	for seed := range race.Rounds(60) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			shared, led := &store{}, make(chan struct{}, 2)
			var all sync.WaitGroup
			run := func(ctx context.Context, who string) {
				elector := Elector{Client: &network{store: shared}, Namespace: "ns", Name: "lease", Identity: who, Log: logr.Discard()}
				all.Go(func() {
					_ = elector.Run(ctx, func(ctx context.Context) error {
						led <- struct{}{}
						<-ctx.Done()
						return ctx.Err()
					})
				})
			}
			first, stop := context.WithCancel(ctx)
			run(first, "1")
			<-led
			run(ctx, "2")
			time.Sleep(10*time.Second + time.Duration(seed)*37*time.Millisecond)
			stopped := time.Now()
			stop()
			if <-led; time.Since(stopped) > 2*time.Second {
				t.Errorf("the lease was taken %s after the leader had stopped", time.Since(stopped))
			}
			cancel()
			all.Wait()
		})
	}
}

// The machine stood still, and its monotonic clock with it: the lease has expired for another replica, and not for us.
func TestWhoFindsTheLeaseInOtherHandsStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, led := &store{}, history{leading: map[string]bool{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			elector := Elector{Client: &network{store: shared}, Namespace: "ns", Name: "lease", Identity: "we", Log: logr.Discard()}
			_ = elector.Run(ctx, func(ctx context.Context) error {
				led.begin("we")
				defer led.end("we")
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(5 * time.Second)
		if !led.leads("we") {
			t.Fatal("it does not lead")
		}
		taken, err := shared.get()
		if err != nil {
			t.Fatal(err)
		}
		taken.Spec.HolderIdentity, taken.Spec.RenewTime = new("another"), new(metav1.NowMicro())
		if _, err := shared.update(taken); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if led.leads("we") {
			t.Error("it leads 2 s after another replica has taken the lease")
		}
		cancel()
		<-ended
	})
}
