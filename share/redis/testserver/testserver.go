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

	redigo "github.com/gomodule/redigo/redis"
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
	port := freePort(t)
	s := &Server{t: t, program: program, Addr: net.JoinHostPort("127.0.0.1", port)}
	s.start(append([]string{
		"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--enable-debug-command", "local",
	}, args...)...)
	return s
}

// start starts the server, until the test ends.
func (s *Server) start(args ...string) {
	s.t.Helper()
	s.args = args
	s.t.Cleanup(s.Kill)
	s.Restart()
}

// Restart starts the server again after Kill, empty, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	s.process = exec.Command(s.program, s.args...)
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.until("an answer to PING", func() bool {
		got, err := s.do("PING")
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
		s.process.Process.Kill()
		s.process.Wait()
		s.process = nil
	}
}

// Do sends one command on a connection of its own, and returns the reply as text: that of a list has one
// line for each element.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	got, err := s.do(args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return got
}

func (s *Server) do(args ...string) (string, error) {
	const most = 10 * time.Second
	conn, err := redigo.Dial("tcp", s.Addr, redigo.DialPassword(s.Password), redigo.DialUseTLS(s.TLS != nil), redigo.DialTLSConfig(s.TLS),
		redigo.DialConnectTimeout(most), redigo.DialReadTimeout(most), redigo.DialWriteTimeout(most))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	reply, err := conn.Do(args[0], redigo.Args{}.AddFlat(args[1:])...)
	return textOf(reply), err
}

func textOf(reply any) string {
	switch reply := reply.(type) {
	case nil:
		return ""
	case []byte:
		return string(reply)
	case []any:
		lines := make([]string, len(reply))
		for i, one := range reply {
			lines[i] = textOf(one)
		}
		return strings.Join(lines, "\n")
	}
	return fmt.Sprint(reply)
}

// CPU returns the processor time that the server has used.
func (s *Server) CPU() (used time.Duration) {
	s.t.Helper()
	for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
		_, line, _ := strings.Cut(s.Do("INFO", "cpu"), name)
		var seconds float64
		if _, err := fmt.Sscan(line, &seconds); err != nil {
			s.t.Fatal(err)
		}
		used += time.Duration(seconds * float64(time.Second))
	}
	return used
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

// free listens at the port for a moment. No program is started meanwhile: until it runs it has our sockets,
// so connections would reach this one.
func free(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
