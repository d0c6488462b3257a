// Command pictures draws the pictures of docs/pushback.md, and fills its tables,
// from herds that are played in virtual time against shield's own code:
//
//	go run ./loadtest/pictures docs
//
// The same code writes the same bytes. A test compares them with the folder, so
// that they are never out of date.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pictures FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// write writes both pictures into the folder, and the tables into the
// pushback.md that is there.
func write(folder string) error {
	for _, p := range pictures {
		r, err := sim.Run(crowd(), p.server)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := writeSVG(&b, draw(p.title(r), r.Series)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, p.file), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	path := filepath.Join(folder, "pushback.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	filled, err := fillTables(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(filled), 0o644)
}

// crowd is what both pictures show: 2,500 clients at once.
func crowd() sim.Scenario {
	s := sim.Herd("", 2500, 59*time.Second)
	s.Seed, s.Warmup, s.Until, s.Bin = 1, warmup, after, bin
	return s
}

// pictures are the files, with the server that the crowd meets; nil means shield.
var pictures = []struct {
	file   string
	server sim.Maker
	title  func(sim.Result) string
}{
	{"pushback-fixed.svg", sim.FixedHint(1), func(r sim.Result) string {
		return fmt.Sprintf("Retry-After: 1 for all: they come back together, and after %g s, %s of %s still wait",
			after.Seconds(), thousands(r.Waiting), thousands(r.Clients))
	}},
	{"pushback-shield.svg", nil, func(r sim.Result) string {
		return fmt.Sprintf("An appointment for each: they come back one by one, and all %s are served after %.0f s",
			thousands(r.Served), r.Drained.Seconds())
	}},
}
