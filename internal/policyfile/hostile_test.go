package policyfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// The comparison of all rules with all others would take a minute for these files.
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

func TestTheComparisonOfRulesIsBounded(t *testing.T) {
	wide := decision.NodeRule{Codes: []string{"X", "Y", "*"}}
	narrow := decision.NodeRule{Codes: []string{"A", "B"}}
	if s := (&shadows{left: 6}); !s.hides(&wide, &narrow) {
		t.Errorf("six comparisons are enough, %d are left", s.left)
	}
	if s := (&shadows{left: 5}); s.hides(&wide, &narrow) {
		t.Error("five comparisons are not enough")
	}
	values := make([]string, 1000)
	large := decision.NodeRule{Nodes: []decision.Selector{{{Key: "a", Values: values}}}}
	if s := (&shadows{left: 1000}); s.hides(&large, &large) || s.left >= 0 {
		t.Error("a million values were compared")
	}
}
