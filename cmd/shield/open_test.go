package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

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
	if _, failed := err.(*exec.ExitError); !failed || !strings.Contains(string(out), "origins "+closed+` ""`) {
		t.Errorf("without origins: %v: %s", err, out)
	}
}

func TestPageAt(t *testing.T) {
	for address, want := range map[string]string{
		"localhost:2019": "http://localhost:2019/shield/", ":2019": "http://localhost:2019/shield/", "0.0.0.0:2019": "http://localhost:2019/shield/",
		"[::1]:2019": "http://[::1]:2019/shield/", "edge-1:2019": "http://edge-1:2019/shield/",
	} {
		if got, _, err := pageAt(address); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", address, got, err, want)
		}
	}
	if _, _, err := pageAt("unix//run/admin.sock"); err == nil || !strings.Contains(err.Error(), "no browser") {
		t.Errorf("a socket: %v", err)
	}
}
