package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// startSources are the files that can end a start, or warn at it, and the
// declarations in them that do; none: all. Of this package it is all files but
// its tests.
var startSources = map[string][]string{
	"../../cmd/node-termination-handler/root.go": nil,
	"../cluster/cluster.go":                      {"New", "WaitForSync"},
	"../lookup/lookup.go":                        {"Look"},
	"../drain/volumes.go":                        {"NewVolumes", "WaitForSync"},
	"../imds/client.go":                          {"ErrTurnedOff", "ErrTooFar", "Identity", "get", "renew", "problem"},
	"../instance/directory.go":                   {"ErrDenied"},
	"../kube/access.go":                          {"Error", "CheckAccess"},
	"../kube/clients.go":                         {"connect"},
	"../lease/lease.go":                          {"term"},
	"../options/arguments.go":                    nil,
	"../options/option.go":                       {"refuse"},
	"../options/validate.go":                     nil,
	"../options/parse.go":                        nil,
	"../queue/client.go":                         {"check", "CheckPermissions", "explain"},
	"../queue/sqs.go":                            {"hints", "noQueue", "wrongSignature", "wrongEndpoint", "noSuchCall", "oldProtocol", "warnCannotExtend", "noteDenial"},
}

func TestEveryErrorOfTheStartHasAnEntryInTheDocs(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string][]string{}
	maps.Copy(sources, startSources)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			sources[file] = nil
		}
	}
	section := startSection(t)
	found := 0
	for path, names := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, decl := range file.Decls {
			for name, node := range declared(decl) {
				if len(names) > 0 && !slices.Contains(names, name) {
					continue
				}
				seen[name] = true
				for _, text := range said(node, path == "startup.go" || path == "checks.go") {
					words := ownWords(text)
					if words == "" || spared[words] {
						continue
					}
					found++
					if !strings.Contains(section, words) {
						t.Errorf("docs/troubleshooting.md has no entry for %q, of %s in %s", words, name, path)
					}
				}
			}
		}
		for _, name := range names {
			if !seen[name] {
				t.Errorf("%s has no %s any more", path, name)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d messages were found in the code", found)
	}
}

// spared are words that no start ends with.
var spared = map[string]bool{
	"not checked yet":        true, // of /readyz
	"this replica stands by": true, // of /status
	"exit status":            true, // of commands that have said all there is to say
	"kubectl nth":            true, // the name of the plugin
	"the visibility of messages can be extended again": true, // good news
}

func startSection(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## It does not start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// declared are the names that a declaration declares, each with its node.
func declared(decl ast.Decl) map[string]ast.Node {
	all := map[string]ast.Node{}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		all[d.Name.Name] = d
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				all[v.Names[0].Name] = v
			}
		}
	}
	return all
}

// said are the texts in a declaration that become a line for people: arguments of
// what makes and logs errors and warnings, mistakes, and with all every sentence.
func said(node ast.Node, all bool) []string {
	if f, ok := node.(*ast.FuncDecl); ok {
		results := f.Type.Results
		isMistake := results != nil && len(results.List) == 1 && typeName(results.List[0].Type) == "Problem"
		all = all || isMistake || f.Name.Name == "Error"
	} else {
		all = true
	}
	var texts []string
	gather := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(strings.TrimSpace(text), " ") {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	if all {
		gather(node)
		return texts
	}
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Errorf", "New"}, f.Sel.Name) && len(n.Args) > 0 {
				gather(n.Args[0])
			} else if ok && f.Sel.Name == "Info" && typeName(f.X) == "Log" {
				gather(n.Args[0])
			} else if !ok && typeName(n.Fun) == "append" && slices.Contains([]string{"warnings", "Warnings"}, typeName(n.Args[0])) {
				gather(n)
			}
		case *ast.CompositeLit:
			if name := typeName(n.Type); name == "Problem" || name == "Problems" {
				gather(n)
				return false
			}
		}
		return true
	})
	return texts
}

// typeName is the last name of a type or of an operand.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// ownWords are the first words of a text that do not differ: those before, after
// or between its verbs, up to a colon or its like. Two at least, if it has so many.
func ownWords(text string) string {
	best := ""
	for _, piece := range regexp.MustCompile(`%(?:\[\d+\])?[a-z]|[:;,()"]`).Split(text, -1) {
		piece = strings.TrimSpace(piece)
		if strings.Contains(piece, " ") {
			return piece
		}
		if len(piece) > len(best) {
			best = piece
		}
	}
	return best
}
