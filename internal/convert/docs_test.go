package convert

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The examples of docs/migration.md are what the command prints.
func TestExamplesInDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	pairs := regexp.MustCompile("(?s)\nBefore:\n\n```text\n(.*?)```.*?\n```caddyfile\n(.*?)```").FindAllSubmatch(page, -1)
	if len(pairs) != 2 {
		t.Fatalf("%d examples; want one of each server", len(pairs))
	}
	for i, pair := range pairs {
		file := filepath.Join(t.TempDir(), []string{"Caddyfile", "nginx.conf"}[i])
		if err := os.WriteFile(file, pair[1], 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := CaddyRateLimit(file, pair[1])
		if i == 1 {
			got, err = Nginx(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(got.Caddyfile, "\n\n") // after the notes
		if strings.TrimSpace(text) != strings.TrimSpace(string(pair[2])) {
			t.Errorf("the page has\n%s, and the command prints\n%s", pair[2], got.Caddyfile)
		}
	}
}
