package lease

import (
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWhoRenewsTheLeaseLeadsWhateverItsClockSays(t *testing.T) {
	for name, test := range map[string]struct {
		ahead time.Duration
		first bool // the first answer, which goes by the clock
	}{
		"right":            {0, true},
		"5 minutes ahead":  {5 * time.Minute, true},
		"5 minutes behind": {-5 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset().CoordinationV1()
				leases := client.Leases("ns")
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"}}
				renew := func(holder string) {
					lease.Spec = coordinationv1.LeaseSpec{
						HolderIdentity: new(holder), LeaseDurationSeconds: new(int32(leaseDuration / time.Second)),
						RenewTime: new(metav1.NewMicroTime(time.Now().Add(test.ahead))),
					}
					if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				w := &Watcher{Client: client, Namespace: "ns", Name: "lease"}
				want := func(when string, leads bool) {
					t.Helper()
					if got := w.Leadership(t.Context()); got != map[bool]State{true: Held, false: Vacant}[leads] {
						t.Errorf("%s: %v", when, got)
					}
				}
				if got := w.Leadership(t.Context()); got != Absent {
					t.Errorf("without a lease: %v", got)
				}
				if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				want("that nobody ever held", false)
				renew("leader")
				want("at first", test.first)
				for range 10 {
					time.Sleep(5 * time.Second)
					renew("leader")
					want("while it is renewed", true)
				}
				time.Sleep(leaseDuration - time.Second)
				want("a moment before it ends", true)
				time.Sleep(time.Second)
				want("after it has ended", false)
				renew("another")
				want("when another has taken it", true)
				renew("")
				want("when it is released", false)
			})
		})
	}
}

// A pod on a node asks when its instance is told of something, which may be hours after it has asked last.
func TestALeaderThatEndedLongAgoDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset().CoordinationV1()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"}}
		renew := func() {
			lease.Spec = coordinationv1.LeaseSpec{
				HolderIdentity: new("leader"), LeaseDurationSeconds: new(int32(leaseDuration / time.Second)),
				RenewTime: new(metav1.NewMicroTime(time.Now())),
			}
			if _, err := client.Leases("ns").Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w := &Watcher{Client: client, Namespace: "ns", Name: "lease"}
		renew()
		if got := w.Leadership(t.Context()); got != Held {
			t.Errorf("at first: %v", got)
		}
		time.Sleep(time.Hour)
		renew()
		if got := w.Leadership(t.Context()); got != Held {
			t.Errorf("after an hour: %v", got)
		}
		time.Sleep(time.Hour)
		renew()
		time.Sleep(time.Hour)
		if got := w.Leadership(t.Context()); got != Vacant {
			t.Errorf("an hour after its end: %v", got)
		}
	})
}

func TestALeaderInDryRunTakesOverNothing(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns", Labels: map[string]string{DryRunLabel: "true"}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("leader"), LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NewMicroTime(time.Now())),
		},
	}).CoordinationV1()
	w := &Watcher{Client: client, Namespace: "ns", Name: "lease"}
	if got := w.Leadership(t.Context()); got != Absent {
		t.Errorf("it says %v", got)
	}
}

// The pod on a node whose clock is ahead would drain it beside the leader, and by a clock by which its time is over.
func TestALeaderThatRenewsItsLeaseLeadsAtFirstSightWhateverTheClocks(t *testing.T) {
	for _, behind := range []time.Duration{0, 20 * time.Second, 5 * time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.NewClientset().CoordinationV1()
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"}}
			if _, err := client.Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			renew := func() {
				lease.Spec = coordinationv1.LeaseSpec{
					HolderIdentity: new("leader"), LeaseDurationSeconds: new(int32(leaseDuration / time.Second)),
					RenewTime: new(metav1.NewMicroTime(time.Now().Add(-behind))),
				}
				if _, err := client.Leases("ns").Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			}
			renew()
			done, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-done:
						return
					case <-time.After(retryPeriod + 100*time.Millisecond):
						renew()
					}
				}
			}()
			w := &Watcher{Client: client, Namespace: "ns", Name: "lease"}
			time.Sleep(10 * time.Second)
			begin := time.Now()
			if got := w.Leadership(t.Context()); got != Held || time.Since(begin) > 3*time.Second {
				t.Errorf("its clock is %s behind: %v after %s", behind, got, time.Since(begin))
			}
			close(done)
			<-ended
		})
	}
}

// A tool may run on a machine whose clock is wrong.
func TestARenewalThatIsSeenCountsMoreThanItsTime(t *testing.T) {
	for name, test := range map[string]struct {
		before  time.Duration // the renewal, by our clock
		renewed bool          // again, while we look
		want    time.Duration // before now
		asks    int
	}{
		"a fresh one":                     {time.Second, false, time.Second, 0},
		"an old one":                      {time.Hour, false, time.Hour + renewedWithin, 1},
		"an old one that is renewed":      {time.Hour, true, 0, 1},
		"one that was renewed too lately": {leaseDuration + time.Second, true, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"}, Spec: coordinationv1.LeaseSpec{
					HolderIdentity: new("leader"), LeaseDurationSeconds: new(int32(leaseDuration / time.Second)),
					RenewTime: new(metav1.NewMicroTime(time.Now().Add(-test.before))),
				}}
				if err := client.Tracker().Add(lease); err != nil {
					t.Fatal(err)
				}
				if test.renewed {
					time.AfterFunc(renewedWithin/2, func() {
						renewed := lease.DeepCopy()
						renewed.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-test.before)))
						if _, err := client.CoordinationV1().Leases("ns").Update(t.Context(), renewed, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
					})
				}
				got := LookAgain(t.Context(), client.CoordinationV1(), lease.DeepCopy())
				if silent := time.Since(got.Spec.RenewTime.Time); silent != test.want {
					t.Errorf("silent for %s, want %s", silent, test.want)
				}
				asks := 0
				for _, a := range client.Actions() {
					if a.GetVerb() == "get" {
						asks++
					}
				}
				if asks != test.asks {
					t.Errorf("asked %d times, want %d", asks, test.asks)
				}
			})
		})
	}
}
