// Package testserver starts real stores for tests: redis-server, alone, as a Cluster, or
// with Sentinels, on free ports of the loopback interface and without files that stay.
package testserver

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Required is the name of the environment variable that makes tests fail, not be skipped,
// where no server is installed. CI sets it.
const Required = "SHIELD_REDIS_REQUIRED"

// Programs returns the servers that are installed, of those that are supported. It skips
// the test if there is none.
func Programs(t testing.TB) (programs []string) {
	t.Helper()
	for _, program := range []string{"redis-server", "valkey-server"} {
		if _, err := exec.LookPath(program); err == nil {
			programs = append(programs, program)
		}
	}
	if len(programs) == 0 {
		if os.Getenv(Required) != "" {
			t.Fatalf("no redis-server is installed, and %s is set", Required)
		}
		t.Skip("no redis-server is installed")
	}
	return programs
}

// Each runs a test with each server that is installed.
func Each(t *testing.T, test func(t *testing.T, program string)) {
	t.Helper()
	for _, program := range Programs(t) {
		t.Run(program, func(t *testing.T) { test(t, program) })
	}
}

// A Server is a process that the test has started, and that ends with it.
type Server struct {
	Addr     string
	TLS      *tls.Config // of its clients; nil: without
	Password string      // of the default user

	t       testing.TB
	program string
	args    []string
	process *exec.Cmd
}

// Start starts a server that keeps nothing, with further arguments such as
// "--requirepass", "secret", and returns when it answers.
func Start(t testing.TB, program string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, program: program}
	port := freePort(t)
	s.Addr = net.JoinHostPort("127.0.0.1", port)
	s.args = append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no", "--enable-debug-command", "local",
	}, args...)
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Restart starts the server again after Kill, empty, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	s.process = exec.Command(s.program, s.args...)
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.until("an answer to PING", func() bool {
		got, err := do(s.Addr, s.TLS, s.Password, "PING")
		return err == nil && got == "PONG"
	})
}

// until waits for something to become true of the server.
func (s *Server) until(what string, ok func() bool) {
	s.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Fatalf("%s %v: not %s within a minute", s.program, s.args, what)
}

// Kill ends the server at once.
func (s *Server) Kill() {
	if s.process != nil {
		s.signal(syscall.SIGKILL)
		s.process.Wait()
		s.process = nil
	}
}

// Freeze stops the server without closing anything, until Thaw.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

// Do sends one command, and returns the reply as text.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	got, err := do(s.Addr, s.TLS, s.Password, args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return got
}

// CPU returns the processor time that the server has used.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
	if err != nil {
		s.t.Skip(err)
	}
	return ticks(s.t, string(stat))
}

// FreeAddress returns an address of the loopback interface on which no program listens. Its
// port is below those that connections get, so that none takes it before a program listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", freePort(t))
}

// given are the ports of this process's tests: one that runs beside another may not listen yet.
var given sync.Map

// freePort returns a port that is free, and whose tenthousandth successor is free, too: nodes
// of a Cluster use both.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := 10_000 + rand.IntN(12_000)
		if _, was := given.LoadOrStore(port, true); !was && free(port) && free(port+10_000) {
			return strconv.Itoa(port)
		}
	}
	t.Fatal("no port is free")
	return ""
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// ticks reads user and system time from a line of /proc, whose ticks are 10 ms on Linux.
func ticks(t testing.TB, stat string) (used time.Duration) {
	t.Helper()
	_, fields, _ := strings.Cut(stat, ") ") // the name before may have spaces
	for _, field := range strings.Fields(fields)[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return used
}
