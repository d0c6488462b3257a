// Command draw draws the pictures of loadtest/lab/seeds/README.md and fills its tables, from what
// package seeds plays:
//
//	go -C loadtest/lab run ./seeds/draw seeds
//
// The same code writes the same bytes. loadtest/lab/run does this for a release, and
// LONG=1 .ci/run says what is out of date.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/herdshield/shield/loadtest/lab/page"
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

const pageFile = "README.md"

// write writes the pictures into the folder, and the tables into the page that is
// there.
func write(folder string) error {
	if _, err := os.Stat(filepath.Join(folder, pageFile)); err != nil {
		return err
	}
	f, err := play()
	if err != nil {
		return err
	}
	for _, p := range f.pictures() {
		if err := p.Write(folder); err != nil {
			return err
		}
	}
	return page.Fill(folder, pageFile, "go -C loadtest/lab run ./seeds/draw seeds", f.tables()...)
}

// A table is made of rows, the first of which is the head.
type table struct {
	name string
	rows [][]string
}
