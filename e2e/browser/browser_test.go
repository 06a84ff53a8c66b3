package browser_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/browser"
	"github.com/node-termination-handler/node-termination-handler/e2e/browser/sample"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
)

// A source has always the same.
type source struct {
	o   overview.Overview
	h   overview.History
	err error
}

func (s source) Overview(context.Context) (overview.Overview, error) { return s.o, s.err }
func (s source) History(context.Context) (overview.History, error)   { return s.h, s.err }

// serve serves a page as the handler does, and returns its address.
func serve(t *testing.T, s source) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", page.Handler(s, page.HandlerOptions{Version: "1.2.3", Port: 9092}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// chromium is the browser. Without it the test is skipped, unless REQUIRE_CHROMIUM is set, as make test-all does.
func chromium(t *testing.T) *browser.Browser {
	t.Helper()
	t.Parallel()
	b, err := browser.New(t.Context(), filepath.Join("..", ".."))
	switch {
	case errors.Is(err, browser.ErrMissing) && os.Getenv("REQUIRE_CHROMIUM") == "":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return b
}

func look(t *testing.T, l browser.Look) browser.Sight {
	t.Helper()
	seen, err := chromium(t).Look(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range seen.Problems(l.URL) {
		t.Error(problem)
	}
	return seen
}

// pictures is what make pictures sets.
var pictures = flag.String("pictures", "", "an existing directory for pictures of a day of episodes")

var now = time.Date(2026, 11, 20, 3, 12, 45, 0, time.UTC)

func TestAStormIsSeenHeardAndReachedByKeyboard(t *testing.T) {
	tier.Full(t, "Chromium")
	o, h := sample.Storm(now, 60, 500)
	seen := look(t, browser.Look{
		URL: serve(t, source{o: o, h: h}), Refresh: true, Pictures: *pictures, At: "#blocks",
		Count: map[string]string{
			"rows": "#progress tbody tr", "lanes": "svg.lane", "dots": ".dot", "lines": "svg.lane .end", "slack": ".slack",
			"blocks": "#blocks tbody tr", "kinds": "#day > table tbody tr", "scripts": "script",
		},
	})
	for name, least := range map[string]int{"rows": 60, "lanes": 60, "dots": 500, "lines": 53, "slack": 30, "blocks": 8, "kinds": 6, "scripts": 1} {
		if seen.Count[name] < least {
			t.Errorf("%d %s, want %d", seen.Count[name], name, least)
		}
	}
	if seen.Count["lanes"] != 60 || seen.Count["dots"] != 500 || seen.Count["scripts"] != 1 {
		t.Errorf("there are more: %v", seen.Count)
	}
	// Four sections; a table for each of four bands, what blocks, and the kinds; a picture for each lane, and the dots.
	for role, want := range map[string]int{"navigation": 1, "region": 4, "table": 6, "rowheader": 76, "image": 61, "button": 1} {
		if seen.Roles[role] < want {
			t.Errorf("a screen reader is told of %d of role %s, want %d", seen.Roles[role], role, want)
		}
	}
	if !seen.Refreshed || !seen.KeptFocus || !seen.KeptOpen || !seen.Pauses {
		t.Errorf("refreshed in place: %t, focus kept: %t, opened kept: %t, pauses: %t", seen.Refreshed, seen.KeptFocus, seen.KeptOpen, seen.Pauses)
	}
	if !strings.HasPrefix(seen.LiveRegion, "60 drains in progress") || seen.Status != http.StatusOK {
		t.Errorf("it says %q, status %d", seen.LiveRegion, seen.Status)
	}
	for _, s := range seen.Schemes {
		t.Logf("%s: contrast %.2f of %d texts, %.2f of %d graphics", s.Name, s.Text.Ratio, s.Text.Of, s.Graphics.Ratio, s.Graphics.Of)
	}
}

func TestHostileNamesDoNothingInABrowser(t *testing.T) {
	tier.Full(t, "Chromium")
	o, h := sample.Hostile(now)
	seen := look(t, browser.Look{
		URL: serve(t, source{o: o, h: h}), Refresh: true,
		Count: map[string]string{"strange": "img, iframe, link, base, form, object, embed, script:not(:last-child), [onerror], [onload], [onmouseover]", "lanes": "svg.lane"},
	})
	if seen.Count["strange"] > 0 || seen.Count["lanes"] != 2*len(sample.Attacks) || !seen.Refreshed {
		t.Errorf("%v, refreshed: %t", seen.Count, seen.Refreshed)
	}
}

func TestAnEmptyPageIsAPage(t *testing.T) {
	tier.Full(t, "Chromium")
	seen := look(t, browser.Look{URL: serve(t, source{o: overview.Overview{At: now, Source: overview.Leader, Leader: "handler-0"}})})
	if seen.LiveRegion != "No node is being drained." {
		t.Errorf("it says %q", seen.LiveRegion)
	}
}

func TestAReplicaThatStandsByHasAPageToo(t *testing.T) {
	tier.Full(t, "Chromium")
	seen := look(t, browser.Look{URL: serve(t, source{err: page.Standby{Leader: "handler-1"}}), Refresh: true})
	if seen.Status != http.StatusServiceUnavailable || !seen.Refreshed || seen.LiveRegion != "This replica stands by." {
		t.Errorf("status %d, refreshed: %t, it says %q", seen.Status, seen.Refreshed, seen.LiveRegion)
	}
}

// Whatever stands in front of the handler may answer in its place.
func TestAnAnswerThatIsNoPageLeavesThePageAndSaysSo(t *testing.T) {
	tier.Full(t, "Chromium")
	o, h := sample.Storm(now, 3, 3)
	var first atomic.Bool
	handler := page.Handler(source{o: o, h: h}, page.HandlerOptions{Version: "1.2.3", Port: 9092})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && first.Swap(true) {
			_, _ = w.Write([]byte("<!doctype html><title>Sign in</title>"))
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	seen := look(t, browser.Look{URL: server.URL + "/", Says: "The handler does not answer.", Count: map[string]string{"rows": "#progress tbody tr"}})
	if seen.Count["rows"] != 3 {
		t.Errorf("%v", seen.Count)
	}
}

func TestAFileIsAPage(t *testing.T) {
	tier.Full(t, "Chromium")
	o, h := sample.Storm(now, 20, 20)
	var b bytes.Buffer
	if err := page.Render(&b, o, h, page.Options{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "status.html")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := look(t, browser.Look{URL: "file://" + path, Count: map[string]string{"lanes": "svg.lane", "scripts": "script"}})
	if seen.Count["lanes"] != 20 || seen.Count["scripts"] != 0 {
		t.Errorf("%v", seen.Count)
	}
}

// What would be wrong is found: a page of mistakes has all of them.
func TestAPageOfMistakesHasAllOfThem(t *testing.T) {
	tier.Full(t, "Chromium")
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!DOCTYPE html><title></title><style>:focus { outline: none } .wide { width: 2000px }</style>
<body><main><h3>x</h3><p style="color: #999">grey</p><a href="#"><svg width="9" height="9"></svg></a><div class="wide">.</div>
<svg><rect class="slack" fill="#eee" width="9" height="9"/></svg>
<img src="` + elsewhere.URL + `/x.png" alt=""><script>window.harmed = 1; console.error("x"); throw new Error("y")</script></main>`))
	}))
	defer server.Close()
	seen, err := chromium(t).Look(t.Context(), browser.Look{URL: server.URL + "/"})
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(seen.Problems(server.URL+"/"), "\n")
	for _, want := range []string{
		"error: console.error", "error: exception", "request to elsewhere", "a script of somebody else", "light: contrast of text", "light: contrast of graphics",
		"phone: ", "pixels too wide", "0 landmarks banner", "link without a name", "a heading of level 3", "language", "no title", "nothing is said", "has the focus",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("%q is not among:\n%s", want, found)
		}
	}
}
