package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

func TestAStepThatFailsStopsNoOtherAndFailsTheRun(t *testing.T) {
	for name, tt := range map[string]struct {
		steps string
		ok    bool
		table string // of what is printed after the steps
	}{
		"all pass": {steps: `step one true; step two echo played`, ok: true, table: `^one +ok +\d+ s\ntwo +ok +\d+ s\n\d+ s in all$`},
		"one fails": {
			steps: `flaky() { echo "FLAKY: TestX"; echo "--- FAIL: TestY"; return 3; }; step one true; step two flaky; step three true`,
			table: `^one +ok +\d+ s\ntwo +FAILED +\d+ s\n    FLAKY: TestX\n    --- FAIL: TestY\nthree +ok +\d+ s\n\d+ s in all$`,
		},
		"a line of one fails": {
			steps: `built() { false || return; echo unreachable; }; step one built; step two true`,
			table: `^one +FAILED +\d+ s\ntwo +ok +\d+ s\n\d+ s in all$`,
		},
		"what feeds a pipe fails": {
			steps: `filtered() { false | cat; }; step one filtered; step two true`,
			table: `^one +FAILED +\d+ s\ntwo +ok +\d+ s\n\d+ s in all$`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bash := exec.CommandContext(t.Context(), "bash", "-c",
				"set -euo pipefail; source ../../hack/steps.sh; "+tt.steps+"; echo THE TABLE; summary")
			out, err := bash.CombinedOutput()
			_, table, _ := strings.Cut(string(out), "THE TABLE\n")
			if (err == nil) != tt.ok || !regexp.MustCompile(tt.table).MatchString(strings.TrimSpace(table)) {
				t.Errorf("it ends with %v, and prints:\n%s", err, out)
			}
		})
	}
}

func TestTheRaceDetectorWatchesWhatChangesOrSomethingWhereNobodyKnows(t *testing.T) {
	script := `set -euo pipefail; cd ../..; source <(sed -n '/^racy()/,/^}/p' .ci/run); packages=$(racy | tr '\n' ' '); echo "$packages"`
	for base, want := range map[string]string{
		"HEAD":        "\n",
		"no-such-ref": "./internal/lease ./internal/drain ./internal/queue ./internal/pace ./internal/asg \n",
	} {
		bash := exec.CommandContext(t.Context(), "bash", "-c", script)
		bash.Env = append(os.Environ(), "BASE="+base)
		if out, err := bash.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("since %s: %v, %q, want %q", base, err, out, want)
		}
	}
}
