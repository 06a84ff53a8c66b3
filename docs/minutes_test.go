package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yuin/goldmark/ast"
)

// What a reader's time is counted by. Waiting for AWS or for a compiler is not his time.
const (
	aWord    = time.Minute / 200 // of prose, of a heading and of a command: who pastes it has read it
	aCommand = 12 * time.Second  // to copy it, to paste it, to see that it has worked
	aValue   = 6 * time.Second   // to find out and to write
)

// theWay are the sections that a reader goes through from nothing to a drained node, by their anchors.
// The title of a page has the anchor "". What else is on these pages is for those who still decide, or
// who need something else than the usual.
var theWay = []struct {
	page     string
	sections []string
}{
	{"README.md", []string{"", "use-it"}},
	{"docs/install.md", []string{
		"", "1-queue-rules-and-role", "2-image", "3-which-instances-are-yours", "4-handler", "5-check-it", "6-interrupt-an-instance",
	}},
}

// An effort is what a part of a page asks of its reader.
type effort struct {
	words, commands, values int
	typed                   []string // what prose wants to be typed
}

func (e effort) plus(other effort) effort {
	return effort{e.words + other.words, e.commands + other.commands, e.values + other.values, slices.Concat(e.typed, other.typed)}
}

func (e effort) takes() time.Duration {
	return time.Duration(e.words)*aWord + time.Duration(e.commands+len(e.typed))*aCommand + time.Duration(e.values)*aValue
}

// README and docs/install.md promise ten minutes.
func TestTheWayToADrainedNodeTakesTenMinutes(t *testing.T) {
	const most = 10 * time.Minute
	all := pages(t)
	var way effort
	for _, part := range theWay {
		at := slices.IndexFunc(all, func(p page) bool { return p.name == part.page })
		sections := all[at].sections()
		for _, anchor := range part.sections {
			e, there := sections[anchor]
			if !there {
				t.Errorf("%s has no section %q", part.page, anchor)
			}
			for _, typed := range e.typed {
				t.Errorf("%s#%s: %q is typed, so it belongs into a block", part.page, anchor, typed)
			}
			way = way.plus(e)
			t.Logf("%s#%s: %d words, %d commands, %d values: so far %s", part.page, anchor, e.words, e.commands, e.values, way.takes().Round(time.Second))
		}
		for anchor := range sections {
			if numbered.MatchString(anchor) && !slices.Contains(part.sections, anchor) {
				t.Errorf("%s#%s is a step that is not counted", part.page, anchor)
			}
		}
	}
	if took := way.takes(); took > most {
		t.Errorf("%d words, %d commands and %d values take %s, more than %s", way.words, way.commands, way.values, took.Round(time.Second), most)
	}
}

// The test above would be of no use if it overlooked what takes time.
func TestAnEffortIsCounted(t *testing.T) {
	source := []byte("# One two\n\nThree [four](five.md).\n\n- `six`\n\n## Seven\n\nRun `aws sqs list-queues` with `--eight` and `NINE=10`, not `make`.\n\n" +
		"```sh\nexport A=b C=$(cat) D=\"$A\" E=f\n# now\nrun NAME \\\n  --to=\"$C\"\nfor g in $A; do\n  ls $g\ndone\n```\n\n    make g\n")
	got := page{source: source, tree: parse(source)}.sections()
	for anchor, want := range map[string]effort{
		"":      {words: 5},
		"seven": {words: 28, commands: 4, values: 3, typed: []string{"aws sqs list-queues", "--eight", "NINE=10"}},
	} {
		e := got[anchor]
		if e.words != want.words || e.commands != want.commands || e.values != want.values || !slices.Equal(e.typed, want.typed) {
			t.Errorf("section %q: %+v, want %+v", anchor, e, want)
		}
	}
	if took := (effort{words: 200, commands: 1, values: 1, typed: []string{"ls"}}).takes(); took != 90*time.Second {
		t.Errorf("it takes %s", took)
	}
}

var (
	numbered = regexp.MustCompile(`^[0-9]`)
	// command finds code in prose that a reader would have to type: a command, an option or a setting.
	command = regexp.MustCompile(`^(?:(?:aws|crane|docker|eksctl|git|go|helm|kubectl|make|node-termination-handler|terraform)\s.*|--.*|.*\S=.*)$`)
	// literal finds the values that a line of exports gives to variables without computing them,
	// placeholder the other words to replace.
	exports     = regexp.MustCompile(`(?m)^export .*`)
	literal     = regexp.MustCompile(`\b[A-Z_]+=[^\s$"'(]+`)
	placeholder = regexp.MustCompile(`\bNAME\b`)
)

// sections are what the sections of a page ask of a reader, by their anchors.
func (p page) sections() map[string]effort {
	all := map[string]effort{}
	anchors := map[string]bool{}
	anchor := ""
	for n := p.tree.FirstChild(); n != nil; n = n.NextSibling() {
		if h, is := n.(*ast.Heading); is && h.Level > 1 {
			anchor = unused(anchors, slug(plain(p.text(h))))
			anchors[anchor] = true
		}
		all[anchor] = all[anchor].plus(p.effort(n))
	}
	return all
}

// effort is that of a part of a page.
func (p page) effort(part ast.Node) effort {
	var e effort
	each(part, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			text := string(n.Lines().Value(p.source))
			e.words += words(text)
			e.commands += commands(text)
			for _, line := range exports.FindAllString(text, -1) {
				e.values += len(literal.FindAllString(line, -1))
			}
			e.values += len(placeholder.FindAllString(literal.ReplaceAllString(text, ""), -1))
		case *ast.Paragraph, *ast.TextBlock, *ast.Heading:
			e.words += words(p.text(n))
		case *ast.CodeSpan:
			if text := strings.Join(strings.Fields(p.text(n)), " "); command.MatchString(text) {
				e.typed = append(e.typed, text)
			}
		}
	})
	return e
}

// commands counts those of a block. The other lines of a command are indented, or only end it.
func commands(block string) int {
	n := 0
	for line := range strings.Lines(block) {
		if begin := line[0]; !strings.ContainsRune(" \t\n#})", rune(begin)) && strings.TrimSpace(line) != "done" {
			n++
		}
	}
	return n
}
