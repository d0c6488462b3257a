package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Near returns the one of words that a misspelt word is likely to stand for, or "". It
// compares them as cobra compares commands.
func Near(wrong string, words []string) string {
	if wrong == "" {
		return ""
	}
	all := new(cobra.Command)
	for _, w := range words {
		all.AddCommand(&cobra.Command{Use: w, Run: func(*cobra.Command, []string) {}})
	}
	for most := range 3 { // the nearest first; words of four letters differ in two by chance
		all.SuggestionsMinimumDistance = most
		if found := all.SuggestionsFor(wrong); len(found) > 0 && (most < 2 || len(wrong) > 4) {
			return found[0]
		}
	}
	return ""
}

// FlagError says which flag of a command line is wrong, what it is and what is wanted. It is
// for cobra's SetFlagErrorFunc.
func FlagError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := wrong.GetFlag()
		return fmt.Errorf("--%s is %q; want %s", flag.Name, wrong.GetValue(), wantedBy(flag))
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s has no value; want %s", missing.GetFlag().Name, wantedBy(missing.GetFlag()))
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := "--" + unknown.GetSpecifiedName()
		if group := unknown.GetSpecifiedShortnames(); group != "" {
			name = "-" + group
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		hint := Meant("--", Near(unknown.GetSpecifiedName(), names))
		return fmt.Errorf("%s is no flag of %s%s; want one of %[2]s --help", name, cmd.CommandPath(), hint)
	}
	return err
}

// wantedBy says which type of value a flag wants.
func wantedBy(flag *pflag.Flag) string {
	want := map[string]string{
		"int": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number", "bool": "true or false",
		"duration": "a time with a unit, as 100ms, 5s or 2m",
	}[flag.Value.Type()]
	if want == "" {
		return flag.Usage
	}
	return want
}

// NoSuchCommand are the arguments of a command that has none but commands.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("%s has no command %q%s; want %s", cmd.CommandPath(), args[0], Meant("", Near(args[0], names)), strings.Join(names, ", "))
}

// Meant is the hint that an error gives of a word that is likely to be meant: " (did you mean
// --rate?)", or "" if there is none.
func Meant(dashes, near string) string {
	if near == "" {
		return ""
	}
	return " (did you mean " + dashes + near + "?)"
}

// Args checks how many arguments a command has. want says which: it ends the error.
func Args(least, most int, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n == 0 && least > 0:
			return fmt.Errorf("%s has no arguments; want %s", cmd.CommandPath(), want)
		case n < least || n > most:
			return fmt.Errorf("arguments are %q; want %s", args, want)
		}
		return nil
	}
}

// oneClient is what commands want that are about a client.
const oneClient = "one client, like 192.0.2.7, or the value that tells it apart, in quotes"
