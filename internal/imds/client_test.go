package imds

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const own = "i-0123456789abcdef0"

// inBubble tells a story in virtual time, with the metadata of an instance and a client of it.
func inBubble(t *testing.T, opts awssim.MetadataOptions, story func(t *testing.T, m *awssim.Metadata, c *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Instance = own
		m := awssim.NewMetadata(opts)
		story(t, m, New("", m.Transport()))
	})
}

func read(t *testing.T, c *Client) {
	t.Helper()
	if id, found, err := c.get(t.Context(), "meta-data/instance-id"); err != nil || !found || id != own {
		t.Fatalf("the instance: %q, %v, %v", id, found, err)
	}
}

func TestATokenServesUntilItIsAboutToEnd(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		for range 10 {
			read(t, c)
		}
		time.Sleep(5 * time.Hour)
		read(t, c)
		if got := m.Requests("PUT", "/api/token"); got != 1 {
			t.Errorf("%d requests for a token", got)
		}
		time.Sleep(30 * time.Minute)
		read(t, c)
		if got := m.Requests("PUT", "/api/token"); got != 2 {
			t.Errorf("%d requests for a token", got)
		}
		if got := m.Requests("GET", "/meta-data/instance-id"); got != 12 {
			t.Errorf("%d reads: a token had ended", got)
		}
	})
}

func TestAShorterLifeOfATokenIsHeeded(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{LongestToken: time.Minute}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		for range 60 {
			read(t, c)
			time.Sleep(time.Second)
		}
		if got := m.Requests("GET", "/meta-data/instance-id"); got != 60 {
			t.Errorf("%d reads: a token had ended", got)
		}
		if got := m.Requests("PUT", "/api/token"); got != 2 {
			t.Errorf("%d requests for a token", got)
		}
	})
}

func TestATokenThatTheServiceDoesNotKnowAnyMoreIsReplaced(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		read(t, c)
		m.RevokeTokens()
		read(t, c)
		if got := m.Requests("PUT", "/api/token"); got != 2 {
			t.Errorf("%d requests for a token", got)
		}
	})
}

func TestATokenCountsWhileItsRenewalFails(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		read(t, c)
		m.SetFault(awssim.MetadataFault{Method: "PUT", Status: 503})
		time.Sleep(5*time.Hour + 50*time.Minute)
		read(t, c)
		time.Sleep(10 * time.Minute)
		if _, _, err := c.get(t.Context(), "meta-data/instance-id"); err == nil {
			t.Error("a token that has ended still serves")
		}
		m.SetFault(awssim.MetadataFault{})
		read(t, c)
	})
}

func TestWhatIsNotThereIsNoError(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, _ *awssim.Metadata, c *Client) {
		if body, found, err := c.get(t.Context(), itemSpot); err != nil || found || body != "" {
			t.Errorf("%q, %v, %v", body, found, err)
		}
	})
}

func TestAPodThatIsTooFarAwayIsToldSo(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{TokensOptional: true}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		m.SetHops(2)
		begin := time.Now()
		_, err := c.Identity(t.Context())
		if err == nil || !errors.Is(err, ErrTooFar) || !strings.Contains(err.Error(), "HttpPutResponseHopLimit") {
			t.Errorf("%v", err)
		}
		if took := time.Since(begin); took > answerTime {
			t.Errorf("it takes %s", took)
		}
		if got := m.Requests("GET", "/dynamic/instance-identity/document"); got != 0 {
			t.Error("version 1 takes the place of version 2")
		}
	})
}

func TestVersionOneServesOnlyWhereVersionTwoIsNotThere(t *testing.T) {
	for _, status := range []int{403, 404, 405} {
		inBubble(t, awssim.MetadataOptions{TokensOptional: true}, func(t *testing.T, m *awssim.Metadata, c *Client) {
			m.SetFault(awssim.MetadataFault{Prefix: "/api/token", Status: status})
			for range 5 {
				read(t, c)
			}
			if got := m.Requests("PUT", "/api/token"); got != 1 {
				t.Errorf("%d: %d requests for a token", status, got)
			}
			m.SetFault(awssim.MetadataFault{})
			time.Sleep(unsupportedBy)
			read(t, c)
			if got := m.Requests("PUT", "/api/token"); got != 2 {
				t.Errorf("%d: version 2 is not tried again", status)
			}
		})
	}
	for _, status := range []int{400, 429, 500, 503} {
		inBubble(t, awssim.MetadataOptions{TokensOptional: true}, func(t *testing.T, m *awssim.Metadata, c *Client) {
			m.SetFault(awssim.MetadataFault{Prefix: "/api/token", Status: status})
			if _, _, err := c.get(t.Context(), itemSpot); err == nil {
				t.Errorf("%d: version 1 takes the place of version 2", status)
			}
		})
	}
}

func TestAServiceThatIsTurnedOffIsNamed(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		m.SetFault(awssim.MetadataFault{Status: 403})
		if _, err := c.Identity(t.Context()); !errors.Is(err, ErrTurnedOff) {
			t.Errorf("%v", err)
		}
	})
}

// Tokens are required, and something in between does not let requests for them through.
func TestAServiceThatGivesNoTokenAndWantsOneIsAnError(t *testing.T) {
	inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		m.SetFault(awssim.MetadataFault{Prefix: "/api/token", Status: 404})
		_, _, err := c.get(t.Context(), itemSpot)
		if err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("%v", err)
		}
	})
}

func TestHostileAnswersAreErrors(t *testing.T) {
	for name, fault := range map[string]awssim.MetadataFault{
		"too long":                {Prefix: "/meta-data", Body: strings.Repeat("x", answerSize+1)},
		"a redirection":           {Prefix: "/meta-data", Status: 302, Header: http.Header{"Location": {"http://elsewhere.example/"}}},
		"a redirection to itself": {Prefix: "/meta-data", Status: 307, Header: http.Header{"Location": {"/latest/meta-data/instance-id"}}},
		"a token of two lines":    {Prefix: "/api/token", Body: "a\r\nHost: elsewhere"},
		"a token in Latin":        {Prefix: "/api/token", Body: "é"},
		"an endless token":        {Prefix: "/api/token", Body: strings.Repeat("x", tokenSize+1)},
		"a server error":          {Prefix: "/meta-data", Status: 500},
		"no status of HTTP":       {Prefix: "/meta-data", Status: 299},
		"half an answer":          {Prefix: "/meta-data", Reset: true},
		"no answer":               {Prefix: "/meta-data", Hang: true},
	} {
		inBubble(t, awssim.MetadataOptions{}, func(t *testing.T, m *awssim.Metadata, c *Client) {
			m.SetFault(fault)
			if body, found, err := c.get(t.Context(), itemSpot); err == nil {
				t.Errorf("%s: %d bytes, found: %v", name, len(body), found)
			}
			m.SetFault(awssim.MetadataFault{})
			read(t, c)
		})
	}
}

func TestTheIdentityIsThatOfTheDocument(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	inBubble(t, awssim.MetadataOptions{Started: started}, func(t *testing.T, m *awssim.Metadata, c *Client) {
		got, err := c.Identity(t.Context())
		want := Identity{
			Instance: own, Account: "123456789012", Region: "us-east-1", Type: "m5.large",
			Started: started,
		}
		if err != nil || got != want {
			t.Errorf("%v, %+v", err, got)
		}
		for _, body := range []string{"{}", "null", "<html>", `{"pendingTime":"yesterday","instanceId":"` + own + `"}`} {
			m.SetFault(awssim.MetadataFault{Prefix: "/dynamic", Body: body})
			if got, err := c.Identity(t.Context()); err == nil {
				t.Errorf("%s: %+v", body, got)
			}
		}
		m.SetFault(awssim.MetadataFault{Prefix: "/dynamic", Status: 404})
		if _, err := c.Identity(t.Context()); err == nil {
			t.Error("no document is no error")
		}
	})
}

func TestTheClientUsesOneConnectionAndNoProxy(t *testing.T) {
	m := awssim.NewMetadata(awssim.MetadataOptions{Instance: own})
	url, err := m.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := New(url+"/", nil)
	for range 20 {
		read(t, c)
	}
	if got := m.Connections(); got != 1 {
		t.Errorf("%d connections", got)
	}
	if c.http.Transport.(*http.Transport).Proxy != nil {
		t.Error("it asks a proxy")
	}
}

func TestNoServiceIsAnErrorThatBlamesNoHopLimit(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	_, err := New(server.URL, nil).Identity(t.Context())
	if err == nil || strings.Contains(err.Error(), "HopLimit") {
		t.Errorf("%v", err)
	}
}

// roundTrip is a service of one answer.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// Whatever answers at the address: there is an error or a notice, and no panic.
func FuzzAnswers(f *testing.F) {
	f.Add(200, "token==", "21600", 200, `{"action":"terminate","time":"2026-09-18T08:22:00Z"}`)
	f.Add(404, "", "", 200, `[{"EventId":"instance-event-00000000000000001","State":"active"}]`)
	f.Add(200, "\x00", "-1", 401, "")
	f.Add(200, "t", "99999999999999999999", 404, "Terminated")
	f.Fuzz(func(t *testing.T, tokenStatus int, token, ttl string, status int, body string) {
		c := New("http://metadata.invalid", roundTrip(func(r *http.Request) (*http.Response, error) {
			answer := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
			if r.Method == http.MethodPut {
				answer.StatusCode, answer.Body = tokenStatus, io.NopCloser(strings.NewReader(token))
				answer.Header.Set(headerTTL, ttl)
			}
			return answer, nil
		}))
		p := Poller{Metadata: c, Identity: Identity{Instance: own}, Handler: &handler{changes: []string{"instance-event-00000000000000001"}}}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		_, _ = c.Identity(ctx)
		for _, look := range []func(context.Context) ([]notice.Notice, error){p.spot, p.rebalance, p.scheduled, p.termination} {
			notices, err := look(ctx)
			if status != http.StatusOK && len(notices) > 0 {
				t.Errorf("status %d gives %+v, %v", status, notices, err)
			}
			for _, n := range notices {
				if n.Kind == notice.Ignored || n.Instances[0] != own {
					t.Errorf("%+v", n)
				}
			}
		}
	})
}
