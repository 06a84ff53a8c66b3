package lookup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
)

func TestLookUpsThatFailAreToldOf(t *testing.T) {
	for name, test := range map[string]struct {
		needed bool
		err    error
		told   bool
	}{
		"no answer":                         {false, errors.New("no answer"), true},
		"a permission that is needed":       {true, instance.ErrDenied, true},
		"a permission that nobody needs":    {false, instance.ErrDenied, false},
		"they succeed":                      {true, nil, false},
		"no answer, and the tag check asks": {true, errors.New("no answer"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Lookup{Instances: NoEC2{}, Needed: test.needed}
				if text := l.Unseen(); text != "" {
					t.Errorf("at first: %s", text)
				}
				began := time.Now().UTC().Format(time.TimeOnly)
				for range 10 {
					_ = l.Permitted(t.Context(), func() error { return test.err })
					time.Sleep(30 * time.Second)
				}
				if text := l.Unseen(); test.told != (text != "") || test.told && (!strings.Contains(text, began) || !strings.HasSuffix(text, test.err.Error())) {
					t.Errorf("unseen: %q, since %s", text, began)
				}
				time.Sleep(time.Minute)
				if text := l.Unseen(); text != "" {
					t.Errorf("a minute later: %s", text)
				}
			})
		})
	}
}

func TestALookUpThatSucceedsEndsWhatIsTold(t *testing.T) {
	l := &Lookup{Instances: NoEC2{}}
	ctx, stop := context.WithCancel(t.Context())
	ask := func(err error) string {
		_ = l.Permitted(ctx, func() error { return err })
		return l.Unseen()
	}
	if text := ask(errors.New("no answer")); text == "" {
		t.Error("a failure is not told")
	}
	if text := ask(nil); text != "" {
		t.Errorf("after a success: %s", text)
	}
	stop()
	if text := ask(context.Canceled); text != "" {
		t.Errorf("after one that nobody waited for: %s", text)
	}
}
