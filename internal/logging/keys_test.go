package logging

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An error is always the value of "error", and is given as it is.
func TestAnErrorHasOneKeyInAllLines(t *testing.T) {
	errors := 0
	for _, root := range []string{"../../cmd", ".."} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !logs(call) {
					return true
				}
				for i := 0; i+1 < len(call.Args); i++ {
					key, ok := call.Args[i].(*ast.BasicLit)
					if !ok {
						continue
					}
					isError, isText := errorIn(call.Args[i+1])
					if isText || isError && key.Value != `"error"` {
						t.Errorf("%s: an error has the key %s; want it as it is, under %q", files.Position(key.Pos()), key.Value, "error")
					}
					if isError {
						errors++
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if errors < 30 {
		t.Errorf("only %d errors were found in lines of the log", errors)
	}
}

// logs reports whether a call is one of a logger, or of [Warn], or gathers values for one.
func logs(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return slices.Contains([]string{"Info", "Warn", "Error", "WithValues"}, f.Sel.Name)
	case *ast.Ident:
		if f.Name == "append" {
			to, ok := call.Args[0].(*ast.Ident)
			return ok && to.Name == "values"
		}
	}
	return false
}

// errorIn reports whether a value is an error, by its name, and whether it is the text of one.
func errorIn(value ast.Expr) (isError, isText bool) {
	if name, ok := value.(*ast.Ident); ok {
		return name.Name == "err", false
	}
	if call, ok := value.(*ast.CallExpr); ok {
		f, ok := call.Fun.(*ast.SelectorExpr)
		isText = ok && f.Sel.Name == "Error" && len(call.Args) == 0
	}
	return false, isText
}
