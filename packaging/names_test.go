// Package packaging tests that all files publish under the same names.
package packaging

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// names returns what shield is published under, by what it is.
func names(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("names")
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(\S+)$`).FindAllStringSubmatch(string(b), -1) {
		of[m[1]] = m[2]
	}
	if len(of) < 5 {
		t.Fatalf("only %d names are found", len(of))
	}
	return of
}

// published finds images, charts and repositories.
var published = regexp.MustCompile(`(?:oci://)?ghcr\.io/[a-z0-9./-]*[a-z0-9]|https://github\.com/[a-z-]+/shield\b|\bgithub\.com/[a-z-]+/shield/caddymodule\b`)

// Every file has the names of packaging/names, and no others.
func TestNames(t *testing.T) {
	known := names(t)
	var all []string
	for _, name := range known {
		all = append(all, name)
	}
	seen := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "dist" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case !d.Type().IsRegular() || path == filepath.Join("..", "packaging", "names"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range published.FindAllString(string(b), -1) {
			seen[name] = true
			if !slices.Contains(all, name) {
				t.Errorf("%s has %s, which is not in packaging/names", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, name := range known {
		if published.MatchString(name) && !seen[name] {
			t.Errorf("no file has %s, which packaging/names says is the %s", name, what)
		}
	}
	mod, err := os.ReadFile("../go.mod")
	if module := strings.TrimPrefix(known["source"], "https://"); err != nil || !strings.HasPrefix(string(mod), "module "+module+"\n") {
		t.Errorf("%v: go.mod's module is not %s", err, module)
	}
	release, err := os.ReadFile("../.goreleaser.yaml")
	if err != nil || !strings.Contains(string(release), "\nproject_name: "+known["package"]+"\n") {
		t.Errorf("%v: .goreleaser.yaml does not call the package %s", err, known["package"])
	}
}
