package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield/loadtest/clients"
)

const docs = "../../../../docs"

// says is what each picture must say.
var says = map[string][]string{
	"seeds-bursts.svg":   {"Plain exponential", "Google Analytics", "The Go array", "seconds since all failed", "60"},
	"seeds-waves.svg":    {"google-http-java-client", "Binary exponential", "Modified binary exponential", "× 1.10"},
	"seeds-policies.svg": ridges,
	"seeds-aws.svg":      {"no back-off", "full jitter", "calls", "seconds", "10,000"},
	"seeds-ladder.svg":   {"windows of 2^k", "windows of n", "shield's slots", "100,000"},
}

// The documentation shows figures of this version.
func TestDocsAreUpToDate(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("needs a build without the race detector, and no -short: it plays everything")
	}
	folder := t.TempDir()
	page, err := os.ReadFile(filepath.Join(docs, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, pageFile), page, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(folder); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != len(says)+1 {
		t.Errorf("%d files, want %d pictures and the page", len(made), len(says))
	}
	for _, entry := range made {
		file := entry.Name()
		want, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		if file != pageFile {
			if !bytes.Contains(page, []byte("]("+file+")")) {
				t.Errorf("the page does not show %s", file)
			}
			checkSVG(t, file, want)
		}
		// Other processors multiply and add in one step, and round once.
		if runtime.GOARCH != "amd64" {
			continue
		}
		if got, _ := os.ReadFile(filepath.Join(docs, file)); !bytes.Equal(got, want) {
			t.Errorf("docs/%s is out of date. Run, at the top: go -C loadtest/lab run ./seeds/draw ../../docs", file)
		}
	}
}

// checkSVG wants a document that is well-formed, small, and says what it shows.
func checkSVG(t *testing.T, file string, doc []byte) {
	if len(doc) > 50_000 {
		t.Errorf("%s has %d bytes, want at most 50,000", file, len(doc))
	}
	var text strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(doc)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
	for _, want := range says[file] {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s does not say %q", file, want)
		}
	}
	if len(says[file]) == 0 {
		t.Errorf("%s is not known here", file)
	}
}

// Every policy of the seeds is shown, and played.
func TestAllAreShown(t *testing.T) {
	from, to := 0, 0
	names := []string{}
	for i, e := range clients.Catalog() {
		names = append(names, e.Name)
		switch e.Name {
		case "try-n-times":
			from = i
		case "aws-decorrelated":
			to = i + 1
		}
	}
	for _, name := range names[from:to] {
		// That with a predicate is the same if the server says 503.
		if name != "clojure-predicate" && !slices.Contains(ridges, name) {
			t.Errorf("%s is not shown", name)
		}
	}
	for _, name := range ridges {
		played := false
		for _, o := range outages {
			played = played || o.name == name
		}
		if !played {
			t.Errorf("%s is shown, but not played", name)
		}
	}
}

func TestNoPage(t *testing.T) {
	if err := write(t.TempDir()); err == nil {
		t.Error("a folder without a page is filled")
	}
}
