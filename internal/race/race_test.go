package race_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	list = regexp.MustCompile(`(?m)^FULL\s*:= (.*)$`)
	test = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

func TestWhatTheDetectorCutsShortIsPlayedInFullWithoutIt(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	full := list.FindSubmatch(makefile)
	if full == nil {
		t.Fatal("the Makefile has no list FULL")
	}
	listed := map[string]bool{}
	for name := range strings.SplitSeq(string(full[1]), "|") {
		listed[name] = true
	}
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	found := 0
	for _, file := range files {
		if strings.HasPrefix(file, "../race/") {
			continue // it only names what it looks for
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		starts := test.FindAllStringSubmatchIndex(string(text), -1)
		for k, at := range starts {
			body := string(text[at[0]:])
			if k+1 < len(starts) {
				body = string(text[at[0]:starts[k+1][0]])
			}
			if name := string(text[at[2]:at[3]]); strings.Contains(body, "race.Enabled()") || strings.Contains(body, "race.Rounds(") {
				found++
				if !listed[name] {
					t.Errorf("%s: %s is not in the list FULL of the Makefile", file, name)
				}
			}
		}
	}
	if found != len(listed) {
		t.Errorf("%d tests ask for the detector, and FULL has %d names", found, len(listed))
	}
}
