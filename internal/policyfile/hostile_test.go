package policyfile

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Nothing compares all rules with all others: four times as many take some four times as long, and not sixteen times.
func TestAFileOfManyRulesIsReadSoon(t *testing.T) {
	rules := func(most int, key, text, last string) string {
		const each = 95
		var b strings.Builder
		b.WriteString("version: 1\nnodes:\n")
		for k := range most {
			fmt.Fprintf(&b, "- {name: r%d, kinds: [scheduled-change], do: drain, %s: [%s%s%d]}\n", k, key, strings.Repeat(text+",", each-1), last, k)
		}
		return b.String()
	}
	const few, many, most = 120, 480, 10
	for name, file := range map[string]func(int) string{
		"codes":     func(n int) string { return rules(n, "codes", `"*a*a*a*a*b"`, "X") },
		"selectors": func(n int) string { return rules(n, "nodes", `"a in (a)"`, "b") },
	} {
		read := func(n int) time.Duration {
			text := []byte(file(n))
			start := time.Now()
			if f, err := Parse(text); err != nil || len(f.Rules.Nodes) != n {
				t.Errorf("%s: %d rules, %v", name, len(f.Rules.Nodes), err)
			}
			return time.Since(start)
		}
		short, long := read(few), read(many)
		for range 5 { // the machine was busy with something else
			if long <= most*short {
				break
			}
			short, long = min(short, read(few)), min(long, read(many))
		}
		if long > most*short {
			t.Errorf("%s: %d rules take %s, and %d take %s", name, few, short, many, long)
		}
	}
}
