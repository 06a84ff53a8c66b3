package notice

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ownInstance = "i-0123456789abcdef0"

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestASpotActionIsANotice(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		want       Notice
	}{
		{
			"terminate", `{"action":"terminate","time":"2026-09-18T08:22:00Z"}`,
			Notice{
				Kind: SpotInterruption, ID: "imds-spot-terminate-20260918T082200Z", Detail: "terminate",
				Time: at("2026-09-18T08:20:00Z"), Deadline: at("2026-09-18T08:22:00Z"),
			},
		},
		{
			"hibernation begins at once", `{"action":"hibernate","time":"2026-09-18T08:22:00Z"}`,
			Notice{
				Kind: SpotInterruption, ID: "imds-spot-hibernate-20260918T082200Z", Detail: "hibernate",
				Time: at("2026-09-18T08:22:00Z"), Deadline: at("2026-09-18T08:22:00Z"),
			},
		},
		{
			"without a time that can be read", `{"action":"stop","time":"soon"}`,
			Notice{Kind: SpotInterruption, ID: "imds-spot-stop", Detail: "stop"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Instances = []string{ownInstance}
			got, err := OfSpotAction(tt.body, ownInstance)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, body := range []string{"", "null", "{}", `"terminate"`, `{"action":7}`, `{"action":""}`, "<html>"} {
		if n, err := OfSpotAction(body, ownInstance); err == nil {
			t.Errorf("%q gives %+v", body, n)
		}
	}
	if _, err := OfSpotAction(`{"action":"stop"}`, "somebody"); err == nil {
		t.Error("it takes any text for the id of an instance")
	}
}

func TestARebalanceRecommendationOfTheMetadataIsANotice(t *testing.T) {
	got, err := OfRebalance(`{"noticeTime":"2026-10-27T08:22:00Z"}`, ownInstance)
	want := Notice{
		Kind: RebalanceRecommendation, ID: "imds-rebalance-20261027T082200Z", Time: at("2026-10-27T08:22:00Z"),
		Instances: []string{ownInstance},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if n, err := OfRebalance("[]", ownInstance); err == nil {
		t.Errorf("a list gives %+v", n)
	}
}

func TestOnlyATerminationIsOne(t *testing.T) {
	for body, want := range map[string]bool{
		"Terminated": true, "Terminated\n": true, "Warmed:Terminated": true,
		"InService": false, "Standby": false, "Detached": false, "Warmed:Stopped": false, "": false, "NotTerminated": false,
	} {
		if Terminated(body) != want {
			t.Errorf("%q: %v", body, !want)
		}
	}
	first, err := OfTermination(ownInstance, "1c2f0a6e-1111")
	again, _ := OfTermination(ownInstance, "1c2f0a6e-1111")
	later, _ := OfTermination(ownInstance, "9d000000-2222")
	if err != nil || first.Kind != ASGTerminate || first.Hook != (Hook{}) || first.ID != again.ID || first.ID == later.ID {
		t.Errorf("%v: %+v, %+v, %+v", err, first, again, later)
	}
}

func TestScheduledChangesOfTheMetadataAreNotices(t *testing.T) {
	read := at("2026-01-20T10:00:00Z")
	const body = `[
		{"NotBefore":"21 Jan 2026 09:00:43 GMT","Code":"system-reboot","Description":"scheduled reboot",
		 "EventId":"instance-event-0d59937288b749b32","NotAfter":"21 Jan 2026 09:17:23 GMT","State":"active"},
		{"NotBefore":"1 Jan 2026 09:00:43 GMT","Code":"instance-stop","Description":"[Completed] retirement",
		 "EventId":"instance-event-00000000000000001","State":"active"},
		{"NotBefore":"never","Code":"new-code","EventId":"instance-event-00000000000000002","State":"canceled"},
		{"NotBefore":"","Code":"instance-retirement","EventId":"instance-event-00000000000000003","State":"active"}]`
	got, err := OfScheduled(body, ownInstance, read)
	if err != nil {
		t.Fatal(err)
	}
	id := []string{ownInstance}
	want := []Notice{
		{
			Kind: ScheduledChange, ID: "imds-instance-event-0d59937288b749b32-20260121T090043Z", Instances: id, Time: read,
			Change: "instance-event-0d59937288b749b32", Deadline: at("2026-01-21T09:00:43Z"), Detail: "system-reboot",
		},
		{
			Kind: ScheduledChange, ID: "imds-instance-event-00000000000000001-ended", Instances: id, Time: read,
			Change: "instance-event-00000000000000001", Detail: "instance-stop", Ended: true,
		},
		{
			Kind: ScheduledChange, ID: "imds-instance-event-00000000000000002-ended", Instances: id, Time: read,
			Change: "instance-event-00000000000000002", Detail: "new-code", Ended: true,
		},
		{
			Kind: ScheduledChange, ID: "imds-instance-event-00000000000000003", Instances: id, Time: read,
			Change: "instance-event-00000000000000003", Detail: "instance-retirement",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAScheduledChangeWithoutAnIDDoesNotHideTheOthers(t *testing.T) {
	got, err := OfScheduled(`[{"Code":"instance-stop"},{"EventId":"e"}]`, ownInstance, at("2026-01-20T10:00:00Z"))
	if err == nil || len(got) != 1 || got[0].Change != "e" {
		t.Errorf("%v, %+v", err, got)
	}
	if got, err := OfScheduled("["+strings.Repeat("{},", metadataEvents)+"{}]", ownInstance, time.Now()); err == nil {
		t.Errorf("too many: %+v", got)
	}
}

// What a service that is not AWS's answers becomes an error, or a notice that is fit for logs,
// taints and the annotation.
func FuzzMetadata(f *testing.F) {
	for _, seed := range []string{
		`{"action":"terminate","time":"2026-09-18T08:22:00Z"}`, `{"noticeTime":"2026-10-27T08:22:00Z"}`, "Terminated",
		`[{"NotBefore":"21 Jan 2026 09:00:43 GMT","Code":"system-reboot","EventId":"instance-event-00000000000000000","State":"active"}]`,
		`[{"EventId":"\u001b[2J","Description":"[Canceled]"}]`, "", "null", "[]", `{"time":"9999-12-31T23:59:60-23:59","action":"a"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var all []Notice
		if n, err := OfSpotAction(body, ownInstance); err == nil {
			all = append(all, n)
		}
		if n, err := OfRebalance(body, ownInstance); err == nil {
			all = append(all, n)
		}
		if n, err := OfTermination(ownInstance, body); err == nil {
			all = append(all, n)
		}
		scheduled, _ := OfScheduled(body, ownInstance, time.Unix(0, 0))
		if len(scheduled) > metadataEvents {
			t.Errorf("%d notices", len(scheduled))
		}
		for _, n := range append(all, scheduled...) {
			if len(n.Instances) != 1 || n.Instances[0] != ownInstance || n.ID == "" || len(n.ID) > 2*identifierLimit {
				t.Errorf("%+v", n)
			}
			if text := n.ID + n.Change + n.Detail; identifier(n.ID)+identifier(n.Change)+identifier(n.Detail) != text && len(n.ID) <= identifierLimit {
				t.Errorf("%q is not fit to be shown", text)
			}
			if _, err := n.Time.MarshalJSON(); err != nil {
				t.Error(err)
			}
			if _, err := n.Deadline.MarshalJSON(); err != nil {
				t.Error(err)
			}
		}
	})
}
