package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/share/redis/testserver"
)

// A server whose clients may send one request per hour is killed under load, and started again: it has forgotten the last ten
// seconds at most. What it writes when it is stopped has all.
func TestStateAfterAKill(t *testing.T) {
	t.Parallel()
	path, address := filepath.Join(t.TempDir(), "state"), testserver.FreeAddress(t)
	config := fmt.Sprintf("{\nadmin off\nshield {\nstate {\nfile %s\n}\n}\n}\nhttp://%s {\nshield {\nzone z {\nkey {header.X-Key}\nrate 1/h\n}\n}\nrespond ok\n}\n", path, address)
	run := func() *exec.Cmd {
		cmd := caddyfile(t, config)
		await(t, cmd, serving)
		return cmd
	}
	end := func(cmd *exec.Cmd, by os.Signal) {
		if err := cmd.Process.Signal(by); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	ask := func(key string) int {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		r.Header.Set("X-Key", key)
		return statusOf(r)
	}
	savedAt := func() time.Time { // the file is as it was written, always
		b, err := os.ReadFile(path)
		if err != nil {
			return time.Time{}
		}
		is, err := shield.ReadSaved(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return is.At
	}
	began, cmd := time.Now(), run()
	var admitted []time.Time // client n at the nth
	var killed atomic.Bool
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		for range time.Tick(2 * time.Millisecond) { // 500 requests per second leave the processors to others
			if killed.Load() {
				return
			}
			if ask(fmt.Sprint("client ", len(admitted))) == http.StatusOK {
				admitted = append(admitted, time.Now())
			}
		}
	}()
	for at := savedAt(); at.Before(began.Add(2*time.Second)) || time.Since(at) < time.Second; at = savedAt() {
		if time.Since(began) > 40*time.Second {
			t.Fatal("it is not written again")
		}
		time.Sleep(50 * time.Millisecond)
	}
	at := time.Now()
	end(cmd, os.Kill)
	killed.Store(true)
	<-loaded
	saved := savedAt()
	if at.Sub(saved) > 12*time.Second {
		t.Errorf("%v are lost", at.Sub(saved))
	}
	cmd = run()
	forgiven, lost := 0, 0
	for n := 0; n < len(admitted); n += 1 + len(admitted)/2000 {
		if ask(fmt.Sprint("client ", n)) != http.StatusOK {
			continue
		}
		if lost++; admitted[n].Before(saved.Add(-time.Millisecond)) {
			forgiven++
		}
	}
	if forgiven > 0 || lost == 0 {
		t.Errorf("%d clients of before are forgiven, and %d of after", forgiven, lost-forgiven)
	}
	t.Logf("%d clients came; %v before the kill are lost", len(admitted), at.Sub(saved).Round(time.Millisecond))
	if status := ask("the last"); status != http.StatusOK {
		t.Fatalf("a new client got %d", status)
	}
	end(cmd, os.Interrupt)
	run()
	if status := ask("the last"); status != http.StatusTooManyRequests {
		t.Errorf("after a stop it got %d", status)
	}
}
