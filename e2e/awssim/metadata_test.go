package awssim_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// ask makes one request to the metadata; body is the status where there is no other.
func ask(t *testing.T, m *awssim.Metadata, method, path string, header ...string) (status int, body string, answered http.Header) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, method, "http://169.254.169.254"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k := 0; k+1 < len(header); k += 2 {
		request.Header.Set(header[k], header[k+1])
	}
	response, err := m.Transport().RoundTrip(request)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return response.StatusCode, string(text), response.Header
}

const (
	metadataToken = "X-aws-ec2-metadata-token"
	metadataTTL   = "X-aws-ec2-metadata-token-ttl-seconds"
)

func token(t *testing.T, m *awssim.Metadata, seconds string) string {
	t.Helper()
	status, body, header := ask(t, m, "PUT", "/latest/api/token", metadataTTL, seconds)
	if status != 200 || header.Get(metadataTTL) != seconds {
		t.Fatalf("%d %q, valid for %q", status, body, header.Get(metadataTTL))
	}
	return body
}

func TestTheMetadataNeedsATokenThatIsValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := awssim.NewMetadata(awssim.MetadataOptions{Instance: "i-0123456789abcdef0"})
		const path = "/latest/meta-data/instance-id"
		if status, _, _ := ask(t, m, "GET", path); status != 401 {
			t.Errorf("without a token: %d", status)
		}
		if status, _, _ := ask(t, m, "GET", path, metadataToken, "made-up"); status != 401 {
			t.Errorf("with a token of its own: %d", status)
		}
		given := token(t, m, "60")
		if status, body, _ := ask(t, m, "GET", path, metadataToken, given); status != 200 || body != "i-0123456789abcdef0" {
			t.Errorf("with a token: %d %q", status, body)
		}
		time.Sleep(time.Minute)
		if status, _, _ := ask(t, m, "GET", path, metadataToken, given); status != 401 {
			t.Errorf("with a token that has ended: %d", status)
		}
		for _, seconds := range []string{"", "0", "21601", "-1", "x"} {
			if status, _, _ := ask(t, m, "PUT", "/latest/api/token", metadataTTL, seconds); status != 400 {
				t.Errorf("a token for %q seconds: %d", seconds, status)
			}
		}
		if status, _, _ := ask(t, m, "PUT", "/latest/api/token", metadataTTL, "60", "X-Forwarded-For", "10.0.0.1"); status != 403 {
			t.Errorf("by way of a proxy: %d", status)
		}
	})
}

func TestMetadataWithOptionalTokensTakesARequestWithoutOne(t *testing.T) {
	m := awssim.NewMetadata(awssim.MetadataOptions{Instance: "i-0123456789abcdef0", TokensOptional: true})
	if status, _, _ := ask(t, m, "GET", "/latest/meta-data/instance-id"); status != 200 {
		t.Errorf("without a token: %d", status)
	}
	if status, _, _ := ask(t, m, "GET", "/latest/meta-data/instance-id", metadataToken, "made-up"); status != 401 {
		t.Errorf("with a token of its own: %d", status)
	}
}

func TestATokenDoesNotTravelFurtherThanTheHopLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := awssim.NewMetadata(awssim.MetadataOptions{Instance: "i-0123456789abcdef0", HopLimit: 2})
		m.SetHops(2)
		token(t, m, "60")
		m.SetHops(3)
		if status, body, _ := ask(t, m, "PUT", "/latest/api/token", metadataTTL, "60"); status != 0 {
			t.Errorf("from too far away: %d %q", status, body)
		}
	})
}

func TestAnnouncementsAreItems(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := awssim.NewMetadata(awssim.MetadataOptions{Instance: "i-0123456789abcdef0", TokensOptional: true})
	get := func(path string) string {
		status, body, _ := ask(t, m, "GET", "/latest/meta-data/"+path)
		if status == 404 {
			return ""
		}
		return body
	}
	for _, path := range []string{
		"spot/instance-action", "events/recommendations/rebalance", "events/maintenance/scheduled",
		"events/maintenance/history", "autoscaling/target-lifecycle-state",
	} {
		if body := get(path); body != "" {
			t.Errorf("%s is there: %s", path, body)
		}
	}
	m.InterruptSpot("stop", at)
	wantJSON(t, get("spot/instance-action"), `{"action":"stop","time":"2026-01-02T03:04:05Z"}`)
	m.Recommend(at)
	wantJSON(t, get("events/recommendations/rebalance"), `{"noticeTime":"2026-01-02T03:04:05Z"}`)
	m.SetLifecycleState("Terminated")
	if got := get("autoscaling/target-lifecycle-state"); got != "Terminated" {
		t.Error(got)
	}
	e := awssim.MaintenanceEvent{ID: "instance-event-00000000000000001", Code: "system-reboot", Description: "reboot", State: "active", NotBefore: at}
	m.Schedule(e)
	wantJSON(t, get("events/maintenance/scheduled"), `[{"NotBefore":"2 Jan 2026 03:04:05 GMT","Code":"system-reboot",
		"Description":"reboot","EventId":"instance-event-00000000000000001","NotAfter":"2 Jan 2026 04:04:05 GMT","State":"active"}]`)
	e.State = "completed"
	m.Schedule(e)
	if got := get("events/maintenance/scheduled"); got != "" {
		t.Errorf("what is over is still scheduled: %s", got)
	}
	if got := get("events/maintenance/history"); !strings.Contains(got, "[Completed] reboot") || !strings.Contains(got, `"State":"completed"`) {
		t.Errorf("the history: %s", got)
	}
}
