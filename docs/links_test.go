package docs

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark/ast"
)

// ours is where GitHub shows the files of this repository.
var ours = regexp.MustCompile(`^https://github\.com/node-termination-handler/node-termination-handler/(?:blob|tree|raw)/[^/]+/`)

// A link leads to a file of the repository, and to a heading of a page if it names one.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	anchors := map[string]map[string]bool{}
	for _, p := range all {
		anchors[p.name] = p.anchors()
	}
	checked := 0
	for _, p := range all {
		for _, link := range p.links() {
			file, fragment, inside := p.target(t, link)
			if !inside {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				t.Errorf("%s: the link %s leads nowhere: there is no %s", p.name, link, file)
				continue
			}
			known, isPage := anchors[file]
			if fragment != "" && isPage && !known[fragment] {
				t.Errorf("%s: the link %s leads to a heading that %s does not have", p.name, link, file)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d links were found", checked)
	}
}

// links are the destinations of a page's links and pictures, in Markdown and in HTML.
func (p page) links() []string {
	var all []string
	each(p.tree, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Link:
			all = append(all, string(n.Destination))
		case *ast.Image:
			all = append(all, string(n.Destination))
		case *ast.AutoLink:
			all = append(all, string(n.URL(p.source)))
		case *ast.RawHTML:
			all = append(all, references(string(n.Segments.Value(p.source)))...)
		case *ast.HTMLBlock:
			all = append(all, references(string(n.Lines().Value(p.source)))...)
		}
	})
	return all
}

var reference = regexp.MustCompile(`(?:href|src|srcset)="([^"]+)"`)

func references(html string) []string {
	var all []string
	for _, m := range reference.FindAllStringSubmatch(html, -1) {
		all = append(all, m[1])
	}
	return all
}

// target is the file of the repository that a link of the page leads to, and the heading in it;
// inside is false where it leads elsewhere.
func (p page) target(t *testing.T, link string) (file, fragment string, inside bool) {
	t.Helper()
	if here := ours.FindString(link); here != "" {
		link = "/" + strings.TrimPrefix(link, here)
	}
	u, err := url.Parse(link)
	if err != nil {
		t.Errorf("%s: %v", p.name, err)
		return "", "", false
	}
	switch {
	case u.Scheme != "" || u.Host != "":
		return "", "", false
	case u.Path == "":
		return p.name, u.Fragment, true
	case strings.HasPrefix(u.Path, "/"):
		return path.Clean(u.Path[1:]), u.Fragment, true
	}
	return path.Join(path.Dir(p.name), u.Path), u.Fragment, true
}

var id = regexp.MustCompile(`(?:id|name)="([^"]+)"`)

// anchors are what a link to the page can have after its #, as GitHub names it.
func (p page) anchors() map[string]bool {
	all := map[string]bool{}
	each(p.tree, func(n ast.Node) {
		var html string
		switch n := n.(type) {
		case *ast.Heading:
			all[unused(all, slug(plain(p.text(n))))] = true
		case *ast.RawHTML:
			html = string(n.Segments.Value(p.source))
		case *ast.HTMLBlock:
			html = string(n.Lines().Value(p.source))
		}
		for _, m := range id.FindAllStringSubmatch(html, -1) {
			all[m[1]] = true
		}
	})
	return all
}

// plain is a text without the marks of code.
func plain(text string) string {
	return strings.NewReplacer("`", "", "\u00a0", " ").Replace(text)
}

// slug is the anchor that GitHub gives a heading.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// unused is the anchor of a heading if an earlier one has the same words.
func unused(all map[string]bool, anchor string) string {
	if !all[anchor] {
		return anchor
	}
	for i := 1; ; i++ {
		if next := anchor + "-" + strconv.Itoa(i); !all[next] {
			return next
		}
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	p := page{source: []byte("# `--yes`, or not?\n## What's_new\n## Ünder one\n## Ünder one\n<a id=\"x\"></a>\n")}
	p.tree = parse(p.source)
	got := p.anchors()
	for _, want := range []string{"--yes-or-not", "whats_new", "ünder-one", "ünder-one-1", "x"} {
		if !got[want] {
			t.Errorf("no anchor %s in %v", want, got)
		}
	}
}
