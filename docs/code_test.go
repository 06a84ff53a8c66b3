package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Comments are read as pages are, and what the program says is read in a log, at night.
func TestCommentsAndTextsOfTheCodeAreReadOnce(t *testing.T) {
	found := 0
	files := token.NewFileSet()
	for _, folder := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for at, text := range prose(file) {
				found++
				for _, problem := range stumblesIn(text) {
					t.Errorf("%s: %s", files.Position(at), problem)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 10000 {
		t.Errorf("only %d comments and texts were found", found)
	}
}

// The test above would be of no use if it overlooked what is read.
func TestWhatTheCodeSaysIsFound(t *testing.T) {
	const source = "package p\n\n// settle ends a message\n// anew.\nvar settle = \"under way\" // for ever\n"
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, text := range prose(file) {
		found = append(found, stumblesIn(text)...)
	}
	if len(found) != 3 {
		t.Errorf("found %q", found)
	}
}

// prose is what a file says to people: its comments, each without the name that it begins with, and its strings.
func prose(file *ast.File) map[token.Pos]string {
	all := map[token.Pos]string{}
	names := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			names[n.Name] = true
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				all[n.Pos()] = line(text)
			}
		}
		return true
	})
	for _, comment := range file.Comments {
		name, rest, _ := strings.Cut(comment.Text(), " ")
		if !names[name] {
			rest = comment.Text()
		}
		all[comment.Pos()] = line(rest)
	}
	return all
}

// line is a text as one line.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }
