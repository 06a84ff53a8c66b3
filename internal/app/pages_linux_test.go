package app

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A part of what Linux 6.12 says of a position-independent binary: the loader has written to the
// second of its read-only mappings.
const smaps = `00400000-03946000 r-xp 00000000 00:1f 1234                               /node-termination-handler
Size:              54552 kB
Rss:               33000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
03946000-03a00000 r--p 03546000 00:1f 1234                               /node-termination-handler
Anonymous:           744 kB
03a00000-03b00000 rw-p 03600000 00:1f 1234                               /node-termination-handler
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 00:1f 99                         /lib/node-termination-handler
Anonymous:             0 kB
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`

func TestOnlyMappingsThatHoldNothingButTheBinaryAreUnmapped(t *testing.T) {
	got, err := cleanMappings(strings.NewReader(smaps), "/node-termination-handler")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]mapping{{0x400000, 0x3946000}}, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheBinaryTakesLessMemoryAfterItsPagesAreGivenBack(t *testing.T) {
	before := residentFile(t)
	if err := unmapBinary(); err != nil {
		t.Fatal(err)
	}
	after := residentFile(t)
	t.Logf("%d kB of files are resident before, %d kB after", before, after)
	if after > before/2 {
		t.Errorf("%d kB of %d kB stay", after, before)
	}
}

// residentFile is how much memory the pages of files take, in kB.
func residentFile(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "RssFile: %d kB", &kB); err == nil {
			return kB
		}
	}
	t.Fatal("the status names no resident file pages")
	return 0
}
