// Package house reads the Go files of a module, for tests of its structure.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A File is a Go file.
type File struct {
	Path   string // from the root of the module, with slashes
	Folder string // the first element of Path; "." for files of the root
	*ast.File

	set *token.FileSet
}

// Files returns the Go files of the module in the working directory, without tests,
// nested modules, folders with a dot, and the paths in skip.
func Files(t *testing.T, skip ...string) (files []File) {
	t.Helper()
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			if nested, _ := filepath.Glob(filepath.Join(path, "go.mod")); path != "." && (len(nested) > 0 || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || slices.Contains(skip, path) {
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		folder, _, _ := strings.Cut(filepath.ToSlash(filepath.Dir(path)), "/")
		files = append(files, File{path, folder, file, set})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// CheckFolders reports folders without a rule, and rules without files.
func CheckFolders[Rule any](t *testing.T, files []File, rules map[string]Rule) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f.Folder] = true; !has(rules, f.Folder) {
			t.Errorf("%s is in a folder without a rule", f.Path)
		}
	}
	for folder := range rules {
		if !seen[folder] {
			t.Errorf("no files in %s: the rule is out of date", folder)
		}
	}
}

func has[Rule any](rules map[string]Rule, folder string) bool {
	_, ok := rules[folder]
	return ok
}

// clocks are the functions of package time that read or wait for a clock.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// Clocks returns the uses of a clock, as "time.Now".
func (f File) Clocks() (uses []string) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			pkg, ok := sel.X.(*ast.Ident)
			if name := sel.Sel.Name; ok && (pkg.Name == "time" && slices.Contains(clocks, name) || pkg.Name == "shield" && name == "Now") {
				uses = append(uses, pkg.Name+"."+name)
			}
		}
		return true
	})
	return uses
}

// maxLines is how long a function may be, except tables.
const maxLines = 60

// LongFunctions returns the functions that are too long, by name, with what is wrong.
func (f File) LongFunctions() map[string]string {
	long := map[string]string{}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || f.isTable(fn.Body) {
			continue
		}
		if n := f.lines(fn) + 1; n > maxLines {
			long[fn.Name.Name] = fmt.Sprintf("%s: %s has %d lines, want at most %d", f.Path, fn.Name.Name, n, maxLines)
		}
	}
	return long
}

func (f File) lines(n ast.Node) int {
	return f.set.Position(n.End()).Line - f.set.Position(n.Pos()).Line
}

// isTable reports whether a function is mostly a list: one statement takes more than half
// of it.
func (f File) isTable(body *ast.BlockStmt) bool {
	whole := f.lines(body)
	return slices.ContainsFunc(body.List, func(s ast.Stmt) bool {
		list := false
		switch s := s.(type) {
		case *ast.ReturnStmt, *ast.AssignStmt, *ast.DeclStmt, *ast.RangeStmt:
			ast.Inspect(s, func(n ast.Node) bool {
				if c, ok := n.(*ast.CompositeLit); ok {
					list = list || 2*f.lines(c) > whole
				}
				return !list
			})
		case *ast.SwitchStmt:
			list = 2*f.lines(s) > whole && len(s.Body.List) > 12
		}
		return list
	})
}
