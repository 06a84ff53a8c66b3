package webhook

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/e2e/picture"
)

// Slack shows these for the names between colons.
var emoji = strings.NewReplacer(
	":hourglass:", "⌛", ":white_check_mark:", "✅", ":rotating_light:", "🚨", ":grey_question:", "❔", "*", "",
)

// The picture shows what the template of the doc renders for a drain that went well, and for
// one that did not.
func TestThePictureOfTheDocHasTheMessagesOfItsTemplate(t *testing.T) {
	doc := webhookDoc(t)
	_, rest, _ := strings.Cut(doc, "```gotemplate\n")
	template, _, ok := strings.Cut(rest, "\n```")
	if !ok {
		t.Fatal("docs/webhooks.md has no template")
	}
	const columns = 92
	p := picture.New(720)
	y := p.Text("strong", 20, 32, columns, "# node-drains")
	for _, i := range Samples() {
		if i.Phase != PhaseReceived && i.Phase != PhaseDrained && i.Phase != PhaseMissed {
			continue
		}
		var message struct {
			Blocks []struct {
				Text     struct{ Text string }
				Elements []struct{ Text string }
			}
		}
		if err := json.Unmarshal([]byte(render(t, template, i)), &message); err != nil {
			t.Fatal(err)
		}
		heading, text, _ := strings.Cut(message.Blocks[0].Text.Text, "\n")
		class := "strong"
		if i.Phase == PhaseMissed {
			class = "bad"
		}
		top := y
		y = p.Text(class, 36, y+14, columns, emoji.Replace(heading))
		y = p.Text("text", 36, y, columns, text)
		y = p.Text("faint", 36, y, columns, message.Blocks[1].Elements[0].Text)
		p.Box("edge", 20, top, 4, y-top-12)
		y += 10
	}
	golden.Compare(t, "../../docs/slack.svg", p.SVG("Messages in a Slack channel",
		"The messages that the template of this page renders when a notice is received, when its node is drained, and when pods missed the deadline."))
}
