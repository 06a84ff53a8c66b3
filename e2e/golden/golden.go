// Package golden compares what code generates with the files that hold it. Only tests use it:
// go test -update writes the files anew.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is set by the flag -update of the test program.
var Update = flag.Bool("update", false, "write the files that the tests compare with")

// Compare fails the test if the file at path does not hold got. With [Update] it writes the
// file instead.
func Compare(t *testing.T, path, got string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is stale, make generate writes it anew (-file +code):\n%s", path, diff)
	}
}

// ComparePage fails the test if the page at path does not hold the sections, by their names. A section is
// between the lines <!-- name --> and <!-- /name -->. With [Update] it writes the sections into the page
// instead, and leaves the rest of it alone.
func ComparePage(t *testing.T, path string, sections map[string]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for name, section := range sections {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		head, rest, ok := strings.Cut(page, begin)
		_, tail, also := strings.Cut(rest, end)
		if !ok || !also {
			t.Fatalf("%s has no place for the section %q", path, name)
		}
		page = head + begin + "\n" + section + "\n" + end + tail
	}
	Compare(t, path, page)
}
