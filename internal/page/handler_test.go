package page

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page/sample"
)

// A lookout is a source that counts how often it is asked.
type lookout struct {
	asked   atomic.Int32
	err     error
	history error
}

func (l *lookout) Overview(ctx context.Context) (overview.Overview, error) {
	l.asked.Add(1)
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
		"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": want, "X-Content-Type-Options": "nosniff",
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
		"another leads":   {&lookout{err: Standby{Leader: "handler-1"}}, []string{"This replica stands by", "<bdi>handler-1</bdi>", "kubectl port-forward handler-1 9092"}},
		"nobody leads":    {&lookout{err: Standby{}}, []string{"This replica stands by", "Nobody is known to lead."}},
		"it lost its way": {&lookout{err: errors.New("it has lost <its> way")}, []string{"The overview is not to be had", "it has lost &lt;its&gt; way"}},
		"in between":      {&lookout{history: Standby{Leader: "handler-1"}}, []string{"<bdi>handler-1</bdi>"}},
		"a hostile name":  {&lookout{err: Standby{Leader: sample.Attacks[0]}}, []string{"&lt;script&gt;"}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := get(t.Context(), Handler(test.source, HandlerOptions{Port: 9092}))
			if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Content-Security-Policy") != Policy {
				t.Errorf("status %d, policy %s", answer.Code, answer.Header().Get("Content-Security-Policy"))
			}
			contains(t, answer.Body.String(), append(test.texts, `data-refresh="5"`)...)
		})
	}
}

// However many look at it, the drains are asked once a second; and one who leaves takes nothing from the others.
func TestManyReadersAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var source lookout
		h := Handler(&source, HandlerOptions{})
		gone, leave := context.WithCancel(t.Context())
		leave()
		if answer := get(gone, h); answer.Code != http.StatusOK {
			t.Errorf("the page of one who has left is %d", answer.Code)
		}
		var readers sync.WaitGroup
		for range 50 {
			readers.Go(func() {
				if answer := get(t.Context(), h); answer.Code != http.StatusOK || answer.Body.Len() < 1000 {
					t.Errorf("status %d, %d bytes", answer.Code, answer.Body.Len())
				}
			})
		}
		readers.Wait()
		if n := source.asked.Load(); n != 1 {
			t.Errorf("the source was asked %d times", n)
		}
		time.Sleep(fresh)
		get(t.Context(), h)
		if n := source.asked.Load(); n != 2 {
			t.Errorf("after a second the source was asked %d times", n)
		}
	})
}
