// Package tier divides the end-to-end tests between two runs. With -short, as in
// the gate of a change, go test plays what each promise of docs/reliability.md
// needs at least. Without it, as in make test-all, go test plays everything.
package tier

import "testing"

// Full leaves a test to the full run. why says what the gate has in its place, or what the test takes. It is the
// first line of the test: what is left out starts nothing.
func Full(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("a part of the full run: " + why)
	}
}
