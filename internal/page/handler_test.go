package page

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/browser/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A lookout is a source.
type lookout struct {
	err     error
	history error
}

func (l *lookout) Overview(ctx context.Context) (overview.Overview, error) {
	if err := ctx.Err(); err != nil {
		return overview.Overview{}, err
	}
	o, _ := sample.Storm(now, 3, 3)
	return o, l.err
}

func (l *lookout) History(context.Context) (overview.History, error) {
	_, h := sample.Storm(now, 3, 3)
	return h, l.history
}

func get(ctx context.Context, h http.Handler) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	return answer
}

func TestThePageLetsNothingBeLoaded(t *testing.T) {
	answer := get(t.Context(), Handler(&lookout{}, HandlerOptions{Version: "1.2.3"}))
	if answer.Code != http.StatusOK {
		t.Errorf("status %d", answer.Code)
	}
	want := "default-src 'none'; style-src '" + hash(style) + "'; script-src '" + hash(script) +
		"'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	for name, value := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": want,
		"Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
	} {
		if got := answer.Header().Get(name); got != value {
			t.Errorf("%s: %s", name, got)
		}
	}
	contains(t, answer.Body.String(), "3 drains in progress", "Version 1.2.3", `data-refresh="5"`)
}

func TestWhoHasNothingToShowSaysWhoHas(t *testing.T) {
	for name, test := range map[string]struct {
		source *lookout
		texts  []string
	}{
		"another leads":   {&lookout{err: Standby{Leader: "handler-1"}}, []string{"This replica stands by", "<bdi>handler-1</bdi>", "kubectl -n ns port-forward handler-1 9092"}},
		"a reporter":      {&lookout{err: Standby{Reports: true}}, []string{"This pod reports", "The leader has the page."}},
		"nobody leads":    {&lookout{err: Standby{}}, []string{"This replica stands by", "Nobody is known to lead."}},
		"it lost its way": {&lookout{err: errors.New("it has lost <its> way")}, []string{"The overview is not to be had", "it has lost &lt;its&gt; way"}},
		"in between":      {&lookout{history: Standby{Leader: "handler-1"}}, []string{"<bdi>handler-1</bdi>"}},
		"it is paused":    {&lookout{err: Paused{Why: "since <noon>"}}, []string{"The handler is paused", "(since &lt;noon&gt;)", "until kubectl nth resume"}},
		"a hostile name":  {&lookout{err: Standby{Leader: sample.Attacks[0]}}, []string{"&lt;script&gt;"}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := get(t.Context(), Handler(test.source, HandlerOptions{Namespace: "ns", Port: 9092}))
			if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Content-Security-Policy") != Policy {
				t.Errorf("status %d, policy %s", answer.Code, answer.Header().Get("Content-Security-Policy"))
			}
			contains(t, answer.Body.String(), append(test.texts, `data-refresh="5"`)...)
		})
	}
}
