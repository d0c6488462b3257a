// Command shield-ingress is an ingress controller for Kubernetes with rate limiting and load shedding:
// Caddy, the shield, and a static config made of the flags. It learns everything else from the cluster.
//
// It exits with 0 after a shutdown on SIGTERM or SIGINT, with 1 if it could not start, with 2
// if a second signal cut the shutdown short, and with 3 if the shutdown failed.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	_ "time/tzdata" // for images without a zone database

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/herdshield/shield/k8s/ingress"
	"github.com/herdshield/shield/k8s/migrate"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "migrate" {
		os.Exit(migrate.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if code := run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr); code >= 0 {
		os.Exit(code)
	}
	select {} // until a signal
}

// run runs the command, and returns the exit code, or -1 if a server is running now.
func run(args []string, env func(string) string, stdout, stderr io.Writer) int {
	c, err := parse(args, env)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, usage(c.flags))
		return caddy.ExitCodeSuccess
	case err != nil:
		fmt.Fprintf(stderr, "shield-ingress: %v\nTry shield-ingress --help.\n", err)
		return caddy.ExitCodeFailedStartup
	case c.version:
		fmt.Fprintln(stdout, version())
		return caddy.ExitCodeSuccess
	}
	config, err := ingress.Config(c.options)
	if err != nil {
		fmt.Fprintf(stderr, "shield-ingress: %v\n", err)
		return caddy.ExitCodeFailedStartup
	}
	if c.printConfig {
		fmt.Fprintf(stdout, "%s\n", config)
		return caddy.ExitCodeSuccess
	}
	limitMemory()
	handleSignals()
	if err := caddy.Load(config, true); err != nil {
		caddy.Log().Error("cannot start", zap.Error(err))
		return caddy.ExitCodeFailedStartup
	}
	caddy.Log().Info("serving", zap.String("version", version()))
	return -1
}

// handleSignals shuts the process down on SIGTERM and SIGINT: first it is not ready and asks clients to
// reconnect, then Caddy takes its shutdown delay and its grace period. A second signal ends it at once. Caddy
// must do the shutdown: only then do its servers, which ask caddy.Exiting, wait for the requests in flight.
func handleSignals() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		ingress.Drain()
		<-signals
		caddy.Log().Warn("second signal: ending at once")
		os.Exit(caddy.ExitCodeForceQuit)
	}()
	caddy.TrapSignals()
}

// limitMemory makes the garbage collector stay below the memory limit of the container,
// unless GOMEMLIMIT is set. The runtime reads the number of CPUs from the cgroup.
func limitMemory() {
	limit, err := memlimit.Set(memlimit.WithProvider(memlimit.FromCgroup)) // nine tenths of it
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		caddy.Log().Warn("the memory limit of the container cannot be read; set GOMEMLIMIT", zap.Error(err))
	case limit < math.MaxInt64:
		caddy.Log().Info("memory limit", zap.Int64("bytes", limit))
	}
}

// version returns the versions of the program and its parts.
func version() string {
	base, _ := caddy.Version()
	return fmt.Sprintf("shield-ingress %s (Caddy %s, %s, %s/%s)", ingress.Version(), base, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
