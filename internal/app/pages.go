package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

const (
	// startTime is how long the start takes, about: after it most of the pages of the binary that
	// are in memory are not needed any more.
	startTime = 10 * time.Second
	// unmapAgain is when the pages that were needed meanwhile are given back.
	unmapAgain = 15 * time.Second
)

// unmapIdlePages gives the pages of the binary back to the kernel that only the start needs, or a
// drain: 30 of the 40 MiB that they take. The next access to a page maps it again, from the page
// cache, within microseconds. It returns when ctx ends.
func unmapIdlePages(ctx context.Context, log logr.Logger) {
	for pause := time.NewTimer(startTime); ; pause.Reset(unmapAgain) {
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
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
