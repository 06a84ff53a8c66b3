package suite

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
	want := Result{Passed: 1, Skipped: 1, Failed: []string{"TestAll", "TestBad", "broken"}, Broken: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("broken.go:1: no\nbad words\nworse words\nFAIL x/e2e 1s\n", out.String()); diff != "" {
		t.Errorf("what is said (-want +got):\n%s", diff)
	}
}

func TestWhatIsNoFailureOfATestIsToldApart(t *testing.T) {
	const failed = `{"Action":"fail","Package":"x/e2e","Test":"TestBad"}` + "\n"
	says := func(test, line string) string {
		return fmt.Sprintf(`{"Action":"output","Package":"x/e2e","Test":%q,"Output":%q}`+"\n", test, line+"\n") + failed
	}
	for events, broken := range map[string]bool{
		failed:                                                  false,
		says("TestBad", "    a.go:1: panic: no"):                false,
		says("TestBad", "panic: no"):                            true,
		says("", "panic: no"):                                   true,
		says("TestBad", "WARNING: DATA RACE"):                   true,
		says("", Outside+"refused"):                             true,
		failed + `{"Action":"fail","Package":"x/e2e"}` + "\n":   false,
		failed + `{"Action":"fail","Package":"x/other"}` + "\n": true,
	} {
		got, err := read(strings.NewReader(events), io.Discard)
		if err != nil || got.Broken != broken {
			t.Errorf("after %s, broken is %t, want %t: %v", events, got.Broken, broken, err)
		}
	}
}
