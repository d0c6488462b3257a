// Command draw draws the pictures of docs/seeds.md and fills its tables, from what
// package seeds plays:
//
//	go -C loadtest/lab run ./seeds/draw ../../docs
//
// The same code writes the same bytes. A test compares them with the folder, so
// that they are never out of date.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: draw FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "draw:", err)
		os.Exit(1)
	}
}

const pageFile = "seeds.md"

// write writes the pictures into the folder, and the tables into the page that is
// there.
func write(folder string) error {
	path := filepath.Join(folder, pageFile)
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := play()
	if err != nil {
		return err
	}
	for _, p := range f.pictures() {
		svg, err := p.svg()
		if err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
		if err := os.WriteFile(filepath.Join(folder, p.file), svg, 0o644); err != nil {
			return err
		}
	}
	text := string(page)
	for _, t := range f.tables() {
		if text, err = fill(text, t); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// A table is what stands between two comments of that name.
type table struct {
	name string
	rows [][]string // the first is the head
}

// fill returns the page with the table, if there is room for it.
func fill(page string, t table) (string, error) {
	begin, end := "<!-- "+t.name+", by go -C loadtest/lab run ./seeds/draw ../../docs -->\n", "<!-- end of "+t.name+" -->\n"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, also := strings.Cut(rest, end)
	if !ok || !also {
		return "", fmt.Errorf("no room for a table between %q and %q", begin, end)
	}
	return head + begin + t.String() + end + tail, nil
}

// String returns the table in Markdown.
func (t table) String() string {
	var b strings.Builder
	for i, row := range t.rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}
