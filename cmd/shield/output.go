package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// An outputFile is that of --json. It is written at the end of a run, when all that goes into it is known.
type outputFile struct {
	name  string // "" if the flag is not given, and - for standard output
	write func(io.Writer) error
}

func (f *outputFile) flag(flags *pflag.FlagSet, usage string, write func(io.Writer) error) {
	f.write = write
	flags.StringVar(&f.name, "json", "", usage)
}

// open makes sure that the file can be written, and is none that is read. One that is there stays as it is: a run
// that fails writes none. It returns where tables go: to progress if the file is standard output, because a
// program that reads that wants nothing else there.
func (f *outputFile) open(stdout, progress io.Writer, read ...string) (tables io.Writer, err error) {
	switch f.name {
	case "":
		return stdout, nil
	case "-":
		return progress, nil
	}
	old, missing := os.Stat(f.name)
	for _, other := range read {
		if info, err := os.Stat(other); err == nil && missing == nil && os.SameFile(info, old) {
			return nil, fmt.Errorf("--json is %s, which is also an input; use a different file", f.name)
		}
	}
	if missing == nil && !old.Mode().IsRegular() && !old.IsDir() {
		return stdout, nil // a pipe or a device: who reads it waits for what is written
	}
	file, err := os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE, 0o666) // before the umask
	if err != nil {
		return nil, fmt.Errorf("--json: %w", err)
	}
	file.Close()
	if missing != nil {
		if made, err := filepath.EvalSymlinks(f.name); err == nil {
			_ = os.Remove(made) // or it would be there, and empty, after a run that fails
		}
	}
	return stdout, nil
}

// finish writes the file.
func (f *outputFile) finish(stdout io.Writer) error {
	if f.name == "" {
		return nil
	}
	var b bytes.Buffer
	err := f.write(&b)
	switch {
	case err != nil:
	case f.name == "-":
		_, err = stdout.Write(b.Bytes())
	default:
		err = os.WriteFile(f.name, b.Bytes(), 0o666)
	}
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}
