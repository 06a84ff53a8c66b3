package lease

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// Only that a lease's times change counts, not what they say.
func TestALeaseIsTakenByOurClockWhateverThatOfItsHolderSays(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"right":            0,
		"5 minutes ahead":  5 * time.Minute,
		"5 minutes behind": -5 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leases := fake.NewClientset().CoordinationV1()
				renew := func() {
					lease := &coordinationv1.Lease{
						ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"},
						Spec: coordinationv1.LeaseSpec{
							HolderIdentity: new("another"), LeaseDurationSeconds: new(int32(leaseDuration / time.Second)),
							AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NewMicroTime(time.Now().Add(ahead))),
						},
					}
					_, err := leases.Leases("ns").Update(t.Context(), lease, metav1.UpdateOptions{})
					if apierrors.IsNotFound(err) {
						_, err = leases.Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				renew()
				led := make(chan time.Time, 1)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					elector := Elector{Client: leases, Namespace: "ns", Name: "lease", Identity: "we", Log: logr.Discard()}
					_ = elector.Run(ctx, func(ctx context.Context) error {
						led <- time.Now()
						<-ctx.Done()
						return ctx.Err()
					})
				}()
				for range 30 {
					time.Sleep(2 * time.Second)
					renew()
				}
				last := time.Now()
				synctest.Wait()
				if len(led) > 0 {
					t.Fatalf("the lease was taken %s before its last renewal", last.Sub(<-led))
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if len(led) == 0 {
					t.Fatal("the lease was not taken within 20 s of its last renewal")
				}
				if after := (<-led).Sub(last); after < leaseDuration {
					t.Errorf("the lease was taken %s after its last renewal, want %s at least", after, leaseDuration)
				}
				cancel()
				<-ended
			})
		})
	}
}

// The Lease of an earlier release has no labels, or those of others.
func TestALeaseThatIsTakenGetsTheLabels(t *testing.T) {
	for name, there := range map[string]map[string]string{"no labels": nil, "others": {"port": "1", "theirs": "stays"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leases := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns", Labels: there}}).CoordinationV1()
				elector := Elector{
					Client: leases, Namespace: "ns", Name: "lease", Identity: "we", Labels: map[string]string{"port": "9092"}, Log: logr.Discard(),
				}
				_ = elector.Run(t.Context(), func(context.Context) error { return nil })
				lease, err := leases.Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
				if err != nil || lease.Labels["port"] != "9092" || lease.Labels["theirs"] != there["theirs"] {
					t.Errorf("the labels are %v, %v", lease.Labels, err)
				}
			})
		})
	}
}

// It may have been carried out: then another one is a conflict, and costs a request more of the lease.
func TestAfterARenewalWithoutAnAnswerTheLeaseIsReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var failing atomic.Int32
		var verbs []string // of the requests from the first on that fails
		client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			fails := failing.Load() > 0
			if fails || len(verbs) > 0 {
				verbs = append(verbs, a.GetVerb())
			}
			if fails {
				failing.Add(-1)
			}
			return fails, nil, apierrors.NewInternalError(errors.New("no answer"))
		})
		elector := Elector{Client: client.CoordinationV1(), Namespace: "ns", Name: "lease", Identity: "we", Log: logr.Discard()}
		err := elector.Run(t.Context(), func(context.Context) error {
			time.Sleep(5 * time.Second)
			failing.Store(2)
			time.Sleep(5 * time.Second)
			return nil
		})
		if want := []string{"update", "get", "get", "update", "update"}; err != nil || !slices.Equal(verbs[:len(want)], want) {
			t.Errorf("%v, %v; want first %v", err, verbs, want)
		}
	})
}

func TestWhoLeadsKnowsSinceWhenAndWhichTransitionThatWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: "ns"}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(""), LeaseTransitions: new(int32(6)), LeaseDurationSeconds: new(int32(1)),
			AcquireTime: new(metav1.NewMicroTime(time.Now().Add(-time.Hour))), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-time.Hour))),
		}}
		var held time.Time
		var changes, renewals int
		elector := Elector{
			Client: fake.NewClientset(there).CoordinationV1(), Namespace: "ns", Name: "lease", Identity: "we", Log: logr.Discard(),
			Renewed: func(t Term) { held, changes, renewals = t.Since, t.Transitions, renewals+1 },
		}
		began := time.Now()
		_ = elector.Run(t.Context(), func(context.Context) error {
			time.Sleep(5 * retryPeriod)
			synctest.Wait()
			return nil
		})
		if changes != 7 || renewals < 3 || held.Sub(began).Abs() > time.Second {
			t.Errorf("held since %s, transition %d, renewed %d times", held.Sub(began), changes, renewals)
		}
	})
}

// A standby asks every second: an API server that is down must not fill its log.
func TestAnAPIServerThatIsDownIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var down atomic.Bool
		down.Store(true)
		client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, apierrors.NewInternalError(errors.New("no etcd"))
		})
		var log logtest.Log
		elector := Elector{Client: client.CoordinationV1(), Namespace: "ns", Name: "lease", Identity: "we", Log: log.Logger()}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = elector.Run(t.Context(), func(context.Context) error { return nil })
		}()
		time.Sleep(150 * time.Second)
		down.Store(false)
		<-ended
		outage, end := log.Said("the lease is out of reach, trying again"), log.Said("the lease is within reach again")
		if len(outage) != 3 || len(end) != 1 {
			t.Errorf("%d lines in two and a half minutes, and %d at the end:\n%s", len(outage), len(end), log.String())
		}
	})
}
