package intent

import (
	"fmt"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestANodeThatHasHeardOfWhatAPollFindsIsNotToldAgain(t *testing.T) {
	const arn, other = "arn:aws:health:us-east-1::event/EC2/X/1", "instance-event-00000000000000002"
	day := func(k int) time.Time { return at(86400 * k) }
	found := Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", IDs: []string{"instance-event-00000000000000001-day5"}, Time: now, Deadline: day(5)}
	health := func(due time.Time) Entry {
		return Entry{Kind: notice.ScheduledChange, Change: arn, IDs: []string{"c"}, Time: at(-100), Deadline: due}
	}
	calledOff := func(i Intent) Intent { return i.CalledOff(i.Entries, now) }
	with := func(entries ...Entry) (i Intent) {
		for _, e := range entries {
			i = i.With(e, nil, at(-50))
		}
		return i
	}
	moved := found
	moved.IDs, moved.Deadline = []string{"instance-event-00000000000000001-day7"}, day(7)
	reported, again := found, moved
	reported.IDs, again.IDs = []string{"imds-instance-event-00000000000000001-day5"}, []string{"imds-instance-event-00000000000000001-day7"}
	begun := found
	begun.Deadline = at(-3600)
	spot := Entry{Kind: notice.SpotInterruption, IDs: []string{"imds-2"}, Time: now, Deadline: at(120)}
	recommended := Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"imds-3"}, Time: now}
	impaired := func(id string) Entry {
		return Entry{Kind: notice.InstanceImpaired, IDs: []string{id}, Time: now, Deadline: at(120)}
	}
	for name, tt := range map[string]struct {
		i     Intent
		found Entry
		want  bool
	}{
		"a node without an intent":                          {Intent{}, found, false},
		"it carries the change":                             {with(found), found, true},
		"the change was moved":                              {with(found), moved, false},
		"it carries another one of that time":               {with(Entry{Kind: notice.ScheduledChange, Change: other, Deadline: day(5)}), found, false},
		"AWS Health has told of it":                         {with(health(day(5).Add(900 * time.Millisecond))), found, true},
		"AWS Health has told of another":                    {with(health(day(6))), found, false},
		"AWS Health has told of it, and it has begun":       {with(health(time.Time{})), begun, true},
		"AWS Health told of one that has begun":             {with(health(time.Time{})), found, false},
		"a spot warning of that time":                       {with(Entry{Kind: notice.SpotInterruption, Deadline: day(5)}), found, false},
		"somebody has called it off":                        {calledOff(with(found)), found, true},
		"somebody has called it off, and it was moved":      {calledOff(with(found)), moved, true},
		"the metadata tells of what was called off":         {calledOff(with(reported)), reported, true},
		"the metadata tells that it was moved":              {calledOff(with(reported)), again, false},
		"somebody has uncordoned after the drain":           {with(found).Forget(func(Entry) bool { return true }), moved, true},
		"another one was called off":                        {calledOff(with(Entry{Kind: notice.ScheduledChange, Change: other, Deadline: day(5)})), found, false},
		"AWS Health told of it, and it was called off":      {calledOff(with(health(day(5)))), found, true},
		"AWS Health told of another that was called off":    {calledOff(with(health(day(6)))), found, false},
		"one without a time was called off":                 {calledOff(with(health(time.Time{}))), found, false},
		"one without a time was called off after the start": {calledOff(with(health(time.Time{}))), begun, true},
		"one without a time is past":                        {Intent{Past: []Past{{Kind: notice.ScheduledChange, Change: arn}}}, found, false},
		"a spot warning is past":                            {Intent{Past: []Past{{Kind: notice.SpotInterruption}}}, found, false},
		"another spot warning, of a later life":             {Intent{Past: []Past{{Kind: notice.SpotInterruption, IDs: []string{"imds-1"}}}}, spot, false},
		"a spot warning that is past":                       {Intent{Past: []Past{{Kind: notice.SpotInterruption, IDs: []string{"imds-2"}}}}, spot, true},
		"a spot warning that is past by its message":        {Intent{Past: []Past{{Kind: notice.SpotInterruption, IDs: []string{"m"}, Due: at(121)}}}, spot, true},
		"another one that is past by its message":           {Intent{Past: []Past{{Kind: notice.SpotInterruption, IDs: []string{"m"}, Due: at(600)}}}, spot, false},
		"a recommendation that is past by its message":      {Intent{Past: []Past{{Kind: notice.RebalanceRecommendation, IDs: []string{"m"}, Due: at(2)}}}, recommended, true},
		"another one, of an hour before":                    {Intent{Past: []Past{{Kind: notice.RebalanceRecommendation, IDs: []string{"m"}, Due: at(-3600)}}}, recommended, false},
		"another one that the metadata told of":             {Intent{Past: []Past{{Kind: notice.SpotInterruption, IDs: []string{"imds-1"}, Due: at(121)}}}, spot, false},
		"an impairment that is carried":                     {with(impaired("a")), impaired("a"), true},
		"one joins the other":                               {with(impaired("a")), impaired("b"), true},
		"an impairment that was called off":                 {calledOff(with(impaired("a"))), impaired("a"), true},
		"the next impairment":                               {calledOff(with(impaired("a"))), impaired("b"), false},
	} {
		if got := tt.i.HasHeardOf(tt.found, now); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A kubelet can write the annotation: only what EC2 could have said is taken for that.
func TestOnlyWhatEC2CanHaveSaidIsTakenForItsWord(t *testing.T) {
	for _, tt := range []struct {
		e    Entry
		want bool
	}{
		{Entry{Kind: notice.InstanceImpaired}, true},
		{Entry{Kind: notice.ScheduledChange, Change: "instance-event-0d59937288b749b32"}, true},
		{Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000000\nmore"}, false},
		{Entry{Kind: notice.ScheduledChange, Change: "arn:aws:health:us-east-1::event/EC2/X/1"}, false},
		{Entry{Kind: notice.SpotInterruption, Change: "instance-event-0d59937288b749b32"}, false},
	} {
		if got := tt.e.Polled(); got != tt.want {
			t.Errorf("%+v: %t", tt.e, got)
		}
	}
}

// A kubelet can write as many as fit into its annotation.
func TestANodeCarriesNoMoreHooksThanTheBound(t *testing.T) {
	var i Intent
	for k := range 10 * MaxHooks {
		i.Hooks = append(i.Hooks, Hook{Group: "g", Name: fmt.Sprint(k), Instance: "i-0"})
	}
	if n := len(i.ForInstance("i-0", "x").Hooks); n != MaxHooks {
		t.Errorf("%d hooks, want %d", n, MaxHooks)
	}
}
