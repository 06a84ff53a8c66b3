package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestEveryKindThatIsSimulatedIsFoundAndTheOthersAreTold(t *testing.T) {
	for name, want := range map[string]notice.Kind{"spot": notice.SpotInterruption, "ScheduledChange": notice.ScheduledChange, "ASG_LIFECYCLE": notice.ASGTerminate} {
		if got, wrong := parseKind([]string{name}); got != want || len(wrong) > 0 {
			t.Errorf("%s is %s, %v", name, got, wrong)
		}
	}
	for name, near := range map[string]string{"spott": "did you mean spot?", "asg-terminat": "did you mean asg-terminate?", "ASGLaunch": "is not a kind of notice", "storm": "one of spot-interruption (spot)"} {
		_, wrong := parseKind([]string{name})
		if err := wrong.Err(); err == nil || !strings.Contains(err.Error(), near) {
			t.Errorf("%s: %v, want %q", name, err, near)
		}
	}
	if _, wrong := parseKind([]string{"storm"}); strings.Contains(errors.Join(wrong.Err()).Error(), "did you mean") {
		t.Errorf("nothing is like storm: %v", wrong)
	}
}

func TestAShellCompletesCommandsOptionsAndKinds(t *testing.T) {
	for line, want := range map[string]string{
		"doc":                             "doctor\t",
		"--max-unready":                   "--max-unready-nodes\t",
		"what-if --no":                    "--node\t",
		"simulate spot":                   "spot-interruption\n",
		"simulate --node a spot-interrup": "spot-interruption\n",
		"what-if --all --output ":         "json\n",
		"simulate --output ":              "json\n",
		"doctor -o ":                      "json\n",
		"explain -o ":                     "json\n",
		"policy test -o ":                 "json\n",
		"report -o ":                      "json\n",
		"simulate -o ":                    "json\n",
		"what-if -o ":                     "json\n",
		"status -o ":                      "wide\n",
	} {
		var out, errOut bytes.Buffer
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		if status := run(t.Context(), args, nil, &out, &errOut); status != exitDone || !strings.Contains(out.String(), want) {
			t.Errorf("%s: status %d, %s%s", line, status, &out, &errOut)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), []string{"completion", shell}, nil, &out, &errOut); status != exitDone || out.Len() == 0 {
			t.Errorf("%s: status %d, %s", shell, status, &errOut)
		}
	}
}

func TestACommandThatIsMisspelledIsSuggested(t *testing.T) {
	var out, errOut bytes.Buffer
	status := run(t.Context(), []string{"doctr"}, nil, &out, &errOut)
	if want := `"doctr": is not a command; did you mean doctor?`; status != exitMistaken || !strings.Contains(errOut.String(), want) {
		t.Errorf("status %d, %s", status, &errOut)
	}
}

func TestWhatHasNoEffectIsRefusedAndWhatWasMeantIsNamed(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"explain spot --node a --code X", "code: has no effect on spot-interruption: it is of a scheduled change"},
		{"explain spot --node a --start 1h", "start: has no effect on spot-interruption: it is of a scheduled change"},
		{"explain scheduled-change --node a --start -5h", "start: must not be negative"},
		{"report node-a", `"node-a": is not an option; did you mean --node node-a?`},
		{"policy check a.yaml", `"check": is not a command of policy: schema, test`},
	} {
		var out, errOut strings.Builder
		status := runAs(t.Context(), append([]string{"node-termination-handler"}, strings.Fields(tt.line)...), nil, &out, &errOut)
		if status != exitMistaken || !strings.Contains(errOut.String(), tt.want) {
			t.Errorf("%s: status %d, want %q in\n%s", tt.line, status, tt.want, &errOut)
		}
	}
}
