package app

import (
	"errors"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestGoKeepsToTheMemoryOfItsContainer(t *testing.T) {
	const kept = 150 << 20
	failing := func() (uint64, error) { return 0, errors.New("no cgroup here") }
	unlimited := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	for name, tt := range map[string]struct {
		container memlimit.Provider
		environ   string
		want      string
		limit     int64
	}{
		"a limit":                   {memlimit.Limit(256 << 20), "", "204 MiB", 214748364},
		"no limit":                  {unlimited, "", "none", math.MaxInt64},
		"nobody can say":            {failing, "", "not known: ", kept},
		"the environment has a say": {memlimit.Limit(256 << 20), "150MiB", "150 MiB", kept},
	} {
		t.Run(name, func(t *testing.T) {
			was := debug.SetMemoryLimit(kept) // as Go does at its start by what the environment says
			t.Cleanup(func() { debug.SetMemoryLimit(was) })
			t.Setenv("GOMEMLIMIT", tt.environ)
			if tt.environ == "" {
				_ = os.Unsetenv("GOMEMLIMIT")
			}
			if got := limitMemory(tt.container); !strings.HasPrefix(got, tt.want) {
				t.Errorf("told %q, want %q", got, tt.want)
			}
			if got := debug.SetMemoryLimit(-1); got != tt.limit {
				t.Errorf("the limit is %d, want %d", got, tt.limit)
			}
		})
	}
}
