package options

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

func TestArgumentsAreRewrittenForPflag(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		normal []string
		wrong  []string // as name: words
	}{
		{name: "nothing"},
		{name: "one dash", args: []string{"-dry-run", "-workers", "5", "-managed-tag=a/b"}, normal: []string{"--dry-run", "--workers=5", "--managed-tag=a/b"}},
		{name: "two dashes", args: []string{"--dry-run", "--workers", "5"}, normal: []string{"--dry-run", "--workers=5"}},
		{name: "a boolean off", args: []string{"-dry-run=false"}, normal: []string{"--dry-run=false"}},
		{name: "a value with a dash", args: []string{"-heartbeat-interval", "-1", "-dry-run"}, normal: []string{"--heartbeat-interval=-1", "--dry-run"}},
		{name: "a value that is empty", args: []string{"-managed-tag", "", "-workers="}, normal: []string{"--managed-tag=", "--workers="}},
		{name: "a value with an equals sign", args: []string{"-kubernetes-events-extra-annotations=a=b,c=d"}, normal: []string{"--kubernetes-events-extra-annotations=a=b,c=d"}},
		{name: "an older name", args: []string{"-grace-period", "30"}, normal: []string{"--grace-period=30"}},
		{name: "a command", args: []string{"version"}, normal: []string{"version"}},
		{name: "help", args: []string{"-h"}, normal: []string{"-h"}},
		{name: "the end of the options", args: []string{"-dry-run", "--", "-workers"}, normal: []string{"--dry-run", "--", "-workers"}},
		{
			name: "short names", args: []string{"-w", "-o", "json", "-ojson", "-o=json", "-w=false"},
			normal: []string{"--watch", "--output=json", "--output=json", "--output=json", "--watch=false"},
		},
		{
			name: "short names that there are not", args: []string{"-x=1", "-wo", "json"},
			wrong: []string{"--x: there is no such option", "--wo: there is no such option"},
		},
		{name: "a short name without its value", args: []string{"-o"}, wrong: []string{"output: --output is the last word and has no value"}},
		{
			name: "a boolean in two words", args: []string{"--dry-run", "false", "--workers=5"}, normal: []string{"--workers=5"},
			wrong: []string{"dry-run: --dry-run false is two words: write --dry-run=false"},
		},
		{
			name: "a value that is missing", args: []string{"--workers"},
			wrong: []string{"workers: --workers is the last word and has no value"},
		},
		{
			name: "unknown options with and without their values", args: []string{"--wokers", "5", "--dryrun", "--taint-node", "--QUEUE_URL=x", "--colour=red"}, normal: []string{"--taint-node"},
			wrong: []string{
				"--wokers: there is no such option; did you mean --workers?",
				"--dryrun: there is no such option; did you mean --dry-run?",
				"--QUEUE_URL: there is no such option; did you mean --queue-url?",
				"--colour: there is no such option",
			},
		},
		{name: "dashes alone", args: []string{"-", "---", "-="}, normal: []string{"-"}, wrong: []string{"---: there is no such option", "--: there is no such option"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			Register(flags)
			flags.StringP("output", "o", "", "")
			flags.BoolP("watch", "w", false, "")
			normal, wrong := NormaliseArgs(flags, tt.args)
			var words []string
			for _, m := range wrong {
				words = append(words, m.Error())
			}
			if diff := cmp.Diff(tt.normal, normal, cmpopts.EquateEmpty()); diff != "" || normal == nil {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wrong, words); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyWhatIsLikeTheGivenNameIsSuggested(t *testing.T) {
	words := []string{"workers", "webhook-url", "webhook-proxy"}
	for given, want := range map[string]string{
		"wrokers":                 "; did you mean --workers?",
		"webhook":                 "; did you mean --webhook-url or --webhook-proxy?",
		"w":                       "",
		"colour":                  "",
		"":                        "",
		strings.Repeat("w", 1000): "",
	} {
		if got := DidYouMean("--", given, words); got != want {
			t.Errorf("DidYouMean(%q) = %q, want %q", given, got, want)
		}
	}
}
