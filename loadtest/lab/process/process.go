// Package process runs servers on loopback: other programs, and handlers of this one.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Start runs a program that is to serve at an address, and returns when it can be reached.
// It has 10 s for that. Its output goes to the log. It runs until stop is called, whether or
// not ctx ends. stop ends it and what it has started, by force after 5 s, and returns when
// it has ended.
func Start(ctx context.Context, cmd *exec.Cmd, log, network, address string) (stop func(), err error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the program has its own
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	if user := cmd.SysProcAttr.Credential; user != nil {
		if err := out.Chown(int(user.Uid), int(user.Gid)); err != nil {
			return nil, err
		}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for us, and we end all of its group
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // it fails if we end it, and reach sees that nothing listens
	}()
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM) // nginx's master ends its workers
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
	}
	if err := reach(ctx, cmd, ended, network, address); err != nil {
		stop()
		said, _ := os.ReadFile(log)
		return nil, fmt.Errorf("%s %w; it said:\n%s", cmd.Args[0], err, said)
	}
	return stop, nil
}

// reach returns when something listens at the address.
func reach(ctx context.Context, cmd *exec.Cmd, ended <-chan struct{}, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("has ended: %v", cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("cannot be reached at %s: %w", address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// handedOut are all addresses that FreeAddress has returned.
var handedOut sync.Map

// FreeAddress returns an address at which nothing listened a moment ago, never the same twice:
// Caddy lets several processes listen at one port, and each would get a part of the connections.
// Its port is below those that connections of clients get (ip_local_port_range).
func FreeAddress(ctx context.Context) (string, error) {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.N(12_000))
		if _, again := handedOut.LoadOrStore(address, true); again {
			continue
		}
		err := probe(ctx, address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return address, err
		}
	}
}

// probe listens at the address for a moment. No program is started meanwhile: until it runs it has our sockets,
// so connections would reach this one.
func probe(ctx context.Context, address string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// Free is FreeAddress for a test.
func Free(t interface {
	Helper()
	Context() context.Context
	Fatal(...any)
}) string {
	t.Helper()
	address, err := FreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Serve serves h at a free address until stop is called.
func Serve(ctx context.Context, h http.Handler) (address string, stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go server.Serve(l) // returns when stop closes it
	return l.Addr().String(), func() { server.Close() }, nil
}

// Program has Go link the program shield into its cache, and returns the path.
func Program() (path string, err error) {
	output := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Stderr = os.Stderr
		out, fault := cmd.Output()
		err = cmp.Or(err, fault)
		return strings.TrimSpace(string(out))
	}
	root := output("list", "-m", "-f", "{{.Dir}}", "github.com/herdshield/shield")
	for range 2 { // the first time, a program that is not there yet is elsewhere
		path = output("-C", root, "run", "-exec", "echo", "./cmd/shield")
	}
	return path, err
}

// Main runs the tests of a package with the program shield, as its TestMain does: it sets the path of the
// Program, once for all packages. code is for os.Exit.
func Main(tests interface{ Run() int }, program *string) (code int) {
	var err error
	if *program, err = Program(); err != nil {
		return 1
	}
	return tests.Run()
}
