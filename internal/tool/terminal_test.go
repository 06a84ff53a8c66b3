package tool

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAQuestionEndsWithCtrlCThoughStdinStaysOpen(t *testing.T) {
	in, typed := io.Pipe()
	defer typed.Close()
	ctx, interrupt := context.WithCancelCause(t.Context())
	asked := make(chan struct{})
	var out strings.Builder
	go func() {
		<-asked
		interrupt(errors.New("interrupted"))
	}()
	yes, err := Terminal{In: bufio.NewReader(in), Out: writer(func(text []byte) (int, error) {
		if out.Len() == 0 {
			close(asked)
		}
		return out.Write(text)
	})}.ask(ctx, "go on?")
	if yes || err == nil || err.Error() != "interrupted" {
		t.Errorf("answer %t, error %v", yes, err)
	}
	if want := "go on? [y/N] \n"; out.String() != want {
		t.Errorf("it wrote %q, want %q", &out, want)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

func TestAQuestionTakesYesAndNothingElseForYes(t *testing.T) {
	for text, want := range map[string]bool{"y\n": true, "YES\n": true, " y": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		yes, err := Terminal{In: bufio.NewReader(strings.NewReader(text)), Out: io.Discard}.ask(t.Context(), "go on?")
		if err != nil || yes != want {
			t.Errorf("%q: %t, error %v", text, yes, err)
		}
	}
}
