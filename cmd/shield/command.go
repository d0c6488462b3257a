package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/loadtest/demo"
)

// Exit codes of loadtest, in addition to 0 and the 1 of wrong flags. 130 is
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

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name: "demo", Short: demo.Short, Long: demo.Long,
		CobraFunc: func(cmd *cobra.Command) {
			demoCommand = cmd
			cmd.Use, cmd.DisableFlagsInUseLine = "demo", true
			cmd.Args = commands.Args(0, 0, "none")
			cmd.RunE = runUntilInterrupt(func(ctx context.Context, _ []string, _ io.Writer, _ screen) error {
				out := terminal(os.Stdout)
				return demo.Run(ctx, out.w, out.terminal)
			})
		},
	})
}

var demoCommand *cobra.Command // see shapeRoot
