package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
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
	passed := map[string]result{}
	for _, v := range versions {
		passed[v.Minor] = result{}
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
	if err := rewrite(file, some, map[string]result{"1.34": {failed: []string{"TestA", "TestB"}}}); err != nil {
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

// What go test -json says, in short.
func TestATestCountsOnceAndTellsWhyItFailed(t *testing.T) {
	const events = `
{"Action":"build-output","ImportPath":"x/broken","Output":"broken.go:1: no\n"}
{"Action":"output","Package":"x/e2e","Test":"TestGood","Output":"good words\n"}
{"Action":"pass","Package":"x/e2e","Test":"TestGood/sub"}
{"Action":"pass","Package":"x/e2e","Test":"TestGood"}
{"Action":"skip","Package":"x/e2e","Test":"TestOdd"}
{"Action":"output","Package":"x/e2e","Test":"TestBad","Output":"bad words\n"}
{"Action":"output","Package":"x/e2e","Test":"TestBad/sub","Output":"worse words\n"}
{"Action":"fail","Package":"x/e2e","Test":"TestBad/sub"}
{"Action":"fail","Package":"x/e2e","Test":"TestBad"}
{"Action":"fail","Package":"x/e2e","Test":"TestAll"}
{"Action":"output","Package":"x/e2e","Output":"FAIL x/e2e 1s\n"}
{"Action":"fail","Package":"x/e2e"}
{"Action":"fail","Package":"x/broken"}
{"Action":"pass","Package":"x/helm"}
`
	var out bytes.Buffer
	got, err := read(strings.NewReader(events), &out)
	if err != nil {
		t.Fatal(err)
	}
	want := result{passed: 1, skipped: 1, failed: []string{"TestAll", "TestBad", "broken"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("the result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("broken.go:1: no\nbad words\nworse words\nFAIL x/e2e 1s\n", out.String()); diff != "" {
		t.Errorf("what is said (-want +got):\n%s", diff)
	}
}
