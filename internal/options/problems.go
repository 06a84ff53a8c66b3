package options

import (
	"fmt"
	"strings"
)

// A Problem is one thing that is wrong with the command line or the environment. Its text
// says how to mend it.
type Problem struct {
	Name string // of the option, or what was given in its place
	Text string
}

func (p Problem) Error() string { return p.Name + ": " + p.Text }

// Problems are all that were found, so that nobody has to start the program five times to
// learn about five of them.
type Problems []Problem

func (ps Problems) Error() string {
	var b strings.Builder
	if len(ps) == 1 {
		b.WriteString("1 mistake in the options:")
	} else {
		fmt.Fprintf(&b, "%d mistakes in the options:", len(ps))
	}
	for _, p := range ps {
		b.WriteString("\n  " + p.Error())
	}
	return b.String()
}

// Err returns the problems as an error, nil if there are none.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}
