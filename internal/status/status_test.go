package status

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

	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const (
	interval = time.Minute
	ours     = "i-0123456789abcdef0" // an instance of a Node
	another  = "i-0123456789abcdef1" // of another Node
	theirs   = "i-0fedcba9876543210" // of none
)

// world is EC2 and the cluster.
type world struct {
	mu       sync.Mutex
	events   []instance.ScheduledEvent
	impaired []instance.Impairment
	err      error                   // of each call
	nodes    []string                // instances
	heard    []string                // ids of notices that Nodes have heard of
	carried  map[string]intent.Entry // by instance
	// scheduled are the changes that the Nodes of each instance carry.
	scheduled []intent.Entry
	fails     int  // how many of the next notices fail
	hangs     bool // notices take as long as the term

	handled []notice.Notice
	told    []string // instances of which it was told that they are impaired
	asked   []time.Duration
	results []string
	gauge   int
	start   time.Time
	log     logtest.Log
}

func (w *world) Events(context.Context) ([]instance.ScheduledEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, time.Since(w.start))
	return w.events, w.err
}

func (w *world) Impaired(context.Context) ([]instance.Impairment, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.impaired, w.err
}

// A cluster is the world as a Handler and a Metrics.
type cluster struct{ *world }

func (c cluster) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	acts()
	c.mu.Lock()
	c.handled = append(c.handled, n)
	fails, hangs := c.fails > 0, c.hangs
	c.fails = max(0, c.fails-1)
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	if fails {
		return errors.New("not now")
	}
	return context.Cause(ctx)
}

func (c cluster) HasNode(id string) bool { return slices.Contains(c.nodes, id) }

func (c cluster) Count() int { return len(c.nodes) }

func (c cluster) HasHeardOf(n notice.Notice) bool { return slices.Contains(c.heard, n.ID) }

func (c cluster) Scheduled(string) []intent.Entry { return c.scheduled }

func (c cluster) Polled(visit func(instance string, e intent.Entry, ready, reported bool)) {
	for id, e := range c.carried {
		visit(id, e, true, false)
	}
}

func (c cluster) Impaired(id, checks string) { c.told = append(c.told, id+" "+checks) }

// metrics are the world's.
type metrics struct{ *world }

func (m metrics) Polled(impaired int, err error, denied bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gauge, m.results = impaired, append(m.results, fmt.Sprint(err, denied))
}

// has reports whether there were so many polls. What the story has read and written before is in
// order with what the poll does after.
func (w *world) has(polls int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked) >= polls
}

// play runs polls until the end of the test's story, in virtual time.
func play(t *testing.T, w *world, story func(after func(polls int)), edits ...func(*Poll)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w.start = time.Now()
		p := &Poll{Source: w, Handler: cluster{w}, Interval: interval, Log: w.log.Logger(), Metrics: metrics{w}}
		for _, edit := range edits {
			edit(p)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.Run(ctx)
		}()
		story(func(polls int) {
			for want := len(w.asked) + polls; !w.has(want); {
				time.Sleep(time.Second)
				synctest.Wait()
			}
		})
		stop()
		<-ended
	})
}

func event(id string, edits ...func(*instance.ScheduledEvent)) instance.ScheduledEvent {
	e := instance.ScheduledEvent{
		Instance: id, ID: "instance-event-00000000000000001", Code: "instance-retirement", NotBefore: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC),
	}
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

func TestAnEventOfANodeIsHandledOnceAsANotice(t *testing.T) {
	w := &world{nodes: []string{ours}, events: []instance.ScheduledEvent{event(ours), event(theirs)}}
	play(t, w, func(after func(int)) { after(10) })
	want := notice.Notice{
		Kind: notice.ScheduledChange, ID: "instance-event-00000000000000001-20261201T100000Z", Change: "instance-event-00000000000000001",
		Time: w.start.Add(w.asked[0]).UTC(), Deadline: event("").NotBefore, Instances: []string{ours},
		Detail: "instance-retirement",
	}
	if diff := cmp.Diff([]notice.Notice{want}, w.handled); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	for k := 1; k < len(w.asked); k++ {
		if pause := w.asked[k] - w.asked[k-1]; pause < interval || pause > interval*11/10+time.Second {
			t.Errorf("%s between two polls", pause)
		}
	}
}

func TestWhatIsKnownIsLeftAlone(t *testing.T) {
	over := func(e *instance.ScheduledEvent) { e.Over = true }
	for name, w := range map[string]*world{
		"a Node has heard of it":             {events: []instance.ScheduledEvent{event(ours)}, heard: []string{"instance-event-00000000000000001-20261201T100000Z"}},
		"it is over, and no Node carries it": {events: []instance.ScheduledEvent{event(ours, over)}},
		"it is listed, and a Node carries it": {
			events: []instance.ScheduledEvent{event(ours)}, heard: []string{"instance-event-00000000000000001-20261201T100000Z"},
			carried: map[string]intent.Entry{ours: {Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001"}},
		},
	} {
		w.nodes = []string{ours}
		play(t, w, func(after func(int)) { after(5) })
		if len(w.handled) > 0 {
			t.Errorf("%s: handled %+v", name, w.handled)
		}
	}
}

func TestWhatANodeCarriesAndEC2DoesNotListEndsAfterTwoPolls(t *testing.T) {
	w := &world{nodes: []string{ours}, carried: map[string]intent.Entry{ours: {Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", IDs: []string{"x"}}}}
	play(t, w, func(after func(int)) {
		if after(1); len(w.handled) > 0 {
			t.Fatalf("over after one poll: %+v", w.handled)
		}
		w.events = []instance.ScheduledEvent{event(ours)}
		w.heard = []string{"instance-event-00000000000000001-20261201T100000Z"}
		after(1)
		w.events = nil
		if after(1); len(w.handled) > 0 {
			t.Fatalf("over after one poll without it: %+v", w.handled)
		}
		after(5)
	})
	if len(w.handled) != 1 || !w.handled[0].Ended || w.handled[0].Change != "instance-event-00000000000000001" || w.handled[0].Instances[0] != ours {
		t.Errorf("handled %+v, want its end once", w.handled)
	}
}

func TestAFailedPollForgetsNothingAndEndsNothing(t *testing.T) {
	w := &world{
		nodes: []string{ours, another}, impaired: []instance.Impairment{{Instance: another, Checks: []string{"system"}}},
		carried: map[string]intent.Entry{ours: {Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001"}},
	}
	play(t, w, func(after func(int)) {
		after(1)
		w.err = errors.New("lost")
		if after(5); len(w.handled) > 0 || len(w.told) > 0 {
			t.Errorf("handled %+v, told %v without an answer", w.handled, w.told)
		}
		w.err = nil
		after(1)
	})
	if len(w.handled) != 1 || len(w.told) != 1 || w.gauge != 1 {
		t.Errorf("handled %+v, told %v, %d impaired", w.handled, w.told, w.gauge)
	}
	if n := strings.Count(w.log.String(), "cannot be found"); n != 1 || !strings.Contains(w.log.String(), "an endpoint for EC2") {
		t.Errorf("%d warnings of 5 failures in a row:\n%s", n, w.log.String())
	}
}

func TestANoticeThatFailsIsHandledAgain(t *testing.T) {
	w := &world{nodes: []string{ours}, events: []instance.ScheduledEvent{event(ours)}, fails: 2}
	play(t, w, func(after func(int)) { after(6) })
	if len(w.handled) != 3 {
		t.Errorf("handled %+v, want the same three times", w.handled)
	}
}

// The instance lacked the tag, maybe.
func TestANoticeThatNoNodeCarriesIsHandledAgainAfterAnHour(t *testing.T) {
	w := &world{nodes: []string{ours}, events: []instance.ScheduledEvent{event(ours)}}
	play(t, w, func(after func(int)) { after(100) })
	if len(w.handled) != 2 {
		t.Errorf("handled %d times in %s, want 2", len(w.handled), w.asked[len(w.asked)-1])
	}
}

func TestWhatAPollHasBegunEndsWithIt(t *testing.T) {
	w := &world{nodes: []string{ours}, events: []instance.ScheduledEvent{event(ours)}, hangs: true}
	play(t, w, func(after func(int)) { after(90) }) // play returns when Run has returned
	if len(w.handled) != 1 {
		t.Errorf("handled %d times what goes on", len(w.handled))
	}
}

func TestAPollThatMayNotAskSaysSoOnceAndPausesLongerAndLonger(t *testing.T) {
	for code, tt := range map[string]struct{ hint, result string }{
		"UnauthorizedOperation": {"add the permission to the role, ", " true"},
		"InvalidAction":         {"check whether the VPC has an endpoint for EC2", " false"},
	} {
		t.Run(code, func(t *testing.T) {
			w := &world{nodes: []string{ours}, events: []instance.ScheduledEvent{event(ours)}, err: fmt.Errorf("no: %w: %w", instance.ErrStatusDenied, &smithy.GenericAPIError{Code: code})}
			var polls *Poll
			play(t, w, func(after func(int)) {
				after(3)
				for k, least := range []time.Duration{2 * interval, 4 * interval} {
					if pause := w.asked[k+1] - w.asked[k]; pause < least {
						t.Errorf("asked again after %s, want at least %s", pause, least)
					}
				}
				if lines := strings.Count(w.log.String(), "\n"); lines != 1 || !strings.Contains(w.log.String(), tt.hint) {
					t.Errorf("logged:\n%s", w.log.String())
				}
				if text := polls.Unseen(); !strings.HasPrefix(text, "scheduled events without a notice") || !strings.Contains(text, ": no: ") {
					t.Errorf("unseen: %q", text)
				}
				w.err = nil
				after(3)
				if text := polls.Unseen(); text != "" {
					t.Errorf("unseen: %q", text)
				}
			}, func(p *Poll) { polls = p })
			if pause := w.asked[5] - w.asked[4]; pause > 2*interval || len(w.handled) != 1 {
				t.Errorf("asked again after %s, handled %+v", pause, w.handled)
			}
			if !strings.HasPrefix(w.results[0], "no: ") || !strings.HasSuffix(w.results[0], tt.result) || w.results[5] != "<nil> false" {
				t.Errorf("results %v", w.results)
			}
		})
	}
}

func TestAnImpairmentIsToldOfOnceForEachTimeItBegins(t *testing.T) {
	both := []instance.Impairment{{Instance: ours, Checks: []string{"instance", "system"}}, {Instance: theirs, Checks: []string{"system"}}}
	w := &world{nodes: []string{ours}, impaired: both}
	play(t, w, func(after func(int)) {
		if after(2); len(w.told) > 0 {
			t.Errorf("told %v after %s", w.told, w.asked[1]-w.asked[0])
		}
		if after(5); w.gauge != 1 {
			t.Errorf("%d impaired", w.gauge)
		}
		w.impaired = nil
		if after(2); w.gauge != 0 {
			t.Errorf("%d impaired", w.gauge)
		}
		w.impaired = both
		after(5)
	})
	if diff := cmp.Diff([]string{ours + " instance, system", ours + " instance, system"}, w.told); diff != "" || len(w.handled) > 0 {
		t.Errorf("handled %+v; told (-want +got):\n%s", w.handled, diff)
	}
}

func TestAnImpairmentIsANoticeIfItIsToBeDrainedFor(t *testing.T) {
	w := &world{nodes: []string{ours}, impaired: []instance.Impairment{{Instance: ours, Checks: []string{"system"}, Since: time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC)}}}
	play(t, w, func(after func(int)) { after(5) }, func(p *Poll) { p.DrainImpaired = true })
	want := notice.Notice{
		Kind: notice.InstanceImpaired, ID: "impaired-19991231T230000Z", Time: w.start.Add(w.asked[0]).UTC(), Instances: []string{ours}, Detail: "system",
	}
	if diff := cmp.Diff([]notice.Notice{want}, w.handled); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

// The log says once that so many are impaired.
func TestManyImpairedInstancesAreToldOfAndNotDrained(t *testing.T) {
	w := &world{}
	var unseen func() string
	for k := range 20 {
		id := fmt.Sprintf("i-%017x", k)
		w.nodes = append(w.nodes, id)
		if k < 6 {
			w.impaired = append(w.impaired, instance.Impairment{Instance: id, Since: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)})
		}
	}
	play(t, w, func(after func(int)) {
		if after(5); len(w.handled) > 0 || len(w.told) != 6 || w.gauge != 6 {
			t.Errorf("handled %d, told of %d, %d impaired", len(w.handled), len(w.told), w.gauge)
		}
		if text := unseen(); !strings.HasPrefix(text, "whether 6 instances are impaired, or a zone or the network: ") {
			t.Errorf("unseen: %q", text)
		}
		w.impaired = w.impaired[:5]
		if after(5); len(w.handled) != 5 || unseen() != "" {
			t.Errorf("handled %d of the five that are left; unseen: %q", len(w.handled), unseen())
		}
	}, func(p *Poll) { p.DrainImpaired, unseen = true, p.Unseen })
	if n := strings.Count(w.log.String(), "so many instances are impaired"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, w.log.String())
	}
}

func TestAnImpairmentOfLongAgoIsToldOfAtTheFirstPoll(t *testing.T) {
	long := time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC)
	w := &world{nodes: []string{ours}, impaired: []instance.Impairment{{Instance: ours, Checks: []string{"system"}, Since: long}}}
	play(t, w, func(after func(int)) {
		if after(1); len(w.told) != 1 || w.asked[0] > interval*11/10 {
			t.Errorf("told %v by the first poll, after %s", w.told, w.asked[0])
		}
	})
}

// AWS Health and EC2 have ids of their own for an event.
// EC2's code of it says less than that of AWS Health, which the node carries.
func TestAChangeThatIsMovedStaysWhatItIs(t *testing.T) {
	const power, id = "AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED", "instance-event-00000000000000001"
	before := event("").NotBefore.Add(-time.Hour)
	told := intent.Entry{Kind: notice.ScheduledChange, Change: "arn", Code: power, Deadline: before}
	polled := intent.Entry{Kind: notice.ScheduledChange, Change: id, Code: "system-maintenance", Deadline: before}
	for name, tt := range map[string]struct {
		scheduled []intent.Entry
		want      []string
	}{
		"told":               {[]intent.Entry{told}, []string{"arn " + power}},
		"told and polled":    {[]intent.Entry{told, polled}, []string{"arn " + power}}, // the poll's own moves after it
		"polled and unknown": {[]intent.Entry{polled}, []string{id + " system-maintenance"}},
	} {
		w := &world{nodes: []string{ours}, scheduled: tt.scheduled}
		w.events = []instance.ScheduledEvent{event(ours, func(e *instance.ScheduledEvent) { e.Code = "system-maintenance" })}
		play(t, w, func(after func(int)) { after(2) })
		var got []string
		for _, n := range w.handled {
			got = append(got, n.Change+" "+n.Detail)
			if !n.Deadline.Equal(event("").NotBefore) {
				t.Errorf("%s: %s gets the time %s", name, n.Change, n.Deadline)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: handled %q, want %q", name, got, tt.want)
		}
	}
}

func TestWhichChangeAnEventIs(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	told := func(arn, code string, in time.Duration) intent.Entry {
		return intent.Entry{Kind: notice.ScheduledChange, Change: arn, Code: code, Deadline: at.Add(in)}
	}
	const health, reboot = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "system-reboot"
	const id, other = "instance-event-0000000000000000a", "instance-event-0000000000000000b"
	event := func(id string, in time.Duration, over bool) instance.ScheduledEvent {
		return instance.ScheduledEvent{Instance: "i-0123456789abcdef0", ID: id, Code: reboot, NotBefore: at.Add(in), Over: over}
	}
	of := func(code string, e instance.ScheduledEvent) instance.ScheduledEvent {
		e.Code = code
		return e
	}
	maintenance := of("system-maintenance", event(id, time.Hour, false))
	begun := told("arn", "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED", 0)
	begun.Deadline, begun.IDs = time.Time{}, []string{id + "-20261130T130000Z"}
	for name, tt := range map[string]struct {
		carried []intent.Entry
		listed  []instance.ScheduledEvent // the first is asked about
		moved   string
		ended   string
	}{
		"moved":                            {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "arn", ""},
		"as it was told":                   {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, 30*time.Second, false)}, "", "arn"},
		"by its own code":                  {[]intent.Entry{told("arn", health, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "arn", ""},
		"a change of its host":             {[]intent.Entry{told("arn", "AWS_EC2_DEDICATED_HOST_POWER_MAINTENANCE_SCHEDULED", 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", ""},
		"of the power":                     {[]intent.Entry{told("arn", "AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED", 0)}, []instance.ScheduledEvent{maintenance}, "arn", ""},
		"by a code that is not known":      {[]intent.Entry{told("arn", "AWS_EC2_NEW_SCHEDULED", 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", ""},
		"of the network":                   {[]intent.Entry{told("arn", "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED", 0)}, []instance.ScheduledEvent{maintenance}, "arn", ""},
		"a reboot is no maintenance":       {[]intent.Entry{told("arn", health, 0)}, []instance.ScheduledEvent{maintenance}, "", ""},
		"a maintenance is no retirement":   {[]intent.Entry{told("arn", "system-maintenance", 0)}, []instance.ScheduledEvent{of("instance-retirement", event(id, time.Hour, false))}, "", ""},
		"moved, and another begins then":   {[]intent.Entry{{Kind: notice.ScheduledChange, Change: "arn", Code: health, Deadline: at.Add(time.Hour), IDs: []string{id + "-20261130T130000Z"}}}, []instance.ScheduledEvent{event(id, time.Hour, false), event(other, time.Hour, false)}, "", ""},
		"a code that says more":            {[]intent.Entry{told("arn", "AWS_EC2_MAINTENANCE_SCHEDULED", time.Hour), told("arn2", health, time.Hour)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", "arn2"},
		"a code that says nothing":         {[]intent.Entry{told("arn", "AWS_EC2_MAINTENANCE_SCHEDULED", time.Hour)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", "arn"},
		"moved, and it has begun":          {[]intent.Entry{begun}, []instance.ScheduledEvent{maintenance}, "", "arn"},
		"a change of its host at its time": {[]intent.Entry{told("arn", "AWS_EC2_DEDICATED_HOST_POWER_MAINTENANCE_SCHEDULED", time.Hour)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", ""},
		"another kind is new as well":      {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false), of("instance-retirement", event(other, 2*time.Hour, false))}, "arn", ""},
		"a retirement is no maintenance":   {[]intent.Entry{told("arn", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", 0)}, []instance.ScheduledEvent{maintenance}, "", ""},
		"another kind of change":           {[]intent.Entry{told("arn", "instance-retirement", 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", ""},
		"EC2 lists the change, too":        {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false), event(other, 0, false)}, "", ""},
		"two events are new":               {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false), event(other, 2*time.Hour, false)}, "", ""},
		"two changes are not listed":       {[]intent.Entry{told("arn", reboot, 0), told("arn2", reboot, 3*time.Hour)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", ""},
		"on two Nodes":                     {[]intent.Entry{told("arn", reboot, 0), told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "arn", ""},
		"carried by both ids":              {[]intent.Entry{told("arn", reboot, 0), told(id, reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "arn", ""},
		"carried by both ids, one is over": {[]intent.Entry{told("arn", reboot, time.Hour), told(id, reboot, 0)}, []instance.ScheduledEvent{event(id, time.Hour, false)}, "", "arn"},
		"over, and another begins then":    {[]intent.Entry{told("arn", reboot, 0)}, []instance.ScheduledEvent{event(id, 0, true), event(other, 0, false)}, "", ""},
	} {
		e := tt.listed[0]
		change := func(c *intent.Entry) string {
			if c == nil {
				return ""
			}
			return c.Change
		}
		if got := change(movedFrom(e, tt.listed, tt.carried)); got != tt.moved {
			t.Errorf("%s: moved is %q, want %q", name, got, tt.moved)
		}
		over := append([]instance.ScheduledEvent{{Instance: e.Instance, ID: e.ID, Code: e.Code, NotBefore: e.NotBefore, Over: true}}, tt.listed[1:]...)
		if got := change(endedAsTold(over[0], over, tt.carried)); got != tt.ended {
			t.Errorf("%s: ended is %q, want %q", name, got, tt.ended)
		}
	}
}
