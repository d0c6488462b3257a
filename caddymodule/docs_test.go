package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/herdshield/shield/loadshed"
)

// documents returns the project's pages, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	var paths []string
	for _, folder := range []string{"", "docs/", "docs/*/", "k8s/", "k8s/*/", "loadtest/lab/", "loadtest/lab/*/", "loadtest/lab/*/*/"} {
		found, err := filepath.Glob("../" + folder + "*.md")
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	docs := map[string]string{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		docs[strings.TrimPrefix(path, "../")] = string(b)
	}
	if len(docs) < 30 {
		t.Fatalf("only %d pages found", len(docs))
	}
	return docs
}

// validate adapts a Caddyfile and checks its config, as the command caddy validate does.
func validate(caddyfile string) error {
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			return errors.New(w.String())
		}
	}
	return validateJSON(config)
}

func validateJSON(config []byte) error {
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		return err
	}
	if c.Admin == nil {
		c.Admin = &caddy.AdminConfig{Disabled: true}
	}
	return caddy.Validate(&c)
}

// Every Caddyfile in the documentation can be loaded.
func TestCaddyfilesInDocs(t *testing.T) {
	t.Setenv("SHIELD_SECRET", "correct horse battery staple")
	t.Setenv("STATE_DIRECTORY", t.TempDir())
	docs := documents(t)
	example, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	docs["Caddyfile.example"] = "```caddyfile\n" + string(example) + "```"
	n := 0
	for path, text := range docs {
		for _, block := range regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			n++
			if strings.Count(block[1], "trusted_proxies ") != strings.Count(block[1], "trusted_proxies_strict") {
				t.Errorf("%s: trusted_proxies without trusted_proxies_strict", path)
			}
			if err := validate(block[1]); err != nil {
				t.Errorf("%s: %v in\n%s", path, err, block[1])
			}
		}
	}
	if n < 5 {
		t.Errorf("only %d blocks found", n)
	}
}

// The errors in docs/on-call/troubleshooting.md are those of configs with the mistakes that it names.
func TestErrorsInDocs(t *testing.T) {
	said := ""
	for _, option := range []string{
		"shield {\n zone a {\n rate 5/s\n key X-Api-Key\n }\n }",
		"shield 5",
		"shield {\n zone a {\n rate 5/s\n match @name\n }\n }",
		"shield {\n zone a {\n rate 5/s\n match method POST path /login\n }\n }",
	} {
		said += fmt.Sprintln(validate(":8080 {\n " + option + "\n}"))
	}
	listed := cells(documents(t)["docs/on-call/troubleshooting.md"], "error", 1)
	for _, message := range listed {
		if strings.HasPrefix(message, "unrecognized directive") { // Caddy's own, without the plugin
			continue
		}
		for part := range strings.SplitSeq(message, "…") {
			if !strings.Contains(said, strings.TrimSpace(part)) {
				t.Errorf("no error has %q of %q:\n%s", part, message, said)
			}
		}
	}
	if len(listed) != 5 {
		t.Errorf("the page has %d errors; want 5", len(listed))
	}
}

// Every piece of Go in the documentation stands in a test, where it is compiled and run.
func TestGoInDocs(t *testing.T) {
	indents := regexp.MustCompile(`(?m)^[ \t]+`)
	tests := ""
	for _, pattern := range []string{"../*_test.go", "../*/*_test.go", "../loadtest/lab/routers/*_test.go", "../clients/go/*/*_test.go"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tests += indents.ReplaceAllString(string(b), "")
		}
	}
	n := 0
	for path, text := range documents(t) {
		for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			n++
			if !strings.Contains(tests, "\n"+indents.ReplaceAllString(block[1], "")) {
				t.Errorf("%s: no test has\n%s", path, block[1])
			}
		}
	}
	if n < 6 {
		t.Errorf("only %d blocks found", n)
	}
}

// Links between pages lead to a file, and to a heading in it.
func TestLinksInDocs(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^):]+))?\)`)
	code := regexp.MustCompile("(?ms)^```.*?^```")
	n, anchors := 0, 0
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			n++
			target := filepath.Join("..", path)
			if m[1] != "" {
				target = filepath.Join("..", filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if m[2] == "" {
				continue
			}
			anchors++
			b, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(headings(string(b)), m[2]) {
				t.Errorf("%s: %s has no heading #%s", path, target, m[2])
			}
		}
	}
	if n < 5 || anchors < 5 {
		t.Errorf("only %d links found, %d to headings", n, anchors)
	}
}

// headings returns the anchors of a page's headings, as GitHub makes them.
func headings(page string) (anchors []string) {
	others := regexp.MustCompile(`[^\pL\pN _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		anchor := others.ReplaceAllString(strings.ToLower(m[1]), "")
		anchors = append(anchors, strings.ReplaceAll(anchor, " ", "-"))
	}
	return anchors
}

// cells returns what stands in backquotes in the given column of the
// tables whose header begins with word.
func cells(text, word string, column int) (names []string) {
	in := false
	for line := range strings.Lines(text) {
		columns := strings.Split(line, "|")
		if len(columns) <= column+1 {
			in = false
			continue
		}
		if strings.TrimSpace(columns[1]) == word {
			in = true
			continue
		}
		if !in {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[column], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// optionCells returns the names in the tables of options: those of a Caddyfile, which are also those of JSON
// unless others follow in parentheses.
func optionCells(page string) (caddyfile, inJSON []string) {
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*) \| .* \| .* \|$`).FindAllStringSubmatch(page, -1) {
		names, others, differ := strings.Cut(row[1], "(JSON ")
		word := cells("| option |  |\n| "+names+" |  |", "option", 1)
		for i := range word {
			word[i], _, _ = strings.Cut(word[i], " ") // as rate {placeholder}
		}
		caddyfile = append(caddyfile, word...)
		if differ {
			word = cells("| option |  |\n| "+others+" |  |", "option", 1)
		}
		inJSON = append(inJSON, word...)
	}
	return caddyfile, inJSON
}

// The Caddyfile of the page is the JSON below it.
func TestJSONInDocs(t *testing.T) {
	page := documents(t)["docs/reference/configuration.md"]
	m := regexp.MustCompile("(?s)```caddyfile\n(.*?)```.*?```json\n(.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no Caddyfile, or no JSON")
	}
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(m[1]), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	// Caddy writes a duration as a number of nanoseconds, and reads both.
	seconds := regexp.MustCompile(`"(per|max|timeout)":"(\d+)s"`)
	var text bytes.Buffer
	if err := json.Compact(&text, []byte(m[2])); err != nil {
		t.Fatal(err)
	}
	var is, want any
	err = errors.Join(json.Unmarshal(seconds.ReplaceAll(text.Bytes(), []byte(`"$1":${2}000000000`)), &is), json.Unmarshal(adapted, &want))
	if err != nil || !reflect.DeepEqual(is, want) {
		t.Errorf("%v: the page has\n%v\nand its Caddyfile is\n%v", err, is, want)
	}
}

func same(t *testing.T, what string, documented, real []string) {
	t.Helper()
	documented, real = slices.Compact(slices.Sorted(slices.Values(documented))), slices.Compact(slices.Sorted(slices.Values(real)))
	if len(real) == 0 {
		t.Errorf("%s: none found; the test looks in the wrong place", what)
	}
	for _, name := range documented {
		if !slices.Contains(real, name) {
			t.Errorf("%s: %s is documented and does not exist", what, name)
		}
	}
	for _, name := range real {
		if !slices.Contains(documented, name) {
			t.Errorf("%s: %s exists and is not documented", what, name)
		}
	}
}

// jsonNames returns the JSON names of the fields of a struct.
func jsonNames(v any) (names []string) {
	typ := reflect.TypeOf(v)
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			names = append(names, jsonNames(reflect.Zero(f.Type).Interface())...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func TestDocsNameWhatIsThere(t *testing.T) {
	docs := documents(t)
	configuration, answers, operating := docs["docs/reference/configuration.md"], docs["docs/reference/responses.md"], docs["docs/reference/metrics-logs-events.md"]

	var names []string
	for _, v := range []any{App{}, Handler{}, Zone{}, Concurrency{}, PerClient{}, Queue{}, Class{}, Pushback{}, Retries{}, Store{}, StoreTLS{}, StoreCertificate{}, State{}} {
		names = append(names, jsonNames(v)...)
	}
	caddyfile, inJSON := optionCells(configuration)
	same(t, "JSON options", inJSON, names)

	var words []string
	for _, block := range []any{new(App), new(Handler), new(Zone), new(Concurrency), new(Class), new(Pushback), new(Retries), new(Store), new(State)} {
		of, _ := optionsOf(block)
		words = append(words, of...)
	}
	arguments := []string{"adaptive", "slo", "off", "timeout", "redis"} // that have a row of their own
	same(t, "Caddyfile words", caddyfile, slices.Concat(words, arguments))
	everything, err := os.ReadFile("testdata/everything.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range words {
		if !strings.Contains(string(everything), "\t"+word+" ") {
			t.Errorf("no test has the word %s: add it to testdata/everything.caddyfiletest", word)
		}
	}

	var reasons []string
	for _, r := range loadshed.Reasons() {
		reasons = append(reasons, r.String())
	}
	same(t, "reasons of the limit", cells(operating, "reason", 1), reasons)

	source := ""
	files, _ := filepath.Glob("*.go")
	more, _ := filepath.Glob("store/*.go")
	for _, file := range append(files, more...) {
		if !strings.HasSuffix(file, "_test.go") {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source += string(b)
		}
	}
	var events, placeholders []string
	for _, m := range regexp.MustCompile(`"(shield_\w+)"`).FindAllStringSubmatch(source, -1) {
		events = append(events, m[1])
	}
	same(t, "events", cells(operating, "event", 1), events)
	for path, page := range docs {
		for _, m := range regexp.MustCompile("`((?:caddy_shield|shield_store)_[a-z_]+)`").FindAllStringSubmatch(page, -1) {
			if !strings.Contains(operating, "| `"+m[1]+"` |") {
				t.Errorf("%s has %s, which is no metric and no event", path, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile(`"(http\.shield\.\w+)"`).FindAllStringSubmatch(source, -1) {
		placeholders = append(placeholders, "{"+m[1]+"}")
	}
	var documented []string
	h, err := Live{Name: "s", State: new(LiveState)}.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range cells(answers, "placeholder", 1) {
		documented = append(documented, name)
		if _, ok := h.admitted[0](strings.Trim(name, "{}")); !ok {
			t.Errorf("%s is not set on admission", name)
		}
	}
	same(t, "placeholders", documented, placeholders)
}
