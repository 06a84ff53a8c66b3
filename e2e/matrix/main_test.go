package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

var some = []sandbox.Version{
	{Minor: "1.34", Release: "v1.34.4", Etcd: "v3.6.4"},
	{Minor: "1.35", Release: "v1.35.4", Etcd: "v3.6.5"},
	{Minor: "1.36", Release: "v1.36.3", Etcd: "v3.6.8", Default: true},
}

// Who changes hack/controlplane runs make matrix.
func TestTheTableHasTheVersionsThatAreBuiltAndAllPassed(t *testing.T) {
	versions, err := sandbox.Versions()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	_, got, _, err := split(text)
	if err != nil {
		t.Fatal(err)
	}
	passed := map[string]suite.Result{}
	for _, v := range versions {
		passed[v.Minor] = suite.Result{}
	}
	if diff := cmp.Diff(string(table(versions, passed, nil)), string(got)); diff != "" {
		t.Errorf("run make matrix: the table of %s (-want +got):\n%s", page, diff)
	}
}

func TestOnlyTheRowsOfWhatWasPlayedChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	const start = "before\n" + begin + `
| Kubernetes | release | etcd | scenarios |
|---|---|---|---|
| 1.36 | 1.36.3 | 3.6.8 | all pass |
| 1.35 | 1.35.2 | 3.6.5 | all pass |
| 1.33 | 1.33.1 | 3.5.1 | all pass |

` + end + "after\n"
	if err := os.WriteFile(file, []byte(start), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(file, some, map[string]suite.Result{"1.34": {Failed: []string{"TestA", "TestB"}}}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = "before\n" + begin + `
| Kubernetes | release | etcd | scenarios |
|---|---|---|---|
| 1.36 | 1.36.3 | 3.6.8 | all pass |
| 1.35 | 1.35.4 | 3.6.5 | not played |
| 1.34 | 1.34.4 | 3.6.4 | fail: TestA, TestB |

` + end + "after\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("the page (-want +got):\n%s", diff)
	}
}

func TestAPageWithoutATableIsLeftAsItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	for _, text := range []string{"nothing\n", begin, end} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := rewrite(file, some, nil); err == nil {
			t.Errorf("%q is no error", text)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
}
