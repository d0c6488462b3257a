// Command shield-ingress is an ingress controller for Kubernetes that protects what is
// behind it: Caddy, the shield, and a static config made of the flags. Everything
// else it learns from the cluster.
//
// It ends with 0 after a shutdown on SIGTERM or SIGINT, with 1 if it could not start,
// with 2 if a second signal cut the shutdown short, and with 3 if that failed.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // for images without a zone database

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/herdshield/shield/k8s/ingress"
)

func main() {
	if code := run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr); code >= 0 {
		os.Exit(code)
	}
	select {} // the signals end it
}

// run does what the arguments say, and returns the exit code, or -1 if a server is
// running now.
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

// handleSignals has SIGTERM and SIGINT shut the process down: first it is not ready any
// more and asks clients to go elsewhere, then Caddy takes its shutdown delay and its
// grace period. A second one ends it at once. Shutting down is left to Caddy because
// only so do its servers wait for the requests in flight: they ask caddy.Exiting.
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

// limitMemory has the garbage collector stay below the memory limit of the container,
// unless GOMEMLIMIT is set. The number of CPUs needs nothing: the runtime looks at
// the cgroup by itself.
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

// version returns what this is made of.
func version() string {
	own := "(unknown)"
	if build, ok := debug.ReadBuildInfo(); ok {
		own = build.Main.Version
	}
	base, _ := caddy.Version()
	return fmt.Sprintf("shield-ingress %s (Caddy %s, %s, %s/%s)", own, base, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
