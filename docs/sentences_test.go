package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	// medianWords is the most that half of the sentences of a page may have: then it is read once.
	medianWords = 18
	// mostWords is the most that any sentence may have. Who reaches the end of a longer one has to
	// start again.
	mostWords = 40
)

// stumbles are words that make a reader stop, each with what to write instead. They are regular
// expressions in lower case; code is not searched. A word is here only if it is wrong wherever it stands.
var stumbles = map[string]string{
	`do(es)? not do[.,:;]`:             "is not enough; does not work",
	`anew`:                             "again",
	`kin`:                              "the names of the others",
	`settl(e|es|ed|ing)`:               "delete; return to the queue; end",
	`without a word`:                   "silently",
	`(its|the) name's sake`:            "for compatibility",
	`come what may`:                    "in any case",
	`heard out`:                        "awaited",
	`is no (notice|option|command)`:    "is not a …",
	`(is|are) (un)?well`:               "is healthy; works",
	`ends? (the|a) start`:              "stops the process at start-up",
	`(whatever|whichever) (its|their)`: "of any",
	`of another day`:                   "one figure, measured last",
	`under way`:                        "in progress",
	`for ever`:                         "forever",
	`may not`:                          "must not; might not; lacks the permission to",
	`looked after`:                     "handled",
	`worked on`:                        "drained; processed",
	`the least that is`:                "the minimum",
	`tells its story`:                  "is processed",
	`a mistake of yours`:               "a mistake in your …",
	`all but one of a hundred`:         "p99",
	`(thereof|hereby|herein|whence)`:   "of it; in it; from where",
	`(so|as) it was bid`:               "as requested",
	`(in|with) regards? to`:            "about",
	`it should be noted`:               "nothing: say it",
	`due to the fact that`:             "because",
	`in order to`:                      "to",
	`utili[sz](e|es|ed|ing)`:           "use",
	`(simply|obviously)`:               "nothing: the reader judges",
	`at this point in time`:            "now",
	`prior to`:                         "before",
	`(a|the) majority of`:              "most",
	`(has|have) the ability to`:        "can",
	`functionality`:                    "what it does",
	`budgets? asked`:                   "PodDisruptionBudget respected",
}

var code = regexp.MustCompile("`[^`]*`")

func TestSentencesAreReadOnce(t *testing.T) {
	for _, p := range pages(t) {
		t.Run(p.name, func(t *testing.T) {
			var lengths []int
			for _, block := range p.blocks() {
				for _, s := range sentences(block) {
					for _, problem := range problems(s) {
						t.Errorf("%s: %s", problem, s)
					}
					// A cell of a table with a name or a number in it says nothing of how a page reads.
					if strings.ContainsAny(s[len(s)-1:], ".?!") {
						lengths = append(lengths, words(s))
					}
				}
			}
			if m := median(lengths); m > medianWords {
				t.Errorf("half of its %d sentences have %d words or more; shorten them to %d", len(lengths), m, medianWords)
			}
		})
	}
}

// What Prometheus and Grafana show is read at night.
func TestTextsOfAlertsAndPanelsAreReadOnce(t *testing.T) {
	for file, keys := range map[string][]string{
		"deploy/prometheus/rules.yaml":  {"summary", "description"},
		"deploy/grafana/dashboard.json": {"title", "description"},
	} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if data, err = yaml.YAMLToJSON(data); err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			t.Fatal(err)
		}
		found := texts(tree, keys)
		if len(found) < 30 {
			t.Errorf("%s: only %d texts were found", file, len(found))
		}
		for _, text := range found {
			for _, s := range sentences(text) {
				for _, problem := range problems(s) {
					t.Errorf("%s: %s: %s", file, problem, s)
				}
			}
		}
	}
}

// A reader of one page knows what a budget is from that page.
func TestABudgetIsAPodDisruptionBudgetAtFirst(t *testing.T) {
	budget := regexp.MustCompile(`(?i)[a-z]*budget`)
	for _, p := range pages(t) {
		first := budget.FindString(code.ReplaceAllString(strings.Join(p.blocks(), "\n"), ""))
		if first != "" && !strings.EqualFold(first, "PodDisruptionBudget") {
			t.Errorf("%s speaks of a %s before it has said PodDisruptionBudget", p.name, first)
		}
	}
}

// The tests above would be of no use if sentences were cut wrongly.
func TestSentencesAreCutAtTheirEnds(t *testing.T) {
	for text, want := range map[string][]string{
		"One. Two? `three.x` is a word. (Four.)": {"One.", "Two?", "`three.x` is a word.", "(Four.)"},
		"up to 1.5 s, e.g. Now. End":             {"up to 1.5 s, e.g. Now.", "End"},
		"a list: of. things":                     {"a list: of. things"},
		"":                                       nil,
	} {
		if got := sentences(text); !slices.Equal(got, want) {
			t.Errorf("sentences(%q) = %q, want %q", text, got, want)
		}
	}
	if n := words("Set `a\u00a0b` to – 5 (now)."); n != 5 {
		t.Errorf("%d words instead of 5", n)
	}
	long := strings.Repeat("word ", mostWords) + "word."
	for text, want := range map[string]int{"It is done anew.": 1, "It is `anew`.": 0, "Is renewed.": 0, long: 1, "May not, and anew.": 2} {
		if got := problems(text); len(got) != want {
			t.Errorf("%q has the problems %q, want %d", text, got, want)
		}
	}
}

// problems are what keeps a sentence from being read once.
func problems(sentence string) []string {
	var all []string
	if n := words(sentence); n > mostWords {
		all = append(all, fmt.Sprintf("%d words are too many for one sentence (%d)", n, mostWords))
	}
	return append(all, stumblesIn(sentence)...)
}

// stumblesIn says what to write instead of the stumbles in a text.
func stumblesIn(text string) []string {
	var all []string
	for _, s := range stumblingBlocks {
		if found := s.words.FindString(code.ReplaceAllString(text, "`")); found != "" {
			all = append(all, fmt.Sprintf("instead of %q write: %s", found, s.better))
		}
	}
	return all
}

type stumblingBlock struct {
	words  *regexp.Regexp
	better string
}

var stumblingBlocks = func() []stumblingBlock {
	var all []stumblingBlock
	for expression, better := range stumbles {
		end := `\b`
		if strings.HasSuffix(expression, "]") {
			end = ""
		}
		all = append(all, stumblingBlock{regexp.MustCompile(`(?i)\b(` + expression + `)` + end), better})
	}
	return all
}()

// sentences cuts a text where a full stop, a question mark or an exclamation mark ends a word, and
// the next word does not begin with a small letter.
func sentences(text string) []string {
	var all []string
	var current []string
	fields := strings.Fields(text)
	for i, word := range fields {
		current = append(current, word)
		if i == len(fields)-1 || ends(word) && !small(fields[i+1]) {
			all, current = append(all, strings.Join(current, " ")), nil
		}
	}
	return all
}

func ends(word string) bool {
	word = strings.TrimRight(word, `")*”`)
	return strings.HasSuffix(word, ".") && word != "e.g." && word != "i.e." || strings.HasSuffix(word, "?") || strings.HasSuffix(word, "!")
}

func small(word string) bool {
	return word[0] >= 'a' && word[0] <= 'z'
}

// words counts what has a letter or a digit in it.
func words(sentence string) int {
	n := 0
	for word := range strings.FieldsSeq(strings.ReplaceAll(sentence, "\u00a0", "_")) {
		if strings.ContainsFunc(word, isWord) {
			n++
		}
	}
	return n
}

func isWord(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r > 0x7f && r != '–' && r != '—' && r != '−' && r != '…'
}

func median(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	slices.Sort(numbers)
	return numbers[len(numbers)/2]
}

// texts are the values of the keys anywhere in a tree.
func texts(tree any, keys []string) []string {
	var all []string
	switch n := tree.(type) {
	case map[string]any:
		for key, value := range n {
			if s, ok := value.(string); ok && slices.Contains(keys, key) {
				all = append(all, s)
			}
			all = append(all, texts(value, keys)...)
		}
	case []any:
		for _, value := range n {
			all = append(all, texts(value, keys)...)
		}
	}
	return all
}
