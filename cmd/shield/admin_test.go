package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/share/redis/testserver"
)

// A person on call sees what a running proxy does, forgives, observes and blocks, and sees that.
func TestCommandsOfARunningProxy(t *testing.T) {
	t.Parallel()
	address, admin := startProxy(t, "--to", backend(t), "--rate", "5/m", "--burst", "2", "--capacity", "1000/s", "--concurrency", "10")
	get := func(want int) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		if got := statusOf(r); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	run := func(line, want string) {
		t.Helper()
		args := strings.Fields(line)
		args = append(args[:1:1], append([]string{"--address", admin}, args[1:]...)...)
		if out := ask(args...); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("shield %s:\n%swant %s", line, out, want)
		}
	}
	get(200)
	get(200)
	get(429)
	run("status", `\nSHIELD +ADMITTED +CONCURRENCY (.*)MODE.*\nproxy +2 +10 (.*)enforce(.|\n)*\nproxy +100 +1s +1000\s(.|\n)*\nZONE +ADMITTED +BURST +KEY .*\nclients +2 +2 +\{http.vars.client_ip\} +1 +200000 +1m0s +5 +1\s`)
	run("status --url", `^http://`+admin+`/shield/\n$`)
	run("who", `proxy +127.0.0.1 +go +1 +GET / +[\d.]+ +quota +\n`)
	run("explain 127.0.0.1", `^proxy: a request from 127.0.0.1 now would be rejected with 429 and Retry-After \d+: quota of zone clients\.\n`)
	run("forgive 127.0.0.1", `^proxy: 127.0.0.1 is forgiven: its bucket in zone clients, 1 appointment`)
	get(200)
	get(200)
	run("mode observe --shield proxy --for 1h", `^1: mode observe of shield proxy, until `)
	get(200)
	run("overrides end 1", `^1 has ended\.\n$`)
	get(429)
	run("block 127.0.0.1 --for 10m", `^2: 127.0.0.1 is blocked in shield proxy, until .*\nTo end it early: shield overrides end 2\n$`)
	run("status", `(.|\n)*OVERRIDE +WHAT +LEFT +SET BY\n2 +127.0.0.1 is blocked in shield proxy +(10m0s|9m\d+s) +127.0.0.1:\d+`)
	shown := metrics(t, admin)
	for _, want := range []string{`caddy_shield_requests_total{outcome="rejected",reason="quota",shield="proxy"} 2`, `caddy_shield_overrides{kind="block",shield="proxy"} 1`} {
		if !strings.Contains(shown, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

// Two processes at one admin address would each get some of what a person on call asks for. The second
// one starts at another address, with the endpoint off, at a Unix socket, or when the first has ended.
func TestRunRejectsASharedAdmin(t *testing.T) {
	t.Parallel()
	admin := testserver.FreeAddress(t)
	start := func(endpoint, want string, env ...string) *exec.Cmd {
		t.Helper()
		cmd := caddyfile(t, fmt.Sprintf("{\n\tadmin %s\n}\nhttp://%s {\n\tshield 5/s\n\trespond ok\n}\n", endpoint, testserver.FreeAddress(t)))
		cmd.Env = append(cmd.Env, env...)
		await(t, cmd, want)
		return cmd
	}
	rejection := "the admin address is " + admin + ", where another process is listening, maybe another shield; " +
		"stop that process, or set another address in the global option admin or in CADDY_ADMIN"

	first := start(admin, serving)
	if out, err := command(t, "reload", "--config", first.Args[3], "--adapter", "caddyfile", "--force", "--address", admin).CombinedOutput(); err != nil {
		t.Errorf("a reload: %v\n%s", err, out)
	}
	for endpoint, want := range map[string]string{
		admin: rejection, "off": serving, testserver.FreeAddress(t): serving, "unix/" + filepath.Join(t.TempDir(), "admin.sock"): serving,
	} {
		start(endpoint, want)
	}
	start("{env.ADMIN}", rejection, "ADMIN="+admin)

	if err := first.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	start(admin, serving)
}
