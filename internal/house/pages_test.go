package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield"
)

// CONTRIBUTING.md names files that exist, and what stands in them.
func TestContributing(t *testing.T) {
	page := text(t, "CONTRIBUTING.md")
	_, section, found := strings.Cut(page, "\n## Where to change what\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("there is no section Where to change what")
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "-") {
			continue
		}
		rows++
		change, file := strings.TrimSpace(cells[1]), ""
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			switch name := m[1]; {
			case strings.HasPrefix(name, "go "): // see TestCommandsInPages
			case strings.ContainsAny(name, "./"):
				file = text(t, name)
			case !regexp.MustCompile(`\b` + name + `\b`).MatchString(file):
				t.Errorf("%s: %s is not in the file before it", change, name)
			}
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(section, -1) {
		if strings.HasSuffix(m[1], ".go") || strings.HasSuffix(m[1], ".md") || strings.HasPrefix(m[1], "caddymodule/") {
			text(t, m[1])
		}
	}
	if rows < 9 {
		t.Errorf("%d rows are found, want 9 or more", rows)
	}
}

// Pages name tests and benchmarks that there are.
func TestCommandsInPages(t *testing.T) {
	n := 0
	for _, page := range append(docs(), "README.md", "CONTRIBUTING.md") {
		for _, m := range regexp.MustCompile("`(go (?:-C \\S+ )?test [^`]+)`").FindAllStringSubmatch(text(t, page), -1) {
			judges(t, page, m[1])
			n++
		}
	}
	if n < 20 {
		t.Errorf("%d commands are found, want 20 or more", n)
	}
}

// The tests on which the README's promises rest are there, and those of the rules that decide: CONTRIBUTING.md lists both.
func TestPromisesRestOnTests(t *testing.T) {
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "loadtest/sim/*_test.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			tests.WriteString(text(t, file))
		}
	}
	names := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(text(t, "CONTRIBUTING.md"), -1)
	if len(names) < 50 {
		t.Errorf("CONTRIBUTING.md names %d tests, want 50 or more", len(names))
	}
	for _, m := range names {
		if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(") {
			t.Errorf("CONTRIBUTING.md names %s, which is no test", m[1])
		}
	}
}

// judges checks that a command names packages that exist, and tests that they have.
func judges(t *testing.T, change, command string) {
	t.Helper()
	words, dir := strings.Fields(command), "."
	if words[1] == "-C" {
		words, dir = words[2:], words[2]
	}
	tests := ""
	for _, word := range words {
		if word != "." && !strings.HasPrefix(word, "./") || word == "./..." { // all packages
			continue
		}
		files, _ := filepath.Glob(filepath.Join(dir, word, "*.go"))
		if len(files) == 0 {
			t.Errorf("%s: %q has no package %s", change, command, word)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				tests += text(t, file)
			}
		}
	}
	for i, word := range words {
		kind := map[string]string{"-run": "Test", "-bench": "Benchmark"}[word]
		if kind == "" || i+1 == len(words) {
			continue
		}
		all, _, _ := strings.Cut(strings.Trim(words[i+1], "'"), "/") // what follows are parts of a test
		for name := range strings.SplitSeq(all, "|") {
			if !regexp.MustCompile(`func ` + kind + `\w*` + strings.TrimPrefix(strings.Trim(name, "^$"), kind)).MatchString(tests) {
				t.Errorf("%s: %q has no %s %s", change, command, kind, name)
			}
		}
	}
}

// Every Reason is explained to users, and in the order of checks.
func TestReasonsAreDocumented(t *testing.T) {
	for path, want := range map[string]func(shield.Reason) string{
		"docs/reference/responses.md": func(r shield.Reason) string { return "`" + r.String() + "`" },
		"caddymodule/handler.go":      func(r shield.Reason) string { return "`" + r.String() + "`" },
		"doc.go":                      func(r shield.Reason) string { return "reject: " + strings.ReplaceAll(camel(r.String()), "_", "") },
	} {
		for _, r := range shield.Reasons {
			if !strings.Contains(text(t, path), want(r)) {
				t.Errorf("%s does not have %s", path, want(r))
			}
		}
	}
}

// camel returns the name of a constant: RetryBudget for retry_budget.
func camel(s string) string {
	return regexp.MustCompile(`(?:^|_)[a-z]`).ReplaceAllStringFunc(s, strings.ToUpper)
}

// docs returns the pages of the documentation.
func docs() []string {
	pages, _ := filepath.Glob("docs/*.md")
	more, _ := filepath.Glob("docs/*/*.md")
	return append(pages, more...)
}

// What programs, scripts and charts tell a person says what to use. "got X; want Y" is for tests.
func TestErrorsSayWhatToUse(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir() && (!d.Type().IsRegular() || strings.HasSuffix(path, "_test.go")):
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains([]string{"", ".go", ".sh", ".tpl", ".yaml"}, filepath.Ext(path)):
			return nil
		}
		content := text(t, path)
		if strings.Contains(content, "\x00") {
			return nil // a program that was built here
		}
		files++
		for i, line := range strings.Split(content, "\n") {
			if strings.Contains(line, "; want ") {
				t.Errorf("%s:%d: %s\nsay what to use, or what must be", path, i+1, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil || files < 400 {
		t.Errorf("%v; %d files were read, want 400 or more", err, files)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
