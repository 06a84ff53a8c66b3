package policyfile

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Nothing compares all rules with all others, which would take a minute for these files.
func TestAFileOfManyRulesIsReadSoon(t *testing.T) {
	rules := func(key, text, last string) string {
		const most, each = 480, 95
		var b strings.Builder
		b.WriteString("version: 1\nnodes:\n")
		for k := range most {
			fmt.Fprintf(&b, "- {name: r%d, kinds: [scheduled-change], do: drain, %s: [%s%s%d]}\n", k, key, strings.Repeat(text+",", each-1), last, k)
		}
		return b.String()
	}
	for name, file := range map[string]string{
		"codes":     rules("codes", `"*a*a*a*a*b"`, "X"),
		"selectors": rules("nodes", `"a in (a)"`, "b"),
	} {
		start := time.Now()
		if f, err := Parse([]byte(file)); err != nil || len(f.Rules.Nodes) != 480 {
			t.Errorf("%s: %d rules, %v", name, len(f.Rules.Nodes), err)
		}
		if took := time.Since(start); took > 15*time.Second { // some tenths of a second, on two cores that others use too
			t.Errorf("%s: reading them took %s", name, took)
		}
	}
}
