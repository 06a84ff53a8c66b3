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
					if got := w.Leads(t.Context()); got != leads {
						t.Errorf("%s: leads is %v", when, got)
					}
				}
				want("without a lease", false)
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
