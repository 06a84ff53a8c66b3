package notice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAReportIsReadAsItWasWritten(t *testing.T) {
	const id = "i-0123456789abcdef0"
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	spot, err := OfSpotAction(`{"action":"terminate","time":"2026-11-26T12:01:30Z"}`, id)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := OfScheduled(`[{"NotBefore":"28 Nov 2026 12:00:00 GMT","Code":"system-reboot","EventId":"instance-event-00000000000000001","State":"active"}]`, id, now)
	if err != nil {
		t.Fatal(err)
	}
	r := Report{}.Telling("ns/lease", []Notice{spot, changes[0]}, time.Time{}).Answering(spot.ID).Answering(spot.ID).Answering("another")
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeReport(text, id, now)
	if err != nil {
		t.Fatal(err)
	}
	spot.Reported, changes[0].Reported = true, true
	want := Report{To: "ns/lease", Notices: []Notice{spot, changes[0]}, Answered: []string{spot.ID}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left := got.Telling("ns/lease", changes, time.Time{}); len(left.Answered) != 1 {
		t.Errorf("the answer is gone with its notice: %+v", left)
	}
}

func TestAReportHasNothingButWhatTheMetadataCanTell(t *testing.T) {
	const id = "i-0123456789abcdef0"
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	one := func(fields string) string { return `{"notices":[{` + fields + `}]}` }
	for name, text := range map[string]string{
		"no JSON":       `{"notices":`,
		"another kind":  one(`"kind":"CapacityBlockExpiration","id":"imds-x"`),
		"no kind":       one(`"id":"imds-x"`),
		"another's id":  one(`"kind":"SpotInterruption","id":"7d5a1d4c"`),
		"no such time":  one(`"kind":"SpotInterruption","id":"imds-x","deadline":"9999-12-31T23:59:59-23:59"`),
		"no such past":  one(`"kind":"SpotInterruption","id":"imds-x","time":"0000-01-01T00:00:00+23:59"`),
		"no change":     one(`"kind":"ScheduledChange","id":"imds-x"`),
		"too much":      one(`"kind":"SpotInterruption","id":"imds-` + strings.Repeat("x", 16<<10) + `"`),
		"too many":      `{"notices":[` + strings.Repeat(`{"kind":"SpotInterruption","id":"imds-x"},`, 16) + `{"kind":"SpotInterruption","id":"imds-x"}]}`,
		"many answered": `{"answered":["a"` + strings.Repeat(`,"a"`, 16) + `]}`,
	} {
		if r, err := DecodeReport(text, id, now); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	text := one(`"kind":"SpotInterruption","id":"imds-x\u001b[31m","time":"2027-01-01T00:00:00Z","change":"c","ended":true,"effect":"ends","instances":["i-0fedcba9876543210"],"hook":{"name":"h"}`)
	r, err := DecodeReport(text, id, now)
	if err != nil {
		t.Fatal(err)
	}
	want := Notice{Kind: SpotInterruption, ID: "imds-x31m", Time: now, Instances: []string{id}, Reported: true}
	if diff := cmp.Diff(want, r.Notices[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := DecodeReport(one(`"kind":"SpotInterruption","id":"imds-x"`), "", now); err == nil {
		t.Error("a node without an instance speaks of one")
	}
}

func FuzzDecodeReport(f *testing.F) {
	f.Add(`{"notices":[{"kind":"SpotInterruption","id":"imds-x"}],"answered":["imds-x"]}`)
	const id = "i-0123456789abcdef0"
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
		r, err := DecodeReport(text, id, now)
		if err != nil {
			return
		}
		for _, n := range r.Notices {
			if fmt.Sprint(n.Instances) != "["+id+"]" || n.Hook != (Hook{}) || !OfMetadata(n.ID) || n.Time.After(now) {
				t.Errorf("%+v", n)
			}
		}
	})
}
