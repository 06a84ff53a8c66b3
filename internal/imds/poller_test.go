package imds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A handler is the node: what is asked of it, and what it carries.
type handler struct {
	mu      sync.Mutex
	start   time.Time
	asked   []string // ids, with the seconds since the start
	changes []string
	fails   int  // how many of the next notices fail
	hangs   bool // notices take until the end
	running int
}

func (h *handler) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	acts()
	h.mu.Lock()
	h.asked = append(h.asked, fmt.Sprintf("%s at %.0f s", n.ID, time.Since(h.start).Seconds()))
	fails, hangs := h.fails > 0, h.hangs
	if fails {
		h.fails--
	} else if n.Kind == notice.ScheduledChange && n.Ended {
		h.changes = slices.DeleteFunc(h.changes, func(c string) bool { return c == n.Change })
	} else if n.Kind == notice.ScheduledChange && !slices.Contains(h.changes, n.Change) {
		h.changes = append(h.changes, n.Change)
	}
	h.running++
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.running--
	}()
	if fails {
		return errors.New("not now")
	}
	if hangs {
		<-ctx.Done()
	}
	return context.Cause(ctx)
}

func (h *handler) Changes(string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changes)
}

func (h *handler) were() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// counts are polls by result.
type counts struct {
	mu         sync.Mutex
	ok, failed int
}

func (c *counts) PolledMetadata(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.ok++
	} else {
		c.failed++
	}
}

func (c *counts) get() (ok, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ok, c.failed
}

// A world has a poller that polls in virtual time until the story is over.
type world struct {
	*testing.T
	metadata *awssim.Metadata
	handler  *handler
	counts   *counts
	poller   *Poller
	log      logtest.Log
	stop     func()
	stopped  chan struct{}
}

func polling(t *testing.T, edit func(*Poller), story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := awssim.NewMetadata(awssim.MetadataOptions{Instance: own})
		w := &world{
			T: t, metadata: m, handler: &handler{start: time.Now()}, counts: &counts{}, stopped: make(chan struct{}),
		}
		w.poller = &Poller{
			Metadata: New("", m.Transport()), Handler: w.handler, Identity: Identity{Instance: own}, Life: "boot-1", Metrics: w.counts,
			Kinds: Kinds{Spot: true, Rebalance: true, Scheduled: true, Lifecycle: true},
			Log:   w.log.Logger(),
		}
		if edit != nil {
			edit(w.poller)
		}
		ctx, stop := context.WithCancel(t.Context())
		w.stop = func() {
			stop()
			<-w.stopped
		}
		go func() {
			defer close(w.stopped)
			w.poller.Run(ctx)
		}()
		defer w.stop()
		w.after(0)
		story(w)
	})
}

// after lets time pass, and all come to rest.
func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) want(asked ...string) {
	w.Helper()
	if diff := cmp.Diff(asked, w.handler.were()); diff != "" {
		w.Errorf("(-want +got):\n%s", diff)
	}
}

// second is a time of the story as ids have it.
func second(s int) string {
	return time.Date(2000, 1, 1, 0, 0, s, 0, time.UTC).Format("20060102T150405Z")
}

func TestEachNoticeIsHandledOnce(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.after(time.Second)
		w.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		w.metadata.Recommend(time.Now())
		w.metadata.SetLifecycleState("InService")
		w.after(4 * time.Second)
		w.metadata.SetLifecycleState("Terminated")
		w.after(time.Minute)
		got := w.handler.were()
		slices.Sort(got)
		want := []string{
			"imds-asg-terminated-boot-1 at 6 s",
			"imds-rebalance-" + second(1) + " at 2 s",
			"imds-spot-terminate-" + second(121) + " at 2 s",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestOnlyTheKindsThatAreWantedAreLookedFor(t *testing.T) {
	polling(t, func(p *Poller) { p.Kinds = Kinds{Scheduled: true} }, func(w *world) {
		w.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		w.metadata.Recommend(time.Now())
		w.metadata.SetLifecycleState("Terminated")
		w.after(time.Minute)
		w.want()
		for _, path := range []string{itemSpot, itemRebalance, itemLifecycle} {
			if got := w.metadata.Requests("GET", "/"+path); got != 0 {
				t.Errorf("%d requests for %s", got, path)
			}
		}
	})
}

// With all kinds wanted.
func TestThereIsNoMoreThanOneRequestASecond(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.after(10 * time.Second)
		count := func() (all int) {
			for _, path := range []string{itemSpot, itemRebalance, itemScheduled, itemHistory, itemLifecycle} {
				all += w.metadata.Requests("GET", "/"+path)
			}
			return all + w.metadata.Requests("PUT", "/"+tokenPath)
		}
		before := count()
		w.after(10 * time.Minute)
		if got := count() - before; got < 590 || got > 601 {
			t.Errorf("%d requests in ten minutes", got)
		}
	})
}

func TestItPollsEveryTwoSecondsWithoutDrift(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.metadata.SetFault(awssim.MetadataFault{Delay: 600 * time.Millisecond}) // 2 items: 1.2 s a poll
		w.after(10*time.Minute + time.Second)
		ok, failed := w.counts.get()
		if ok != 300 && ok != 301 || failed != 0 {
			t.Errorf("%d polls, %d failed", ok, failed)
		}
		if age := time.Since(w.poller.LastAnswer()); age > Interval {
			t.Errorf("the last answer is %s old", age)
		}
	})
}

func TestAFailureIsTriedAgainWithPausesOfAtMostTenSeconds(t *testing.T) {
	for _, fault := range []awssim.MetadataFault{{Status: 503}, {Hang: true}, {Reset: true}, {Status: 200, Body: "<html>"}, {Status: 401}} {
		troubles := 1 // the first look fails, and the others are not made
		if fault.Body != "" {
			troubles = 4 // no item is what it should be
		}
		polling(t, nil, func(w *world) {
			w.after(time.Second)
			w.metadata.SetFault(fault)
			w.after(10 * time.Minute)
			if age := time.Since(w.poller.LastAnswer()); age < 9*time.Minute {
				t.Errorf("%+v: the last answer is %s old", fault, age)
			}
			_, failed := w.counts.get()
			if failed < 45 || failed > 65 {
				t.Errorf("%+v: %d polls failed in ten minutes", fault, failed)
			}
			w.metadata.SetFault(awssim.MetadataFault{})
			w.metadata.InterruptSpot("stop", time.Now().Add(2*time.Minute))
			w.after(12 * time.Second)
			if got := w.handler.were(); len(got) != 1 {
				t.Errorf("%+v: after the failure: %v", fault, got)
			}
			if log := w.log.String(); len(w.log.Entries("", "level", "warn")) != troubles || strings.Count(log, "can be read again") != troubles {
				t.Errorf("%+v: the log:\n%s", fault, log)
			}
		})
	}
}

func TestAnItemThatCannotBeReadDoesNotHideTheOthers(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.metadata.SetFault(awssim.MetadataFault{Prefix: "/" + itemSpot, Body: "<html>"})
		w.metadata.Recommend(time.Now())
		w.after(2 * time.Second)
		w.want("imds-rebalance-" + second(0) + " at 2 s")
	})
}

// One item that is refused, or no document, for ever: the others are read as fast as ever.
func TestAnItemThatCannotBeReadDoesNotSlowDownTheOthers(t *testing.T) {
	for _, fault := range []awssim.MetadataFault{
		{Prefix: "/" + itemScheduled, Body: "<html>"}, {Prefix: "/" + itemSpot, Status: 403},
	} {
		polling(t, nil, func(w *world) {
			w.metadata.SetFault(fault)
			w.after(5 * time.Minute)
			if age := time.Since(w.poller.LastAnswer()); age > 3*Interval {
				t.Errorf("%+v: the last answer is %s old", fault, age)
			}
			w.metadata.Recommend(time.Now())
			w.after(3 * Interval)
			if got := w.handler.were(); len(got) != 1 {
				t.Errorf("%+v: %v", fault, got)
			}
		})
	}
}

func TestAChangeThatIsMovedIsHandledAgain(t *testing.T) {
	polling(t, nil, func(w *world) {
		e := awssim.MaintenanceEvent{ID: "instance-event-00000000000000001", Code: "system-reboot", State: "active", NotBefore: time.Now().Add(time.Hour)}
		w.metadata.Schedule(e)
		w.after(10 * time.Second)
		e.NotBefore = time.Now().Add(2 * time.Hour)
		w.metadata.Schedule(e)
		w.after(10 * time.Second)
		w.want("imds-instance-event-00000000000000001-"+second(3600)+" at 4 s", "imds-instance-event-00000000000000001-"+second(7210)+" at 16 s")
	})
}

// The times of amazon-ec2-metadata-mock are those of the answer, and some more.
func TestANoticeWhoseTimeMovesAtEachAnswerIsOne(t *testing.T) {
	polling(t, nil, func(w *world) {
		for range 45 * 60 {
			w.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
			w.metadata.Recommend(time.Now())
			time.Sleep(2 * time.Second)
		}
		if asked := w.handler.were(); len(asked) != 2 {
			t.Errorf("%d notices in 90 minutes, want 2: %v", len(asked), asked[:min(len(asked), 9)])
		}
		w.metadata.InterruptSpot("terminate", time.Now().Add(time.Hour))
		time.Sleep(10 * time.Second)
		w.metadata.InterruptSpot("terminate", time.Now().Add(30*time.Minute))
		time.Sleep(10 * time.Second)
		if asked := w.handler.were(); len(asked) != 4 {
			t.Errorf("%d notices, want 4: one by much, and one to an earlier time: %v", len(asked), asked)
		}
	})
}

func TestTheEndOfAChangeIsHandledIfTheNodeCarriesIt(t *testing.T) {
	for _, state := range []string{"completed", "canceled"} {
		polling(t, nil, func(w *world) {
			old := awssim.MaintenanceEvent{ID: "instance-event-00000000000000a1d", Code: "instance-stop", State: "completed", NotBefore: time.Now()}
			w.metadata.Schedule(old)
			w.after(10 * time.Second)
			w.want()
			if got := w.metadata.Requests("GET", "/"+itemHistory); got != 0 {
				t.Errorf("the history is read %d times, and the node carries nothing", got)
			}
			e := awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: "instance-stop", State: "active", NotBefore: time.Now().Add(time.Hour)}
			w.metadata.Schedule(e)
			w.after(10 * time.Second)
			e.State = state
			w.metadata.Schedule(e)
			w.after(10 * time.Second)
			w.want("imds-instance-event-0d59937288b749b32-"+second(3610)+" at 16 s", "imds-instance-event-0d59937288b749b32-ended at 22 s")
		})
	}
}

// After a restart the node carries what the poller knows nothing of.
func TestTheEndOfAChangeIsFoundByAnotherProcess(t *testing.T) {
	polling(t, func(p *Poller) {
		p.Handler.(*handler).changes = []string{"instance-event-0d59937288b749b32", "instance-event-00000000000000001"}
	}, func(w *world) {
		w.metadata.Schedule(awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: "instance-stop", State: "canceled", NotBefore: time.Now()})
		w.after(10 * time.Second)
		w.want("imds-instance-event-0d59937288b749b32-ended at 4 s")
	})
}

func TestANoticeWhoseHandlingFailsIsHandledAgain(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.handler.mu.Lock()
		w.handler.fails = 2
		w.handler.mu.Unlock()
		w.metadata.Recommend(time.Now())
		w.after(time.Minute)
		id := "imds-rebalance-" + second(0)
		w.want(id+" at 2 s", id+" at 8 s", id+" at 14 s")
	})
}

func TestARecommendationWhoseTimeMovesByMuchIsAnotherOne(t *testing.T) {
	first := "imds-rebalance-" + second(10) + " at 2 s"
	for moves, want := range map[int][]string{
		-1: {first, "imds-rebalance-" + second(9) + " at 20 s"},
		59: {first},
		60: {first, "imds-rebalance-" + second(70) + " at 20 s"},
	} {
		polling(t, nil, func(w *world) {
			at := w.handler.start.Add(10 * time.Second)
			w.metadata.Recommend(at)
			w.after(15 * time.Second)
			w.metadata.Recommend(at.Add(time.Duration(moves) * time.Second))
			w.after(time.Minute)
			w.want(want...)
		})
	}
}

// A drain takes as long as it takes. Others are found meanwhile, and the end waits for all.
func TestALongDrainHidesNothing(t *testing.T) {
	polling(t, nil, func(w *world) {
		w.handler.mu.Lock()
		w.handler.hangs = true
		w.handler.mu.Unlock()
		w.metadata.Recommend(time.Now())
		w.after(10 * time.Minute)
		w.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		w.after(2 * time.Second)
		w.want("imds-rebalance-"+second(0)+" at 2 s", "imds-spot-terminate-"+second(720)+" at 602 s")
		w.stop()
		if w.handler.running != 0 {
			t.Errorf("%d notices are still handled after the end", w.handler.running)
		}
	})
}

func TestWhatTheMetadataDoesNotHaveAnyMoreIsForgotten(t *testing.T) {
	polling(t, nil, func(w *world) {
		for range 100 {
			w.metadata.Recommend(time.Now())
			w.after(Interval)
		}
		got := 0
		w.poller.handled.Forget(func(found, bool) bool { got++; return false })
		if got < 1 || got > 2 {
			t.Errorf("%d notices are remembered", got)
		}
	})
}

// Something between the pod and the service may keep pods from one item alone.
func TestAnItemThatIsRefusedDoesNotHideTheOthers(t *testing.T) {
	for _, status := range []int{400, 403, 500} {
		polling(t, nil, func(w *world) {
			w.metadata.SetFault(awssim.MetadataFault{Prefix: "/" + itemSpot, Status: status})
			w.metadata.Recommend(time.Now())
			w.after(time.Minute)
			if got := w.handler.were(); len(got) != 1 {
				t.Errorf("%d: %v", status, got)
			}
		})
	}
}
