package logging

import (
	"fmt"
	"runtime/debug"

	"github.com/go-logr/logr"
)

// Recover turns a panic of do into an error, and logs it with its stack. Otherwise what somebody else has written
// could end the process again and again.
func Recover(log logr.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			log.Error(err, "recovered", "stack", string(debug.Stack()))
		}
	}()
	return do()
}
