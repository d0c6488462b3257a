package main

import (
	"bytes"
	"context"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	args := []string{"--mount"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	args = append(args, "sh", "-c", `mount -t tmpfs -o size=8m soak "$0" && exec "$@"`, r.disk(), r.program, "run", "--adapter", "caddyfile", "--config", file)
	r.cmd = exec.Command("unshare", args...)
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

// setClock sets by how much the wall clock of the process is ahead of the machine's. Nothing outside the process
// notices. Go asks the kernel's code in each process for the time, at an address that it keeps in a variable. The
// variable is set to a function that asks there and adds the difference. It is written over runtime.schedinit,
// which has run.
func (r *replica) setClock(ahead time.Duration) error {
	binaryFile, err := elf.Open(r.proc("exe"))
	if err != nil {
		return err
	}
	defer binaryFile.Close()
	text := binaryFile.Section(".text")
	lines, err := binaryFile.Section(".gopclntab").Data()
	if err != nil {
		return err
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, text.Addr))
	if err != nil {
		return err
	}
	now, place := table.LookupFunc("time.now"), table.LookupFunc("runtime.schedinit")
	memory, err := os.OpenFile(r.proc("mem"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	code := make([]byte, now.End-now.Entry)
	if _, err := memory.ReadAt(code, int64(now.Entry)); err != nil {
		return err
	}
	// MOVQ runtime·vdsoClockgettimeSym(SB), AX; CMPQ AX, $0
	after := bytes.Index(code, []byte("\x48\x83\xf8\x00"))
	if after < 7 || !bytes.HasPrefix(code[after-7:], []byte("\x48\x8b\x05")) {
		return errors.New("time.now is not that of Go 1.26 on amd64")
	}
	variable := int64(now.Entry) + int64(after) + int64(int32(binary.LittleEndian.Uint32(code[after-4:])))
	kernels := make([]byte, 8)
	if _, err := memory.ReadAt(kernels, variable); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(kernels) == place.Entry { // it is set already
		if _, err := memory.ReadAt(kernels, int64(place.Entry)+8); err != nil {
			return err
		}
	}
	trampoline := append([]byte("\x57\x56\x48\x83\xec\x08\x48\xb8"), kernels...)                                   // push rdi, rsi; sub rsp, 8; mov rax, the kernel's
	trampoline = append(trampoline, "\xff\xd0\x48\x83\xc4\x08\x5e\x5f\x85\xff\x75\x07\x48\x81\x06"...)             // call rax; add rsp, 8; pop rsi, rdi; if edi == CLOCK_REALTIME: add [rsi],
	trampoline = append(binary.LittleEndian.AppendUint32(trampoline, uint32(int32(ahead/time.Second))), "\xc3"...) // seconds; ret
	if _, err := memory.WriteAt(trampoline, int64(place.Entry)); err != nil {
		return err
	}
	_, err = memory.WriteAt(binary.LittleEndian.AppendUint64(nil, place.Entry), variable)
	return err
}

// A store is a redis-server behind a proxy that damages what it answers.
type store struct {
	address string // of the proxy
	server  string
	folder  string
	cmd     *exec.Cmd
	stop    func()
	damage  atomic.Pointer[func(answer []byte) []byte] // nil: none
}

func (s *store) start(ctx context.Context) (err error) {
	_, port, _ := net.SplitHostPort(s.server)
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.folder)
	s.stop, err = process.Start(ctx, s.cmd, filepath.Join(s.folder, "redis.log"), "tcp", s.server)
	return err
}

// proxy passes on until l is closed.
func (s *store) proxy(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", s.server)
			if err != nil {
				return
			}
			defer server.Close()
			go func() { io.Copy(server, client); server.Close() }()
			for buffer := make([]byte, 64<<10); ; {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				answer := buffer[:n]
				if damage := s.damage.Load(); damage != nil {
					answer = (*damage)(answer)
				}
				if _, err := client.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

func late(answer []byte) []byte {
	time.Sleep(200 * time.Millisecond)
	return answer
}

// garbage answers what no Redis would, or not here.
func garbage(answer []byte) []byte {
	texts := []string{"", "$2000000000\r\n", "$9223372036854775807\r\n", "*100000000\r\n", "$-7\r\n", ":1\r\n", "+OK\r\n", "$2\r\n{}\r\n", "-ERR no\r\n", "$4\r\nnull\r\n", "*-1\r\n"}
	if text := texts[rand.IntN(len(texts))]; text != "" {
		return []byte(text)
	}
	for i := range answer {
		answer[i] = byte(rand.N(256))
	}
	return answer
}

// lie answers with other numbers of as many digits, so that the answer can be read.
func lie(answer []byte) []byte {
	begin := strings.Index(string(answer), "{") // after the length
	for i := max(0, begin); begin >= 0 && i < len(answer); i++ {
		if c := answer[i]; c >= '1' && c <= '9' && rand.N(4) == 0 {
			answer[i] = '1' + byte(rand.N(9))
		}
	}
	return answer
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
