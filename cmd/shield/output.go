package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/herdshield/shield/loadtest/report"
)

type outputs []*outputFile

// flag adds a flag that names a file, and what writes the file.
func (all *outputs) flag(flags *pflag.FlagSet, name, usage string, write func(io.Writer) error) {
	f := &outputFile{flag: name, write: write}
	flags.StringVar(&f.name, name, "", usage)
	*all = append(*all, f)
}

// check returns an error if two of the files are one, or one is an input. read has the flag
// that names each input.
func (all outputs) check(read map[string]string) error {
	flags := map[string]string{}
	for name, flag := range read {
		flags[fileNamed(name)] = flag
	}
	var errs []error
	for _, f := range all {
		if f.name == "" || f.name == os.DevNull {
			continue
		}
		file := fileNamed(f.name)
		if first := flags[file]; first != "" && f.name == "-" {
			errs = append(errs, fmt.Errorf("--%s and --%s are -; want one of them on standard output", first, f.flag))
		} else if first != "" {
			errs = append(errs, fmt.Errorf("--%s and --%s are the same file, %s; want one each", first, f.flag, f.name))
		}
		flags[file] = f.flag
	}
	return errors.Join(errs...)
}

// open makes sure that the files can be written. It returns where tables go: to progress if
// a file is standard output, because a program that reads that wants nothing else there.
func (all outputs) open(stdout, progress io.Writer) (tables io.Writer, err error) {
	tables = stdout
	for _, f := range all {
		if f.name == "-" {
			tables = progress
		}
		if err := f.open(stdout); err != nil {
			return nil, fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	return tables, nil
}

// finish writes the files. It leaves out pictures of nothing, and tells notes so.
func (all outputs) finish(notes io.Writer) error {
	for _, f := range all {
		if f.name == "" {
			continue
		}
		if err := f.finish(); errors.Is(err, report.ErrNothing) {
			fmt.Fprintf(notes, "--%s: %v\n", f.flag, err)
		} else if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	return nil
}

// fileNamed returns one name for all names of a file. The name - is standard output.
func fileNamed(name string) string {
	if name == "-" {
		return name
	}
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
		return filepath.Join(folder, filepath.Base(name))
	}
	return name
}

// An outputFile replaces an older file of its name when all of it is written.
type outputFile struct {
	flag, name string
	write      func(io.Writer) error

	w    io.Writer // standard output, or a file that is not regular; nil: there will be a new file
	to   string    // the name of the new file in the end
	mode os.FileMode
}

// open makes sure that the file can be written. The name - stands for stdout.
func (f *outputFile) open(stdout io.Writer) (err error) {
	switch f.name {
	case "":
		return nil
	case "-":
		f.w = stdout
		return nil
	}
	f.to, f.mode = fileNamed(f.name), 0o666 // before the umask
	info, err := os.Stat(f.to)
	if err == nil && !info.Mode().IsRegular() { // a pipe, or a device; a folder is an error
		f.w, err = os.OpenFile(f.to, os.O_WRONLY, 0)
		return err
	}
	if err == nil {
		f.mode = info.Mode().Perm()
	}
	try, err := f.temporary()
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		failed.Path = f.name // the name that the user knows
	}
	if err != nil {
		return err
	}
	return errors.Join(try.Close(), os.Remove(try.Name()))
}

// temporary returns a new file in the folder of the file that it replaces in the end.
func (f *outputFile) temporary() (*os.File, error) {
	name := fmt.Sprintf(".%s.%s.tmp", filepath.Base(f.to), rand.Text()[:8])
	return os.OpenFile(filepath.Join(filepath.Dir(f.to), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
}

// finish writes the file, and gives it its name.
func (f *outputFile) finish() error {
	if f.w != nil {
		err := f.write(f.w)
		if file, ok := f.w.(*os.File); ok && f.name != "-" {
			err = errors.Join(err, file.Close())
		}
		return err
	}
	file, err := f.temporary()
	if err != nil {
		return err
	}
	err = errors.Join(f.write(file), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), f.to)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}
