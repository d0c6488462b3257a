package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// The limits of config.
const rate, burst = 100, 20

const config = `{
	admin %[1]s
	auto_https off
	servers {
		protocols h1 h2c
		listener_wrappers {
			shield
		}
		trusted_proxies static 127.0.0.0/8
		trusted_proxies_strict
	}
	shield {
		store redis %[2]s {
			secret 0123456789abcdef
		}
	}
}
http://%[3]s {
	log {
		output file %[4]s/access.log {
			roll_size 1MiB
			roll_keep 2
		}
	}
	shield {
		name soak
		zone per_client {
			rate 10/s
			burst 20
			max_keys 10000
		}
		capacity 100/s burst 20
		concurrency adaptive
		timeout 5s
		pushback {
			max 10s
		}
		retries {
			tickets on
			max_clients 16384
		}
	}
	reverse_proxy %[5]s {
		header_up By %[6]s
	}
}
`

// A replica is a process of the program.
type replica struct {
	name, address, admin string
	config               string // its Caddyfile
	folder               string // of the file
	program              string
	cmd                  *exec.Cmd
	stop                 func()
}

// start starts the process, with a file system of 8 MiB for all that it writes.
func (r *replica) start(ctx context.Context) (err error) {
	file := filepath.Join(r.folder, "Caddyfile")
	if err := os.WriteFile(file, []byte(r.config), 0o600); err != nil {
		return err
	}
	r.cmd = exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=8m soak "$0" && exec "$@"`, r.disk(),
		r.program, "run", "--adapter", "caddyfile", "--config", file)
	r.cmd.Env = append(os.Environ(), "HOME="+r.disk(), "XDG_CONFIG_HOME="+r.disk(), "XDG_DATA_HOME="+r.disk())
	r.stop, err = process.Start(ctx, r.cmd, filepath.Join(r.folder, "log"), "tcp", r.address)
	return err
}

func (r *replica) disk() string { return filepath.Join(r.folder, "disk") }

// proc is a path of the process in /proc; its own files are below root.
func (r *replica) proc(path string) string {
	return filepath.Join("/proc", strconv.Itoa(r.cmd.Process.Pid), path)
}

// ask sends a request to the admin endpoint.
func (r *replica) ask(method, path, contentType, body string) (string, error) {
	req, err := http.NewRequest(method, "http://"+r.admin+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Cache-Control", "must-revalidate") // a config is loaded even if it is the same
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return string(text), err
}

func (r *replica) reload() error {
	_, err := r.ask(http.MethodPost, "/load", "text/caddyfile", r.config)
	return err
}

// metrics returns a sum over the series of a metric that have some labels, given as in `code="2xx"`.
func (r *replica) metrics() (sum func(name string, labels ...string) float64, err error) {
	text, err := r.ask(http.MethodGet, "/metrics", "", "")
	return func(name string, labels ...string) (all float64) {
	lines:
		for line := range strings.Lines(text) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			of, with, _ := strings.Cut(series, "{")
			if of != name {
				continue
			}
			for _, label := range labels {
				if !strings.Contains(with, label) {
					continue lines
				}
			}
			n, _ := strconv.ParseFloat(value, 64)
			all += n
		}
		return all
	}, err
}

// A backend is a server that is restarted, and counts.
type backend struct {
	address string
	server  *http.Server

	mu                 sync.Mutex     // guards what follows
	received, finished map[string]int // by replica
	inside, cut        int            // requests at the moment; that were inside when it was stopped
}

func (b *backend) start(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", b.address)
	if err != nil {
		return err
	}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: time.Minute}
	go b.server.Serve(l)
	return nil
}

func (b *backend) stop() {
	b.mu.Lock()
	b.cut += b.inside
	b.mu.Unlock()
	b.server.Close()
}

func (b *backend) count(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	by := r.Header.Get("By")
	b.count(func() { b.received[by]++; b.inside++ })
	defer b.count(func() { b.inside-- })
	work := 15 * time.Millisecond
	switch r.URL.Path {
	case "/slow":
		work = 300 * time.Millisecond
	case "/upload":
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
	case "/events":
		w.Header().Set("Content-Type", "text/event-stream")
		for range 8 {
			io.WriteString(w, "data: one\n\n")
			http.NewResponseController(w).Flush()
			if !sleep(r.Context(), 250*time.Millisecond) {
				return
			}
		}
	}
	if sleep(r.Context(), work) {
		b.count(func() { b.finished[by]++ })
		io.WriteString(w, "served\n")
	}
}

// sleep reports whether ctx lasted.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
