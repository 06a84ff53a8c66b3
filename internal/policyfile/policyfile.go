// Package policyfile reads the policy file: YAML that says what is done with which node and which pod.
// It makes rules of package decision of it, or says in which line what is wrong. It also follows a file
// that changes, runs the tests that stand beside the rules, and describes the format to editors.
package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

const (
	// MaxSize is how many bytes a file may have: what a ConfigMap can hold.
	// https://kubernetes.io/docs/concepts/configuration/configmap/#motivation
	MaxSize = 1 << 20
	// maxElements bounds the keys and values, and so the memory that reading takes: 500 rules of each sort
	// have a quarter of it.
	maxElements = 50_000
	// maxRules is how many rules for nodes, and how many for pods, there may be. All are tried for each
	// notice.
	maxRules = 500
	maxTests = 1000
	maxTexts = 100 // in a list of a rule
)

// A File is a policy file that has been read.
type File struct {
	Rules decision.Rules
	// Warnings are about what is allowed and can hardly be meant.
	Warnings Problems
	Tests    []Test
}

// Parse reads a policy file. The error is of type [Problems], and each of them has a line.
func Parse(data []byte) (File, error) {
	root, wrong := parseYAML(data)
	if len(wrong) > 0 {
		return File{}, wrong
	}
	r := reader{at: map[string]*yaml.Node{"": root}}
	var w written
	w.value().read(&r, root, "")
	w.finish(&r)
	if len(r.wrong) > 0 {
		r.wrong.sort()
		return File{}, r.wrong
	}
	w.warn(&r)
	r.wrong.sort()
	w.Warnings = r.wrong
	return w.File, nil
}

// Schema is the JSON Schema of policy files, for editors. What only the whole of a file tells, such as
// whether a window exists, it does not say: [Parse] does.
// https://json-schema.org/draft-07
func Schema() []byte {
	looks := new(written).value().schema
	looks["$schema"] = "http://json-schema.org/draft-07/schema#"
	looks["title"] = "Policy of node-termination-handler"
	text, _ := json.MarshalIndent(looks, "", "  ") // it is made of texts, numbers and lists
	return append(text, '\n')
}

// parseYAML returns the one value of a YAML document without anchors, aliases and tags.
func parseYAML(data []byte) (*yaml.Node, Problems) {
	if p := checkText(string(data)); p != nil {
		return nil, Problems{*p}
	}
	unread := bytes.NewReader(data)
	decoder := yaml.NewDecoder(oneByOne{unread})
	decode := func(into *yaml.Node) error { return guarded(func() error { return decoder.Decode(into) }) }
	var document, next yaml.Node
	err := decode(&document)
	if errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0 { // only comments
		return nil, Problems{{Line: 1, Text: "is empty: it begins with version: 1"}}
	}
	if err == nil {
		err = decode(&next)
	}
	var r reader
	switch {
	case err == nil:
		r.refuse(&next, "", "has a second document, and one is allowed")
	case errors.Is(err, io.EOF):
		r.refuseTricks(document.Content[0])
	default:
		return nil, Problems{syntaxProblem(string(data), len(data)-unread.Len(), err)}
	}
	return document.Content[0], r.wrong
}

// guarded returns a panic of what it calls as an error: the parser of YAML has some, for what its
// authors think cannot be. A file must not end the process.
func guarded(parse func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser of YAML failed: %v", p)
		}
	}()
	return parse()
}

// refuseTricks refuses what makes another file of a file than people see: an alias can stand for a
// million values.
func (r *reader) refuseTricks(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.refuse(n, "", "has the alias *%s: aliases are not allowed", plain(n.Value))
	case n.Anchor != "":
		r.refuse(n, "", "has the anchor &%s: anchors are not allowed", plain(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		r.refuse(n, "", "has the tag %s: tags are not allowed", plain(n.Tag))
	}
	for _, c := range n.Content {
		r.refuseTricks(c)
	}
}

// checkText finds what is no text, and what is too much of it.
func checkText(text string) *Problem {
	if len(text) > MaxSize {
		return &Problem{Line: 1, Text: fmt.Sprintf("has %d bytes, and %d are allowed", len(text), MaxSize)}
	}
	elements := 0
	for at, r := range text {
		switch rest := text[at:]; {
		case r == utf8.RuneError && !strings.HasPrefix(rest, string(utf8.RuneError)):
			return problemAfter(text[:at], "has bytes that are not UTF-8")
		case !isOfText(r) && (r != byteOrderMark || at > 0):
			return problemAfter(text[:at], fmt.Sprintf("has the character %U, which no text has", r))
		case strings.ContainsRune("\n,[{", r), strings.HasPrefix(rest, "- "), strings.HasPrefix(rest, "? "):
			elements++
		}
		if elements > maxElements {
			return &Problem{Line: lineAfter(text[:at+1]), Text: fmt.Sprintf("has more than %d lines and values", maxElements)}
		}
	}
	return nil
}

// problemAfter is one of what follows a part of the text.
func problemAfter(before, text string) *Problem {
	column := 1 + utf8.RuneCountInString(before[1+strings.LastIndex(before, "\n"):])
	return &Problem{Line: lineAfter(before), Column: column, Text: text}
}

const byteOrderMark = 0xfeff

// isOfText reports whether YAML takes the character.
// https://yaml.org/spec/1.2.2/#51-character-set
func isOfText(r rune) bool {
	return strings.ContainsRune("\n\r\t\u0085", r) ||
		!unicode.IsControl(r) && !strings.ContainsRune("\ufffe\uffff", r) && r != byteOrderMark
}

// oneByOne gives the parser no byte before it asks for it, so that what it has read ends where it stops.
type oneByOne struct{ from io.Reader }

func (o oneByOne) Read(into []byte) (int, error) { return o.from.Read(into[:min(1, len(into))]) }

// yamlLine matches the begin of any error of the parser.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line ([0-9]+): )?`)

// syntaxProblem is an error of the parser, with its line. The parser has read so many bytes of text.
func syntaxProblem(text string, read int, err error) Problem {
	found := yamlLine.FindStringSubmatch(err.Error())
	why := strings.TrimPrefix(err.Error(), found[0])
	line, _ := strconv.Atoi(found[1]) // empty: it is not known
	p := Problem{Line: max(1, line), Text: "is not YAML: " + why}
	lines := strings.Split(text, "\n")
	if strings.HasPrefix(strings.TrimLeft(lines[min(p.Line, len(lines))-1], " "), "\t") {
		p.Text += "; indent with spaces, not with tabs"
	}
	_, anchor, isAnchor := strings.Cut(why, "unknown anchor '")
	switch {
	case isAnchor: // the parser does not say where
		before, _, _ := strings.Cut(text, "*"+strings.TrimSuffix(anchor, "' referenced"))
		p.Line = lineAfter(before)
	case strings.Contains(why, "did not find expected"):
		p.Text += "; is the line indented as those before it, and each bracket closed?"
		// The parser names the line before the one in which the list or map begins. People look for the
		// one that does not fit in.
		p.Line++
		if read < len(text) {
			p.Line = lineAfter(strings.TrimRight(text[:read], " \n"))
		}
	}
	return p
}

func lineAfter(text string) int { return 1 + strings.Count(text, "\n") }
