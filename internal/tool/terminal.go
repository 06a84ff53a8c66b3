package tool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// A Terminal is where questions are asked and answers are written.
type Terminal struct {
	In          *bufio.Reader
	Out, ErrOut io.Writer
}

// ask asks a question and reports whether the answer is yes. It does not wait for the answer
// longer than ctx.
func (t Terminal) ask(ctx context.Context, question string) (bool, error) {
	if _, err := fmt.Fprintf(t.Out, "%s [y/N] ", question); err != nil {
		return false, err
	}
	answers := make(chan string, 1)
	go func() { // a read cannot be cancelled: this goroutine may outlive the call
		line, err := t.In.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) { // what cannot be read is no yes
			line = ""
		}
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(t.Out)
		return false, context.Cause(ctx)
	case answer := <-answers:
		return answer == "y" || answer == "yes", nil
	}
}

// screenOf returns how large the terminal is that out writes to; zero: it is none, or does not say.
func screenOf(out io.Writer) (columns, lines int) {
	if f, ok := out.(*os.File); ok {
		columns, lines, _ = term.GetSize(int(f.Fd())) // zero with an error
	}
	return columns, lines
}

// IsTerminal reports whether out is a terminal.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
