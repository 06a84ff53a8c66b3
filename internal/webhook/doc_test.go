package webhook

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// webhookDoc is what users read about webhooks.
func webhookDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheDocOfWebhooksHasTheFieldsAndPhasesThatThereAre(t *testing.T) {
	doc := webhookDoc(t)
	var want []string
	for i := reflect.TypeFor[Interruption](); len(want) < i.NumField()-1; { // all but pods
		want = append(want, i.Field(len(want)).Name)
	}
	want = append(want, "Pods")
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `\\.(\\w+)` \\|").FindAllStringSubmatch(doc, -1) {
		got = append(got, row[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-code +docs/webhooks.md):\n%s", diff)
	}
	for _, p := range Phases {
		if !strings.Contains(doc, "\n| `"+string(p)+"` |") {
			t.Errorf("docs/webhooks.md has no row for the phase %s", p)
		}
	}
}

func TestTheSlackExampleOfTheDocIsPostedAsTheDocShows(t *testing.T) {
	doc := webhookDoc(t)
	block := func(language string) string {
		_, rest, _ := strings.Cut(doc, "```"+language+"\n")
		text, _, ok := strings.Cut(rest, "\n```")
		if !ok {
			t.Fatalf("docs/webhooks.md has no block of %s", language)
		}
		return text
	}
	template := block("gotemplate")
	for _, i := range Samples() {
		body := render(t, template, i)
		if !json.Valid([]byte(body)) {
			t.Errorf("the message about %s is not JSON:\n%s", i.Phase, body)
		}
		if i.Phase != PhaseMissed {
			continue
		}
		if diff := cmp.Diff(block("json"), body); diff != "" {
			t.Errorf("message (-docs/webhooks.md +rendered):\n%s", diff)
		}
	}
}
