// Package apart keeps the stacks of goroutines small that wait for long.
package apart

import (
	"fmt"
	"runtime/debug"
)

// Do calls do on a goroutine of its own, and returns when it has returned. A panic of do is the caller's.
//
// What decodes or encodes an object needs up to 32 KB of stack. Go frees the stack of a goroutine at its end, but that
// of one that waits only in steps, at garbage collections. Where thousands of goroutines do such a thing and then wait,
// for their turn or for hours, it is done apart.
func Do(do func()) {
	done := make(chan any)
	go func() {
		ended := false
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Sprintf("%v\n%s", p, debug.Stack())
			} else if !ended {
				done <- "the goroutine has ended itself"
			}
		}()
		do()
		ended = true
		close(done)
	}()
	if p, panicked := <-done; panicked {
		panic(p) //nolint:forbidigo // who calls Do recovers from it, as if it had called do
	}
}
