// Command licenses lists the licences of everything that is linked into what the
// project ships: a line with path, version and SPDX ids for each Go module. It fails if
// one of them is not allowed, or if a licence is not recognised.
//
//	go -C .ci/licenses run .
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

const own = "github.com/herdshield/shield"

// shipped are the programs, with the directory of their module, as seen from here.
var shipped = []struct {
	dir      string
	packages []string
}{
	{"../..", []string{"./cmd/shield"}},
	// What xcaddy puts together.
	{"../..", []string{"./caddymodule", "github.com/caddyserver/caddy/v2/cmd", "github.com/caddyserver/caddy/v2/modules/standard"}},
	{"../../k8s", []string{"./cmd/shield-ingress"}},
}

// systems are what it is built for: each has packages that the others do not link.
var systems = []string{"linux", "darwin", "windows"}

// allowed are the licences, by SPDX id, that a linked module may have. GPL, AGPL and LGPL
// are not: they would reach everything that is linked with them.
var allowed = map[string]string{
	"0BSD":               "permissive",
	"Apache-2.0":         "permissive, and the project's own",
	"BSD-2-Clause":       "permissive",
	"BSD-2-Clause-Views": "permissive",
	"BSD-3-Clause":       "permissive",
	"CC0-1.0":            "public domain",
	"ISC":                "permissive",
	"MIT":                "permissive",
	"MPL-2.0":            "copyleft of its own files only, which are linked unchanged",
	"OFL-1.1":            "fonts, which any software may bundle",
	"Unlicense":          "public domain",
}

// special are licence files, by module and name, that are not recognised, with the ids of
// what they say. Of licences to choose from, it has the one that we choose.
var special = map[string]struct {
	ids    []string
	reason string
}{
	"github.com/AndreasBriese/bbloom/LICENSE": {[]string{"CC0-1.0", "MIT"}, "the public domain dedication of its siphash.go is in words of its own"},
	"github.com/miekg/dns/COPYRIGHT":          {nil, "it names the holders only; the licence is in LICENSE"},
}

// module is a Go module with the directories of those of its packages that are linked.
type module struct {
	path, version, dir string
	packages           map[string]bool
}

func main() {
	modules, err := linked()
	if err == nil {
		err = check(modules, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// linked returns the modules of which a package is linked into something shipped, and Go
// itself, sorted by path and version.
func linked() ([]module, error) {
	std := module{"std", runtime.Version(), "", map[string]bool{}}
	found := map[string]module{}
	for _, program := range shipped {
		for _, system := range systems {
			list := exec.Command("go", append([]string{"list", "-deps", "-json=Dir,Standard,Module"}, program.packages...)...)
			list.Dir, list.Stderr = program.dir, os.Stderr
			list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0", "GOWORK=off")
			out, err := list.Output()
			if err != nil {
				return nil, fmt.Errorf("go list %v: %w", program.packages, err)
			}
			if err := collect(out, found); err != nil {
				return nil, err
			}
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	std.dir = strings.TrimSpace(string(root))
	return append(slices.SortedFunc(maps.Values(found), func(a, b module) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version))
	}), std), nil
}

// collect adds to found what a go list has listed.
func collect(list []byte, found map[string]module) error {
	for decoder := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Replace            *struct{ Path, Version, Dir string }
			}
		}
		if err := decoder.Decode(&p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		m := p.Module
		if m == nil || m.Path == own || strings.HasPrefix(m.Path, own+"/") {
			continue
		}
		if m.Replace != nil {
			m.Path, m.Version, m.Dir = m.Replace.Path, m.Replace.Version, m.Replace.Dir
		}
		key := m.Path + " " + m.Version
		if _, ok := found[key]; !ok {
			found[key] = module{m.Path, m.Version, m.Dir, map[string]bool{}}
		}
		found[key].packages[p.Dir] = true
	}
}

// check prints a line for each module, and returns what is wrong with them all.
func check(modules []module, out io.Writer) error {
	var wrong []error
	for _, m := range modules {
		ids, err := licences(m)
		if err != nil {
			ids = append(ids, "unknown")
			wrong = append(wrong, fmt.Errorf("%s %s: %w", m.path, m.version, err))
		}
		for _, id := range ids {
			if _, ok := allowed[id]; !ok && id != "unknown" {
				wrong = append(wrong, fmt.Errorf("%s %s: the licence is %s; want one of %v", m.path, m.version, id, slices.Sorted(maps.Keys(allowed))))
			}
		}
		fmt.Fprintln(out, m.path, m.version, strings.Join(ids, ","))
	}
	return errors.Join(wrong...)
}

// names are those of files that hold a licence.
var names = regexp.MustCompile(`(?i)^(li[cs]en[cs]es?|copying|copyright|unlicense)([.\-_].*)?$`)

// licences returns the ids of a module's licence files: those at its root, and those
// between it and a package that is linked.
func licences(m module) ([]string, error) {
	dirs := map[string]bool{m.dir: true}
	for dir := range m.packages {
		for ; len(dir) > len(m.dir); dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	all := map[string]bool{}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() || !names.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
				continue
			}
			name := filepath.ToSlash(strings.TrimPrefix(filepath.Join(dir, entry.Name()), m.dir))
			text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
			if err != nil {
				return nil, err
			}
			ids, err := identify(text)
			if s, ok := special[m.path+name]; ok {
				ids, err = s.ids, nil
			}
			if err != nil {
				return slices.Sorted(maps.Keys(all)), fmt.Errorf("%s: %w", name, err)
			}
			for _, id := range ids {
				all[id] = true
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no licence file")
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// identify returns the SPDX ids of a text's licences. It is an error if they are less than
// three quarters of it, as for pkg.go.dev: the rest may be another licence.
func identify(text []byte) (ids []string, err error) {
	cover := licensecheck.Scan(text)
	for _, match := range cover.Match {
		if !match.IsURL {
			ids = append(ids, match.ID)
		}
	}
	if len(ids) == 0 || cover.Percent < 75 {
		return ids, fmt.Errorf("%.0f %% of the text are known licences %v; want 75", cover.Percent, ids)
	}
	return ids, nil
}
