package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// A person on call blocks, forgives, sets and observes, and sees it; a page of another origin cannot.
func TestOverrides(t *testing.T) {
	address, admin := startProxy(t, "--to", backend(t), "--rate", "5/m", "--burst", "1", "--capacity", "1000/s", "--concurrency", "10")
	run := func(line, want string) {
		t.Helper()
		args := strings.Fields(line)
		args = append(args[:1:1], append([]string{"--address", admin}, args[1:]...)...)
		if out, _ := command(t, args...).CombinedOutput(); !regexp.MustCompile(want).Match(out) {
			t.Errorf("shield %s:\n%swant %s", line, out, want)
		}
	}
	get := func(want int) {
		t.Helper()
		resp, err := http.Get("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
	}
	get(200)
	get(429)
	run("forgive 127.0.0.1", `^proxy: 127.0.0.1 is forgiven: its bucket in zone per_client`)
	get(200)
	run("forgive 192.0.2.1", `^proxy: 192.0.2.1 is forgiven: nothing was held against it\.\n$`)
	run("mode observe --shield proxy --for 1h", `^1: mode observe of shield proxy, until `)
	get(200)
	get(200)
	run("overrides end 1", `^1 has ended\.\n$`)
	get(429)
	run("forgive 127.0.0.1", `forgiven: its bucket`)
	run("block 127.0.0.1 --for 10m", `^2: 127.0.0.1 is blocked in all shields, until .*\nTo end it before: shield overrides end 2\n$`)
	get(429)
	run("explain 127.0.0.1", `now would be refused with 429 and Retry-After (600|5\d\d): blocked\.\n(.|\n)*  block +by an operator, for (600|5\d\d) s\n`)
	run("set proxy capacity 300/s --for 30m", `^3: capacity 300/s of shield proxy, until `)
	run("set proxy per_client rate 9/s burst 4 --for 30m", `^4: per_client rate 9/s burst 4 of shield proxy, until `)
	run("set proxy capacity 300/s --for 40m", `^5: capacity 300/s of shield proxy, until .*\nIt replaces 3: capacity 300/s of shield proxy, until .*, which 127.0.0.1:\d+.* asked for\.\nTo end it before: shield overrides end 5\n$`)
	run("set proxy concurrency none --for 30m", `^Error: concurrency is "none"; want 1 to 1000000\n`)
	run("set proxy concurrency 20 --for 30d", `^Error: --for is "30d"; want how long it lasts, 1s to 24h, like 10m\n`)
	run("block 127.0.0.1", `^Error: --for is ""; want how long it lasts, 1s to 24h, like 10m\n`)
	run("status", `proxy +enforce +300/s burst 30(.|\n)*OVERRIDE +WHAT +LEFT +ASKED BY\n2 +127.0.0.1 is blocked in all shields +(10m0s|9m\d+s) +127.0.0.1:\d+.*\n4 +per_client rate`)
	run("overrides", `^OVERRIDE +WHAT(.|\n)*4 +per_client rate 9/s burst 4 of shield proxy`)
	run("overrides end 7", `^Error: override is "7"; want the ID of one in force\n`)

	r, err := http.NewRequest(http.MethodPost, "http://"+admin+"/shield/overrides", strings.NewReader(`{"kind": "mode", "value": "observe", "for": "1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", "http://evil.example")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another origin gets %s", resp.Status)
	}
	metrics, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	text, err := io.ReadAll(metrics.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`caddy_shield_overrides{kind="block",shield="proxy"} 1`, `caddy_shield_overrides{kind="set",shield="proxy"} 2`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

// Nothing survives the process.
func TestNoOverrideSurvivesARestart(t *testing.T) {
	args := []string{"--to", backend(t), "--rate", "1000/s"}
	_, admin := startProxy(t, args...)
	if out, err := command(t, "block", "--address", admin, "127.0.0.1", "--for", "24h").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	address, admin := startProxy(t, args...)
	if out, err := command(t, "overrides", "--address", admin).Output(); err != nil || string(out) != "No override is in force.\n" {
		t.Errorf("%v\n%s", err, out)
	}
	resp, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestExplain(t *testing.T) {
	address, admin := startProxy(t, "--to", backend(t), "--rate", "5/m", "--burst", "2", "--capacity", "1000/s", "--concurrency", "10")
	for range 3 {
		resp, err := http.Get("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for _, c := range []struct {
		args, want string
	}{
		{"127.0.0.1", `^proxy: a request of 127.0.0.1 now would be refused with 429 and Retry-After \d+: quota of zone per_client\.
  zone +per_client: 0 of 2 tokens left, enough for a request in \d+\.\d s
  capacity +\d+ of 100 tokens left, for all clients
  in flight +0 of 10, 0 of this client; 0 of 0 wait in the queue
  appointment  of zone per_client: due in \d+\.\d s
  class +default
$`},
		{"192.0.2.7", `^proxy: a request of 192.0.2.7 now would be admitted\.\n`},
		{"--json 192.0.2.7", `^{"client":"192.0.2.7","shields":\[{"name":"proxy"`},
		{"--shield nothing 192.0.2.7", `^Error: shield is "nothing"; want one of \["proxy"\]\n`},
	} {
		args := append([]string{"explain", "--address", admin}, strings.Fields(c.args)...)
		out, _ := command(t, args...).CombinedOutput()
		if !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("explain %s:\n%s", c.args, out)
		}
	}
}

// shield status --open prints where the page is, or what to change so that browsers get there.
func TestPageAddress(t *testing.T) {
	_, admin := startProxy(t, "--to", backend(t), "--rate", "5/s")
	out, err := command(t, "status", "--open", "--address", admin).CombinedOutput()
	if want := "http://" + admin + "/shield/\n"; err != nil || string(out) != want {
		t.Errorf("%v: %q; want %q", err, out, want)
	}
	closed := testserver.FreeAddress(t)
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte("{\n\tadmin "+closed+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := command(t, "run", "--config", file, "--adapter", "caddyfile")
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = run.Wait()
	})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if conn, err := net.Dial("tcp", closed); err == nil {
			conn.Close()
			break
		}
	}
	out, err = command(t, "status", "--open", "--address", closed).CombinedOutput()
	if _, failed := err.(*exec.ExitError); !failed || !strings.Contains(string(out), "page localhost:2020") {
		t.Errorf("without a page: %v: %s", err, out)
	}
}

// Two processes at one admin address would each get some of what a person on call asks for. The second
// one starts at another address, with the endpoint off, at a Unix socket, or when the first has ended.
func TestRunRefusesASharedAdmin(t *testing.T) {
	admin := testserver.FreeAddress(t)
	start := func(endpoint string, env ...string) (*exec.Cmd, *bufio.Scanner) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "Caddyfile")
		text := fmt.Sprintf("{\n\tadmin %s\n}\nhttp://%s {\n\tshield 5/s\n\trespond ok\n}\n", endpoint, testserver.FreeAddress(t))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := command(t, "run", "--config", file, "--adapter", "caddyfile")
		cmd.Env = append(cmd.Env, env...)
		logs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd, bufio.NewScanner(logs)
	}
	says := func(logs *bufio.Scanner, want string) {
		t.Helper()
		all := ""
		for logs.Scan() {
			if all += logs.Text() + "\n"; strings.Contains(logs.Text(), want) {
				return
			}
		}
		t.Errorf("nothing says %q in\n%s", want, all)
	}
	const up = "serving initial configuration"
	refusal := "the admin address is " + admin + ", where another process listens, maybe another shield; " +
		"want that process stopped, or another address in the global option admin or in CADDY_ADMIN"

	first, logs := start(admin)
	says(logs, up)
	if out, err := command(t, "reload", "--config", first.Args[3], "--adapter", "caddyfile", "--force", "--address", admin).CombinedOutput(); err != nil {
		t.Errorf("a reload: %v\n%s", err, out)
	}
	for endpoint, want := range map[string]string{
		admin: refusal, "off": up, testserver.FreeAddress(t): up, "unix/" + filepath.Join(t.TempDir(), "admin.sock"): up,
	} {
		_, logs := start(endpoint)
		says(logs, want)
	}
	_, logs = start("{env.ADMIN}", "ADMIN="+admin)
	says(logs, refusal)

	if err := first.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	_, logs = start(admin)
	says(logs, up)
}
