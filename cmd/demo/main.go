// Command demo shows what a rush of clients does to a backend, without and with shield. It is the
// demo of the shield program without Caddy, which takes minutes to compile.
//
//	go run ./cmd/demo
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/term"

	"github.com/herdshield/shield/loadtest/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program
	if err := demo.Run(ctx, os.Stdout, term.IsTerminal(int(os.Stdout.Fd()))); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
