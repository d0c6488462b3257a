package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis/testserver"
)

// keepState is a config with a quota of one request per hour, whose state is kept in a file.
func keepState(t *testing.T, path string) (cmd *exec.Cmd, url string) {
	address := testserver.FreeAddress(t)
	return caddyfile(t, fmt.Sprintf(`{
	admin %s
	shield {
		state {
			file %s
		}
	}
}
http://%s {
	shield {
		zone z {
			key {header.X-Key}
			rate 1/h
		}
	}
	respond ok
}`, testserver.FreeAddress(t), path, address)), "http://" + address
}

// savedState reads a file, which must be as it was written.
func savedState(t *testing.T, path string) (is *shield.Saved, size int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		is, err = shield.ReadSaved(bytes.NewReader(b))
	}
	if err != nil {
		t.Fatal(err)
	}
	return is, len(b)
}

// A server with 100,000 clients is killed under load, and started again: it has forgotten the last ten seconds at most. What it
// writes when it is stopped has all.
func TestStateAfterAKill(t *testing.T) {
	t.Parallel()
	path, secret := filepath.Join(t.TempDir(), "state"), []byte("0123456789abcdef0123456789abcdef")
	const clients = 100_000
	g, err := shield.New(shield.Config{Zones: []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Hour}}}, Secret: secret}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range clients {
		g.Admit(time.Second, shield.Request{Keys: []limiter.Key{limiter.Key(rand.Uint64())}})
	}
	var before bytes.Buffer
	if err := shield.Save(&before, time.Second, time.Now(), secret, g); err != nil {
		t.Fatal(err)
	}
	run := func(what string) (*exec.Cmd, string) {
		cmd, url := keepState(t, path)
		began := time.Now()
		await(t, cmd, serving)
		t.Logf("%s it serves after %v", what, time.Since(began).Round(time.Millisecond))
		return cmd, url
	}
	empty, _ := run("without a state")
	end(t, empty, os.Interrupt)
	if err := os.WriteFile(path, before.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, url := run(fmt.Sprintf("with a state of %d clients", clients))
	first, size := savedState(t, path)
	if size > 40*clients {
		t.Errorf("%d bytes for %d clients; want at most 40 each", size, clients)
	}
	ask := func(key string) int {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		r.Header.Set("X-Key", key)
		return statusOf(r)
	}
	var admitted []time.Time // client n at the nth
	var killed atomic.Bool
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		for !killed.Load() {
			if ask(fmt.Sprint("client ", len(admitted))) == http.StatusOK {
				admitted = append(admitted, time.Now())
			}
		}
	}()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if is, _ := savedState(t, path); is.At.After(first.At) && time.Since(is.At) > time.Second {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not written again")
		}
	}
	at := time.Now()
	end(t, cmd, os.Kill)
	killed.Store(true)
	<-loaded
	is, size := savedState(t, path)
	if at.Sub(is.At) > 12*time.Second {
		t.Errorf("%v are lost", at.Sub(is.At))
	}
	cmd, url = run("after the kill")
	forgiven, lost := 0, 0
	for n := 0; n < len(admitted); n += 1 + len(admitted)/2000 {
		if ask(fmt.Sprint("client ", n)) != http.StatusOK {
			continue
		}
		if lost++; admitted[n].Before(is.At.Add(-time.Millisecond)) {
			forgiven++
		}
	}
	if forgiven > 0 || lost == 0 {
		t.Errorf("%d clients of before are forgiven, and %d of after", forgiven, lost-forgiven)
	}
	t.Logf("%d clients came, %d bytes are written; %v before the kill are lost", len(admitted), size, at.Sub(is.At).Round(time.Millisecond))
	if status := ask("the last"); status != http.StatusOK {
		t.Fatalf("a new client got %d", status)
	}
	end(t, cmd, os.Interrupt)
	_, url = run("after a stop")
	if status := ask("the last"); status != http.StatusTooManyRequests {
		t.Errorf("after a stop it got %d", status)
	}
}

// end ends a process, and waits until it has.
func end(t *testing.T, cmd *exec.Cmd, by os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(by); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}
