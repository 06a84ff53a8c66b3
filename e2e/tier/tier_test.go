package tier

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the gate leaves out is played by the full run alone: without a step there it would be played by nobody.
func TestTheFullRunHasWhatTheGateLeavesOut(t *testing.T) {
	for file, steps := range map[string][]string{
		"../../hack/test-all": {
			`play tools tools`, `aside chaos make chaos`, `play gate \.ci/run`, `play scenarios make e2e-all`, `play faults make faults`,
			`play versions other_versions`, `play figures make figures`,
			`unhurried`, `aside lint make lint-windows lint-hack`, `aside race make race`, `aside release go -C hack/release test .*\./\.\.\.`,
			`aside image image`, `aside faults-virtual make faults-virtual`, `aside soak make soak`, `aside lives make lives`,
			`aside mutants hack/lives-mutants`, `aside mutants-gate hack/lives-mutants gate`, `aside fuzz make fuzz.*`,
		},
		"../../.ci/run": {`step 'lint' make lint`, `step 'tests' make -k test`, `step 'demo' make demo`},
	} {
		for _, step := range steps {
			if n := len(regexp.MustCompile(`(?m)^\t?`+step+`( &.*)?$`).FindAllString(read(t, file), -1)); n != 1 {
				t.Errorf("%s has the step %q %d times, want it once", file, step, n)
			}
		}
	}
}

func TestEachPromiseHasAScenarioInTheGate(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var scenarios strings.Builder
	for _, file := range files {
		scenarios.WriteString(read(t, file))
	}
	played := []string{ // by the number of the promise in docs/reliability.md, from 1 on
		"TestTheLeaderMayBeKilledAtAnyOfItsCalls",
		"TestTheLeaderMayBeKilledAtAnyOfItsCalls",
		"TestAMachineThatComesBackTakesPodsAgain",
		"TestTheOtherReplicaFinishesWhatAKilledLeaderBegan",
		"TestTheLeaderMayBeKilledAtAnyOfItsCalls",
		"TestALeaderThatIsCutOffFromTheAPIServerStopsBeforeItsLeaseCanBeTaken",
		"TestAPermissionThatIsTakenAwayAndGivenBackCostsNothing",
		"TestHostileBodiesNeitherStopTheHandlerNorSteerWhatReadsItsLog",
		"TestADrainThatCanWaitIsHeldBackWhileANodeIsOutOfUseAndASpotInterruptionIsNot",
		"checkPrivileges", // after all scenarios
		"TestAMachineThatComesBackTakesPodsAgain",
	}
	for k, name := range played {
		body := regexp.MustCompile(`(?ms)^func ` + name + `\(.*?^}`).FindString(scenarios.String())
		if body == "" || strings.Contains(body, "\n\ttier.Full(") { // a row of it may be left out
			t.Errorf("promise %d: %s is not there, or not a part of the gate", k+1, name)
		}
	}
	promises := regexp.MustCompile(`(?m)^\d+\. \*\*`).FindAllString(read(t, "../../docs/reliability.md"), -1)
	if len(promises) != len(played) {
		t.Errorf("%d promises, and scenarios for %d", len(promises), len(played))
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
