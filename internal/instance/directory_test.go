package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
)

const (
	known   = "i-0123456789abcdef0"
	another = "i-0123456789abcdef1"
	unknown = "i-0fffffffffffffff0"
)

func TestAnInstanceIsToldAsEC2DescribesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		launched := time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)
		f := newFakeEC2(another)
		f.launch(types.Instance{
			InstanceId:        aws.String(known),
			State:             &types.InstanceState{Name: types.InstanceStateNameRunning},
			Tags:              []types.Tag{{Key: aws.String("aws:autoscaling:groupName"), Value: aws.String("workers")}},
			LaunchTime:        &launched,
			InstanceType:      types.InstanceTypeM5Large,
			InstanceLifecycle: types.InstanceLifecycleTypeSpot,
			Placement:         &types.Placement{AvailabilityZone: aws.String("eu-central-1b")},
			PrivateDnsName:    aws.String("ip-10-0-0-1.ec2.internal"),
		})
		d := NewDirectory(f.DescribeInstances)
		want := Instance{
			ID:             known,
			State:          "running",
			Tags:           map[string]string{"aws:autoscaling:groupName": "workers"},
			Launched:       launched,
			Type:           "m5.large",
			Lifecycle:      "spot",
			PrivateDNSName: "ip-10-0-0-1.ec2.internal",
		}
		if diff := cmp.Diff(want, mustFind(t, d, known, time.Minute)); diff != "" {
			t.Errorf("instance (-want +got):\n%s", diff)
		}
		bare := Instance{ID: another, Lifecycle: "on-demand", Tags: map[string]string{}}
		if diff := cmp.Diff(bare, mustFind(t, d, another, time.Minute)); diff != "" {
			t.Errorf("instance of which EC2 says nothing (-want +got):\n%s", diff)
		}
		if want.NotSpot() || !bare.NotSpot() || (&Instance{}).NotSpot() {
			t.Errorf("not spot: one that is %t, one on demand %t, one that EC2 does not know %t", want.NotSpot(), bare.NotSpot(), (&Instance{}).NotSpot())
		}
	})
}

func TestAHundredLookUpsAtOnceAreOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := instanceIDs(100)
		f := newFakeEC2(ids...)
		d := NewDirectory(f.DescribeInstances)
		start := time.Now()
		findAll(t, d, ids)
		if calls := f.made(); len(calls) != 1 {
			t.Errorf("%d calls, want 1", len(calls))
		}
		if waited := time.Since(start); waited != 25*time.Millisecond {
			t.Errorf("answered after %v, want 25ms", waited)
		}
	})
}

func TestLookUpsThatKeepComingAreOneCallEachWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := instanceIDs(30)
		f := newFakeEC2(ids...)
		d := NewDirectory(f.DescribeInstances)
		start := time.Now()
		var all sync.WaitGroup
		for k, id := range ids {
			time.AfterFunc(time.Duration(k)*10*time.Millisecond+time.Nanosecond, func() { all.Go(func() { mustFind(t, d, id, time.Minute) }) })
		}
		time.Sleep(time.Second)
		all.Wait()
		var got []time.Duration
		for _, c := range f.made() {
			got = append(got, c.at.Sub(start).Truncate(time.Millisecond))
		}
		// The 21st id comes at 200 ms, the last at 290.
		want := []time.Duration{200 * time.Millisecond, 315 * time.Millisecond}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestTwoHundredIDsDoNotWaitForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := instanceIDs(450)
		f := newFakeEC2(ids...)
		d := NewDirectory(f.DescribeInstances)
		start := time.Now()
		findAll(t, d, ids)
		type sent struct {
			after time.Duration
			ids   int
		}
		var got []sent
		for _, c := range f.made() {
			got = append(got, sent{c.at.Sub(start), len(c.ids)})
		}
		want := []sent{{0, 200}, {0, 200}, {25 * time.Millisecond, 50}}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(sent{})); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestCallersForOneInstanceShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		f.latency = time.Second
		d := NewDirectory(f.DescribeInstances)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { mustFind(t, d, known, 0) })
			time.Sleep(100 * time.Millisecond)
		}
		wg.Wait()
		if diff := cmp.Diff([][]string{{known}}, idsOf(f.made())); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestAnswersAreRememberedAndMissesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		d := NewDirectory(f.DescribeInstances)
		for range 3 {
			mustFind(t, d, known, time.Minute)
			mustMiss(t, d, unknown)
		}
		if diff := cmp.Diff([][]string{{known}, {unknown}}, idsOf(f.made())); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestAnAnswerThatIsTooOldIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2()
		d := NewDirectory(f.DescribeInstances)
		mustMiss(t, d, known)
		f.launch(types.Instance{InstanceId: aws.String(known)})
		time.Sleep(59 * time.Second)
		mustMiss(t, d, known)
		time.Sleep(time.Second)
		mustFind(t, d, known, time.Minute)
		mustFind(t, d, known, time.Minute)
		mustFind(t, d, known, 0)
		if calls := f.made(); len(calls) != 3 {
			t.Errorf("%d calls, want 3", len(calls))
		}
	})
}

func TestAFailedLookUpIsNoMissAndIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		f.failNext(&smithy.GenericAPIError{Code: "RequestLimitExceeded", Message: "Request limit exceeded."})
		d := NewDirectory(f.DescribeInstances)
		_, found, err := d.Get(t.Context(), known, time.Minute, false)
		api, ok := errors.AsType[smithy.APIError](err)
		if !ok || api.ErrorCode() != "RequestLimitExceeded" || found {
			t.Errorf("found = %v, err = %v; want the error of EC2", found, err)
		}
		mustFind(t, d, known, time.Minute)
	})
}

func TestAFailureOnALaterPageFailsTheWholeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known, another)
		f.pageSize = 1
		f.failNext(nil, errors.New("connection reset by peer"))
		d := NewDirectory(f.DescribeInstances)
		var wg sync.WaitGroup
		for _, id := range []string{known, another} {
			wg.Go(func() {
				if _, found, err := d.Get(t.Context(), id, time.Minute, false); err == nil || found {
					t.Errorf("%s: found = %v, err = %v; want an error", id, found, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestPagesAreReadToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := instanceIDs(30)
		f := newFakeEC2(ids...)
		f.pageSize = 7
		findAll(t, NewDirectory(f.DescribeInstances), ids)
		if calls := f.made(); len(calls) != 5 {
			t.Errorf("%d calls, want 5", len(calls))
		}
	})
}

func TestACallerWhoLeavesDoesNotHurtTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		f.latency = time.Second
		d := NewDirectory(f.DescribeInstances)
		lost := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, found, err := d.Get(ctx, known, time.Minute, false); !errors.Is(err, lost) || found {
				t.Errorf("found = %v, err = %v; want %v", found, err, lost)
			}
		})
		synctest.Wait()
		wg.Go(func() { mustFind(t, d, known, time.Minute) })
		time.Sleep(500 * time.Millisecond)
		cancel(lost)
		wg.Wait()
		if calls := f.made(); len(calls) != 1 {
			t.Errorf("%d calls, want 1", len(calls))
		}
	})
}

func TestALookUpEndsWithItsLastCaller(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		calls int // with that of the next caller, who is not to join what was called off
	}{
		"while the batch fills": {batchPause / 2, 1},
		"in the middle of it":   {2 * batchPause, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEC2(known)
				f.latency = 5 * time.Second
				d := NewDirectory(f.DescribeInstances)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), tc.after)
				defer cancel()
				if _, _, err := d.Get(ctx, known, time.Minute, false); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("err = %v, want the deadline's", err)
				}
				mustFind(t, d, known, time.Minute)
				if took, want := time.Since(start), tc.after+5025*time.Millisecond; took != want {
					t.Errorf("the next caller had its answer after %v, want %v", took, want)
				}
				if calls := f.made(); len(calls) != tc.calls {
					t.Errorf("%d calls, want %d", len(calls), tc.calls)
				}
			})
		})
	}
}

func TestAHangingCallIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		f.latency = time.Hour
		start := time.Now()
		if _, _, err := NewDirectory(f.DescribeInstances).Get(t.Context(), known, time.Minute, false); !errors.Is(err, errCallTimeout) {
			t.Errorf("err = %v, want %v", err, errCallTimeout)
		}
		if waited, want := time.Since(start), batchPause+callTimeout; waited != want {
			t.Errorf("waited %v, want %v", waited, want)
		}
	})
}

func TestTenThousandUnknownInstancesKeepToTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2()
		d := NewDirectory(f.DescribeInstances)
		start := time.Now()
		var wg sync.WaitGroup
		for _, id := range instanceIDs(10_000) {
			wg.Go(func() { mustMiss(t, d, id) })
		}
		wg.Wait()
		calls := f.made()
		if len(calls) != 50 {
			t.Errorf("%d calls, want 50", len(calls))
		}
		if took, want := time.Since(start), time.Duration(50-callBurst)*time.Second/callsPerSecond; took != want {
			t.Errorf("took %v, want %v", took, want)
		}
	})
}

// Somebody who may write to the queue can name instances without end; each of them
// is looked up, but not before one that a Node waits for.
func TestAnUrgentLookUpGoesBeforeACrowdOfOthers(t *testing.T) {
	for name, among := range map[string]bool{"of others": false, "of others and itself": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEC2(known, another)
				d := NewDirectory(f.DescribeInstances)
				ctx, stop := context.WithCancel(t.Context())
				var crowd sync.WaitGroup
				for _, id := range instanceIDs(20_000) {
					crowd.Go(func() { _, _, _ = d.Get(ctx, id, time.Minute, false) })
				}
				time.Sleep(time.Second)
				if among { // in the last of the batches that wait
					crowd.Go(func() { _, _, _ = d.Get(ctx, known, time.Minute, false) })
					time.Sleep(time.Second)
				}
				start := time.Now()
				var pair sync.WaitGroup
				for _, id := range []string{known, another} {
					pair.Go(func() {
						if inst, found, err := d.Get(t.Context(), id, time.Minute, true); err != nil || !found || inst.ID != id {
							t.Errorf("Get(%s) = %+v, %v, %v; want the instance", id, inst, found, err)
						}
					})
				}
				pair.Wait()
				// It may miss the call that is next when it comes, not one more.
				if took, most := time.Since(start), batchPause+2*time.Second/callsPerSecond; took > most {
					t.Errorf("it took %s, want %s at most", took, most)
				}
				calls := idsOf(f.made())
				if diff := cmp.Diff([]string{known, another}, calls[len(calls)-1]); diff != "" {
					t.Errorf("the last call (-want +got):\n%s", diff)
				}
				stop()
				crowd.Wait()
			})
		})
	}
}

func TestAnUrgentLookUpAndAnOrdinaryOneShareACallThatServesBoth(t *testing.T) {
	for name, tc := range map[string]struct {
		firstHurries, secondHurries bool
		after                       time.Duration
		calls                       int
	}{
		"the urgent one first":                 {true, false, 0, 1},
		"the ordinary one is under way":        {false, true, 2 * batchPause, 1},
		"the ordinary one waits for its batch": {false, true, batchPause / 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEC2(known)
				f.latency = time.Second
				d := NewDirectory(f.DescribeInstances)
				var wg sync.WaitGroup
				get := func(hurry bool) {
					if _, found, err := d.Get(t.Context(), known, 0, hurry); err != nil || !found {
						t.Errorf("found %v, %v", found, err)
					}
				}
				wg.Go(func() { get(tc.firstHurries) })
				time.Sleep(tc.after)
				synctest.Wait()
				wg.Go(func() { get(tc.secondHurries) })
				wg.Wait()
				if calls := f.made(); len(calls) != tc.calls {
					t.Errorf("%d calls, want %d", len(calls), tc.calls)
				}
			})
		})
	}
}

func TestAnAnswerOfTheOneLaneIsKnownToTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		d := NewDirectory(f.DescribeInstances)
		if _, found, err := d.Get(t.Context(), known, time.Minute, true); err != nil || !found {
			t.Errorf("found %v, %v", found, err)
		}
		mustFind(t, d, known, time.Minute)
		if calls := f.made(); len(calls) != 1 {
			t.Errorf("%d calls, want 1", len(calls))
		}
	})
}

func TestWhatIsKnownIsToldHoweverOldAndWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		d := NewDirectory(f.DescribeInstances)
		if _, found, asked := d.Known(known); found || !asked.IsZero() {
			t.Errorf("found %v, asked %s before there was an answer", found, asked)
		}
		start := time.Now().Add(batchPause)
		mustFind(t, d, known, time.Minute)
		mustMiss(t, d, unknown)
		time.Sleep(24 * time.Hour)
		f.failNext(errors.New("EC2 is away"))
		if _, _, err := d.Get(t.Context(), known, time.Minute, false); err == nil {
			t.Error("no error")
		}
		if inst, found, asked := d.Known(known); inst.ID != known || !found || !asked.Equal(start) {
			t.Errorf("%+v, found %v, asked %s; want it as of %s", inst, found, asked, start)
		}
		if _, found, asked := d.Known(unknown); found || asked.IsZero() {
			t.Errorf("found %v, asked %s; want a miss", found, asked)
		}
		if calls := f.made(); len(calls) != 3 {
			t.Errorf("%d calls, want 3", len(calls))
		}
	})
}

func TestWhatIsNoInstanceIDIsNeverAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEC2(known)
		d := NewDirectory(f.DescribeInstances)
		for _, id := range []string{"", "i-*", "i-0123456789abcde??", "mi-0123456789abcdef0", known + "\n"} {
			if _, found, err := d.Get(t.Context(), id, time.Minute, false); err == nil || found {
				t.Errorf("Get(%q): found = %v, err = %v; want an error", id, found, err)
			}
		}
		if calls := f.made(); len(calls) > 0 {
			t.Errorf("asked for %v", idsOf(calls))
		}
	})
}

func mustFind(t *testing.T, d *Directory, id string, maxAge time.Duration) Instance {
	t.Helper()
	inst, found, err := d.Get(t.Context(), id, maxAge, false)
	if err != nil || !found || inst.ID != id {
		t.Errorf("Get(%s) = %+v, %v, %v; want the instance", id, inst, found, err)
	}
	return inst
}

func mustMiss(t *testing.T, d *Directory, id string) {
	t.Helper()
	if inst, found, err := d.Get(t.Context(), id, time.Minute, false); err != nil || found {
		t.Errorf("Get(%s) = %+v, %v, %v; want a miss", id, inst, found, err)
	}
}

func findAll(t *testing.T, d *Directory, ids []string) {
	t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { mustFind(t, d, id, time.Minute) })
	}
	wg.Wait()
}

func instanceIDs(n int) []string {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("i-%017x", i))
	}
	return ids
}

func idsOf(calls []call) [][]string {
	var ids [][]string
	for _, c := range calls {
		slices.Sort(c.ids)
		ids = append(ids, c.ids)
	}
	return ids
}
