// Package page puts tables and pictures into the docs.
package page

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// A Table is what stands between two comments of that name in a page.
type Table struct {
	Name string
	Text string // in Markdown
}

// Fill replaces tables of a page that is in the folder. The comments name the command
// that makes them. A page that has no room for one of them stays as it is.
func Fill(folder, file, command string, tables ...Table) error {
	path := filepath.Join(folder, file)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(b)
	for _, t := range tables {
		if text, err = t.fill(text, command); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func (t Table) fill(page, command string) (string, error) {
	begin, end := "<!-- "+t.Name+", by "+command+" -->\n", "<!-- end of "+t.Name+" -->\n"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, also := strings.Cut(rest, end)
	if !ok || !also {
		return "", fmt.Errorf("the page has no lines %q and %q; put both around the table", begin, end)
	}
	return head + begin + t.Text + end + tail, nil
}

// Markdown returns rows as a table, the first of them as its head. Columns after the
// first so many are numbers, on the right.
func Markdown(rows [][]string, left int) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", left) + strings.Repeat("---:|", len(row)-left) + "\n")
		}
	}
	return b.String()
}

// Text writes rows as a table for a terminal.
func Text(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// Thousands writes 12345 as 12,345.
func Thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}
