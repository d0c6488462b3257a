package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule"
)

// Exit codes of simulate and loadtest, in addition to 0 and the 1 of wrong flags. 130 is
// the code with which shells report a program that SIGINT has ended: 128 + 2.
const (
	exitUnexpected  = 2
	exitInterrupted = 130
)

type exit struct {
	error
	code int
}

// A screen is where progress is shown.
type screen struct {
	w        io.Writer
	terminal bool // w can redraw a line
}

func (s screen) printf(format string, args ...any) { fmt.Fprintf(s.w, format, args...) }

func terminal(f *os.File) screen { return screen{f, term.IsTerminal(int(f.Fd()))} }

// runUntilInterrupt returns a function for cobra to call. The first Ctrl-C ends its context,
// a second one kills the program. Progress goes to scr.
func runUntilInterrupt(run func(ctx context.Context, args []string, out io.Writer, scr screen) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop)
		err := run(ctx, args, cmd.OutOrStdout(), terminal(os.Stderr))
		if code, ok := errors.AsType[exit](err); ok {
			// cobra and Caddy know no exit code but 1.
			fmt.Fprintln(cmd.ErrOrStderr(), "Error:", err)
			os.Exit(code.code)
		}
		return err
	}
}

// version is this program's name with its version, and with commit and date if the build has them.
func version() string { return "shield " + caddymodule.Build().String() }

// perSecond reads a rate of --flag, as 50, 50/s, 600/m or 5000/h.
func perSecond(flag, text string, least, most float64) (float64, error) {
	number, per, divided := strings.Cut(text, "/")
	seconds, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	rate, err := strconv.ParseFloat(number, 64)
	rate /= max(1, seconds)
	if err != nil || !known || divided && per == "" || !(rate >= least && rate <= most) {
		return 0, fmt.Errorf("--%s is %q; want a number per s, m or h, as 30/s, from %g to %g/s", flag, text, least, most)
	}
	return rate, nil
}
