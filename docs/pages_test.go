// Package docs tests the pages that users read, their sentences and their links, and the words of the code.
package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// root is the repository, seen from here.
const root = ".."

// A page is one Markdown file.
type page struct {
	name   string // path from the root
	source []byte
	tree   ast.Node
}

// pages are all Markdown files of the repository.
func pages(t *testing.T) []page {
	t.Helper()
	var all []page
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && notOurs(d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(file) != ".md" {
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		all = append(all, page{name: filepath.ToSlash(name), source: source, tree: parse(source)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 15 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

// notOurs reports whether a folder has only files of others, or files that were built.
func notOurs(folder string) bool {
	switch folder {
	case ".git", "node_modules", "testdata", "bin", "dist", ".terraform":
		return true
	}
	return false
}

func parse(source []byte) ast.Node {
	return goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
}

// blocks are the texts of a page that are read from end to end: paragraphs, items of lists and cells
// of tables. Code between fences and headings are none.
func (p page) blocks() []string {
	var all []string
	each(p.tree, func(n ast.Node) {
		switch n.Kind() {
		case ast.KindParagraph, ast.KindTextBlock, tables.KindTableCell:
			all = append(all, strings.Split(p.text(n), "\n")...)
		}
	})
	return all
}

// text is what a block says. Code in it is one word between backquotes; "\n" is a <br>.
func (p page) text(n ast.Node) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.CodeSpan:
			b.WriteString("`" + strings.Join(strings.Fields(p.text(c)), "\u00a0") + "`")
		case *ast.Text:
			b.Write(c.Segment.Value(p.source))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.RawHTML:
			b.WriteByte('\n')
		case *ast.AutoLink:
			b.WriteString("`link`")
		default:
			b.WriteString(p.text(c))
		}
	}
	return b.String()
}

func each(n ast.Node, visit func(ast.Node)) {
	visit(n)
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		each(c, visit)
	}
}
