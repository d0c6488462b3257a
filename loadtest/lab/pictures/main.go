// Command pictures draws the pictures of docs/explain/appointments.md and docs/explain/adaptive-limits.md,
// and fills tables of the laboratory's README.md, from herds and overloads that are played in virtual time
// against shield's own code:
//
//	go -C loadtest/lab run ./pictures ../../docs/explain README.md
//
// The same code writes the same bytes. loadtest/lab/run does this for a release, and
// LONG=1 .ci/run says what is out of date. Measurements, which are never the same twice,
// are put into a page by
//
//	go -C loadtest/lab run ./pictures fill PAGE TABLE <text
//
// which loadtest/lab/run does. A table of what benchstat prints, which is wide and long, is made by
//
//	go -C loadtest/lab run ./pictures costs handlers|parts <text
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/herdshield/shield/loadtest/lab/page"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] != "costs":
		err = write(os.Args[1], os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "fill":
		err = fill(os.Args[2], os.Args[3], os.Stdin)
	case len(os.Args) == 3 && os.Args[1] == "costs" && costs[os.Args[2]] != nil:
		err = convert(costs[os.Args[2]])
	default:
		fmt.Fprintln(os.Stderr, "usage: pictures FOLDER PAGE\n       pictures fill PAGE TABLE <text\n       pictures costs handlers|parts <text-of-benchstat")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

var costs = map[string]func(string) (string, error){"handlers": handlerCosts, "parts": partCosts}

// convert writes a table of what benchstat printed.
func convert(table func(string) (string, error)) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	made, err := table(string(text))
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(made)
	return err
}

// fill puts a text into the room that the page has for the table of that name.
func fill(path, name string, text io.Reader) error {
	measured, err := io.ReadAll(text)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(measured)) == 0 {
		return fmt.Errorf("%s: the text for %s is empty; it must be a table", path, name)
	}
	return page.Fill(filepath.Dir(path), filepath.Base(path), "bash loadtest/lab/run", page.Table{Name: name, Text: string(measured)})
}

// command makes what is played.
const command = "go -C loadtest/lab run ./pictures ../../docs/explain README.md"

// write writes the pictures into the folder, and the tables into the page.
func write(folder, path string) error {
	if err := writePushback(folder, path); err != nil {
		return err
	}
	return writeLoadshedding(folder, path)
}

func writePushback(folder, path string) error {
	if err := writeHerds(folder); err != nil {
		return err
	}
	all, err := tables()
	if err != nil {
		return err
	}
	return page.Fill(filepath.Dir(path), filepath.Base(path), command, all...)
}

func writeLoadshedding(folder, path string) error {
	if err := limitPicture(drawFlood(playFlood())).Write(folder); err != nil {
		return err
	}
	text, err := compare()
	if err != nil {
		return err
	}
	return page.Fill(filepath.Dir(path), filepath.Base(path), command, page.Table{Name: "limiters", Text: text})
}
