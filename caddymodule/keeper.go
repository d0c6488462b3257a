package caddymodule

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/gofrs/flock"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/metrics"
)

// State is what outlives the process: how much of their quotas clients have used, and their appointments.
type State struct {
	// The file to keep it in, in a directory the process can write to. The path can use placeholders known at
	// load: `{env.NAME}`. Required.
	File string `json:"file"`
}

// saveEvery is how much is forgotten at most if the process is killed. Ours: 100,000 clients are written within 0.1 s.
const saveEvery = 10 * time.Second

// A keeper keeps the state of one config at a time in a file. It is in the pool, so that a reload goes on with it.
type keeper struct {
	path   string
	secret []byte        // makes the keys, where there is no store that has one
	saved  *shield.Saved // what was read, until a config runs
	wrong  error         // with that

	mu      sync.Mutex   // guards what follows; held while the file is written
	lock    *flock.Flock // that no other process has; taken when a config runs
	app     *App         // whose state is written: of those that run, the one that was started last
	failed  bool
	due     atomic.Int64 // when to write again, by shield.Now: also if that fails
	written atomic.Int64 // when
}

// open reads what there is. It changes nothing: a config may be checked while another process uses the file.
func (s *State) open() (*keeper, error) {
	f := new(faults)
	path, err := filepath.Abs(f.of("state: ").known("file", s.File))
	if f.add(err); s.File == "" {
		f.addf("file is missing; use a path, like /var/lib/shield/state")
	}
	if f.errs != nil {
		return nil, errors.Join(f.errs...)
	}
	k, _, err := pool.LoadOrNew("state "+path, func() (caddy.Destructor, error) {
		k := &keeper{path: path, secret: make([]byte, 32), lock: flock.New(path + ".lock")}
		_, _ = rand.Read(k.secret) // never fails
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return k, nil
		}
		if err == nil {
			k.saved, k.wrong = shield.ReadSaved(bytes.NewReader(data))
		}
		if k.saved != nil && k.saved.Secret != nil {
			k.secret = k.saved.Secret
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("state: file: %w; use one that this process can read", err)
	}
	return k.(*keeper), nil
}

// load has a new handler take what was saved of its shield and zones.
func (k *keeper) load(h *Handler) {
	if k != nil && k.saved != nil {
		now := shield.Now()
		k.wrong = errors.Join(k.wrong, k.saved.Load(h.guard(), now, shield.At(now)))
	}
}

// start has the state of an app kept from now on. It is written at once: if that fails, so does the config.
func (k *keeper) start(a *App) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	file, aside := zap.String("file", k.path), k.path+".aside"
	locked, err := k.lock.TryLock() // for as long as the process runs
	switch {
	case err != nil:
	case !locked:
		err = fmt.Errorf("%s is locked by another process", k.lock)
	case k.wrong != nil:
		err = os.Rename(k.path, aside)
		a.logger.Error("the saved state is unusable; shield moved it aside and starts with no clients on record", file, zap.String("aside", aside), zap.Error(k.wrong))
	case k.saved != nil:
		a.logger.Info("the saved state is loaded", file, zap.Time("saved", k.saved.At))
	}
	if k.saved, k.wrong = nil, nil; err == nil {
		err = k.write(a)
	}
	if err == nil {
		k.app = a
		return nil
	}
	return fmt.Errorf("state: file: %w; use one that no other process uses, in a directory this one can write to", err)
}

// tend has the state of an app written if it is time to, in the background, as disks may be slow.
func (k *keeper) tend(a *App, now time.Duration) {
	if k == nil || int64(now) < k.due.Load() || !k.mu.TryLock() {
		return
	}
	k.due.Store(int64(now + saveEvery - reportEvery/2)) // reports are a little early or late
	go func() {
		defer k.mu.Unlock()
		if k.app == nil { // a later one has failed to start
			k.app = a
		}
		k.save(a)
	}()
}

// leave writes the state of an app as it is at its end: all apps have stopped.
func (k *keeper) leave(a *App) {
	k.mu.Lock()
	k.save(a)
	if k.app == a {
		k.app = nil
	}
	k.mu.Unlock()
	_, _ = pool.Delete("state " + k.path) // Destruct never fails
}

// Destruct implements caddy.Destructor.
func (k *keeper) Destruct() error {
	return k.lock.Close()
}

// save writes the state of an app if it is kept, and logs when that begins to fail, and when it does no more.
func (k *keeper) save(a *App) {
	if k.app != a {
		return
	}
	err, file := k.write(a), zap.String("file", k.path)
	switch {
	case err != nil && !k.failed:
		a.logger.Error("the state cannot be saved; a restart would load the last saved one", file, zap.Error(err))
	case err == nil && k.failed:
		a.logger.Info("the state is saved again", file)
	}
	k.failed = err != nil
}

// write puts a new file in the place of the old one.
func (k *keeper) write(a *App) error {
	var guards []*shield.Guard
	for _, h := range a.configured {
		guards = append(guards, h.guard())
	}
	now, name, secret := shield.Now(), k.path+".tmp", k.secret
	if a.store != nil { // that makes the keys, and stays out of the file
		secret = nil
	}
	_ = os.Remove(name) // of a process that was killed
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(shield.Save(file, now, shield.At(now), secret, guards...), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(name, k.path)
	}
	if err == nil {
		k.written.Store(int64(now))
	}
	return err
}

var stateMetrics = []metrics.Group[*keeper]{
	{Topic: "Process", With: "`state`", Rows: []metrics.Row[*keeper]{
		metrics.Gauge("state_age_seconds", nil, "Age of the state file: up to 10 s, or more if writing it fails.",
			func(k *keeper, to metrics.Sink) { to.Set((shield.Now() - time.Duration(k.written.Load())).Seconds()) }),
	}},
}
