package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/herdshield/shield/loadtest/report"
)

type outputs []*outputFile

// An outputFile is written at the end of a run, when all that goes into it is known.
type outputFile struct {
	flag, name string // the name is "" if the flag is not given, and - for standard output
	write      func(io.Writer) error
}

func (all *outputs) flag(flags *pflag.FlagSet, name, usage string, write func(io.Writer) error) {
	f := &outputFile{flag: name, write: write}
	flags.StringVar(&f.name, name, "", usage)
	*all = append(*all, f)
}

// open makes sure that the files can be written, and that none of them is another one or one that
// is read. Files that are there stay as they are: a run that fails writes none. It returns where tables go: to
// progress if a file is standard output, because a program that reads that wants nothing else there.
func (all outputs) open(stdout, progress io.Writer, read ...string) (tables io.Writer, err error) {
	tables = stdout
	for _, f := range all {
		if f.name == "" {
			continue
		}
		old, missing := os.Stat(f.name)
		if slices.ContainsFunc(read, func(other string) bool {
			info, err := os.Stat(other)
			return other == f.name || missing == nil && err == nil && os.SameFile(info, old)
		}) {
			return nil, fmt.Errorf("--%s is %s, which is also an input or another output; use a different file for each", f.flag, f.name)
		}
		read = append(read, f.name)
		if f.name == "-" {
			tables = progress
			continue
		}
		if missing == nil && !old.Mode().IsRegular() && !old.IsDir() {
			continue // a pipe or a device: who reads it waits for what is written
		}
		file, err := os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE, 0o666) // before the umask
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", f.flag, err)
		}
		file.Close()
		if missing != nil {
			if made, err := filepath.EvalSymlinks(f.name); err == nil {
				_ = os.Remove(made) // or it would be there, and empty, after a run that fails
			}
		}
	}
	return tables, nil
}

// finish writes the files. It leaves pictures of nothing as they were, and tells notes so.
func (all outputs) finish(stdout, notes io.Writer) error {
	for _, f := range all {
		if f.name == "" {
			continue
		}
		var b bytes.Buffer
		err := f.write(&b)
		switch {
		case errors.Is(err, report.ErrNothing):
			fmt.Fprintf(notes, "--%s: %v\n", f.flag, err)
			err = nil
		case err == nil && f.name == "-":
			_, err = stdout.Write(b.Bytes())
		case err == nil:
			err = os.WriteFile(f.name, b.Bytes(), 0o666)
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	return nil
}
