package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A run that fails leaves the file of --json as it was, and makes none; one that ends well writes it.
func TestOutputOfARunThatFails(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "as it was"} {
		path := filepath.Join(t.TempDir(), "runs.json")
		if before != "" {
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		fails := errors.New("the run fails")
		f := outputFile{name: path, write: func(w io.Writer) error {
			_, _ = io.WriteString(w, "a part")
			return fails
		}}
		if _, err := f.open(io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := f.finish(io.Discard); !errors.Is(err, fails) {
			t.Errorf("it ends with %v, want %v", err, fails)
		}
		if is, err := os.ReadFile(path); string(is) != before || (err == nil) != (before != "") {
			t.Errorf("of %q it leaves %q (%v)", before, is, err)
		}
		f.write = func(w io.Writer) error { _, err := io.WriteString(w, "all"); return err }
		if err := f.finish(io.Discard); err != nil {
			t.Error(err)
		}
		if is, _ := os.ReadFile(path); string(is) != "all" {
			t.Errorf("after a run it has %q", is)
		}
	}
}
