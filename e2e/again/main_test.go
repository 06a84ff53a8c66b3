package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

func TestOnlyATestThatPassesAloneIsForgiven(t *testing.T) {
	passes := suite.Result{Passed: 3}
	failed := func(tests ...string) suite.Result { return suite.Result{Passed: 50, Failed: tests} }
	for name, tt := range map[string]struct {
		results []suite.Result // of one play after the other
		err     error          // of the last
		ok      bool
	}{
		"all pass":                          {results: []suite.Result{{Passed: 50}}, ok: true},
		"one passes alone":                  {results: []suite.Result{failed("TestA"), passes}, ok: true},
		"three pass alone":                  {results: []suite.Result{failed("TestA", "TestB", "TestC"), passes, passes, passes}, ok: true},
		"four fail":                         {results: []suite.Result{failed("TestA", "TestB", "TestC", "TestD")}},
		"something else fails too":          {results: []suite.Result{{Failed: []string{"TestA"}, Broken: true}}},
		"it fails alone":                    {results: []suite.Result{failed("TestA"), {Passed: 2, Failed: []string{"TestA"}}}},
		"alone, something else fails":       {results: []suite.Result{failed("TestA"), {Passed: 3, Broken: true}}},
		"alone, it is not played":           {results: []suite.Result{failed("TestA"), {}}},
		"the second of two fails again":     {results: []suite.Result{failed("TestA", "TestB"), passes, failed("TestB")}},
		"nothing can be played":             {results: []suite.Result{{}}, err: errors.New("no go")},
		"it cannot be played a second time": {results: []suite.Result{failed("TestA"), {}}, err: errors.New("no go")},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			played := 0
			err := run(t.Context(), []string{"-short", "./e2e"}, &out, func(_ context.Context, _ io.Writer, _ []string, args ...string) (suite.Result, error) {
				played++
				if alone := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-run=^Test") }); alone != (played > 1) || !slices.Contains(args, "-short") {
					t.Errorf("play %d has the arguments %q", played, args)
				}
				if played == len(tt.results) {
					return tt.results[played-1], tt.err
				}
				return tt.results[played-1], nil
			})
			if (err == nil) != tt.ok || played != len(tt.results) {
				t.Errorf("%d plays, %v", played, err)
			}
			if flaky := strings.Count(out.String(), "FLAKY: "); tt.ok && flaky != len(tt.results)-1 || !tt.ok && flaky > 0 {
				t.Errorf("it says:\n%s", out.String())
			}
		})
	}
}
