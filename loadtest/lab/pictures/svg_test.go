package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What is drawn is what the docs show. A page can hold several documents: each has IDs that no other has.
func TestHerds(t *testing.T) {
	folder := t.TempDir()
	if err := writeHerds(folder); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	drawn, _ := filepath.Glob(filepath.Join(folder, "*.svg"))
	for _, file := range drawn {
		is, _ := os.ReadFile(file)
		ids[string(regexp.MustCompile(` id="[^"]+"`).Find(is))] = true
		shown, err := os.ReadFile(filepath.Join("../../../docs/explain", filepath.Base(file)))
		if err != nil || !bytes.Equal(is, shown) {
			t.Errorf("%s is not what the docs show (%v)", filepath.Base(file), err)
		}
	}
	if len(drawn) != 3 || len(ids) != 3 {
		t.Errorf("%d pictures with %d IDs; want 3", len(drawn), len(ids))
	}
}
