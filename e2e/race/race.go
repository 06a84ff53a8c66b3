// Package race tells tests whether the race detector watches them. It makes them several times slower and larger,
// and sees a race of two lines in few rounds as well as in many. Only tests use it.
package race

import (
	"runtime/debug"
	"slices"
	"testing"
)

// Rounds returns how many of so many rounds a test is to play: all, or a tenth with the race detector.
func Rounds(all int) int {
	if Enabled() {
		return max(1, all/10)
	}
	return all
}

// Long leaves a test that takes the race detector long to make race: with -short, as in the gate of a change, it is
// played without the detector alone. It is the first line of the test.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() && Enabled() {
		t.Skip("with the race detector it is a part of the full run")
	}
}

// Enabled reports whether this program was built with the race detector. A test that measures memory skips itself
// then.
func Enabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
