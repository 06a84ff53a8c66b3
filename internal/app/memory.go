package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// memoryShare is how much of the container's memory Go may use. The rest is for what counts
// for the container but not for Go: the pages of the binary, up to 39 MiB, and what waits in
// sockets.
const memoryShare = 0.8

// TuneMemory sets Go's garbage collector for a small process in a container, and returns the
// memory limit that it goes by, for people. GOGC and GOMEMLIMIT in the environment win.
func TuneMemory() (limit string) {
	// The heap is small: a few MB at rest, tens of MB in a storm. Collecting at GOGC=50 costs
	// little CPU and saves a third of the idle memory.
	if before := debug.SetGCPercent(50); before != 100 { // GOGC says otherwise
		debug.SetGCPercent(before)
	}
	return limitMemory(memlimit.FromCgroup)
}

// limitMemory makes Go collect its garbage sooner when it comes near to the container's
// limit, instead of being killed by the kernel, and returns the limit that it goes by.
func limitMemory(container memlimit.Provider) string {
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare), memlimit.WithProvider(container))
	switch {
	case err != nil:
		return "not known: " + err.Error()
	case limit == math.MaxInt64:
		return "none"
	}
	return fmt.Sprintf("%d MiB", limit>>20)
}

const (
	// startTime is how long the start takes, about: after it most of what is in memory is not needed any more.
	startTime = 10 * time.Second
	// giveBackAgain is when what was needed meanwhile is given back.
	giveBackAgain = 15 * time.Second
)

// giveIdleMemoryBack gives memory back to the kernel that only the start needs, or a drain: the free part of the heap,
// and pages of the binary, 30 of the 40 MiB that they take. The next access to a page maps it again, from the page
// cache, within microseconds. It returns when ctx ends.
func giveIdleMemoryBack(ctx context.Context, log logr.Logger) {
	for pause := startTime; retry.Sleep(ctx, pause) == nil; pause = giveBackAgain {
		debug.FreeOSMemory()
		if err := unmapBinary(); err != nil {
			log.V(1).Info("the pages of the binary stay in memory", "error", err)
			return
		}
	}
}

// A mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// cleanMappings are the mappings of a file that hold nothing but the file, as smaps, the text of
// /proc/self/smaps, says: what is unmapped of them can be read from the file again.
// https://docs.kernel.org/filesystems/proc.html
func cleanMappings(smaps io.Reader, file string) (clean []mapping, err error) {
	var m mapping
	isFile := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		var from, to uintptr
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s ", &from, &to, &mode); err == nil {
			m = mapping{from, to}
			isFile = !strings.Contains(mode, "w") && strings.HasSuffix(line, " "+file)
			continue
		}
		// A loader may have written to pages that are read-only by now.
		if rest, ok := strings.CutPrefix(line, "Anonymous:"); ok && isFile && strings.TrimSpace(rest) == "0 kB" {
			clean = append(clean, m)
		}
	}
	return clean, lines.Err()
}
