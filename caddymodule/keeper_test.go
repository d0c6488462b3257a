package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/gofrs/flock"

	"github.com/herdshield/shield"
)

// kept is a setup with a quota of one request per hour for each X-Key, and a state file.
func kept(path, log string) setup {
	return setup{
		apps:     fmt.Sprintf(`"shield": {"state": {"file": %q}},`, path),
		handlers: zoned(1, 1) + "," + respondOK,
		log:      fmt.Sprintf(`{"output": "file", "filename": %q}`, log),
	}
}

// logged returns the lines of a log that name the state, without those of Caddy.
func logged(t *testing.T, log string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var is struct{ Logger, Msg, Error string }
		if err := json.Unmarshal([]byte(line), &is); err == nil && is.Logger == "shield" && strings.Contains(is.Msg, "saved") {
			lines = append(lines, is.Msg+" "+is.Error)
		}
	}
	return lines
}

// answers checks how clients of these keys are answered.
func (r *rig) answers(when string, status int, keys ...string) {
	r.Helper()
	for _, key := range keys {
		if a := r.get("/", "X-Key", key); a.StatusCode != status {
			r.Errorf("%s: %s got %d, want %d", when, key, a.StatusCode, status)
		}
	}
}

// What clients have used outlives a restart, and so does a reload in between: also of a config that fails to start.
func TestStateOutlivesARestart(t *testing.T) {
	path, log := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "log")
	t.Run("before", func(t *testing.T) {
		r := start(t, kept(path, log))
		r.answers("first", http.StatusOK, "a")
		r.load(kept(path, log))
		for _, b := range badSetups(t, zoned(9, 50)) {
			b.setup.apps += kept(path, log).apps
			if err := r.tryLoad(b.setup); err == nil {
				t.Errorf("%s is loaded", b.name)
			}
		}
		r.answers("after reloads", http.StatusTooManyRequests, "a")
		r.answers("after reloads", http.StatusOK, "b")
		now := shield.Now()
		r.app().keeper.tend(r.app(), now+2*saveEvery) // there is an app of which it is kept: one that failed is not
		eventually(t, "it is written", func() bool { return r.app().keeper.written.Load() > int64(now) })
		r.answers("after it is written", http.StatusOK, "c")
	})
	if is, err := os.Stat(path); err != nil || is.Mode() != 0o600 {
		t.Fatalf("%v, mode %v; want 0600", err, is.Mode())
	}
	t.Run("after", func(t *testing.T) {
		r := start(t, kept(path, log))
		r.answers("after a restart", http.StatusTooManyRequests, "a", "b", "c")
		r.answers("after a restart", http.StatusOK, "d")
		if r.app().keeper.saved != nil {
			t.Error("what was read stays in memory")
		}
	})
	if names, _ := filepath.Glob(path + "*"); len(names) != 2 { // and its lock
		t.Errorf("there are %q", names)
	}
	lines := logged(t, log)
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "the saved state is loaded") {
		t.Errorf("the log has %q", lines)
	}
}

// What cannot be read is told and put aside, as it was, and the server starts. It is not overwritten.
func TestStateThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	other := shield.Must(shield.New(shield.RatePerClient(1, 1), nil))
	var foreign strings.Builder
	if err := shield.Save(&foreign, 0, time.Now(), nil, other); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ data, want string }{
		"empty":   {"", "damaged: EOF"},
		"cut":     {foreign.String()[:foreign.Len()-9], "damaged: unexpected EOF"},
		"foreign": {foreign.String(), "another secret"},
	} {
		path, log := filepath.Join(dir, name), filepath.Join(dir, name+".log")
		if err := os.WriteFile(path, []byte(c.data), 0o600); err != nil {
			t.Fatal(err)
		}
		invalid := validateJSON(kept(path, log).json("127.0.0.1:0"))
		if b, err := os.ReadFile(path); invalid != nil || err != nil || string(b) != c.data {
			t.Errorf("%s: validation: %v; it has changed the file: %v", name, invalid, err)
		}
		r := start(t, kept(path, log))
		r.answers("anew", http.StatusOK, "a")
		if b, err := os.ReadFile(path + ".aside"); err != nil || string(b) != c.data {
			t.Errorf("%s: %v: %d bytes are put aside, want %d", name, err, len(b), len(c.data))
		}
		if lines := logged(t, log); len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("%s: the log has %q, want %q", name, lines, c.want)
		}
		_ = caddy.Stop()
	}
}

// A path that cannot be used is an error of the config, and the running one stays. A process that has the file keeps it; a config
// is valid all the same.
func TestStateErrors(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	other := flock.New(taken + ".lock")
	defer other.Close()
	if ok, err := other.TryLock(); !ok {
		t.Fatal(err)
	}
	r := start(t, setup{handlers: zoned(1, 1) + "," + respondOK})
	r.answers("first", http.StatusOK, "a")
	for path, want := range map[string]string{
		"":                            "state: file is missing; use a path, like /var/lib/shield/state",
		"{env.SHIELD_TEST_NONE}":      "state: file has an empty or unknown placeholder, {env.SHIELD_TEST_NONE}; use",
		filepath.Join(dir, "no", "a"): "no such file or directory; use one that no other process uses, in a directory this one can write to",
		dir:                           "state: file: read",
		taken:                         "taken.lock is locked by another process; use one that no other process uses",
	} {
		if err := r.tryLoad(kept(path, filepath.Join(dir, "log"))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", path, err, want)
		}
	}
	r.answers("after them", http.StatusTooManyRequests, "a")
	r.answers("after them", http.StatusOK, "b")
	if err := validateJSON(kept(taken, filepath.Join(dir, "log")).json("127.0.0.1:0")); err != nil {
		t.Errorf("validation while another process has the file: %v", err)
	}
	if _, err := os.Stat(taken); err == nil {
		t.Error("the file of another process is written")
	}
}

// While the file cannot be written, requests are decided as ever, it is logged once, and the metric grows. It is written as soon as it can.
func TestStateThatCannotBeWritten(t *testing.T) {
	dir, log := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := start(t, kept(filepath.Join(dir, "state"), log))
	keeper, app := r.app().keeper, r.app()
	app.stopReports()
	tend := func(now time.Duration) (written int64) {
		keeper.tend(app, now)
		keeper.mu.Lock()
		defer keeper.mu.Unlock()
		return keeper.written.Load()
	}
	now, first := time.Duration(0), keeper.written.Load()
	later := func() int64 {
		now += 2*saveEvery + time.Duration(keeper.written.Load())
		return tend(now)
	}
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(dir, dir+"2")
	later()
	written := later()
	r.answers("without a directory", http.StatusOK, "a")
	r.answers("without a directory", http.StatusTooManyRequests, "a")
	if lines := logged(t, log); len(lines) != 1 || !strings.Contains(lines[0], "the state cannot be saved") || written != first {
		t.Errorf("the log has %q", lines)
	}
	if old, err := os.ReadFile(filepath.Join(dir+"2", "state")); err != nil || len(old) == 0 {
		t.Errorf("the file that there was: %v, %d bytes", err, len(old))
	}
	move(dir+"2", dir)
	if tend(now+time.Second) != first {
		t.Error("it is tried again within a second")
	}
	later()
	if written = later(); tend(time.Duration(written)+saveEvery-reportEvery/2-1) != written {
		t.Error("it is written before it is time to")
	}
	if lines := logged(t, log); len(lines) != 2 || !strings.Contains(lines[1], "saved again") || written == first {
		t.Errorf("the log has %q", lines)
	}
}

// Tickets and keys have the secret of the file, and one app's metrics say how old it is. Without a file nothing is different.
func TestStateHasASecret(t *testing.T) {
	s := kept(filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "log"))
	s.handlers = strings.Replace(s.handlers, `"zones"`, `"retries": {"tickets": true}, "zones"`, 1)
	secrets := map[string]int{}
	for range 2 {
		is := start(t, s).handler().force.Load().config
		secrets[string(is.Secret)]++
		secrets[string(is.Retries.Secret)]++
		if all := strings.Join(series(t), "\n"); !strings.Contains(all, "caddy_shield_state_age_seconds") {
			t.Errorf("no metric in\n%s", all)
		}
		_ = caddy.Stop()
	}
	if len(secrets) != 1 || secrets[""] > 0 {
		t.Errorf("there are %d secrets, want one", len(secrets))
	}
	r := start(t, setup{handlers: zoned(1, 1) + "," + respondOK})
	if all := strings.Join(series(t), "\n"); strings.Contains(all, "state_age") || r.handler().force.Load().config.Secret != nil {
		t.Errorf("without a file there is a secret, or\n%s", all)
	}
}
