package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "page.md")
	fill := func(text string) (string, error) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := Fill(folder, "page.md", "make", Table{"two", Markdown([][]string{{"a", "b"}, {"1", "2"}}, 1)})
		filled, _ := os.ReadFile(path)
		return string(filled), err
	}
	page := "x\n<!-- two, by make -->\nold\n<!-- end of two -->\ny\n"
	got, err := fill(page)
	if want := strings.Replace(page, "old\n", "| a | b |\n|---|---:|\n| 1 | 2 |\n", 1); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if got, err := fill("no room\n"); err == nil || !strings.Contains(err.Error(), "two") || got != "no room\n" {
		t.Errorf("%q, error %v; want one that says what is missing, and the page as it was", got, err)
	}
	if err := Fill(t.TempDir(), "page.md", "make"); err == nil {
		t.Error("a page that is not there is filled")
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 12_346: "12,346", 1_002_003: "1,002,003"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}
